"""Alignment: which power readings are new, and which stretch of time each of them speaks of.

Called by the gathering of readings. Never searches for a lag: a search finds an alternation where there is none; the
lag follows from the sensor (window W, refresh U) and the polls alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exporter.signals import sensor
from exporter.signals.overlap import boxcar_sum

Array = NDArray[np.float64]

_FAST_POLL = 0.6  # polls faster than this share of the refresh see each value more than once
_IN_STEP = 1.3  # polls slower than this many refreshes never see a value twice
_MOSTLY_NEW = 0.35  # more repeats than this are the signal's, not the sensor's
_TOLD_S, _AGREED = 2.0, 0.7  # how long a repeat speaks for its neighbours; concentration of phases from 0 to 1
_STILL, _LEVEL_STILL = 2.5, 1.0  # a value that stands still this many refreshes is a value that repeats


def fresh(t: Array, power: Array, refresh_s: float) -> NDArray[np.intp]:
    """Indices of readings that hold a new value: one per refresh of the sensor.

    A value that stands still for two and a half refreshes is taken once per refresh from then on: flat power is flat. Where
    power stands at exact levels, of a sensor without noise, it is taken once per refresh from the first on.
    t [n] s, power [n] W; NaN readings are left out. O(n).

    >>> fresh(np.arange(6) * 0.02, np.array([5.0, 5, 5, 7, 7, 9]), 0.06).tolist()
    [0, 3, 5]
    """
    index = np.flatnonzero(~np.isnan(power))
    if len(index) == 0:
        return index
    t, power = t[index], power[index]
    changed = np.concatenate(([True], power[1:] != power[:-1]))
    since = t - t[np.maximum.accumulate(np.where(changed, np.arange(len(t)), 0))]
    still = _LEVEL_STILL if sensor.returning(power) > sensor.RETURNING else _STILL
    turns = np.floor(since / refresh_s + 1e-9)
    again = np.concatenate(([False], turns[1:] > turns[:-1])) & (since >= still * refresh_s - 1e-9)
    return index[changed | again]


def polled_fast(interval_s: float, refresh_s: float) -> bool:
    """True where polls come so fast that most of them repeat a value.

    >>> polled_fast(0.02, 0.1), polled_fast(0.1, 0.1)
    (True, False)
    """
    return interval_s < _FAST_POLL * refresh_s


def reading_ages(t: Array, power: Array, interval_s: float, refresh_s: float) -> Array:
    """Time between the end of the sensor's window and the poll that fetched the value, seconds, for each reading.

    Half a poll where polls are fast and only new values are kept; half a refresh on average otherwise. Where polls and
    refreshes keep step, the age stays what it is for a long time, and repeats tell: a value read twice, g seconds apart,
    was refreshed just before the first poll and just after the second, within refresh - g. Two seconds around a repeat
    that instant is taken over, if the repeats there agree.

    t [n] s, power [n] W, all polls; [n]. O(n).

    >>> reading_ages(np.arange(3) * 0.02, np.ones(3), 0.02, 0.1).tolist()
    [0.01, 0.01, 0.01]
    >>> t = np.array([0.0, 0.1, 0.196, 0.3])
    >>> reading_ages(t, np.array([1.0, 2.0, 2.0, 3.0]), 0.1, 0.1).round(3).tolist()
    [0.002, 0.002, 0.098, 0.002]
    """
    if polled_fast(interval_s, refresh_s):
        return np.full(len(t), interval_s / 2)
    ages = np.full(len(t), refresh_s / 2)
    if len(t) < 2 or not interval_s < _IN_STEP * refresh_s:
        return ages
    gaps = np.diff(t)
    twice = np.flatnonzero((power[1:] == power[:-1]) & (gaps < refresh_s)) + 1
    if len(twice) == 0 or len(twice) > _MOSTLY_NEW * len(t):
        return ages
    step_s = float(gaps[gaps < 1.5 * interval_s].mean())
    angle = (t[twice] + t[twice - 1] + refresh_s) / 2 * (2 * np.pi / step_s)
    told = np.zeros((3, len(t)))
    told[:, twice] = np.stack((np.cos(angle), np.sin(angle), np.ones(len(twice))))
    cosine, sine, count = boxcar_sum(told, max(1, round(_TOLD_S / step_s)))
    agreed = np.hypot(cosine, sine) > _AGREED * np.maximum(count, 1.0)
    since = np.mod(t - np.arctan2(sine, cosine) * step_s / (2 * np.pi), step_s)
    # Next to the refresh itself the value decides on which side of it the poll fell.
    old = np.zeros(len(t), dtype=bool)
    old[twice] = True
    since = np.where(old & (since < step_s / 2), since + step_s, since)
    new = np.concatenate(([False], (gaps < since[1:]) & ~old[1:]))
    since = np.where(new, np.maximum(0.0, since - step_s), since)
    return np.where(agreed, since, ages)


def intervals(t: Array, age_s: Array, window_s: float, length_s: float) -> tuple[Array, Array]:
    """Start and end of the stretch that each power reading is held against: the sensor's window, or what bytes resolve.

    t [n] s, time of the reading; centred at t - age - window / 2, `length_s` long; age_s [n]. O(n).

    >>> start, end = intervals(np.array([1.0]), np.array([0.05]), 0.1, 0.2)
    >>> start.round(3).tolist(), end.round(3).tolist()
    ([0.8], [1.0])
    """
    centre = t - (age_s + window_s / 2)
    return centre - length_s / 2, centre + length_s / 2


def stack(rows: list[Array]) -> Array:
    """Rows of unequal length as one array [rows, n]; missing in front is NaN, so that the newest readings line up.

    >>> stack([np.array([1.0, 2.0]), np.array([3.0])]).tolist()
    [[1.0, 2.0], [nan, 3.0]]
    """
    width = max((len(r) for r in rows), default=0)
    out = np.full((len(rows), width), np.nan)
    for row, values in zip(out, rows, strict=True):
        row[width - len(values) :] = values
    return out
