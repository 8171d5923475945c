"""Sensor: what the readings tell of the sensor itself: how often it really refreshes, and whether it averages over 1 s.

Called by the analysis once a second. Never believes a table: boards, drivers and fields differ (Yang, Adamek, Armour,
Part-time Power Measurements, 2024).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exporter.signals.levels import quantiles

Array = NDArray[np.float64]

_MIN_CHANGES = 10
_FAST_TRANSITION, _SLOW_TRANSITION = 0.3, 0.5  # of the highest power: a smaller swing proves nothing (ripple, noise)
_REACH_S = 1.5  # a mean over one second needs this much to show the whole of a step
SLOW_FLOOR_S = 0.3  # a transition that takes longer than this comes from a sensor that averages over 1 s
_STEADY = 2.6  # between the 10 and 90 % of keep-alive steps: one or two refreshes
SLOW_COUNTER = 1.35  # polls between two changes of a counter that is slower than the polls
_CLOSE, _MIN_IN_VOLLEYS = 0.5, 5  # of the distance of polls; changes that follow one of the same volley
_SLOWEST_POLL_S = 0.15  # slower polls cannot tell
_MANY_REPEATS, RETURNING = 0.25, 0.5  # share of repeats that matters; share of them that stand at levels
_LEVEL = 0.1  # of all values between changes: one that comes back as often is a level; by chance none does


def measured_refresh(t: Array, value: Array) -> float:
    """How often a value really changes, seconds: mean gap between changes, pauses left out. NaN where too few changes.

    NaN too where the values that stand still are a few that come back exactly: a sensor has noise, so these are levels of
    a signal without any, and how long they stand is the signal's. Polls that are slower than the sensor give the poll
    interval: it is what these readings can show. t, value [n]. O(n log n).

    >>> round(measured_refresh(np.arange(200) * 0.02, np.repeat(np.arange(40.0), 5)), 3)
    0.1
    >>> measured_refresh(np.arange(200) * 0.1, np.tile([640.0] * 6 + [240.0] * 4, 20))
    nan
    """
    known = ~np.isnan(value)
    t, value = t[known], value[known]
    gaps = np.diff(t[1:][value[1:] != value[:-1]])
    if len(gaps) < _MIN_CHANGES or (repeats(value) > _MANY_REPEATS and returning(value) > RETURNING):
        return float("nan")
    return float(gaps[gaps <= 2.5 * float(quantiles(gaps, (0.5,))[0])].mean())


def counter_refresh(t: Array, total: Array, interval_s: float) -> float:
    """How often a byte counter really changes, seconds; NaN where too few changes.

    Only a counter of which hardly two changes lie closer than 1.35 polls is slower than the polls: bursts with pauses
    leave gaps as well, but now and then one straddles two polls. t [n] s, total [n] bytes, interval_s of the polls.
    O(n log n).

    >>> t = np.arange(200) * 0.02
    >>> round(counter_refresh(t, np.floor(t / 0.1 + 1e-6), 0.02), 3), round(counter_refresh(t, t, 0.02), 3)
    (0.1, 0.02)
    """
    gaps = np.diff(t[1:][total[1:] != total[:-1]])
    if len(gaps) < _MIN_CHANGES:
        return float("nan")
    low, middle = quantiles(gaps, (0.1, 0.5)).tolist()
    near = gaps <= (2.5 * middle if low > SLOW_COUNTER * interval_s else 1.5 * low)
    return float(gaps[near].mean())


def volley_refresh(t: Array, total: Array, interval_s: float) -> float:
    """How often a byte counter really changes, seconds, from volleys: reads that follow each other closely, three and more.

    Polls do not see a counter that is faster than they are, and pairs of reads only that it is not very fast. NaN with too few
    changes within volleys. t [n] s, total [n] bytes, interval_s of the polls. O(n log n).

    >>> t = np.sort(np.concatenate((np.arange(400) * 0.1, 20.0 + np.arange(1, 24) * 0.004)))
    >>> round(volley_refresh(t, np.floor(t / 0.01 + 1e-6), 0.1), 3), volley_refresh(t[::24], t[::24], 2.4)
    (0.01, nan)
    """
    close = np.zeros(len(t), dtype=bool)
    np.less(t[1:] - t[:-1], _CLOSE * interval_s, out=close[1:])
    if not (close[1:] & close[:-1]).any():
        return float("nan")  # pairs at most
    volley = np.cumsum(~close)
    changed = np.flatnonzero(close[1:] & (total[1:] != total[:-1])) + 1
    gaps = np.diff(t[changed])[volley[changed[1:]] == volley[changed[:-1]]]
    if len(gaps) < _MIN_IN_VOLLEYS:
        return float("nan")
    return float(gaps[gaps <= 1.6 * float(quantiles(gaps, (0.1,))[0])].mean())


def stale_share(t: Array, total: Array, floor_bytes_per_s: float) -> float:
    """Share of polls that a counter answered with an old value, seen where nothing flows but keep-alives. 0 to 1.

    With steady keep-alives every refresh brings about the same step (or two of them); a poll without one came before the
    refresh. 0 where the small steps are chatter of all sizes, NaN where most quiet polls bring none: there a pause is a
    pause. t [n] s, total [n] bytes. O(n log n).

    >>> t = np.arange(100) * 0.1
    >>> round(stale_share(t, 100 * np.floor(t / 0.125 + 1e-6), 1e6), 1)
    0.2
    """
    step = np.diff(total)
    quiet = (step >= 0) & (step < floor_bytes_per_s * np.diff(t))
    still = quiet & (step == 0)
    moved = quiet & ~still
    count, silent = int(np.count_nonzero(quiet)), int(np.count_nonzero(still))
    if count < 2 * _MIN_CHANGES or 2 * silent > count:
        return float("nan")
    low, high = quantiles(step[moved], (0.1, 0.9)).tolist()
    if silent == 0 or high > _STEADY * low:
        return 0.0
    return silent / count


def repeats(value: Array) -> float:
    """Share of readings that equal the one before, 0 to 1; NaN with fewer than two. value [n].

    >>> repeats(np.array([1.0, 1.0, 2.0, 2.0, 3.0]))
    0.5
    """
    value = value[~np.isnan(value)]
    return float(np.mean(value[1:] == value[:-1])) if len(value) > 1 else float("nan")


def returning(value: Array) -> float:
    """Share of the readings that repeat the one before which stand at a level: a value that comes back again and again.

    0 to 1; NaN without repeats. value [n], no NaN. O(n log n).

    >>> returning(np.array([5.0, 5.0, 7.0, 5.0])), returning(np.array([5.0, 5.0, 7.0, 8.0, 8.0]))
    (1.0, 0.0)
    """
    starts = np.flatnonzero(np.concatenate(([True], value[1:] != value[:-1])))
    again = np.diff(np.append(starts, len(value))) - 1
    if not again.any():
        return float("nan")
    _, which, stands = np.unique(value[starts], return_inverse=True, return_counts=True)
    level = stands >= max(2.0, _LEVEL * len(starts))
    return float(again[level[which]].sum() / again.sum())


def transition_floor(t: Array, power: Array, step_s: float) -> tuple[float, float]:
    """The steepest large step of power: its time, and the shortest averaging window that it leaves possible, seconds.

    A mean over W spreads a step over W: swing times the time between readings over the largest single change. Readings
    of 10 Hz from sensors of 20 to 100 ms give at most 0.28 s, from 1 s means at least 0.41 s. NaN without a swing of
    30 % of the highest power within 1.5 s (50 % to call a sensor slow), or with steps slower than 0.15 s.

    t [n] s, power [n] W; step_s the poll interval, or the refresh of the sensor if that is longer (repeats do not
    disturb: only the largest change counts). O(n).

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
    floor_s = step_s * swing / max(float(change[k]), 1e-9)
    needed = _SLOW_TRANSITION if floor_s > SLOW_FLOOR_S else _FAST_TRANSITION
    if swing < needed * float(power.max()):
        return nothing
    return round(float(t[k + 1]), 6), round(floor_s, 6)
