"""Verdict: what the shares of one window allow to say of one GPU: a state, the numbers that exist, and why not the rest.

Called by the analysis, once per GPU and window. Never computes on readings; no memory, no hysteresis: the same numbers
give the same verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from exporter import routes
from exporter.model import Device, Inventory, OverlapAnalysis
from exporter.readings import Sensor
from exporter.reasons import SHARED_NODE, because
from exporter.shares import MIN_COVERAGE, MIN_READINGS, Shares
from exporter.signals import observability

_IDLE_RUNNING = 0.05
_STALLED = 0.17
_OVERLAPPED_HEALTH, _OVERLAPPED_EXPOSED = 0.8, 0.02
_SERIALIZED_HEALTH = 0.3


def shared_devices(inventory: Inventory) -> Mapping[str, str]:
    """GPU id -> a device that carries the traffic of more than one job, for GPUs whose bytes nobody can attribute."""
    jobs_of: dict[str, set[str]] = {}
    for link in inventory.links:
        if (job := inventory.jobs.get(link.gpu_id)) is not None:
            jobs_of.setdefault(link.device_id, set()).add(job)
    return {k.gpu_id: k.device_id for k in inventory.links if len(jobs_of.get(k.device_id, ())) > 1}


def verdict(gpu: Device, g: int, shares: Shares, sensor: Sensor, silent: tuple[str, ...], shared: bool,
            at_s: float, window_s: float, step_s: float | None, resolution_s: float) -> OverlapAnalysis:  # fmt: skip
    """The verdict on GPU number g. `silent` names its devices that gave no bytes; `shared`: they carry several jobs.

    step_s: its step period; resolution_s: the shortest period that its sensors resolve.
    """
    state, reason = _state(g, shares, sensor, silent, shared, gpu, window_s)

    def at(x: NDArray[np.float64]) -> float | None:
        return _number(x[g])

    live = state not in ("no_data", "idle")
    attributed = live and not shared and bool(shares.has_traffic[g])
    communicates = attributed and bool(shares.communicates[g])
    resolved = communicates and state != "unobservable"
    x, c = at(shares.exposed), at(shares.communication)
    low, high = _bounds(g, shares, gpu, resolved)
    noncompute, stall = at(shares.noncompute), at(shares.stall)
    band = (at(shares.power_band[0]), at(shares.power_band[1]), at(shares.power_band[2]))
    flow = (at(shares.traffic_band[0]), at(shares.traffic_band[1]), at(shares.traffic_band[2]))
    return OverlapAnalysis(
        gpu_id=gpu.id, at_s=at_s, window_s=window_s, state=state, reason=reason,
        health=1.0 - min(1.0, x / c) if resolved and x is not None and c else None,
        exposed=x if resolved else None,
        exposed_low=low if communicates else None,
        exposed_high=high if communicates else None,
        communication=c if attributed else None,
        stall=stall if live else None,
        wait=at(shares.wait) if attributed else None,
        exposed_or_wait=max(0.0, noncompute - (stall or 0.0)) if live and noncompute is not None else None,
        correlation=at(shares.correlation) if communicates else None,
        anticorrelation=at(shares.anticorrelation) if communicates else None,
        observability=at(shares.observability) if communicates else None,
        running=at(shares.running) if state != "no_data" else None,
        resolution_s=resolution_s,
        step_period_s=step_s if live else None,
        power_low_watts=band[0], power_median_watts=band[1], power_high_watts=band[2],
        traffic_low_bytes_per_s=flow[0], traffic_median_bytes_per_s=flow[1], traffic_high_bytes_per_s=flow[2],
    )  # fmt: skip


def _state(g: int, shares: Shares, sensor: Sensor, silent: tuple[str, ...], shared: bool, gpu: Device,
           window_s: float) -> tuple[str, str | None]:  # fmt: skip
    """The first state that matches, and the reason for what is missing beside it."""
    covered_s = float(shares.covered_s[g])
    if shares.readings[g] == 0:
        return "no_data", because("no_power")
    if shares.readings[g] < MIN_READINGS or not covered_s >= MIN_COVERAGE * window_s:
        return "no_data", because("little_power", read_s=f"{covered_s:.0f}", window_s=f"{window_s:g}")
    if shares.running[g] < _IDLE_RUNNING:
        return "idle", because("no_job")
    stalled = bool(shares.stall[g] >= _STALLED)
    if shared:
        return "unobservable", SHARED_NODE
    if not shares.has_traffic[g]:
        why = because("no_source")
        if shares.has_fabric[g]:
            why = because("few_bytes")
        elif silent:
            why = because("silent", devices=", ".join(silent))
        return ("stalled" if stalled else "unobservable"), why
    if not shares.communicates[g]:
        return ("stalled" if stalled else "compute_only"), because("no_communication")
    if smoothed(gpu):
        return "unobservable", because("smoothed")
    if not shares.observability[g] >= observability.LIMIT:
        return "unobservable", _blind(g, shares, sensor, gpu)
    x, c = float(shares.exposed[g]), float(shares.communication[g])
    health = 1.0 - x / c
    note = because("without", devices=", ".join(silent)) if silent else None
    if stalled:
        return "stalled", note
    if health > _OVERLAPPED_HEALTH or x < _OVERLAPPED_EXPOSED:
        return "overlapped", note
    return ("serialized" if health < _SERIALIZED_HEALTH else "partial"), note


def smoothed(gpu: Device) -> bool:
    """Whether the board holds its power up on purpose in phases without compute, so that its power proves nothing."""
    return gpu.info.get("power_smoothing") == "on"


def _blind(g: int, shares: Shares, sensor: Sensor, gpu: Device) -> str:
    """Why the sensors cannot resolve this job."""
    if shares.resolved[g] < 0.5 and sensor.window_s < routes.SLOW_SENSOR_S:
        low, high = 100 * float(shares.low[g]), 100 * float(shares.high[g])
        return because("finer", low=f"{low:.0f}", high=f"{high:.0f}")
    if shares.modulated[g] or sensor.window_s >= observability.SLOW_WINDOW_S:
        shortest_s = observability.RESOLUTION_WINDOWS * sensor.window_s
        return because("slow_power", window_s=f"{sensor.window_s:g}", shortest_s=f"{shortest_s:g}")
    power, limit = float(shares.power_band[1][g]), gpu.power_limit_watts or math.nan
    return because("flat_and_low", watts=f"{power:.0f}", limit=f"{limit:.0f}")


def _bounds(g: int, shares: Shares, gpu: Device, resolved: bool) -> tuple[float | None, float | None]:
    """Lowest and highest exposed share; where the sensors resolve nothing, what the mean power alone allows."""
    low, high = _number(shares.low[g]), _number(shares.high[g])
    if smoothed(gpu):
        return 0.0, _number(shares.communication[g])
    if resolved or low is None or high is None or (shares.resolved[g] < 0.5 and shares.window_s[g] < routes.SLOW_SENSOR_S):
        return low, high
    bottom, mean = float(shares.power_low[g]), float(np.nanmean(np.where(shares.run[g], shares.power[g], np.nan)))
    top = max(float(shares.power_high[g]), 0.97 * (gpu.power_limit_watts or 0.0))
    lack = min(1.0, max(0.0, (top - mean) / max(top - bottom, 1e-9)))
    most = max(float(shares.communication[g]), float(shares.raw_tau[g]))  # before what intervals smear is taken off
    return 0.0, max(high, min(most, lack))


def _number(x: NDArray[np.float64] | float) -> float | None:
    value = float(x)
    return None if math.isnan(value) else value
