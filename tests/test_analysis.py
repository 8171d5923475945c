"""The analyzer: memories, phases, states and reasons; every fault costs its own device only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from exporter.analysis import Analyzer
from exporter.model import PHASES, STATES, Device, Inventory, Link, OverlapAnalysis
from exporter.session import Session
from exporter.sources.simulator import simulate
from tests.draws import GRAIN_S, Node, alternation, node


def serialized(seconds: float = 75.0, seed: int = 1, **board: object) -> tuple[Node, Inventory]:
    rng = np.random.default_rng(seed)
    compute, traffic = alternation(seconds, 0.7, 0.3, 0.03, rng)
    return node(compute, traffic, rng, **board)


def run(channels: Node, inventory: Inventory, until: int, analyzer: Analyzer | None = None, since: int = 1) -> Analyzer:
    analyzer = analyzer or Analyzer((15.0, 60.0), 60.0)
    for second in range(since, until + 1):
        analyzer.step(channels, inventory, float(second))
    return analyzer


def minute(channels: Node, inventory: Inventory, at_s: float = 74.0, analyzer: Analyzer | None = None) -> OverlapAnalysis:
    analyzer = analyzer or run(channels, inventory, int(at_s))
    return analyzer.evaluate(channels, inventory, at_s, (60.0,))[0]


def same(a: OverlapAnalysis, b: OverlapAnalysis) -> None:
    """Equal up to the order in which numbers were added up."""
    for field, value in dataclasses.asdict(a).items():
        assert value == getattr(b, field) or value == pytest.approx(getattr(b, field), rel=1e-6, abs=1e-9), field


def test_a_step_answers_for_every_gpu_and_window_in_order() -> None:
    channels, inventory = serialized(gpus=2)
    answers = Analyzer().step(channels, inventory, 70.0)
    assert [(a.gpu_id, a.window_s) for a in answers] == [(g, w) for g in ("GPU-0", "GPU-1") for w in (15.0, 60.0, 300.0)]
    assert all(a.state in STATES for a in answers)


def test_a_long_window_is_evaluated_each_fifth_second_and_stands_in_between() -> None:
    channels, inventory = serialized()
    analyzer = Analyzer()
    at = [analyzer.step(channels, inventory, float(s))[2].at_s for s in range(41, 52)]
    assert at == [41, 41, 41, 41, 45, 45, 45, 45, 45, 50, 50]


def test_a_named_instant_changes_nothing_and_agrees_with_the_whole_second() -> None:
    channels, inventory = serialized()
    analyzer, undisturbed = run(channels, inventory, 69), run(channels, inventory, 69)
    for at_s in (12.3, 69.0, 69.7):
        analyzer.evaluate(channels, inventory, at_s, (5.0, 60.0, 600.0))
    assert analyzer.phases == undisturbed.phases
    step = analyzer.step(channels, inventory, 70.0)
    assert step == undisturbed.step(channels, inventory, 70.0)
    assert analyzer.evaluate(channels, inventory, 70.0, (15.0, 60.0)) == step


def test_a_serialized_job_gets_every_field() -> None:
    got = minute(*serialized())
    assert (got.state, got.reason) == ("serialized", None)
    assert got.exposed == pytest.approx(0.3, abs=0.03)
    assert got.communication == pytest.approx(0.3, abs=0.03)
    assert got.health == pytest.approx(0.0, abs=0.1)
    assert got.exposed_or_wait == pytest.approx(0.3, abs=0.06)
    assert got.stall == pytest.approx(0.0, abs=0.01)
    assert got.running == 1.0
    assert got.resolution_s == pytest.approx(0.1)
    assert (got.power_low_watts, got.power_high_watts) == (pytest.approx(170, abs=10), pytest.approx(450, abs=12))
    assert got.traffic_low_bytes_per_s == pytest.approx(2e3, rel=0.1)
    assert got.traffic_high_bytes_per_s == pytest.approx(22.5e9, rel=0.05)
    assert got.anticorrelation is not None
    assert got.anticorrelation > 0.6


@pytest.mark.parametrize("name", ["serialized", "ddp_no_overlap", "fsdp_no_prefetch", "input_stall", "straggler"])
def test_phases_of_simulated_sensors_grow_as_the_verdict_says(name: str) -> None:
    session, early = Session(), {}
    for event in simulate(name, 140.0, gpus=2):
        session.take(event)
    for second in range(1, 139):
        session.finish(float(second))
        early = early or (dict(session.analyzer.phases["GPU-0"]) if second == 78 else {})
        if second == 122:  # phases are booked 16 s late: this window ends where those of the last minute do
            told = next(a for a in session.verdicts.analyses if a.window_s == 60.0)
    grown = {phase: (s - early[phase]) / 60 for phase, s in session.analyzer.phases["GPU-0"].items()}
    assert None not in (told.exposed, told.communication, told.stall)
    assert grown["exposed"] == pytest.approx(told.exposed, abs=0.03)
    assert grown["exposed"] + grown["overlapped"] == pytest.approx(told.communication, abs=0.03)
    assert grown["stall"] == pytest.approx(told.stall, abs=0.03)


def test_phases_add_up_to_the_time_and_to_the_verdict() -> None:
    channels, inventory = serialized(200.0)
    analyzer = run(channels, inventory, 100)
    early = dict(analyzer.phases["GPU-0"])
    run(channels, inventory, 190, analyzer, since=101)
    phases = analyzer.phases["GPU-0"]
    assert set(phases) == set(PHASES)
    assert sum(phases.values()) == pytest.approx(190.0)
    assert phases["unknown"] == pytest.approx(29.0, abs=1.1)  # half a window must be read before there is a verdict
    assert phases["exposed"] - early["exposed"] == pytest.approx(0.3 * 90, abs=3.0)
    assert phases["compute"] - early["compute"] == pytest.approx(0.7 * 90, abs=5.0)
    assert phases["overlapped"] - early["overlapped"] < 4.0


def test_seconds_that_nobody_looked_at_are_unknown_but_counted() -> None:
    channels, inventory = serialized(75.0)
    analyzer = run(channels, inventory, 50)
    for second in (400.0, 401.0):
        analyzer.step(channels, inventory, second)
    assert sum(analyzer.phases["GPU-0"].values()) == pytest.approx(401.0)


def stalling(seconds: float = 75.0, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """1 s compute with a hidden burst, then .6 s without a kernel."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds / GRAIN_S)) * GRAIN_S % 1.637
    return (t < 1.0).astype(float), ((t > 0.3) & (t < 0.7)).astype(float), (t < 1.0).astype(float), rng


def test_a_stall_is_told_from_a_wait_by_utilisation_alone() -> None:
    compute, traffic, busy, rng = stalling()
    stall = minute(*node(compute, traffic, rng, busy=busy))
    assert stall.state == "stalled"
    assert stall.stall == pytest.approx(0.39, abs=0.05)
    assert stall.health == pytest.approx(1.0, abs=0.1)
    wait = minute(*node(compute, traffic, rng))
    assert wait.state == "overlapped"
    assert wait.wait == pytest.approx(0.39, abs=0.05)


def test_without_utilisation_a_stall_is_a_wait_and_its_own_ratio_is_absent() -> None:
    compute, traffic, busy, rng = stalling()
    channels, inventory = node(compute, traffic, rng, busy=busy)
    del channels.channels["GPU-0/utilization_ratio"]
    analyzer = run(channels, inventory, 74)
    got = minute(channels, inventory, analyzer=analyzer)
    assert got.stall is None
    assert got.wait == pytest.approx(0.39, abs=0.05)
    assert got.exposed_or_wait == pytest.approx(0.39, abs=0.05)
    assert analyzer.phases["GPU-0"]["stall"] == 0.0
    assert analyzer.phases["GPU-0"]["wait"] > 10


def test_the_kernel_busy_share_of_gpm_stands_in_for_utilisation() -> None:
    compute, traffic, busy, rng = stalling()
    channels, inventory = node(compute, traffic, rng, busy=busy)
    channels.channels["GPU-0/kernel_busy_ratio"] = channels.channels.pop("GPU-0/utilization_ratio")
    assert minute(channels, inventory).stall == pytest.approx(0.39, abs=0.05)


def test_an_idle_gpu_is_idle_and_its_time_is_booked_as_idle() -> None:
    rng = np.random.default_rng(0)
    nothing = np.zeros(90_000)
    channels, inventory = node(nothing, nothing, rng, busy=0.0)
    analyzer = run(channels, inventory, 89)
    got = minute(channels, inventory, 89.0, analyzer)
    assert (got.state, got.reason) == ("idle", "no job is running on this GPU")
    assert (got.health, got.exposed, got.stall, got.communication) == (None, None, None, None)
    assert analyzer.phases["GPU-0"]["idle"] == pytest.approx(89 - 29, abs=2)


def test_shares_are_of_the_jobs_time_alone() -> None:
    rng = np.random.default_rng(0)
    compute, traffic = alternation(75.0, 0.7, 0.3, 0.03, rng)
    on = np.arange(75_000) >= 45_000
    got = minute(*node(compute * on, traffic * on, rng, busy=on.astype(float)))
    assert got.running == pytest.approx(29 / 60, abs=0.03)
    assert got.exposed == pytest.approx(0.3, abs=0.03)
    assert got.state == "serialized"


def test_a_phase_that_outlasts_the_window_is_held_against_the_remembered_compute_level() -> None:
    rng = np.random.default_rng(0)
    compute = (np.arange(160_000) < 60_000).astype(float)
    channels, inventory = node(compute, 1 - compute, rng)
    got = minute(channels, inventory, 150.0)
    assert (got.state, got.exposed) == ("serialized", pytest.approx(1.0, abs=0.03))
    without_memory = Analyzer().evaluate(channels, inventory, 150.0, (60.0,))[0]
    assert without_memory.state == "unobservable"
    assert without_memory.health is None
    assert without_memory.reason is not None
    assert "flat at 170 W" in without_memory.reason


def test_the_compute_level_is_forgotten_with_the_job() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(170_000)
    first, pause = t < 50_000, (t >= 50_000) & (t < 80_000)
    compute, traffic = np.where(pause, 0, 1), (~first & ~pause & (t % 1000 < 300)).astype(float)
    channels, inventory = node(compute, traffic, rng, busy=(~pause).astype(float), high=600.0)
    at, power = channels.channels["GPU-0/power_watts"]
    channels.channels["GPU-0/power_watts"] = at, np.where(at > 65.0, power * 0.4, power)  # the next job computes at 240 W
    assert minute(channels, inventory, 168.0).exposed == pytest.approx(0.0, abs=0.01)


def test_another_job_on_the_gpu_starts_without_the_level_of_the_one_before() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(170_000)
    channels, inventory = node(np.ones(170_000), (t % 1000 < 300).astype(float), rng, high=600.0)
    at, power = channels.channels["GPU-0/power_watts"]
    channels.channels["GPU-0/power_watts"] = at, np.where(at > 80.0, power * 0.4, power)
    analyzer = run(channels, dataclasses.replace(inventory, jobs={"GPU-0": "a"}), 80)
    after = dataclasses.replace(inventory, jobs={"GPU-0": "b"})
    run(channels, after, 168, analyzer, since=81)
    assert minute(channels, after, 168.0, analyzer).exposed == pytest.approx(0.0, abs=0.01)


def test_too_few_readings_are_no_data_and_say_how_many() -> None:
    channels, inventory = serialized()
    early = minute(channels, inventory, 20.0)
    assert (early.state, early.reason) == ("no_data", "power was read for 20 s of 60 s only")
    del channels.channels["GPU-0/power_watts"]
    none = minute(channels, inventory)
    assert (none.state, none.reason) == ("no_data", "no power readings in this window")
    assert (none.running, none.power_high_watts, none.exposed_or_wait) == (None, None, None)


def test_a_gpu_that_is_lost_costs_the_others_nothing() -> None:
    channels, inventory = serialized(gpus=3)
    before = run(channels, inventory, 74).evaluate(channels, inventory, 74.0, (15.0, 60.0))
    for key in ("power_watts", "utilization_ratio"):
        t, value = channels.channels[f"GPU-1/{key}"]
        channels.channels[f"GPU-1/{key}"] = t[t < 30], value[t < 30]
    after = run(channels, inventory, 74).evaluate(channels, inventory, 74.0, (15.0, 60.0))
    for a, b in zip(after, before, strict=True):
        if a.gpu_id != "GPU-1":
            same(a, b)
    assert [a.state for a in after if a.gpu_id == "GPU-1"] == ["no_data", "no_data"]


def test_gpus_judged_together_get_the_answers_that_each_gets_alone() -> None:
    channels, inventory = serialized(gpus=2)
    slow, slow_inventory = serialized(seed=5, power_hz=5.0, byte_hz=10.0)
    for key, value in slow.channels.items():
        channels.channels[key.replace("GPU-0", "GPU-2").replace("mlx5_0", "mlx5_2")] = value
    gpu, port = slow_inventory.devices
    both = dataclasses.replace(
        inventory,
        devices=(*inventory.devices, dataclasses.replace(gpu, id="GPU-2"), dataclasses.replace(port, id="mlx5_2/1")),
        links=(*inventory.links, Link("GPU-2", "mlx5_2/1", "rdma", "PIX")),
    )
    together = Analyzer().evaluate(channels, both, 74.0, (60.0,))
    alone = Analyzer().evaluate(slow, slow_inventory, 74.0, (60.0,))[0]
    same(dataclasses.replace(together[2], gpu_id="GPU-0"), alone)


def test_without_a_traffic_source_only_what_power_tells_is_given() -> None:
    channels, inventory = serialized()
    got = minute(channels, dataclasses.replace(inventory, links=()))
    assert (got.state, got.reason) == ("unobservable", "no traffic source is paired with this GPU")
    assert (got.communication, got.exposed, got.wait, got.correlation) == (None, None, None, None)
    assert got.exposed_or_wait == pytest.approx(0.3, abs=0.06)


def test_a_port_that_is_not_read_in_both_directions_takes_no_part() -> None:
    channels, inventory = serialized()
    t, value = channels.channels["mlx5_0/1/transmit_bytes_total"]
    channels.channels["mlx5_0/1/transmit_bytes_total"] = t, np.full(len(t), np.nan)
    alone = minute(channels, inventory)
    assert (alone.state, alone.reason) == ("unobservable", "no byte readings from mlx5_0/1")
    for key in ("transmit", "receive"):
        channels.channels[f"mlx5_1/1/{key}_bytes_total"] = t, value
    two = dataclasses.replace(
        inventory,
        devices=(*inventory.devices, Device("rdma_port", "mlx5_1/1", rate_bytes_per_s=50e9)),
        links=(*inventory.links, Link("GPU-0", "mlx5_1/1", "rdma", "PIX")),
    )
    got = minute(channels, two)
    assert (got.state, got.reason) == ("serialized", "judged without mlx5_0/1, which gives no byte readings")


def test_a_port_that_falls_silent_takes_no_part_a_few_seconds_later() -> None:
    channels, inventory = serialized()
    for key in ("transmit", "receive"):
        t, value = channels.channels[f"mlx5_0/1/{key}_bytes_total"]
        channels.channels[f"mlx5_0/1/{key}_bytes_total"] = t[t < 65], value[t < 65]
    assert minute(channels, inventory, 69.0).state == "serialized"
    assert minute(channels, inventory, 74.0).reason == "no byte readings from mlx5_0/1"


def test_several_ports_of_one_gpu_add_up() -> None:
    channels, inventory = serialized()
    t, value = channels.channels["mlx5_0/1/transmit_bytes_total"]
    for key in ("transmit", "receive"):
        channels.channels[f"mlx5_1/1/{key}_bytes_total"] = t + 0.004, value
    two = dataclasses.replace(
        inventory,
        devices=(*inventory.devices, Device("rdma_port", "mlx5_1/1", rate_bytes_per_s=50e9)),
        links=(*inventory.links, Link("GPU-0", "mlx5_1/1", "rdma", "PIX")),
    )
    got = minute(channels, two)
    assert got.state == "serialized"
    assert got.traffic_high_bytes_per_s == pytest.approx(45e9, rel=0.05)


def test_fabrics_combine_by_the_larger_presence() -> None:
    channels, inventory = serialized()
    t, _ = channels.channels["mlx5_0/1/transmit_bytes_total"]
    rng = np.random.default_rng(1)
    compute, _ = alternation(75.0, 0.7, 0.3, 0.03, rng)  # the very draw of `serialized`: NVLink is busy while it computes
    flow = np.interp(t, np.arange(75_001) * GRAIN_S, np.concatenate(([0.0], np.cumsum(3e8 * compute))))
    for key in ("transmit", "receive"):
        channels.channels[f"GPU-0/nvlink_{key}_bytes_total"] = t, flow
    both = dataclasses.replace(inventory, links=(*inventory.links, Link("GPU-0", "GPU-0", "nvlink", "node")))
    got = minute(channels, both)
    assert got.communication == pytest.approx(1.0, abs=0.08)
    assert got.exposed == pytest.approx(0.3, abs=0.05)
    assert got.state == "partial"
    alone = minute(channels, dataclasses.replace(inventory, links=both.links[1:]))
    assert alone.state == "overlapped"
    assert alone.wait == pytest.approx(0.3, abs=0.06)


def test_two_jobs_behind_one_port_are_not_guessed_apart() -> None:
    channels, inventory = serialized(gpus=2)
    shared = dataclasses.replace(
        inventory, links=(inventory.links[0], Link("GPU-1", "mlx5_0/1", "rdma", "NODE")), jobs={"GPU-0": "a", "GPU-1": "b"}
    )
    analyzer = run(channels, shared, 74)
    for got in analyzer.evaluate(channels, shared, 74.0, (60.0,)):
        assert (got.state, got.reason) == ("unobservable", "shared_node")
        assert (got.health, got.exposed, got.communication, got.exposed_high) == (None, None, None, None)
    assert analyzer.phases["GPU-0"]["exposed"] == 0.0
    same = dataclasses.replace(shared, jobs={"GPU-0": "a", "GPU-1": "a"})
    assert minute(channels, same).state == "serialized"


def test_a_reset_of_the_counters_costs_a_moment_only() -> None:
    channels, inventory = serialized()
    before = minute(channels, inventory)
    for key in ("transmit", "receive"):
        t, value = channels.channels[f"mlx5_0/1/{key}_bytes_total"]
        channels.channels[f"mlx5_0/1/{key}_bytes_total"] = t, np.where(t > 40, value - value[t > 40][0], value)
    after = minute(channels, inventory)
    assert after.exposed == pytest.approx(before.exposed, abs=0.005)
    assert after.traffic_high_bytes_per_s == pytest.approx(before.traffic_high_bytes_per_s, rel=0.02)


def test_bytes_read_in_pairs_are_polls_of_the_pairs_distance() -> None:
    channels, inventory = serialized(byte_hz=10.0)
    rng = np.random.default_rng(1)
    _, traffic = alternation(75.0, 0.7, 0.3, 0.03, rng)
    total = np.concatenate(([0.0], np.cumsum(22.5e9 * GRAIN_S * traffic)))
    t = channels.channels["mlx5_0/1/transmit_bytes_total"][0]
    t = np.sort(np.concatenate((t, t + 0.005)))
    for key in ("transmit", "receive"):
        channels.channels[f"mlx5_0/1/{key}_bytes_total"] = t, np.interp(t, np.arange(75_001) * GRAIN_S, total)
    got = minute(channels, inventory)
    assert (got.state, got.exposed) == ("serialized", pytest.approx(0.3, abs=0.03))


def test_traffic_below_the_floor_is_no_communication() -> None:
    got = minute(*serialized(burst=15e6))
    assert (got.state, got.reason) == ("serialized", None)  # it alternates with power: it is the job's all the same
    rng = np.random.default_rng(0)
    chatter = (np.arange(75_000) % 700 < 200).astype(float)
    got = minute(*node(np.ones(75_000), chatter, rng, burst=15e6))
    assert (got.state, got.reason) == ("compute_only", "no communication in this window")
    assert (got.health, got.exposed, got.communication) == (None, None, pytest.approx(0.0))


def test_a_slow_wire_is_judged_by_its_own_line_rate() -> None:
    got = minute(*serialized(burst=8e6, line=1.6e8))
    assert (got.state, got.exposed) == ("serialized", pytest.approx(0.3, abs=0.03))


def test_a_second_of_averaging_behind_the_name_of_a_fast_sensor_is_found_out() -> None:
    rng = np.random.default_rng(2)
    compute, traffic = alternation(90.0, 0.6, 0.4, 0.03, rng)
    on = np.arange(90_000) >= 25_000
    channels, inventory = node(compute * on, traffic * on, rng, busy=on.astype(float), window_s=0.025, true_window_s=1.0)
    blind = Analyzer().evaluate(channels, inventory, 88.0, (60.0,))[0]
    assert blind.state == "overlapped"  # what the table alone would have said
    got = minute(channels, inventory, 88.0)
    assert got.state == "unobservable"
    assert got.resolution_s == 4.0


def test_an_unknown_board_averages_over_a_second_until_it_proves_otherwise() -> None:
    channels, inventory = serialized(window_s=None, true_window_s=0.025)
    assert Analyzer().evaluate(channels, inventory, 74.0, (60.0,))[0].state == "unobservable"
    got = minute(channels, inventory)
    assert (got.state, got.resolution_s) == ("serialized", pytest.approx(0.4))


def test_an_averaging_source_stays_one() -> None:
    channels, inventory = serialized(window_s=None, true_window_s=1.0)
    averaging = dataclasses.replace(inventory.devices[0], power_source="average")
    got = minute(channels, dataclasses.replace(inventory, devices=(averaging, inventory.devices[1])))
    assert (got.state, got.resolution_s) == ("unobservable", 4.0)


def test_a_sensor_slower_than_its_table_is_not_trusted_with_fast_rhythms() -> None:
    for hertz in (10.0, 50.0):
        rng = np.random.default_rng(0)
        compute, traffic = alternation(75.0, 0.5, 0.5, 0.03, rng)
        channels, inventory = node(compute, traffic, rng, refresh_s=0.5, true_window_s=0.5, power_hz=hertz)
        gpu = dataclasses.replace(inventory.devices[0], power_refresh_s=0.1)
        inventory = dataclasses.replace(inventory, devices=(gpu, inventory.devices[1]))
        analyzer = run(channels, inventory, 74)
        got = minute(channels, inventory, analyzer=analyzer)
        assert got.state == "unobservable"
        assert got.resolution_s == pytest.approx(2.0, rel=0.1)
        power = next(r for r in analyzer.refresh if r.quantity == "power")
        assert (power.kind, power.id) == ("gpu", "GPU-0")
        assert power.refresh_s == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("hertz", [10.0, 20.0, 50.0])
@pytest.mark.parametrize("refresh_s", [0.1, 0.02])
def test_exact_levels_without_noise_do_not_make_a_sensor_slow(hertz: float, refresh_s: float) -> None:
    rng = np.random.default_rng(0)
    compute, traffic = alternation(75.0, 0.6, 0.4, 0.0, rng)
    channels, inventory = node(compute, traffic, rng, refresh_s=refresh_s, power_hz=hertz, noise=0.0)
    got = minute(channels, inventory)
    assert (got.state, got.resolution_s) == ("serialized", pytest.approx(0.1))
    assert got.exposed == pytest.approx(0.4, abs=0.03)


def test_polling_power_faster_than_it_refreshes_changes_no_answer() -> None:
    answers = [minute(*serialized(power_hz=hertz)) for hertz in (10.0, 20.0, 50.0)]
    assert [a.state for a in answers] == ["serialized"] * 3
    assert max(a.exposed or 0 for a in answers) - min(a.exposed or 0 for a in answers) < 0.03


def test_the_refresh_of_byte_counters_is_measured() -> None:
    analyzer = run(*serialized(byte_hz=50.0), 40)
    found = {(r.kind, r.id): r.refresh_s for r in analyzer.refresh if r.quantity == "bytes"}
    assert found == {("rdma_port", "mlx5_0/1"): pytest.approx(0.02, rel=0.1)}


def test_another_board_or_power_source_starts_with_an_empty_memory() -> None:
    channels, inventory = serialized()
    analyzer = run(channels, inventory, 60)
    booked = sum(analyzer.phases["GPU-0"].values())
    usage = dataclasses.replace(inventory.devices[0], power_source="usage")
    run(channels, dataclasses.replace(inventory, devices=(usage, inventory.devices[1])), 61, analyzer, since=61)
    assert sum(analyzer.phases["GPU-0"].values()) == pytest.approx(booked + 1)  # the same board: its time goes on
    other = dataclasses.replace(inventory.devices[0], uuid="GPU-other")
    run(channels, dataclasses.replace(inventory, devices=(other, inventory.devices[1])), 62, analyzer, since=62)
    assert sum(analyzer.phases["GPU-0"].values()) == pytest.approx(1.0)
    gone = dataclasses.replace(inventory, devices=inventory.devices[1:], links=())
    assert analyzer.step(channels, gone, 63.0) == ()
    assert (analyzer.phases, analyzer.refresh) == ({}, ())


def test_a_node_without_gpus_or_readings_is_no_error() -> None:
    nothing = Inventory("node-1", 0.0)
    analyzer = Analyzer()
    assert analyzer.step(Node(), nothing, 1.0) == ()
    assert analyzer.evaluate(Node(), nothing, 1.0, (60.0,)) == ()
    bare = Inventory("node-1", 0.0, (Device("gpu", "GPU-0", index=0),), (Link("GPU-0", "GPU-0", "nvlink", "node"),))
    assert [a.state for a in analyzer.step(Node(), bare, 2.0)] == ["no_data"] * 3
    assert analyzer.phases["GPU-0"]["unknown"] == 1.0


def test_the_same_trace_gives_the_same_memories() -> None:
    channels, inventory = serialized(gpus=2)
    a, b = run(channels, inventory, 74), run(channels, inventory, 74)
    assert a.phases == b.phases
    assert a.refresh == b.refresh
    assert a.evaluate(channels, inventory, 74.5, (60.0,)) == b.evaluate(channels, inventory, 74.5, (60.0,))


def test_holes_in_the_readings_invent_nothing() -> None:
    channels, inventory = serialized()
    full = minute(channels, inventory)
    rng = np.random.default_rng(0)
    for key, (t, value) in channels.channels.items():
        channels.channels[key] = t, np.where(rng.uniform(size=len(t)) < 0.03, np.nan, value)
    holed = minute(channels, inventory)
    assert holed.state == "serialized"
    assert holed.exposed == pytest.approx(full.exposed, abs=0.03)
