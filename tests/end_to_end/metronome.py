"""How long this machine kept everybody waiting: what is late because of others is not held against the exporter.

Two things are written down while a block runs: by how much this process woke up too late, and how long threads of the exporter
stood in the queue for a CPU although they had something to do (second word of /proc/PID/task/TID/schedstat, kernel
documentation scheduler/sched-stats). On a machine that is idle both are nothing, and limits hold to the letter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICK_S = 0.02
_LATE_S = 0.06
_QUEUE_S = 0.1  # between two looks at the queue


class Metronome:
    """A thread that wakes every 20 ms. follow: from then on the threads of a process and of its children are watched."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []  # when, and for how long
        self._queued: list[tuple[float, float]] = []
        self._followed: int | None = None
        self._waited_s: dict[str, float] = {}  # by thread, since it began
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Metronome:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def follow(self, pid: int) -> None:
        """Watch the threads of the daemon and of its readers."""
        self._followed = pid

    def _run(self) -> None:
        before = looked = time.monotonic()
        while not self._end.wait(_TICK_S):
            now = time.monotonic()
            if now - before > _LATE_S:
                self._late.append((now, now - before))
            if now - looked >= _QUEUE_S:
                looked = now
                if (queued_s := self._look_at_queue()) > 0.0:
                    self._queued.append((now, queued_s))
            before = time.monotonic()

    def _look_at_queue(self) -> float:
        """How much longer the daemon and the slowest of its readers have waited for a CPU since the last look."""
        if self._followed is None:
            return 0.0
        own_s, *readers_s = [self._more(pid) for pid in (self._followed, *_children(self._followed))]
        return own_s + max(readers_s, default=0.0)

    def _more(self, pid: int) -> float:
        more_s = 0.0
        for file, waited_s in _waits(pid):
            more_s += waited_s - self._waited_s.get(file, waited_s)
            self._waited_s[file] = waited_s
        return more_s

    def held_up_s(self, start: float, end: float) -> float:
        """How much later than it should anything may have happened between two instants."""
        late_s = sum(late for at, late in list(self._late) if start - 0.5 <= at <= end + 0.5)
        return late_s + sum(queued for at, queued in list(self._queued) if start - _QUEUE_S <= at <= end + _QUEUE_S)


def _waits(pid: int) -> Iterator[tuple[str, float]]:
    """Each thread of a process, and how long it has waited for a CPU in its life; nothing where the kernel does not count."""
    with suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(OSError, IndexError):
                yield str(task), int((task / "schedstat").read_text().split()[1]) * 1e-9


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
