"""What was read: rings per source, the latest value per channel, the health of each source. Holds the only lock.

Events come in by `apply` in the order of each source's own time; analysis and the page take slices out, the flight
recorder all of them (`cut`). Data and health are apart: a source that fails loses its data and keeps its health; what a
device said before it went is kept for the flight recorder alone. Nothing here knows a clock: time is in the events.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from exporter.model import (
    READ_DURATION_BOUNDS_S,
    Device,
    Event,
    Inventory,
    Quarantine,
    ReaderRestarted,
    Record,
    Source,
    SourceHealth,
    SourceStatus,
)
from exporter.ring import Ring

Array = NDArray[np.float64]
_EMPTY: Array = np.empty(0)
_MOST_GONE = 64  # sources that are not there any more and still have a health of their own
_MOST_RETIRED_BYTES = 4_000_000  # of sources that are not there any more, for the flight recorder
_MOST_INVENTORIES = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """All that was read in (start_s, end_s], as views that never change.

    inventories: those that were in force, each with the time from which on, oldest first, the first of them at start_s.
    readings: source, times [n], values [channel, n], of sources that have gone as well.
    """

    start_s: float
    end_s: float
    inventories: tuple[tuple[float, Inventory], ...]
    readings: tuple[tuple[Source, Array, Array], ...]


@dataclass(slots=True)
class _Health:
    up: bool = True
    reason: str | None = None
    reads: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    errors_before: dict[str, int] = field(default_factory=dict)  # of earlier lives of the reader
    missed_ticks: int = 0
    missed_before: int = 0
    restarts: int = 0
    interval_s: float | None = None
    last_success_s: float | None = None
    buckets: list[int] = field(default_factory=lambda: [0] * (len(READ_DURATION_BOUNDS_S) + 1))
    duration_sum_s: float = 0.0

    def absorb(self, other: _Health) -> None:
        """Add what another source has counted: totals of a kind must not fall when a source is forgotten."""
        self.reads += other.reads
        self.missed_ticks += other.missed_ticks
        self.restarts = max(self.restarts, other.restarts)
        self.duration_sum_s += other.duration_sum_s
        self.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        for reason, count in other.errors.items():
            self.errors[reason] = self.errors.get(reason, 0) + count


def _reads_otherwise(before: Device, now: Device) -> bool:
    """Whether what an id gave and what it gives are no readings of one sensor: another board, or another way to read it."""
    pairs = (
        (before.uuid, now.uuid), (before.power_source, now.power_source),
        (before.info.get("byte_source"), now.info.get("byte_source")),
    )  # fmt: skip
    return any(a and b and a != b for a, b in pairs)


class History:
    """The memory of one session. Thread-safe: one writer, any number of readers."""

    def __init__(self, horizon_s: float = 602.0) -> None:
        self._horizon_s = horizon_s
        self._lock = threading.Lock()
        self._inventory = Inventory("", 0.0)
        self._inventories: deque[tuple[float, Inventory]] = deque(maxlen=_MOST_INVENTORIES)
        self._sources: dict[str, Source] = {}
        self._rings: dict[str, Ring] = {}
        self._retired: deque[tuple[Source, Ring]] = deque()
        self._rows: dict[str, list[tuple[Ring, int]]] = {}  # channel -> where it is kept
        self._latest: dict[str, tuple[float, float]] = {}
        self._health: dict[str, _Health] = {}
        self._quarantined: dict[tuple[str, str], Quarantine] = {}

    def apply(self, event: Event) -> None:
        """Take in one event."""
        with self._lock:
            if isinstance(event, Record):
                self._apply_record(event)
            elif isinstance(event, Inventory):
                self._apply_inventory(event)
            elif isinstance(event, SourceStatus):
                self._apply_status(event)
            elif isinstance(event, ReaderRestarted):
                self._apply_restart(event)
            elif event.reason is None:
                self._quarantined.pop((event.kind, event.id), None)
            else:
                self._quarantined[event.kind, event.id] = event

    def _apply_record(self, record: Record) -> None:
        source = self._sources.get(record.source)
        if source is None or len(record.values) != len(source.channels):
            return
        if not self._rings[record.source].append(record.t_s, record.values):
            return
        good = not source.channels  # a source of names, not of numbers (pods, jobs): that it answered is all
        for channel, value in zip(source.channels, record.values, strict=True):
            if not math.isnan(value):
                self._latest[channel] = (value, record.t_s)
                good = True
        health = self._health[record.source]
        health.reads += 1
        if good:
            health.last_success_s = record.t_s
        if record.duration_s > 0:
            health.buckets[bisect_left(READ_DURATION_BOUNDS_S, record.duration_s)] += 1
            health.duration_sum_s += record.duration_s

    def _apply_inventory(self, inventory: Inventory) -> None:
        """Rings of sources whose channels stay as they are, and of the same sensors, go on; the rest start anew."""
        before_of = {d.id: d for d in self._inventory.devices}
        others = tuple(f"{d.id}/" for d in inventory.devices if d.id in before_of and _reads_otherwise(before_of[d.id], d))
        rings: dict[str, Ring] = {}
        rows: dict[str, list[tuple[Ring, int]]] = {}
        for source in inventory.sources:
            before = self._sources.get(source.name)
            same = before is not None and before.channels == source.channels
            if same and others and any(c.startswith(others) for c in source.channels):
                same = False
            ring = self._rings[source.name] if same else Ring(len(source.channels), self._horizon_s)
            rings[source.name] = ring
            for row, channel in enumerate(source.channels):
                rows.setdefault(channel, []).append((ring, row))
            health = self._health.setdefault(source.name, _Health())
            health.interval_s = source.interval_s if health.interval_s is None else health.interval_s
        self._retire({name: ring for name, ring in self._rings.items() if rings.get(name) is not ring})
        since_s = max((ring.newest_s for ring in self._rings.values()), default=-math.inf)
        self._inventories.append((since_s, inventory))
        self._inventory = inventory
        self._sources = {s.name: s for s in inventory.sources}
        self._rings, self._rows = rings, rows
        self._latest = {c: v for c, v in self._latest.items() if c in rows and not c.startswith(others)}
        self._forget_health()

    def _retire(self, rings: Mapping[str, Ring]) -> None:
        """Keep what sources that go have said, for as long as the horizon reaches."""
        newest_s = max((ring.newest_s for ring in self._rings.values()), default=-math.inf)
        self._retired.extend((self._sources[name], ring) for name, ring in rings.items() if ring.newest_s > -math.inf)
        kept = [(s, ring) for s, ring in self._retired if newest_s - ring.newest_s <= self._horizon_s]
        self._retired = deque(kept)
        while sum(ring.nbytes for _, ring in self._retired) > _MOST_RETIRED_BYTES:
            self._retired.popleft()

    def cut(self, start_s: float, end_s: float) -> Cut:
        """All that was read in (start_s, end_s], for the flight recorder. Nothing is copied: it takes microseconds."""
        with self._lock:
            rings = [*self._retired, *((self._sources[name], ring) for name, ring in self._rings.items())]
            slices = [(source, *ring.cut(start_s, end_s)) for source, ring in rings]
            known = list(self._inventories) or [(-math.inf, self._inventory)]
        first = max((k for k, (since_s, _) in enumerate(known) if since_s <= start_s), default=0)
        inventories = [(max(since_s, start_s), inventory) for since_s, inventory in known[first:] if since_s <= end_s]
        return Cut(start_s, end_s, tuple(inventories), tuple(s for s in slices if len(s[1])))

    @property
    def nbytes(self) -> int:
        """Memory of all readings."""
        with self._lock:
            return sum(ring.nbytes for ring in (*self._rings.values(), *(ring for _, ring in self._retired)))

    def _forget_health(self) -> None:
        """Interfaces may come and go under ever new names: of those that went long ago only their sum is kept, by kind."""
        gone = [n for n in self._health if n not in self._sources and "/" in n and not n.endswith("/")]
        for name in gone[: max(0, len(gone) - _MOST_GONE)]:
            self._health.setdefault(name.split("/", 1)[0] + "/", _Health()).absorb(self._health.pop(name))

    def _is_missed(self, name: str) -> bool:
        """Whether a source counts as down where it said so: not one that is gone, unless its device is left alone."""
        if name in self._sources or "/" not in name:
            return True
        device = name.partition("/")[2] + "/"
        alone = (q.id + "/" for q in self._quarantined.values())
        return any(device.startswith(q) or q.startswith(device) for q in alone)

    def _apply_status(self, status: SourceStatus) -> None:
        health = self._health.setdefault(status.source, _Health())
        health.up, health.reason = status.up, status.reason
        if status.interval_s is not None:
            health.interval_s = status.interval_s
        if status.missed_ticks < health.missed_ticks - health.missed_before:
            health.missed_before = health.missed_ticks  # the reader began a new life
        health.missed_ticks = health.missed_before + status.missed_ticks
        for reason, count in status.errors.items():
            total, before = health.errors.get(reason, 0), health.errors_before.get(reason, 0)
            if count < total - before:
                health.errors_before[reason] = before = total
            health.errors[reason] = before + count

    def _apply_restart(self, restart: ReaderRestarted) -> None:
        for name in restart.sources:
            health = self._health.setdefault(name, _Health())
            health.restarts += 1
            health.errors_before = dict(health.errors)
            health.missed_before = health.missed_ticks

    @property
    def inventory(self) -> Inventory:
        """The inventory in force."""
        return self._inventory

    def series(self, channel: str, start_s: float, end_s: float) -> tuple[Array, Array]:
        """Times [n] and values [n] of a channel with start_s < t <= end_s; the views stay valid and unchanged.

        Where two sources carry the channel, the one with more readings in the interval answers.
        """
        with self._lock:
            slices = [ring.slice(row, start_s, end_s) for ring, row in self._rows.get(channel, ())]
        return slices[0] if len(slices) == 1 else max(slices, key=lambda s: len(s[0]), default=(_EMPTY, _EMPTY))

    def latest(self, now_s: float) -> Mapping[str, tuple[float, float]]:
        """Channel -> (value, t_s) of what is fresh at now_s and not quarantined.

        Fresh is at most 2.5 s old, or two and a half intervals of its source if that is longer.
        """
        with self._lock:
            limit_s: dict[str, float] = {}
            for source in self._sources.values():
                interval_s = self._health[source.name].interval_s or 0.0
                for channel in source.channels:
                    limit_s[channel] = max(limit_s.get(channel, 0.0), 2.5, 2.5 * interval_s)
            gone = tuple(q.id + "/" for q in self._quarantined.values())
            return {
                channel: (value, t_s)
                for channel, (value, t_s) in self._latest.items()
                if now_s - t_s <= limit_s.get(channel, math.inf) and not channel.startswith(gone)
            }

    def health(self) -> tuple[SourceHealth, ...]:
        """How every source does, in the order of the inventory, then those that only spoke of themselves."""
        with self._lock:
            names = [*self._sources, *(n for n in self._health if n not in self._sources)]
            missed = {n for n in names if not self._health[n].up and self._is_missed(n)}
            return tuple(
                SourceHealth(n, h.up or n not in missed, h.reason if h.up or n in missed else None, h.reads, dict(h.errors),
                             h.missed_ticks, h.restarts, h.interval_s, h.last_success_s, tuple(h.buckets), h.duration_sum_s)
                for n, h in ((n, self._health[n]) for n in names)
            )

    def quarantined(self) -> tuple[Quarantine, ...]:
        """The devices that are left alone now."""
        with self._lock:
            return tuple(self._quarantined.values())
