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
    """Running totals per role (exporter, reader_gpu, reader_net); the time of ended processes is kept."""

    def __init__(self) -> None:
        self._alive: dict[str, dict[int, float]] = {}
        self._ended_cpu_s: dict[str, float] = {}
        self._memory_bytes: dict[str, float | None] = {}
        self._memory_at_s = float("-inf")

    def measure(self, pids: Mapping[str, tuple[int, ...]], now_s: float) -> tuple[ProcessCost, ...]:
        """Cost of every role; `pids` names the processes that are alive now."""
        with_memory = now_s - self._memory_at_s >= _MEMORY_EVERY_S
        if with_memory:
            self._memory_at_s = now_s
        for role, alive in pids.items():
            before = self._alive.get(role, {})
            self._ended_cpu_s[role] = self._ended_cpu_s.get(role, 0.0) + sum(s for p, s in before.items() if p not in alive)
            self._alive[role] = {pid: _cpu_s(pid, before.get(pid, 0.0)) for pid in alive}
            if with_memory:
                sizes = [_proportional_bytes(pid) for pid in alive]
                self._memory_bytes[role] = None if not sizes or None in sizes else float(sum(s or 0 for s in sizes))
        return tuple(
            ProcessCost(role, self._ended_cpu_s[role] + sum(alive.values()), self._memory_bytes.get(role))
            for role, alive in self._alive.items()
        )


def _cpu_s(pid: int, before_s: float) -> float:
    """User and system time of a process; what was known before where it cannot be asked any more."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return before_s
    return float(times.user + times.system)


def _proportional_bytes(pid: int) -> int | None:
    """Pss of /proc/<pid>/smaps_rollup (Linux 4.14 and later); None where it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)
