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
from exporter.traffic import Bytes, audible, loudest, traffic_of

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


def _loud(readings: Readings, power: Array, band: Array, traffic: Array, high: Array) -> Mask:
    """[f, g]: fabrics that carry communication: above the floor, or alternating with power that clearly falls."""
    with np.errstate(invalid="ignore"):
        loud = np.asarray(high >= readings.floor)
        quiet = ~loud & (high >= _QUIET_FLOOR * readings.floor)
        if quiet.any():
            bottom, _, top = band
            falls = bottom < _QUIET_POWER * top
            r = correlation.pearson(np.broadcast_to(power, traffic.shape), traffic)
            loud |= quiet & falls & (r <= _QUIET_CORRELATION)
    return loud


def shares_of(readings: Readings, idle_s: Array, remembered: Array, seen: Array, limit_watts: Array,
              end_s: float, window_s: float) -> Shares:  # fmt: skip
    """The window (end_s - window_s, end_s]. remembered, seen, limit_watts [g] W, NaN where unknown. O(n)."""
    start_s = end_s - window_s
    n, inside = _window(readings.t, start_s, end_s)
    t, power, busy = readings.t[:, n:], readings.power[:, n:], readings.utilization[:, n:]
    idle = idle_s[:, n:] >= min(IDLE_RUN_S, 0.9 * window_s)
    seen_power = inside & ~np.isnan(power)
    run = seen_power & ~idle
    count, ran = overlap.counted(seen_power), overlap.counted(run)
    power, traffic, busy = (_only(x, run) for x in (power, readings.traffic[..., n:], busy))
    span = _Span(start_s, end_s, t, idle)
    (fine,) = span.cut(readings.fine_t, readings.fine)
    (pair,) = span.cut(readings.pair_t, readings.pair)
    tile_t, tile_traffic, busy_tiles, active_tiles = span.cut(
        readings.tile_t, readings.tile_t, readings.tile_traffic, readings.kernel_busy, readings.sm_activity
    )

    band = levels.quantiles(power, _ALL)
    low, high = levels.traffic_levels(fine)
    loud = _loud(readings, power, band, traffic, high)
    scaled, fine_scaled = (loudest(audible(levels.presence(x, low, high), loud)) for x in (traffic, fine))
    tau, fine_tau = levels.soft_presence(scaled), levels.soft_presence(fine_scaled)
    has_fabric: Mask = np.asarray((~np.isnan(readings.floor)).any(axis=0))
    known = traffic.shape[-1] - overlap.counted(np.isnan(traffic.sum(axis=0)))
    has_traffic = has_fabric & (known >= MIN_COVERAGE * ran) & (known > 0)
    tau = tau if has_traffic.all() else np.where(has_traffic[:, None], tau, np.nan)

    window_of = np.array([s.window_s for s in readings.sensors])
    beside, flow = scaled_flow(traffic, high, loud), scaled_flow(fine, high, loud)
    swings = correlation.variation(power), correlation.variation(beside)
    r = correlation.pearson(power, beside, swings)
    seen_bytes = Bytes(beside=traffic, fine=fine, pair=pair, tiles=tile_traffic, line=readings.line, loud=loud,
                       step_s=readings.fine_step_s, length_s=readings.fine_length_s)  # fmt: skip
    flowing = traffic_of(seen_bytes, low, high)
    with np.errstate(invalid="ignore"):
        on = (scaled > overlap.ON) & has_traffic[:, None]
        flat_power, flat_traffic = swings[0] < routes.FLAT_POWER, swings[1] < routes.FLAT_TRAFFIC
    said, first = routes.judge(routes.Window(
        t=t, power=power, top_watts=band[2], utilization=busy, soft=tau, on=on, fine=fine_scaled, fine_soft=fine_tau,
        traffic=flowing, correlation=r, flat_power=flat_power, flat_traffic=flat_traffic, limit_watts=limit_watts,
        tiles=routes.Tiles(t=tile_t, kernel_busy=busy_tiles, sm_activity=active_tiles, presence=flowing.tiles),
        remembered=remembered, window_s=window_of, step_s=readings.step_s, fine_step_s=readings.fine_step_s,
        fine_length_s=readings.fine_length_s))  # fmt: skip

    visible, modulated = observability.observability(
        flow, fine_tau, readings.fine_step_s, readings.fine_length_s, window_of, first.exposed,
        first.power_high, limit_watts, seen)  # fmt: skip
    visible = routes.observability(visible, said, window_of)
    together = fine[0] if len(fine) == 1 else fine.sum(axis=0)
    x = np.where(has_traffic, said.exposed, np.nan)
    told = np.where(has_traffic[:, None], said.tau, np.nan)
    lack = np.where(has_traffic[:, None], said.lack, first.lack)
    gap = np.where(has_traffic | said.measured, said.gap, first.noncompute - overlap.or_zero(first.stall))
    stall = np.where(has_traffic | said.measured, said.stall, first.stall)
    return Shares(
        covered_s=count * readings.step_s, readings=count, running=ran / np.maximum(count, 1), has_fabric=has_fabric,
        has_traffic=has_traffic, communicates=has_traffic & loud.any(axis=0) & (said.communication >= 0.01),
        exposed=x, low=np.fmin(said.low, x), high=np.fmax(said.high, x), communication=np.fmax(said.communication, x),
        noncompute=gap + overlap.or_zero(stall), stall=stall, wait=np.maximum(0.0, gap - overlap.or_zero(x)), correlation=r,
        anticorrelation=correlation.anticorrelation(r, first.power_low, first.power_high, band[0]),
        observability=visible, resolved=said.resolved, modulated=modulated, window_s=window_of,
        raw_exposed=overlap.exposed(lack, told), raw_tau=overlap.mean(told),
        compute_watts=band[2], power_low=first.power_low, power_high=first.power_high, power_band=band,
        traffic_band=np.where(has_fabric, levels.quantiles(together, _ALL), np.nan),
        t=t, lack=lack, tau=told, power=readings.power[:, n:], run=run, flow=flow,
    )  # fmt: skip


def scaled_flow(traffic: Array, high: Array, loud: Mask) -> Array:
    """Traffic of the loud fabrics as shares of their high levels, the larger at each instant. [f, g, n] to [g, n]."""
    return loudest(audible(levels.presence(traffic, 0.0 * high, high), loud))


def _only(values: Array, wanted: Mask) -> Array:
    """Values [..., n] where they are wanted [g, n], NaN elsewhere."""
    return values if wanted.all() else np.where(wanted, values, np.nan)


def _window(t: Array, start_s: float, end_s: float) -> tuple[int, Mask]:
    """The first column that holds a reading of the window in any row, and which from there on do, [g, n].

    t [g, m] ascends in each row, NaN in front.
    """
    with np.errstate(invalid="ignore"):
        later = t > start_s
        n = t.shape[-1] - int(overlap.counted(later).max(initial=0))
        return n, later[:, n:] & (t[:, n:] <= end_s)


@dataclass(frozen=True, slots=True)
class _Span:
    """The window (start_s, end_s] and which of its power readings, at t [g, n], are not the job's time."""

    start_s: float
    end_s: float
    t: Array
    idle: Mask

    def cut(self, t: Array, *values: Array) -> list[Array]:
        """Of each of the values [..., g, m] at t [g, m] what lies in the window and in the job's time; NaN elsewhere."""
        m, inside = _window(t, self.start_s, self.end_s)
        for g in np.flatnonzero(self.idle.any(axis=-1)):
            known = ~np.isnan(self.t[g])
            inside[g] &= np.interp(t[g, m:], self.t[g, known], self.idle[g, known].astype(float)) < 0.5
        return [_only(x[..., m:], inside) for x in values]
