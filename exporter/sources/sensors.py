"""Simulated sensors: what NVML, GPM and counter files would show of a waveform. Used by the simulated node alone.

A power sensor takes a mean over a window W every T seconds, on a grid that nobody can steer and that drifts against the
poller; between its refreshes every read gives the same value again. Polls come a little late, now and then a lot.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from exporter.sources.job_levels import Array, Column
from exporter.sources.simulated_waveform import START_S, Waveform

Integral = Callable[[Array], Array]
"""The integral of a level since the start, at times [n]."""

POWER_STEP_WATTS = .25  # of the converter
_LATENESS_S = 2e-4  # mean of a poll; one in a hundred is ten times later
_LATENESS_MAX_S = 8e-3


def boxcar(total: Integral, t_s: Array, window_s: float) -> Array:
    """Mean of a level over (t - window, t] at each time [n].

    >>> boxcar(lambda t: np.minimum(t, 1.0) * 500.0, np.array([0.5, 1.05]), 0.1).round(6).tolist()
    [500.0, 250.0]
    """
    return (total(t_s) - total(t_s - window_s)) / window_s


class PollTimes:
    """When a reader reads: a period from a random phase, with lateness. Times never go back and never pile up."""

    def __init__(self, period_s: float, rng: np.random.Generator) -> None:
        self._period_s, self._rng = period_s, rng
        self._phase_s = float(rng.uniform(.05, 1.0)) * period_s
        self._next = 0

    def due(self, end_s: float) -> Array:
        """The reads planned before `end_s` that were not given before; they may come some milliseconds after it."""
        last = int(np.ceil((end_s - self._phase_s) / self._period_s))
        k = np.arange(self._next, max(self._next, last))
        self._next = max(self._next, last)
        late_s = self._rng.exponential(_LATENESS_S, len(k)) * np.where(self._rng.random(len(k)) < .01, 10.0, 1.0)
        late_s = np.minimum(late_s, min(_LATENESS_MAX_S, .4 * self._period_s))
        return np.asarray(self._phase_s + k * self._period_s + late_s, np.float64)


class Refresh:
    """The grid on which a sensor takes new values: period with an error of its own, phase, slow drift, jitter."""

    def __init__(self, period_s: float, rng: np.random.Generator, error: float = .01) -> None:
        self._rng = rng
        self._period_s = period_s * (1.0 + error * float(rng.uniform(.2, 1.0)))
        self._jitter_s = 2e-3 * period_s
        self._at_s = START_S + 1.5 + float(rng.uniform(0.0, period_s))  # before the first poll, after a first window

    def until(self, end_s: float) -> Array:
        """The refreshes up to `end_s` that were not given before."""
        n = max(0, int((end_s - self._at_s) / self._period_s) + 1)
        nominal = np.asarray(self._at_s + self._period_s * np.arange(n), np.float64)
        self._at_s += self._period_s * n
        if n:  # a random walk: oscillators wander
            self._at_s += self._jitter_s * float(self._rng.standard_normal())
        return nominal


class Held:
    """A sensor whose values [channels] hold from one refresh to the next."""

    def __init__(self, refresh: Refresh, measure: Callable[[Array], Array], channels: int) -> None:
        """`measure`: refresh times [n] to values [channels, n]."""
        self._refresh, self._measure = refresh, measure
        self._t_s: Array = np.array([-np.inf])
        self._values: Array = np.full((channels, 1), np.nan)

    def read(self, t_s: Array) -> Array:
        """Values [channels, n] at times [n], which never go back from call to call."""
        if not len(t_s):
            return np.empty((len(self._values), 0))
        fresh = self._refresh.until(float(t_s[-1]))
        if len(fresh):
            self._t_s = np.concatenate((self._t_s, fresh))
            self._values = np.concatenate((self._values, self._measure(fresh)), axis=1)
        shown = self._values[:, np.maximum(0, np.searchsorted(self._t_s, t_s, side="right") - 1)]
        self._t_s, self._values = self._t_s[-2:], self._values[:, -2:]
        return shown


def power_and_energy(wave: Waveform, window_s: float, refresh_s: float, rng: np.random.Generator, noise: float = .003) -> Held:
    """Power (a mean over the window, with noise, in steps of the converter) and energy (exact, whole millijoules), both
    new at each refresh."""
    start_joules = float(rng.integers(10**8, 10**9))

    def measure(t_s: Array) -> Array:
        def total(t: Array) -> Array:
            return wave.total(Column.WATTS, t)

        watts = boxcar(total, t_s, window_s) * (1.0 + noise * rng.standard_normal(len(t_s)))
        return np.stack((np.round(watts / POWER_STEP_WATTS) * POWER_STEP_WATTS,
                         np.floor((start_joules + total(t_s)) * 1e3) / 1e3))

    return Held(Refresh(refresh_s, rng), measure, 2)


def utilization(wave: Waveform, rng: np.random.Generator, period_s: float = 1 / 6) -> Held:
    """Share of the driver's last sample period with a kernel resident, in whole per cent."""

    def measure(t_s: Array) -> Array:
        return np.round(boxcar(lambda t: wave.total(Column.KERNEL, t), t_s, period_s), 2)[np.newaxis]

    return Held(Refresh(period_s, rng), measure, 1)


class GpmMeans:
    """GPM: means of kernel, SM and tensor activity between one read and the next."""

    COLUMNS = (Column.KERNEL, Column.SM, Column.TENSOR)

    def __init__(self, wave: Waveform, rng: np.random.Generator) -> None:
        self._wave, self._rng = wave, rng
        self._last_s: float | None = None

    def read(self, t_s: Array) -> Array:
        """Means [3, n] since the read before each of the times [n]; the first read of all has none (NaN)."""
        if not len(t_s):
            return np.empty((3, 0))
        edges = np.concatenate(([np.nan if self._last_s is None else self._last_s], t_s))
        self._last_s = float(t_s[-1])
        means = np.stack([np.diff(self._wave.total(column, edges)) / np.diff(edges) for column in self.COLUMNS])
        noise = 2e-3 * self._rng.standard_normal(means.shape)
        return np.asarray(np.round(np.clip(means + np.where(means > 1e-3, noise, 0.0), 0.0, 1.0), 4), np.float64)
