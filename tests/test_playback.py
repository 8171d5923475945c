"""A feed from a trace or a simulation: events come when they are due, on a clock that may run faster than life."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.clock import ManualClock
from exporter.model import Event, Inventory, Record
from exporter.playback import Playback


def events() -> Iterator[Event]:
    yield Inventory("n", 5.0)
    for k in range(1, 31):
        yield Record("s", k / 10, (float(k),))


def played(feed: Playback, until_s: float) -> list[float]:
    got: list[float] = []
    while feed.now_s() < until_s - 1e-6:
        got += [e.t_s for e in feed.poll(until_s) if isinstance(e, Record)]
    return got


def test_nothing_comes_before_its_time() -> None:
    feed = Playback(events, ManualClock())
    assert played(feed, 1.0) == [k / 10 for k in range(1, 11)]
    assert not feed.done
    assert len(played(feed, 3.5)) == 20
    assert feed.done


def test_ten_times_the_speed_takes_a_tenth_of_the_time() -> None:
    clock = ManualClock(100.0)
    feed = Playback(events, clock, speed=10.0)
    assert len(played(feed, 3.1)) == 30
    assert abs(clock.mono_s() - 100.31) < 1e-6


def test_a_loop_goes_on_in_time_where_the_round_before_ended() -> None:
    feed = Playback(events, ManualClock(), loop=True)
    got = played(feed, 9.0)
    assert got == sorted(got)
    assert len(got) == len(set(got)) > 80
    assert not feed.done


def test_the_inventory_is_dated_at_the_start_of_the_playback() -> None:
    clock = ManualClock(0.0, wall_s=2e9)
    first = Playback(events, clock).poll(1.0)[0]
    assert isinstance(first, Inventory)
    assert first.started_unix_s == 2e9


def test_polling_never_waits_past_what_was_asked_for() -> None:
    clock = ManualClock()
    feed = Playback(events, clock)
    feed.poll(0.01)
    assert clock.mono_s() == 0.01
