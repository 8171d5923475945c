"""Overlap: from presence and deficit per reading to shares of time, with bounds where a reading mixes both.

Called by the analysis for all GPUs at once: arrays [..., n] along the last axis, NaN = missing reading. Never decides
what a share means: states and reasons stand in the analysis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

PAIRING_S = 0.3  # how far apart a reading of power and one of traffic may speak of the same thing
ON = 0.1  # of the way from low to high: traffic is on
_SMEAR = 0.8  # of an interval that a run gains at its two ends, with ON = 0.1
KERNEL_MARGIN = 0.03  # utilisation of a busy GPU reads a little below 1


def mean(x: Array) -> Array:
    """Mean along the last axis over what is not NaN; NaN for an empty row. x [..., n]. O(n).

    >>> float(mean(np.array([1.0, np.nan, 3.0])))
    2.0
    """
    total = np.add.reduce(x, axis=-1)
    if x.shape[-1] and not np.isnan(total).any():
        return np.asarray(total / x.shape[-1])
    missing = np.isnan(x)
    count = x.shape[-1] - counted(missing)
    total = np.where(missing, 0.0, x).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def counted(flags: Mask) -> NDArray[np.intp]:
    """How many are set along the last axis. flags [..., n]; [...]. O(n).

    >>> int(counted(np.array([True, False, True])))
    2
    """
    return np.asarray(np.add.reduce(flags, axis=-1, dtype=np.intp))


def or_zero(x: Array) -> Array:
    """x with 0 where it is NaN: numpy's nan_to_num looks for infinities as well, and costs ten times that. [...]. O(n).

    >>> or_zero(np.array([1.0, np.nan])).tolist()
    [1.0, 0.0]
    """
    return np.where(np.isnan(x), 0.0, x)


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and variance along the last axis over what is not NaN; NaN for an empty row. x [..., n]. O(n).

    >>> middle, variance = moments(np.array([1.0, np.nan, 3.0]))
    >>> float(middle), float(variance)
    (2.0, 1.0)
    """
    known = x == x
    count = counted(known)
    some = np.maximum(count, 1)
    middle = np.add.reduce(np.where(known, x, 0.0), axis=-1) / some
    away = np.where(known, x - middle[..., None], 0.0)
    variance = np.einsum("...i,...i->...", away, away) / some
    return np.where(count > 0, middle, np.nan), np.where(count > 0, variance, np.nan)


def exposed(lack: Array, tau: Array) -> Array:
    """Share of readings with communication and without compute: mean of min(D, tau). [..., n] to [...].

    >>> float(exposed(np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0])))
    0.25
    """
    return mean(np.minimum(lack, tau))


def exposed_bounds(lack: Array, tau: Array, step_s: Array) -> tuple[Array, Array]:
    """Lowest and highest exposed share that the readings allow (Frechet, 1935).

    Low: mean of max(0, D + tau - 1), deficit and traffic placed apart within each reading. High: mean of min of the
    means over 0.3 s, placed on top of each other. lack, tau [g, n]; step_s [g] between readings. O(n).

    >>> low, high = exposed_bounds(np.array([[1.0, 0.0, 0.5]]), np.array([[0.0, 1.0, 0.5]]), np.array([0.1]))
    >>> low.tolist(), high.round(3).tolist()
    ([0.0], [0.417])
    """
    low = mean(np.maximum(0.0, lack + tau - 1.0))
    unknown = np.isnan(lack) | np.isnan(tau)
    lack, tau = np.where(unknown, np.nan, lack), np.where(unknown, np.nan, tau)
    reaches = np.maximum(0, np.rint((PAIRING_S / np.fmax(step_s, 1e-3) - 1) / 2)).astype(int)
    high = np.empty(len(lack))
    for reach in np.unique(reaches):
        rows = reaches == reach
        high[rows] = mean(np.minimum(boxcar_mean(lack[rows], int(reach)), boxcar_mean(tau[rows], int(reach))))
    return low, np.maximum(low, high)


def settle(x: Array, high: Array, r: Array) -> Array:
    """The likely exposed share between min(D, tau), which takes each pair at its word, and its upper bound.

    The age of a power reading is only known on average, and a byte interval may be longer than a burst. For slow rhythms
    that changes nothing (both values agree); for fast ones min loses what falls beside its partner, and the upper bound
    takes all of it. The middle where r says little, most of the way up where the alternation shows in spite of the loss,
    and min where power rises with traffic: then deficits and traffic lie apart indeed. All [...]; r is the correlation,
    NaN (flat) counts as rising.

    >>> settle(np.full(3, 0.3), np.full(3, 0.4), np.array([-0.5, -0.1, 0.3])).round(2).tolist()
    [0.38, 0.35, 0.3]
    """
    weight = np.interp(np.where(np.isnan(r), 1.0, r), (-0.5, -0.1, 0.1), (0.8, 0.5, 0.0))
    return x + weight * np.maximum(0.0, high - x)


def boxcar_mean(x: Array, reach: int) -> Array:
    """Mean over 2 reach + 1 neighbours of what is not NaN; NaN stays NaN. x [..., n]. O(n).

    >>> boxcar_mean(np.array([1.0, 2.0, 6.0]), 1).tolist()
    [1.5, 3.0, 4.0]
    """
    if reach == 0 or x.shape[-1] == 0:
        return x
    n = x.shape[-1]
    missing = np.isnan(x)
    totals = np.zeros((2, *x.shape[:-1], n + 1))
    np.cumsum(np.where(missing, 0.0, x), axis=-1, out=totals[0, ..., 1:])
    np.cumsum(~missing, axis=-1, out=totals[1, ..., 1:])
    i = np.arange(n)
    sums = totals[..., np.minimum(i + reach + 1, n)] - totals[..., np.maximum(i - reach, 0)]
    return np.where(missing, np.nan, sums[0] / np.maximum(sums[1], 1.0))


def communication(scaled: Array, tau: Array, step_s: Array, length_s: Array) -> Array:
    """Share of time with traffic: mean tau, or the time of its runs less what the interval smears, if that is less.

    scaled, tau [..., n] presence on the scale of the levels, raw and soft; step_s [...] between intervals, length_s
    [...] of an interval: a burst of b seconds is seen on for b + 0.8 length. [...]; NaN for an empty row. O(n).

    >>> one = np.array([0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0, 0.0])
    >>> c = communication(one, one, np.array(0.1), np.array(0.1))
    >>> round(float(c), 3)
    0.375
    """
    with np.errstate(invalid="ignore"):
        on = scaled > ON
    count = counted(~np.isnan(tau))
    seen = counted(on)
    starts = counted(on[..., 1:] & ~on[..., :-1]) + on[..., :1].sum(axis=-1)
    spanned = (seen * step_s - _SMEAR * length_s * starts) / np.maximum(count * step_s, 1e-12)
    return np.where(count > 0, np.clip(np.minimum(mean(tau), spanned), 0.0, 1.0), np.nan)


def split(x: Array, low: Array, lack: Array, utilization: Array) -> tuple[Array, Array, Array]:
    """Exposed, stall and wait, from the raw exposed share, its lower bound, mean deficit and mean utilisation.

    Time without a kernel cannot be exposed communication beyond its lower bound: it is a stall. Without utilisation
    (NaN) the stall is NaN, and all that is left over is wait. All [...].

    >>> x, stall, wait = split(np.array(0.2), np.array(0.1), np.array(0.5), np.array(0.67))
    >>> round(float(x), 2), round(float(stall), 2), round(float(wait), 2)
    (0.2, 0.3, 0.0)
    """
    no_kernel = np.maximum(0.0, 1.0 - utilization - KERNEL_MARGIN)
    idle = np.where(np.isnan(no_kernel), 0.0, no_kernel)
    x = np.minimum(x, np.maximum(low, lack - idle))
    stall = np.minimum(lack - x, no_kernel)
    return x, stall, np.maximum(0.0, lack - x - np.where(np.isnan(stall), 0.0, stall))


def health(x: Array, c: Array) -> Array:
    """Share of communication time hidden behind compute: 1 - x / c, NaN where nothing is sent. [...].

    >>> float(health(np.array(0.1), np.array(0.4)))
    0.75
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(c > 0, np.clip(1.0 - x / c, 0.0, 1.0), np.nan)
