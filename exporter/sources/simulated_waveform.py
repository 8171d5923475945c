"""The ground truth of a simulated node: per GPU the integrals of power, bytes and shares, made while they are asked for.

Jobs come in as steps; sensors (`sensors.py`) and the truth of a trace read integrals at any time, so that a mean over a
window, a counter and a share of time are one subtraction. Only the last seconds are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from exporter.sources.job_levels import Array, Column, Step, levels_of

START_S = -3.0  # jobs begin before the trace, so that the first reading has a past
_KEEP_S = 6.0  # behind the present: longer than any averaging window


class Waveform:
    """One GPU: knots t_s [n] and the integral of every level up to each knot, totals [columns, n]."""

    def __init__(self) -> None:
        self._t_s: Array = np.array([START_S])
        self._totals: Array = np.zeros((len(Column), 1))
        self._edges: list[Array] = []
        self._levels: list[Array] = []

    def extend(self, edges_s: Array, levels: Array) -> None:
        """Levels [n, columns] between the edges [n+1], the first of which is where the waveform ends now."""
        self._edges.append(edges_s[1:])
        self._levels.append(levels)

    def settle(self, forget_before_s: float) -> None:
        """Take in what was extended, and forget what lies before a time."""
        if self._edges:
            edges, levels = np.concatenate(self._edges), np.concatenate(self._levels)
            steps = np.diff(edges, prepend=self._t_s[-1])
            totals = self._totals[:, -1:] + np.cumsum(levels.T * steps, axis=1)
            first = max(0, int(np.searchsorted(self._t_s, forget_before_s)) - 1)
            self._t_s = np.concatenate((self._t_s[first:], edges))
            self._totals = np.concatenate((self._totals[:, first:], totals), axis=1)
            self._edges, self._levels = [], []

    def total(self, column: Column, t_s: Array) -> Array:
        """The integral of a level since the start, at each time [n]."""
        values: Array = np.interp(t_s, self._t_s, self._totals[column])
        return values

    def totals(self, t_s: float) -> Array:
        """The integrals of all levels [columns] at one time."""
        at = np.array([t_s])
        return np.array([self.total(column, at)[0] for column in Column])


@dataclass(slots=True)
class Crew:
    """A job and the GPUs that it runs on. `until_s`: how far its steps reach."""

    name: str
    gpus: tuple[int, ...]
    steps: Iterator[Step]
    until_s: float = START_S
    durations_s: list[float] = field(default_factory=list)  # of the steps of the last advance


class Timeline:
    """All GPUs of a node. `advance` before asking the waveforms."""

    def __init__(self, crews: Sequence[Crew], gains: Sequence[float], skews_s: Sequence[float], limit_watts: float) -> None:
        """`gains`: power of each GPU against the others; `skews_s`: how late its steps are (0 to a few ms)."""
        self.crews = tuple(crews)
        self.waves = tuple(Waveform() for _ in gains)
        self._gains, self._skews_s, self._limit_watts = gains, skews_s, limit_watts
        self._late = [False] * len(gains)

    def advance(self, to_s: float) -> None:
        """Let every job run to at least `to_s`; what lies more than a few seconds behind is forgotten."""
        for crew in self.crews:
            crew.durations_s.clear()
            while crew.until_s < to_s:
                step = next(crew.steps)
                self._take(crew, step)
                crew.until_s += step.duration_s
                if step.rhythm:
                    crew.durations_s.append(step.duration_s)
        for wave in self.waves:
            wave.settle(to_s - _KEEP_S)

    def _take(self, crew: Crew, step: Step) -> None:
        tables: dict[int, tuple[Array, Array]] = {}  # ranks often share one object
        for gpu, rank in zip(crew.gpus, step.ranks, strict=True):
            if id(rank) not in tables:
                tables[id(rank)] = levels_of(step, rank)
            edges, levels = tables[id(rank)]
            levels = levels.copy()
            levels[:, Column.WATTS] = np.minimum(levels[:, Column.WATTS] * self._gains[gpu], self._limit_watts)
            start_s = crew.until_s + self._skews_s[gpu]
            if not self._late[gpu]:  # the skew of the first step is a wait of its own
                self._late[gpu] = True
                self.waves[gpu].extend(np.array([START_S, start_s]), levels[:1])
            self.waves[gpu].extend(edges + start_s, levels)
