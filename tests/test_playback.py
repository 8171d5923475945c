"""A feed from a trace or a simulation: events come when they are due, on a clock that may run faster than life."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from exporter.clock import ManualClock
from exporter.model import Device, Event, Inventory, Record, Source
from exporter.playback import Playback
from exporter.quantities import quantity_of, split_channel
from exporter.sources.simulator import simulate


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


def values_of(feed: Playback, until_s: float) -> dict[str, list[float]]:
    """Channel -> what was read, in order, without what was not read."""
    channels: dict[str, tuple[str, ...]] = {}
    found: dict[str, list[float]] = {}
    while feed.now_s() < until_s - 1e-6:
        for event in feed.poll(until_s):
            if isinstance(event, Inventory):
                channels = {source.name: tuple(source.channels) for source in event.sources}
            elif isinstance(event, Record):
                for channel, value in zip(channels[event.source], event.values, strict=True):
                    found.setdefault(channel, []).extend([] if math.isnan(value) else [value])
    return found


def test_counters_never_fall_from_round_to_round_and_gauges_repeat() -> None:
    """A node of two GPUs, played three times: every counter of it goes on as if the node had kept running."""
    trace = list(simulate("serialized", 4.0, gpus=2))
    once = values_of(Playback(lambda: iter(trace), ManualClock(), 50.0), 4.0)
    thrice = values_of(Playback(lambda: iter(trace), ManualClock(), 50.0, loop=True), 12.2)
    (inventory,) = (e for e in trace if isinstance(e, Inventory))
    kinds = {device.id: device.kind for device in inventory.devices}
    counters = gauges = 0
    for channel, values in thrice.items():
        device, key = split_channel(channel, set(kinds)) or ("", "")
        row = quantity_of(kinds[device], key)
        assert row is not None
        if row[0].kind == "counter":
            counters += 1
            assert all(b >= a for a, b in pairwise(values)), channel
            grown = once[channel][-1] - once[channel][0]
            # One reading or two may be due in the last moment, or not.
            step = max((b - a for a, b in pairwise(once[channel])), default=0.0)
            assert abs(values[-1] - values[0] - 3 * grown) <= 2 * step, channel
        else:
            gauges += 1
            n = len(once[channel])
            assert values[n : 2 * n] == values[:n] == once[channel], channel
    assert counters > 10
    assert gauges > 5


def test_a_counter_that_was_reset_within_the_trace_is_played_as_a_reset_in_every_round() -> None:
    channel, other = "mlx5_0/1/transmit_bytes_total", "mlx5_0/1/up_ratio"

    def restarted() -> Iterator[Event]:
        yield Inventory("n", 5.0, (Device("rdma_port", "mlx5_0/1"),), sources=(Source("rdma", (channel, other)),))
        for k, value in enumerate((1000.0, 1100.0, math.nan, 5.0, 50.0), 1):
            yield Record("rdma", k / 10, (value, 1.0))

    shown = values_of(Playback(restarted, ManualClock(), loop=True), 1.7)
    assert shown[channel][:12] == [1000.0, 1100.0, 5.0, 50.0, 50.0, 150.0, 5.0, 50.0, 50.0, 150.0, 5.0, 50.0]
    assert set(shown[other]) == {1.0}


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
