"""The slow lane of NVML readings of one GPU: power limit, temperature, SM clock, time throttled by reason; once a second.

`nvml_gpu.py` makes it when it opens a GPU, the reader ticks it. It keeps the bound by which the fast lane believes power,
and notices when a board comes to smooth its power.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from exporter.model import Source
from exporter.sources import REDISCOVER, LaneError
from exporter.sources.nvml_calls import NAN, OK, PERMANENT, Calls, FieldBatch, ask, probe_fields
from exporter.sources.nvml_lanes import Counted, NvmlLane
from exporter.sources.nvml_power import PowerGate

THROTTLE_FIELDS = ((74, "power_cap"), (75, "sw_thermal"), (76, "sync_boost"))  # NVML_FI_DEV_PERF_POLICY_*, ns
THROTTLE_RENUMBERED = ("hw_thermal", "power_brake")  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_*, ns; see nvml_fields.py
CLOCK_SM, TEMPERATURE_GPU = 1, 0
TEMPERATURE_V1 = 0x0100000C  # version of nvmlTemperature_v1_t: sensor, value


class Gauges:
    """The slow readings that take a call each; every method returns the code of its call and the value, or NaN."""

    def __init__(self, calls: Calls, handle: ctypes.c_void_p, gate: PowerGate) -> None:
        self._calls = calls
        self._handle = handle
        self._gate = gate
        self._number = ctypes.c_uint()
        self._temperature = (ctypes.c_uint * 3)(TEMPERATURE_V1, TEMPERATURE_GPU, 0)

    def _ask(self, name: str, *arguments: int) -> tuple[int, float]:
        code = ask(self._calls, name, self._handle, *arguments, ctypes.byref(self._number))
        return code, float(self._number.value) if code == OK else NAN

    def limit(self) -> tuple[int, float]:
        """nvmlDeviceGetEnforcedPowerLimit [W]; the gate goes by it from now on."""
        code, milliwatts = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        if code == OK:
            self._gate.set_limit(milliwatts * 1e-3)
        return code, milliwatts * 1e-3

    def temperature(self) -> tuple[int, float]:
        """nvmlDeviceGetTemperature, deprecated since R575 and still exported; its successor where it is not."""
        code, celsius = self._ask("nvmlDeviceGetTemperature", TEMPERATURE_GPU)
        if code in PERMANENT:
            code = ask(self._calls, "nvmlDeviceGetTemperatureV", self._handle, self._temperature)
            celsius = float(ctypes.c_int(self._temperature[2]).value) if code == OK else NAN
        return code, celsius

    def clock(self) -> tuple[int, float]:
        """nvmlDeviceGetClockInfo of the SMs [Hz]."""
        code, megahertz = self._ask("nvmlDeviceGetClockInfo", CLOCK_SM)
        return code, megahertz * 1e6


_GAUGES: tuple[tuple[str, Callable[[Gauges], tuple[int, float]]], ...] = (
    ("power_limit_watts", Gauges.limit),
    ("temperature_celsius", Gauges.temperature),
    ("sm_clock_hertz", Gauges.clock),
)


class SlowLane(NvmlLane):
    """Temperature, SM clock, limit in force and time throttled of one GPU, once a second. Keeps the power gate's bound."""

    def __init__(
        self, calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, counted: Counted, gauges: Gauges,
        answered: Sequence[tuple[str, Callable[[Gauges], tuple[int, float]]]], throttle: Sequence[tuple[int, str]],
        smoothing: tuple[int, float] | None = None,
    ) -> None:
        """smoothing: the field that tells whether power is smoothed, and what it told when the GPU was opened."""
        super().__init__(calls, handle, device_id, counted)
        self._gauges = gauges
        self._answered = tuple(read for _, read in answered)
        self._throttles = tuple(f"throttled_seconds_total/{reason}" for _, reason in throttle)
        self._smoothing = smoothing
        watched = [smoothing[0]] if smoothing is not None else []
        self._batch = FieldBatch(calls, [(field, 0) for field in (*(field for field, _ in throttle), *watched)])
        keys = (*(key for key, _ in answered), *self._throttles)
        self.source = Source(f"nvml/{device_id}/slow", tuple(f"{device_id}/{key}" for key in keys), interval_s)

    def read(self) -> Sequence[float]:
        """All channels; NaN for what was not read. LaneError where the board has come to smooth its power, or ceased to."""
        self._failures.check(self._batch.read(self._handle))
        if self._smoothing is not None and self._batch.values[-1] not in (self._smoothing[1], *self._unread()):
            raise LaneError("power_smoothing_changed", REDISCOVER)
        values = []
        for read in self._answered:
            code, value = read(self._gauges)
            if code != OK:
                self._failures.entry(code)
            values.append(value)
        values.extend(1e-9 * self._total(key, self._batch, i, i + 1) for i, key in enumerate(self._throttles))
        return values

    def _unread(self) -> tuple[float, ...]:
        """The last entry of the batch, where it was not answered this time."""
        return (self._batch.values[-1],) if self._batch.codes[-1] != OK else ()


def open_slow_lane(
    calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, counted: Counted, gate: PowerGate,
    renumbered: Mapping[str, int] = MappingProxyType({}),
) -> SlowLane:
    """Ask the board what it answers, and make the lane that reads just that. renumbered: field ids of this driver."""
    throttle = (*THROTTLE_FIELDS, *((renumbered[name], name) for name in THROTTLE_RENUMBERED if name in renumbered))
    smoothing = renumbered.get("power_smoothing")
    asked = (*(field for field, _ in throttle), *((smoothing,) if smoothing is not None else ()))
    answers = probe_fields(calls, handle, tuple((field, 0) for field in asked))
    gauges = Gauges(calls, handle, gate)
    return SlowLane(
        calls, handle, device_id, interval_s=interval_s, counted=counted, gauges=gauges,
        answered=[(key, read) for key, read in _GAUGES if read(gauges)[0] not in PERMANENT],
        throttle=[pair for pair, answer in zip(throttle, answers, strict=False) if answer is not None],
        smoothing=(smoothing, answers[-1]) if smoothing is not None and answers[-1] is not None else None,
    )  # fmt: skip
