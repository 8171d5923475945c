"""Onsets: when the traffic of each step begins, and so how long steps are on average.

Called by `period` once the period is known. Never finds a period itself, and never trusts a count that the period does not
bear out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_WIDTH = 0.2  # of the period: what lies closer together is one burst
_LOW, _HIGH = 0.02, 0.98  # quantiles between which traffic rises
_OFF, _ON = 0.4, 0.6  # of the way up: in between nothing is decided
_SHORTEST, _PAUSE = 0.75, 1.9  # of the period: steps are hardly shorter than usual; a pause is no step
_FEW_SHORT, _MOST_STEPS, _TYPICAL = 0.03, 0.6, 0.06


def mean_step(x: Array, period: float) -> float:
    """The mean time from onset to onset, readings, without pauses; `period` itself where the onsets do not bear it out.

    Steps that are delayed now and then make the mean longer than the typical step. Onsets count if they are about a period
    apart, hardly ever less, and there is one for most periods. x [n] evenly spaced; period in readings. O(n).

    >>> x = np.concatenate([[1.0] * 4 + [0.0] * gap for gap in (6, 6, 6, 6, 6, 6, 6, 11, 6, 6)])
    >>> mean_step(x, 10.0), mean_step(np.tile([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], 9), 8.0)
    (10.625, 8.0)
    """
    apart = np.diff(onsets(x, max(1, round(_WIDTH * period))))
    steps = apart[apart < _PAUSE * period]
    if len(steps) < _MOST_STEPS * len(x) / period - 1 or len(steps) == 0:
        return period
    if np.count_nonzero(steps < _SHORTEST * period) > _FEW_SHORT * len(steps):
        return period
    if abs(float(np.median(steps)) / period - 1.0) > _TYPICAL:
        return period
    return float(steps.mean())


def onsets(x: Array, width: int) -> Array:
    """Where x, behind a boxcar `width` readings wide, rises through the middle between its levels; readings [k].

    >>> onsets(np.tile([0.0, 0.0, 1.0, 1.0], 3), 1).tolist()
    [1.5, 5.5, 9.5]
    """
    total = np.concatenate(([0.0], np.cumsum(x)))
    smooth = (total[width:] - total[:-width]) / width
    if len(smooth) < 2:
        return np.empty(0)
    low, high = np.quantile(smooth, (_LOW, _HIGH))
    if not high > low:
        return np.empty(0)
    height = (smooth - low) / (high - low)
    decided = np.flatnonzero((height < _OFF) | (height > _ON))
    up = height[decided] > _ON
    rises = np.flatnonzero(up[1:] & ~up[:-1])
    # The last reading below and the first above: in between, the middle is crossed for the last time before it is up.
    below, above = decided[rises], decided[rises + 1]
    middle = (_OFF + _ON) / 2
    under = np.maximum.accumulate(np.where(height < middle, np.arange(len(height)), -1))
    k = np.maximum(under[above], below)
    out: Array = k + (middle - height[k]) / (height[k + 1] - height[k])
    return out
