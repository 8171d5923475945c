"""What a metric family is: a name, its labels, and how its samples come out of a Snapshot.

`metrics.py` and `self_metrics.py` fill the catalogue with these, `collector.py` renders them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from exporter.labels import Labelled, Labels


class Buckets(NamedTuple):
    """A histogram as counted: counts [len(bounds) + 1] per bucket, not cumulative, and the sum of what was observed."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


Row = tuple[Labels, "float | Buckets"]


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


def unit_of(name: str) -> str:
    """The base unit that ends a name, or nothing.

    >>> unit_of("overlap_gpu_energy_joules_total"), unit_of("overlap_gpu_up")
    ('joules', '')
    """
    bare = name.removesuffix("_total")
    return next((u for u in _UNITS if bare.endswith("_" + u)), "")


def family(
    name: str, kind: str, labels: str, samples: Callable[[Labelled], Iterable[Row]], text: str, *, origin: str = ""
) -> Family:
    """A row of the catalogue; `labels` are written in one text, and the unit follows from the name."""
    return Family(name, kind, text, tuple(labels.split()), unit_of(name), samples, origin)
