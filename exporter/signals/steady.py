"""Steady: whether a rhythm is the same all through the readings, once its period is known.

Called by `opinions`. A window that holds two rhythms, one after the other, repeats at what both have in common: at a length
in between, or at a multiple of both. Parts of the window know better. Lags are in readings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_PARTS = 3  # of the readings: the first one and the last one are asked
_POINTS = 36.0  # readings per period that are enough
_PERIODS, _FROM, _TO = 18.0, 0.7, 1.45  # in the readings, at least, to look for another length; where to look, of a period
_OFF, _STANDS, _LIKE = 0.1, 0.4, 0.7  # how far off another length is; its likeness; likeness at the period, against that
_MULTIPLES, _DIVISORS = 6.0, range(6, 1, -1)  # periods in the readings, at least, to look for a part of it; which ones
_DIVIDED, _LITTLE_LESS, _RISES = 0.5, 0.1, 0.3  # likeness of a part: least; below that of the period; above shorter lags
_WITHIN = 0.06  # of a lag: where its peak may lie


def steady(x: Array, period: float) -> bool:
    """Whether the beginning and the end of the readings x [n] repeat with the same period. O(n log n).

    >>> short, long = np.tile([1.0] * 3 + [0.0] * 7, 18), np.tile([1.0] * 3 + [0.0] * 10, 14)
    >>> [steady(np.tile(short, 2), 10.0), steady(np.append(short, long), 10.0), steady(np.append(short, long), 40.0)]
    [True, False, False]
    """
    if period * _MULTIPLES > len(x):
        return True
    every = max(1, int(period / _POINTS))
    part, period = len(x) // _PARTS // every * every, period / every
    first, last = (_likeness(of.reshape(-1, every).mean(axis=1)) for of in (x[:part], x[-part:]))
    if period * _PERIODS * every <= len(x) and not (_holds(first, period) and _holds(last, period)):
        return False
    before, after = times_inside(first, period), times_inside(last, period)
    return before == after or 1 in (before, after)


def times_inside(alike: Array, period: float) -> int:
    """How often a shorter rhythm fits into a period that explains as much of the readings; 1 without.

    alike [k], likeness at each lag, up to the period and a little further.

    >>> [times_inside(_likeness(np.tile([1.0] * 3 + [0.0] * off, 6)), 40.0) for off in (7, 37)]
    [4, 1]
    """
    whole, _ = _peak(alike, period)
    for times in _DIVISORS:
        height, before = _peak(alike, period / times)
        if height >= max(_DIVIDED, whole - _LITTLE_LESS) and height - before >= _RISES:
            return times
    return 1


def _holds(alike: Array, period: float) -> bool:
    """Whether no other lag than the period, a little shorter or longer, is what the readings repeat with."""
    first = max(2, int(_FROM * period))
    around = alike[first : int(_TO * period) + 2]
    k, here = int(np.argmax(around)), int(period) - first
    off = abs((first + k) / period - 1.0) > _OFF
    return not (off and around[k] > _STANDS and float(around[here : here + 2].max()) < _LIKE * around[k])


def _peak(alike: Array, lag: float) -> tuple[float, float]:
    """The highest likeness near a lag, and the least one before."""
    reach = max(1.0, _WITHIN * lag)
    first, last = max(1, round(lag - reach)), round(lag + reach)
    return float(alike[first : last + 1].max()), float(alike[:last].min())


def _likeness(x: Array) -> Array:
    """Autocorrelation at all lags up to two thirds of the readings; zeros where they stand still."""
    n = len(x)
    x = x - x.mean()
    size = 1 << (2 * n - 1).bit_length()
    lags = 2 * n // 3
    products = np.fft.irfft(np.abs(np.fft.rfft(x, size)) ** 2, size)[:lags] / np.arange(n, n - lags, -1.0)
    out: Array = products / products[0] if products[0] > 0 else np.zeros(lags)
    return out
