"""Jobs whose communication is finer than the sensors: kernel-like timelines of our own invention, through modelled sensors.

Used by the tests of accuracy and by the benchmark of estimators. A timeline is a list of intervals of one step; a draw
repeats it with jitter, moves or delays its communication (the families), gives it levels of power, and reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.model import Device, Inventory, Link, Source
from tests.draws import Node, polls
from tests.draws_jobs import TIMELINES, Interval

Array = NDArray[np.float64]

GRAIN_S = 0.00025
SECONDS = 75.0
FAMILIES = ("recorded", "shifted", "waiting", "waiting_shifted")
STEPS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_PHASES = 40_000  # of a step, in which intervals are laid down


@dataclass(frozen=True, slots=True)
class Truth:
    """Shares of the window of 60 s that ends at `at_s`."""

    at_s: float
    exposed: float
    communication: float
    stall: float
    wait: float
    noncompute: float
    compute_watts: float

    @property
    def health(self) -> float:
        return 1.0 - self.exposed / self.communication if self.communication > 0 else float("nan")


@dataclass(frozen=True, slots=True)
class _Waveforms:
    """What runs at every grain: compute, a kernel of communication, bytes on the wire; the phase of the step."""

    compute: NDArray[np.bool_]
    comm: NDArray[np.bool_]
    transfer: NDArray[np.bool_]
    phase: Array


def _waveforms(intervals: Sequence[Interval], family: str, step_s: float, rng: np.random.Generator) -> _Waveforms:
    first, last = min(i[0] for i in intervals), max(i[1] for i in intervals)
    shift = rng.uniform(0.1, 0.9) if "shifted" in family else 0.0
    moving = rng.uniform(0.25, 0.9) if "waiting" in family else 1.0
    table = {kind: np.zeros(_PHASES, dtype=bool) for kind in ("compute", "comm", "transfer")}
    for begin, end, kind in intervals:
        a, b = (begin - first) / (last - first), (end - first) / (last - first)
        laid = {"compute": (a, b)}
        if kind == "wait":
            laid = {"comm": (a + shift, b + shift)}
        elif kind == "comm":
            laid = {"comm": (a + shift, b + shift), "transfer": (b - moving * (b - a) + shift, b + shift)}
        for name, (start, stop) in laid.items():
            cells = np.arange(round(start * _PHASES), max(round(start * _PHASES) + 1, round(stop * _PHASES)))
            table[name][cells % _PHASES] = True
    lengths = step_s * np.maximum(0.3, 1 + rng.uniform(0.005, 0.05) * rng.standard_normal(int(2 * SECONDS / step_s) + 4))
    edges = np.concatenate(([0.0], np.cumsum(lengths))) - rng.uniform(0, step_s)
    t = (np.arange(round(SECONDS / GRAIN_S)) + 0.5) * GRAIN_S
    step = np.searchsorted(edges, t, side="right") - 1
    phase = np.where(step < 0, 0.0, (t - edges[step]) / lengths[step])
    at = np.minimum((phase * _PHASES).astype(int), _PHASES - 1)
    return _Waveforms(table["compute"][at], table["comm"][at], table["transfer"][at], phase)


def draw(intervals: Sequence[Interval], family: str, step_s: float, rng: np.random.Generator) -> tuple[Node, Inventory, Truth]:
    """A node with one GPU and one port that runs the timeline, with every kind of reading; see `only`."""
    w = _waveforms(intervals, family, step_s, rng)
    busy = w.compute | w.comm
    at_s = SECONDS - 1.0
    inside = slice(round((at_s - 60.0) / GRAIN_S), round(at_s / GRAIN_S))

    def share(x: Array) -> float:
        return float(np.mean(x[inside]))

    node = Node()
    truth = Truth(at_s, share(w.transfer & ~w.compute), share(w.transfer), share(~busy),
                  share(w.comm & ~w.transfer & ~w.compute), share(~w.compute), _read_power(node, w, rng))  # fmt: skip
    _read_activity(node, w, rng)
    _read_bytes(node, w, rng)
    gpu = _board(0.025)
    port = Device("rdma_port", "mlx5_0/1", rate_bytes_per_s=50e9)
    sources = (
        Source("nvml/GPU-0", ("GPU-0/power_watts", "GPU-0/utilization_ratio")),
        Source("energy/GPU-0", ("GPU-0/energy_joules_total",)),
        Source("gpm/GPU-0", ("GPU-0/kernel_busy_ratio", "GPU-0/sm_utilization_ratio")),
        Source("rdma/mlx5_0", ("mlx5_0/1/transmit_bytes_total", "mlx5_0/1/receive_bytes_total")),
    )
    return node, Inventory("node-1", 0.0, (gpu, port), (Link("GPU-0", "mlx5_0/1", "rdma", "PIX"),), sources), truth


def draws(count: int, rng: np.random.Generator) -> Iterator[tuple[Node, Inventory, Truth]]:
    """Fresh jobs in turn: every kind in every family at every length of a step, levels and noise anew; 200 hold each once."""
    kinds = list(TIMELINES.values())
    for number in range(count):
        turn, kind = divmod(number, len(kinds))
        yield draw(kinds[kind](rng), FAMILIES[turn % len(FAMILIES)], STEPS_S[(turn + kind) % len(STEPS_S)], rng)


def _board(window_s: float) -> Device:
    return Device("gpu", "GPU-0", index=0, power_limit_watts=700.0, power_source="instant", power_window_s=window_s,
                  power_refresh_s=0.1)  # fmt: skip


def _means(values: Array, begin_s: Array, end_s: Array) -> Array:
    total = np.concatenate(([0.0], np.cumsum(values)))
    grid = np.arange(len(total)) * GRAIN_S
    return (np.interp(end_s, grid, total) - np.interp(begin_s, grid, total)) / np.maximum((end_s - begin_s) / GRAIN_S, 1e-9)


def _read_power(node: Node, w: _Waveforms, rng: np.random.Generator) -> float:
    """Power through windows of 25 and of 100 ms (under a name of its own), utilisation, energy read apart; W of compute."""
    compute, idle = rng.uniform(450, 690), rng.uniform(100, 170)
    alone = rng.uniform(0.30, 0.55) * compute
    spinning = idle + rng.uniform(0.5, 1.0) * (alone - idle)
    forward = rng.uniform(0.82, 1.0) if rng.integers(2) else 1.0
    level = np.where(w.phase < 0.35, forward, 1.0) * compute
    watts = np.where(w.comm, np.where(w.transfer, alone, spinning), idle)
    watts = np.where(w.compute, level * np.where(w.comm, 1 + rng.uniform(-0.06, 0.06), 1.0), watts)
    noise = rng.uniform(0.005, 0.025) * compute
    refresh_s, first = 0.1 * rng.uniform(0.99, 1.01), rng.uniform(0, 0.1)
    ticks = np.arange(first + 0.1, SECONDS, refresh_s)
    t = polls(SECONDS, 10.0, 0.006, rng)
    t = t[t > ticks[0]]
    for key, window_s in (("power_watts", 0.025), ("power_watts_100", 0.1)):
        mean = np.round(_means(watts, ticks - window_s, ticks) + rng.normal(0, noise, len(ticks)), 1)
        node.channels[f"GPU-0/{key}"] = t, mean[np.searchsorted(ticks, t, side="right") - 1]
    busy = (w.compute | w.comm).astype(float)
    node.channels["GPU-0/utilization_ratio"] = t, np.round(_means(busy, np.maximum(0, t - 0.166), t), 2)
    t = polls(SECONDS, 10.0, 0.006, rng)
    node.channels["GPU-0/energy_joules_total"] = t, np.round(500 + _means(watts, 0 * t, t) * t, 3)
    return compute


def _read_activity(node: Node, w: _Waveforms, rng: np.random.Generator) -> None:
    """GPM means since the read before."""
    inside, alone = rng.uniform(0.90, 1.0), rng.uniform(0.08, 0.2)
    active = np.where(w.compute, inside, np.where(w.comm, alone, 0.0))
    t = polls(SECONDS, 10.0, 0.004, rng)
    before = np.concatenate(([0.0], t[:-1]))
    for key, x in (("kernel_busy_ratio", (w.compute | w.comm).astype(float)), ("sm_utilization_ratio", active)):
        node.channels[f"GPU-0/{key}"] = t, np.round(_means(x, before, t), 4)


def _read_bytes(node: Node, w: _Waveforms, rng: np.random.Generator) -> None:
    """Counters read twice, 5 ms apart; storage beside the job in a third of the draws."""
    n = len(w.compute)
    rate = np.where(w.transfer, rng.uniform(15e9, 45e9), 0.0) + 2000.0
    storage = np.zeros(n)
    kind = rng.uniform()
    if kind < 0.35:
        every, length = rng.uniform(3, 12), rng.uniform(0.1, 0.8)
        storage = np.where((np.arange(n) * GRAIN_S) % every < length, rng.uniform(0.5e9, 4e9), 0.0)
    directions = (rate + storage, rate + storage * (kind < 0.1))
    if rng.integers(2):
        directions = directions[::-1]
    second = polls(SECONDS, 10.0, 0.006, rng)
    t = np.sort(np.concatenate((second - rng.uniform(0.0045, 0.0055, len(second)), second)))
    t = t[t > 0]
    seen = np.floor(t / 0.001) * 0.001
    for key, of_direction in zip(("transmit", "receive"), directions, strict=True):
        total = np.concatenate(([0.0], np.cumsum(of_direction * GRAIN_S)))
        total += rng.uniform(1e11, 9e12)
        node.channels[f"mlx5_0/1/{key}_bytes_total"] = t, np.round(np.interp(seen, np.arange(n + 1) * GRAIN_S, total))
        node.channels[f"mlx5_0/1/{key}_bytes_exact"] = np.arange(n + 1) * GRAIN_S, total  # to be read by other plans


def only(node: Node, inventory: Inventory, readings: str) -> tuple[Node, Inventory]:
    """The same draw with one set of readings: power25_nic10, power100_nic10, power25_paired or gpm_paired."""
    out = Node(dict(node.channels))
    gpu, port = inventory.devices
    slow_power = out.channels.pop("GPU-0/power_watts_100")
    if readings == "power100_nic10":
        out.channels["GPU-0/power_watts"] = slow_power
        gpu = _board(0.1)
    if readings != "gpm_paired":
        for key in ("energy_joules_total", "kernel_busy_ratio", "sm_utilization_ratio"):
            del out.channels[f"GPU-0/{key}"]
    if readings.endswith("nic10"):
        for key in ("transmit", "receive"):
            t, total = out.channels[f"mlx5_0/1/{key}_bytes_total"]
            late = np.concatenate(([False], np.diff(t) < 0.02))
            out.channels[f"mlx5_0/1/{key}_bytes_total"] = t[late], total[late]
    sources = tuple(s for s in inventory.sources if s.channels[0] in out.channels)
    return out, Inventory("node-1", 0.0, (gpu, port), inventory.links, sources)


READINGS = ("power100_nic10", "power25_nic10", "power25_paired", "gpm_paired")  # each holds more than the one before
