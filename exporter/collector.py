"""Renders one Snapshot as Prometheus text or OpenMetrics. `app` makes one Exposition per snapshot, the server sends it.

A scrape copies memory: the forms that were asked for lately are rendered with the snapshot, in the daemon's loop; another
form is rendered when it is first asked for. Reads nothing but the snapshot and, for the process_* family of the main
process, /proc/self.

prometheus_client writes both forms. It looks at every letter of every name anew, which would be the dearest work of a second;
so what it wrote of a family is kept. Where samples stay as they are (most info series, states and error counters hardly ever
change) its bytes are used again, and where only values change its lines are, with other values behind them.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from exporter.family import Family, Row
from exporter.metrics import FAMILIES, Buckets, Labelled
from exporter.model import Snapshot

# The lightest gzip level: a tenth of the size already, at a third of the time of the default.
_GZIP_LEVEL = 1

OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Form = tuple[str, bool]  # content type, and whether gzipped


_GENERATE: dict[str, Callable[..., bytes]] = {TEXT_TYPE: generate_latest, OPENMETRICS_TYPE: generate_openmetrics}
_END = b"# EOF\n"
_go: Callable[[float], str] = floatToGoString


class SnapshotCollector(Collector):
    """A prometheus_client collector over one snapshot and the main process. Families without samples are left out."""

    def __init__(self, snapshot: Snapshot) -> None:
        labelled = Labelled(snapshot)
        self.families = [(family, rows) for family in FAMILIES if (rows := tuple(family.rows(labelled)))]

    def collect(self) -> Iterator[Metric]:
        for family, rows in self.families:
            yield _metric(family, rows)
        yield from _PROCESS.collect()


# Reads /proc/self when asked; a registry of its own keeps it out of the global one.
_PROCESS = ProcessCollector(registry=CollectorRegistry())


class _Some(Collector):
    """Metrics that were collected already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _metric(family: Family, rows: Iterable[Row]) -> Metric:
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    metric = Metric(name, family.help, family.kind, family.unit)
    for labels, value in rows:
        named = dict(zip(family.labels, labels, strict=True))
        if isinstance(value, Buckets):
            metric.samples.extend(_bucket_samples(family.name, named, value))
        else:
            metric.samples.append(Sample(family.name, named, value))
    return metric


def _bucket_samples(name: str, labels: dict[str, str], value: Buckets) -> Iterator[Sample]:
    """Cumulative buckets up to +Inf, then count and sum."""
    *buckets, count, total = _numbers(value)
    for bound, seen in zip((*value.bounds, inf), buckets, strict=True):
        yield Sample(f"{name}_bucket", {**labels, "le": "+Inf" if bound == inf else str(bound)}, seen)
    yield Sample(f"{name}_count", labels, count)
    yield Sample(f"{name}_sum", labels, total)


def _numbers(value: float | Buckets) -> list[float]:
    """The values of the samples of a row, in the order in which they are written."""
    if not isinstance(value, Buckets):
        return [value]
    buckets = [float(seen) for seen in accumulate(value.counts)]
    return [*buckets, buckets[-1], value.total]


@dataclass(slots=True)
class _Kept:
    """One family as it was written last, in one form."""

    rows: tuple[Row, ...]
    head: str  # its comments
    lines: list[str]  # of each sample, up to the value
    body: bytes


_kept: dict[tuple[str, str], _Kept] = {}  # by content type and family


def _family_bytes(content_type: str, family: Family, rows: tuple[Row, ...]) -> bytes:
    """A family in one form, by way of what was written last time."""
    key = (content_type, family.name)
    before = _kept.get(key)
    if before is not None and before.rows == rows:
        return before.body
    if before is None or [labels for labels, _ in before.rows] != [labels for labels, _ in rows]:
        before = _kept[key] = _written(content_type, family, rows)
    else:
        numbers = [number for _, value in rows for number in _numbers(value)]
        text = "".join([f"{line}{_go(number)}\n" for line, number in zip(before.lines, numbers, strict=True)])
        before.rows, before.body = rows, (before.head + text).encode()
    return before.body


def _written(content_type: str, family: Family, rows: tuple[Row, ...]) -> _Kept:
    """A family as prometheus_client writes it, and its lines without their values."""
    body = _generate(content_type, [_metric(family, rows)])
    lines = [f"{line}\n" for line in body.decode().split("\n")[:-1]]
    comments = len(lines) - sum(len(_numbers(value)) for _, value in rows)
    upto = [line[: line.rindex(" ") + 1] for line in lines[comments:]]
    return _Kept(rows, "".join(lines[:comments]), upto, body)


def _generate(content_type: str, metrics: Iterable[Metric]) -> bytes:
    return _GENERATE[content_type](_Some(metrics)).removesuffix(_END)


class Exposition:
    """What a scrape of one snapshot gets. Safe to ask from any thread; two that ask at once render once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._lock = threading.Lock()
        self._collector = SnapshotCollector(snapshot)
        self._bodies: dict[Form, bytes] = {}
        self._asked: set[Form] = set()

    @classmethod
    def render(cls, snapshot: Snapshot, forms: Iterable[Form] = ()) -> Exposition:
        """The exposition of a snapshot, with these forms ready; any other comes into being when it is asked for."""
        exposition = cls(snapshot)
        for form in forms:
            exposition._body(form)
        return exposition

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
            self._asked.add((content_type, gzipped))
            return self._body((content_type, gzipped))

    def asked(self) -> frozenset[Form]:
        """The forms that somebody has asked for."""
        with self._lock:
            return frozenset(self._asked)

    def _body(self, form: Form) -> bytes:
        content_type, gzipped = form
        if form not in self._bodies:
            if gzipped:
                body = gzip.compress(self._body((content_type, False)), _GZIP_LEVEL, mtime=0)
            else:
                parts = [_family_bytes(content_type, family, rows) for family, rows in self._collector.families]
                end = _END if content_type == OPENMETRICS_TYPE else b""
                body = b"".join([*parts, _generate(content_type, _PROCESS.collect()), end])
            self._bodies[form] = body
        return self._bodies[form]


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
