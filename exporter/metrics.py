"""THE catalogue: every metric family that the exporter can show, and how its samples come out of a Snapshot.

`collector.py` renders it, the dashboards and METRICS.md are checked against it. Raw families follow from
`quantities.QUANTITIES`, derived ones from the fields of OverlapAnalysis; the rest is written out here. A family without
data yields nothing. A new metric is one row; nothing here computes a verdict, reads a clock or touches a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from exporter.family import Buckets, Family, Row, family
from exporter.labels import Labelled, Labels, device_labels, port_labels
from exporter.model import PHASES, STATES, TRANSPORTS, Device, OverlapAnalysis
from exporter.quantities import QUANTITIES
from exporter.self_metrics import ERROR_REASONS, SELF_FAMILIES

__all__ = ["ERROR_REASONS", "FAMILIES", "Buckets", "Family", "Labelled"]

# --- raw: one family per row of the table of quantities -------------------------------------------------------------

_DEVICE_LABELS = {"gpu": "gpu uuid", "rdma_port": "device port", "nic": "device", "disk": ""}


def _raw(metric: str) -> Callable[[Labelled], Iterable[Row]]:
    return lambda x: x.raw.get(metric, ())


def _raw_families() -> Iterator[Family]:
    for q in QUANTITIES:
        labels = f"{_DEVICE_LABELS[q.device_kind] if q.per_device else ''} {q.label or ''}"
        yield family(q.metric, q.kind, labels, _raw(q.metric), q.help, origin=q.origin)


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
        yield family(name, "gauge", "gpu uuid window", _field(field, every), text, origin="analysis")
    for field, name, text in _VERDICTS:
        yield family(name, "gauge", "gpu uuid window", _field(field, verdict), text, origin="analysis")
    yield family("overlap_state", "gauge", "gpu uuid window state", _states,
                 "Verdict on the GPU: exactly one state is 1.", origin="analysis")
    yield family("overlap_resolution_seconds", "gauge", "gpu uuid", _field("resolution_s", verdict, slice(2)),
                 "Shortest rhythm that the sensors of this GPU and its ports can resolve.", origin="analysis")
    yield family("overlap_phase_seconds_total", "counter", "gpu uuid phase", _phases,
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
            shared = " shared" if link.path == "rdma" and link.weight < 1.0 else ""  # an interface for TCP always is
            yield (*x.gpus[link.gpu_id], device, port, link.path, link.reason + shared), 1.0


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


def _averaging(x: Labelled) -> Iterator[Row]:
    for r in x.snapshot.refresh:
        if r.window_s is not None:
            yield (r.kind, x.public_id(r.kind, r.id), r.quantity), r.window_s


def _quarantined(x: Labelled) -> Iterator[Row]:
    for q in x.snapshot.quarantined:
        if q.reason is not None:
            yield (q.kind, x.public_id(q.kind, q.id), q.reason), 1.0


def _pods(x: Labelled) -> Iterator[Row]:
    for p in x.snapshot.pods:
        if p.gpu_id in x.gpus:
            yield (*x.gpus[p.gpu_id], p.mig_uuid, p.namespace, p.pod, p.container), 1.0


def _jobs(x: Labelled) -> Iterator[Row]:
    for j in x.snapshot.jobs:
        if j.gpu_id in x.gpus:
            yield (*x.gpus[j.gpu_id], j.scheduler, j.job_id), 1.0


_DEVICES = (
    family("overlap_gpu_up", "gauge", "gpu uuid", _gpus_up, "1 while the GPU answers; 0 for 24 h after it was lost."),
    family("overlap_gpu_info", "gauge", "gpu uuid name architecture driver_version power_source pci_bus_id mig",
           _info("gpu", attrgetter("name"), _told("architecture"), _told("driver_version"), attrgetter("power_source"),
                 _told("pci_bus_id"), _told("mig")),
           "What is known of the GPU; power_source is the reading that answers for power."),
    family("overlap_rdma_port_info", "gauge", "device port driver link_layer firmware netdev byte_source",
           _info("rdma_port", attrgetter("driver"), _told("link_layer"), _told("firmware"), _told("netdev"),
                 _told("byte_source")),
           "What is known of the RDMA port; byte_source is where its bytes are read."),
    family("overlap_nic_info", "gauge", "device driver kind", _info("nic", attrgetter("driver"), _told("kind")),
           "What is known of the network interface."),
    family("overlap_gpu_link_info", "gauge", "gpu uuid device port path reason", _links,
           "Which device carries the traffic of which GPU, and why they were paired; shared: with other GPUs."),
    family("overlap_gpu_pod_info", "gauge", "gpu uuid mig_uuid workload_namespace workload_pod workload_container", _pods,
           "Which container of Kubernetes holds the GPU: to be joined on instance and uuid.", origin="pods"),
    family("overlap_gpu_job_info", "gauge", "gpu uuid scheduler job_id", _jobs,
           "Which job of a batch scheduler runs on the GPU: to be joined on instance and uuid.", origin="jobs"),
    family("overlap_gpus", "gauge", "origin", _gpu_counts,
           "GPUs as counted on the PCI bus (display and 3D functions) and by NVML."),
    family("overlap_transport_state", "gauge", "transport",
           lambda x: _one_of((), TRANSPORTS, x.snapshot.transport), "What carries the job's traffic: exactly one is 1."),
    family("overlap_finding", "gauge", "finding gpu uuid", _findings,
           "1 while a cause is active, absent otherwise; findings on the node have no gpu and uuid."),
    family("overlap_sensor_refresh_seconds", "gauge", "kind id quantity", _refresh,
           "How often a sensor really takes a new value, as seen in its readings."),
    family("overlap_sensor_window_seconds", "gauge", "kind id quantity", _averaging,
           "Over how long a reading of power averages: as known of the sensor, unless its readings prove it wrong."),
    family("overlap_device_quarantined", "gauge", "kind id reason", _quarantined,
           "1 while a device is left alone after a hang or crash."),
)


FAMILIES: tuple[Family, ...] = (*_derived_families(), *_raw_families(), *_DEVICES, *SELF_FAMILIES)
