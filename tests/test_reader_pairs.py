"""Byte counters that are read in pairs: when, what the back-off leaves of them, and what the real reader brings home."""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporter import flight
from exporter.analysis import Analyzer
from exporter.api import waveform_json
from exporter.carriers import byte_rate
from exporter.clock import SystemClock
from exporter.history import History
from exporter.model import Device, Event, Inventory, Link, Record, Source, SourceStatus
from exporter.reader_turns import Turn
from exporter.reader_volleys import VOLLEY_READS, Volleys
from exporter.readings import Counter, flows_of
from exporter.scope import live_json, newest_s
from exporter.signals import rates
from exporter.sources import PAIRED, STEADY, NetSettings, Plan, settings_to_json
from exporter.sources.files import Attribute, FileLane
from exporter.sources.sysfs import no_errors, parse_count
from exporter.symptoms import crumbs
from exporter.trace import read_trace
from exporter.wire import Decoder
from tests.sysfs_tree import Node, Waveform, move_ports, moving

CLOCK = SystemClock()
GIGABYTE = 1e9


def lane(plan: Plan, path: str = "/nothing") -> FileLane:
    errors = no_errors()
    channels = {"mlx5_0/1/transmit_bytes_total": Attribute(path, parse_count, 1 / plan.reads_per_s, errors)}
    return FileLane("rdma/mlx5_0", plan.interval_s, "rdma_port", "mlx5_0/1", channels, errors=errors, plan=plan)


def read_times(turn: Turn, seconds: float, took_s: float = 0.0001, late_s: float = 0.0) -> list[float]:
    """When a lane is read by somebody who wakes up in time, or always a little late."""
    times: list[float] = []
    end_s = turn.due_mono_s + seconds
    while turn.due_mono_s < end_s:
        times.append(max(turn.due_mono_s + late_s, times[-1] if times else 0.0))
        turn.take(times[-1])
        turn.read_took(took_s)
    return times


# ---- deadlines -------------------------------------------------------------------------------------------------------


def test_each_nth_read_is_followed_by_another_and_deadlines_stay_where_they_are() -> None:
    times = read_times(Turn(lane(Plan(25.0, 0.005, 5)), 1000.0, 1000.0), 1.9)  # before the first volley
    gaps = np.diff(times)
    close = gaps < 0.01
    assert gaps[close] == pytest.approx(0.005)
    assert np.diff(np.flatnonzero(close)).tolist() == [6] * (np.count_nonzero(close) - 1)  # five deadlines and a second read
    off_s = [t - 1000.0 - 0.04 * round((t - 1000.0) / 0.04) for t in np.array(times)[np.concatenate(([True], ~close))]]
    assert off_s == pytest.approx([0.0] * len(off_s), abs=1e-6)


def test_a_pair_that_begins_late_is_as_close_as_any_other() -> None:
    times = read_times(Turn(lane(Plan(10.0, 0.005)), 1000.0, 1000.0), 1.9, late_s=0.003)
    assert np.diff(times)[::2] == pytest.approx(0.008)  # the second is due 5 ms after the first, and late by as much
    assert np.diff(times[::2]) == pytest.approx(0.1)


def test_a_volley_comes_now_and_then_and_misses_no_deadline() -> None:
    turn = Turn(lane(PAIRED), 1000.0, 1000.0)
    gaps = np.diff(read_times(turn, 60.0))
    runs = [len(list(group)) for close, group in itertools.groupby(gaps < 0.01) if close]
    volleys = [run for run in runs if run > 1]
    assert set(volleys) <= {VOLLEY_READS - 1, VOLLEY_READS}  # a deadline may follow it at once
    assert 3 <= len(volleys) <= 5
    assert gaps.max() < 2 * PAIRED.interval_s
    assert turn.missed_ticks == 0


def test_a_steady_lane_has_neither_pairs_nor_volleys() -> None:
    gaps = np.diff(read_times(Turn(lane(Plan(50.0)), 1000.0, 1000.0), 30.0))
    assert gaps == pytest.approx(0.02)


def test_a_costly_device_keeps_its_pairs_and_gives_up_the_reads_between_them_first() -> None:
    turn = Turn(lane(PAIRED), 1000.0, 1000.0)
    before = np.diff(read_times(turn, 30.0, took_s=0.0005))
    assert np.count_nonzero(before < 0.01) > 30 * 5  # 1.5 % of the time is bearable
    times = read_times(turn, 60.0, took_s=0.0009)[100:]  # 2.7 % is not
    gaps = np.diff(times)
    assert turn.interval_s == pytest.approx(2 * PAIRED.interval_s)
    assert 0.0009 * len(times) / (times[-1] - times[0]) <= 0.02
    assert np.count_nonzero(gaps < 0.01) / (times[-1] - times[0]) == pytest.approx(6.2, abs=1.5)
    assert max(len(list(group)) for close, group in itertools.groupby(gaps < 0.01) if close) == 1  # no volleys
    read_times(turn, 60.0, took_s=0.0001)
    assert turn.interval_s == pytest.approx(PAIRED.interval_s)


def test_what_the_kernel_repeats_for_a_while_is_read_again_after_that() -> None:
    assert PAIRED.beyond(0.0) == PAIRED
    assert 0.012 < PAIRED.beyond(0.010).pair_s < 0.02
    assert PAIRED.beyond(0.5).pair_s == 0.0
    assert Plan(50.0).beyond(0.010) == Plan(50.0)
    assert PAIRED.at_most(4.0) == Plan(4.0)


# ---- volleys ---------------------------------------------------------------------------------------------------------


def volley(volleys: Volleys, counts: list[float]) -> bool:
    volleys.begin()
    return [volleys.saw([count, 7.0], last=k == len(counts) - 1) for k, count in enumerate(counts)][-1]


@pytest.mark.parametrize(
    ("name", "counts", "ticks"),
    [
        ("new at each read", [GIGABYTE * k for k in range(24)], False),
        ("new at each second read", [GIGABYTE * (k // 2) for k in range(24)], True),
        ("new at each tenth read", [GIGABYTE * (k // 10) for k in range(24)], True),
        ("bursts of three reads", [GIGABYTE * (3 * (k // 6) + min(k % 6, 3)) for k in range(24)], False),
        ("silence", [GIGABYTE] * 24, False),
        ("one step", [GIGABYTE * (k > 11) for k in range(24)], False),
        ("packets that come and go", [64.0 * (k // 2) for k in range(24)], False),
        ("not read", [GIGABYTE * (k // 2) if k != 9 else float("nan") for k in range(24)], False),
    ],
)
def test_three_volleys_tell_a_counter_that_ticks(name: str, counts: list[float], ticks: bool) -> None:
    volleys = Volleys()
    assert not volley(volleys, counts)
    assert not volley(volleys, counts)
    assert volley(volleys, counts) == ticks, name


def test_one_volley_with_news_at_each_read_outweighs_those_before() -> None:
    volleys, slow, fast = Volleys(), [GIGABYTE * (k // 2) for k in range(24)], [GIGABYTE * k for k in range(24)]
    told = [volley(volleys, counts) for counts in (slow, slow, fast, slow, slow, slow)]
    assert told == [False, False, False, False, False, True]


def test_a_counter_that_ticks_is_read_steadily_and_a_device_opened_anew_in_pairs_again() -> None:
    turn = Turn(lane(PAIRED), 1000.0, 1000.0)
    while turn.due_mono_s < 1060.0:
        at_s = turn.due_mono_s
        turn.take(at_s)
        turn.read_took(0.0001)
        turn.read_gave([1e9 * (at_s // 0.01)])
    assert turn.interval_s == STEADY.interval_s
    status = turn.news()
    assert status is not None
    assert status.interval_s == STEADY.interval_s
    gaps = np.diff(read_times(turn, 10.0))
    assert gaps == pytest.approx(STEADY.interval_s)
    turn.replace_lane(lane(PAIRED))
    assert np.count_nonzero(np.diff(read_times(turn, 10.0)) < 0.01) > 40


def test_a_counter_that_is_new_at_each_read_stays_in_pairs() -> None:
    turn = Turn(lane(PAIRED), 1000.0, 1000.0)
    while turn.due_mono_s < 1100.0:
        at_s = turn.due_mono_s
        turn.take(at_s)
        turn.read_took(0.0001)
        turn.read_gave([1e9 * at_s if at_s % 0.3 < 0.2 else 1e9 * (at_s - at_s % 0.3 + 0.2)])
    assert turn.interval_s == PAIRED.interval_s


# ---- what the analysis makes of it -----------------------------------------------------------------------------------


FINE = Waveform(0.018, 0.012, 20e9)  # bursts of 12 ms each 30 ms


def drawn(refresh_s: float = 0.0, seconds: float = 62.0, wave: Waveform = FINE) -> tuple[History, Inventory]:
    """Traffic through a counter that takes a new value each refresh_s (0: at once), read as planned."""
    turn, history = Turn(lane(PAIRED), 0.0, 0.0), History()
    names = ("mlx5_0/1/transmit_bytes_total", "mlx5_0/1/receive_bytes_total")
    inventory = Inventory(
        "node-1", 0.0, (Device("gpu", "GPU-0", index=0), Device("rdma_port", "mlx5_0/1", rate_bytes_per_s=50e9)),
        (Link("GPU-0", "mlx5_0/1", "rdma", "PIX"),), (Source("rdma/mlx5_0", names, PAIRED.interval_s),),
    )  # fmt: skip
    history.apply(inventory)
    for at_s in read_times(turn, seconds):
        total = wave.bytes_until(np.floor(at_s / refresh_s + 1e-9) * refresh_s if refresh_s else at_s)
        history.apply(Record("rdma/mlx5_0", at_s, [total, total]))
    return history, inventory


@pytest.mark.parametrize("refresh_s", [0.0, 0.001])
def test_pairs_show_the_rate_inside_bursts_that_polls_blur(refresh_s: float) -> None:
    history, inventory = drawn(refresh_s)
    flow = flows_of(history, inventory, 0.0, 62.0, {})["mlx5_0/1", "rdma"]
    inside = np.diff(flow.done)[flow.pairs] / np.diff(flow.t)[flow.pairs]
    assert len(flow.pairs) > 250
    assert np.quantile(inside, 0.85) == pytest.approx(20e9, rel=0.2)
    polls = rates.thin(flow.t, flow.interval_s)
    assert np.quantile(np.diff(flow.done[polls]) / np.diff(flow.t[polls]), 0.85) < 12e9


@pytest.mark.parametrize(
    ("refresh_s", "measured_s", "believed"), [(0.0, 0.005, True), (0.01, 0.01, False), (0.02, 0.02, False)]
)
def test_volleys_measure_the_refresh_and_pairs_of_a_slower_counter_are_not_believed(
    refresh_s: float, measured_s: float, believed: bool
) -> None:
    history, inventory = drawn(refresh_s)
    analyzer = Analyzer()
    for second in (20.0, 40.0, 60.0):
        analyzer.step(history, inventory, second)
    (seen,) = [r for r in analyzer.refresh if r.quantity == "bytes"]
    assert seen.refresh_s == pytest.approx(measured_s, rel=0.2)
    counters = {"mlx5_0/1": Counter(seen.refresh_s, close_s=seen.refresh_s)}
    flow = flows_of(history, inventory, 0.0, 62.0, counters)["mlx5_0/1", "rdma"]
    assert (len(flow.pairs) > 250) == believed


# ---- who else draws on it --------------------------------------------------------------------------------------------

SLOW_WAVE = Waveform(0.3, 0.2, 20e9)


def test_waveforms_and_the_scope_draw_what_flowed_and_nothing_of_the_pairs() -> None:
    history, inventory = drawn(wave=SLOW_WAVE)
    gpu = inventory.of_kind("gpu")[0]
    body, _ = live_json(history, inventory, gpu, (30.0, 30.0), 60.0)
    assert body["traffic"]["step_s"] == PAIRED.interval_s
    scope = np.array(body["traffic"]["rdma"], dtype=float)
    waveform = np.array(waveform_json(history, inventory, gpu, 60.0, 30.0)["traffic"]["rdma"], dtype=float)
    for rate in (scope, waveform):
        assert np.nanmax(rate) <= 20.1e9
        assert np.nanmin(rate) >= 0.0
        assert np.nanmean(rate) == pytest.approx(8e9, rel=0.02)  # no byte is lost or drawn twice
    assert np.mean(scope > 19e9) == pytest.approx(0.36, abs=0.06)  # bursts stand at their rate, but for their edges
    assert np.mean(scope < 1e9) == pytest.approx(0.56, abs=0.06)
    assert newest_s(history, inventory, gpu, 0.0) == pytest.approx(62.0, abs=0.05)


def test_a_recorded_flight_holds_the_pairs(tmp_path: Path) -> None:
    history, inventory = drawn()
    file = tmp_path / "flight.jsonl.gz"
    file.write_bytes(b"".join(flight.encode(flight.cut(history, 30.0, 61.0))))
    again = History()
    for event in read_trace(file):
        again.apply(event)
    before = flows_of(history, inventory, 31.0, 61.0, {})["mlx5_0/1", "rdma"]
    after = flows_of(again, inventory, 0.0, 30.0, {})["mlx5_0/1", "rdma"]
    assert len(after.pairs) == len(before.pairs) > 100
    assert np.diff(after.done)[after.pairs] == pytest.approx(np.diff(before.done)[before.pairs], abs=2.0)


@pytest.mark.parametrize(
    ("name", "wave", "found"),
    [
        ("small buckets: even stretches at a tenth of the line", Waveform(0.6, 0.7, 5e9), True),
        ("large buckets", Waveform(0.6, 0.7, 30e9), False),
        ("single bursts", Waveform(0.09, 0.01, 20e9), False),
    ],
)
def test_traffic_in_crumbs_is_told_from_reads_in_pairs(name: str, wave: Waveform, found: bool) -> None:
    history, inventory = drawn(wave=wave)
    assert (crumbs(history, inventory.of_kind("rdma_port")[0], 60.0) is not None) == found, name


def test_rates_of_the_transport_do_not_depend_on_how_bytes_are_read() -> None:
    history, _ = drawn(wave=SLOW_WAVE)
    assert byte_rate(history, "mlx5_0/1", 60.0) == pytest.approx(8e9, rel=0.05)


# ---- the process -----------------------------------------------------------------------------------------------------


@contextmanager
def reader_of(settings: NetSettings) -> Iterator[tuple[subprocess.Popen[bytes], Decoder]]:
    process = subprocess.Popen([sys.executable, "-m", "exporter.reader", "net", settings_to_json(settings)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # fmt: skip
    try:
        yield process, Decoder(0.0, "host", 0.0)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(5.0)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def events_of(process: subprocess.Popen[bytes], decoder: Decoder, seconds: float) -> list[Event]:
    events: list[Event] = []
    assert process.stdout is not None
    fd, until_s = process.stdout.fileno(), CLOCK.mono_s() + seconds
    while (left_s := until_s - CLOCK.mono_s()) > 0:
        if select.select([fd], [], [], left_s)[0]:
            events += decoder.feed(os.read(fd, 1 << 16))
    return events


def events_of_one_write(process: subprocess.Popen[bytes], decoder: Decoder) -> list[Record]:
    """What lies in the pipe when something does; an idle machine gives one write, a busy one several."""
    assert process.stdout is not None
    return [e for e in decoder.feed(os.read(process.stdout.fileno(), 1 << 16)) if isinstance(e, Record)]


def test_the_real_reader_reads_ports_in_pairs_and_brings_home_the_rate_inside_bursts(tmp_path: Path) -> None:
    node, wave = Node(1, 1, 0), Waveform(0.035, 0.03, 20e9)
    tree = node.build(tmp_path / "tree")
    with moving(move_ports(tree, node, [wave]), tmp_path / "plan.json", interval_s=0.001), \
            reader_of(NetSettings(tree.sys, tree.proc)) as (process, decoder):  # fmt: skip
        events = events_of(process, decoder, 12.0)
    history, (inventory,) = History(), [e for e in events if isinstance(e, Inventory)]
    inventory = replace(inventory, links=(Link("GPU-0", "mlx5_0/1", "rdma", "PIX"),))
    for event in (inventory, *events[1:]):
        if not isinstance(event, Inventory):
            history.apply(event)
        elif event is inventory:
            history.apply(inventory)
    records = [e for e in events if isinstance(e, Record) and e.source == "rdma/mlx5_0"]
    gaps = np.diff([r.t_s for r in records])
    assert (gaps > 0).all()
    # Each read says what had been sent when it was made, within what the writer and the read itself leave open.
    first = records[0]
    off = [r.values[0] - first.values[0] - wave.bytes_until(r.t_s) + wave.bytes_until(first.t_s) for r in records]
    assert np.median(np.abs(off)) < 0.004 * 20e9
    flow = flows_of(history, inventory, 0.0, records[-1].t_s, {})["mlx5_0/1", "rdma"]
    assert len(flow.pairs) >= 12 * 2  # half of them, on a machine that does other things as well
    inside = np.diff(flow.done)[flow.pairs] / np.diff(flow.t)[flow.pairs]
    assert np.median(inside[inside > 10e9]) == pytest.approx(20e9, rel=0.25)
    told = [s.interval_s for s in events if isinstance(s, SourceStatus) and s.source == "rdma/mlx5_0"]
    assert told[0] == PAIRED.interval_s


def test_the_real_reader_at_a_steady_rate_reads_no_pairs(tmp_path: Path) -> None:
    tree = Node(1, 1, 1).build(tmp_path / "tree")
    with reader_of(NetSettings(tree.sys, tree.proc, network_hertz=20.0)) as (process, decoder):
        events = events_of(process, decoder, 4.0)
    for source in ("rdma/mlx5_0", "nic/eth0"):
        times = np.array([e.t_s for e in events if isinstance(e, Record) and e.source == source])
        assert len(times) > 20
        assert np.mean(np.diff(times) < 0.01) < 0.1  # a read that was late, and the next in time


def test_the_reads_of_a_pair_come_through_the_pipe_together(tmp_path: Path) -> None:
    tree = Node(1, 1, 0).build(tmp_path / "tree")
    together = apart = 0
    with reader_of(NetSettings(tree.sys, tree.proc)) as (process, decoder):
        last_s, begun_s = -1.0, None
        while begun_s is None or last_s < begun_s + 1.8:  # before the first volley
            times = [e.t_s for e in events_of_one_write(process, decoder) if e.source == "rdma/mlx5_0"]
            begun_s = times[0] if times and begun_s is None else begun_s
            apart += bool(times) and times[0] - last_s < 0.01
            together += sum(b - a < 0.01 for a, b in itertools.pairwise(times))
            last_s = times[-1] if times else last_s
    assert apart == 0
    assert together >= 4
