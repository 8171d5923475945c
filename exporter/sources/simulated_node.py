"""A simulated node: its devices, and lanes that read its sensors as the readers of a real node would.

`simulator.py` builds one per scenario and takes the records; nothing here knows scenarios, or tells the truth of a trace.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from exporter.model import Device, Link, Record, Source
from exporter.sources.job_levels import Array, Column
from exporter.sources.scenarios import NIC_BYTES_PER_S, PORT_BYTES_PER_S, Board
from exporter.sources.sensors import GpmMeans, PollTimes, power_and_energy, utilization
from exporter.sources.simulated_waveform import Timeline, Waveform

GPU_PERIOD_S, PORT_PERIOD_S, NIC_PERIOD_S, SLOW_PERIOD_S = .1, .02, .02, 1.0
NIC, DISK = "eth0", "all"
XID_CODES = (48, 79, 94, 95)
_THROTTLES = ("power_cap", "sw_thermal", "hw_thermal", "power_brake", "sync_boost")
_SLOW_KEYS = ("power_limit_watts", "temperature_celsius", "sm_clock_hertz",
              *(f"throttled_seconds_total/{reason}" for reason in _THROTTLES))
_CHATTER_BYTES_PER_S = 2e3  # keep-alives and subnet management on an idle port

# Events of a port per second of traffic, and per second after its link was hurt.
_EVENTS: tuple[tuple[str, float, float], ...] = (
    ("ecn_marked_rx", .3, 2.0), ("cnp_tx", .3, 2.0), ("cnp_rx", .4, 3.0), ("out_of_order_rx", 0.0, .5),
    ("seq_nak_rx", 0.0, .5), ("ack_timeout", 0.0, .02), ("retransmit", 0.0, .5), ("rnr", 0.0, 0.0),
    ("drops", 0.0, .2), ("link_error", 0.0, 20.0), ("link_down", 0.0, 0.0), ("pfc_pause", 1.0, 8.0),
)


@dataclass(slots=True)
class Lane:
    """One source of the node. `read`: times [n] to values [channels, n]; `until_s`: when its device is lost."""

    source: Source
    polls: PollTimes
    read: Callable[[Array], Array]
    cost_s: float  # of one read
    until_s: float = math.inf

    def records(self, end_s: float) -> Iterator[Record]:
        """The reads planned before `end_s`."""
        times = self.polls.due(end_s)
        times = times[times < self.until_s]
        for t_s, values in zip(times.tolist(), self.read(times).T.tolist(), strict=True):
            yield Record(self.source.name, t_s, values, self.cost_s)


class SimulatedNode:
    """Devices, links and lanes over a timeline. Fault times are infinite where nothing breaks."""

    def __init__(self, board: Board, timeline: Timeline, seed: Sequence[int], *, ports: int | None = None,
                 link_fault_s: float = math.inf, gpu_fault_s: float = math.inf,
                 events: Sequence[tuple[str, float]] = ()) -> None:
        self.board, self.timeline = board, timeline
        self.gpus = len(timeline.waves)
        self.port_count = ports or self.gpus
        self.lost_gpu, self.gpu_fault_s = min(5, self.gpus - 1), gpu_fault_s
        self.hurt_port, self.link_fault_s = min(2, self.port_count - 1), link_fault_s
        self._event_rates = dict(events)  # per second of traffic, instead of those of a healthy fabric
        self._seeds = np.random.SeedSequence([*seed, 2])
        self.devices = (*map(self._gpu, range(self.gpus)), *map(self._port, range(self.port_count)), *_NODE_DEVICES)
        shared = [sum(g % self.port_count == p for g in range(self.gpus)) for p in range(self.port_count)]
        self.links = tuple(link for g in range(self.gpus) for link in self._links_of(g, 1.0 / shared[g % self.port_count]))
        gpu_lanes = (lane for g in range(self.gpus) for lane in self._gpu_lanes(g))
        port_lanes = (lane for p in range(self.port_count) for lane in self._port_lanes(p))
        self.lanes = (*gpu_lanes, *port_lanes, *self._nic_lanes(), self._host_lane())

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self._seeds.spawn(1)[0])

    # Devices

    def _gpu(self, g: int) -> Device:
        info = {"architecture": self.board.architecture, "driver_version": "570.124.06", "mig": "0",
                "pci_bus_id": f"00000000:{0x1b + 0x10 * g:02X}:00.0"}
        return Device("gpu", f"GPU-{g}", index=g, uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'simulated GPU {g}')}",
                      name=self.board.name, power_limit_watts=self.board.limit_watts, power_source=self.board.power_source,
                      power_window_s=self.board.power_window_s, power_refresh_s=self.board.power_refresh_s,
                      info=MappingProxyType(info))

    @staticmethod
    def _port(p: int) -> Device:
        info = {"link_layer": "Ethernet", "firmware": "28.43.1014", "netdev": f"eth{p + 1}", "byte_source": "port_xmit_data"}
        return Device("rdma_port", f"mlx5_{p}/1", driver="mlx5_core", rate_bytes_per_s=PORT_BYTES_PER_S,
                      info=MappingProxyType(info))

    def _links_of(self, g: int, weight: float) -> Iterator[Link]:
        gpu = f"GPU-{g}"
        yield Link(gpu, f"mlx5_{g % self.port_count}/1", "rdma", "PIX", weight)
        if self.board.nvlink:
            yield Link(gpu, gpu, "nvlink", "nvlink")

    # Lanes

    def _lane(self, name: str, device: str, keys: Sequence[str], period_s: float, read: Callable[[Array], Array], cost_s: float,
              until_s: float = math.inf) -> Lane:
        source = Source(name, tuple(f"{device}/{key}" for key in keys), period_s)
        return Lane(source, PollTimes(period_s, self._rng()), read, cost_s, until_s)

    def _gpu_lanes(self, g: int) -> Iterator[Lane]:
        wave, gpu = self.timeline.waves[g], f"GPU-{g}"
        until_s = self.gpu_fault_s if g == self.lost_gpu else math.inf
        board = self.board
        power = power_and_energy(wave, board.power_window_s, board.power_refresh_s, self._rng())
        busy = utilization(wave, self._rng())
        nvlink = self._rng().integers(10**12, 10**13, 2) if board.nvlink else np.empty(0)

        def fast(t_s: Array) -> Array:
            watts_and_joules = power.read(t_s)
            links = np.floor(wave.total(Column.NVLINK, t_s) + nvlink[:, np.newaxis])
            return np.concatenate((watts_and_joules[:1], busy.read(t_s), watts_and_joules[1:], links))

        keys = ["power_watts", "utilization_ratio", "energy_joules_total"]
        keys += ["nvlink_transmit_bytes_total", "nvlink_receive_bytes_total"] if board.nvlink else []
        yield self._lane(f"nvml/{gpu}", gpu, keys, GPU_PERIOD_S, fast, 6e-4, until_s)
        if board.gpm:
            gpm_keys = ("kernel_busy_ratio", "sm_utilization_ratio", "tensor_utilization_ratio")
            yield self._lane(f"gpm/{gpu}", gpu, gpm_keys, GPU_PERIOD_S, GpmMeans(wave, self._rng()).read, 9e-4, until_s)
        slow = _Slow(wave, board, self._rng())
        yield self._lane(f"nvml/{gpu}/slow", gpu, _SLOW_KEYS, SLOW_PERIOD_S, slow.read, 2e-3, until_s)

        def xids(t_s: Array) -> Array:
            return np.zeros((len(XID_CODES), len(t_s)))

        xid_keys = [f"xid_errors_total/{code}" for code in XID_CODES]
        yield self._lane(f"xid/{gpu}", gpu, xid_keys, SLOW_PERIOD_S, xids, 0.0, until_s)

    def _port_lanes(self, p: int) -> Iterator[Lane]:
        waves = [wave for g, wave in enumerate(self.timeline.waves) if g % self.port_count == p]
        name, port, rng = f"rdma/mlx5_{p}", f"mlx5_{p}/1", self._rng()
        start = rng.integers(10**12, 10**13, 2)
        slip = 1.0 + .004 * float(rng.uniform(-1, 1))  # receive against transmit
        hurt_s = self.link_fault_s if p == self.hurt_port else math.inf

        def fast(t_s: Array) -> Array:
            sent = sum(wave.total(Column.RDMA_TRANSMIT, t_s) for wave in waves)
            received = sum(wave.total(Column.RDMA_RECEIVE, t_s) for wave in waves) * slip
            flows = np.stack((sent, received)) + _CHATTER_BYTES_PER_S * t_s
            return 4 * np.floor((flows + start[:, np.newaxis]) / 4)  # port_xmit_data counts words of four bytes

        yield self._lane(name, port, ("transmit_bytes_total", "receive_bytes_total"), PORT_PERIOD_S, fast, 3e-4)
        events = _PortEvents(waves, hurt_s, self._event_rates, rng)
        keys = ("up_ratio", "rate_bytes_per_second", *(f"events/{event}" for event, _, _ in _EVENTS))
        yield self._lane(f"{name}/slow", port, keys, SLOW_PERIOD_S, events.read, 2e-3)

    def _nic_lanes(self) -> Iterator[Lane]:
        waves = self.timeline.waves
        start = self._rng().integers(10**10, 10**11, 2)

        def fast(t_s: Array) -> Array:
            flows = np.stack([sum(wave.total(c, t_s) for wave in waves) for c in (Column.NIC_TRANSMIT, Column.NIC_RECEIVE)])
            ssh_and_metrics = np.stack((6e4 * t_s + 2e4 * (1 - np.cos(t_s / 3.7)), 1.2e5 * t_s + 9e4 * (1 - np.cos(t_s / 1.9))))
            return np.floor(flows + ssh_and_metrics + start[:, np.newaxis])

        def slow(t_s: Array) -> Array:
            return np.stack((np.ones(len(t_s)), np.full(len(t_s), NIC_BYTES_PER_S)))

        yield self._lane(f"nic/{NIC}", NIC, ("transmit_bytes_total", "receive_bytes_total"), NIC_PERIOD_S, fast, 5e-5)
        yield self._lane(f"nic/{NIC}/slow", NIC, ("up_ratio", "rate_bytes_per_second"), SLOW_PERIOD_S, slow, 2e-4)

    def _host_lane(self) -> Lane:
        waves = self.timeline.waves
        start = self._rng().integers(10**10, 10**11, 4)[:, np.newaxis] * np.array([[1.0], [1.0], [0.0], [1e-7]])
        idle = np.array([[3e4], [2e5], [0.0], [.02]])  # logs, and whatever a node does
        columns = (Column.DISK_READ, Column.DISK_WRITTEN, None, Column.IOWAIT)

        def read(t_s: Array) -> Array:
            flows = [np.zeros(len(t_s)) if c is None else sum(w.total(c, t_s) for w in waves) for c in columns]
            totals = np.stack(flows) + idle * t_s + start
            return np.concatenate((np.floor(totals[:3]), np.round(totals[3:], 2)))

        keys = ("read_bytes_total", "written_bytes_total", "network_filesystem_read_bytes_total", "cpu_iowait_seconds_total")
        return self._lane(f"host/{DISK}", DISK, keys, SLOW_PERIOD_S, read, 1e-3)


_NODE_DEVICES = (
    Device("nic", NIC, driver="mlx5_core", rate_bytes_per_s=NIC_BYTES_PER_S, info=MappingProxyType({"kind": "physical"})),
    Device("disk", DISK),
)


class _Slow:
    """What changes slowly on a GPU: temperature follows power, clocks follow load and cap, throttling adds up."""

    def __init__(self, wave: Waveform, board: Board, rng: np.random.Generator) -> None:
        self._wave, self._board = wave, board
        self._celsius = 34.0 + float(rng.uniform(0, 4))
        self._inlet_celsius = self._celsius - 4.0
        self._last_s = 0.0

    def read(self, t_s: Array) -> Array:
        rows = []
        for t in t_s.tolist():
            since = np.array([self._last_s, t])
            watts, busy, capped = (float(np.diff(self._wave.total(c, since))[0]) / (t - self._last_s)
                                   for c in (Column.WATTS, Column.KERNEL, Column.CAPPED))
            target = self._inlet_celsius + 42.0 * watts / self._board.limit_watts
            self._celsius += (target - self._celsius) * (1 - math.exp(-(t - self._last_s) / 25.0))
            self._last_s = t
            clock = self._board.sm_clock_hertz * (1 - .18 * capped) if busy > .01 else 345e6
            throttled = round(float(self._wave.total(Column.CAPPED, since[1:])[0]), 6)
            others = [0.0] * (len(_THROTTLES) - 1)
            rows.append([self._board.limit_watts, round(self._celsius), round(clock / 15e6) * 15e6, throttled, *others])
        return np.asarray(np.array(rows).reshape(-1, len(_SLOW_KEYS)).T, np.float64)


class _PortEvents:
    """State, rate and event counters of a port; a hurt link trains anew at half its rate, and errors follow."""

    def __init__(self, waves: Sequence[Waveform], hurt_s: float, rates: Mapping[str, float],
                 rng: np.random.Generator) -> None:
        self._waves, self._hurt_s, self._rng = waves, hurt_s, rng
        self._counts = np.zeros(len(_EVENTS))
        self._last_s = 0.0
        self._down = [name for name, _, _ in _EVENTS].index("link_down")
        self._rates = np.array([(rates.get(name, usual), hurt) for name, usual, hurt in _EVENTS]).T

    def read(self, t_s: Array) -> Array:
        rows = []
        for t in t_s.tolist():
            since = np.array([self._last_s, t])
            traffic_s = max(float(np.diff(wave.total(Column.COMMUNICATION, since))[0]) for wave in self._waves)
            hurt = t >= self._hurt_s
            expected = self._rates[0] * traffic_s + (self._rates[1] * (t - self._last_s) if hurt else 0.0)
            self._counts += self._rng.poisson(np.maximum(expected, 0.0))
            self._counts[self._down] += hurt and self._last_s < self._hurt_s
            self._last_s = t
            rows.append([1.0, PORT_BYTES_PER_S / (2 if hurt else 1), *self._counts.tolist()])
        return np.asarray(np.array(rows).reshape(-1, 2 + len(_EVENTS)).T, np.float64)
