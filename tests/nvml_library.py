"""Compiles the fake NVML library (fake_nvml.c) and drives it: a fake node is a value, its faults are edits of that value.

    machine = FakeNvml(directory, boards=[Board(), Board()])
    machine.edit(1, error=GPU_IS_LOST)

The wave of a board is a function of CLOCK_MONOTONIC alone, with phase zero at 0 of that clock, so that a writer of a sysfs
tree can show the traffic of the same job without talking to the library: see Wave.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("fake_nvml.c")
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN = 1, 2, 3, 9, 15, 999
LIB_RM_VERSION_MISMATCH = 18
ALL_CALLS = ("instant", "average", "usage", "energy", "utilization", "gpm", "nvlink", "throttle", "xid", "clocks")


@cache
def build() -> Path:
    """The compiled library; once per process, shared by the processes of a parallel run through its name."""
    digest = format(abs(hash_of(SOURCE.read_bytes())), "x")
    directory = Path(tempfile.gettempdir()) / f"overlap-fake-nvml-{os.getuid()}-{digest}"
    library = directory / "libnvidia-ml.so.1"
    if not library.exists():
        directory.mkdir(exist_ok=True)
        fresh = directory / f"fresh-{os.getpid()}.so"
        compiler = shutil.which("gcc") or "cc"
        subprocess.run(
            [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", fresh,
             SOURCE, "-lm", "-lpthread"],
            check=True,
        )
        fresh.rename(library)
    return library


def hash_of(data: bytes) -> int:
    """FNV-1a, so that the name of the build does not change from process to process."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


@dataclass(frozen=True)
class Wave:
    """Compute, communication, idle, and again: what a job does at CLOCK_MONOTONIC t.

    The place in the step is u = (t + phase_s) mod period: compute while u < compute_s, then communication for
    communication_s (traffic flows exactly then, in antiphase to the power), then idle_s without any kernel. Traffic may be
    late by shift_s. phase_s is 0 or more.
    """

    compute_watts: float = 650.0
    communication_watts: float = 250.0
    compute_s: float = 0.7
    communication_s: float = 0.3
    phase_s: float = 0.0
    idle_watts: float = 80.0
    idle_s: float = 0.0

    @property
    def period_s(self) -> float:
        return self.compute_s + self.communication_s + self.idle_s

    def integral(self, values: tuple[float, float, float], t: float) -> float:
        """Integral, up to t, of a function that is values[i] in part i of the step; zero lies at t = -phase_s."""
        whole, u = divmod(t + self.phase_s, self.period_s)
        total = 0.0
        for value, length in zip(values, (self.compute_s, self.communication_s, self.idle_s), strict=True):
            part = min(u, length)
            total += value * (whole * length + part)
            u -= part
        return total

    def watts(self, t: float) -> float:
        """Power at t."""
        u = math.fmod(t + self.phase_s, self.period_s)
        return (self.compute_watts if u < self.compute_s
                else self.communication_watts if u < self.compute_s + self.communication_s else self.idle_watts)

    def mean_watts(self, start: float, end: float) -> float:
        """Mean power between two times."""
        watts = (self.compute_watts, self.communication_watts, self.idle_watts)
        return (self.integral(watts, end) - self.integral(watts, start)) / (end - start)

    def traffic_bytes(self, t: float, bytes_per_s: float, shift_s: float = 0.0) -> int:
        """A byte counter at t that grows by bytes_per_s while communication lasts: what a port shows."""
        return int(self.integral((0.0, bytes_per_s, 0.0), t - shift_s))


@dataclass(frozen=True)
class Board:
    """One GPU of the fake node. Settings are those of fake_nvml.c; `index` fills what is left empty."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = ""
    bdf: str = ""
    arch: int = 9
    cc: str = "9.0"
    limit: float = 700.0
    module_limit: float = 0.0
    module_extra: float = 0.0
    energy_extra: float = 0.0
    counted_from: float = -1.0
    mig: int = 0
    mig_uuids: tuple[str, ...] = ()
    links: int = 18
    wave: Wave = field(default_factory=Wave)
    nvlink: tuple[float, float] = (100e9, 0.0)  # bytes per second in communication, seconds late
    instant: tuple[float, float, float] = (0.025, 0.1, 0.0)  # window, refresh, phase of the sensor
    average: tuple[float, float, float] = (1.0, 0.1, 0.0)
    usage: tuple[float, float, float] = (1.0, 0.1, 0.0)
    energy: tuple[float, float, float] = (0.0, 0.1, 0.0)
    noise: float = 0.0
    supports: tuple[str, ...] = ALL_CALLS
    latency_ms: float = 0.0
    error: int = 0
    open_error: int = 0
    entry_error: int = 0
    hang: float = 0.0
    crash: int = 0
    fault_calls: tuple[str, ...] = ()
    power_raw: tuple[str, str] | None = None
    util_raw: int = -1
    zeros: tuple[str, ...] = ()  # calls that answer 0 and mean nothing
    virtualization: int = 0
    smoothing: int = -1
    minor: int = -1  # of /dev/nvidiaN; -1: not told
    xids: tuple[tuple[int, int], ...] = ()  # code, events so far

    def lines(self, index: int) -> list[str]:
        """The board as the control file has it."""
        w = self.wave
        values: list[tuple[str, Any]] = [
            ("name", self.name), ("uuid", self.uuid or f"GPU-{index:08x}-0000-4000-8000-{index:012x}"),
            ("bdf", self.bdf or f"00000000:{0x18 + index:02X}:00.0"),
            *((key, getattr(self, key)) for key in (
                "arch", "cc", "limit", "module_limit", "module_extra", "energy_extra", "counted_from", "mig", "links",
                "noise", "latency_ms", "error", "open_error", "entry_error", "hang", "crash", "util_raw",
                "virtualization", "smoothing", "minor")),
            ("wave", f"{w.compute_watts} {w.communication_watts} {w.compute_s} {w.communication_s} {w.phase_s} "
                     f"{w.idle_watts} {w.idle_s}"),
            ("mig_uuids", ",".join(self.mig_uuids)),
            ("nvlink", "{} {}".format(*self.nvlink)),
            *(("sensor", "{} {} {} {}".format(key, *getattr(self, key))) for key in ("instant", "average", "usage", "energy")),
            ("supports", ",".join(self.supports)),
            *([("zeros", ",".join(self.zeros))] if self.zeros else []),
            *([("fault_calls", ",".join(self.fault_calls))] if self.fault_calls else []),
            *([("power_raw", " ".join(self.power_raw))] if self.power_raw else []),
            *(("xid", f"{code} {count}") for code, count in self.xids),
        ]  # fmt: skip
        return [f"gpu {index} {key} {value}" for key, value in values]


class FakeNvml:
    """A fake node: its library, its control file, its log."""

    def __init__(self, directory: Path, boards: list[Board], driver: str = "580.95.05") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.library = build()
        self.control = directory / "nvml.conf"
        self.log = directory / "nvml.log"
        self.boards = list(boards)
        self.general: dict[str, Any] = {"driver": driver}
        self.write()

    def write(self) -> None:
        """Put the control file in place at once, never half of it."""
        lines = [f"{key} {value}" for key, value in self.general.items()]
        for index, board in enumerate(self.boards):
            lines.extend(board.lines(index))
        fresh = self.control.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
        fresh.rename(self.control)

    def edit(self, index: int, **changes: Any) -> None:
        """Change one board; it takes effect within a few milliseconds."""
        self.boards[index] = replace(self.boards[index], **changes)
        self.write()

    def play(self, mono_s: float) -> None:
        """Let the boards of this process be at this time; -1 gives the clock back."""
        ctypes.CDLL(str(self.library)).overlap_fake_set_time(ctypes.c_double(mono_s))

    def set(self, **general: Any) -> None:
        """Change the library as a whole: init_error, error, missing, driver, time."""
        self.general.update(general)
        self.write()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to see this node; `library` goes to it by argument."""
        return {"OVERLAP_FAKE_NVML": str(self.control), "OVERLAP_FAKE_NVML_LOG": str(self.log)}

    def events(self) -> list[str]:
        """The log without process ids."""
        if not self.log.exists():
            return []
        return [line.split(" ", 1)[1] for line in self.log.read_text(encoding="utf-8").splitlines()]
