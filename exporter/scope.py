"""The scope: what the sensors of one GPU really saw, at full rate, with the phase of each reading and the folded step.

The page and the report draw it; made on request for the GPU that somebody looks at. The levels are those of the minute
that the verdict speaks of, by the very functions of the analysis; the verdict itself is taken as it stands. Pure
functions over what is in memory: no clock, no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporter.model import Device, Inventory, OverlapAnalysis, Series, Snapshot
from exporter.signals import alignment, fold, levels, overlap, rates
from exporter.waveform import Traffic, byte_channels, links_of, numbers, power_of, read_every_s, traffic_of

Array = NDArray[np.float64]

# One letter per reading, in the order of precedence where two are equally likely.
PHASE_LETTERS = {"compute": "c", "overlapped": "o", "exposed": "e", "stall": "s", "wait": "w", "idle": "i", "unknown": "u"}
LONGEST_S = 300.0
_UNKNOWN_WINDOW_S, _UNKNOWN_REFRESH_S = 1.0, 0.1
_STALE_S = 2.5  # an older reading of utilisation says nothing about now
_IDLE_RUN_S, _IDLE_UTILIZATION = 15.0, 0.05
_BUSY = 0.5  # utilisation from here on: a kernel is resident
_SURE = 0.38  # presence at which traffic is as likely there as not (levels.soft_presence is 0.5)
_BINS = 48
_UNJUDGED = ("idle", "no_data", "unobservable")  # states in which levels and rhythm say nothing
_FEWEST_STEPS = 5
_MOST_DOTS = 600


@dataclass(frozen=True, slots=True)
class Readings:
    """Power readings [n] of one GPU at the time that they speak of, and the traffic beside them; NaN = not known."""

    t: Array
    watts: Array
    bytes_per_s: Array  # of the path that the scatter shows
    presence: Array  # of traffic, 0 at its low level, 1 at its high one
    phases: str  # one letter each
    path: str | None
    length_s: float  # that a reading averages over
    lag_s: float  # from the time that a reading speaks of to the time at which it was read, on average
    middle_watts: float  # between computing and waiting; NaN without levels
    middle_bytes_per_s: float  # between traffic and silence; NaN where nothing is sent


def live_json(series: Series, inventory: Inventory, gpu: Device, after_s: tuple[float, float],
              end_s: float) -> tuple[dict[str, Any], tuple[float, float]]:  # fmt: skip
    """What was read of power after after_s[0] and of traffic after after_s[1], up to end_s; and up to where that goes.

    power.t_s, power.watts as read. traffic.t0_s and step_s give the intervals of traffic.<path>: number k ends at
    t0_s + (k + 1) step_s. step_s is the interval at which counters are read, and its grid lies at whole multiples, so that
    answers of different moments fit together.
    """
    links = links_of(inventory, gpu)
    step_s = read_every_s(inventory, links)
    t_s, watts = power_of(series, gpu, after_s[0], end_s)
    first = round(after_s[1] / step_s)
    traffic = traffic_of(series, links, after_s[1], end_s)
    newest_s = min(traffic.newest_s, end_s)
    last = first if math.isnan(newest_s) else max(first, math.floor(newest_s / step_s + 1e-6))
    grid: Array = step_s * np.arange(first, last + 1, dtype=np.float64)
    if last > first:
        grid = np.minimum(grid, newest_s)  # a multiple of the step may lie a rounding behind the last reading
    found = traffic.between(grid[:-1], grid[1:])
    body = {
        "power": {"t_s": numbers(t_s, 3), "watts": numbers(watts, 1)},
        "traffic": {"t0_s": round(first * step_s, 4), "step_s": step_s, **{p: numbers(rate, 0) for p, rate in found.items()}},
    }
    return body, (float(t_s[-1]) if len(t_s) else after_s[0], last * step_s)


def newest_s(series: Series, inventory: Inventory, gpu: Device, after_s: float) -> float:
    """When power or traffic of a GPU was last read after after_s; after_s where it was not."""
    channels = [f"{gpu.id}/power_watts", *(channel for link in links_of(inventory, gpu) for channel in byte_channels(link))]
    times = (series.series(channel, after_s, math.inf)[0] for channel in channels)
    return max((float(t[-1]) for t in times if len(t)), default=after_s)


def scope_json(series: Series, snapshot: Snapshot, gpu: Device, seconds: float) -> dict[str, Any]:
    """All that the scope shows of a GPU when it is opened: the last seconds, and `picture_json`."""
    start_s = snapshot.t_s - min(seconds, LONGEST_S)
    body, _ = live_json(series, snapshot.inventory, gpu, (start_s, start_s), snapshot.t_s)
    return {"gpu": gpu.id, "at_s": snapshot.t_s, **body, "picture": picture_json(series, snapshot, gpu, seconds)}


def picture_json(series: Series, snapshot: Snapshot, gpu: Device, seconds: float | None = None) -> dict[str, Any]:
    """Phases, scatter and folded step of the minute of the verdict; with `seconds` phases of as long as that.

    readings: t_s, watts and bytes_per_s of each power reading, and `phases` with a letter for each of them
    (PHASE_LETTERS). middle_*: where the quadrants meet; None where levels say nothing. fold is None where nothing repeats
    that the sensors resolve.
    """
    window_s = snapshot.verdict_window_s
    analysis = verdict_of(snapshot, gpu)
    found = readings_of(series, snapshot, gpu, analysis, snapshot.t_s, max(window_s, min(seconds or window_s, LONGEST_S)))
    judged = analysis is not None and analysis.state not in _UNJUDGED
    dots = slice(max(0, len(found.t) - _MOST_DOTS), None) if seconds is None else slice(None)
    return {
        "at_s": snapshot.t_s,
        "path": found.path,
        "lag_s": round(found.lag_s, 3),
        "middle_watts": _finite(found.middle_watts, 1) if judged else None,
        "middle_bytes_per_s": _finite(found.middle_bytes_per_s, 0) if judged else None,
        "readings": {
            "t_s": numbers(found.t[dots], 3), "watts": numbers(found.watts[dots], 0),
            "bytes_per_s": numbers(found.bytes_per_s[dots], -6), "phases": found.phases[dots],
        },
        "fold": fold_json(series, snapshot.inventory, gpu, analysis, found, snapshot.t_s, window_s),
    }  # fmt: skip


def verdict_of(snapshot: Snapshot, gpu: Device) -> OverlapAnalysis | None:
    """The verdict on a GPU; None before the first."""
    window_s = snapshot.verdict_window_s
    return next((a for a in snapshot.analyses if a.gpu_id == gpu.id and a.window_s == window_s), None)


def readings_of(series: Series, snapshot: Snapshot, gpu: Device, analysis: OverlapAnalysis | None, end_s: float,
                seconds: float) -> Readings:  # fmt: skip
    """Power readings of (end_s - seconds, end_s] with traffic and phase; the levels are those of the verdict window."""
    inventory, level_s = snapshot.inventory, snapshot.verdict_window_s
    start_s = end_s - max(seconds, level_s)
    refresh_s = gpu.power_refresh_s or next(
        (r.refresh_s for r in snapshot.refresh if r.id == gpu.id and r.quantity == "power"), _UNKNOWN_REFRESH_S)  # fmt: skip
    window_s = gpu.power_window_s or _UNKNOWN_WINDOW_S
    t_read, watts = power_of(series, gpu, start_s, end_s)
    if len(t_read) == 0:
        none = np.empty(0)
        return Readings(none, none, none, none, "", None, 0.0, 0.0, math.nan, math.nan)
    poll_s = rates.poll_interval(t_read) if len(t_read) > 1 else refresh_s
    age_s = alignment.reading_ages(t_read, watts, poll_s, refresh_s)
    if alignment.polled_fast(poll_s, refresh_s):
        kept = alignment.fresh(t_read, watts, refresh_s)
        t_read, watts, age_s = t_read[kept], watts[kept], age_s[kept]
    links = links_of(inventory, gpu)
    step_s = read_every_s(inventory, links)
    traffic = traffic_of(series, links, start_s - 1.0, end_s)
    begin, end = alignment.intervals(t_read, age_s, window_s, max(window_s, step_s, rates.FINE_S))
    t = (begin + end) / 2
    beside = traffic.between(begin, end)
    recent = t_read > end_s - level_s
    presence, path, low, high = _presence(traffic, beside, inventory, gpu, end_s - level_s, end_s, step_s)
    on = presence > overlap.ON
    p_low, p_high = (float(x[0]) for x in levels.power_levels(
        np.where(recent, watts, np.nan)[None], on[None], _remembered(analysis)))  # fmt: skip
    phases = _phases(series, gpu, analysis, t_read, watts, presence, (p_low, p_high), poll_s)
    return Readings(
        t=t, watts=watts, bytes_per_s=beside[path] if path else np.full(len(t), np.nan), presence=presence, phases=phases,
        path=path, length_s=window_s, lag_s=float(np.mean(t_read - t)), middle_watts=(p_low + p_high) / 2,
        middle_bytes_per_s=low + _SURE * (high - low),
    )


def _remembered(analysis: OverlapAnalysis | None) -> Array:
    high = analysis.power_high_watts if analysis is not None else None
    return np.array([math.nan if high is None else high])


def _presence(traffic: Traffic, beside: dict[str, Array], inventory: Inventory, gpu: Device, start_s: float, end_s: float,
              step_s: float) -> tuple[Array, str | None, float, float]:  # fmt: skip
    """Presence beside each power reading, by the loudest path; that path, and its low and high level."""
    length_s = max(step_s, rates.FINE_S)
    grid: Array = np.arange(start_s, end_s, length_s, dtype=np.float64)
    fine = traffic.between(grid[:-1], grid[1:])
    floors = _floors(inventory, gpu)
    count = len(next(iter(beside.values()), np.empty(0)))
    out, most = np.zeros(count), 0.0
    best: tuple[str | None, float, float] = (None, math.nan, math.nan)
    for path, rate in fine.items():
        low, high = (float(x[0]) for x in levels.traffic_levels(rate[None]))
        if not high >= floors[path]:
            best = (path, math.nan, math.nan) if best[0] is None else best
            continue
        scaled = levels.presence(beside[path][None], np.array([low]), np.array([high]))[0]
        out = np.fmax(out, scaled)
        mean = float(overlap.mean(np.clip(scaled, 0.0, 1.0)))
        if mean > most or not math.isfinite(best[1]):
            most, best = mean, (path, low, high)
    return (out if count else np.zeros(0)), *best


def _floors(inventory: Inventory, gpu: Device) -> dict[str, float]:
    """Bytes per second below which a path carries no communication."""
    devices = {d.id: d for d in inventory.devices}
    floors: dict[str, float] = {}
    for link in links_of(inventory, gpu):
        device = None if link.path == "nvlink" else devices.get(link.device_id)
        line = device.rate_bytes_per_s if device is not None else None
        floor = levels.FLOOR_OF_LINE_RATE * line if line else levels.FLOOR_BYTES_PER_S
        floors[link.path] = floors.get(link.path, 0.0) + floor * link.weight
    return floors


def _phases(series: Series, gpu: Device, analysis: OverlapAnalysis | None, t_read: Array, watts: Array, presence: Array,
            power_levels: tuple[float, float], poll_s: float) -> str:  # fmt: skip
    """A letter per reading: what it most likely belongs to, with the levels of the window."""
    state = analysis.state if analysis is not None else "no_data"
    n = len(t_read)
    busy = _utilization(series, gpu, t_read)
    presence = presence if len(presence) == n else np.zeros(n)
    tau = levels.soft_presence(presence)
    lack = levels.deficit(watts[None], np.array([power_levels[0]]), np.array([power_levels[1]]))[0]
    with np.errstate(invalid="ignore"):
        still = (busy < _IDLE_UTILIZATION) & ~(tau > 0)
    limit = gpu.power_limit_watts
    if np.isnan(busy).all() and limit:
        still = (watts < 0.2 * limit) & ~(tau > 0)
    idle = still if state == "idle" else still & (levels.run_seconds(t_read, still, poll_s) >= _IDLE_RUN_S)
    if state in ("unobservable", "no_data"):
        return "".join(np.where(idle, "i", "u").tolist())
    both = np.minimum(lack, tau)
    rest = lack - both
    shares = np.stack([1.0 - np.fmax(lack, tau), tau - both, both,
                       np.where(busy < _BUSY, rest, 0.0), np.where(busy < _BUSY, 0.0, rest)])  # fmt: skip
    unknown = np.isnan(shares).any(axis=0)
    letters = np.array(list(PHASE_LETTERS.values()))[np.argmax(np.nan_to_num(shares), axis=0)]
    return "".join(np.where(idle, "i", np.where(unknown, "u", letters)).tolist())


def _utilization(series: Series, gpu: Device, t_read: Array) -> Array:
    """Utilisation at each reading; NaN where it was not read for a while."""
    for key in ("utilization_ratio", "kernel_busy_ratio"):
        t, busy = series.series(f"{gpu.id}/{key}", float(t_read[0]) - _STALE_S, float(t_read[-1]))
        good = np.isfinite(busy)
        t, busy = t[good], busy[good]
        if len(t):
            before = np.searchsorted(t, t_read, side="right") - 1
            old = (before < 0) | (t_read - t[np.maximum(before, 0)] > _STALE_S)
            return np.where(old, np.nan, busy[np.maximum(before, 0)])
    return np.full(len(t_read), np.nan)


def fold_json(series: Series, inventory: Inventory, gpu: Device, analysis: OverlapAnalysis | None, found: Readings,
              end_s: float, window_s: float) -> dict[str, Any] | None:  # fmt: skip
    """The mean waveform of one step over the window: at phase_s the mean power and the mean traffic of each path.

    None where there is no verdict, or it knows no period, or too few steps of it were seen.
    """
    if analysis is None or analysis.state in _UNJUDGED or analysis.step_period_s is None or found.path is None:
        return None
    links = links_of(inventory, gpu)
    step_s = read_every_s(inventory, links)
    traffic = traffic_of(series, links, end_s - window_s, end_s)
    grid: Array = np.arange(end_s - window_s, min(end_s, traffic.newest_s), step_s, dtype=np.float64)
    if len(grid) < 3:
        return None
    t = (grid[:-1] + grid[1:]) / 2
    rates_ = traffic.between(grid[:-1], grid[1:])
    starts = fold.step_starts(t, rates_[found.path], analysis.step_period_s)
    if len(starts) <= _FEWEST_STEPS:
        return None
    bins = int(min(_BINS, max(12, np.count_nonzero(found.t > end_s - window_s) / 6)))
    usual_s = float(np.median(np.diff(starts)))
    return {
        "period_s": round(usual_s, 4),
        "steps": len(starts) - 1,
        "phase_s": numbers((np.arange(bins) + 0.5) * usual_s / bins, 5),
        "watts": numbers(fold.fold(found.t, found.watts, starts, bins, found.length_s), 1),
        **{path: numbers(fold.fold(t, rate, starts, bins, step_s), 0) for path, rate in rates_.items()},
    }


def sparks_json(series: Series, inventory: Inventory, end_s: float, seconds: float, points: int) -> dict[str, Any]:
    """A glance at every GPU: mean power and mean traffic of its main path in each of `points` parts of the last seconds."""
    edges: Array = np.linspace(end_s - seconds, end_s, points + 1, dtype=np.float64)
    sparks: dict[str, Any] = {}
    for gpu in inventory.of_kind("gpu"):
        t_s, watts = power_of(series, gpu, edges[0], end_s)
        part = np.clip(np.searchsorted(edges, t_s) - 1, 0, points - 1)
        count = np.bincount(part, minlength=points)
        mean = np.where(count > 0, np.bincount(part, watts, points) / np.maximum(count, 1), np.nan)
        traffic = traffic_of(series, links_of(inventory, gpu), edges[0], end_s)
        begin, end = edges[:-1], np.minimum(edges[1:], traffic.newest_s) if traffic.links else edges[1:]
        of_path = traffic.between(begin, end)
        path = max(of_path, key=lambda p: float(np.nan_to_num(of_path[p]).sum()) if p != "nvlink" else 0.0, default=None)
        sparks[gpu.id] = {
            "watts": numbers(mean, 0), "path": path,
            "bytes_per_s": numbers(of_path[path], -6) if path else [],
        }  # fmt: skip
    return {"seconds": seconds, "gpus": sparks}


def _finite(value: float, digits: int) -> float | None:
    return round(value, digits) if math.isfinite(value) else None
