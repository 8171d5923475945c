"""A Snapshot as the catalogue needs it: every device with the labels of its series, every value under its metric.

`metrics.py` builds one `Labelled` per snapshot and takes its samples from it. Decides what a series is called, never
what it means; drops what has no device in the inventory, and never invents a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from exporter.model import SOURCE_KINDS, Device, OverlapAnalysis, Snapshot, SourceHealth
from exporter.quantities import quantity_of, split_channel

Labels = tuple[str, ...]

# What a labelled quantity may carry: a trace of another origin cannot multiply the series. XID codes are
# open: the source names the ones that start at 0, the rest appear with their first event.
LABEL_VALUES: Mapping[str, frozenset[str]] = {
    "overlap_gpu_throttled_seconds_total": frozenset(
        ("power_cap", "sw_thermal", "hw_thermal", "power_brake", "sync_boost")
    ),
    "overlap_rdma_events_total": frozenset(
        ("ecn_marked_rx", "cnp_tx", "cnp_rx", "out_of_order_rx", "seq_nak_rx", "ack_timeout", "retransmit", "rnr",
         "rate_limited", "peer_dead", "credit_stall", "drops", "link_error", "link_down", "pfc_pause")
    ),
}


def port_labels(port_id: str) -> Labels:
    """Device and port of "mlx5_0/1".

    >>> port_labels("mlx5_0/1")
    ('mlx5_0', '1')
    """
    device, _, port = port_id.rpartition("/")
    return (device, port) if device else (port_id, "")


_LABELS_OF_KIND: Mapping[str, Callable[[Device], Labels]] = {
    "gpu": lambda d: (d.id if d.index is None else str(d.index), d.uuid_or_id),
    "rdma_port": lambda d: port_labels(d.id),
    "nic": lambda d: (d.id,),
    "disk": lambda _: (),
}


def device_labels(device: Device) -> Labels:
    """The labels that name a device on its series: gpu and uuid, device and port, device; none for a node-wide witness."""
    return _LABELS_OF_KIND[device.kind](device)


class Labelled:
    """One snapshot, indexed once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.gpus: dict[str, Labels] = {d.id: device_labels(d) for d in snapshot.inventory.of_kind("gpu")}
        present = set(self.gpus.values())
        self.gone: tuple[Device, ...] = tuple(d for d in snapshot.gone if device_labels(d) not in present)

    def public_id(self, kind: str, device_id: str) -> str:
        """The label `id`: the UUID of a GPU, device/port of a port, the name of a NIC."""
        return self.gpus[device_id][1] if kind == "gpu" and device_id in self.gpus else device_id

    @cached_property
    def raw(self) -> Mapping[str, list[tuple[Labels, float]]]:
        """Metric -> samples, from the channels that are fresh."""
        devices = {d.id: (d.kind, device_labels(d)) for d in self.snapshot.inventory.devices}
        ids = frozenset(devices)
        found: dict[str, list[tuple[Labels, float]]] = {}
        for channel, (value, _) in self.snapshot.latest.items():
            if (split := split_channel(channel, ids)) is None:
                continue
            kind, labels = devices[split[0]]
            if (answer := quantity_of(kind, split[1])) is None:
                continue
            row, label_value = answer
            if label_value is not None:
                if label_value not in LABEL_VALUES.get(row.metric, (label_value,)):
                    continue
                labels = (*labels, label_value)
            found.setdefault(row.metric, []).append((labels, value))
        return found

    @cached_property
    def gpus_up(self) -> Mapping[str, bool]:
        """GPU id -> whether a sensor of it answers now. Counts of XID events are no sign of life."""
        answering = {c.split("/", 1)[0] for c in self.snapshot.latest if "/xid_errors_total" not in c}
        return {gpu: gpu in answering for gpu in self.gpus}

    @cached_property
    def analyses(self) -> tuple[tuple[Labels, OverlapAnalysis], ...]:
        """Every analysis of a GPU that is there, with gpu, uuid and window."""
        return tuple(
            ((*self.gpus[a.gpu_id], f"{a.window_s:g}s"), a) for a in self.snapshot.analyses if a.gpu_id in self.gpus
        )

    @cached_property
    def verdicts(self) -> tuple[tuple[Labels, OverlapAnalysis], ...]:
        """Those of the verdict window."""
        return tuple((labels, a) for labels, a in self.analyses if a.window_s == self.snapshot.verdict_window_s)

    @cached_property
    def sources(self) -> Mapping[str, tuple[SourceHealth, ...]]:
        """Kind of reading -> its sources; kinds in their usual order, whoever spoke first."""
        kinds: dict[str, list[SourceHealth]] = {kind: [] for kind in SOURCE_KINDS}
        for source in self.snapshot.sources:
            kinds.setdefault(source.source.split("/", 1)[0], []).append(source)
        return {kind: tuple(sources) for kind, sources in kinds.items() if sources}

    def answering(self, kind: str) -> Iterator[SourceHealth]:
        """The sources of a kind whose silence means something: those read at present (all, where the inventory has none of
        the kind, as of pods), whose device is not in quarantine."""
        planned = {s.name for s in self.snapshot.inventory.sources if s.kind == kind}
        for source in self.sources[kind]:
            device = source.source.partition("/")[2] + "/"
            left_alone = (q.id + "/" for q in self.snapshot.quarantined)
            if (not planned or source.source in planned) and not any(
                device.startswith(q) or q.startswith(device) for q in left_alone
            ):
                yield source
