"""Simulated sensors and nodes: known answers, and streams of events that a daemon can live on."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest

from exporter.history import History
from exporter.model import Event, Inventory, Quarantine, Record
from exporter.quantities import quantity_of, split_channel
from exporter.sources.job_levels import FLAT, STALL, Array, Column, RankStep, Spans, Step
from exporter.sources.jobs import RDMA
from exporter.sources.scenarios import SCENARIOS
from exporter.sources.sensors import GpmMeans, Held, PollTimes, Refresh, boxcar, power_and_energy, utilization
from exporter.sources.simulated_waveform import START_S, Crew, Timeline, Waveform
from exporter.sources.simulator import demo_events, simulate
from exporter.trace import TraceWriter, read_trace

NAMES = [row.name for row in SCENARIOS]


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def square_wave(high_s: float = .3, low_s: float = .2, seconds: float = 20.0) -> Waveform:
    """600 W with a kernel, 100 W without, from the start of the waveform on."""
    wave = Waveform()
    at = START_S
    while at < seconds:
        levels = np.zeros((2, len(Column)))
        levels[:, Column.WATTS] = 600.0, 100.0
        levels[:, Column.KERNEL] = 1.0, 0.0
        wave.extend(np.array([at, at + high_s, at + high_s + low_s]), levels)
        at += high_s + low_s
    wave.settle(START_S)
    return wave


def mean_watts(t: float, window: float) -> float:
    """Mean of the square wave over (t - window, t], by small steps."""
    at = np.linspace(t - window, t, 20_001)[1:] - window / 40_000
    return float(np.where((at - START_S) % .5 < .3, 600.0, 100.0).mean())


def channel(events: list[Event], name: str) -> tuple[Array, Array]:
    """Times and values of a channel."""
    inventory = events[0]
    assert isinstance(inventory, Inventory)
    source = next(s for s in inventory.sources if name in s.channels)
    row = source.channels.index(name)
    records = [e for e in events if isinstance(e, Record) and e.source == source.name]
    return np.array([r.t_s for r in records]), np.array([r.values[row] for r in records])


# Sensors


@pytest.mark.parametrize("window", [.025, .1, 1.0])
def test_a_power_sensor_shows_the_mean_over_its_window(window: float) -> None:
    wave = square_wave()
    t = np.linspace(.5, 9.5, 40)
    means = boxcar(lambda x: wave.total(Column.WATTS, x), t, window)
    assert means == pytest.approx([mean_watts(x, window) for x in t], abs=500 * window / 10_000 / window + .2)


def test_a_one_second_mean_of_half_second_steps_is_flat() -> None:
    power = power_and_energy(square_wave(), 1.0, .1, rng(), noise=0.0).read(np.arange(.05, 15.0, .1))[0]
    assert set(power) == {400.0}


def test_power_repeats_between_refreshes_and_is_a_multiple_of_the_converters_step() -> None:
    t = np.arange(.005, 10.0, .01)
    power = power_and_energy(square_wave(), .025, .1, rng()).read(t)[0]
    changes = t[1:][np.diff(power) != 0]
    assert np.all(np.diff(changes) > .08)
    assert np.median(np.diff(changes)) == pytest.approx(.1, abs=.012)
    assert np.all(power % .25 == 0)


def test_reading_in_pieces_gives_the_same_as_reading_at_once() -> None:
    t = np.arange(.05, 10.0, .07)

    def fresh() -> Held:
        return Held(Refresh(.1, np.random.default_rng(3), error=0.0), lambda at: np.floor(at * 10)[np.newaxis], 1)

    whole = fresh().read(t)[0]
    held = fresh()
    pieces = np.concatenate([held.read(part)[0] for part in np.array_split(t, 30)])
    assert np.abs(whole - pieces).max() <= 1.0  # the grid wanders a little from call to call


def test_a_refresh_grid_keeps_its_period_over_an_hour() -> None:
    refresh = Refresh(.1, rng())
    t = np.concatenate([refresh.until(float(k)) for k in range(3600)])
    assert np.all(np.diff(t) > .09)
    assert .1 < (t[-1] - t[0]) / (len(t) - 1) <= .1011


def test_energy_is_the_integral_of_power() -> None:
    wave = square_wave(seconds=60.0)
    t = np.arange(.05, 55.0, .1)
    joules = power_and_energy(wave, .025, .1, rng()).read(t)[1]
    assert np.all(np.diff(joules) >= 0)
    truth = np.diff(wave.total(Column.WATTS, t[[0, -1]]))[0]
    assert joules[-1] - joules[0] == pytest.approx(truth, abs=2 * 600 * .102)


def test_utilization_counts_kernels_and_its_mean_is_their_share() -> None:
    shown = utilization(square_wave(seconds=110.0), rng()).read(np.arange(.05, 100.0, .1))[0]
    assert shown.min() >= 0
    assert shown.max() <= 1
    assert shown.mean() == pytest.approx(.6, abs=.01)


def test_gpm_means_cover_the_time_between_reads_without_a_gap() -> None:
    wave = square_wave()
    t = np.arange(.05, 15.0, .1)
    gpm = GpmMeans(wave, rng())
    busy = np.concatenate([gpm.read(part)[0] for part in np.array_split(t, 7)])
    assert math.isnan(busy[0])
    truth = np.diff(wave.total(Column.KERNEL, t)) / np.diff(t)
    assert busy[1:] == pytest.approx(truth, abs=.011)


def test_polls_are_late_at_times_and_never_drift() -> None:
    polls = PollTimes(.02, rng())
    t = np.concatenate([polls.due(float(k)) for k in range(1, 601)])
    assert len(t) == pytest.approx(600 / .02, abs=2)
    assert np.all(np.diff(t) > 0)
    late = (t - t[0]) - .02 * np.arange(len(t))
    assert np.abs(late).max() < .009
    assert np.median(late[-500:]) == pytest.approx(np.median(late[:500]), abs=2e-4)


def test_a_timeline_forgets_what_lies_behind_and_keeps_its_integrals() -> None:
    def steps() -> object:
        rank = RankStep(Spans.of((0.0, .06, FLAT), (.06, .1, STALL)))
        while True:
            yield Step(.1, (rank,), 500.0, RDMA)

    timeline = Timeline([Crew("a", (0,), steps())], [1.0], [0.0], 700.0)  # type: ignore[arg-type]
    for k in range(500):
        timeline.advance(float(k))
    wave = timeline.waves[0]
    assert len(wave._t_s) < 400
    assert wave.total(Column.KERNEL, np.array([499.0]))[0] == pytest.approx(.6 * 502)


# Events


@pytest.mark.parametrize("name", NAMES)
def test_events_come_in_order_and_fit_the_inventory(name: str) -> None:
    inventory, *events = simulate(name, seconds=9.0, seed=3)
    assert isinstance(inventory, Inventory)
    kinds = {device.id: device.kind for device in inventory.devices}
    widths = {source.name: len(source.channels) for source in inventory.sources}
    for source in inventory.sources:
        for name_of_channel in source.channels:
            device, key = split_channel(name_of_channel, frozenset(kinds)) or ("", "")
            assert quantity_of(kinds[device], key) is not None, name_of_channel
    times = [e.t_s for e in events if isinstance(e, (Record, Quarantine))]
    assert times == sorted(times)
    assert 0 <= times[0] < .1
    assert 8.9 < times[-1] < 9.0
    records = [e for e in events if isinstance(e, Record)]
    assert {r.source for r in records} == set(widths)
    assert all(len(r.values) == widths[r.source] for r in records)


@pytest.mark.parametrize("name", NAMES)
def test_counters_never_go_back_and_gauges_stay_in_range(name: str) -> None:
    events = list(simulate(name, seconds=9.0, seed=4))
    inventory = events[0]
    assert isinstance(inventory, Inventory)
    kinds = {device.id: device.kind for device in inventory.devices}
    for source in inventory.sources:
        for full in source.channels:
            device, key = split_channel(full, frozenset(kinds)) or ("", "")
            row = quantity_of(kinds[device], key)
            assert row is not None
            _, values = channel(events, full)
            read = values[~np.isnan(values)]
            assert np.all(read >= 0)
            if row[0].kind == "counter":
                assert np.all(np.diff(read) >= 0), full
            elif key.endswith("_ratio"):
                assert np.all(read <= 1), full
            if key.endswith("bytes_total"):
                assert np.all(read == np.floor(read)), full


@pytest.mark.parametrize("name", ["serialized", "fsdp_prefetch", "gpu_lost"])
def test_the_same_seed_gives_the_same_events_and_another_gives_others(name: str) -> None:
    one = simulate(name, seconds=6.0, seed=11)
    again = simulate(name, seconds=6.0, seed=11)
    assert repr(list(one)) == repr(list(again)) == repr(list(one))
    assert one.inventory == again.inventory
    assert repr(list(one)) != repr(list(simulate(name, seconds=6.0, seed=12)))


def test_uuids_name_a_gpu_and_not_a_run() -> None:
    one, other = simulate("idle", seconds=1.0, seed=1).inventory, simulate("serialized", seconds=1.0, seed=2).inventory
    assert [d.uuid for d in one.of_kind("gpu")] == [d.uuid for d in other.of_kind("gpu")]
    assert len({d.uuid for d in one.of_kind("gpu")}) == 8


def test_perfect_overlap_is_flat_power_above_400_watts_beside_flat_180_gbit() -> None:
    events = list(simulate("perfect_overlap", seconds=60.0))
    inventory = events[0]
    assert isinstance(inventory, Inventory)
    for gpu in inventory.of_kind("gpu"):
        assert gpu.power_limit_watts == 410.0
        _, watts = channel(events, f"{gpu.id}/power_watts")
        assert watts.min() >= 400.0
        assert watts.max() <= 415.0
    t, sent = channel(events, "mlx5_3/1/transmit_bytes_total")
    rate = 8 * np.diff(sent) / np.diff(t)
    assert rate == pytest.approx(np.full(len(rate), 180e9), rel=.01)


def test_the_serialized_board_shows_compute_or_communication_and_traffic_only_in_the_latter() -> None:
    events = list(simulate("serialized", seconds=30.0))
    _, watts = channel(events, "GPU-0/power_watts")
    pure = np.concatenate((watts[watts > 370], watts[watts < 170]))
    assert len(pure) > .6 * len(watts)  # a window of 25 ms of 100 and 80 ms
    t, sent = channel(events, "mlx5_0/1/transmit_bytes_total")
    rate = np.diff(sent) / np.diff(t)
    assert (rate < 1e6).mean() > .3
    assert (rate > 22e9).mean() > .25
    assert (sent[-1] - sent[0]) / (t[-1] - t[0]) == pytest.approx(22.5e9 * .08 / .18, rel=.01)


@pytest.mark.parametrize("name", ["serialized", "ddp_bucketed", "fsdp_no_prefetch", "straggler", "link_degraded"])
def test_bytes_over_the_rate_of_a_transfer_are_the_true_communication(name: str) -> None:
    simulation = simulate(name, seconds=60.0)
    t, sent = channel(list(simulation), "mlx5_0/1/transmit_bytes_total")
    row = next(row for row in SCENARIOS if row.name == name)
    share = (sent[-1] - sent[0]) / (t[-1] - t[0]) / row.bytes_per_s
    expected = simulation.inventory.truth["communication"]
    if name == "link_degraded":  # at half the rate bytes stand for twice the time
        assert share < .8 * expected
    else:
        assert share == pytest.approx(expected, rel=.02)


@pytest.mark.parametrize("name", ["input_stall", "straggler", "storage_checkpoint", "pipeline_bubbles"])
def test_mean_utilization_is_all_but_the_true_stall(name: str) -> None:
    simulation = simulate(name, seconds=60.0)
    _, busy = channel(list(simulation), "GPU-0/utilization_ratio")
    assert 1 - busy.mean() == pytest.approx(simulation.inventory.truth["stall"], abs=.02)


def test_over_tcp_the_ports_are_up_and_idle_and_the_nic_carries_both_ways() -> None:
    events = list(simulate("tcp_fallback", seconds=30.0))
    for port in range(8):
        t, sent = channel(events, f"mlx5_{port}/1/transmit_bytes_total")
        assert (sent[-1] - sent[0]) / (t[-1] - t[0]) < 1e4
        assert set(channel(events, f"mlx5_{port}/1/up_ratio")[1]) == {1.0}
    _, sent = channel(events, "eth0/transmit_bytes_total")
    t, received = channel(events, "eth0/receive_bytes_total")
    rate = np.diff(sent) / np.diff(t)
    assert 2.5e9 < np.quantile(rate, .9) < 3.125e9
    assert received[-1] - received[0] == pytest.approx(sent[-1] - sent[0], rel=.01)
    inventory = events[0]
    assert isinstance(inventory, Inventory)
    assert all(k.path == "rdma" for k in inventory.links)  # which interface carries the job is to be found in its traffic


def test_a_checkpoint_goes_one_way() -> None:
    events = list(simulate("storage_checkpoint", seconds=35.0))
    t, sent = channel(events, "mlx5_0/1/transmit_bytes_total")
    _, received = channel(events, "mlx5_0/1/receive_bytes_total")
    one_way = np.diff(sent) - np.diff(received) > 5e9 * np.diff(t)
    assert np.diff(t)[one_way].sum() == pytest.approx(7.125, abs=.2)


def test_a_late_loader_reads_disks_all_the_time() -> None:
    t, read = channel(list(simulate("input_stall", seconds=20.0)), "all/read_bytes_total")
    assert (read[-1] - read[0]) / (t[-1] - t[0]) == pytest.approx(8 * 3e8, rel=.05)


def test_a_capped_board_reads_its_limit_and_counts_throttled_time() -> None:
    events = list(simulate("power_capped", seconds=30.0))
    _, watts = channel(events, "GPU-0/power_watts")
    assert watts.min() > 685.0
    t, throttled = channel(events, "GPU-0/throttled_seconds_total/power_cap")
    assert (throttled[-1] - throttled[0]) / (t[-1] - t[0]) == pytest.approx(.9, abs=.05)
    _, idle = channel(list(simulate("serialized", seconds=10.0)), "GPU-0/throttled_seconds_total/power_cap")
    assert set(idle) == {0.0}


def test_a_lost_gpu_falls_silent_and_is_quarantined_with_its_xid() -> None:
    events = list(simulate("gpu_lost", seconds=40.0))
    assert [e for e in events if isinstance(e, Quarantine)] == [Quarantine("gpu", "GPU-5", 20.3, "gpu_lost")]
    t, xid = channel(events, "GPU-5/xid_errors_total/79")
    assert (t[-1], xid[-1], xid[:-1].sum()) == (20.0, 1.0, 0.0)
    last = defaultdict(float)
    for e in events:
        if isinstance(e, Record):
            last[e.source] = e.t_s
    assert all((t < 20.01) == ("GPU-5" in source) for source, t in last.items())
    _, watts = channel(events, "GPU-0/power_watts")
    assert np.median(watts[205:295]) < .4 * np.median(watts[:195])  # the rest spins


def test_a_degraded_port_shows_half_its_rate_and_errors() -> None:
    events = list(simulate("link_degraded", seconds=30.0))
    t, rate = channel(events, "mlx5_2/1/rate_bytes_per_second")
    assert set(rate[t < 10]) == {50e9}
    assert set(rate[t > 10]) == {25e9}
    assert set(channel(events, "mlx5_3/1/rate_bytes_per_second")[1]) == {50e9}
    assert channel(events, "mlx5_2/1/events/link_down")[1][-1] == 1
    assert channel(events, "mlx5_2/1/events/link_error")[1][-1] > 100
    assert channel(events, "mlx5_3/1/events/link_error")[1][-1] == 0


def test_two_jobs_share_every_port() -> None:
    inventory = simulate("two_jobs", seconds=2.0).inventory
    by_port = defaultdict(set)
    for link in inventory.links:
        by_port[link.device_id].add(inventory.jobs[link.gpu_id])
        assert link.weight == .5
    assert len(by_port) == 4
    assert all(jobs == {"a", "b"} for jobs in by_port.values())


@pytest.mark.parametrize("gpus", [1, 3, 16])
def test_a_node_may_have_any_number_of_gpus(gpus: int) -> None:
    events = list(simulate("serialized", seconds=2.0, gpus=gpus))
    inventory = events[0]
    assert isinstance(inventory, Inventory)
    assert len(inventory.of_kind("gpu")) == len(inventory.of_kind("rdma_port")) == gpus
    assert inventory.truth["gpus"].keys() == {f"GPU-{g}" for g in range(gpus)}


@pytest.mark.parametrize(("arguments", "message"), [
    ({"seconds": 0.0}, "seconds is 0.0"), ({"seconds": math.nan}, "seconds is nan"), ({"gpus": 0}, "gpus is 0"),
    ({"gpus": 1}, "straggler needs 2 to 16"), ({"seed": -1}, "seed is -1"),
])
def test_what_cannot_be_simulated_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate("straggler", **arguments)  # type: ignore[arg-type]


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(KeyError, match="no scenario is called 'x'"):
        simulate("x")


@pytest.mark.parametrize("name", ["gradient_accumulation", "gpu_lost", "two_jobs"])
def test_a_simulation_survives_the_trace_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    simulation = simulate(name, seconds=8.0)
    with TraceWriter(path) as writer:
        for event in simulation:
            writer.write(event)
    trace = read_trace(path)
    assert trace.inventory.truth == simulation.inventory.truth
    assert trace.inventory.devices == simulation.inventory.devices
    assert trace.inventory.sources == simulation.inventory.sources
    links, expected = ({(k.gpu_id, k.device_id, k.path, k.weight) for k in inventory.links}
                       for inventory in (trace.inventory, simulation.inventory))
    assert links == expected
    read = [e for e in trace if isinstance(e, Record)]
    made = [e for e in simulation if isinstance(e, Record)]
    assert [(r.source, r.t_s, list(r.values)) for r in read] == [(r.source, round(r.t_s, 4), list(r.values)) for r in made]
    assert len([e for e in trace if isinstance(e, Inventory)]) == (2 if name == "gpu_lost" else 1)


# The demo


def test_the_demo_walks_through_its_scenarios_on_one_node_with_counters_that_go_on() -> None:
    inventory, *events = takewhile(lambda e: not isinstance(e, Record) or e.t_s < 540.0, demo_events(seed=2, gpus=1))
    t, watts = channel([inventory, *events], "GPU-0/power_watts")
    _, busy = channel([inventory, *events], "GPU-0/utilization_ratio")
    bytes_t, sent = channel([inventory, *events], "mlx5_0/1/transmit_bytes_total")
    assert np.all(np.diff(sent) >= 0)
    rate = np.diff(sent) / np.diff(bytes_t)
    seconds = np.arange(540)
    power = [watts[(t >= s) & (t < s + 1)] for s in seconds]
    flow = [rate[(bytes_t[1:] >= s) & (bytes_t[1:] < s + 1)] for s in seconds]
    flat = [p.min() > 398 and f.min() > 22e9 for p, f in zip(power, flow, strict=True)]
    idle = [p.max() < 80 and f.max() < 1e6 for p, f in zip(power, flow, strict=True)]
    turns = [p.min() < 200 and p.max() > 300 and (f < 1e6).any() and (f > 20e9).any() for p, f in zip(power, flow, strict=True)]
    assert 55 <= np.argmin(flat) <= 92  # the first minute is perfect
    assert 55 <= sum(idle) <= 95
    assert sum(turns) > 55
    assert np.argmax(idle) > 5 * 55
    assert any(flat[np.argmax(idle) + 40 :])  # and it begins again
    assert any(b < .9 for b in busy[(t > 240) & (t < 540)])


def test_the_demo_is_made_while_it_is_taken_and_the_same_for_the_same_seed() -> None:
    one = [repr(e) for e in islice(demo_events(seed=1), 3000)]
    assert one == [repr(e) for e in islice(demo_events(seed=1), 3000)]
    assert one != [repr(e) for e in islice(demo_events(seed=2), 3000)]


def test_the_history_takes_every_reading_of_the_demo() -> None:
    history = History()
    readings = 0
    for event in takewhile(lambda e: not isinstance(e, Record) or e.t_s < 20.0, demo_events()):
        history.apply(event)
        readings += isinstance(event, Record)
    assert sum(health.reads for health in history.health()) == readings
    channels = {c for source in history.inventory.sources for c in source.channels}
    assert history.latest(20.0).keys() == channels
