"""The two lanes of NVML readings of one GPU: fast (power, energy, utilisation, NVLink) and slow (temperature, clocks,
limit, time throttled).

`nvml.py` makes them when it opens a GPU, the reader ticks them. All fields of a tick are one call. What a board does not
answer when it is opened has no channel; what it answers with nonsense is dropped and counted.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from exporter.clock import Clock
from exporter.model import Source
from exporter.sources import REDISCOVER, LaneError
from exporter.sources.nvml_calls import (
    FUNCTION_NOT_FOUND,
    NAN,
    OK,
    PERMANENT,
    Calls,
    Failures,
    FieldBatch,
    Tally,
    ask,
    probe_fields,
)
from exporter.sources.nvml_links import NvLink, find_nvlink
from exporter.sources.nvml_power import TOTAL_ENERGY, EnergyMeter, PowerGate, PowerSource

# Why a reading was not given; the counters of the kind "nvml" have these and no others.
REASONS = (
    "implausible_power", "implausible_utilization", "implausible_counter",
    "unsupported", "no_permission", "transient", "gpu_lost", "library",
)

THROTTLE_FIELDS = ((74, "power_cap"), (75, "sw_thermal"), (76, "sync_boost"))  # NVML_FI_DEV_PERF_POLICY_*, ns
THROTTLE_RENUMBERED = ("hw_thermal", "power_brake")  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_*, ns; see nvml_fields.py
CLOCK_SM, TEMPERATURE_GPU = 1, 0
TEMPERATURE_V1 = 0x0100000C  # version of nvmlTemperature_v1_t: sensor, value
_HIGHEST_COUNTER = 2.0**62  # beyond lie the sentinels for "blank"
_UTILIZATION = struct.Struct("=II")
ENERGY_POLL_S = 0.05  # half the refresh of the energy counter


class _Lane:
    """What both lanes share: whose they are, and how a call that failed is turned into an error."""

    device_kind = "gpu"

    def __init__(self, calls: Calls, handle: ctypes.c_void_p, device_id: str) -> None:
        self._calls = calls
        self._handle = handle
        self.device_id = device_id
        self.errors = Tally(REASONS)
        self._failures = Failures(self.errors)

    def close(self) -> None:
        """A handle needs no closing; it dies with the session."""

    def _counter(self, batch: FieldBatch, i: int) -> float:
        """Entry i as a counter; NaN, and counted, where it failed or holds a sentinel."""
        code = batch.codes[i]
        if code != OK:
            self._failures.entry(code)
            return NAN
        value = batch.values[i]
        if 0.0 <= value < _HIGHEST_COUNTER:
            return value
        self.errors.add("implausible_counter")
        return NAN


class FastLane(_Lane):
    """Power, energy, utilisation and NVLink bytes of one GPU, every tick: one field batch and one or two calls."""

    def __init__(
        self, calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, clock: Clock,
        power: PowerSource | None, gate: PowerGate, nvlink: NvLink | None, with_energy: bool, with_utilization: bool,
    ) -> None:
        super().__init__(calls, handle, device_id)
        self._clock = clock
        self._gate = gate
        entries: list[tuple[int, int]] = []
        reads: list[tuple[str, Callable[[], float]]] = []

        if power is not None:
            reads.append(("power_watts", self._power_reading(power, entries)))
        if with_energy:
            at = len(entries)
            entries.append((TOTAL_ENERGY, 0))
            reads.append(("energy_joules_total", lambda: self._joules(at)))
        if with_utilization:
            reads.append(("utilization_ratio", self._utilization))
        if nvlink is not None:
            at_tx, at_rx = len(entries), len(entries) + nvlink.transmit
            end, scale = len(entries) + len(nvlink.entries), nvlink.bytes_per_unit
            entries.extend(nvlink.entries)
            reads.append(("nvlink_transmit_bytes_total", lambda: self._sum(at_tx, at_rx, scale)))
            reads.append(("nvlink_receive_bytes_total", lambda: self._sum(at_rx, end, scale)))

        self._batch = FieldBatch(calls, entries)
        self._reads = tuple(read for _, read in reads)
        self._usage = ctypes.c_uint()
        self._usage_call = calls.function("nvmlDeviceGetPowerUsage")
        self._utilization_memory = bytearray(_UTILIZATION.size)
        self._utilization_pointer = (ctypes.c_char * _UTILIZATION.size).from_buffer(self._utilization_memory)
        self._utilization_call = calls.function("nvmlDeviceGetUtilizationRates")
        if power is not None and power.rung == "energy":
            interval_s = min(interval_s, ENERGY_POLL_S)
        self.source = Source(f"nvml/{device_id}", tuple(f"{device_id}/{key}" for key, _ in reads), interval_s)

    def read(self) -> Sequence[float]:
        """All channels; NaN for what was not read or cannot be."""
        self._failures.check(self._batch.read(self._handle))
        return [read() for read in self._reads]

    def _power_reading(self, power: PowerSource, entries: list[tuple[int, int]]) -> Callable[[], float]:
        """The function that reads this rung; adds the field that it needs to `entries`."""
        at = len(entries)
        if power.field is not None:
            entries.append(power.field)
            return lambda: self._field_watts(at)
        if power.rung == "energy":
            entries.append((TOTAL_ENERGY, 0))
            meter = EnergyMeter()
            return lambda: self._believable(meter.watts(self._clock.mono_s(), self._counter(self._batch, at) * 1e-3))
        return self._usage_watts

    def _believable(self, watts: float) -> float:
        if self._gate.passes(watts):
            return watts
        if not math.isnan(watts):
            self.errors.add("implausible_power")
        return NAN

    def _field_watts(self, at: int) -> float:
        code = self._batch.codes[at]
        if code != OK:
            self._failures.entry(code)
            return NAN
        watts = self._batch.values[at] * 1e-3
        if self._gate.passes(watts):
            return watts
        self.errors.add("implausible_power")
        return NAN

    def _usage_watts(self) -> float:
        """nvmlDeviceGetPowerUsage, mW."""
        code = FUNCTION_NOT_FOUND if self._usage_call is None else self._usage_call(self._handle, ctypes.byref(self._usage))
        if code == OK:
            return self._believable(self._usage.value * 1e-3)
        self._failures.entry(code)
        return NAN

    def _joules(self, at: int) -> float:
        return self._counter(self._batch, at) * 1e-3

    def _utilization(self) -> float:
        """nvmlDeviceGetUtilizationRates: percent of the driver's last sample period with a kernel resident."""
        call = self._utilization_call
        code = FUNCTION_NOT_FOUND if call is None else call(self._handle, self._utilization_pointer)
        if code != OK:
            self._failures.entry(code)
            return NAN
        percent, _ = _UTILIZATION.unpack(self._utilization_memory)
        if percent <= 100:
            return float(percent) / 100.0
        self.errors.add("implausible_utilization")
        return NAN

    def _sum(self, begin: int, end: int, bytes_per_unit: float) -> float:
        """Bytes over all links; NaN when one of them did not answer, so that the sum never steps back."""
        total = 0.0
        for i in range(begin, end):
            total += self._counter(self._batch, i)
        return total * bytes_per_unit


def open_fast_lane(
    calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, clock: Clock, power: PowerSource | None,
    gate: PowerGate, mig: bool, virtual: bool = False,
) -> FastLane:
    """Ask the board what it answers, and make the lane that reads just that. virtual: a virtual machine's part of a GPU.

    A board without any power that shows no utilisation either may never show any (Jetson Thor answers 0 for ever); only of
    a part of a GPU is that known to be a pause.
    """
    (energy,) = probe_fields(calls, handle, ((TOTAL_ENERGY, 0),))
    memory = (ctypes.c_uint * 2)()
    code = FUNCTION_NOT_FOUND if mig else ask(calls, "nvmlDeviceGetUtilizationRates", handle, memory)
    busy = any(memory)
    return FastLane(
        calls, handle, device_id, interval_s=interval_s, clock=clock, power=power, gate=gate,
        nvlink=find_nvlink(calls, handle),
        with_energy=bool(energy),  # a counter that stands at 0 on a live board is a vGPU's way of saying no
        with_utilization=code not in PERMANENT and (power is not None or virtual or busy),
    )  # fmt: skip


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


class SlowLane(_Lane):
    """Temperature, SM clock, limit in force and time throttled of one GPU, once a second. Keeps the power gate's bound."""

    def __init__(
        self, calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, gauges: Gauges,
        answered: Sequence[tuple[str, Callable[[Gauges], tuple[int, float]]]], throttle: Sequence[tuple[int, str]],
        smoothing: tuple[int, float] | None = None,
    ) -> None:
        """smoothing: the field that tells whether power is smoothed, and what it told when the GPU was opened."""
        super().__init__(calls, handle, device_id)
        self._gauges = gauges
        self._answered = tuple(read for _, read in answered)
        self._throttles = len(throttle)
        self._smoothing = smoothing
        watched = [smoothing[0]] if smoothing is not None else []
        self._batch = FieldBatch(calls, [(field, 0) for field in (*(field for field, _ in throttle), *watched)])
        keys = [key for key, _ in answered] + [f"throttled_seconds_total/{reason}" for _, reason in throttle]
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
        values.extend(self._counter(self._batch, i) * 1e-9 for i in range(self._throttles))
        return values

    def _unread(self) -> tuple[float, ...]:
        """The last entry of the batch, where it was not answered this time."""
        return (self._batch.values[-1],) if self._batch.codes[-1] != OK else ()


def open_slow_lane(
    calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, gate: PowerGate,
    renumbered: Mapping[str, int] = MappingProxyType({}),
) -> SlowLane:
    """Ask the board what it answers, and make the lane that reads just that. renumbered: field ids of this driver."""
    throttle = (*THROTTLE_FIELDS, *((renumbered[name], name) for name in THROTTLE_RENUMBERED if name in renumbered))
    smoothing = renumbered.get("power_smoothing")
    asked = (*(field for field, _ in throttle), *((smoothing,) if smoothing is not None else ()))
    answers = probe_fields(calls, handle, tuple((field, 0) for field in asked))
    gauges = Gauges(calls, handle, gate)
    return SlowLane(
        calls, handle, device_id, interval_s=interval_s, gauges=gauges,
        answered=[(key, read) for key, read in _GAUGES if read(gauges)[0] not in PERMANENT],
        throttle=[pair for pair, answer in zip(throttle, answers, strict=False) if answer is not None],
        smoothing=(smoothing, answers[-1]) if smoothing is not None and answers[-1] is not None else None,
    )  # fmt: skip
