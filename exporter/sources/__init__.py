"""What every source gives to a reader: lanes, the settings they are opened with, and how they fail.

A source module has one function that looks for its devices and opens them (`nvml.open_gpu`, `net.open_net`); the reader
ticks the lanes it gets. Readers and source modules import this; it imports only the model, so that a reader stays small,
and it never touches the machine.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from exporter.model import EMPTY, Device, Source, SourceStatus

# What the reader does after a LaneError, from the mildest to the hardest.
KEEP = "keep"  # nothing: the next tick tries again
REDISCOVER = "rediscover"  # look for devices anew, soon: this one vanished or was probed again
QUARANTINE = "quarantine"  # leave this device alone and say why; open it anew every 30 s
REOPEN = "reopen"  # throw all handles away and open everything anew, with back-off
RESTART = "restart"  # only a new process helps (the driver was replaced under a loaded library)

Announce = Callable[[str, str], None]
"""Called with kind and id of a device right before it is touched while devices are being opened, so that a hang or a
crash there is laid at its door. An empty id is the library or the tree as a whole."""


def unannounced(kind: str, device_id: str) -> None:
    """An Announce for callers that watch nothing."""


class LaneError(Exception):
    """A read that failed for the device as a whole. The lane has counted it in its `errors` already.

    reason: short snake case, one of the lane's closed list; then: what the reader is to do, see above.
    """

    def __init__(self, reason: str, then: str = KEEP) -> None:
        super().__init__(reason)
        self.reason = reason
        self.then = then


LONGEST_PAIR_S = 0.025  # reads further apart show bursts no better than all others
_CLOCK_TICK_S = 0.005  # the kernel counts time in jiffies, of 4 ms where they are long


@dataclass(frozen=True, slots=True)
class Plan:
    """When byte counters are read: `hertz` times a second, and each `every`-th time once more, pair_s later.

    Two reads so close to each other show the rate inside a burst, which reads further apart only show the mean of.
    pair_s 0: no second reads. `benchmarks/polling.py` prints what each plan costs, and how well it tells overlap.
    """

    hertz: float
    pair_s: float = 0.0
    every: int = 1

    @property
    def interval_s(self) -> float:
        """Between deadlines."""
        return 1.0 / self.hertz

    @property
    def reads_per_s(self) -> float:
        """Second reads included."""
        return self.hertz * (1.0 + (1.0 / self.every if self.pair_s else 0.0))

    def beyond(self, refresh_s: float) -> Plan:
        """This plan for counters that give the same answer again within refresh_s (0: for those that never do).

        The second read of a pair has to come after that; where it would be no close one any more, there is none.
        """
        if not self.pair_s or self.pair_s > refresh_s:
            return self
        pair_s = refresh_s + _CLOCK_TICK_S
        return replace(self, pair_s=pair_s) if pair_s <= LONGEST_PAIR_S else replace(self, pair_s=0.0)

    def at_most(self, hertz: float) -> Plan:
        """This plan, or one with so many deadlines a second; a device that allows no more is not read in pairs."""
        return self if self.hertz <= hertz else Plan(hertz)


# By what the counters of a device give; a driver's own is a column of its table.
PAIRED = Plan(25.0, 0.005, 5)  # new at each read
STEADY = Plan(50.0)  # new each 10 ms or so: pairs would stand still or jump
SLOW = Plan(10.0)  # a device fills memory now and then: it shows no sooner to whoever asks more often


class Lane(Protocol):
    """One device at one rate: becomes one model.Source. Used by one thread at a time. Lanes of byte counters have a `plan`
    beside (see PlannedLane); the others are read once at each of their deadlines.

    `source` may be replaced by the lane itself when its channels change; the reader then announces the new inventory
    before it sends the next record. `errors` are running totals by reason, every declared reason from the start on.
    """

    @property
    def source(self) -> Source:
        """Name, channels and the planned interval (a number, never None)."""
        ...

    @property
    def device_kind(self) -> str:
        """Kind of the device that is touched: gpu, rdma_port, nic, disk."""
        ...

    @property
    def device_id(self) -> str:
        """The device that is touched: left alone as a whole when a read of it hangs."""
        ...

    @property
    def errors(self) -> Mapping[str, int]:
        """Running totals by reason, at most eight reasons per kind of source."""
        ...

    def read(self) -> Sequence[float] | None:
        """A value per channel, NaN where it was not read; None: nothing new to say. Raises LaneError."""
        ...

    def close(self) -> None:
        """Give back files and handles; never raises."""
        ...


@runtime_checkable
class PlannedLane(Lane, Protocol):
    """A lane that may be read in pairs."""

    @property
    def plan(self) -> Plan:
        """Its hertz belongs to the planned interval of the source."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening found. `devices` may hold more than have lanes: what is known of a device that cannot be read.

    statuses speak of a kind as a whole (source "nvml", "rdma"), when it is not up and why. lost names devices that could
    not be opened, with the reason: the reader reports them as quarantined and tries again. extra are plain values for the
    exporter (nvml_gpus, pci_gpus).
    """

    devices: tuple[Device, ...] = ()
    lanes: tuple[Lane, ...] = ()
    statuses: tuple[SourceStatus, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    lost: Mapping[str, str] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """How to read the GPUs. include and exclude are glob patterns on index, id and UUID; empty include takes all."""

    nvml_library: str | None = None  # absolute path of libnvidia-ml.so.1; None: as the loader finds it
    sysfs_root: str = "/sys"
    gpu_hertz: float = 10.0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()  # ids of devices in quarantine: not touched at all
    only: tuple[str, ...] = ()  # ids: open just these (a lost device is tried again); empty: all
    known: tuple[str, ...] = ()  # "<uuid>=<id>" of boards that an earlier reader named


@dataclass(frozen=True, slots=True)
class NetSettings:
    """How to read ports, interfaces and the host. include and exclude are glob patterns on names."""

    sysfs_root: str = "/sys"
    procfs_root: str = "/proc"
    machine_root: str = ""  # before the absolute paths at which topology files are looked for
    topology_file: str | None = None  # an NCCL topology file; None: as NCCL would find it
    network_hertz: float | None = None  # reads of byte counters at a steady rate; None: by the plan of each driver
    host_hertz: float = 1.0
    rdma_include: tuple[str, ...] = ()
    rdma_exclude: tuple[str, ...] = ()
    nic_include: tuple[str, ...] = ()
    nic_exclude: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def plan(self, of_driver: Plan) -> Plan:
        """How to read byte counters whose driver has this plan."""
        return of_driver if self.network_hertz is None else Plan(self.network_hertz)


# The two functions that open devices: open_gpu(settings, announce) in nvml.py, open_net(settings, announce) in net.py.
OpenGpu = Callable[[GpuSettings, Announce], Opened]
OpenNet = Callable[[NetSettings, Announce], Opened]

S = TypeVar("S", GpuSettings, NetSettings)


def as_values(settings: GpuSettings | NetSettings) -> dict[str, Any]:
    """Settings as plain values, for the parent's side."""
    return dataclasses.asdict(settings)


def settings_to_json(settings: GpuSettings | NetSettings) -> str:
    """Settings as they are handed to a reader."""
    return json.dumps(as_values(settings), separators=(",", ":"))


def settings_from_json(kind: type[S], text: str) -> S:
    """Settings as a reader takes them; an unknown key is an error.

    >>> settings_from_json(GpuSettings, '{"gpu_hertz": 20.0, "skip": ["GPU-1"]}').skip
    ('GPU-1',)
    """
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
    return kind(**values)
