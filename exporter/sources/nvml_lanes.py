"""The fast lane of NVML readings of one GPU: power, energy, utilisation, NVLink bytes; and what it shares with the slow one.

`nvml_gpu.py` makes it when it opens a GPU, the reader ticks it. All fields of a tick are one call. What a board does not
answer when it is opened has no channel; what it answers with nonsense is dropped and counted, and so is the step of a
counter that began anew: it goes down, and whoever takes differences leaves that one out.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence

from exporter.clock import Clock
from exporter.model import Source
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
    "implausible_power", "implausible_utilization", "counter_reset",
    "unsupported", "no_permission", "transient", "gpu_lost", "library",
)
Counted = dict[str, list[float]]
"""What the counters of one board stood at when they were read last: quantity -> a count per entry of its sum. It outlives
lanes and handles, so that a driver that was loaded anew is seen to have begun at 0."""

_HIGHEST_COUNTER = 2.0**62  # beyond lie the driver's ways to say that there is none
_UTILIZATION = struct.Struct("=II")
ENERGY, NVLINK_SENT, NVLINK_RECEIVED = "energy_joules_total", "nvlink_transmit_bytes_total", "nvlink_receive_bytes_total"
ENERGY_POLL_S = 0.05  # half the refresh of the energy counter


class NvmlLane:
    """What both lanes share: whose they are, how a failed call is turned into an error, how counters are read."""

    device_kind = "gpu"

    def __init__(self, calls: Calls, handle: ctypes.c_void_p, device_id: str, counted: Counted) -> None:
        self._calls = calls
        self._handle = handle
        self.device_id = device_id
        self.errors = Tally(REASONS)
        self._failures = Failures(self.errors)
        self._counted = counted

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
        self.errors.add("unsupported")
        return NAN

    def _total(self, quantity: str, batch: FieldBatch, begin: int, end: int) -> float:
        """Entries begin to end added up; NaN where one did not answer, so that the sum steps back at a reset and else never.

        A reset is counted once for the sum, however many of its entries began anew.
        """
        before = self._counted.setdefault(quantity, [])
        if len(before) != end - begin:
            before[:] = [-math.inf] * (end - begin)
        total, reset = 0.0, False
        for k in range(end - begin):
            value = self._counter(batch, begin + k)
            total += value
            if value == value:
                reset = reset or value < before[k]
                before[k] = value
        if reset:
            self.errors.add("counter_reset")
        return total


class FastLane(NvmlLane):
    """Power, energy, utilisation and NVLink bytes of one GPU, every tick: one field batch and one or two calls."""

    def __init__(
        self, calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, clock: Clock,
        counted: Counted, power: PowerSource | None, gate: PowerGate, nvlink: NvLink | None, with_energy: bool,
        with_utilization: bool,
    ) -> None:
        super().__init__(calls, handle, device_id, counted)
        self._clock = clock
        self._gate = gate
        entries: list[tuple[int, int]] = []
        reads: list[tuple[str, Callable[[], float]]] = []

        if power is not None:
            reads.append(("power_watts", self._power_reading(power, entries)))
        if with_energy:
            at = len(entries)
            entries.append((TOTAL_ENERGY, 0))
            reads.append((ENERGY, lambda: 1e-3 * self._total(ENERGY, self._batch, at, at + 1)))
        if with_utilization:
            reads.append(("utilization_ratio", self._utilization))
        if nvlink is not None:
            at_tx, at_rx = len(entries), len(entries) + nvlink.transmit
            end, scale = len(entries) + len(nvlink.entries), nvlink.bytes_per_unit
            entries.extend(nvlink.entries)
            reads.append((NVLINK_SENT, lambda: scale * self._total(NVLINK_SENT, self._batch, at_tx, at_rx)))
            reads.append((NVLINK_RECEIVED, lambda: scale * self._total(NVLINK_RECEIVED, self._batch, at_rx, end)))

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


def open_fast_lane(
    calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, clock: Clock, counted: Counted,
    power: PowerSource | None, gate: PowerGate, mig: bool, virtual: bool = False,
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
        calls, handle, device_id, interval_s=interval_s, clock=clock, counted=counted, power=power, gate=gate,
        nvlink=find_nvlink(calls, handle),
        with_energy=bool(energy),  # a counter that stands at 0 on a live board is a vGPU's way of saying no
        with_utilization=code not in PERMANENT and (power is not None or virtual or busy),
    )  # fmt: skip
