"""The nouns of the project: devices, sources, records, statuses, analyses, findings, snapshots.

Everybody imports this module; it imports nothing of the project and nothing outside the standard library, so that a
reader process stays small. All types are frozen: they may be shared between threads without a lock.

Conventions: field names end in their unit; `t_s` is seconds since the start of the session on the monotonic clock,
`mono_s` the monotonic clock itself, `wall_s` Unix time. NaN in a record means "not read this time"; None in an answer
means "no answer possible" and stands beside a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

EMPTY: Mapping[str, Any] = MappingProxyType({})

# The kinds of reading, in the order in which they are shown. A source is called "<kind>/<device>[/<lane>]".
SOURCE_KINDS = ("nvml", "gpm", "rdma", "nic", "host", "xid", "pods", "jobs")

STATES = ("overlapped", "partial", "serialized", "compute_only", "stalled", "idle", "unobservable", "no_data")
PHASES = ("overlapped", "exposed", "compute", "stall", "wait", "idle", "unknown")
TRANSPORTS = ("rdma", "tcp", "mixed", "none", "unknown")
PATHS = ("rdma", "nvlink", "tcp")


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the node; `id` is unique within the node and stands in every channel of the device.

    kind is gpu (id "GPU-0"), rdma_port ("mlx5_0/1"), nic ("eth0") or disk ("all"). None: not known, or not of this kind.
    `info` holds what belongs on the info series (architecture, driver_version, pci_bus_id, mig, link_layer, ...).
    """

    kind: str
    id: str
    index: int | None = None
    uuid: str | None = None
    name: str | None = None
    power_limit_watts: float | None = None
    power_source: str | None = None  # instant, usage, energy, module, average: which rung of the ladder answers
    power_window_s: float | None = None  # averaging window of the power sensor
    power_refresh_s: float | None = None  # how often the sensor takes a new value
    driver: str | None = None
    rate_bytes_per_s: float | None = None  # line rate of a port or NIC, one direction
    pci_path: str | None = None  # canonical sysfs path below /sys/devices, for pairing
    numa_node: int | None = None
    info: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    @property
    def uuid_or_id(self) -> str:
        """The label `uuid` of the device's series: the UUID, or the id where a trace gives none."""
        return self.uuid if self.uuid is not None else self.id


@dataclass(frozen=True, slots=True)
class Source:
    """A group of channels that are read together: one line of a trace, one frame on a pipe, one ring of the history."""

    name: str
    channels: tuple[str, ...]  # "<device id>/<quantity>"
    interval_s: float | None = None  # planned time between reads; None in a trace

    @property
    def kind(self) -> str:
        """The kind of reading: what stands before the first slash of the name."""
        return self.name.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class Link:
    """A GPU and a device that carries its traffic. `device_id` is a port, a NIC, or the GPU itself (path nvlink)."""

    gpu_id: str
    device_id: str
    path: str  # one of PATHS
    reason: str  # PIX, PXB, PHB, NODE, SYS, config, guess, node, trace, ...: why they were paired
    weight: float = 1.0  # 1 / number of GPUs that share the device


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is to read. Replaces the inventory before it; equals the header line of a trace."""

    host: str
    started_unix_s: float
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    sources: tuple[Source, ...] = ()
    jobs: Mapping[str, str] = field(default_factory=lambda: EMPTY)  # GPU id -> job; empty: one job is assumed
    truth: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # of simulated traces

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        """The devices of one kind, in order."""
        return tuple(d for d in self.devices if d.kind == kind)

    def compute_ports(self) -> tuple[Device, ...]:
        """The RDMA ports that may carry the job: those paired with a GPU, or all of them where none is."""
        paired = {link.device_id for link in self.links if link.path == "rdma"}
        ports = tuple(d for d in self.of_kind("rdma_port") if "/" in d.id)  # a device without ports is no port
        return tuple(p for p in ports if p.id in paired) or ports


@dataclass(frozen=True, slots=True)
class Record:
    """One read of one source: a value per channel (NaN: not read), stamped at the middle of the read."""

    source: str
    t_s: float
    values: Sequence[float]
    duration_s: float = 0.0  # how long the read took; 0 in a trace


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What a reader says of one of its sources besides values. Counts are totals of the reader's life."""

    source: str
    t_s: float
    missed_ticks: int = 0
    interval_s: float | None = None  # in force, after back-off
    errors: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # reason -> count
    up: bool = True
    reason: str | None = None  # why not up: library_not_found, no_rdma_devices, counters_not_visible, ...


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A device that is left alone for now, and why (hang, crash, gpu_lost, ...). `reason` None lifts it."""

    kind: str
    id: str
    t_s: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class ReaderRestarted:
    """The reader of these sources was replaced; its totals begin anew."""

    sources: tuple[str, ...]
    t_s: float


class OneLineError(Exception):
    """Something that a user can mend, told in one line: what, where, what is allowed. `cli` prints it and exits 1."""


class SourceError(Exception):
    """A source gave no answer: `reason` is one of the closed list of its kind, the text says what happened."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A container of Kubernetes that was given a GPU, or a part of it: `mig_uuid` is "" for a whole GPU and a time slice."""

    gpu_id: str
    namespace: str
    pod: str
    container: str
    mig_uuid: str = ""

    @property
    def job(self) -> str:
        """The pod as a job: "namespace/name"."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class GpuJob:
    """A job of a batch scheduler that runs on a GPU."""

    gpu_id: str
    scheduler: str
    job_id: str


Event = Inventory | Record | SourceStatus | Quarantine | ReaderRestarted


class Series(Protocol):
    """Something that can be asked for the readings of a channel; numpy arrays t [n] and value [n], both float64."""

    def series(self, channel: str, start_s: float, end_s: float) -> tuple[Any, Any]:
        """Readings with start_s < t <= end_s, oldest first; empty arrays where the channel does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class OverlapAnalysis:
    """The verdict on one GPU over one window. Ratios are of running time, 0 to 1; None: no answer, see `reason`."""

    gpu_id: str
    at_s: float
    window_s: float
    state: str  # one of STATES
    reason: str | None = None
    health: float | None = None
    exposed: float | None = None
    exposed_low: float | None = None
    exposed_high: float | None = None
    communication: float | None = None
    stall: float | None = None
    wait: float | None = None
    exposed_or_wait: float | None = None
    correlation: float | None = None
    anticorrelation: float | None = None
    observability: float | None = None
    step_period_s: float | None = None
    running: float | None = None  # share of the window that is the job's time
    resolution_s: float | None = None
    power_low_watts: float | None = None
    power_median_watts: float | None = None
    power_high_watts: float | None = None
    traffic_low_bytes_per_s: float | None = None
    traffic_median_bytes_per_s: float | None = None
    traffic_high_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class TransportVerdict:
    """The transport of the node, and why. `devices`: whom the reason speaks of. Rates None: not known.

    links: in tcp and mixed, every GPU to every interface that carries the job, where the inventory does not hold the pair.
    tcp_share: part of TCP in the job's bytes, 0 to 1; None while the job moves none.
    """

    transport: str  # one of TRANSPORTS
    reason: str  # one of transport.REASONS
    devices: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    rdma_bytes_per_s: float | None = None
    tcp_bytes_per_s: float | None = None
    tcp_share: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number that made a rule fire, with the threshold it was held against; unit is a base unit or 'ratio'."""

    name: str
    value: float
    unit: str
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause that is active now. Texts live in one catalogue, keyed by `finding`; a node finding has gpu_id None."""

    finding: str
    gpu_id: str | None
    since_s: float
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[str, ...] = ()  # keys of the catalogue, least effort first


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How one source is doing; kept apart from its data, which may be gone."""

    source: str
    up: bool
    reason: str | None
    reads: int
    errors: Mapping[str, int]
    missed_ticks: int
    restarts: int
    interval_s: float | None
    last_success_s: float | None  # t_s of the last record that held a value
    read_duration_buckets: tuple[int, ...]  # counts, not cumulative; one more than READ_DURATION_BOUNDS_S
    read_duration_sum_s: float


READ_DURATION_BOUNDS_S = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)
ANALYSIS_DURATION_BOUNDS_S = (1e-3, 3e-3, 1e-2, 2e-2, 5e-2, 1e-1, 3e-1, 1.0)


@dataclass(frozen=True, slots=True)
class SensorRefresh:
    """How often a sensor really takes a new value, as seen in its readings; quantity is power or bytes.

    window_s: over how long a value of power averages: as is known of the sensor, unless its readings prove it wrong.
    """

    kind: str
    id: str
    quantity: str
    refresh_s: float
    window_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What one of our processes uses: exporter, reader_gpu, reader_net. Time of ended readers is kept in cpu_s."""

    process: str
    cpu_s: float
    memory_bytes: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known at one moment, immutable. A scrape, the page and `top` see nothing else.

    latest maps a channel to (value, t_s) and holds fresh values only; phases maps a GPU id to seconds per phase.
    """

    t_s: float
    wall_s: float
    inventory: Inventory
    mode: str  # serve, demo, replay, ...
    latest: Mapping[str, tuple[float, float]]
    analyses: tuple[OverlapAnalysis, ...]
    phases: Mapping[str, Mapping[str, float]]
    findings: tuple[Finding, ...] = ()
    transport: str = "unknown"
    sources: tuple[SourceHealth, ...] = ()
    quarantined: tuple[Quarantine, ...] = ()
    gone: tuple[Device, ...] = ()  # GPUs that left within the last 24 h: up 0, info stays
    refresh: tuple[SensorRefresh, ...] = ()
    processes: tuple[ProcessCost, ...] = ()
    analysis_duration_buckets: tuple[int, ...] = ()
    analysis_duration_sum_s: float = 0.0
    config_reload_ok: bool = True
    verdict_window_s: float = 60.0
    pci_gpus: int | None = None  # display and 3D functions in sysfs; None where sysfs cannot be read
    nvml_gpus: int | None = None  # NVML's own count; None without NVML
    pods: tuple[GpuPod, ...] = ()  # who holds the GPUs, as last heard; see the source "pods" for when that was
    jobs: tuple[GpuJob, ...] = ()
