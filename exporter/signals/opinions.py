"""Opinions: the step period of a job from the rhythm of its traffic, with that of its power as a second opinion.

Called by the analysis, one GPU at a time. Never answers with a multiple, a part or an alias that it cannot tell from the
step: no period is better than a wrong one.

Traffic and power are read on clocks of their own. A rhythm faster than the readings shows up as a slower one that is not
there, but at another length in each of the two: what both show is real. What one shows alone is held to stricter terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.signals.likeness import near
from exporter.signals.onsets import mean_step
from exporter.signals.period import MIN_POLLS, Pattern, Rhythm, behind, counts, rhythm
from exporter.signals.steady import steady

Array = NDArray[np.float64]
Found = tuple[Rhythm, Pattern]

# Two patterns are one where their lengths differ by less, per reading: aliases are further apart the longer they are. Few
# readings are not known better than the least, few steps in a window not better than the most.
_EQUAL, _EQUAL_LEAST, _EQUAL_MOST, _ABOUT = 0.0008, 0.006, 0.025, 0.05
_WEAK, _WEAK_BETTER, _WEAK_TWICE = 0.3, 0.4, 0.65  # likeness that is enough of two that agree: of each, of the better one
_MOVES, _MOVES_ALONE = 0.2, 1.0  # least strength of a pattern: of each of two, of one without gaps alone
_RARE_ALIKE = 0.8
_LONGER = 1.5  # times a period: another one
_DOUBTED = 0.6  # likeness of a longer pattern, behind one that both agree on
_WHOLE = 0.04  # a multiple is as near to a whole number
_BEAT = 0.8  # as much alike at the shorter period: the longer one comes from readings that fall on the step's edges anew
_LACKS, _HAS, _LASTING, _FIRM, _MANY = 0.3, 0.5, 0.85, 0.85, 2.5
_CONTRADICTS = 0.75  # likeness of a longer pattern in a finer view
_FEW_READINGS = 8.0  # in a period: readings of power that are moments beat with it
_MOMENTS, _MOMENTS_ALIKE, _SUPPORTED = 10.0, 0.7, 6.0  # readings in a period that momentary power shows alone, or not alone
_SUPPORT, _SUPPORT_NEAR, _SUPPORT_READINGS, _SUPPORT_WIDTH = 0.1, 0.015, 0.12, 16.0
_TRUSTED = 0.02  # onsets that tell another length than the period know of steps that were late


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal of a window: t [n] s, x [n] 0 to 1; gapless: each reading speaks of all the time since the one before."""

    t: Array
    x: Array
    gapless: bool = True

    def later(self) -> Signal:
        """The second half of the readings."""
        half = len(self.t) // 2
        return Signal(self.t[half:], self.x[half:], self.gapless)


def step_period(traffic: Signal | None, power: Signal | None = None) -> float:
    """The period of the job, seconds: the mean length of a step, pauses left out. NaN without one.

    Traffic is presence of communication, power any scale of compute; None where there is none. Where both repeat at the
    same length, that is the answer; where they differ by a whole number, the longer one, unless the shorter one explains
    it; where traffic repeats alone, traffic's, unless power doubts it; where power repeats alone, power's, if no faster
    rhythm can look like it. O(n log n).

    >>> t = np.arange(3000) * 0.02
    >>> halves, whole = (t % 0.8 < 0.3).astype(float), (t % 1.6 < 1.1).astype(float)
    >>> step = step_period(Signal(t, halves)), step_period(Signal(t, halves), Signal(t, whole))
    >>> [round(s, 2) for s in step]
    [0.8, 1.6]
    """
    a, b = (None if signal is None else rhythm(signal.t, signal.x) for signal in (traffic, power))
    gapless = power is not None and power.gapless
    if a and b and a.pattern and a.sound and not _has_a_say(b, a.seconds(a.pattern), gapless):
        b = None
    found = _of_both(a, b, gapless) if a and b else _of_traffic(a, None) if a else _of_power(b, gapless) if b else None
    return float("nan") if found is None else _length(*found)


def _has_a_say(b: Rhythm, traffic_s: float, gapless: bool) -> bool:
    """Whether power is read often enough to speak of a rhythm of the traffic, or without gaps shows far more than its beat."""
    if not (b.turns or traffic_s < MIN_POLLS * b.step_s):
        return True
    if not gapless or b.pattern is None:
        return False
    return b.sound or (not b.pattern.rare and b.strength(b.pattern) > _MOVES_ALONE)


def _of_both(a: Rhythm, b: Rhythm, gapless: bool) -> Found | None:
    """Both are there: where they agree; where both answer; where one does."""
    shared = None if a.turns else _agreed(a, b)
    if shared is not None:
        length_s = a.seconds(shared)
        answers = [r.seconds(r.pattern) for r in (a, b) if r.pattern is not None]
        doubts = [r.seconds(r.doubt) for r in (a, b) if r.doubt is not None and r.doubt.alike >= _DOUBTED]
        if any(doubt_s > _LONGER * length_s for doubt_s in doubts) or _hinted(a, b):
            return None
        if all(answer_s <= _LONGER * length_s for answer_s in answers):
            return a, shared
    if a.pattern is not None and b.pattern is not None:
        return _of_two_answers(a, a.pattern, b, b.pattern, gapless)
    return _of_traffic(a, b) if a.pattern is not None else _of_power_beside(a, b, gapless)


def _hinted(a: Rhythm, b: Rhythm) -> bool:
    """Whether both show a trace of the same longer pattern."""
    if a.hint is None or b.hint is None:
        return False
    return abs(a.seconds(a.hint) / b.seconds(b.hint) - 1.0) < _EQUAL_LEAST


def _agreed(a: Rhythm, b: Rhythm) -> Pattern | None:
    """The longest pattern of the traffic that power shows as well; each may be too weak for an answer of its own."""
    best: Pattern | None = None
    for p in a.seen:
        length_s = a.seconds(p)
        for q in b.seen:
            if abs(b.seconds(q) / length_s - 1.0) > min(_EQUAL_MOST, max(_EQUAL_LEAST, _EQUAL * q.period)):
                continue
            usable = not (p.short or q.short or p.rivals or q.rivals)
            alike = min(p.alike, q.alike) >= _WEAK and max(p.alike, q.alike) >= _WEAK_BETTER
            lasting = p.twice >= _WEAK_TWICE * p.alike and q.twice >= _WEAK_TWICE * q.alike
            chance = p.rare and q.rare and max(p.alike, q.alike) < _RARE_ALIKE
            moves = min(a.strength(p), b.strength(q)) >= _MOVES
            if usable and alike and lasting and moves and not chance and (best is None or p.period > best.period):
                best = p
    return best


def _of_two_answers(a: Rhythm, p: Pattern, b: Rhythm, q: Pattern, gapless: bool) -> Found | None:
    """Traffic says p, power q, and they have not agreed so far."""
    traffic_s, power_s = a.seconds(p), b.seconds(q)
    if abs(traffic_s / power_s - 1.0) < _ABOUT:
        alone = gapless and b.sound and b.strength(q) > _MOVES_ALONE
        return (a, p) if a.sound else (b, q) if alone else None
    times = max(traffic_s, power_s) / min(traffic_s, power_s)
    if not a.sound or round(times) < 2 or abs(times / round(times) - 1.0) > _WHOLE:
        return None
    if traffic_s < power_s:
        # Power tells steps apart that look the same in traffic, unless it hardly does.
        few = traffic_s < _FEW_READINGS * b.step_s and not gapless
        inside = _alike(b, q.width, traffic_s) / q.alike
        if few or not b.sound:
            return None
        if not q.rare and inside <= _BEAT:
            return b, q
        firm = p.alike >= _FIRM and p.twice >= _LASTING * p.alike
        return (a, p) if firm and times >= _MANY and inside >= _HAS else None
    inside = _alike(a, p.width, power_s) / p.alike
    lasting = q.twice >= _LASTING * q.alike
    if lasting and inside >= _HAS:
        return (b, q) if b.sound else None  # traffic repeats with power's period, and beats with the readings
    if lasting and q.alike >= _FIRM and inside >= _LACKS:
        return None
    return a, p


def _alike(of: Rhythm, width: float, length_s: float) -> float:
    """The height of the peak at a length in a signal's likeness; -1 without one: neighbours are alike as well."""
    lag = length_s / of.step_s
    lags, heights, _ = of.likeness.curve(width).peaks()
    close = np.abs(lags - lag) <= near(lag)
    return float(heights[close].max()) if close.any() else -1.0


def _of_traffic(a: Rhythm, b: Rhythm | None) -> Found | None:
    """Traffic repeats, power does not, or is not there."""
    p = a.pattern
    if p is None or not a.sound:
        return None
    if b is not None and _part(b, a.seconds(p)):
        return None
    if any(q.alike >= _CONTRADICTS and q.period > 1.2 * p.period for q in a.seen):
        return None
    return a, p


def _of_power(b: Rhythm, gapless: bool) -> Found | None:
    """Power alone. Moments may be an alias; means since the reading before hardly ever are."""
    q = b.pattern
    if q is None or not b.sound:
        return None
    sure = b.strength(q) > _MOVES if gapless else q.period >= _MOMENTS and q.alike >= _MOMENTS_ALIKE
    return (b, q) if sure else None


def _of_power_beside(a: Rhythm, b: Rhythm, gapless: bool) -> Found | None:
    """Power repeats; traffic flows and shows no clear period of its own, but may show a trace of power's."""
    q = b.pattern
    if q is None or not b.sound or a.turns or (a.doubt is not None and a.doubt.rare):
        return None
    if _part(a, b.seconds(q)):
        return None
    lag = b.seconds(q) / a.step_s
    if gapless and b.strength(q) > _MOVES_ALONE:
        return b, q
    return (b, q) if (gapless or q.period >= _SUPPORTED) and _supports(a, lag) else None


def _part(of: Rhythm, length_s: float) -> bool:
    """Whether something longer repeats in a signal behind a period that the other one shows."""
    longer = behind(of.likeness, length_s / of.step_s)
    return longer is not None and counts(longer, length_s / of.step_s)


def _supports(a: Rhythm, lag: float) -> bool:
    """Whether the traffic, behind a boxcar that hides what is much finer, is a little alike at just this lag."""
    if lag > a.likeness.longest:
        return False
    curve = a.likeness.curve(max(2.0, float(round(min(lag / 8.0, _SUPPORT_WIDTH)))))
    lags, heights, _ = curve.peaks()
    close = np.abs(lags / lag - 1.0) < max(_SUPPORT_NEAR, _SUPPORT_READINGS / lag)
    return bool(close.any()) and float(heights[close].max()) >= _SUPPORT


def _length(of: Rhythm, pattern: Pattern) -> float:
    """The mean length of a step, s; NaN where the rhythm is not the same all through the window."""
    x, period = of.likeness.x, pattern.period
    mean = mean_step(x, period)
    return mean * of.step_s if abs(mean / period - 1.0) > _TRUSTED or steady(x, period) else float("nan")
