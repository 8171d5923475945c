"""Correlation: the sign and strength of an alternation of power and traffic. Never a share of time, never a lag search.

Called by the analysis; arrays [..., n], NaN = missing reading.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exporter.signals.overlap import counted, dot, moments, to_unit, zeroed

Array = NDArray[np.float64]

_FLAT_POWER, _FLAT_TRAFFIC = 0.05, 0.10  # standard deviation as a share of the mean


def variation(x: Array) -> Array:
    """Standard deviation as a share of the mean, along the last axis; NaN for an empty row, 0 where the mean is 0.

    >>> float(variation(np.array([1.0, 3.0])))
    0.5
    """
    middle, variance = moments(x)
    return np.where(middle > 0, np.sqrt(variance) / np.where(middle > 0, middle, 1.0), 0.0 * middle)


def pearson(power: Array, traffic: Array, swings: tuple[Array, Array] | None = None) -> Array:
    """Correlation of power and traffic (Pearson, 1895), -1 to 1; NaN where either is flat.

    Flat is a standard deviation below 5 % of the mean for power, 10 % for traffic: beyond that it would be the
    correlation of noise. power, traffic [..., n], readings where both are known count; swings: their variation [...], where
    it is known already; [...]. O(n).

    >>> float(pearson(np.array([400.0, 100.0, 400.0, 100.0]), np.array([0.0, 9.0, 0.0, 9.0])))
    -1.0
    >>> float(pearson(np.array([400.0, 401.0, 400.0]), np.array([0.0, 9.0, 0.0])))
    nan
    """
    of_power, of_traffic = swings or (variation(power), variation(traffic))
    with np.errstate(invalid="ignore"):
        flat = ~((of_power >= _FLAT_POWER) & (of_traffic >= _FLAT_TRAFFIC))
    if flat.all():
        return np.full(flat.shape, np.nan)
    missing = np.isnan(power) | np.isnan(traffic)
    count = np.maximum(missing.shape[-1] - counted(missing), 1)[..., None]
    p, q = (zeroed(x, missing) for x in (power, traffic))
    p, q = (zeroed(x - x.sum(axis=-1, keepdims=True) / count, missing) for x in (p, q))
    scale = np.sqrt(dot(p, p) * dot(q, q))
    flat |= ~(scale > 0)
    return np.where(flat, np.nan, np.clip(dot(p, q) / np.where(flat, 1.0, scale), -1.0, 1.0))


def anticorrelation(r: Array, low: Array, high: Array, bottom: Array) -> Array:
    """Strength of the alternation, 0 to 1: max(0, -r) times the swing of power; 0 where either signal is flat. [...].

    low, high levels of power, bottom its q05, W.

    >>> float(anticorrelation(np.array(-0.8), np.array(100.0), np.array(400.0), np.array(250.0)))
    0.4
    """
    swing = to_unit((high - bottom) / np.maximum(high - low, 1e-9))
    return np.where(np.isnan(r), 0.0, np.maximum(0.0, -r)) * swing
