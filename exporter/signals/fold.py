"""Fold: many repetitions of a step laid on top of each other, as an oscilloscope does it, and their mean.

Called by the scope, one GPU at a time. Sensors that take a few readings per step show the shape of a step once some
hundred steps are folded. The period comes from outside; where each step begins is found here, since no two last equally.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_POINTS = 48  # of the template, per step
_REACH = 0.2  # of a step: how much later or earlier than its predecessor says a step may begin
_MOST_STEPS = 400
_MOST_MISSING = 0.3


def step_starts(t: Array, flow: Array, period_s: float) -> Array:
    """Times [k + 1] at which steps begin, the last one being the end of the last step; empty where nothing is found.

    t [n] s, ascending; flow [n], traffic on any scale, NaN = missing; period_s, the length of a typical step. A template
    (the first step, then the mean of all) is slid along the flow, each step found next to where the one before it ends.
    A step begins where the template's flow has been lowest for long: computing comes first. O(n + steps).

    >>> t = np.arange(0, 30, 0.02)
    >>> starts = step_starts(t, ((t + 0.1) % 0.5 < 0.2) * 1.0, 0.5)
    >>> len(starts) > 50, float(np.median(np.diff(starts)).round(3))
    (True, 0.5)
    """
    known = np.isfinite(flow)
    if known.any():
        # What lies before the first and after the last reading is not missed.
        span = slice(int(np.argmax(known)), len(known) - int(np.argmax(known[::-1])))
        t, flow, known = t[span], flow[span], known[span]
    if len(t) < 4 or np.count_nonzero(known) < (1 - _MOST_MISSING) * len(t) or not period_s > 0:
        return np.empty(0)
    begin_s = max(float(t[0]), float(t[-1]) - _MOST_STEPS * period_s)
    dt = period_s / _POINTS
    grid = np.arange(begin_s, float(t[-1]), dt)
    if len(grid) < 4 * _POINTS:
        return np.empty(0)
    y = np.interp(grid, t[known], flow[known])
    template = y[:_POINTS]
    places: list[int] = []
    for _ in range(3):
        places = _follow(y, template - template.mean())
        if len(places) < 3:
            return np.empty(0)
        template = np.mean([y[p : p + _POINTS] for p in places], axis=0)
    shift = _quietest(template)
    starts: Array = grid[0] + (np.array(places, dtype=np.float64) + shift) * dt
    return starts[starts <= float(t[-1])]


def _follow(y: Array, template: Array) -> list[int]:
    """Where the template lies best, again and again, a step after the other."""
    reach = max(1, round(_REACH * _POINTS))
    windows = np.lib.stride_tricks.sliding_window_view(y, len(template))
    places: list[int] = []
    at = 0
    while at < len(windows):
        low, high = max(0, at - reach), min(len(windows), at + reach + 1)
        likeness = windows[low:high] @ template
        # Of equals the one nearest to where it is expected: a template without a shape must not drift.
        likeness = likeness - 1e-6 * np.abs(np.arange(low, high) - at) * max(float(np.abs(likeness).max()), 1e-12)
        place = low + int(np.argmax(likeness))
        places.append(place)
        at = place + len(template)
    return places


def _quietest(template: Array) -> int:
    """Where the longest stretch of low flow begins, going round; the template is a ring."""
    low = template < (template.min() + template.max()) / 2
    if low.all() or not low.any():
        return 0
    first = int(np.argmin(low))  # begin outside of a stretch
    turned = np.roll(low, -first)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], turned.astype(np.int8), [0]))))
    begins, ends = edges[::2], edges[1::2]
    return int((begins[np.argmax(ends - begins)] + first) % len(template))


def fold(t: Array, values: Array, starts: Array, bins: int, length_s: float = 0.0) -> Array:
    """Mean of the values in each of `bins` parts of a step, over all steps; NaN where a part was never read.

    t [n] s, middle of each reading, and values [n], NaN = missing; starts [k + 1] as of step_starts; length_s, how long a
    reading averages: it counts in all parts that it covers. Each step is stretched to the same length; steps that last less
    than half or more than twice the median are left out. Returns [bins]. O(n length bins / period).

    >>> fold(np.array([0.1, 0.6, 1.1, 1.6]), np.array([1.0, 5.0, 3.0, 5.0]), np.array([0.0, 1.0, 2.0]), 2).tolist()
    [2.0, 5.0]
    """
    if len(starts) < 2:
        return np.full(bins, np.nan)
    lengths = np.diff(starts)
    usual_s = float(np.median(lengths))
    spread = max(1, int(np.ceil(min(length_s, usual_s) / usual_s * bins)))
    offsets = ((np.arange(spread) + 0.5) / spread - 0.5) * length_s
    when = (t[:, None] + offsets).ravel()
    repeated = np.repeat(values, spread)
    step = np.searchsorted(starts, when, side="right") - 1
    inside = (step >= 0) & (step < len(lengths)) & np.isfinite(repeated)
    step = np.clip(step, 0, len(lengths) - 1)
    inside &= (lengths[step] > usual_s / 2) & (lengths[step] < 2 * usual_s)
    part = ((when - starts[step]) / np.maximum(lengths[step], 1e-12) * bins).astype(np.intp)
    part = np.clip(part, 0, bins - 1)[inside]
    total = np.bincount(part, repeated[inside], bins)
    count = np.bincount(part, minlength=bins)
    out: Array = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return out
