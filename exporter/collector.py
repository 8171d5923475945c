"""Renders one Snapshot as Prometheus text or OpenMetrics. `app` makes one Exposition per snapshot, the server sends it.

A format is rendered when it is first asked for and kept for the life of the snapshot: a second scrape copies memory,
and a daemon that is scraped each 15 s does not render each second. Reads nothing but the snapshot and, for the
process_* family of the main process, /proc/self.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from math import inf

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from exporter.metrics import FAMILIES, Buckets, Family, Labelled
from exporter.model import Snapshot

# The lightest gzip level: a tenth of the size already, at a third of the time of the default.
_GZIP_LEVEL = 1

OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class SnapshotCollector(Collector):
    """A prometheus_client collector over one snapshot and the main process. Families without samples are left out."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._labelled = Labelled(snapshot)

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            metric = _metric(family, self._labelled)
            if metric.samples:
                yield metric
        yield from _PROCESS.collect()


# Reads /proc/self when asked; a registry of its own keeps it out of the global one.
_PROCESS = ProcessCollector(registry=CollectorRegistry())


def _metric(family: Family, labelled: Labelled) -> Metric:
    metric = Metric(family.name.removesuffix("_total") if family.kind == "counter" else family.name, family.help,
                    family.kind, family.unit)
    for labels, value in family.rows(labelled):
        named = dict(zip(family.labels, labels, strict=True))
        if isinstance(value, Buckets):
            metric.samples.extend(_bucket_samples(family.name, named, value))
        else:
            metric.samples.append(Sample(family.name, named, value))
    return metric


def _bucket_samples(name: str, labels: dict[str, str], value: Buckets) -> Iterator[Sample]:
    """Cumulative buckets up to +Inf, then count and sum."""
    seen = 0
    for bound, count in zip((*value.bounds, inf), value.counts, strict=True):
        seen += count
        yield Sample(f"{name}_bucket", {**labels, "le": "+Inf" if bound == inf else str(bound)}, float(seen))
    yield Sample(f"{name}_count", labels, float(seen))
    yield Sample(f"{name}_sum", labels, value.total)


class Exposition:
    """What a scrape of one snapshot gets. Safe to ask from any thread; two that ask at once render once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._lock = threading.Lock()
        self._bodies: dict[tuple[str, bool], bytes] = {}

    @classmethod
    def render(cls, snapshot: Snapshot) -> Exposition:
        """The exposition of a snapshot; bytes come into being when a format is first asked for."""
        return cls(snapshot)

    @property
    def text(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return self.body(TEXT_TYPE)

    @property
    def openmetrics(self) -> bytes:
        """OpenMetrics 1.0.0."""
        return self.body(OPENMETRICS_TYPE)

    def body(self, content_type: str, gzipped: bool = False) -> bytes:
        """The bytes of one of the two content types, gzipped or plain."""
        with self._lock:
            return self._body(content_type, gzipped)

    def _body(self, content_type: str, gzipped: bool) -> bytes:
        key = (content_type, gzipped)
        if key not in self._bodies:
            self._bodies[key] = (
                gzip.compress(self._body(content_type, gzipped=False), _GZIP_LEVEL, mtime=0)
                if gzipped
                else _GENERATE[content_type](SnapshotCollector(self.snapshot))
            )
        return self._bodies[key]


_GENERATE: dict[str, Callable[..., bytes]] = {TEXT_TYPE: generate_latest, OPENMETRICS_TYPE: generate_openmetrics}


def negotiate(accept: str) -> str:
    """The content type for an Accept header: OpenMetrics where it is asked for and not refused, else text.

    Prometheus names its formats in order of preference; q=0 refuses one (RFC 9110, 12.5.1).

    >>> negotiate("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2")
    'application/openmetrics-text; version=1.0.0; charset=utf-8'
    >>> negotiate("text/html,*/*;q=0.8")
    'text/plain; version=0.0.4; charset=utf-8'
    """
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        name, _, parameters = part.partition(";")
        quality = next((p.partition("=")[2] for p in parameters.replace(" ", "").split(";") if p.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            weight = 0.0
        if name.strip() in weights:
            weights[name.strip()] = max(weights[name.strip()], weight)
    openmetrics, text = weights.values()
    return OPENMETRICS_TYPE if openmetrics > 0 and openmetrics >= text else TEXT_TYPE
