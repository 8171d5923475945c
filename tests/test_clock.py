"""Deadlines do not drift, and late ticks are counted, not caught up."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from exporter.clock import ManualClock, SystemClock, every


def test_deadlines_stay_on_the_grid_of_the_start() -> None:
    clock = ManualClock(100.0)
    at = [clock.mono_s() for _ in islice(every(0.02, clock), 5000)]
    assert abs(at[-1] - (100.0 + 5000 * 0.02)) < 1e-6


def test_a_late_tick_is_counted_and_not_made_up_for_in_a_burst() -> None:
    clock = ManualClock()
    ticks = every(1.0, clock)
    next(ticks)
    clock.set(5.5)  # 2, 3, 4 and 5 have passed: one tick for the last of them, three missed
    assert next(ticks) == (0.5, 3)
    assert next(ticks) == (0.0, 0)
    assert clock.mono_s() == 6.0


@given(st.lists(st.floats(0.0, 0.7), min_size=1, max_size=60))
def test_ticks_and_missed_ticks_together_are_all_deadlines(delays: list[float]) -> None:
    clock = ManualClock()
    seen = 0
    ticks = every(0.1, clock)
    for delay in delays:
        _, missed = next(ticks)
        seen += 1 + missed
        assert abs(clock.mono_s() - max(seen * 0.1, clock.mono_s())) < 1e-9
        clock.set(clock.mono_s() + delay)
    assert seen * 0.1 <= clock.mono_s() + 1e-9


def test_the_system_clock_sleeps_until_the_deadline_and_not_for_one_that_has_passed() -> None:
    clock = SystemClock()
    start = clock.mono_s()
    clock.sleep_until(start + 0.02)
    assert clock.mono_s() >= start + 0.02
    clock.sleep_until(start)
