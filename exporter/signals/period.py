"""Period: the rhythm of a job in its traffic: how long one step takes, or NaN where nothing repeats that sensors resolve.

Called by the analysis, one GPU at a time. Never answers with a multiple, a part or an alias that it cannot tell from the
step: no period is better than a wrong one.

A pattern of length T repeats where the traffic is like itself T later (autocorrelation), and 2 T later as well. The step
is the longest such pattern: layers and buckets repeat inside it, so the traffic is looked at through ever wider boxcars,
which hide them. Steps differ in length by a few per cent, so likeness fades from repetition to repetition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.signals.onsets import mean_step

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

MIN_PERIODS = 3.0  # in the window
MIN_POLLS = 4.0  # in the period
_MIN_READINGS, _MIN_KNOWN = 60, 0.7
_WIDTHS = (1, 4, 16, 64)  # of the boxcars, readings
_WIDEST = 1 / 8  # of the longest period
_LEAST_SHARE = 0.01  # of the variance that a boxcar has to leave
_COIN = 0.2  # variance of presence against that of on and off: below, each interval holds several bursts
_TURNS = -0.4  # likeness of neighbours: of bursts that fill a quarter of their period it is -1/3 at least

_STANDS_OUT = 0.3  # a likeness above the least one at shorter lags
_ALIKE, _ALIKE_WIDE = 0.5, 0.6  # least likeness one period later; behind a boxcar noise is alike as well
_ALIKE_RARE, _RARE = 0.8, 6.0  # with fewer periods than this, a few bursts may lie well by chance
_TWICE = 0.75  # likeness two periods later, against one
_FIRM, _STRONG, _LASTING = 0.8, 0.85, 0.85  # outlives a weak, and a shorter, pattern of another length
_WEAK_LONGER, _WEAK_SHORTER = 0.7, 0.6
_SAME = 0.12  # patterns whose lengths differ by less are one
# Likeness may differ by so much without meaning: always; more with fewer readings in a period, or fewer periods.
_SLACK, _GRAIN, _NOISE = 0.06, 1.0, 3.0
_UNRESOLVED_SLACK = 0.1  # in place of the grain, for periods too short to be an answer: they only raise doubt
_NEAR, _NEAR_READINGS = 0.12, 1.5  # how far from a multiple its peak may lie: share of the period, readings


@dataclass(frozen=True, slots=True)
class Curve:
    """Autocorrelation of traffic behind a boxcar `width` readings wide: r [k] at lags of 0, step, 2 step ... readings."""

    width: int
    r: Array
    step: float
    share: float  # of the variance that the boxcar leaves


@dataclass(frozen=True, slots=True)
class Pattern:
    """What repeats in one curve. Lags are in readings; `alike` and `twice` one and two periods later."""

    width: int
    period: float
    alike: float
    twice: float
    rivals: tuple[float, ...]  # shorter periods that may explain it
    seen: bool  # worth an objection to another pattern
    rare: bool = False  # so few periods in the readings that chance may look like one

    @property
    def clear(self) -> bool:
        """Good enough for an answer."""
        least = _ALIKE_RARE if self.rare else _ALIKE if self.width == 1 else _ALIKE_WIDE
        return self.seen and not self.rivals and self.alike >= least and self.twice >= _TWICE * self.alike

    def same(self, other: float) -> bool:
        """Whether another period is this one."""
        return abs(other / self.period - 1.0) < _SAME


def step_period(t: Array, presence: Array) -> float:
    """The period of the traffic, seconds: the mean length of a step, pauses left out. NaN without one.

    t [n] s, ascending, about evenly spaced; presence [n], 0 to 1 (0: nothing flows, 1: the high level of the traffic);
    NaN readings are left out. At least three periods must lie in the readings, and four readings in a period. NaN too
    where bursts are shorter than the readings (an alias would look like a rhythm), and where patterns contradict each
    other. O(n log n).

    >>> t = np.arange(3000) * 0.02
    >>> round(step_period(t, (t % 0.8 < 0.3).astype(float)), 3)
    0.8
    >>> step_period(t, np.random.default_rng(0).uniform(size=3000))
    nan
    """
    known = ~np.isnan(presence)
    if np.count_nonzero(known) < _MIN_READINGS:
        return float("nan")
    t, x = t[known], np.clip(presence[known], 0.0, 1.0)
    mean = float(x.mean())
    if not float(x.var()) > _COIN * mean * (1.0 - mean):
        return float("nan")
    step_s = float(np.median(np.diff(t)))
    even, there = resample(t, x, step_s)
    if there.mean() < _MIN_KNOWN:
        return float("nan")
    period = settle([p for c in curves(even, there) if (p := pattern(c, len(even) / MIN_PERIODS)) is not None])
    return mean_step(even, period) * step_s if period > 0 else float("nan")


def resample(t: Array, x: Array, step_s: float) -> tuple[Array, Mask]:
    """Readings at even distances [k], by straight lines, and where there is a reading within one distance [k].

    >>> x, there = resample(np.array([0.0, 1.1, 2.0, 9.0]), np.array([0.0, 1.1, 2.0, 9.0]), 1.0)
    >>> x.tolist()[:3], np.flatnonzero(there).tolist()
    ([0.0, 1.0, 2.0], [0, 1, 2, 3, 8, 9])
    """
    at = t[0] + step_s * np.arange(int((t[-1] - t[0]) / step_s + 1e-6) + 1)
    after = np.clip(np.searchsorted(t, at), 1, len(t) - 1)
    near = np.minimum(np.abs(at - t[after - 1]), np.abs(at - t[after])) <= 1.01 * step_s
    return np.interp(at, t, x), near


def curves(x: Array, there: Mask) -> list[Curve]:
    """Autocorrelations, each lag over the pairs that it has (unbiased), up to two periods of the longest kind.

    Without a boxcar at half readings too, so that periods between two lags are seen. None where readings turn from high to
    low so often that the rhythm is faster than they are. x, there [n]. O(n log n).

    >>> first = curves(np.tile([1.0, 0.0, 0.0, 0.0], 50), np.ones(200, dtype=bool))[0]
    >>> first.step, first.r[[0, 4, 8]].round(2).tolist()
    (0.5, [1.0, -0.33, 1.0])
    """
    n = len(x)
    longest = n / MIN_PERIODS
    keep = min(n - 1, int(2 * longest) + 2)
    size = 1 << (2 * n - 1).bit_length()
    power = np.abs(np.fft.rfft(np.where(there, x - x[there].mean(), 0.0), size)) ** 2
    pairs = np.arange(n, n - keep, -1.0)
    if not there.all():
        pairs = np.maximum(np.fft.irfft(np.abs(np.fft.rfft(there.astype(float), size)) ** 2, size)[:keep], 1.0)
    cycles = np.arange(len(power)) / size  # per reading
    half = np.empty(2 * keep)
    half[::2] = np.fft.irfft(power, size)[:keep] / pairs
    between = np.append((pairs[1:] + pairs[:-1]) / 2, pairs[-1])
    half[1::2] = np.fft.irfft(power * np.exp(1j * np.pi * cycles), size)[:keep] / between
    variance = float(half[0])
    if not variance > 0 or half[2] < _TURNS * variance:
        return []
    out = [Curve(1, half / variance, 0.5, 1.0)]
    for width in _WIDTHS[1:]:
        if width > _WIDEST * longest:
            break
        turn = np.sin(np.pi * cycles[1:])
        boxcar = np.concatenate(([1.0], (np.sin(np.pi * width * cycles[1:]) / (width * turn)) ** 2))
        r = np.fft.irfft(power * boxcar, size)[:keep] / pairs
        out.append(Curve(width, r / r[0], 1.0, float(r[0]) / variance))
    return out


def peaks(curve: Curve) -> tuple[Array, Array, Array]:
    """Lags [p] of the local maxima, readings, their heights [p], by parabolas, and the least value before each [p].

    >>> lag, height, before = peaks(Curve(1, np.array([1.0, 0.0, 0.5, 0.5, -1.0, 0.5, -1.0]), 1.0, 1.0))
    >>> lag.tolist(), height.tolist(), before.tolist()
    ([2.5, 5.0], [0.5625, 0.5], [0.0, -1.0])
    """
    r = curve.r
    i = np.arange(1, len(r) - 1)
    i = i[(r[i] > r[i - 1]) & (r[i] >= r[i + 1])]
    left, top, right = r[i - 1], r[i], r[i + 1]
    shift = np.clip((left - right) / 2 / np.minimum(left - 2 * top + right, -1e-12), -0.5, 0.5)
    return (i + shift) * curve.step, top - (left - right) * shift / 4, np.minimum.accumulate(r)[i]


def pattern(curve: Curve, longest: float) -> Pattern | None:
    """The pattern of a curve: the most alike lag up to `longest` readings, or the shortest that explains it; None without.

    A shorter lag explains it where the traffic is as much alike at all of its multiples up to there.
    """
    lags, heights, before = peaks(curve)
    kept = (lags <= longest) & (lags >= 1.4) & (heights > 0) & (heights - before >= _STANDS_OUT)
    lag, height = lags[kept], heights[kept]
    if len(lag) == 0:
        return None
    b = int(np.argmax(height))
    best, alike = float(lag[b]), float(height[b])
    period, inside = best, False
    rivals: list[float] = []
    for a in range(b):
        shorter = float(lag[a])
        times = round(best / shorter)
        if times < 2 or height[a] < _ALIKE / 2:
            continue
        noise = _NOISE * max(0.0, 1.0 - alike) / np.sqrt(MIN_PERIODS * longest / shorter)
        slack = _SLACK + (_GRAIN / shorter if shorter >= MIN_POLLS else _UNRESOLVED_SLACK) + noise
        if abs(best - times * shorter) > _reach(shorter) or height[a] < alike - 2 * slack:
            inside = True
            continue
        multiples = shorter * np.arange(2, times + 1, dtype=float)
        drop = alike - min(float(height[a]), float(_around(curve, multiples, _reach(shorter)).min()))
        if drop <= slack:
            period, alike, inside = shorter, float(height[a]), False
            rivals.clear()
            break
        if drop < 2 * slack:
            rivals.append(shorter)
        else:
            inside = True
    twice = float(_around(curve, np.array([2 * period]), _reach(period))[0])
    if inside and twice < _TWICE * alike:
        rivals.append(period)
    if (period < MIN_POLLS and curve.width == 1) or any(r < MIN_POLLS for r in rivals):
        return Pattern(1, min([period, *rivals]), 1.0, 1.0, (), True)
    seen = alike >= _ALIKE and curve.share >= _LEAST_SHARE
    rare = period * _RARE > MIN_PERIODS * longest
    return Pattern(curve.width, _refined(lags, heights, period, alike), alike, twice, tuple(rivals), seen, rare)


def settle(patterns: list[Pattern]) -> float:
    """The period that the patterns agree on, readings; NaN where there is none, or another one contradicts it.

    >>> settle([Pattern(1, 40.0, 0.9, 0.9, (), True), Pattern(4, 40.4, 0.95, 0.9, (), True)])
    40.0
    >>> settle([Pattern(1, 40.0, 0.7, 0.6, (), True), Pattern(4, 300.0, 0.75, 0.7, (), True)])
    nan
    """
    clear = [p for p in patterns if p.clear]
    if not clear or any(p.period < MIN_POLLS for p in patterns):
        return float("nan")
    longest = max(clear, key=lambda p: p.period)
    agreed = [p for p in clear if longest.same(p.period)]
    best = max(agreed, key=lambda p: p.alike)
    lasting = best.twice >= _LASTING * best.alike
    for other in patterns:
        if not other.seen or best.same(other.period) or any(best.same(r) for r in other.rivals):
            continue
        if other.period > best.period:
            if not (lasting and best.alike >= _FIRM and other.alike < _WEAK_LONGER):
                return float("nan")
        elif not (lasting and (best.alike >= _STRONG or (best.alike >= _FIRM and other.alike < _WEAK_SHORTER))):
            return float("nan")
    return min(agreed, key=lambda p: p.width).period


def _reach(period: float) -> float:
    return max(_NEAR_READINGS, _NEAR * period)


def _around(curve: Curve, lag: Array, reach: float) -> Array:
    """The highest value of the curve within `reach` of each lag [k]; -1 beyond the end of the curve."""
    spread = np.arange(-int(reach / curve.step), int(reach / curve.step) + 1)
    spread = spread if len(spread) <= 33 else np.unique(np.linspace(spread[0], spread[-1], 33).astype(np.intp))
    index = np.round(lag / curve.step).astype(np.intp)[:, None] + spread
    inside = (index > 0) & (index < len(curve.r))
    out: Array = np.where(inside, curve.r[np.clip(index, 0, len(curve.r) - 1)], -1.0).max(axis=1)
    return out


def _refined(lags: Array, heights: Array, period: float, alike: float) -> float:
    """The period through the peaks at its multiples as well, as far as they are alike: the mean of more steps."""
    weighed, weight, mean = 0.0, 0.0, period
    reach = max(1.0, _SAME * period)
    at, high = lags.tolist(), heights.tolist()
    for times in range(1, int(at[-1] / period) + 1):
        first, behind = bisect_left(at, times * mean - reach), bisect_right(at, times * mean + reach)
        if first == behind:
            break
        k = max(range(first, behind), key=high.__getitem__)
        if high[k] < 0.6 * alike:
            break
        weighed += times * at[k] * high[k]
        weight += times * times * high[k]
        mean = weighed / weight
    return mean
