"""Observability: whether these sensors can resolve this job's rhythm. Called by the analysis; arrays [..., n].

Never a confidence in the number itself: a share that is resolved may still be wrong, but one that is not is not given.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exporter.signals.correlation import variation
from exporter.signals.overlap import boxcar_mean, moments, or_zero, to_unit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LIMIT = 0.5  # below, no health and no exposed share
MODULATED = 0.15  # standard deviation of traffic as a share of its mean
RESOLUTION_WINDOWS = 4.0  # a rhythm of four averaging windows, or of four refreshes, is resolved
SLOW_WINDOW_S = 0.5
_COUNTER_REFRESH_S = 0.01  # of common byte counters; too fast for the polls to see
_COARSE, _COARSE_SPAN = 0.45, 0.25  # variance of presence against that of a coin: unresolved below, resolved above
_ALWAYS, _ALWAYS_SPAN = 0.85, 0.1  # mean presence of traffic that hardly ever pauses
_FAST_POLLS_S = 0.03  # bytes polled at least this fast show flat traffic to be flat


def survival(traffic: Array, step_s: float, length_s: float, window_s: float) -> float:
    """Share of the variance of traffic that is left after the sensor's averaging, 0 to 1: b / W for bursts b shorter than W.

    1 where the window is shorter than one and a half intervals. traffic [n] of one GPU at the finest interval,
    `length_s` long, one each `step_s`. O(n).

    >>> x = np.tile([0.0, 1.0], 50)
    >>> survival(x, 0.1, 0.1, 0.025), survival(x, 0.1, 0.1, 1.0) < 0.2
    (1.0, True)
    """
    if not window_s >= 1.5 * length_s or np.isnan(traffic).all():
        return 1.0
    before = float(np.nanvar(traffic))
    smooth = boxcar_mean(traffic, round((window_s / step_s - 1) / 2))
    return float(np.nanvar(smooth)) / before if before > 0 else 1.0


def grain(tau: Array, length_s: Array, window_s: Array) -> Array:
    """How far a sensor that averages over about one byte interval resolves what the intervals hold, 0 to 1.

    Intervals that are clearly on or off (variance near that of a coin, m (1 - m)) are resolved; intervals that are all
    half full hold a rhythm faster than themselves, and so do the readings of a sensor with such a window. A window that
    is short against the interval looks inside; traffic that hardly ever pauses has no rhythm. tau [..., n], soft
    presence at the finest interval, the rest and the answer [...]; 1 for an empty row. O(n).

    >>> tau = np.array([[0.0, 1.0] * 50, [0.4, 0.6] * 50])
    >>> grain(tau, np.array([0.1, 0.1]), np.array([0.1, 0.1])).tolist()
    [1.0, 0.0]
    """
    middle, variance = (or_zero(x) for x in moments(tau))
    coin = middle * (1.0 - middle)
    some = coin > 1e-9
    resolved = np.where(some, variance / np.where(some, coin, 1.0), 1.0)
    known = np.maximum((resolved - _COARSE) / _COARSE_SPAN, (middle - _ALWAYS) / _ALWAYS_SPAN)
    return 1.0 - (1.0 - to_unit(known)) * np.fmin(1.0, window_s / length_s)


def observability(
    traffic: Array, tau: Array, step_s: Array, length_s: Array, window_s: Array, x: Array, high: Array, limit_watts: Array,
    seen: Array,
) -> tuple[Array, Mask]:  # fmt: skip
    """How well the sensors resolve the job, 0 to 1, and whether its traffic is modulated.

    traffic and tau (its soft presence) [g, n] at the finest interval, one row per GPU; step_s, length_s of the
    intervals, window_s of the power sensor, x exposed share, high compute level of the window, limit_watts of the board,
    seen highest level of job and board: all [g], NaN where unknown. Rows of flat traffic have no rhythm; there the level
    decides: flat and low power may be a mixture that no sensor shows.

    >>> one = np.ones((1, 20)); a = np.array
    >>> float(observability(one, one, a([.1]), a([.1]), a([.025]), a([0.]), a([400.]), a([500.]), a([400.]))[0][0])
    0.8
    """
    # A counter that refreshes every 10 ms gives an interval one refresh too many or too few: that is no modulation.
    modulated = variation(traffic) ** 2 > MODULATED**2 + 0.5 * (_COUNTER_REFRESH_S / length_s) ** 2
    out = grain(tau, length_s, window_s)
    for g, row in enumerate(traffic):
        if modulated[g]:
            out[g] = min(out[g], survival(row, step_s[g], length_s[g], window_s[g]))
        elif x[g] >= 0.05:
            out[g] = 0.6
        elif window_s[g] >= SLOW_WINDOW_S:
            out[g] = 0.5 if step_s[g] <= _FAST_POLLS_S else 0.45
        elif high[g] < 0.5 * limit_watts[g] and not seen[g] > 1.1 * high[g]:
            out[g] = 0.4
        else:
            out[g] = 0.8 if window_s[g] <= 0.05 else 0.6
    return out, modulated
