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
_SHIFTS = 3  # so few neighbours are added faster one by one than by running totals
KERNEL_MARGIN = 0.03  # utilisation of a busy GPU reads a little below 1


def mean(x: Array) -> Array:
    """Mean along the last axis over what is not NaN; NaN for an empty row. x [..., n]. O(n).

    >>> float(mean(np.array([1.0, np.nan, 3.0])))
    2.0
    """
    n = x.shape[-1]
    total = np.add.reduce(x, axis=-1)
    if n and not np.isnan(total).any():
        return np.asarray(total / n)
    missing = np.isnan(x)
    count = n - counted(missing)
    return np.where(count > 0, np.add.reduce(zeroed(x, missing), axis=-1) / np.maximum(count, 1), np.nan)


def counted(flags: Mask) -> NDArray[np.intp]:
    """How many are set along the last axis. flags [..., n]; [...]. O(n).

    >>> int(counted(np.array([True, False, True])))
    2
    """
    if flags.size < 1 << 13 or flags.shape[-1] >= 1 << 16:
        return np.asarray(np.add.reduce(flags, axis=-1, dtype=np.intp))
    return np.add.reduce(flags.view(np.uint8), axis=-1, dtype=np.uint16).astype(np.intp)  # several times as fast


def zeroed(x: Array, missing: Mask) -> Array:
    """x with 0 where it is missing; a fraction of what np.where takes. Both [...]. O(n).

    >>> zeroed(np.array([1.0, np.nan]), np.array([False, True])).tolist()
    [1.0, 0.0]
    """
    out = x.copy()
    np.copyto(out, 0.0, where=missing)
    return out


def or_zero(x: Array) -> Array:
    """x with 0 where it is NaN: numpy's nan_to_num looks for infinities as well, and costs ten times that. [...]. O(n).

    >>> or_zero(np.array([1.0, np.nan])).tolist()
    [1.0, 0.0]
    """
    return zeroed(np.asarray(x), np.isnan(x))


def to_unit(x: Array) -> Array:
    """x held between 0 and 1; NaN stays NaN. What np.clip does, in half its time where arrays are small. [...]. O(n).

    >>> to_unit(np.array([-1.0, 0.5, np.nan, 2.0])).tolist()
    [0.0, 0.5, nan, 1.0]
    """
    out: Array = np.asarray(np.maximum(x, 0.0))
    return np.minimum(out, 1.0, out=out)


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and variance along the last axis over what is not NaN; NaN for an empty row. x [..., n]. O(n).

    >>> middle, variance = moments(np.array([1.0, np.nan, 3.0]))
    >>> float(middle), float(variance)
    (2.0, 1.0)
    """
    n = x.shape[-1]
    total = np.add.reduce(x, axis=-1)
    if n and not np.isnan(total).any():
        middle = np.asarray(total / n)
        away = x - middle[..., None]
        return middle, dot(away, away) / n
    missing = np.isnan(x)
    count = n - counted(missing)
    some = np.maximum(count, 1)
    middle = np.add.reduce(zeroed(x, missing), axis=-1) / some
    away = x - middle[..., None]
    np.copyto(away, 0.0, where=missing)
    empty = count == 0
    return np.where(empty, np.nan, middle), np.where(empty, np.nan, dot(away, away) / some)


def dot(a: Array, b: Array) -> Array:
    """Sum of products along the last axis. a, b [..., n]; [...]. O(n).

    >>> float(dot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
    11.0
    """
    return np.asarray(np.matmul(a[..., None, :], b[..., None])[..., 0, 0])


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
    both = np.stack((lack, tau))
    both[:, np.isnan(lack) | np.isnan(tau)] = np.nan
    reaches = np.maximum(0, np.rint((PAIRING_S / np.fmax(step_s, 1e-3) - 1) / 2)).astype(int)
    high = np.empty(len(lack))
    for reach in set(reaches.tolist()):
        rows = reaches == reach
        high[rows] = mean(np.minimum(*boxcar_mean(both if rows.all() else both[:, rows], reach)))
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
    missing = np.isnan(x)
    if not missing.any():
        return boxcar_sum(x, reach) / boxcar_sum(np.ones(x.shape[-1]), reach)
    sums = boxcar_sum(zeroed(x, missing), reach) / np.maximum(boxcar_sum(~missing, reach), 1.0)
    sums[missing] = np.nan
    return sums


def boxcar_sum(x: Array | Mask, reach: int) -> Array:
    """Sums over 2 reach + 1 neighbours along the last axis; at the ends over those that exist. x [..., n]. O(n).

    >>> boxcar_sum(np.array([1.0, 2, 3, 4]), 1).tolist()
    [3.0, 6.0, 9.0, 7.0]
    """
    n = x.shape[-1]
    reach = min(reach, n)
    if reach <= _SHIFTS:
        number: Array = x.astype(np.float64)
        out = number.copy()
        for by in range(1, reach + 1):
            out[..., by:] += number[..., :-by]
            out[..., :-by] += number[..., by:]
        return out
    total = np.cumsum(x, axis=-1, dtype=np.float64)
    out = np.empty_like(total)
    out[..., : n - reach] = total[..., reach:]
    out[..., n - reach :] = total[..., -1:]
    out[..., reach + 1 :] -= total[..., : max(0, n - reach - 1)]
    return out


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
    return np.where(count > 0, to_unit(np.minimum(mean(tau), spanned)), np.nan)


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
        return np.where(c > 0, to_unit(1.0 - x / c), np.nan)
