"""Shares: one window of readings as shares of time, for all GPUs at once; numbers only.

Called by the analysis. Power gives the deficit of compute, bytes the presence of communication, both between levels of
this very window and the remembered compute level. What the numbers allow to say is decided in `verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter import routes
from exporter.readings import Readings
from exporter.signals import correlation, levels, observability, overlap
from exporter.signals.levels import Ordered
from exporter.traffic import Bytes, traffic_of

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
    resolved: Array  # 0 to 1: how far a resolved rhythm, not bounds on mixtures, gave the answer
    modulated: Mask
    window_s: Array  # of the power sensor
    raw_exposed: Array  # of lack and tau, reading by reading
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
    count = overlap.counted(inside & ~np.isnan(power))
    run = inside & ~idle & ~np.isnan(power)
    running = overlap.counted(run) / np.maximum(count, 1)
    power = np.where(run, power, np.nan)
    traffic = np.where(run, readings.traffic[..., n:], np.nan)
    fine = _inside(readings.fine, readings.fine_t, idle, t, start_s, end_s)

    fine_ordered = levels.ordered(fine)
    low, high = levels.traffic_levels(fine_ordered)
    loud = _loud(readings, power, traffic, high)
    scaled = _loudest(levels.presence(traffic, low, high), loud)
    tau = levels.soft_presence(scaled)
    has_fabric: Mask = np.asarray((~np.isnan(readings.floor)).any(axis=0))
    known = overlap.counted(~np.isnan(np.where(has_fabric[:, None], traffic.sum(axis=0), np.nan)))
    has_traffic = has_fabric & (known >= MIN_COVERAGE * overlap.counted(run)) & (known > 0)
    tau = np.where(has_traffic[:, None], tau, np.nan)

    window_of = np.array([s.window_s for s in readings.sensors])
    beside, flow = scaled_flow(traffic, high, loud), scaled_flow(fine, high, loud)
    r = correlation.pearson(power, beside)
    fine_scaled = _loudest(levels.presence(fine, low, high), loud)
    pair, tile_traffic, busy_tiles, active_tiles = (
        _inside(x, t_of, idle, t, start_s, end_s)
        for x, t_of in ((readings.pair, readings.pair_t),
                        (readings.tile_traffic, readings.tile_t), (readings.kernel_busy, readings.tile_t),
                        (readings.sm_activity, readings.tile_t))
    )  # fmt: skip
    seen_bytes = Bytes(beside=traffic, fine=fine, fine_ordered=fine_ordered, pair=pair, tiles=tile_traffic,
                       line=readings.line, loud=loud, step_s=readings.fine_step_s, length_s=readings.fine_length_s)  # fmt: skip
    flowing = traffic_of(seen_bytes, low, high)
    tile_t = readings.tile_t[:, _columns(readings.tile_t, start_s) :]
    with np.errstate(invalid="ignore"):
        on = (scaled > overlap.ON) & has_traffic[:, None]
        flat_traffic = correlation.variation(beside) < routes.FLAT_TRAFFIC
    said, first = routes.judge(routes.Window(
        t=t, power=power, utilization=np.where(run, busy, np.nan), soft=tau, on=on, fine=fine_scaled, traffic=flowing,
        tiles=routes.Tiles(t=tile_t, kernel_busy=busy_tiles, sm_activity=active_tiles, presence=flowing.tiles),
        correlation=r, flat_traffic=flat_traffic, limit_watts=limit_watts, remembered=remembered, window_s=window_of,
        step_s=readings.step_s, fine_step_s=readings.fine_step_s, fine_length_s=readings.fine_length_s))  # fmt: skip

    visible, modulated = observability.observability(
        flow, levels.soft_presence(fine_scaled), readings.fine_step_s, readings.fine_length_s, window_of, first.exposed,
        first.power_high, limit_watts, seen)  # fmt: skip
    visible = routes.observability(visible, said, window_of)
    band = levels.quantiles(power, _ALL)
    only = Ordered(fine_ordered.values[0], fine_ordered.known[0]) if len(fine) == 1 else None
    together = only or levels.ordered(fine.sum(axis=0))
    x = np.where(has_traffic, said.exposed, np.nan)
    told = np.where(has_traffic[:, None], said.tau, np.nan)
    lack = np.where(has_traffic[:, None], said.lack, first.lack)
    gap = np.where(has_traffic | said.measured, said.gap, first.noncompute - overlap.or_zero(first.stall))
    stall = np.where(has_traffic | said.measured, said.stall, first.stall)
    return Shares(
        covered_s=count * readings.step_s, readings=count, running=running, has_fabric=has_fabric, has_traffic=has_traffic,
        communicates=has_traffic & loud.any(axis=0) & (said.communication >= 0.01),
        exposed=x, low=np.fmin(said.low, x), high=np.fmax(said.high, x), communication=np.fmax(said.communication, x),
        noncompute=gap + overlap.or_zero(stall), stall=stall, wait=np.maximum(0.0, gap - overlap.or_zero(x)), correlation=r,
        anticorrelation=correlation.anticorrelation(r, first.power_low, first.power_high, band[0]),
        observability=visible, resolved=said.resolved, modulated=modulated, window_s=window_of,
        raw_exposed=overlap.exposed(lack, told), raw_tau=overlap.mean(told),
        compute_watts=band[2], power_low=first.power_low, power_high=first.power_high, power_band=band,
        traffic_band=np.where(has_fabric, together.quantiles(_ALL), np.nan),
        t=t, lack=lack, tau=told, power=readings.power[:, n:], run=run, flow=flow,
    )  # fmt: skip


def scaled_flow(traffic: Array, high: Array, loud: Mask) -> Array:
    """Traffic of the loud fabrics as shares of their high levels, the larger at each instant. [f, g, n] to [g, n]."""
    return _loudest(levels.presence(traffic, 0.0 * high, high), loud)


def _loudest(scaled: Array, loud: Mask) -> Array:
    """The larger presence of the loud fabrics at each instant; NaN where one of them is missing. [f, g, n] to [g, n]."""
    if len(scaled) == 0:
        return np.zeros(scaled.shape[1:])
    audible = scaled if loud.all() else np.where(loud[..., None], scaled, 0.0)
    return np.asarray(audible.max(axis=0)) if len(audible) > 1 else audible[0]


def _columns(t: Array, start_s: float) -> int:
    """The first column that holds a reading of the window in any row."""
    with np.errstate(invalid="ignore"):
        later = (t > start_s).any(axis=0)
    return int(np.argmax(later)) if later.any() else t.shape[-1]


def _inside(values: Array, t: Array, idle: Mask, idle_t: Array, start_s: float, end_s: float) -> Array:
    """Values of the window and of the job's time, [..., g, m]; t [g, m]; idle [g, n] at idle_t."""
    m = _columns(t, start_s)
    t = t[:, m:]
    with np.errstate(invalid="ignore"):
        inside = (t > start_s) & (t <= end_s)
    for g in np.flatnonzero(idle.any(axis=-1)):
        known = ~np.isnan(idle_t[g])
        inside[g] &= np.interp(t[g], idle_t[g, known], idle[g, known].astype(float)) < 0.5
    return np.where(inside, values[..., m:], np.nan)
