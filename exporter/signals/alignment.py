"""Alignment: which power readings are new, and which stretch of time each of them speaks of.

Called by the gathering of readings. Never searches for a lag: a search finds an alternation where there is none; the
lag follows from the sensor (window W, refresh U) and the polls alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FAST_POLL = 0.6  # polls faster than this share of the refresh see each value more than once
_STILL = 2.5  # a value that stands still this many refreshes is a value that repeats


def fresh(t: Array, power: Array, refresh_s: float) -> NDArray[np.intp]:
    """Indices of readings that hold a new value: one per refresh of the sensor.

    A value that stands still for two and a half refreshes is taken once per refresh from then on: flat power is flat.
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
    turns = np.floor(since / refresh_s + 1e-9)
    again = np.concatenate(([False], turns[1:] > turns[:-1])) & (since >= _STILL * refresh_s)
    return index[changed | again]


def polled_fast(interval_s: float, refresh_s: float) -> bool:
    """True where polls come so fast that most of them repeat a value.

    >>> polled_fast(0.02, 0.1), polled_fast(0.1, 0.1)
    (True, False)
    """
    return interval_s < _FAST_POLL * refresh_s


def reading_age(interval_s: float, refresh_s: float) -> float:
    """Mean time between the end of the sensor's window and the poll that fetched the value, seconds.

    Half a poll where only new values are kept, half a refresh otherwise.

    >>> reading_age(0.02, 0.1), reading_age(0.1, 0.1)
    (0.01, 0.05)
    """
    return interval_s / 2 if polled_fast(interval_s, refresh_s) else refresh_s / 2


def intervals(t: Array, age_s: float, window_s: float, length_s: float) -> tuple[Array, Array]:
    """Start and end of the stretch that each power reading is held against: the sensor's window, or what bytes resolve.

    t [n] s, time of the reading; centred at t - age - window / 2, `length_s` long. O(n).

    >>> start, end = intervals(np.array([1.0]), 0.05, 0.1, 0.2)
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
