"""Shares: one window of readings as shares of time, for all GPUs at once; numbers only.

Called by the analysis. Power gives the deficit of compute, bytes the presence of communication, both between levels of
this very window and the remembered compute level. What the numbers allow to say is decided in `verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.readings import Readings
from exporter.signals import correlation, levels, observability, overlap

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

IDLE_RUN_S = 15.0  # so long without kernel and traffic is not the job's time
_IDLE_UTILIZATION = 0.05
_IDLE_OF_LIMIT = 0.2  # without utilisation: power below this share of the limit
_QUIET_CORRELATION, _QUIET_POWER, _QUIET_FLOOR = -0.5, 0.6, 0.01  # traffic below the floor that is a job's all the same
MIN_READINGS, MIN_COVERAGE = 10, 0.5
_ALL = (0.05, 0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Shares:
    """Everything [g] unless said otherwise; NaN where it does not exist. `power`, `lack`, `tau`, `run` belong to `t` [g, n]."""

    covered_s: Array  # of the window, with power
    readings: NDArray[np.intp]
    running: Array
    has_fabric: Mask  # some linked device gives bytes
    has_traffic: Mask  # bytes cover at least half of the power readings
    communicates: Mask
    exposed: Array
    low: Array
    high: Array
    communication: Array
    noncompute: Array
    stall: Array
    wait: Array
    correlation: Array
    anticorrelation: Array
    observability: Array
    modulated: Mask
    raw_exposed: Array  # before the cap by time without a kernel
    raw_tau: Array
    compute_watts: Array  # high level of this window alone
    power_low: Array  # level, W
    power_high: Array  # level, W
    power_band: Array  # [3, g]
    traffic_band: Array  # [3, g]
    t: Array
    lack: Array
    tau: Array
    power: Array
    run: Mask  # the reading belongs to the job's time
    flow: Array  # [g, m] traffic at the finest intervals, 1 at its high level; the last m of the readings' fine_t


def idle_seconds(readings: Readings, limit_watts: Array) -> Array:
    """For each power reading the length of the idle run that it belongs to, [g, n] s; 0 in the job's time.

    Idle is utilisation below 5 % (without utilisation: power below a fifth of the limit) and no fabric above its floor.
    """
    with np.errstate(invalid="ignore"):
        still = np.where(
            np.isnan(readings.utilization),
            readings.power < _IDLE_OF_LIMIT * limit_watts[:, None],
            readings.utilization < _IDLE_UTILIZATION,
        )
        still &= ~(readings.traffic >= readings.floor[..., None]).any(axis=0)
    out = np.zeros(still.shape)
    for g in np.flatnonzero(still.any(axis=-1)):
        known = ~np.isnan(readings.t[g])
        out[g, known] = levels.run_seconds(readings.t[g, known], still[g, known], readings.step_s[g])
    return out


def _loud(readings: Readings, power: Array, traffic: Array, high: Array) -> Mask:
    """[f, g]: fabrics that carry communication: above the floor, or alternating with power that clearly falls."""
    with np.errstate(invalid="ignore"):
        loud = np.asarray(high >= readings.floor)
        quiet = ~loud & (high >= _QUIET_FLOOR * readings.floor)
        if quiet.any():
            bottom, _, top = levels.quantiles(power, _ALL)
            falls = bottom < _QUIET_POWER * top
            r = correlation.pearson(np.broadcast_to(power, traffic.shape), traffic)
            loud |= quiet & falls & (r <= _QUIET_CORRELATION)
    return loud


def shares_of(readings: Readings, idle_s: Array, remembered: Array, seen: Array, limit_watts: Array,
              end_s: float, window_s: float) -> Shares:  # fmt: skip
    """The window (end_s - window_s, end_s]. remembered, seen, limit_watts [g] W, NaN where unknown. O(n log n)."""
    start_s = end_s - window_s
    n = _columns(readings.t, start_s)
    t, power, busy = readings.t[:, n:], readings.power[:, n:], readings.utilization[:, n:]
    with np.errstate(invalid="ignore"):
        inside = (t > start_s) & (t <= end_s)
    idle = idle_s[:, n:] >= min(IDLE_RUN_S, 0.9 * window_s)
    count = np.count_nonzero(inside & ~np.isnan(power), axis=-1)
    run = inside & ~idle & ~np.isnan(power)
    running = np.count_nonzero(run, axis=-1) / np.maximum(count, 1)
    power = np.where(run, power, np.nan)
    traffic = np.where(run, readings.traffic[..., n:], np.nan)
    fine = _fine(readings, idle, t, start_s, end_s)

    low, high = levels.traffic_levels(fine)
    loud = _loud(readings, power, traffic, high)
    scaled = _loudest(levels.presence(traffic, low, high), loud)
    tau = levels.soft_presence(scaled)
    has_fabric: Mask = np.asarray((~np.isnan(readings.floor)).any(axis=0))
    known = np.count_nonzero(~np.isnan(np.where(has_fabric[:, None], traffic.sum(axis=0), np.nan)), axis=-1)
    has_traffic = has_fabric & (known >= MIN_COVERAGE * np.count_nonzero(run, axis=-1)) & (known > 0)
    tau = np.where(has_traffic[:, None], tau, np.nan)

    with np.errstate(invalid="ignore"):
        on: Mask = np.asarray(scaled > overlap.ON)
    p_low, p_high = levels.power_levels(power, on & has_traffic[:, None], remembered)
    lack = levels.deficit(power, p_low, p_high)
    paired = np.where(has_traffic[:, None] & np.isnan(tau), np.nan, lack)
    noncompute = overlap.mean(paired)
    raw_x = overlap.exposed(paired, tau)
    bound_low, bound_high = overlap.exposed_bounds(paired, tau, readings.step_s)
    utilization = overlap.mean(np.where(run, busy, np.nan))
    r = correlation.pearson(power, scaled_flow(traffic, high, loud))
    likely_x = overlap.settle(raw_x, bound_high, r)
    given_x, given_low = np.where(has_traffic, likely_x, 0.0), np.where(has_traffic, bound_low, 0.0)
    x, stall, wait = overlap.split(given_x, given_low, noncompute, utilization)
    x = np.where(has_traffic, x, np.nan)
    fine_scaled = _loudest(levels.presence(fine, low, high), loud)
    fine_tau = levels.soft_presence(fine_scaled)
    raw_c = overlap.communication(fine_scaled, fine_tau, readings.fine_step_s, readings.fine_length_s)
    c = np.fmax(raw_c, x)

    band = levels.quantiles(power, _ALL)
    flow = scaled_flow(fine, high, loud)
    visible, modulated = observability.observability(
        flow, fine_tau, readings.fine_step_s, readings.fine_length_s,
        np.array([s.window_s for s in readings.sensors]), x, p_high, limit_watts, seen)  # fmt: skip
    return Shares(
        covered_s=count * readings.step_s, readings=count, running=running, has_fabric=has_fabric, has_traffic=has_traffic,
        communicates=has_traffic & loud.any(axis=0) & (c >= 0.01),
        exposed=x, low=np.fmin(bound_low, x), high=np.fmax(bound_high, x), communication=c, noncompute=noncompute,
        stall=stall, wait=wait, correlation=r,
        anticorrelation=correlation.anticorrelation(r, p_low, p_high, band[0]),
        observability=visible, modulated=modulated, raw_exposed=raw_x, raw_tau=overlap.mean(tau),
        compute_watts=band[2], power_low=p_low, power_high=p_high, power_band=band,
        traffic_band=levels.quantiles(np.where(has_fabric[:, None], fine.sum(axis=0), np.nan), _ALL),
        t=t, lack=lack, tau=tau, power=readings.power[:, n:], run=run, flow=flow,
    )  # fmt: skip


def scaled_flow(traffic: Array, high: Array, loud: Mask) -> Array:
    """Traffic of the loud fabrics as shares of their high levels, the larger at each instant. [f, g, n] to [g, n]."""
    return _loudest(levels.presence(traffic, 0.0 * high, high), loud)


def _loudest(scaled: Array, loud: Mask) -> Array:
    """The larger presence of the loud fabrics at each instant; NaN where one of them is missing. [f, g, n] to [g, n]."""
    if len(scaled) == 0:
        return np.zeros(scaled.shape[1:])
    out: Array = np.where(loud[..., None], scaled, 0.0).max(axis=0)
    return out


def _columns(t: Array, start_s: float) -> int:
    """The first column that holds a reading of the window in any row."""
    with np.errstate(invalid="ignore"):
        later = (t > start_s).any(axis=0)
    return int(np.argmax(later)) if later.any() else t.shape[-1]


def _fine(readings: Readings, idle: Mask, t: Array, start_s: float, end_s: float) -> Array:
    """Traffic at the finest intervals within the window and the job's time, [f, g, m]."""
    m = _columns(readings.fine_t, start_s)
    fine_t = readings.fine_t[:, m:]
    with np.errstate(invalid="ignore"):
        inside = (fine_t > start_s) & (fine_t <= end_s)
    for g in np.flatnonzero(idle.any(axis=-1)):
        known = ~np.isnan(t[g])
        inside[g] &= np.interp(fine_t[g], t[g, known], idle[g, known].astype(float)) < 0.5
    return np.where(inside, readings.fine[..., m:], np.nan)
