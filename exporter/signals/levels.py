"""Levels: what is high and low for this job, and where each reading lies between them.

Called by the analysis, for all GPUs of a node at once: arrays [..., n], one row per GPU, NaN = missing reading. Never
learns anything from outside the arguments; the remembered compute level is one of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exporter.signals.overlap import counted, to_unit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

FLOOR_OF_LINE_RATE = 4e-4  # below: keep-alives and control messages
FLOOR_BYTES_PER_S = 20e6  # where the line rate is unknown
MEMORY_SHARE = 0.9  # of the remembered compute level: a phase may compute at a tenth less
_DEEPEST = 0.4  # of the compute level: a ripple cannot become a deficit
_TAU_FROM, _TAU_SPAN = 0.06, 0.64
_DEFICIT_FROM, _DEFICIT_SPAN = 0.3, 0.4


def quantiles(x: Array, shares: tuple[float, ...], above: Array | None = None) -> Array:
    """Quantiles along the last axis, linear between neighbours, of what is not NaN, or of what lies above a limit [...].

    x [..., n]; returns [len(shares), ...]; NaN where a row holds nothing. Readings are put in order only as far as the answer
    needs it: O(n).

    >>> quantiles(np.array([3.0, np.nan, 1.0, 2.0]), (0.0, 0.5, 0.75)).tolist()
    [1.0, 2.0, 2.5]
    >>> quantiles(np.array([3.0, np.nan, 1.0, 2.0]), (0.0, 1.0), above=np.array(1.5)).tolist()
    [2.0, 3.0]
    """
    n = x.shape[-1]
    if n == 0:
        return np.full((len(shares), *x.shape[:-1]), np.nan)
    with np.errstate(invalid="ignore"):
        known = n - counted(np.isnan(x))
        count = known if above is None else counted(x > above[..., None])
    place = np.multiply.outer(shares, np.maximum(count - 1, 0))
    below = place.astype(np.intp)
    at = np.minimum(known - count + below, n - 1)
    beside = np.minimum(at + 1, np.maximum(known - 1, 0))
    ranked = np.partition(x, sorted({*at.ravel().tolist(), *beside.ravel().tolist()}), axis=-1).reshape(-1)
    row = np.arange(0, x.size, n).reshape(count.shape)
    low = ranked.take(row + at)
    out: Array = low + (ranked.take(row + beside) - low) * (place - below)
    return out if above is None else np.where(count > 0, out, np.nan)


def traffic_levels(traffic: Array) -> tuple[Array, Array]:
    """Low and high level of traffic, bytes per second.

    High is q95 (0.6 of the maximum where q95 is below 0.3 of it: rare bursts). Low is traffic that is always there: q05
    where below half of high, else 0; at most three times q01, for traffic that pauses in a twentieth of the time.
    traffic [..., n]; returns [...], [...]; NaN for an empty row. O(n).

    >>> low, high = traffic_levels(np.array([1.0] * 10 + [9.0] * 10))
    >>> float(low), float(high)
    (1.0, 9.0)
    """
    lowest, low, high, top = quantiles(traffic, (0.01, 0.05, 0.95, 1.0))
    low = np.minimum(low, 3.0 * lowest)
    high = np.where(high < 0.3 * top, 0.6 * top, high)
    return np.where(low < 0.5 * high, low, 0.0 * high), high


def presence(traffic: Array, low: Array, high: Array) -> Array:
    """Traffic on the scale of its levels: 0 at low, 1 at high, not clipped. traffic [..., n], levels [...].

    NaN stays NaN; a row whose levels coincide (nothing was ever sent) is 0.

    >>> presence(np.array([[1.0, 5.0, 9.0]]), np.array([1.0]), np.array([9.0])).tolist()
    [[0.0, 0.5, 1.0]]
    """
    span = (high - low)[..., None]
    with np.errstate(invalid="ignore"):
        usable = span > 0
        if usable.all():
            return np.asarray((traffic - low[..., None]) / span)
    return np.where(usable, (traffic - low[..., None]) / np.where(usable, span, 1.0), 0.0 * traffic)


def soft_presence(scaled: Array) -> Array:
    """tau, 0 to 1: how surely a reading holds traffic; a dead zone of 0.06, sure from 0.7 up. NaN stays NaN.

    >>> soft_presence(np.array([0.05, 0.38, 0.9])).round(2).tolist()
    [0.0, 0.5, 1.0]
    """
    return to_unit((scaled - _TAU_FROM) / _TAU_SPAN)


def power_levels(power: Array, on: Mask, remembered: Array, top: Array | None = None) -> tuple[Array, Array]:
    """Low and high level of power, W: of waiting for communication, and of computing.

    High is q95, at least 0.9 of the remembered compute level (a phase that outlasts the window has no compute in it).
    Low is q10 where traffic is on, at most 0.4 of high.

    power [..., n] W, on [..., n] readings with traffic, remembered [...] W or NaN, top [...] q95 of power where it is known
    already. O(n).

    >>> low, high = power_levels(np.array([400.0, 400.0, 100.0]), np.array([False, False, True]), np.array(np.nan))
    >>> float(low), float(high)
    (100.0, 400.0)
    """
    high = np.fmax(quantiles(power, (0.95,))[0] if top is None else top, MEMORY_SHARE * remembered)
    beside_traffic = quantiles(np.where(on, power, np.nan), (0.10,))[0]
    return np.fmin(_DEEPEST * high, beside_traffic), high


def deficit(power: Array, low: Array, high: Array) -> Array:
    """D, 0 to 1: how surely a reading holds no compute; a dead zone of 0.3, sure from 0.7 up. NaN stays NaN.

    power [..., n], levels [...] W.

    >>> deficit(np.array([[400.0, 250.0, 100.0]]), np.array([100.0]), np.array([400.0])).round(2).tolist()
    [[0.0, 0.5, 1.0]]
    """
    span = np.maximum(high - low, 1e-9)[..., None]
    return to_unit(((high[..., None] - power) / span - _DEFICIT_FROM) / _DEFICIT_SPAN)


def run_seconds(t: Array, on: Mask, step_s: float) -> Array:
    """For each reading the length of the run of True that it belongs to, seconds; 0 where False.

    t [n] s, on [n]; a single reading stands for `step_s`. O(n).

    >>> run_seconds(np.array([0.0, 1, 2, 3]), np.array([True, True, False, True]), 1.0).tolist()
    [2.0, 2.0, 0.0, 1.0]
    """
    out = np.zeros(len(t))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], on.astype(np.int8), [0]))))
    for first, behind in zip(edges[::2], edges[1::2], strict=True):
        out[first:behind] = t[behind - 1] - t[first] + step_s
    return out
