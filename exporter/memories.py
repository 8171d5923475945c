"""Memories: what the analysis keeps of a GPU beyond the window: compute level, sensor, seconds per phase.

Owned by the Analyzer, one per GPU. They move on only with the analysis' whole seconds, so that a trace replayed gives
the same ones; nothing here knows a clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from exporter.model import PHASES, Device
from exporter.readings import Sensor
from exporter.signals import rates, sensor
from exporter.signals.correlation import variation

Array = NDArray[np.float64]

LEVEL_LIFE_S = 600.0  # a job may enter a phase that computes at lower power
SELF_TEST_S = 20.0
_TRANSITIONS = 15  # the latest ones vote
_PERIODS, _PERIOD_LIFE_S = 5, 30.0  # the latest ones vote
_PERIOD_AGREES, _CONFIRMS = 0.1, 0.05
_WHOLE = 0.1  # a multiple is as near to a whole number
_MISSED_S = 8.0  # since a rhythm was found for the last time, and not when it was looked for again: it has gone, or changes
_SETTLED, _SETTLED_WITHIN = 3, 0.01  # looks that found the same; steps that grow longer are looked at more often
_LIVELY = 0.005  # below this variation a reading that stands still says nothing about the sensor
_UNKNOWN_WINDOW_S, _UNKNOWN_REFRESH_S, _PROVEN_WINDOW_S = 1.0, 0.1, 0.1


def same_period(a_s: float, b_s: float, within: float = _PERIOD_AGREES) -> bool:
    """Whether two estimates speak of one rhythm; NaN is none.

    >>> same_period(0.95, 1.0), same_period(2.0, 1.0)
    (True, False)
    """
    return abs(a_s / b_s - 1.0) <= within


@dataclass(slots=True)
class Peak:
    """The highest of the values given within their life: a decreasing queue."""

    life_s: float
    _falling: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, t_s: float, value: float) -> None:
        """Take in a value; NaN is no value."""
        if math.isnan(value):
            return
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((t_s, value))
        while self._falling[0][0] < t_s - self.life_s:
            self._falling.popleft()

    def at(self, t_s: float) -> float:
        """The highest value that is still alive; NaN without one."""
        return next((value for since, value in self._falling if since >= t_s - self.life_s), math.nan)

    def clear(self) -> None:
        """Forget everything."""
        self._falling.clear()


@dataclass(slots=True)
class GpuMemory:
    """Of one board and power source; another board, or another source of its power, starts anew."""

    level: Peak = field(default_factory=lambda: Peak(LEVEL_LIFE_S))  # of the job
    board_watts: float = math.nan  # highest compute level ever seen on the board
    job: str | None = None
    job_since_s: float = -math.inf
    refresh_s: float = math.nan  # measured
    repeats: float = math.nan
    transitions: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_TRANSITIONS))
    periods: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_PERIODS))  # NaN: none was seen
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def meet_job(self, job: str | None, t_s: float) -> None:
        """Another job than before starts without the compute level of the one before."""
        if job != self.job:
            self.forget_job()
            self.periods.append((t_s, math.nan))  # the window still holds the steps of the job before
            self.job, self.job_since_s = job, t_s

    def forget_job(self) -> None:
        """What belongs to the job alone."""
        self.level.clear()
        self.periods.clear()

    def learn_level(self, t_s: float, window_s: float, watts: float) -> None:
        """The compute level of a window, if all of it belongs to the present job."""
        if t_s - self.job_since_s >= window_s:
            self.level.add(t_s, watts)
            self.board_watts = float(np.fmax(self.board_watts, watts))

    def looked(self, after_s: float, until_s: float) -> bool:
        """Whether a step period was looked for in between, found or not."""
        return any(after_s < since_s <= until_s for since_s, _ in self.periods)

    @property
    def settled(self) -> bool:
        """Whether the latest looks at the step period found the same, or nothing."""
        latest = [period for _, period in self.periods][-_SETTLED:]
        alike = all(math.isnan(p) for p in latest) or all(same_period(p, latest[-1], _SETTLED_WITHIN) for p in latest)
        return len(latest) == _SETTLED and alike

    def period(self, t_s: float) -> float | None:
        """The newest of the estimates where most of the latest ones agree on a step period, seconds; None without."""
        votes = [period for since_s, period in self.periods if since_s > t_s - _PERIOD_LIFE_S]
        newest_s = max((since_s for since_s, period in self.periods if not math.isnan(period)), default=-math.inf)
        if not votes or (math.isnan(votes[-1]) and t_s - newest_s >= _MISSED_S):
            return None
        seen = [period for period in votes if not math.isnan(period)]
        middle = median(seen) if seen else math.nan
        agreed = [period for period in seen if same_period(period, middle)]
        return agreed[-1] if 2 * len(agreed) > len(votes) else None

    def confirmed(self, found_s: float, of_late_s: Callable[[], float]) -> float:
        """An estimate of the step period, or NaN where it is new and may come from one rhythm following on another.

        A window that holds both repeats at a common multiple. So what is new must not be a multiple of what was there
        before, and has to hold in the later part of the window by itself: of_late_s. Nothing is asked of a first one.
        """
        before = [period for _, period in self.periods if not math.isnan(period)]
        if math.isnan(found_s) or (self.periods and same_period(found_s, self.periods[-1][1])):
            return found_s
        times = [found_s / period for period in before]
        if any(round(k) > 1 and abs(k - round(k)) <= _WHOLE for k in times):
            return math.nan
        late_s = of_late_s()
        return found_s if same_period(late_s, found_s, _CONFIRMS) or (math.isnan(late_s) and not before) else math.nan

    def learn_sensor(self, t: Array, power: Array, refresh_s: float | None) -> None:
        """Measure the refresh, and run the self-test on the latest readings of power."""
        if len(t) < 10:
            return
        if float(variation(power)) >= _LIVELY and not math.isnan(measured := sensor.measured_refresh(t, power)):
            self.refresh_s, self.repeats = measured, sensor.repeats(power)
        known = self.refresh_s if refresh_s is None else refresh_s
        step_s = max(rates.poll_interval(t), 0.0 if math.isnan(known) else known)
        when, floor_s = sensor.transition_floor(t, power, step_s)
        if not math.isnan(floor_s) and (not self.transitions or when > self.transitions[-1][0]):
            self.transitions.append((when, floor_s))

    def believed(self, device: Device) -> Sensor:
        """Averaging window and refresh: the table's, unless the readings show it to be wrong."""
        refresh_s, window_s = device.power_refresh_s, device.power_window_s
        seen_slow = seen_fast = False
        if self.transitions:
            seen_slow = median(f for _, f in self.transitions) > sensor.SLOW_FLOOR_S
            seen_fast = not seen_slow
        if window_s is None:
            window_s = _PROVEN_WINDOW_S if seen_fast and device.power_source != "average" else _UNKNOWN_WINDOW_S
        elif seen_slow:
            window_s = max(window_s, _UNKNOWN_WINDOW_S)
        if refresh_s is None:
            refresh_s = _UNKNOWN_REFRESH_S if math.isnan(self.refresh_s) else self.refresh_s
        elif self.repeats > 0.5 and self.refresh_s > 1.5 * refresh_s:
            # A sensor that refreshes more slowly than its table says is not the sensor of the table.
            refresh_s = self.refresh_s
            window_s = max(window_s, refresh_s)
        return Sensor(window_s, refresh_s)
