"""Resolution: which rhythms the slowest sensor of a GPU can show, and verdicts on faster ones taken back.

Called by the analysis on each verdict. Only slow sensors matter here, whose averages or intervals reach over half a second
(power of which the driver tells the mean of a second; byte counters that the device fills once a second): what they show
of a faster rhythm is an average of compute and communication, and looks like overlap.
"""

from __future__ import annotations

from dataclasses import replace

from exporter.model import Device, OverlapAnalysis
from exporter.readings import Sensor
from exporter.reasons import because
from exporter.signals.observability import RESOLUTION_WINDOWS

SLOW_S = 0.4  # half a second, measured with some error
_NEARLY = 0.95  # of the resolution: a period is known to a few percent
_LEFT = 0.7  # of the variance of a rhythm is left after averaging over a quarter of its period
_JUDGED = ("overlapped", "partial", "serialized", "stalled")


def resolution_of(sensor: Sensor, bytes_s: float) -> float:
    """The shortest period that the sensors of a GPU resolve, seconds. bytes_s: how long bytes mean nothing (NaN: no bytes)."""
    return RESOLUTION_WINDOWS * max(sensor.window_s, _slow(bytes_s))


def held_to_sensors(
    a: OverlapAnalysis, sensor: Sensor, bytes_s: float, step_s: float | None, left: float, slowest: Device | None = None
) -> OverlapAnalysis:
    """The verdict; unobservable where the job's rhythm is finer than all sensors together resolve.

    bytes_s: over how long a stretch bytes mean anything at best (NaN: no bytes); step_s: the step period, None without
    one: then a slow sensor is held to the rhythm of the other, faster one, of whose variance `left` is left after averaging
    over the window, or the refresh, of the slow one. slowest: the port whose counter is that slow, for the reason.
    """
    by_bytes_s = _slow(bytes_s)
    if a.state not in _JUDGED or max(sensor.window_s, by_bytes_s) < SLOW_S or a.communication is None:
        return a
    resolution_s = resolution_of(sensor, bytes_s)
    seen = step_s / resolution_s if step_s is not None else left / _LEFT
    if seen >= _NEARLY:
        return a
    return replace(
        a, state="unobservable", reason=_reason(sensor, by_bytes_s, resolution_s, slowest), health=None, exposed=None,
        exposed_low=0.0, exposed_high=max(a.exposed_high or 0.0, a.communication),
        observability=min(a.observability if a.observability is not None else 1.0, 0.5 * seen),
    )


def _slow(bytes_s: float) -> float:
    return bytes_s if bytes_s >= SLOW_S else 0.0


def _reason(sensor: Sensor, by_bytes_s: float, resolution_s: float, slowest: Device | None) -> str:
    shortest_s = f"{resolution_s:.2g}"
    if by_bytes_s > sensor.window_s:
        device = slowest.id if slowest else "all ports"
        return because("slow_bytes", device=device, refresh_s=f"{by_bytes_s:.2g}", shortest_s=shortest_s)
    return because("slow_power", window_s=f"{sensor.window_s:g}", shortest_s=shortest_s)
