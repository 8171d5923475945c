"""What the exporter itself costs: CPU time and memory of its processes. Asked once a second by `app`.

Memory is the proportional set size: pages shared between our processes are counted once (proc(5), smaps_rollup). It is
read less often than CPU time, because the kernel walks the page tables for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

from exporter.model import ProcessCost

_MEMORY_EVERY_S = 10.0


class Processes:
    """Running totals per role (exporter, reader_gpu, reader_net)."""

    def __init__(self) -> None:
        self._memory_bytes: dict[str, float | None] = {}
        self._memory_at_s = float("-inf")

    def measure(
        self, pids: Mapping[str, tuple[int, ...]], ended_cpu_s: Mapping[str, float], now_s: float
    ) -> tuple[ProcessCost, ...]:
        """Cost of every role: of the processes that are alive, and the CPU time of those that have ended."""
        if now_s - self._memory_at_s >= _MEMORY_EVERY_S:
            self._memory_at_s = now_s
            for role, alive in pids.items():
                sizes = [_proportional_bytes(pid) for pid in alive]
                self._memory_bytes[role] = None if not sizes or None in sizes else float(sum(s or 0 for s in sizes))
        return tuple(
            ProcessCost(role, ended_cpu_s.get(role, 0.0) + sum(_cpu_s(pid) for pid in alive), self._memory_bytes.get(role))
            for role, alive in pids.items()
        )


def _cpu_s(pid: int) -> float:
    """User and system time of a process; 0 where it has just ended and is booked in a moment."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _proportional_bytes(pid: int) -> int | None:
    """Pss of /proc/<pid>/smaps_rollup (Linux 4.14 and later); None where it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)
