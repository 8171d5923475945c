"""Compute level: the power of pure compute, and how far it may be off. Called by the routes, one GPU at a time.

Health from power stands and falls with this level. Where compute runs alone somewhere in the window, the top of power is
the level. Where kernels never fill a reading, traffic-free stretches give it through utilisation. Where there is neither,
it lies somewhere between the top of power and the limit of the board, and that is said.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from exporter.signals.overlap import mean, to_unit

Array = NDArray[np.float64]

_TOP = 0.93  # of q95: readings of the top
_CALM, _BUSY = 0.1, 0.95  # traffic below and kernels above: compute alone
_PLAIN = 0.02  # share of readings that must show it
_BLOCK_S = 0.5
_LIMIT_LOW, _LIMIT_HIGH = 0.6, 0.97  # of the limit: where jobs that use tensor cores compute
_LIKELY = 0.25  # of the way from the lowest to the highest level that is possible
_HOT = 0.55  # power of the hottest transfer, of the compute level
_REACH = 0.6  # of that way, to both sides, that the bounds take in


class ComputeLevel(NamedTuple):
    """W: the likely level, and the levels that the bounds take in. certainty: plain, seen or inferred."""

    watts: float
    low: float
    high: float
    certainty: str


def compute_level(t: Array, power: Array, kernel: Array, tau: Array, high_watts: float, idle_watts: float,
                  limit_watts: float, remembered: float) -> ComputeLevel:  # fmt: skip
    """Power of compute without pause, and its bounds.

    t [n] s, power [n] W, kernel [n] share of time with a kernel (1 where unknown), tau [n] share with traffic; no NaN.
    high_watts q95 of power, idle_watts without a kernel; limit_watts of the board and remembered level, NaN where unknown.
    O(n).

    >>> t = np.arange(100) * 0.1; ones = np.ones(100)
    >>> compute_level(t, 500 * ones, ones, 0 * ones, 500.0, 100.0, 700.0, float("nan")).certainty
    'plain'
    >>> level = compute_level(t, 300 * ones, 0.5 * ones, 0 * ones, 300.0, 100.0, 700.0, float("nan"))
    >>> level.certainty, round(level.watts)
    ('seen', 500)
    >>> level = compute_level(t, 300 * ones, ones, 0.4 * ones, 300.0, 100.0, 700.0, float("nan"))
    >>> level.certainty, level.low < level.watts < level.high
    ('inferred', True)
    """
    top = float(power[power > _TOP * high_watts].mean())
    kept = remembered if remembered == remembered else -np.inf
    alone = (tau < _CALM) & (kernel >= _BUSY) & (power > _TOP * top)
    if kept >= top or np.count_nonzero(alone) >= max(5.0, _PLAIN * len(power)):
        watts = max(top, kept)
        return ComputeLevel(watts, 0.98 * watts, 1.02 * watts, "plain")
    ceiling = max(top, _LIMIT_HIGH * limit_watts) if limit_watts == limit_watts else np.inf
    seen = _seen(t, power, kernel, tau, idle_watts)
    if seen == seen:
        watts = max(top, min(seen, ceiling), min(_LIMIT_LOW * limit_watts, 1.5 * seen) if ceiling < np.inf else 0.0)
        return ComputeLevel(watts, max(0.98 * top, 0.93 * watts), min(1.08 * watts, max(ceiling, watts)), "seen")
    if ceiling == np.inf:
        return ComputeLevel(top, 0.98 * top, 1.1 * top, "inferred")
    lowest = max(top, _LIMIT_LOW * limit_watts)
    watts = lowest + _LIKELY * (ceiling - lowest)
    return ComputeLevel(watts, watts - _REACH * (watts - lowest), watts + _REACH * (ceiling - watts), "inferred")


def room(power: Array, high_watts: Array, limit_watts: Array) -> Array:
    """Share of time without compute that mean power leaves at most: compute at the board's limit, all else a hot transfer.

    power [g, n] W, high_watts q95 of it, limit_watts of the board (NaN: any share is possible); [g]. Power that stays near
    the limit leaves nothing. O(n).

    >>> room(np.array([[690.0] * 9, [600.0] * 9]), np.array([690.0, 600.0]), np.array([700.0, 700.0])).round(2).tolist()
    [0.0, 0.26]
    """
    top = np.maximum(high_watts, _LIMIT_HIGH * limit_watts)
    left = (top - mean(power)) / (top * (1 - _HOT))
    return np.where(np.isnan(left), 1.0, to_unit(left))


def _seen(t: Array, power: Array, kernel: Array, tau: Array, idle_watts: float) -> float:
    """The level in half seconds that are (nearly) free of traffic, through the share of time with a kernel; NaN without."""
    block = np.floor((t - t[0]) / _BLOCK_S).astype(np.intp)
    count = np.bincount(block)
    above, traffic, busy = (np.bincount(block, x) for x in (power - idle_watts, tau, kernel))
    calm = (count >= 3) & (traffic <= 0.15 * busy) & (busy > 0.2 * count)
    if np.count_nonzero(calm) < 3:
        return float("nan")
    found = idle_watts + above[calm] / np.maximum(busy[calm] - 0.3 * traffic[calm], 1e-9)
    return float(found[found >= np.median(found)].mean())
