"""Mixtures: exposed communication from readings of power that hold compute, communication and waiting at once.

Called by the routes, for all GPUs at once. Power says how much of a reading is without compute, bytes how much of it has
traffic; how the two lie to each other inside the reading is bounded (`signals/pairing_bounds`), and so are the compute
level and the duty of traffic. The answer is the likely value between these bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.signals import levels, pairing_bounds
from exporter.signals.compute_level import ComputeLevel, compute_level
from exporter.signals.duty import Duty, scaled_to
from exporter.signals.overlap import counted, mean, or_zero

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_IDLE_UTILIZATION, _IDLE_OF_LIMIT = 0.05, 0.2
_TRANSFER, _TRANSFER_LOWEST, _TRANSFER_HIGHEST = 0.42, 0.30, 0.55  # power of a lone transfer, of the compute level
_TRANSFER_SEEN = 0.58  # of the compute level: readings full of traffic above this hold compute as well
_FULL = 0.85
_SHORT = 0.01  # utilisation of a busy GPU reads that much below 1
_GAP_POLLED, _GAP_PAIRED = 0.03, 0.05  # by which the gap may be too small
_DECIDES, _REACH, _MARGIN, _FEW = 1.0, 1.6, 0.04, 0.004  # bounds: times the half ranges, plus; the last over the duty


@dataclass(frozen=True, slots=True)
class Mixtures:
    """Exposed share of traffic (of its time) and its bounds, with shares of running time beside it. [g], and [g, n]."""

    exposed: Array
    low: Array
    high: Array
    width: Array  # of the bounds, as it decides about an answer
    communication: Array
    stall: Array
    gap: Array  # time with a kernel and without compute, as mean power has it
    watts: Array  # compute level
    lowest_watts: Array  # that the compute level can have: 0 where readings of this window show it
    depth: Array  # [g, n] of power below the compute level: 0 compute, 1 a lone transfer
    lack: Array  # [g, n]
    tau: Array  # [g, n]


def mixtures(t: Array, power: Array, utilization: Array, presence: Array, duty: Duty, polled: Mask, limit_watts: Array,
             remembered: Array) -> Mixtures:  # fmt: skip
    """What readings allow that mix compute and communication.

    t, power, utilization, presence (traffic in units of the burst rate) [g, n]; duty, polled (bytes were not read in
    pairs), limit_watts and remembered compute level [g]. O(n log n).
    """
    flow = np.maximum(presence, 0.0)
    flow = np.where(np.isnan(power), np.nan, flow)
    power = np.where(np.isnan(flow), np.nan, power)
    kernel = np.where(np.isnan(power), np.nan, np.where(np.isnan(utilization), 1.0, utilization))
    c, least = duty.likely, duty.low
    tau, tau_least = scaled_to(flow, c), scaled_to(flow, least)
    bottom, high = levels.quantiles(power, (0.02, 0.95))
    idle = idle_watts(power, kernel, bottom, limit_watts)
    found = [_level(*row) for row in zip(t, power, kernel, tau, idle, limit_watts, remembered, high, strict=True)]
    watts, low_watts, high_watts = (np.array([getattr(f, key) for f in found]) for key in ("watts", "low", "high"))
    with np.errstate(invalid="ignore"):
        beside = np.where(tau > _FULL, power, np.nan)
    few = counted(~np.isnan(beside)) < 5
    alone = np.where(few, np.nan, levels.quantiles(beside, (0.10,))[0])
    stall = np.maximum(0.0, 1 - np.nan_to_num(mean(kernel), nan=1.0) - _SHORT)
    still = np.clip(1 - kernel - _SHORT, 0.0, np.maximum(0.0, 1 - tau))
    middle = or_zero(mean(power))

    def transfer(high: Array) -> Array:
        with np.errstate(invalid="ignore"):
            level = np.where(alone < _TRANSFER_SEEN * high, alone, _TRANSFER * high)
        return np.asarray(np.clip(level, _TRANSFER_LOWEST * high, _TRANSFER_HIGHEST * high), np.float64)

    def gap(high: Array) -> Array:
        spread = np.maximum(high - transfer(high), 1e-9)
        return np.asarray(np.maximum(0.0, (high * (1 - stall) + idle * stall - middle) / spread), np.float64)

    def within(e: Array, high: Array, share: Array) -> Array:
        """Exposed share of traffic that fits into the gap, and no more of the duty than is known."""
        room = gap(high)
        ceiling = np.where(polled, room + _GAP_POLLED + 0.1 * np.maximum(0.0, 1 - stall - room), room + _GAP_PAIRED)
        unknown = np.maximum(np.minimum(e * share, room), e * duty.least)
        x = np.minimum(duty.known * e * share + (1 - duty.known) * unknown, ceiling)
        return np.minimum(1.0, x / np.maximum(share, 1e-9))

    def by_chance(low: Array, high: Array) -> Array:
        return pairing_bounds.independent(pairing_bounds.busy_deficit(power, low, high, idle, still), tau)

    lone, smooth = transfer(watts), pairing_bounds.neighbours(tau)
    ran = pairing_bounds.filled(power, watts, idle, pairing_bounds.tellable(still, stall))
    whole = pairing_bounds.together(pairing_bounds.deficit(ran, lone, watts), tau, smooth)
    chance = by_chance(lone, watts)
    e = within(pairing_bounds.likely(whole, chance), watts, c)
    most_lack = pairing_bounds.deficit(power, transfer(high_watts), high_watts)
    least_whole = pairing_bounds.together(most_lack, tau_least, pairing_bounds.neighbours(tau_least))
    wide_whole = pairing_bounds.together(pairing_bounds.deficit(ran, lone, watts, pairing_bounds.WIDE), tau, smooth)
    low_chance = by_chance(transfer(low_watts), low_watts)
    others = np.stack([e, within(whole, watts, c), within(chance, watts, c), within(least_whole, high_watts, least),
                       within(wide_whole, watts, c), within(low_chance, low_watts, c)])  # fmt: skip
    below, above = others.min(axis=0), others.max(axis=0)
    margin = _MARGIN + _FEW / np.maximum(c, 1e-3)
    shown = [{"plain": 0.0, "seen": f.watts, "inferred": f.low}[f.certainty] for f in found]
    return Mixtures(
        exposed=e, low=e - _REACH * (e - below) - margin, high=e + _REACH * (above - e) + margin,
        width=np.minimum(1.0, _DECIDES * (above - below) + 2 * margin), communication=c, stall=stall, gap=gap(watts),
        watts=watts,
        lowest_watts=np.array(shown),
        depth=(watts[:, None] - power) / np.maximum(watts - lone, 1e-9)[:, None],
        lack=pairing_bounds.deficit(power, lone, watts), tau=tau,
    )  # fmt: skip


def idle_watts(power: Array, kernel: Array, bottom: Array, limit_watts: Array) -> Array:
    """Power without a kernel, [g] W: what is read there, or the lowest readings, at most a fifth of the board's limit."""
    with np.errstate(invalid="ignore"):
        off = kernel < _IDLE_UTILIZATION
    out = np.fmin(bottom, _IDLE_OF_LIMIT * limit_watts)
    for g in np.flatnonzero(counted(off) >= 3):
        out[g] = np.median(power[g, off[g]])
    return out


def _level(t: Array, power: Array, kernel: Array, tau: Array, idle: float, limit: float, remembered: float,
           high: float) -> ComputeLevel:  # fmt: skip
    known = ~np.isnan(tau)
    if not known.any():
        return ComputeLevel(np.nan, np.nan, np.nan, "inferred")
    kept = levels.MEMORY_SHARE * remembered
    return compute_level(t[known], power[known], kernel[known], tau[known], float(high), float(idle), float(limit), float(kept))
