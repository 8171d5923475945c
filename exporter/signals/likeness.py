"""Likeness: how much a signal is like itself some time later, seen through boxcars that hide what is finer than they are.

Called by `period`, for one signal of one GPU. Knows nothing of steps: it gives autocorrelations, their peaks, and the value
around a lag. All lags are in readings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

MIN_PERIODS = 3.0  # in the readings: no longer lag is looked at
HALVED = 3.0  # behind narrower boxcars lags of half readings matter: a peak may lie between two
_HALVED_UP_TO = 2000  # more readings are so close together that periods of few of them do not matter
_POINTS, _MOST_EVERY = 8, 64  # lags within a boxcar; readings from lag to lag
_NEAR, _NEAR_READINGS = 0.12, 1.5  # how far from its lag a peak may lie: share of the lag, readings


@dataclass(frozen=True, slots=True)
class Curve:
    """Autocorrelation behind a boxcar `width` readings wide: r [k] at lags of 0, step, 2 step ... readings."""

    width: float
    r: Array
    step: float
    share: float  # of the variance that the boxcar leaves

    def around(self, lags: Array, reach: float) -> Array:
        """The highest value within `reach` readings of each lag [k]; -1 beyond the end of the curve."""
        steps = int(reach / self.step)
        spread = np.arange(-steps, steps + 1)
        spread = spread if len(spread) <= 33 else np.unique(np.linspace(-steps, steps, 33).astype(np.intp))
        index = np.round(lags / self.step).astype(np.intp)[:, None] + spread
        inside = (index > 0) & (index < len(self.r))
        out: Array = np.where(inside, self.r[np.clip(index, 0, len(self.r) - 1)], -1.0).max(axis=1)
        return out

    def at(self, lag: float) -> float:
        """How much the signal is like itself a lag later, or near it."""
        return float(self.around(np.array([lag]), near(lag))[0])

    def peaks(self) -> tuple[Array, Array, Array]:
        """Lags [p] of the local maxima, readings, their heights [p], by parabolas, and the least value before each [p].

        >>> lag, height, before = Curve(1, np.array([1.0, 0.0, 0.5, 0.5, -1.0, 0.5, -1.0]), 1.0, 1.0).peaks()
        >>> lag.tolist(), height.tolist(), before.tolist()
        ([2.5, 5.0], [0.5625, 0.5], [0.0, -1.0])
        """
        r = self.r
        i = np.flatnonzero((r[1:-1] > r[:-2]) & (r[1:-1] >= r[2:])) + 1
        left, top, right = r[i - 1], r[i], r[i + 1]
        shift = np.clip((left - right) / 2 / np.minimum(left - 2 * top + right, -1e-12), -0.5, 0.5)
        return (i + shift) * self.step, top - (left - right) * shift / 4, np.minimum.accumulate(r)[i]


class Likeness:
    """Autocorrelations of evenly spaced readings; each lag over the pairs that it has (unbiased).

    x, there [n]: readings, and whether there is one; some must be there, and differ. O(n log n), and again per curve.

    >>> curve = Likeness(np.tile([1.0, 0.0, 0.0, 0.0], 50), np.ones(200, dtype=bool)).curve(1)
    >>> curve.step, curve.r[[0, 4, 8]].round(2).tolist()
    (0.5, [1.0, -0.33, 1.0])
    """

    def __init__(self, x: Array, there: Mask) -> None:
        n = len(x)
        self.x = x
        self.longest = n / MIN_PERIODS
        self._keep = min(n - 1, int(2 * self.longest) + 2)
        # A boxcar of half the longest lag must not reach round the end.
        self._size = _smooth(int(n + self._keep + self.longest / 2) + 2)
        off = np.where(there, x - x[there].mean(), 0.0)
        self._power = np.abs(np.fft.rfft(off, self._size)) ** 2
        self._pairs = np.arange(n, n - self._keep, -1.0)
        if not there.all():
            both = np.fft.irfft(np.abs(np.fft.rfft(there.astype(float), self._size)) ** 2, self._size)
            self._pairs = np.maximum(both[: self._keep], 1.0)
        self.variance = float(off @ off) / float(self._pairs[0])
        next_to = float(off[1:] @ off[:-1]) / float(self._pairs[1])
        self.neighbours = next_to / self.variance if self.variance > 0 else 1.0

    def curve(self, width: float) -> Curve:
        """The autocorrelation behind a boxcar that is that wide, readings, up to two periods of the longest kind.

        Wide boxcars leave little that is fast, so that every second, fourth ... lag is enough.
        """
        every = 1
        while every < _MOST_EVERY and width >= 2 * every * _POINTS:
            every *= 2
        size = self._size // every
        angle, sine, half_turn = _turns(self._size)
        power = self._power[: size // 2 + 1]
        if width != 1.0:
            angle, sine = angle[: size // 2], sine[: size // 2]
            power = power * np.concatenate(([1.0], (np.sin(width * angle) / (width * sine)) ** 2))
        pairs = self._pairs[::every]
        r = np.fft.irfft(power, size)[: len(pairs)] / (every * pairs)
        step = float(every)
        if width < HALVED and len(self.x) <= _HALVED_UP_TO:
            whole, step = r, 0.5
            r = np.empty(2 * self._keep)
            r[::2] = whole
            between = np.append((pairs[1:] + pairs[:-1]) / 2, pairs[-1])
            r[1::2] = np.fft.irfft(power * half_turn, size)[: self._keep] / between
        left = float(r[0])
        return Curve(width, r / left if left > 0 else r, step, left / self.variance if self.variance > 0 else 0.0)


def near(lag: float) -> float:
    """How far from a lag its peak may lie, readings.

    >>> near(5.0), near(100.0)
    (1.5, 12.0)
    """
    return max(_NEAR_READINGS, _NEAR * lag)


def resample(t: Array, x: Array, step_s: float) -> tuple[Array, Mask]:
    """Readings at even distances [k], by straight lines, and where there is a reading within one distance [k].

    >>> x, there = resample(np.array([0.0, 1.1, 2.0, 9.0]), np.array([0.0, 1.1, 2.0, 9.0]), 1.0)
    >>> x.tolist()[:3], np.flatnonzero(there).tolist()
    ([0.0, 1.0, 2.0], [0, 1, 2, 3, 8, 9])
    """
    at = t[0] + step_s * np.arange(int((t[-1] - t[0]) / step_s + 1e-6) + 1)
    even = np.interp(at, t, x)
    if float(np.diff(t).max()) <= 2.0 * step_s:
        return even, np.ones(len(at), dtype=bool)
    after = np.clip(np.searchsorted(t, at), 1, len(t) - 1)
    return even, np.minimum(np.abs(at - t[after - 1]), np.abs(at - t[after])) <= 1.01 * step_s


@lru_cache(maxsize=8)
def _turns(size: int) -> tuple[Array, Array, NDArray[np.complex128]]:
    """The angle of half a reading at each frequency but the first, its sine, and as a turn at each frequency."""
    angle = np.pi * np.arange(size // 2 + 1) / size
    return angle[1:], np.sin(angle[1:]), np.exp(1j * angle)


def _smooth(least: int) -> int:
    """The next size that transforms fast: a power of two, or five quarters or three halves of one.

    >>> [_smooth(n) for n in (1000, 1025, 1281, 1537)]
    [1024, 1280, 1536, 2048]
    """
    power = 1 << (least - 1).bit_length()
    return next(size for size in (power * 5 // 8, power * 3 // 4, power) if size >= least)
