"""Renders one Snapshot as Prometheus text or OpenMetrics. `app` makes one Exposition per snapshot, the server sends it.

A scrape copies memory: the forms that were asked for lately are rendered with the snapshot, in the daemon's loop; another
form is rendered when it is first asked for. Reads nothing but the snapshot and, for the process_* family of the main
process, /proc/self.

The lines are written here and not by prometheus_client's generators: these look at every letter of every name anew, which
costs five times as much each second. The tests hold both forms against its parsers.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from math import inf
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector

from exporter.metrics import FAMILIES, Buckets, Labelled
from exporter.model import Snapshot

# The lightest gzip level: a tenth of the size already, at a third of the time of the default.
_GZIP_LEVEL = 1

OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Form = tuple[str, bool]  # content type, and whether gzipped


class Block(NamedTuple):
    """A family as both forms have it: its head differs, its lines are the same."""

    name: str  # as in the text form: counters end in _total
    kind: str
    help: str
    unit: str
    lines: list[str]


def blocks(snapshot: Snapshot) -> Iterator[Block]:
    """Every family that has samples, then those of the main process."""
    labelled = Labelled(snapshot)
    for family in FAMILIES:
        lines: list[str] = []
        for labels, value in family.rows(labelled):
            named = _labels(family.labels, labels)
            if isinstance(value, Buckets):
                lines.extend(_bucket_lines(family.name, named, value))
            else:
                lines.append(f"{family.name}{{{named}}} {_number(value)}\n" if named else f"{family.name} {_number(value)}\n")
        if lines:
            yield Block(family.name, family.kind, family.help, family.unit, lines)
    yield from _process_blocks()


# Reads /proc/self when asked; a registry of its own keeps it out of the global one.
_PROCESS = ProcessCollector(registry=CollectorRegistry())


def _process_blocks() -> Iterator[Block]:
    for metric in _PROCESS.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines = [f"{sample.name} {_number(sample.value)}\n" for sample in metric.samples]
        yield Block(name, metric.type, metric.documentation, metric.unit, lines)


@lru_cache(maxsize=8192)  # several nodes' worth: labels hardly ever change
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """What stands between the braces.

    >>> _labels(("gpu", "name"), ("0", 'a "b"'))
    'gpu="0",name="a \\\\"b\\\\""'
    """
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_NOT_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}  # the bound of a last bucket, and maybe a limit in process_*


def _number(value: float) -> str:
    text = repr(float(value))
    return _NOT_FINITE.get(text, text)


def _bucket_lines(name: str, labels: str, value: Buckets) -> Iterator[str]:
    """Cumulative buckets up to +Inf, then count and sum."""
    before, braces = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
    seen = 0
    for bound, count in zip((*value.bounds, inf), value.counts, strict=True):
        seen += count
        yield f'{name}_bucket{{{before}le="{_number(bound)}"}} {float(seen)}\n'
    yield f"{name}_count{braces} {float(seen)}\n"
    yield f"{name}_sum{braces} {_number(value.total)}\n"


def _text(parts: Iterable[Block]) -> bytes:
    """Prometheus text format 0.0.4."""
    out: list[str] = []
    for block in parts:
        out.append(_head(block.name, block.kind, block.help, ""))
        out += block.lines
    return "".join(out).encode()


def _openmetrics(parts: Iterable[Block]) -> bytes:
    """OpenMetrics 1.0.0: a counter is named without _total in its head, units are told, and the end is marked."""
    out: list[str] = []
    for block in parts:
        name = block.name.removesuffix("_total") if block.kind == "counter" else block.name
        out.append(_head(name, block.kind, block.help, block.unit))
        out += block.lines
    return "".join([*out, "# EOF\n"]).encode()


@lru_cache(maxsize=1024)
def _head(name: str, kind: str, text: str, unit: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n" + (f"# UNIT {name} {unit}\n" if unit else "")


class Exposition:
    """What a scrape of one snapshot gets. Safe to ask from any thread; two that ask at once render once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._lock = threading.Lock()
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

    @cached_property
    def _blocks(self) -> list[Block]:
        return list(blocks(self.snapshot))

    def _body(self, form: Form) -> bytes:
        content_type, gzipped = form
        if form not in self._bodies:
            self._bodies[form] = (
                gzip.compress(self._body((content_type, False)), _GZIP_LEVEL, mtime=0)
                if gzipped
                else (_openmetrics if content_type == OPENMETRICS_TYPE else _text)(self._blocks)
            )
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
