"""Time: the only module that reads a clock or sleeps.

Readers and the daemon take a Clock as an argument: SystemClock in life, ManualClock in tests and offline, where time
moves only when it is told to.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol


class Clock(Protocol):
    """What the project needs of time."""

    def mono_s(self) -> float:
        """Monotonic seconds; the same clock in every process of the machine."""
        ...

    def wall_s(self) -> float:
        """Unix time."""
        ...

    def sleep_until(self, mono_s: float) -> None:
        """Return at `mono_s`, or at once if that has passed."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC and CLOCK_REALTIME (clock_gettime(2))."""

    def mono_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    def sleep_until(self, mono_s: float) -> None:
        left = mono_s - time.monotonic()
        if left > 0:
            time.sleep(left)


class ManualClock:
    """A clock that stands still until told; sleeping moves it on."""

    def __init__(self, mono_s: float = 0.0, wall_s: float = 1_767_225_600.0) -> None:
        self._mono_s = mono_s
        self._wall_offset_s = wall_s - mono_s

    def mono_s(self) -> float:
        return self._mono_s

    def wall_s(self) -> float:
        return self._mono_s + self._wall_offset_s

    def sleep_until(self, mono_s: float) -> None:
        self._mono_s = max(self._mono_s, mono_s)

    def set(self, mono_s: float) -> None:
        """Move to `mono_s`; never back."""
        self.sleep_until(mono_s)


def every(period_s: float, clock: Clock, start_mono_s: float | None = None) -> Iterator[tuple[float, int]]:
    """Yield (lateness_s, missed) at absolute deadlines that do not drift.

    Deadlines are start + k * period. A late tick is not caught up in a burst: the deadlines that have passed meanwhile
    are skipped and counted in `missed`. The phase stays that of the start.

    >>> clock = ManualClock()
    >>> ticks = every(0.1, clock, 0.0)
    >>> next(ticks), round(clock.mono_s(), 1)
    ((0.0, 0), 0.1)
    >>> clock.set(0.45)
    >>> lateness, missed = next(ticks)
    >>> round(lateness, 2), missed
    (0.05, 2)
    """
    start = clock.mono_s() if start_mono_s is None else start_mono_s
    k = 0
    while True:
        k += 1
        now = clock.mono_s()
        behind = int((now - start) / period_s + 1e-9)  # the last deadline that has passed already
        missed = max(0, behind - k)
        k += missed
        deadline = start + k * period_s
        clock.sleep_until(deadline)
        yield max(0.0, clock.mono_s() - deadline), missed
