"""The period of a step: found within 3 %, never a multiple, a part or an alias, and nothing where nothing repeats."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from exporter.analysis import Analyzer
from exporter.model import Inventory, OverlapAnalysis
from exporter.signals.likeness import HALVED, Likeness
from exporter.signals.opinions import Signal, step_period
from tests import naive
from tests.draws import GRAIN_S, Node, alternation, byte_readings, node, polls

Array = NDArray[np.float64]
BURST = 2e10
# Bursts of a step as shares of its length.
JOBS = {
    "tail": [(0.7, 1.0)],
    "hidden": [(0.3, 0.8)],
    "accumulation": [(0.93, 0.99)],
    "buckets": [(0.4 + 0.05 * k, 0.425 + 0.05 * k) for k in range(12)],
    "layers": [(0.03 + 0.04 * k, 0.05 + 0.04 * k) for k in range(8)] + [(0.4 + 0.07 * k, 0.43 + 0.07 * k) for k in range(8)],
}


def steps(bursts: list[tuple[float, float]], period_s: float, jitter: float, rng: np.random.Generator,
          seconds: float = 60.0) -> tuple[Array, float]:  # fmt: skip
    """Traffic per millisecond, on or off, of steps that differ in length, and the median length."""
    traffic = np.zeros(round(seconds / GRAIN_S))
    at, lengths = -rng.uniform(0, period_s), []
    while at < seconds:
        lengths.append(period_s * max(0.5, rng.normal(1, jitter)))
        for begin, end in bursts:
            i, j = (max(0, round((at + share * lengths[-1]) / GRAIN_S)) for share in (begin, end))
            traffic[i:j] = 1
        at += lengths[-1]
    return traffic, float(np.median(lengths))


def alone(t: Array, presence: Array) -> float:
    """What traffic says without a second opinion."""
    return step_period(Signal(t, presence))


def seen(traffic: Array, hertz: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Presence as byte polls show it, over intervals of at least 40 ms."""
    t = polls(len(traffic) * GRAIN_S - 0.01, hertz, 0.001 if hertz > 20 else 0.004, rng)
    total = byte_readings(BURST * traffic + 2000.0, t, 0.01)
    apart = max(1, round(0.04 * hertz))
    return (t[apart:] + t[:-apart]) / 2, (total[apart:] - total[:-apart]) / (t[apart:] - t[:-apart]) / BURST


@pytest.mark.parametrize("jitter", [0.005, 0.02, 0.05])
@pytest.mark.parametrize(("hertz", "period_s"), [(50, 0.31), (50, 2.37), (50, 7.1), (10, 0.83), (10, 2.37), (10, 7.1)])
@pytest.mark.parametrize("job", ["tail", "hidden", "accumulation"])
def test_one_burst_a_step_gives_the_step(job: str, hertz: float, period_s: float, jitter: float) -> None:
    rng = np.random.default_rng(round(1000 * period_s))
    traffic, typical_s = steps(JOBS[job], period_s, jitter, rng)
    assert alone(*seen(traffic, hertz, rng)) == pytest.approx(typical_s, rel=0.03)


@pytest.mark.parametrize(("job", "period_s"), [("buckets", 2.4), ("buckets", 6.0), ("layers", 4.0), ("layers", 8.0)])
@pytest.mark.parametrize("jitter", [0.002, 0.01])
def test_buckets_and_layers_are_not_steps(job: str, period_s: float, jitter: float) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        traffic, typical_s = steps(JOBS[job], period_s, jitter, rng)
        assert alone(*seen(traffic, 50.0, rng)) == pytest.approx(typical_s, rel=0.03)


def test_of_many_drawn_jobs_hardly_any_gets_a_wrong_period() -> None:
    rng = np.random.default_rng(11)
    answered = right = 0
    for _ in range(250):
        hertz = float(rng.choice([10.0, 50.0]))
        period_s = float(np.exp(rng.uniform(np.log(4.5 / hertz), np.log(16.0))))
        traffic, typical_s = steps(JOBS[str(rng.choice(list(JOBS)))], period_s, float(rng.choice([0.005, 0.02, 0.05])), rng)
        found = alone(*seen(traffic, hertz, rng))
        answered += not math.isnan(found)
        right += abs(found / typical_s - 1) <= 0.03
    assert answered > 0.7 * 250
    assert right > 0.97 * answered


@pytest.mark.parametrize("hertz", [10.0, 50.0])
def test_steps_that_are_late_now_and_then_count_in_the_mean_and_pauses_do_not(hertz: float) -> None:
    rng = np.random.default_rng(4)
    lengths = 0.95 * rng.normal(1, 0.01, 70) * np.where(np.arange(70) % 9 == 8, 1.4, 1.0)
    ends = np.cumsum(lengths)
    ends[30:] += 7.0  # a checkpoint
    traffic = np.zeros(60_000)
    for end in ends[ends < 60]:
        traffic[round((end - 0.3) / GRAIN_S) : round(end / GRAIN_S)] = 1
    lasted = np.diff(ends[ends < 60])
    mean_s = lasted[lasted < 2].mean()
    assert mean_s > 1.03 * np.median(lasted)
    assert alone(*seen(traffic, hertz, rng)) == pytest.approx(mean_s, rel=0.02)


@pytest.mark.parametrize("period_s", [0.06, 0.1, 0.12, 0.18, 0.2, 0.25, 0.33])
def test_a_rhythm_of_less_than_four_polls_is_no_rhythm_of_longer_steps(period_s: float) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        traffic, _ = steps(JOBS["tail"], period_s, 0.02, rng)
        assert math.isnan(alone(*seen(traffic, 10.0, rng)))


@pytest.mark.parametrize("period_s", [21.0, 35.0, 90.0])
def test_fewer_than_three_steps_are_no_rhythm(period_s: float) -> None:
    rng = np.random.default_rng(0)
    traffic, _ = steps(JOBS["tail"], period_s, 0.01, rng)
    assert math.isnan(alone(*seen(traffic, 50.0, rng)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 1.0), st.floats(0.0, 1.0))
def test_noise_has_no_period(seed: int, spread: float, base: float) -> None:
    x = np.clip(base + spread * np.random.default_rng(seed).standard_normal(3000), 0.0, 1.0)
    assert math.isnan(alone(np.arange(3000) * 0.02, x))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.5, 20.0))
def test_bursts_at_random_times_have_no_period(seed: int, gap_s: float) -> None:
    rng = np.random.default_rng(seed)
    traffic = np.zeros(60_000)
    for start in rng.uniform(0, 60, rng.poisson(60 / gap_s)):
        traffic[round(start / GRAIN_S) : round((start + rng.uniform(0.05, 0.4) * gap_s) / GRAIN_S)] = 1
    found = alone(*seen(traffic, 50.0, rng))
    assert math.isnan(found) or found > 60 / 6  # a handful of bursts may lie evenly by chance


@given(st.floats(0.0, 1.0), st.integers(0, 400))
def test_flat_traffic_has_no_period(level: float, count: int) -> None:
    assert math.isnan(alone(np.arange(count) * 0.02, np.full(count, level)))


def test_holes_and_pauses_change_nothing() -> None:
    rng = np.random.default_rng(3)
    traffic, typical_s = steps(JOBS["tail"], 1.3, 0.02, rng)
    t, x = seen(traffic, 50.0, rng)
    holed = np.where(rng.uniform(size=len(t)) < 0.05, np.nan, x)
    assert alone(t, holed) == pytest.approx(typical_s, rel=0.03)
    away = (t > 20) & (t < 31)
    assert alone(t[~away], x[~away]) == pytest.approx(typical_s, rel=0.03)
    paused = np.where((t > 20) & (t < 31), 0.0, x)
    assert alone(t, paused) == pytest.approx(typical_s, rel=0.03)
    gone = (t > 15) & (t < 45)
    assert math.isnan(alone(t[~gone], x[~gone]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([True, True, True, False])), min_size=40, max_size=90),
       st.integers(0, 12))  # fmt: skip
def test_autocorrelations_equal_their_slow_twin(readings: list[tuple[float, bool]], lag: int) -> None:
    x, there = np.array([v for v, _ in readings]), np.array([k for _, k in readings])
    if np.count_nonzero(there) < 2 or np.ptp(x[there]) < 1e-3:
        return
    total = naive.autocorrelation(x.tolist(), there.tolist(), 1, 0)
    likeness = Likeness(x, there)
    for width in (1, 2, 4, 7):
        curve = likeness.curve(width)
        assert curve.step == (0.5 if width < HALVED else 1.0)
        own = naive.autocorrelation(x.tolist(), there.tolist(), width, 0)
        at = round(lag / curve.step)
        wanted = naive.autocorrelation(x.tolist(), there.tolist(), width, lag) / own
        assert curve.r[at] == pytest.approx(wanted, abs=1e-6 * max(1.0, total / own))
        assert curve.share == pytest.approx(own / total, rel=1e-6)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_wide_boxcars_leave_out_lags_and_are_nearly_their_slow_twin(width: int) -> None:
    rng = np.random.default_rng(width)
    x, there = np.repeat(rng.uniform(size=90), 8) + 0.3 * rng.standard_normal(720), np.ones(720, dtype=bool)
    curve = Likeness(x, there).curve(width)
    own = naive.autocorrelation(x.tolist(), there.tolist(), width, 0)
    assert curve.step == width / 8
    for k in (1, 5, 20, 60):
        wanted = naive.autocorrelation(x.tolist(), there.tolist(), width, round(k * curve.step)) / own
        assert curve.r[k] == pytest.approx(wanted, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 1e4), st.floats(-1e3, 1e3), st.integers(0, 100))
def test_scale_and_offset_change_no_autocorrelation(scale: float, offset: float, seed: int) -> None:
    x, there = np.random.default_rng(seed).uniform(size=300), np.ones(300, dtype=bool)
    ours, theirs = Likeness(x, there), Likeness(scale * x + offset, there)
    for width in (1.0, 4.0, 16.0):
        np.testing.assert_allclose(ours.curve(width).r, theirs.curve(width).r, atol=1e-6)
    assert ours.neighbours == pytest.approx(theirs.neighbours, abs=1e-6)


# Through the analysis


def job(period_s: float = 0.9, seconds: float = 75.0, seed: int = 1, **board: object) -> tuple[Node, Inventory]:
    rng = np.random.default_rng(seed)
    return node(*alternation(seconds, 0.7 * period_s, 0.3 * period_s, 0.03, rng), rng, **board)


def walk(channels: Node, inventory: Inventory, seconds: range, analyzer: Analyzer | None = None) -> list[OverlapAnalysis]:
    analyzer = analyzer or Analyzer((60.0,), 60.0)
    return [analyzer.step(channels, inventory, float(second))[0] for second in seconds]


def test_the_period_is_stable_from_second_to_second() -> None:
    for seed in range(3):
        said = [a.step_period_s for a in walk(*job(seconds=110.0, seed=seed), range(1, 110))]
        assert said[:28] == [None] * 28  # the window is not half full
        found = [p for p in said[36:] if p is not None]
        assert len(found) == len(said[36:])
        assert max(abs(b / a - 1) for a, b in pairwise(found)) < 0.03
        assert found == pytest.approx([0.9] * len(found), rel=0.03)


def test_a_named_instant_gives_the_remembered_period_and_changes_nothing() -> None:
    channels, inventory = job()
    analyzer = Analyzer((15.0, 60.0), 60.0)
    told = [analyzer.step(channels, inventory, float(second)) for second in range(1, 71)][-1]
    for _ in range(2):
        named = analyzer.evaluate(channels, inventory, 70.0, (15.0, 60.0))
        assert [a.step_period_s for a in named] == [a.step_period_s for a in told]
    fresh = Analyzer((60.0,), 60.0).evaluate(channels, inventory, 70.5, (15.0,))[0]
    assert fresh.step_period_s == pytest.approx(0.9, rel=0.03)


@pytest.mark.parametrize(("before_s", "after_s"), [(2.0, 1.1), (2.0, 0.75), (0.6, 1.7), (3.0, 1.0)])
def test_a_new_rhythm_is_told_after_a_while_and_nothing_else_in_between(before_s: float, after_s: float) -> None:
    rng = np.random.default_rng(2)
    parts = [alternation(80.0, 0.7 * period_s, 0.3 * period_s, 0.02, rng) for period_s in (before_s, after_s)]
    channels, inventory = node(*(np.concatenate(pair) for pair in zip(*parts, strict=True)), rng)
    said = [a.step_period_s for a in walk(channels, inventory, range(1, 159))]
    assert said[78] == pytest.approx(before_s, rel=0.03)
    assert said[156] == pytest.approx(after_s, rel=0.03)
    for found in said:
        assert found is None or found == pytest.approx(before_s, rel=0.05) or found == pytest.approx(after_s, rel=0.05)


def test_another_job_starts_without_the_period_of_the_one_before() -> None:
    channels, inventory = job()
    analyzer = Analyzer((60.0,), 60.0)
    assert walk(channels, dataclasses.replace(inventory, jobs={"GPU-0": "a"}), range(1, 71), analyzer)[-1].step_period_s
    after = walk(channels, dataclasses.replace(inventory, jobs={"GPU-0": "b"}), range(71, 72), analyzer)[-1]
    assert after.step_period_s is None


def test_the_amount_of_traffic_and_what_always_flows_do_not_matter() -> None:
    for burst in (1e9, 22.5e9, 45e9):
        assert walk(*job(burst=burst), range(30, 75))[-1].step_period_s == pytest.approx(0.9, rel=0.03)


def test_no_traffic_no_job_and_foreign_bytes_give_no_period() -> None:
    rng = np.random.default_rng(0)
    compute, _ = alternation(75.0, 0.5, 0.4, 0.03, rng)
    assert walk(*node(compute, np.zeros(75_000), rng), range(30, 75))[-1].step_period_s is None
    assert walk(*node(np.zeros(75_000), np.zeros(75_000), rng, busy=0.0), range(30, 75))[-1].step_period_s is None
    channels, inventory = job(gpus=2)
    links = tuple(dataclasses.replace(link, device_id="mlx5_0/1") for link in inventory.links)
    shared = dataclasses.replace(inventory, links=links, jobs={"GPU-0": "a", "GPU-1": "b"})
    assert walk(channels, shared, range(30, 75))[-1].step_period_s is None
