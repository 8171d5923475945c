"""The part of the catalogue in which the exporter speaks of itself: its sources, its analysis, its processes.

`metrics.py` takes it in. A source label names a kind of reading, never a device: what is shown is the worst of the
devices, and sums of counts. What one device does is seen on its own series, and on overlap_device_quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from exporter import __version__
from exporter.family import Buckets, Family, Row, family
from exporter.labels import Labelled
from exporter.model import ANALYSIS_DURATION_BOUNDS_S, READ_DURATION_BOUNDS_S, SourceHealth

# Why a read failed, per kind of reading: at most eight, and each is there from the start, at 0. What a reader counts under
# a name that is not here is shown as "other", where the list has one.
_FILE_REASONS = ("not_available", "io_error", "permission_denied", "missing", "not_a_number", "vanished", "counter_reset",
                 "saturated")
ERROR_REASONS: Mapping[str, tuple[str, ...]] = {
    "nvml": ("implausible_power", "implausible_utilization", "counter_reset", "unsupported", "no_permission",
             "transient", "gpu_lost", "library"),
    "gpm": ("too_close", "implausible", "unsupported", "no_permission", "transient", "gpu_lost", "library", "other"),
    "xid": ("transient", "other"),
    "rdma": _FILE_REASONS,
    "nic": _FILE_REASONS,
    "host": _FILE_REASONS,
    "pods": ("missing", "permission_denied", "timeout", "connection", "protocol", "other"),
    "jobs": ("missing", "permission_denied", "io_error", "not_understood", "other"),
}

def _per_source(value: Callable[[tuple[SourceHealth, ...]], float | Buckets]) -> Callable[[Labelled], Iterable[Row]]:
    return lambda x: (((kind,), value(sources)) for kind, sources in x.sources.items())


def _errors(x: Labelled) -> Iterator[Row]:
    for kind, sources in x.sources.items():
        reasons = ERROR_REASONS.get(kind, ("other",))
        counts = dict.fromkeys(reasons, 0)
        for source in sources:
            for reason, count in source.errors.items():
                if (shown := reason if reason in counts else "other") in counts:
                    counts[shown] += count
        for reason, count in counts.items():
            yield (kind, reason), float(count)


def _read_durations(sources: tuple[SourceHealth, ...]) -> Buckets:
    counts = tuple(sum(column) for column in zip(*(s.read_duration_buckets for s in sources), strict=True))
    return Buckets(READ_DURATION_BOUNDS_S, counts, sum(s.read_duration_sum_s for s in sources))


def _last_success(x: Labelled) -> Iterator[Row]:
    for kind in x.sources:
        newest_s: dict[str, float] = {}
        for source in x.answering(kind):
            if source.last_success_s is not None:
                device = _device(source)
                newest_s[device] = max(newest_s.get(device, source.last_success_s), source.last_success_s)
        if newest_s:
            yield (kind,), x.snapshot.wall_s - (x.snapshot.t_s - min(newest_s.values()))


def _intervals(x: Labelled) -> Iterator[Row]:
    for kind, sources in x.sources.items():
        fastest_s: dict[str, float] = {}  # a device has slower lanes beside the one that counts
        for source in sources:
            if source.interval_s is not None:
                fastest_s[_device(source)] = min(fastest_s.get(_device(source), source.interval_s), source.interval_s)
        if fastest_s:
            yield (kind,), max(fastest_s.values())


def _device(source: SourceHealth) -> str:
    """What a source reads: "mlx5_0" of "rdma/mlx5_0/events"."""
    return source.source.partition("/")[2].partition("/")[0]


def _analysis_durations(x: Labelled) -> Iterator[Row]:
    if counts := x.snapshot.analysis_duration_buckets:
        yield (), Buckets(ANALYSIS_DURATION_BOUNDS_S, counts, x.snapshot.analysis_duration_sum_s)


SELF_FAMILIES: tuple[Family, ...] = (
    family("overlap_source_up", "gauge", "source", _per_source(lambda s: float(all(x.up for x in s))),
           "1 while every source of this kind of reading answers."),
    family("overlap_source_reads_total", "counter", "source", _per_source(lambda s: float(sum(x.reads for x in s))),
           "Reads of all sources of this kind."),
    family("overlap_source_errors_total", "counter", "source reason", _errors, "Reads that failed, by reason."),
    family("overlap_source_read_duration_seconds", "histogram", "source", _per_source(_read_durations),
           "How long a read of one device took."),
    family("overlap_source_last_success_timestamp_seconds", "gauge", "source", _last_success,
           "Last good read of the device that has been silent longest, quarantined devices left out."),
    family("overlap_source_missed_ticks_total", "counter", "source",
           _per_source(lambda s: float(sum(x.missed_ticks for x in s))), "Reads that were due and left out."),
    # One restart of a reader counts in each of its sources: the largest is how often it happened, a sum would not be.
    family("overlap_source_restarts_total", "counter", "source",
           _per_source(lambda s: float(max(x.restarts for x in s))), "How often the reader of this kind was replaced."),
    family("overlap_source_interval_seconds", "gauge", "source", _intervals,
           "Time between reads in force, after back-off: the fast reads of the slowest device."),
    family("overlap_analysis_duration_seconds", "histogram", "", _analysis_durations,
           "How long one analysis of all GPUs took."),
    family("overlap_config_last_reload_successful", "gauge", "", lambda x: [((), float(x.snapshot.config_reload_ok))],
           "1 if the configuration file was taken at its last reading."),
    family("overlap_build_info", "gauge", "version mode", lambda x: [((__version__, x.snapshot.mode), 1.0)],
           "Version of the exporter, and whether it serves this node (serve), a simulation (demo) or a trace (replay)."),
    family("overlap_process_cpu_seconds_total", "counter", "process",
           lambda x: (((p.process,), p.cpu_s) for p in x.snapshot.processes),
           "CPU time of the exporter's processes, that of ended readers included."),
    family("overlap_process_memory_bytes", "gauge", "process",
           lambda x: (((p.process,), p.memory_bytes) for p in x.snapshot.processes if p.memory_bytes is not None),
           "Memory of the exporter's processes (proportional set size)."),
)
