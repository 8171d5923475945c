"""Readings: what the sensors of all GPUs of a node said over a span of time, as arrays with one row per GPU.

Called by the analysis at every evaluation. It knows which channels belong to a GPU (links), brings power and bytes to
the same stretches of time, and stacks the GPUs; it never judges what it finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.model import PATHS, Device, Inventory, Series
from exporter.signals import alignment, levels, rates
from exporter.signals.sensor import SLOW_COUNTER

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_PREFIX = {"nvlink": "nvlink_"}  # NVLink bytes are channels of the GPU itself
_GONE_S = 5.0  # a device that has not been read for so long takes no part, in no window
_STALE_S = 2.5  # an older reading of utilisation says nothing about now
_LONGEST_GAP_POLLS, _LONGEST_GAP_S = 3.0, 0.25  # a longer gap between byte reads hides when the bytes flowed


@dataclass(frozen=True, slots=True)
class Sensor:
    """What is believed of a GPU's power sensor: averaging window and refresh, seconds."""

    window_s: float
    refresh_s: float


@dataclass(frozen=True, slots=True)
class Counter:
    """What is known of a device's byte counter: refresh, seconds (NaN: not seen), and whether polls come before it.

    close_s: the refresh as volleys of close reads show it, which polls and pairs do not.
    """

    refresh_s: float = math.nan
    stale: bool = False
    close_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Flow:
    """Two-way traffic of one device: cumulative bytes and cumulative unknown seconds at its polls."""

    t: Array
    done: Array
    unknown: Array
    interval_s: float  # the shortest over which the bytes mean anything: a poll, or a refresh of a slower counter
    floor_bytes_per_s: float
    line_bytes_per_s: float  # NaN where it is not known
    pairs: NDArray[np.intp]  # first of two reads a few milliseconds apart; none where the counter is slower than that


@dataclass(frozen=True, slots=True)
class Readings:
    """Arrays over GPUs g, fabrics f (the order of model.PATHS), power readings n, fine intervals m; NaN = missing."""

    gpus: tuple[Device, ...]
    t: Array  # [g, n] s, of the power readings
    power: Array  # [g, n] W
    utilization: Array  # [g, n] ratio
    traffic: Array  # [f, g, n] bytes/s over the stretch that each power reading speaks of
    step_s: Array  # [g] between power readings
    sensors: tuple[Sensor, ...]
    fine_t: Array  # [g, m] s, middle of the finest intervals that the byte polls allow
    fine: Array  # [f, g, m] bytes/s
    fine_step_s: Array  # [g]
    fine_length_s: Array  # [g]
    pair_t: Array  # [g, k] s, middle of two reads a few milliseconds apart
    pair: Array  # [f, g, k] bytes/s between them
    tile_t: Array  # [g, q] s, end of the stretch over which GPM averaged
    kernel_busy: Array  # [g, q] ratio
    sm_activity: Array  # [g, q] ratio
    tile_traffic: Array  # [f, g, q] bytes/s over the same stretch
    floor: Array  # [f, g] bytes/s below which a fabric is silent; NaN where the GPU has no such fabric
    line: Array  # [f, g] bytes/s that a fabric can carry one way; NaN where that is not known
    silent: tuple[tuple[str, ...], ...]  # per GPU: linked devices that gave no bytes in both directions


def flows_of(series: Series, inventory: Inventory, start_s: float, end_s: float,
             counters: Mapping[str, Counter]) -> dict[tuple[str, str], Flow]:  # fmt: skip
    """The traffic of every linked device, by (device id, path); devices without bytes in both directions are left out."""
    devices = {d.id: d for d in inventory.devices}
    flows: dict[tuple[str, str], Flow] = {}
    for device_id, path in dict.fromkeys((link.device_id, link.path) for link in inventory.links):
        prefix = f"{device_id}/{_PREFIX.get(path, '')}"
        t, sent = series.series(prefix + "transmit_bytes_total", start_s, end_s)
        t_received, received = series.series(prefix + "receive_bytes_total", start_s, end_s)
        if len(t) < 2 or len(t_received) < 2:
            continue
        if t is not t_received and not np.array_equal(t, t_received):
            received = np.interp(t, t_received, received, left=np.nan, right=np.nan)
        known = ~(np.isnan(sent) | np.isnan(received))
        if np.count_nonzero(known) < 2:
            continue
        if not known.all():
            t, sent, received = t[known], sent[known], received[known]
        interval_s = rates.poll_interval(t)
        if end_s - t[-1] > max(_GONE_S, 3.0 * interval_s):
            continue
        longest_s = max(_LONGEST_GAP_POLLS * interval_s, _LONGEST_GAP_S)
        counter = counters.get(device_id) or Counter(known_refresh(devices.get(device_id)))
        slow_s = rates.resolved_s(interval_s, counter.refresh_s)
        if counter.stale or slow_s > interval_s:
            # What a poll brings is on average half a poll old, if it is new at all.
            # A pause that was polled all through is known however long it is.
            whole = float(np.diff(t).max()) <= longest_s
            kept = rates.changes(t, sent + received, slow_s)
            t, sent, received = t[kept] - interval_s / 2, sent[kept], received[kept]
            longest_s = math.inf if whole else max(longest_s, 3.0 * slow_s)
        done, unknown = rates.flow(t, sent, received, longest_s)
        slow = counter.stale or slow_s > interval_s
        pairs = np.empty(0, dtype=np.intp) if slow else rates.pairs(t, interval_s)
        if counter.close_s > 0 and len(pairs):
            apart_s = float(np.sort(t[pairs + 1] - t[pairs])[len(pairs) // 2])
            if counter.close_s > SLOW_COUNTER * apart_s:
                pairs = pairs[:0]  # the counter stands still in some pairs and jumps in others
        device = devices.get(device_id)
        line = math.nan if device is None or path == "nvlink" else device.rate_bytes_per_s or math.nan
        flows[device_id, path] = Flow(t, done, unknown, max(interval_s, slow_s), floor_of(device, path), line, pairs)
    return flows


def known_refresh(device: Device | None) -> float:
    """How often a device's byte counter takes a new value as far as its driver is known to be slow, seconds; NaN: not known.

    >>> known_refresh(Device("rdma_port", "bnxt_re0/1", info={"byte_refresh_seconds": "1"}))
    1.0
    """
    told = None if device is None else device.info.get("byte_refresh_seconds")
    try:
        return float(told) if told else math.nan
    except ValueError:
        return math.nan


def floor_of(device: Device | None, path: str) -> float:
    """Bytes per second below which a device carries no communication: a share of its line rate where that is known."""
    rate = None if device is None or path == "nvlink" else device.rate_bytes_per_s
    return levels.FLOOR_OF_LINE_RATE * rate if rate else levels.FLOOR_BYTES_PER_S


def power_of(series: Series, gpu: Device, start_s: float, end_s: float) -> tuple[Array, Array, Array]:
    """Times, power and utilisation of one GPU; utilisation falls back to GPM's kernel-busy share, else it is NaN."""
    t, power = series.series(f"{gpu.id}/power_watts", start_s, end_s)
    for key in ("utilization_ratio", "kernel_busy_ratio"):
        t_busy, busy = series.series(f"{gpu.id}/{key}", start_s, end_s)
        if len(t_busy) == 0 or np.isnan(busy).all():
            continue
        if t_busy is not t and not np.array_equal(t_busy, t):
            before = np.searchsorted(t_busy, t, side="right") - 1
            old = (before < 0) | (t - t_busy[before] > _STALE_S)
            busy = np.where(old, np.nan, busy[before])
        return t, power, busy
    return t, power, np.full(len(t), np.nan)


def gather(series: Series, inventory: Inventory, start_s: float, end_s: float, sensors: Mapping[str, Sensor],
           counters: Mapping[str, Counter]) -> Readings:  # fmt: skip
    """Everything that was read of the node's GPUs and their traffic in (start_s, end_s]. O(n) per GPU and device."""
    flows = flows_of(series, inventory, start_s, end_s, counters)
    gpus = inventory.of_kind("gpu")
    paths = [p for p in PATHS if any(link.path == p for link in inventory.links)]
    rows: dict[str, list[Array]] = {key: [] for key in (
        "t", "power", "utilization", "fine_t", "pair_t", "tile_t", "kernel_busy", "sm_activity")}  # fmt: skip
    by_path: dict[str, list[list[Array]]] = {key: [[] for _ in paths] for key in (
        "traffic", "fine", "pair", "tile_traffic")}  # fmt: skip
    floor, line = (np.full((len(paths), len(gpus)), np.nan) for _ in range(2))
    step_s, fine_step_s, fine_length_s = (np.full(len(gpus), np.nan) for _ in range(3))
    silent: list[tuple[str, ...]] = []
    for g, gpu in enumerate(gpus):
        linked = [(k.device_id, k.path) for k in inventory.links if k.gpu_id == gpu.id]
        silent.append(tuple(device_id for device_id, path in linked if (device_id, path) not in flows))
        mine = {p: [flows[key] for key in linked if key[1] == p and key in flows] for p in paths}
        t, power, busy = power_of(series, gpu, start_s, end_s)
        sensor = sensors[gpu.id]
        poll_s = rates.poll_interval(t)
        age_s = alignment.reading_ages(t, power, poll_s, sensor.refresh_s)
        if alignment.polled_fast(poll_s, sensor.refresh_s):
            kept = alignment.fresh(t, power, sensor.refresh_s)
            t, power, busy, age_s = t[kept], power[kept], busy[kept], age_s[kept]
            poll_s = rates.poll_interval(t)
        step_s[g] = poll_s
        grid = _fine_grid([f for of_path in mine.values() for f in of_path])
        fine_step_s[g], fine_length_s[g] = grid.every_s, grid.length_s
        pair_begin, pair_end = _pair_times([f for of_path in mine.values() for f in of_path])
        tile_t, kernel_busy, sm_activity = activity_of(series, gpu, start_s, end_s)
        for key, row in (
            ("t", t), ("power", power), ("utilization", busy), ("fine_t", (grid.begin + grid.end) / 2),
            ("pair_t", (pair_begin + pair_end) / 2), ("tile_t", tile_t[1:]), ("kernel_busy", kernel_busy[1:]),
            ("sm_activity", sm_activity[1:]),
        ):  # fmt: skip
            rows[key].append(row)
        for f, path in enumerate(paths):
            for key, of_flows, count in (
                ("traffic", [_beside(flow, t, age_s, sensor.window_s) for flow in mine[path]], len(t)),
                ("fine", [_within(flow, grid) for flow in mine[path]], len(grid.begin)),
                ("pair", [_at_pairs(flow, pair_begin, pair_end) for flow in mine[path]], len(pair_begin)),
                ("tile_traffic", [_between(flow, tile_t) for flow in mine[path]], max(len(tile_t) - 1, 0)),
            ):
                by_path[key][f].append(sum(of_flows[1:], of_flows[0]) if of_flows else np.zeros(count))
            if mine[path]:
                floor[f, g] = sum(flow.floor_bytes_per_s for flow in mine[path])
                line[f, g] = sum(flow.line_bytes_per_s for flow in mine[path])
    stacked = {key: alignment.stack(of_key) for key, of_key in rows.items()}
    width = {"traffic": "t", "fine": "fine_t", "pair": "pair_t", "tile_traffic": "tile_t"}
    for key, of_paths in by_path.items():
        together = alignment.stack([row for of_gpus in of_paths for row in of_gpus])
        stacked[key] = together.reshape(len(paths), *stacked[width[key]].shape)
    return Readings(
        gpus=gpus, step_s=step_s, sensors=tuple(sensors[gpu.id] for gpu in gpus), fine_step_s=fine_step_s,
        fine_length_s=fine_length_s, floor=floor, line=line, silent=tuple(silent), **stacked,
    )  # fmt: skip


def activity_of(series: Series, gpu: Device, start_s: float, end_s: float) -> tuple[Array, Array, Array]:
    """Times, kernel-busy share and SM activity of one GPU as GPM gives them: means since the read before."""
    t, kernel_busy = series.series(f"{gpu.id}/kernel_busy_ratio", start_s, end_s)
    t_active, sm_activity = series.series(f"{gpu.id}/sm_utilization_ratio", start_s, end_s)
    if len(t) < 2 or (t is not t_active and not np.array_equal(t, t_active)):
        return np.empty(0), np.empty(0), np.empty(0)
    known = ~(np.isnan(kernel_busy) | np.isnan(sm_activity))
    return t[known], kernel_busy[known], sm_activity[known]


def _pair_times(flows: list[Flow]) -> tuple[Array, Array]:
    """Begin and end [k] of the pairs of the device that has most; empty where one device has none."""
    if not flows or not all(len(flow.pairs) for flow in flows):
        return np.empty(0), np.empty(0)
    most = max(flows, key=lambda flow: len(flow.pairs))
    return most.t[most.pairs], most.t[most.pairs + 1]


def _at_pairs(flow: Flow, begin: Array, end: Array) -> Array:
    """Rate in the flow's own pair next to each of these; NaN where it has none within half a poll."""
    if len(begin) == 0:
        return np.empty(0)
    own = (flow.t[flow.pairs] + flow.t[flow.pairs + 1]) / 2
    middle = (begin + end) / 2
    near = np.clip(np.searchsorted(own, middle), 1, max(len(own) - 1, 1))
    near -= middle - own[near - 1] < own[np.minimum(near, len(own) - 1)] - middle
    near = np.minimum(near, len(own) - 1)
    first = flow.pairs[near]
    rate = (flow.done[first + 1] - flow.done[first]) / (flow.t[first + 1] - flow.t[first])
    missing = (np.abs(own[near] - middle) > flow.interval_s / 2) | (flow.unknown[first + 1] > flow.unknown[first])
    return np.where(missing, np.nan, rate)


def _between(flow: Flow, t: Array) -> Array:
    """Rate from each of these times to the next."""
    return rates.rate_between(flow.t, flow.done, flow.unknown, t[:-1], t[1:])


@dataclass(frozen=True, slots=True)
class _Grid:
    """The finest intervals [m] of a GPU's traffic: those that one device was polled at; their length and distance, s."""

    begin: Array
    end: Array
    length_s: float
    every_s: float
    of: Flow | None  # the device, and which of its polls begin and end them
    first: NDArray[np.intp]
    last: NDArray[np.intp]


def _fine_grid(flows: list[Flow]) -> _Grid:
    """By the device that is polled most often."""
    if not flows:
        none = np.empty(0, dtype=np.intp)
        return _Grid(np.empty(0), np.empty(0), math.nan, math.nan, None, none, none)
    fastest = min(flows, key=lambda flow: flow.interval_s)
    polls = rates.fine_polls(fastest.interval_s)
    first, last = rates.fine_knots(fastest.t, fastest.interval_s, polls)
    return _Grid(fastest.t[first], fastest.t[last], polls * fastest.interval_s, fastest.interval_s, fastest, first, last)


def _beside(flow: Flow, t: Array, age_s: Array, window_s: float) -> Array:
    begin, end = alignment.intervals(t, age_s, window_s, max(window_s, flow.interval_s, rates.FINE_S))
    return rates.rate_between(flow.t, flow.done, flow.unknown, begin, end)


def _within(flow: Flow, grid: _Grid) -> Array:
    """Rate within the fine intervals; over the flow's own shortest interval around their middle where it is slower."""
    if flow is grid.of and flow.unknown[-1] == 0:
        return (flow.done[grid.last] - flow.done[grid.first]) / (grid.end - grid.begin)
    longer = (flow.interval_s - grid.length_s) / 2 if flow.interval_s > 1.2 * grid.length_s else 0.0
    return rates.rate_between(flow.t, flow.done, flow.unknown, grid.begin - longer, grid.end + longer)
