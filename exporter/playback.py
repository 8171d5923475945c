"""A feed of events that were made before: a trace or a simulation, played on a clock that may run faster than life.

`app` polls it exactly as it polls the readers of a live node. Never touches a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from exporter.clock import Clock
from exporter.model import Event, GpuJob, GpuPod, Inventory, Record
from exporter.quantities import quantity_of, split_channel

_SLICE_S = 0.05  # events are handed on in slices of this much real time


class Playback:
    """Events of `source()` at `speed`; with `loop` the source is asked again at its end: time goes on, and so do counters."""

    def __init__(self, source: Callable[[], Iterator[Event]], clock: Clock, speed: float = 1.0, loop: bool = False) -> None:
        self._source = source
        self._clock = clock
        self._speed = speed
        self._loop = loop
        self._events = source()
        self._pending = next(self._events, None)
        self._offset_s = 0.0  # of the present round
        self._counters = _Counters()
        self._last_s = 0.0
        self._started_mono_s = clock.mono_s()
        self.started_unix_s = clock.wall_s()

    @property
    def done(self) -> bool:
        """Whether there is nothing left to play."""
        return self._pending is None

    def now_s(self) -> float:
        """Session time: seconds of the trace, from all rounds together."""
        return (self._clock.mono_s() - self._started_mono_s) * self._speed

    def poll(self, until_s: float, closely: bool = False) -> list[Event]:
        """Wait a little, at most until session time `until_s`, and return the events that have become due."""
        target_s = min(until_s, self.now_s() + _SLICE_S * self._speed)
        self._clock.sleep_until(self._started_mono_s + target_s / self._speed)
        now_s = self.now_s()
        due: list[Event] = []
        while self._pending is not None and _time_s(self._pending, self._last_s) + self._offset_s <= now_s:
            due.append(self._shifted(self._pending))
            self._last_s = _time_s(self._pending, self._last_s)
            self._pending = next(self._events, None)
            if self._pending is None and self._loop and self._last_s > 0:
                self._offset_s += self._last_s + 0.1
                self._last_s = 0.0
                self._counters.begin_round()
                self._events = self._source()
                self._pending = next(self._events, None)
        return due

    def pids(self) -> Mapping[str, tuple[int, ...]]:
        """No processes besides the exporter's own."""
        return {}

    def ended_cpu_s(self) -> Mapping[str, float]:
        """No processes, so none that ended."""
        return {}

    def counted_gpus(self) -> tuple[int | None, int | None]:
        """Nobody counts devices here."""
        return None, None

    def starting(self) -> str | None:
        """A trace says at once what there is."""
        return None

    def owners(self) -> tuple[tuple[GpuPod, ...], tuple[GpuJob, ...]]:
        """Neither pods nor batch jobs."""
        return (), ()

    def stop(self) -> None:
        """Nothing to end."""

    def _shifted(self, event: Event) -> Event:
        if isinstance(event, Inventory):
            self._counters.learn(event)
            return replace(event, started_unix_s=self.started_unix_s)
        if self._loop and isinstance(event, Record):
            event = self._counters.carried_on(event)
        return replace(event, t_s=event.t_s + self._offset_s) if self._offset_s else event


class _Counters:
    """Counters over all rounds: each round begins at what was shown last, as on a node that keeps running.

    Only the seam between two rounds is closed. A counter that falls within the trace was reset there, and is shown so.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[tuple[int, str], ...]] = {}  # source -> its counters: row and channel
        self._shown: dict[str, float] = {}  # channel -> what was shown last
        self._added: dict[str, float] = {}  # channel -> what this round has more than the trace
        self._begun: set[str] = set()  # channels that were read in this round

    def learn(self, inventory: Inventory) -> None:
        """Take note of which channels are counters."""
        kinds = {device.id: device.kind for device in inventory.devices}
        ids = set(kinds)

        def counts(channel: str) -> bool:
            parts = split_channel(channel, ids)
            known = quantity_of(kinds[parts[0]], parts[1]) if parts else None
            return known is not None and known[0].kind == "counter"

        self._rows = {
            source.name: tuple((row, channel) for row, channel in enumerate(source.channels) if counts(channel))
            for source in inventory.sources
        }

    def begin_round(self) -> None:
        """The trace is played from its start again."""
        self._begun.clear()

    def carried_on(self, record: Record) -> Record:
        """The record with its counters as they stand over all rounds."""
        values = list(record.values)
        for row, channel in self._rows.get(record.source, ()):
            value = values[row]
            if value != value:
                continue
            if channel not in self._begun:
                self._begun.add(channel)
                self._added[channel] = self._shown.get(channel, value) - value
            elif value + self._added[channel] < self._shown[channel]:
                self._added[channel] = 0.0
            self._shown[channel] = values[row] = value + self._added[channel]
        return replace(record, values=values)


def _time_s(event: Event, before_s: float) -> float:
    return before_s if isinstance(event, Inventory) else event.t_s
