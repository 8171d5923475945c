"""Resolved rhythms: exposed communication where readings hold either compute or communication, not a mixture.

Called by the routes, for all GPUs at once. Lack of compute and presence of traffic are compared reading by reading, with a
wide dead zone that swallows ripple. Finer rhythms than the readings it would call overlapped: that is for the routes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.signals import levels, overlap

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything [g] unless said otherwise; NaN where there is no traffic to judge."""

    exposed: Array
    low: Array
    high: Array
    communication: Array
    stall: Array  # NaN without utilisation
    noncompute: Array
    lack: Array  # [g, n]
    tau: Array  # [g, n]
    power_low: Array  # W
    power_high: Array  # W


def resolved(power: Array, top: Array, utilization: Array, tau: Array, on: NDArray[np.bool_], r: Array, remembered: Array,
             floor: Array, step_s: Array, fine_presence: Array, fine_tau: Array, fine_step_s: Array,
             fine_length_s: Array) -> Resolved:  # fmt: skip
    """Shares of a rhythm that the readings resolve.

    power, utilization, tau, on [g, n] (presence of traffic, soft and plain), fine_presence and fine_tau (soft) [g, m]; top
    q95 of power, r correlation, remembered and floor [g] W of the compute level, step_s and the rest [g]. O(n).
    """
    p_low, p_high = levels.power_levels(power, on, np.fmax(remembered, floor / levels.MEMORY_SHARE), top)
    lack = levels.deficit(power, p_low, p_high)
    has_traffic = np.asarray(~np.isnan(tau).all(axis=-1))
    paired = np.where(has_traffic[:, None] & np.isnan(tau), np.nan, lack)
    noncompute = overlap.mean(paired)
    raw_x = overlap.exposed(paired, tau)
    low, high = overlap.exposed_bounds(paired, tau, step_s)
    likely_x = overlap.settle(raw_x, high, r)
    given_x, given_low = np.where(has_traffic, likely_x, 0.0), np.where(has_traffic, low, 0.0)
    x, stall, _ = overlap.split(given_x, given_low, noncompute, overlap.mean(utilization))
    x = np.where(has_traffic, x, np.nan)
    raw_c = overlap.communication(fine_presence, fine_tau, fine_step_s, fine_length_s)
    return Resolved(x, np.fmin(low, x), np.fmax(high, x), np.fmax(raw_c, x), stall, noncompute, lack, tau, p_low, p_high)
