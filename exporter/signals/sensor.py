"""Sensor: what the readings tell of the sensor itself: how often it really refreshes, and whether it averages over 1 s.

Called by the analysis once a second. Never believes a table: boards, drivers and fields differ (Yang, Adamek, Armour,
Part-time Power Measurements, 2024).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MIN_CHANGES = 10
_TRANSITION = 0.3  # of the highest power: smaller steps prove nothing
_REACH_S = 1.5  # a mean over one second needs this much to show the whole of a step
SLOW_FLOOR_S = 0.3  # a transition that takes longer than this comes from a sensor that averages over 1 s
_SLOWEST_POLL_S = 0.15  # slower polls cannot tell


def measured_refresh(t: Array, value: Array) -> float:
    """How often a value really changes, seconds: mean gap between changes, pauses left out. NaN where too few changes.

    Polls that are slower than the sensor give the poll interval: it is what these readings can show. t, value [n].
    O(n log n).

    >>> round(measured_refresh(np.arange(200) * 0.02, np.repeat(np.arange(40.0), 5)), 3)
    0.1
    """
    known = ~np.isnan(value)
    t, value = t[known], value[known]
    gaps = np.diff(t[1:][value[1:] != value[:-1]])
    if len(gaps) < _MIN_CHANGES:
        return float("nan")
    return float(gaps[gaps <= 2.5 * np.median(gaps)].mean())


def repeats(value: Array) -> float:
    """Share of readings that equal the one before, 0 to 1; NaN with fewer than two. value [n].

    >>> repeats(np.array([1.0, 1.0, 2.0, 2.0, 3.0]))
    0.5
    """
    value = value[~np.isnan(value)]
    return float(np.mean(value[1:] == value[:-1])) if len(value) > 1 else float("nan")


def transition_floor(t: Array, power: Array, step_s: float) -> tuple[float, float]:
    """The steepest large step of power: its time, and the shortest averaging window that it leaves possible, seconds.

    A mean over W spreads a step over W: swing times the time between readings over the largest single change. Readings
    of 10 Hz from sensors of 20 to 100 ms give at most 0.28 s, from 1 s means at least 0.41 s. NaN without a swing of
    30 % of the highest power within 1.5 s, or with steps slower than 0.15 s. t [n] s, power [n] W; step_s the poll
    interval, or the refresh of the sensor if that is longer (repeats do not disturb: only the largest change counts). O(n).

    >>> t = np.arange(100) * 0.1
    >>> transition_floor(t, np.where(t < 5, 100.0, 500.0), 0.1)
    (5.0, 0.1)
    >>> round(transition_floor(t, 100 + 400 * np.clip(t - 4.0, 0, 1), 0.1)[1], 2)
    1.0
    """
    nothing = (float("nan"), float("nan"))
    known = ~np.isnan(power)
    t, power = t[known], power[known]
    if len(t) < _MIN_CHANGES or not step_s <= _SLOWEST_POLL_S:
        return nothing
    gaps = np.diff(t)
    change = np.abs(np.diff(power))
    inner = (gaps <= 1.6 * step_s) & (t[1:] <= t[-1] - _REACH_S) & (t[:-1] >= t[0] + _REACH_S)
    if not inner.any():
        return nothing
    k = int(np.argmax(np.where(inner, change, -1.0)))
    i, j = np.searchsorted(t, (t[k + 1] - _REACH_S, t[k + 1] + _REACH_S))
    swing = float(np.ptp(power[i:j]))
    if swing < _TRANSITION * float(power.max()) or change[k] <= 0:
        return nothing
    return round(float(t[k + 1]), 6), float(round(step_s * swing / change[k], 6))
