"""Simulated jobs: the physics does what its names say, and every scenario's truth follows from its intervals."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import STATES
from exporter.sources import jobs
from exporter.sources.job_levels import (
    ACTIVITIES,
    FLAT,
    IDLE,
    STALL,
    TRANSFER,
    WAIT,
    Column,
    Flow,
    RankStep,
    Spans,
    Step,
    levels_of,
)
from exporter.sources.jobs import Ddp, Sharded, Site, bucket_times
from exporter.sources.scenarios import DEMO_WALK, SCENARIOS, list_scenarios, scenario, slow_rank
from exporter.sources.simulator import simulate, verdict_of

# Of GPU-0 over 120 s: state, and where exposed, communication, stall and wait lie.
TRUTH: dict[str, tuple[str, tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "perfect_overlap": ("overlapped", (0, 0), (1, 1), (0, 0), (0, 0)),
    "serialized": ("serialized", (.44, .45), (.44, .45), (0, 0), (0, 0)),
    "ddp_bucketed": ("overlapped", (0, .02), (.5, .7), (0, 0), (0, 0)),
    "ddp_small_buckets": ("partial", (.15, .35), (.6, .8), (0, 0), (0, 0)),
    "ddp_no_overlap": ("serialized", (.25, .4), (.25, .4), (0, 0), (0, 0)),
    "fsdp_prefetch": ("overlapped", (0, .02), (.5, .7), (0, 0), (0, 0)),
    "fsdp_no_prefetch": ("partial", (.2, .35), (.4, .6), (0, 0), (0, 0)),
    "zero3": ("partial", (.25, .4), (.9, 1), (0, 0), (0, 0)),
    "gradient_accumulation": ("partial", (.04, .1), (.1, .2), (0, 0), (0, 0)),
    "tcp_fallback": ("partial", (.3, .4), (.6, .75), (0, 0), (0, 0)),
    "input_stall": ("stalled", (0, .02), (.3, .45), (.28, .38), (0, 0)),
    "storage_checkpoint": ("stalled", (0, .02), (.35, .5), (.2, .3), (0, 0)),
    "straggler": ("overlapped", (.06, .08), (.6, .75), (0, 0), (.15, .25)),
    "pipeline_bubbles": ("overlapped", (0, .04), (.2, .35), (0, 0), (.14, .2)),
    "power_capped": ("overlapped", (0, 0), (.5, .6), (0, 0), (0, 0)),
    "compute_only": ("compute_only", (0, 0), (0, 0), (0, 0), (0, 0)),
    "link_degraded": ("partial", (.15, .3), (.6, .8), (0, 0), (0, 0)),
    "gpu_lost": ("overlapped", (0, .02), (.45, .6), (.05, .1), (.07, .1)),
    "congestion": ("partial", (.15, .3), (.6, .8), (0, 0), (0, 0)),
    "slow_sensor": ("unobservable", (.44, .45), (.44, .45), (0, 0), (0, 0)),
    "two_jobs": ("unobservable", (.2, .35), (.2, .35), (0, 0), (0, 0)),
}
SHARES = ("exposed", "communication", "stall", "wait")


def site(gpus: int = 8, bytes_per_s: float = 10e9, fault_s: float = float("inf")) -> Site:
    return Site(gpus, 600.0, bytes_per_s, np.random.default_rng(1), fault_s)


def shares(step: Step, gpu: int = 0) -> dict[str, float]:
    """Seconds of the step per kind of time."""
    edges, levels = levels_of(step, step.ranks[gpu])
    seconds = np.diff(edges) @ levels
    return {name: float(seconds[Column[name.upper()]]) for name in (*SHARES, "running", "kernel")}


def test_the_table_holds_every_scenario_of_the_contract() -> None:
    assert set(TRUTH) | {"idle"} == {row.name for row in SCENARIOS}
    assert len({row.name for row in SCENARIOS}) == len(SCENARIOS)
    assert set(DEMO_WALK) <= {row.name for row in SCENARIOS}


def test_the_list_explains_each_scenario_in_one_line() -> None:
    rows = list_scenarios()
    assert [name for name, _ in rows] == [row.name for row in SCENARIOS]
    assert all(text and "\n" not in text and len(text) < 100 for _, text in rows)


def test_an_unknown_scenario_is_answered_with_the_names_that_there_are() -> None:
    with pytest.raises(KeyError, match=r"no scenario is called 'nothing'.*serialized"):
        scenario("nothing")


@pytest.mark.parametrize("name", TRUTH)
def test_a_scenario_shows_what_its_name_says(name: str) -> None:
    truth = simulate(name).inventory.truth
    state, *ranges = TRUTH[name]
    assert truth["state"] == state
    for share, (low, high) in zip(SHARES, ranges, strict=True):
        assert low - 2e-3 <= truth[share] <= high + 2e-3, share


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", TRUTH)
def test_shares_of_a_truth_fit_together_on_every_gpu(name: str, seed: int) -> None:
    truth = simulate(name, seconds=40.0, seed=seed).inventory.truth
    assert {k: truth[k] for k in truth["gpus"]["GPU-0"]} == truth["gpus"]["GPU-0"]
    assert len(truth["gpus"]) == 8
    for gpu in truth["gpus"].values():
        assert gpu["state"] in STATES
        assert 0 <= gpu["exposed"] <= gpu["communication"] <= 1
        assert gpu["exposed"] + gpu["stall"] + gpu["wait"] <= 1
        if gpu["health"] is not None:
            assert gpu["health"] == pytest.approx(1 - gpu["exposed"] / gpu["communication"], abs=1e-5)


def test_an_idle_node_has_no_shares() -> None:
    truth = simulate("idle", seconds=20.0).inventory.truth
    assert truth["state"] == "idle"
    assert [truth[key] for key in (*SHARES, "health", "step_period_s")] == [None] * 6


def test_the_serialized_scenario_is_exactly_100_ms_of_compute_and_80_ms_of_communication() -> None:
    row = scenario("serialized")
    step = next(row.job(site()))
    assert step.duration_s == pytest.approx(.18)
    assert shares(step)["exposed"] == pytest.approx(.08)
    assert simulate("serialized", seconds=18.0).inventory.truth["step_period_s"] == pytest.approx(.18)
    assert simulate("serialized", seconds=18.0).inventory.truth["exposed"] == pytest.approx(.08 / .18, abs=1e-3)


def test_only_the_straggler_does_not_wait() -> None:
    gpus = simulate("straggler").inventory.truth["gpus"]
    waits = {gpu: truth["wait"] for gpu, truth in gpus.items()}
    slow = f"GPU-{slow_rank(8)}"
    assert waits.pop(slow) < .01
    assert min(waits.values()) > .15


def test_a_degraded_link_doubles_the_time_on_the_wire_after_the_fault() -> None:
    late = simulate("link_degraded", seconds=300.0).inventory.truth
    early = simulate("ddp_bucketed", seconds=300.0).inventory.truth
    assert late["exposed"] > 10 * early["exposed"]


def test_two_jobs_have_truths_of_their_own() -> None:
    simulation = simulate("two_jobs")
    gpus = simulation.inventory.truth["gpus"]
    assert simulation.inventory.jobs == {f"GPU-{g}": "a" if g < 4 else "b" for g in range(8)}
    assert gpus["GPU-0"]["exposed"] > .2
    assert gpus["GPU-7"]["exposed"] < .1
    assert gpus["GPU-0"]["step_period_s"] != gpus["GPU-7"]["step_period_s"]


# Levels


def naive_kind(rank: RankStep, t: float) -> tuple[int, bool]:
    """Activity and traffic at one instant, by looking at every span."""
    busy = [int(c) for a, b, c in zip(rank.busy.start_s, rank.busy.end_s, rank.busy.value, strict=True) if a <= t < b]
    sends = any(a <= t < b for a, b in zip(rank.traffic.start_s, rank.traffic.end_s, strict=True))
    code = busy[0] if busy else rank.gap
    return (TRANSFER if sends and not ACTIVITIES[code].computes else code), sends


spans = st.lists(st.floats(0.0, 1.0), min_size=0, max_size=8, unique=True).map(
    lambda cuts: [(a, b) for a, b in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)]
)


@given(spans, spans, st.sampled_from([WAIT, STALL, IDLE]), st.lists(st.floats(0.0, 0.999999), min_size=1, max_size=20))
def test_levels_agree_with_looking_at_every_span(
    busy: list[tuple[float, float]], sent: list[tuple[float, float]], gap: int, instants: list[float]
) -> None:
    rank = RankStep(Spans.of(*((a, b, FLAT) for a, b in busy)), Spans.of(*((a, b, 5e9) for a, b in sent)), gap)
    step = Step(1.0, (rank,), 600.0, jobs.RDMA)
    edges, levels = levels_of(step, rank)
    assert edges[0] == 0.0
    assert edges[-1] == 1.0
    for t in instants:
        row = levels[np.searchsorted(edges, t, side="right") - 1]
        code, sends = naive_kind(rank, t)
        lost = not ACTIVITIES[code].computes and not sends and code != IDLE
        assert row[Column.WATTS] == pytest.approx(600.0 * ACTIVITIES[code].watts)
        assert row[Column.RDMA_TRANSMIT] == (5e9 if sends else 0.0)
        assert row[Column.EXPOSED] == (sends and not ACTIVITIES[code].computes)
        assert row[Column.STALL] == (lost and ACTIVITIES[code].kernel == 0)
        assert row[Column.WAIT] == (lost and ACTIVITIES[code].kernel == 1)
        assert row[Column.RUNNING] == (code != IDLE)


def test_storage_traffic_is_not_communication() -> None:
    flow = Flow(Column.RDMA_TRANSMIT, Spans.of((0.0, 1.0, 6e9)))
    rank = RankStep(Spans.of((0.0, 1.0, STALL)), flows=(flow,))
    seconds = shares(Step(1.0, (rank,), 600.0, jobs.RDMA))
    assert seconds["communication"] == 0
    assert seconds["stall"] == 1


def test_a_power_cap_holds_compute_at_the_limit() -> None:
    row = scenario("power_capped")
    step = next(row.job(site()))
    _, levels = levels_of(step, step.ranks[0])
    assert set(levels[:, Column.WATTS]) == {600.0}
    assert levels[:, Column.CAPPED].min() > .5


# Jobs


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30).map(sorted), st.floats(.01, 2))
def test_buckets_go_out_one_after_the_other(ready: list[float], took: float) -> None:
    start, end = bucket_times(np.array(ready), took)
    free = 0.0
    for i, t in enumerate(ready):
        begin = max(free, t)
        free = begin + took
        assert start[i] == pytest.approx(begin)
        assert end[i] == pytest.approx(free)


def test_only_the_last_bucket_shows_when_buckets_are_sent_as_fast_as_they_fill() -> None:
    shape = Ddp(forward_s=.1, backward_s=.2, optimizer_s=.02, buckets=20, bucket_s=.008, jitter=0.0)
    assert shares(next(jobs.ddp(site(), shape)))["exposed"] == pytest.approx(.008)


def test_buckets_slower_than_the_backward_show_by_what_is_left() -> None:
    shape = Ddp(forward_s=.1, backward_s=.2, optimizer_s=.02, buckets=20, bucket_s=.02, jitter=0.0)
    assert shares(next(jobs.ddp(site(), shape)))["exposed"] == pytest.approx(.01 + 20 * .02 - .2)


def test_without_overlap_all_communication_is_exposed() -> None:
    shape = Ddp(forward_s=.1, backward_s=.2, optimizer_s=.02, buckets=4, bucket_s=.02, overlap=False, jitter=0.0)
    seconds = shares(next(jobs.ddp(site(), shape)))
    assert seconds["exposed"] == seconds["communication"] == pytest.approx(.08)


def test_accumulation_exchanges_once_per_step() -> None:
    shape = Ddp(forward_s=.1, backward_s=.2, optimizer_s=.02, buckets=4, bucket_s=.01, micro_steps=5, jitter=0.0)
    step = next(jobs.ddp(site(), shape))
    assert step.duration_s == pytest.approx(5 * .3 + .01 + .02)
    assert shares(step)["communication"] == pytest.approx(.04)


def test_a_late_loader_leaves_the_gpu_without_a_kernel() -> None:
    shape = Ddp(forward_s=.1, backward_s=.2, optimizer_s=.02, buckets=4, bucket_s=.01, loader_s=.15, jitter=0.0)
    step = next(jobs.ddp(site(), shape))
    seconds = shares(step)
    assert seconds["stall"] == pytest.approx(.15)
    assert seconds["kernel"] == pytest.approx(step.duration_s - .15)


def test_checkpoints_come_when_they_are_due_and_stop_everything() -> None:
    shape = Ddp(forward_s=.1, backward_s=.2, optimizer_s=.02, buckets=4, bucket_s=.01, checkpoint_every_s=5.0, checkpoint_s=2.0,
                checkpoint_bytes_per_s=6e9, jitter=0.0)
    now, stalls = 0.0, []
    for step in islice(jobs.ddp(site(), shape), 60):
        if shares(step)["stall"] == step.duration_s:
            stalls.append(now)
        now += step.duration_s
    assert len(stalls) >= 2
    assert np.diff(stalls) == pytest.approx(7.0, abs=.4)


def test_a_lost_rank_leaves_the_others_spinning_until_the_watchdog_fires() -> None:
    shape = Ddp(forward_s=.1, backward_s=.2, optimizer_s=.02, buckets=4, bucket_s=.01, hang_s=10.0, restart_s=8.0)
    steps = list(islice(jobs.ddp(site(fault_s=3.0), shape), 40))
    hangs = [step for step in steps if not step.rhythm]
    assert len(hangs) == 1
    assert (shares(hangs[0])["wait"], shares(hangs[0])["stall"]) == pytest.approx((10.0, 8.0))


def test_with_prefetch_only_the_first_gather_and_the_last_scatter_show() -> None:
    shape = Sharded(blocks=12, gather_s=.01, forward_s=.02, backward_s=.04, scatter_s=.01, optimizer_s=.02, prefetch=1,
                    jitter=0.0)
    seconds = shares(next(jobs.sharded(site(), shape)))
    assert seconds["exposed"] == pytest.approx(.02)
    assert seconds["communication"] == pytest.approx(12 * .03)


def test_without_prefetch_every_gather_shows() -> None:
    shape = Sharded(blocks=12, gather_s=.01, forward_s=.02, backward_s=.04, scatter_s=.01, optimizer_s=.02, prefetch=0,
                    jitter=0.0)
    assert shares(next(jobs.sharded(site(), shape)))["exposed"] == pytest.approx(24 * .01 + .01)


def test_a_wire_slower_than_compute_shows_in_spite_of_prefetch() -> None:
    shape = Sharded(blocks=12, gather_s=.03, forward_s=.02, backward_s=.04, scatter_s=.03, optimizer_s=.0, prefetch=1,
                    jitter=0.0)
    step = next(jobs.sharded(site(), shape))
    assert step.duration_s == pytest.approx(36 * .03, rel=.06)  # the wire is never free
    assert shares(step)["exposed"] == pytest.approx(step.duration_s - 12 * .06, rel=.01)


def test_seven_ranks_wait_for_the_eighth() -> None:
    step = next(jobs.straggler(site(), compute_s=.6, slower=1.25, gather_s=.2, scatter_s=.05, slow=3, jitter=0.0))
    assert [shares(step, gpu)["wait"] for gpu in range(8)] == pytest.approx([.15, .15, .15, 0, .15, .15, .15, .15])
    assert shares(step, 0)["exposed"] == pytest.approx(.05)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 16), (8, 32), (8, 3)])
def test_the_bubble_of_a_pipeline_is_as_known(stages: int, micro_batches: int) -> None:
    """(p - 1) / (m + p - 1) of the step (Narayanan et al., 2019), the same on every stage."""
    step = next(jobs.pipeline(site(stages), micro_batches=micro_batches, forward_s=.04, backward_s=.08, send_s=0.0,
                              optimizer_s=0.0, jitter=0.0))
    assert step.duration_s == pytest.approx((micro_batches + stages - 1) * .12)
    for gpu in range(stages):
        assert shares(step, gpu)["wait"] == pytest.approx((stages - 1) * .12)


@pytest.mark.parametrize("row", SCENARIOS, ids=lambda row: row.name)
def test_a_job_fills_every_step_on_every_gpu_with_spans_in_order(row: Any) -> None:
    for step in islice(row.job(site(fault_s=2.0)), 5):
        assert len(step.ranks) == 8
        for rank in step.ranks:
            for s in (rank.busy, rank.traffic):
                assert np.all(s.end_s > s.start_s)
                assert np.all(s.start_s[1:] >= s.end_s[:-1] - 1e-12)
                assert len(s.end_s) == 0 or (s.start_s[0] >= 0 and s.end_s[-1] <= step.duration_s + 1e-9)


# Verdicts


def verdict(hidden: bool = False, **means: float) -> str:
    levels = np.zeros(len(Column))
    for name, value in ({"running": 1.0} | means).items():
        levels[Column[name.upper()]] = value
    return str(verdict_of(levels, hidden)["state"])


def test_the_state_is_the_first_that_matches() -> None:
    assert verdict(running=.04, communication=.04) == "idle"
    assert verdict(stall=.2) == "stalled"
    assert verdict(stall=.1) == "compute_only"
    assert verdict(communication=.3, exposed=.3, hidden=True) == "unobservable"
    assert verdict(communication=.3, exposed=.3, stall=.2) == "stalled"
    assert verdict(communication=.3, exposed=.05) == "overlapped"
    assert verdict(communication=.015, exposed=.015) == "overlapped"
    assert verdict(communication=.3, exposed=.25) == "serialized"
    assert verdict(communication=.3, exposed=.15) == "partial"


def test_shares_are_of_running_time() -> None:
    levels = np.zeros(len(Column))
    levels[[Column.RUNNING, Column.COMMUNICATION, Column.EXPOSED]] = .5, .25, .1
    assert (verdict_of(levels)["communication"], verdict_of(levels)["exposed"]) == (.5, .2)
