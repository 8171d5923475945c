"""THE catalogue: every metric family that the exporter can show, and how its samples come out of a Snapshot.

`collector.py` renders it, the dashboards and METRICS.md are checked against it. Raw families follow from
`quantities.QUANTITIES`, derived ones from the fields of OverlapAnalysis; the rest is written out here. A family without
data yields nothing. A new metric is one row; nothing here computes a verdict, reads a clock or touches a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from exporter import __version__
from exporter.labels import Labelled, Labels, device_labels, port_labels
from exporter.model import (
    ANALYSIS_DURATION_BOUNDS_S,
    PHASES,
    READ_DURATION_BOUNDS_S,
    STATES,
    TRANSPORTS,
    Device,
    OverlapAnalysis,
    SourceHealth,
)
from exporter.quantities import QUANTITIES

__all__ = ["ERROR_REASONS", "FAMILIES", "Buckets", "Family", "Labelled"]


class Buckets(NamedTuple):
    """A histogram as counted: counts [len(bounds) + 1] per bucket, not cumulative, and the sum of what was observed."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


Row = tuple[Labels, "float | Buckets"]

# Why a read failed, per kind of reading: at most eight, and each is there from the start, at 0. What a reader counts under
# another name is shown as "other".
_NVML_REASONS = ("unsupported", "no_permission", "transient", "gpu_lost", "library", "implausible", "hang", "other")
_FILE_REASONS = ("not_available", "io_error", "permission_denied", "missing", "not_a_number", "vanished", "hang", "other")
ERROR_REASONS: Mapping[str, tuple[str, ...]] = {
    "nvml": _NVML_REASONS,
    "gpm": ("too_close", "implausible", "unsupported", "no_permission", "transient", "gpu_lost", "library", "other"),
    "xid": _NVML_REASONS,
    "rdma": _FILE_REASONS,
    "nic": _FILE_REASONS,
    "host": _FILE_REASONS,
    "pods": ("missing", "permission_denied", "timeout", "connection", "protocol", "other"),
    "jobs": ("missing", "permission_denied", "io_error", "not_understood", "other"),
}


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `name` is as it stands in the text format (counters end in _total); `unit` is its base unit or "".

    kind: gauge, counter or histogram. Info series and state sets are gauges, as the contract has it.
    """

    name: str
    kind: str
    help: str
    labels: Labels
    unit: str
    samples: Callable[[Labelled], Iterable[Row]]
    origin: str = ""

    def rows(self, labelled: Labelled) -> Iterator[Row]:
        """Its samples: finite values only, every set of labels once (the first wins)."""
        seen: set[Labels] = set()
        for row in self.samples(labelled):
            labels, value = row
            if labels not in seen and (isinstance(value, Buckets) or math.isfinite(value)):
                seen.add(labels)
                yield row


_UNITS = ("bytes_per_second", "seconds", "bytes", "watts", "joules", "celsius", "hertz", "ratio")


def _unit(name: str) -> str:
    bare = name.removesuffix("_total")
    return next((u for u in _UNITS if bare.endswith("_" + u)), "")


def _family(
    name: str, kind: str, labels: str, samples: Callable[[Labelled], Iterable[Row]], text: str, *, origin: str = ""
) -> Family:
    return Family(name, kind, text, tuple(labels.split()), _unit(name), samples, origin)


# --- raw: one family per row of the table of quantities -------------------------------------------------------------

_DEVICE_LABELS = {"gpu": "gpu uuid", "rdma_port": "device port", "nic": "device", "disk": ""}


def _raw(metric: str) -> Callable[[Labelled], Iterable[Row]]:
    return lambda x: x.raw.get(metric, ())


def _raw_families() -> Iterator[Family]:
    for q in QUANTITIES:
        labels = f"{_DEVICE_LABELS[q.device_kind] if q.per_device else ''} {q.label or ''}"
        yield _family(q.metric, q.kind, labels, _raw(q.metric), q.help, origin=q.origin)


# --- derived: fields of OverlapAnalysis -----------------------------------------------------------------------------

# field, metric, help; for every window.
_RATIOS = (
    ("health", "overlap_health_ratio", "Share of communication time hidden behind compute; absent where it cannot be judged."),
    ("exposed", "overlap_exposed_ratio", "Share of running time lost to exposed communication."),
    ("communication", "overlap_communication_ratio", "Share of running time with traffic."),
    ("stall", "overlap_stall_ratio", "Share of running time without compute, traffic or a kernel: an input or storage stall."),
    ("wait", "overlap_wait_ratio",
     "Share of running time with low power, no traffic and a kernel resident: waiting for a straggler, or a pipeline bubble."),
    ("exposed_or_wait", "overlap_exposed_or_wait_ratio",
     "Share of running time lost to exposed communication and waits together; given also where they cannot be told apart."),
    ("correlation", "overlap_power_traffic_correlation",
     "Pearson correlation of power and traffic, -1 to 1; absent when either is flat."),
    ("anticorrelation", "overlap_anticorrelation_ratio",
     "How strongly power and traffic alternate, 0 (not at all, also when flat) to 1."),
    ("observability", "overlap_observability_ratio",
     "How well the sensors resolve the job's rhythm; below 0.5 health and exposed are absent."),
)
# field, metric, help; for the verdict window only.
_VERDICTS = (
    ("exposed_low", "overlap_exposed_low_ratio", "Lower bound of the exposed share."),
    ("exposed_high", "overlap_exposed_high_ratio", "Upper bound of the exposed share."),
    ("step_period_s", "overlap_step_period_seconds", "Period of the job's rhythm; absent when there is none."),
    ("power_low_watts", "overlap_gpu_power_low_watts", "5th percentile of power within the window."),
    ("power_median_watts", "overlap_gpu_power_median_watts", "Median power within the window."),
    ("power_high_watts", "overlap_gpu_power_high_watts", "95th percentile of power within the window."),
    ("traffic_low_bytes_per_s", "overlap_traffic_low_bytes_per_second", "5th percentile of traffic within the window."),
    ("traffic_median_bytes_per_s", "overlap_traffic_median_bytes_per_second", "Median traffic within the window."),
    ("traffic_high_bytes_per_s", "overlap_traffic_high_bytes_per_second", "95th percentile of traffic within the window."),
)

Analyses = Callable[[Labelled], Iterable[tuple[Labels, OverlapAnalysis]]]


def _field(name: str, analyses: Analyses, labels: slice = slice(None)) -> Callable[[Labelled], Iterable[Row]]:
    value_of = attrgetter(name)

    def samples(x: Labelled) -> Iterator[Row]:
        for given, analysis in analyses(x):
            if (value := value_of(analysis)) is not None:
                yield given[labels], value

    return samples


def _derived_families() -> Iterator[Family]:
    every, verdict = attrgetter("analyses"), attrgetter("verdicts")
    for field, name, text in _RATIOS:
        yield _family(name, "gauge", "gpu uuid window", _field(field, every), text, origin="analysis")
    for field, name, text in _VERDICTS:
        yield _family(name, "gauge", "gpu uuid window", _field(field, verdict), text, origin="analysis")
    yield _family("overlap_state", "gauge", "gpu uuid window state", _states,
                  "Verdict on the GPU: exactly one state is 1.", origin="analysis")
    yield _family("overlap_resolution_seconds", "gauge", "gpu uuid", _field("resolution_s", verdict, slice(2)),
                  "Shortest rhythm that the sensors of this GPU and its ports can resolve.", origin="analysis")
    yield _family("overlap_phase_seconds_total", "counter", "gpu uuid phase", _phases,
                  "Time by phase, booked 16 s late; all phases together grow by one second per second.", origin="analysis")


def _one_of(labels: Labels, choices: Labels, chosen: str) -> Iterator[Row]:
    for choice in choices:
        yield (*labels, choice), float(choice == chosen)


def _states(x: Labelled) -> Iterator[Row]:
    for labels, analysis in x.verdicts:
        yield from _one_of(labels, STATES, analysis.state)


def _phases(x: Labelled) -> Iterator[Row]:
    for gpu, seconds in x.snapshot.phases.items():
        if gpu in x.gpus:
            for phase in PHASES:
                yield (*x.gpus[gpu], phase), seconds.get(phase, 0.0)


# --- devices and findings -------------------------------------------------------------------------------------------

def _gpus_up(x: Labelled) -> Iterator[Row]:
    for gpu, labels in x.gpus.items():
        yield labels, float(x.gpus_up[gpu])
    for device in x.gone:
        yield device_labels(device), 0.0


def _info(kind: str, *values: Callable[[Device], str | None]) -> Callable[[Labelled], Iterable[Row]]:
    def samples(x: Labelled) -> Iterator[Row]:
        gone = x.gone if kind == "gpu" else ()
        for device in (*x.snapshot.inventory.of_kind(kind), *gone):
            yield (*device_labels(device), *(value(device) or "" for value in values)), 1.0

    return samples


def _told(key: str) -> Callable[[Device], str | None]:
    return lambda device: device.info.get(key)


def _links(x: Labelled) -> Iterator[Row]:
    ports = {d.id for d in x.snapshot.inventory.of_kind("rdma_port")}
    for link in x.snapshot.inventory.links:
        if link.gpu_id in x.gpus:
            # NVLink carries the GPU's traffic itself: no other device to name.
            own = link.device_id == link.gpu_id
            device, port = port_labels(link.device_id) if link.device_id in ports else ("" if own else link.device_id, "")
            yield (*x.gpus[link.gpu_id], device, port, link.path, link.reason), 1.0


def _gpu_counts(x: Labelled) -> Iterator[Row]:
    for origin, count in (("pci", x.snapshot.pci_gpus), ("nvml", x.snapshot.nvml_gpus)):
        if count is not None:
            yield (origin,), float(count)


def _findings(x: Labelled) -> Iterator[Row]:
    for finding in x.snapshot.findings:
        if finding.gpu_id is None or finding.gpu_id in x.gpus:
            yield (finding.finding, *(x.gpus[finding.gpu_id] if finding.gpu_id else ("", ""))), 1.0


def _refresh(x: Labelled) -> Iterator[Row]:
    for r in x.snapshot.refresh:
        yield (r.kind, x.public_id(r.kind, r.id), r.quantity), r.refresh_s


def _quarantined(x: Labelled) -> Iterator[Row]:
    for q in x.snapshot.quarantined:
        if q.reason is not None:
            yield (q.kind, x.public_id(q.kind, q.id), q.reason), 1.0


_DEVICES = (
    _family("overlap_gpu_up", "gauge", "gpu uuid", _gpus_up, "1 while the GPU answers; 0 for 24 h after it was lost."),
    _family("overlap_gpu_info", "gauge", "gpu uuid name architecture driver_version power_source pci_bus_id mig",
            _info("gpu", attrgetter("name"), _told("architecture"), _told("driver_version"), attrgetter("power_source"),
                  _told("pci_bus_id"), _told("mig")),
            "What is known of the GPU; power_source is the reading that answers for power."),
    _family("overlap_rdma_port_info", "gauge", "device port driver link_layer firmware netdev byte_source",
            _info("rdma_port", attrgetter("driver"), _told("link_layer"), _told("firmware"), _told("netdev"),
                  _told("byte_source")),
            "What is known of the RDMA port; byte_source is where its bytes are read."),
    _family("overlap_nic_info", "gauge", "device driver kind", _info("nic", attrgetter("driver"), _told("kind")),
            "What is known of the network interface."),
    _family("overlap_gpu_link_info", "gauge", "gpu uuid device port path reason", _links,
            "Which device carries the traffic of which GPU, and why they were paired."),
    _family("overlap_gpus", "gauge", "origin", _gpu_counts,
            "GPUs as counted on the PCI bus (display and 3D functions) and by NVML."),
    _family("overlap_transport_state", "gauge", "transport",
            lambda x: _one_of((), TRANSPORTS, x.snapshot.transport), "What carries the job's traffic: exactly one is 1."),
    _family("overlap_finding", "gauge", "finding gpu uuid", _findings,
            "1 while a cause is active, absent otherwise; findings on the node have no gpu and uuid."),
    _family("overlap_sensor_refresh_seconds", "gauge", "kind id quantity", _refresh,
            "How often a sensor really takes a new value, as seen in its readings."),
    _family("overlap_device_quarantined", "gauge", "kind id reason", _quarantined,
            "1 while a device is left alone after a hang or crash."),
)


# --- self: the exporter about its own sources and processes ---------------------------------------------------------

def _per_source(value: Callable[[tuple[SourceHealth, ...]], float | Buckets]) -> Callable[[Labelled], Iterable[Row]]:
    return lambda x: (((kind,), value(sources)) for kind, sources in x.sources.items())


def _errors(x: Labelled) -> Iterator[Row]:
    for kind, sources in x.sources.items():
        reasons = ERROR_REASONS.get(kind, ("other",))
        counts = dict.fromkeys(reasons, 0)
        for source in sources:
            for reason, count in source.errors.items():
                counts[reason if reason in counts else "other"] += count
        for reason, count in counts.items():
            yield (kind, reason), float(count)


def _read_durations(sources: tuple[SourceHealth, ...]) -> Buckets:
    counts = tuple(sum(column) for column in zip(*(s.read_duration_buckets for s in sources), strict=True))
    return Buckets(READ_DURATION_BOUNDS_S, counts, sum(s.read_duration_sum_s for s in sources))


def _last_success(x: Labelled) -> Iterator[Row]:
    for kind in x.sources:
        times_s = [s.last_success_s for s in x.answering(kind) if s.last_success_s is not None]
        if times_s:
            yield (kind,), x.snapshot.wall_s - (x.snapshot.t_s - min(times_s))


def _intervals(x: Labelled) -> Iterator[Row]:
    for kind, sources in x.sources.items():
        intervals_s = [s.interval_s for s in sources if s.interval_s is not None]
        if intervals_s:
            yield (kind,), max(intervals_s)


def _analysis_durations(x: Labelled) -> Iterator[Row]:
    if counts := x.snapshot.analysis_duration_buckets:
        yield (), Buckets(ANALYSIS_DURATION_BOUNDS_S, counts, x.snapshot.analysis_duration_sum_s)


_SELF = (
    _family("overlap_source_up", "gauge", "source", _per_source(lambda s: float(all(x.up for x in s))),
            "1 while every source of this kind of reading answers."),
    _family("overlap_source_reads_total", "counter", "source", _per_source(lambda s: float(sum(x.reads for x in s))),
            "Reads of all sources of this kind."),
    _family("overlap_source_errors_total", "counter", "source reason", _errors, "Reads that failed, by reason."),
    _family("overlap_source_read_duration_seconds", "histogram", "source", _per_source(_read_durations),
            "How long a read of one device took."),
    _family("overlap_source_last_success_timestamp_seconds", "gauge", "source", _last_success,
            "Last good read of the device that has been silent longest, quarantined devices left out."),
    _family("overlap_source_missed_ticks_total", "counter", "source",
            _per_source(lambda s: float(sum(x.missed_ticks for x in s))), "Reads that were due and left out."),
    # One restart of a reader counts in each of its sources: the largest is how often it happened, a sum would not be.
    _family("overlap_source_restarts_total", "counter", "source",
            _per_source(lambda s: float(max(x.restarts for x in s))), "How often the reader of this kind was replaced."),
    _family("overlap_source_interval_seconds", "gauge", "source", _intervals,
            "Time between reads in force, after back-off: of the slowest source."),
    _family("overlap_analysis_duration_seconds", "histogram", "", _analysis_durations,
            "How long one analysis of all GPUs took."),
    _family("overlap_config_last_reload_successful", "gauge", "", lambda x: [((), float(x.snapshot.config_reload_ok))],
            "1 if the configuration file was taken at its last reading."),
    _family("overlap_build_info", "gauge", "version mode", lambda x: [((__version__, x.snapshot.mode), 1.0)],
            "Version of the exporter, and whether it serves this node (serve), a simulation (demo) or a trace (replay)."),
    _family("overlap_process_cpu_seconds_total", "counter", "process",
            lambda x: (((p.process,), p.cpu_s) for p in x.snapshot.processes),
            "CPU time of the exporter's processes, that of ended readers included."),
    _family("overlap_process_memory_bytes", "gauge", "process",
            lambda x: (((p.process,), p.memory_bytes) for p in x.snapshot.processes if p.memory_bytes is not None),
            "Memory of the exporter's processes (proportional set size)."),
)

FAMILIES: tuple[Family, ...] = (*_derived_families(), *_raw_families(), *_DEVICES, *_SELF)
