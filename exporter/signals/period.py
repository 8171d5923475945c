"""Period: the rhythm of one signal, traffic or power, by itself: what repeats in it, and what repeats behind that.

Called by `opinions`, which answers; here patterns are found and doubted. A pattern of length T repeats where the signal is
like itself T later (autocorrelation), and 2 T later as well. Steps differ in length by a few per cent, so likeness fades
from repetition to repetition, and sharp signals fade faster: they are looked at through ever wider boxcars.

The step is the longest pattern, since layers and buckets repeat inside it. A boxcar exactly as wide as a pattern hides all
that repeats with it, and nothing else: if something longer still repeats behind it, the pattern was a part of a step.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from exporter.signals.likeness import HALVED, MIN_PERIODS, Curve, Likeness, near, resample

Array = NDArray[np.float64]

MIN_POLLS = 4.0  # readings in a period
_MIN_READINGS, _MIN_KNOWN = 60, 0.7
_WIDTHS = (2.0, 4.0, 16.0, 64.0)  # of the boxcars, readings; the first one takes the edge off what lies between two
_WIDEST, _LEAST_SHARE = 1 / 8, 0.01  # of the longest period; of the variance that a boxcar has to leave
COIN = 0.2  # variance against that of on and off with the same mean: below, each reading holds several bursts
_TURNS = -0.4  # likeness of neighbours: of bursts that fill a quarter of their period it is -1/3 at least

_STANDS_OUT, _STANDS_OUT_BEHIND = 0.3, 0.2  # a likeness above the least one at shorter lags
_ALIKE, _ALIKE_WIDE = 0.5, 0.6  # least likeness one period later; behind a boxcar noise is alike as well
_ALIKE_RARE, _RARE = 0.8, 6.0  # with fewer periods than this, a few bursts may lie well by chance
_TWICE = 0.75  # likeness two periods later, against one
# Likeness may differ by so much without meaning: always; more with fewer readings in a period, or fewer periods.
_SLACK, _GRAIN, _NOISE = 0.06, 1.0, 3.0
_UNRESOLVED_SLACK = 0.1  # in place of the grain, for periods too short to be an answer: they only raise doubt
_FAST_TIMES, _FAST_SLACK, _FAST_ALIKE = 3, 0.2, 0.2  # a rhythm faster than the readings repeats with a few periods of its own
_SAME = 0.12  # patterns whose lengths differ by less are one

_BEHIND_TIMES = 1.7  # what repeats behind a pattern is about twice as long, at least
_BEHIND_SHARE, _BEHIND_SHARE_RARE = 0.008, 0.025  # of the variance: readings that fall on a step's edges anew leave less
_BEHIND_ALIKE, _BEHIND_TWICE = 0.28, 0.6
_BEHIND_HARD = 0.6  # least likeness where the boxcar is too narrow to hide all of the pattern, or there are few periods
_HIDES, _HIDES_WELL, _HIDES_LITTLE = 6.0, 8.0, 0.05  # readings; readings; share of the variance that is left
_DEPTH = 3  # layers in micro-steps in steps


@dataclass(frozen=True, slots=True)
class Pattern:
    """What repeats in one curve. Lags are in readings; `alike` and `twice` one and two periods later."""

    width: float
    period: float
    alike: float
    twice: float
    share: float = 1.0  # of the variance that the boxcar leaves
    rivals: tuple[float, ...] = ()  # shorter periods that may explain it
    rare: bool = False  # so few periods in the readings that chance may look like one

    @property
    def short(self) -> bool:
        """Whether it may be a rhythm faster than the readings."""
        return min((*self.rivals, self.period)) < MIN_POLLS

    @property
    def clear(self) -> bool:
        """Good enough for an answer, as far as this curve can tell."""
        least = _ALIKE_RARE if self.rare else _ALIKE if self.width < HALVED else _ALIKE_WIDE
        return not self.rivals and not self.short and self.alike >= least and self.twice >= _TWICE * self.alike


@dataclass(slots=True)
class Rhythm:
    """What one signal shows: the pattern that it would answer with, if any, and all that it saw on the way."""

    likeness: Likeness
    step_s: float
    swing: float  # variance against that of a coin
    pattern: Pattern | None = None
    doubt: Pattern | None = None  # repeats behind a pattern, and is not clear enough to be the step
    hint: Pattern | None = None  # repeats behind the pattern, hardly
    seen: list[Pattern] = field(default_factory=list)
    fast: bool = False  # may be faster than the readings

    @property
    def turns(self) -> bool:
        """Whether readings turn from high to low so often that the rhythm is faster than they are."""
        return self.likeness.neighbours <= _TURNS

    @property
    def sound(self) -> bool:
        """Whether the pattern can be no alias of a rhythm that is faster than the readings."""
        return self.swing > COIN and not self.turns and not self.fast

    def strength(self, pattern: Pattern) -> float:
        """How much of the signal a pattern moves, by its length: an alias is the weaker the longer it is."""
        return self.swing * pattern.share * (pattern.period - 1.0)

    def seconds(self, pattern: Pattern) -> float:
        """The length of a pattern, s."""
        return pattern.period * self.step_s


def rhythm(t: Array, x: Array) -> Rhythm | None:
    """The rhythm of a signal, or None where there is too little of it, or it stands still.

    t [n] s, ascending, about evenly spaced; x [n], 0 to 1 between its low and high level; NaN readings are left out.
    At least three periods must lie in the readings, and four readings in a period. O(n log n).

    >>> t = np.arange(3000) * 0.02
    >>> found = rhythm(t, (t % 0.8 < 0.3).astype(float))
    >>> round(found.seconds(found.pattern), 3), found.sound
    (0.8, True)
    >>> rhythm(t, np.random.default_rng(0).uniform(size=3000)).pattern
    """
    known = ~np.isnan(x)
    if np.count_nonzero(known) < _MIN_READINGS:
        return None
    t, x = t[known], np.clip(x[known], 0.0, 1.0)
    mean, variance = float(x.mean()), float(x.var())
    if not variance > 1e-12 or not 0.0 < mean < 1.0:
        return None
    gaps = np.diff(t)
    step_s = float(np.partition(gaps, len(gaps) // 2)[len(gaps) // 2])
    even, there = resample(t, x, step_s)
    if there.mean() < _MIN_KNOWN:
        return None
    likeness = Likeness(even, there)
    if not likeness.variance > 0:
        return None
    out = Rhythm(likeness, step_s, variance / (mean * (1.0 - mean)))
    _search(out)
    return out


def _search(out: Rhythm) -> None:
    """The first clear pattern, from the finest curve on, then what may repeat behind it."""
    likeness, found = out.likeness, None
    for width in _WIDTHS:
        if width > _WIDEST * likeness.longest:
            break
        curve = likeness.curve(width)
        if curve.share < _LEAST_SHARE:
            break
        seen = pattern(curve, likeness.longest)
        if seen is None:
            continue
        out.seen.append(seen)
        if seen.short or _fast(likeness, seen.period):
            out.fast = True
        elif seen.clear:
            found = seen
            break
    for _ in range(_DEPTH):
        if found is None:
            return
        longer = behind(likeness, found.period)
        if longer is None:
            break
        if not counts(longer, found.period):
            out.hint = longer
            break
        if not longer.rare:
            out.seen.append(longer)
        hidden = found.period >= _HIDES_WELL or longer.share >= _HIDES_LITTLE
        sure = longer.alike >= _ALIKE_WIDE and longer.twice >= _TWICE * longer.alike
        if longer.rivals or longer.rare or not hidden or not sure:
            out.doubt = longer
            return
        found = longer
    out.pattern = found


def behind(likeness: Likeness, period: float) -> Pattern | None:
    """What repeats behind a boxcar as wide as a period, and is longer: the period is then a part of a step. None without.

    >>> bursts = np.tile([1.0] * 4 + [0.0] * 6 + [1.0] * 4 + [0.0] * 6 + [1.0] * 4 + [0.0] * 16, 15)
    >>> found = behind(Likeness(bursts, np.ones(600, dtype=bool)), 10.0)
    >>> round(found.period)
    40
    """
    if period > likeness.longest / 2:
        return None
    curve = likeness.curve(period)
    if curve.share < _BEHIND_SHARE:
        return None
    found = pattern(curve, likeness.longest, _STANDS_OUT_BEHIND)
    if found is None or found.period < _BEHIND_TIMES * period or found.alike < _BEHIND_ALIKE:
        return None
    return found if found.twice >= _BEHIND_TWICE * found.alike else None


def counts(longer: Pattern, period: float) -> bool:
    """Whether what repeats behind a period is more than its steps' edges, met by readings anew, or chance."""
    least = (_BEHIND_ALIKE, _BEHIND_HARD, _ALIKE_RARE)[(period < _HIDES) + longer.rare]
    return longer.alike >= least and (longer.share >= _BEHIND_SHARE_RARE or not longer.rare)


def pattern(curve: Curve, longest: float, stands_out: float = _STANDS_OUT) -> Pattern | None:
    """The pattern of a curve: the most alike lag up to `longest` readings, or the shortest that explains it; None without.

    A shorter lag explains it where the signal is as much alike at all of its multiples up to there.
    """
    lags, heights, before = curve.peaks()
    kept = (lags <= longest) & (lags >= 1.4) & (heights > 0) & (heights - before >= stands_out)
    lag, height = lags[kept], heights[kept]
    if len(lag) == 0:
        return None
    b = int(np.argmax(height))
    best, alike = float(lag[b]), float(height[b])
    period, inside = best, False
    rivals: list[float] = []
    for shorter, likely in zip(lag[:b].tolist(), height[:b].tolist(), strict=True):
        times = round(best / shorter)
        if times < 2 or likely < _ALIKE / 2:
            continue
        noise = _NOISE * max(0.0, 1.0 - alike) / math.sqrt(MIN_PERIODS * longest / shorter)
        slack = _SLACK + (_GRAIN / shorter if shorter >= MIN_POLLS else _UNRESOLVED_SLACK) + noise
        if abs(best - times * shorter) > near(shorter) or likely < alike - 2 * slack:
            inside = True
            continue
        multiples = shorter * np.arange(2, times + 1, dtype=float)
        drop = alike - min(likely, float(curve.around(multiples, near(shorter)).min()))
        if drop <= slack:
            period, alike, inside = shorter, likely, False
            rivals.clear()
            break
        if drop < 2 * slack:
            rivals.append(shorter)
        else:
            inside = True
    twice = float(curve.around(np.array([2 * period]), near(period))[0])
    if inside and twice < _TWICE * alike:
        rivals.append(period)
    rare = period * _RARE > MIN_PERIODS * longest
    return Pattern(curve.width, _refined(lags, heights, period, alike), alike, twice, curve.share, tuple(rivals), rare)


def _fast(likeness: Likeness, period: float) -> bool:
    """Whether a rhythm of less than four readings may lie behind a period: it repeats where readings meet it again."""
    if period >= (_FAST_TIMES + 0.5) * MIN_POLLS:
        return False
    curve = likeness.curve(1.0)
    here = curve.at(period)
    lags, heights, _ = curve.peaks()
    for lag, height in zip(lags.tolist(), heights.tolist(), strict=True):
        if lag >= MIN_POLLS:
            return False
        times = round(period / lag)
        if lag < 1.4 or not 2 <= times <= _FAST_TIMES or abs(period - times * lag) > near(lag):
            continue
        if height > max(_FAST_ALIKE, here - _FAST_SLACK):
            return True
    return False


def _refined(lags: Array, heights: Array, period: float, alike: float) -> float:
    """The period through the peaks at its multiples as well, as far as they are alike: the mean of more steps."""
    weighed, weight, mean = 0.0, 0.0, period
    reach = max(1.0, _SAME * period)
    at, high = lags.tolist(), heights.tolist()
    for times in range(1, int(at[-1] / period) + 1):
        first, beyond = bisect_left(at, times * mean - reach), bisect_right(at, times * mean + reach)
        if first == beyond:
            break
        k = max(range(first, beyond), key=high.__getitem__)
        if high[k] < 0.6 * alike:
            break
        weighed += times * at[k] * high[k]
        weight += times * times * high[k]
        mean = weighed / weight
    return mean
