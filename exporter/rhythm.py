"""Rhythm: the signals of a GPU in which the period of a step may show, from the readings of a window.

Called by the analysis when it looks for a step period. Traffic is what flows between its levels; power comes from the energy
counter where that is read as often as power, since it misses nothing between two readings, else from the readings themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exporter.memories import GpuMemory
from exporter.model import Series
from exporter.readings import Readings
from exporter.shares import Shares
from exporter.signals.opinions import Signal, step_period

Array = NDArray[np.float64]

_LOW, _HIGH = 0.05, 0.95  # quantiles of power that count as its levels
_LIVELY = 1.05  # times the low level: below, power stands still
_BESIDE_S = 1.0  # from a reading of the job's time: an idle stretch is not the job's
_AS_OFTEN = 0.5  # as many new values of energy as of power, at least


def period_of(series: Series, readings: Readings, shares: Shares, g: int, shared: bool, memory: GpuMemory) -> float:
    """The step period that GPU number g shows in a window, s; NaN without. shared: its traffic is that of several jobs."""
    traffic = None if shared else traffic_of(readings, shares, g)
    power = power_of(series, readings, shares, g)
    return memory.confirmed(
        step_period(traffic, power), lambda: step_period(traffic and traffic.later(), power and power.later())
    )


def traffic_of(readings: Readings, shares: Shares, g: int) -> Signal | None:
    """The traffic of GPU number g; None where it does not communicate."""
    if not shares.communicates[g]:
        return None
    flow = shares.flow[g]
    return Signal(readings.fine_t[g, readings.fine_t.shape[-1] - len(flow) :], flow)


def power_of(series: Series, readings: Readings, shares: Shares, g: int) -> Signal | None:
    """The power of GPU number g in the job's time, 0 to 1 between its levels; None where it stands still or is not read."""
    known = shares.run[g]
    t, watts = shares.t[g][known], shares.power[g][known]
    if len(t) < 2:
        return None
    when, mean = mean_watts(*series.series(f"{readings.gpus[g].id}/energy_joules_total", float(t[0]), float(t[-1])))
    gapless = len(mean) >= _AS_OFTEN * len(watts)
    if gapless:
        after = np.clip(np.searchsorted(t, when), 1, len(t) - 1)
        inside = np.minimum(np.abs(t[after] - when), np.abs(when - t[after - 1])) < _BESIDE_S
        t, watts = when[inside], mean[inside]
    scaled = between_levels(watts)
    return None if scaled is None else Signal(t, scaled, gapless)


def mean_watts(t: Array, joules: Array) -> tuple[Array, Array]:
    """Middle [k] s and mean power [k] W of the stretches from one new value of an energy counter to the next.

    t [n] s, joules [n], NaN where it was not read; a counter that begins anew gives nothing for that stretch.

    >>> when, watts = mean_watts(np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.array([5.0, 7.0, 7.0, 13.0, 1.0]))
    >>> when.tolist(), watts.tolist()
    ([0.5, 2.0], [2.0, 3.0])
    """
    known = ~np.isnan(joules)
    t, joules = t[known], joules[known]
    new = np.concatenate((np.ones(min(1, len(t)), dtype=bool), np.diff(joules) != 0))
    t, joules = t[new], joules[new]
    gained = np.diff(joules)
    up = gained > 0
    return ((t[1:] + t[:-1]) / 2)[up], gained[up] / np.diff(t)[up]


def between_levels(x: Array) -> Array | None:
    """Values as shares of the way from their low to their high level, 0 to 1; None where they stand still.

    >>> between_levels(np.array([100.0] * 10 + [300.0] * 10 + [200.0])).tolist()[-2:]
    [1.0, 0.5]
    """
    if len(x) == 0:
        return None
    places = [int(share * (len(x) - 1)) for share in (_LOW, _HIGH)]
    low, high = np.partition(x, places)[places]
    return np.clip((x - low) / (high - low), 0.0, 1.0) if high > _LIVELY * max(low, 0.0) else None
