"""Pairing bounds: what share of traffic meets a lack of compute, when a reading mixes both and cannot pair them.

Called by the routes, arrays [..., n]. Within a reading, lack D and traffic tau may lie on top of each other (min), apart,
or as chance has it (the product). `together` is exact for jobs whose gaps are their transfers, `independent` for traffic
that is hidden at random; the likely value leans on the first. Never decides which of them a job is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exporter.signals.duty import ramp
from exporter.signals.overlap import mean, or_zero, to_unit

Array = NDArray[np.float64]

NARROW, WIDE = (0.05, 0.9), (0.3, 0.4)  # dead zone and span of the deficit: a wide one swallows small deficits of mixtures
_ANY = 0.05  # of a reading with a kernel, at least
_STALLED, _STALLED_SPAN = 0.2, 0.3  # share of time without a kernel: what is left beside much of it is noise


def deficit(power: Array, low: Array, high: Array, zone: tuple[float, float] = NARROW) -> Array:
    """D, 0 to 1: the share of a reading without compute, power [..., n] between levels [...] W, less a dead zone.

    >>> deficit(np.array([500.0, 350.0, 200.0]), np.array(200.0), np.array(500.0)).round(2).tolist()
    [0.0, 0.5, 1.0]
    """
    span = np.maximum(high - low, 1e-9)[..., None]
    return to_unit(((high[..., None] - power) / span - zone[0]) / zone[1])


def busy_deficit(power: Array, low: Array, high: Array, idle: Array, still: Array) -> Array:
    """D of the time with a kernel, 0 to 1: the share of that time without compute.

    A transfer needs a kernel, so chance places it within that time alone. power [..., n] W; power of a lone transfer, of
    compute and of an idle board [...] W; still [..., n] share of a reading without a kernel. O(n).

    >>> a = np.array
    >>> busy_deficit(a([300.0, 150.0, 450.0]), a(200.0), a(500.0), a(100.0), a([0.5, 0.5, 0.0])).round(2).tolist()
    [0.0, 1.0, 0.13]
    """
    return np.minimum(deficit(filled(power, high, idle, still), low, high) / np.maximum(1 - still, _ANY), 1.0)


def filled(power: Array, high: Array, idle: Array, still: Array) -> Array:
    """Power [..., n] W as if compute had run in the time without a kernel too; the rest as in `busy_deficit`.

    >>> filled(np.array([300.0, 500.0]), np.array(500.0), np.array(100.0), np.array([0.5, 0.0])).tolist()
    [500.0, 500.0]
    """
    out: Array = power + still * np.maximum(high - idle, 0.0)[..., None]
    return out


def tellable(still: Array, stall: Array) -> Array:
    """Share of each reading [..., n] without a kernel, as far as power can tell it from exposed transfers.

    All of it in a job that stalls little; none in one that stalls half of the time [...] or more: utilisation and power cover
    different stretches, and what one leaves of the other is then noise.

    >>> tellable(np.full((3, 1), 0.4), np.array([0.1, 0.35, 0.6])).round(2).ravel().tolist()
    [0.4, 0.2, 0.0]
    """
    return still * (1 - ramp(stall, _STALLED, _STALLED_SPAN))[..., None]


def neighbours(x: Array) -> Array:
    """Mean of each reading with the one before and the one after, of those that exist; NaN stays NaN. [..., n]. O(n).

    >>> neighbours(np.array([0.0, 3.0, np.nan, 1.0])).tolist()
    [1.5, 1.5, nan, 1.0]
    """
    known = ~np.isnan(x)
    filled, weight = np.where(known, x, 0.0), known.astype(float)
    total, count = filled.copy(), weight.copy()
    for into, part in ((total, filled), (count, weight)):
        into[..., 1:] += part[..., :-1]
        into[..., :-1] += part[..., 1:]
    return np.where(known, total / np.maximum(count, 1.0), np.nan)


def together(lack: Array, tau: Array, smooth: Array) -> Array:
    """Exposed share of traffic if gaps and traffic lie on top of each other within a reading, 0 to 1.

    The mean of readings taken one by one and of three in a row, for a power window and a byte interval do not cover the
    same stretch. lack, tau [..., n], smooth is `neighbours` of tau; [...]. O(n).

    >>> lack, tau = np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.5, 0.5, 0.5, 0.5])
    >>> float(together(lack, tau, neighbours(tau)).round(3))
    0.583
    """
    both = np.minimum(lack, tau) + np.minimum(neighbours(lack), smooth)
    return or_zero(mean(both)) / 2 / np.maximum(or_zero(mean(tau)), 1e-9)


def independent(lack: Array, tau: Array) -> Array:
    """Exposed share of traffic if chance places gaps and traffic within a reading, 0 to 1. O(n).

    >>> float(independent(np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.5, 0.5, 0.5, 0.5])))
    0.5
    """
    return or_zero(mean(lack * tau)) / np.maximum(or_zero(mean(tau)), 1e-9)


def likely(whole: Array, chance: Array) -> Array:
    """Two parts `together`, one part `independent`: a prior on how jobs behave inside a reading, not a measurement.

    >>> round(float(likely(np.array(0.9), np.array(0.3))), 3)
    0.7
    """
    return (2 * whole + chance) / 3
