"""The ladder of power readings: which of NVML's five ways to read power shows the phases of a job on this board.

`nvml_gpu.py` asks once per device when it opens it; the choice is made by asking the board, not by its name. A reading that
is averaged over a second hides every step of two seconds and less, so it comes last and is called by its name.
Windows and refresh periods: Yang, Adamek, Armour 2024, "Part-time Power Measurements" (doi 10.1109/SC41406.2024.00028);
which calls are averaged on which architecture: nvml.h at nvmlDeviceGetPowerUsage.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

from exporter.sources.nvml_calls import Calls, ask_u32, probe_fields

POWER_AVERAGE, POWER_INSTANT, POWER_CURRENT_LIMIT, TOTAL_ENERGY = 185, 186, 190, 83  # NVML_FI_DEV_*
SCOPE_GPU, SCOPE_MODULE = 0, 1
HIGHEST_BELIEVABLE_WATTS = 3000.0  # for one GPU whose limit is not known
LIMIT_FACTOR = 1.5  # short peaks above the limit are real, more than this is not

TURING, AMPERE, BLACKWELL = 6, 7, 10  # nvmlDeviceArchitecture_t
GA100 = (8, 0)  # compute capability of A100 and A30, whose sensor is not that of the other Amperes


@dataclass(frozen=True, slots=True)
class Board:
    """What decides about a power sensor. architecture is nvmlDeviceArchitecture_t, None where the driver does not say."""

    architecture: int | None
    compute_capability: tuple[int, int] | None

    @property
    def usage_is_instant(self) -> bool:
        """nvmlDeviceGetPowerUsage is a mean over one second from GA10x on, but not on GA100 and before Ampere."""
        return self.compute_capability == GA100 or (self.architecture is not None and self.architecture <= TURING)


@dataclass(frozen=True, slots=True)
class PowerSource:
    """A rung: its name on the info series, the field that is read (None: the call, or the energy counter), its timing."""

    rung: str  # instant, usage, energy, module, average
    field: tuple[int, int] | None
    window_s: float
    refresh_s: float


# architecture (up to and with), compute capability: refresh, averaging window [s] of the momentary reading
MOMENTARY: tuple[tuple[float, tuple[int, int] | None, float, float], ...] = (
    (5, None, 0.020, 0.010),  # Pascal, Volta
    (TURING, None, 0.100, 0.100),
    (AMPERE, GA100, 0.100, 0.025),  # looks for 25 ms and is blind for 75
    (AMPERE, None, 0.100, 0.100),
    (8, None, 0.100, 0.100),  # Ada
    (9, None, 0.100, 0.025),  # Hopper
    (math.inf, None, 0.100, 0.005),  # Blackwell: a point every 100 ms
)
_UNKNOWN_TIMING = (0.100, 0.100)
_AVERAGE_TIMING = (0.100, 1.000)
_ENERGY_TIMING = (0.100, 0.100)


def momentary_timing(board: Board) -> tuple[float, float]:
    """Refresh and window [s] of field 186, and of the call where that is momentary.

    >>> momentary_timing(Board(7, (8, 0))), momentary_timing(Board(7, (8, 6)))
    ((0.1, 0.025), (0.1, 0.1))
    """
    if board.architecture is None:
        return _UNKNOWN_TIMING
    return next(
        (refresh_s, window_s)
        for last, capability, refresh_s, window_s in MOMENTARY
        if board.architecture <= last and capability in (None, board.compute_capability)
    )


def choose_power(calls: Calls, handle: ctypes.c_void_p, board: Board) -> PowerSource | None:
    """The best rung that answers; None where the board tells no power at all: 0 W is no answer of a board that lives.

    In this order: a momentary reading of the GPU (field, then call), the derivative of its energy, a momentary reading of
    its module, a mean over a second. Module scope exists on Grace only and has the CPU in it. The energy counter takes no
    scope: it is the GPU's where the board tells any power of the GPU, and has the CPU in it where the board tells that of
    the module alone (as on GH200, ml-energy/zeus#172). Then energy is a reading of the module too, and the lesser one.
    """
    instant, average, in_module, module_average, energy, limit, module_limit = probe_fields(calls, handle, (
        (POWER_INSTANT, SCOPE_GPU), (POWER_AVERAGE, SCOPE_GPU), (POWER_INSTANT, SCOPE_MODULE), (POWER_AVERAGE, SCOPE_MODULE),
        (TOTAL_ENERGY, 0), (POWER_CURRENT_LIMIT, SCOPE_GPU), (POWER_CURRENT_LIMIT, SCOPE_MODULE),
    ))
    usage = ask_u32(calls, "nvmlDeviceGetPowerUsage", handle)
    two_limits = None not in (limit, module_limit) and limit != module_limit

    def of_gpu(watts: float | None, of_module: float | None) -> bool:
        """A GPU's power that is the module's to the milliwatt, under another limit, is the module's by another name."""
        return bool(watts) and not (two_limits and watts == of_module)

    refresh_s, window_s = momentary_timing(board)
    tells_gpu = of_gpu(instant, in_module) or of_gpu(average, module_average)
    average_s = (_AVERAGE_TIMING[1], _AVERAGE_TIMING[0])
    rungs: tuple[tuple[bool, PowerSource], ...] = (
        (of_gpu(instant, in_module), PowerSource("instant", (POWER_INSTANT, SCOPE_GPU), window_s, refresh_s)),
        (bool(usage) and board.usage_is_instant, PowerSource("usage", None, window_s, refresh_s)),
        (bool(energy) and (tells_gpu or not in_module), PowerSource("energy", None, _ENERGY_TIMING[1], _ENERGY_TIMING[0])),
        (bool(in_module), PowerSource("module", (POWER_INSTANT, SCOPE_MODULE), window_s, refresh_s)),
        (of_gpu(average, module_average), PowerSource("average", (POWER_AVERAGE, SCOPE_GPU), *average_s)),
        (bool(usage), PowerSource("average", None, *average_s)),
    )
    return next((source for answers, source in rungs if answers), None)


class PowerGate:
    """What power a board can have: above 0, at most one and a half times its limit."""

    def __init__(self, limit_watts: float | None) -> None:
        self.highest_watts = HIGHEST_BELIEVABLE_WATTS
        self.set_limit(limit_watts)

    def set_limit(self, limit_watts: float | None) -> None:
        """The limit in force, as it was read last; None leaves the bound as it is."""
        if limit_watts is not None and limit_watts > 0:
            self.highest_watts = LIMIT_FACTOR * limit_watts

    def passes(self, watts: float) -> bool:
        """False for NaN too."""
        return 0.0 < watts <= self.highest_watts


class EnergyMeter:
    """Watts from an energy counter that takes a new value every so often: energy per refresh over the refresh period.

    The instant of a change is known only to a poll; the number of changes is known exactly. So the time of one step of
    the counter is its long-run mean, and a change is worth a whole number of steps. Needs polls at twice the refresh.
    Between changes the last value holds, as with any sensor.

    >>> meter = EnergyMeter()
    >>> [meter.watts(t / 20, 500.0 * (t // 2) / 10) for t in range(6)][-1]
    500.0
    """

    _FORGET_S = 30.0  # the mean is over at least this long, then starts anew at half its weight

    def __init__(self) -> None:
        self._joules = math.nan
        self._changed_s = math.nan
        self._span_s = 0.0
        self._steps = 0
        self._watts = math.nan

    def watts(self, mono_s: float, joules: float) -> float:
        """Power after this reading [W]; NaN before the second change, after a reset of the counter, and for NaN."""
        if joules != joules:
            return math.nan
        if not joules >= self._joules:  # the first reading, or a counter that began anew
            self._joules, self._changed_s, self._watts = joules, math.nan, math.nan
            return math.nan
        if joules == self._joules:
            return self._watts
        gained, self._joules = joules - self._joules, joules
        since_s, self._changed_s = mono_s - self._changed_s, mono_s
        if since_s != since_s or since_s <= 0.0:
            return math.nan
        step_s = self._span_s / self._steps if self._steps else since_s
        steps = max(1, round(since_s / step_s))
        self._span_s += since_s
        self._steps += steps
        self._watts = gained / (steps * self._span_s / self._steps)
        if self._span_s > self._FORGET_S:
            self._span_s, self._steps = self._span_s / 2, max(1, self._steps // 2)
        return self._watts
