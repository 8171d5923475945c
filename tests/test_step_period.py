"""The step period with power as a second opinion: right within 3 % or absent, and the same from second to second."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.periods import Said
from exporter.memories import GpuMemory
from exporter.model import Record
from exporter.rhythm import between_levels, mean_watts
from exporter.session import Session
from exporter.signals.opinions import Signal, step_period
from exporter.sources.simulator import simulate
from tests import naive
from tests.draws import GRAIN_S, byte_readings, polls, power_readings
from tests.test_signals_period import JOBS, seen

Array = NDArray[np.float64]
HALVES = [(0.1, 0.2), (0.6, 0.7)]
LAYERS = [((k + 0.3) / 16, (k + 0.7) / 16) for k in range(16)]
SENSORS = (0.025, 0.1)  # averaging window and refresh of power, s


def job(bursts: list[tuple[float, float]], period_s: float, jitter: float, rng: np.random.Generator,
        hidden: bool = False, seconds: float = 60.0) -> tuple[Array, Array, float]:  # fmt: skip
    """Traffic and watts per millisecond, and the mean step: a pass forward takes less power than the rest of the step."""
    n = round(seconds / GRAIN_S)
    traffic, watts = np.zeros(n), np.full(n, 620.0)
    at, lengths = -rng.uniform(0, period_s), []
    while at < seconds:
        lengths.append(period_s * max(0.5, rng.normal(1, jitter)))
        edge = [max(0, round((at + share * lengths[-1]) / GRAIN_S)) for share in (0.0, 0.35)]
        watts[edge[0] : edge[1]] = 480.0
        for begin, end in bursts:
            i, j = (max(0, round((at + share * lengths[-1]) / GRAIN_S)) for share in (begin, end))
            traffic[i:j] = 1
            if not hidden:
                watts[i:j] = 180.0
        at += lengths[-1]
    return traffic, watts, float(np.mean(lengths))


def energy(watts: Array, rng: np.random.Generator) -> Signal | None:
    """Power as an energy counter gives it that takes a new value each 0.1 s, and is asked ten times a second."""
    t = polls(len(watts) * GRAIN_S - 0.01, 10.0, 0.004, rng)
    when, mean = mean_watts(t, byte_readings(watts, t, 0.1 * rng.uniform(0.99, 1.01)))
    scaled = between_levels(mean)
    return None if scaled is None else Signal(when, scaled)


def moments(watts: Array, rng: np.random.Generator, hertz: float = 10.0) -> Signal:
    """Power as momentary readings give it."""
    t = polls(len(watts) * GRAIN_S - 0.01, hertz, 0.004, rng)
    scaled = between_levels(power_readings(watts, t, SENSORS[0], SENSORS[1] * rng.uniform(0.99, 1.01), 5.0, rng))
    assert scaled is not None
    return Signal(t, scaled, gapless=False)


def traffic_of(traffic: Array, hertz: float, rng: np.random.Generator) -> Signal:
    return Signal(*seen(traffic, hertz, rng))


@pytest.mark.parametrize("hertz", [10.0, 50.0])
@pytest.mark.parametrize("period_s", [1.3, 2.9, 6.2])
@pytest.mark.parametrize("power", [energy, moments])
def test_power_tells_a_step_from_halves_that_look_the_same_in_traffic(power, period_s: float, hertz: float) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(round(100 * period_s))
    traffic, watts, mean_s = job(HALVES, period_s, 0.01, rng, hidden=True)
    bytes_seen = traffic_of(traffic, hertz, rng)
    assert step_period(bytes_seen) == pytest.approx(mean_s / 2, rel=0.03)
    found = step_period(bytes_seen, power(watts, rng))
    if power is moments and period_s < 1.6:  # eight momentary readings per half: they may as well beat with it
        assert math.isnan(found)
    else:
        assert found == pytest.approx(mean_s, rel=0.03)


@pytest.mark.parametrize("period_s", [3.1, 5.3, 8.0])
@pytest.mark.parametrize("hidden", [True, False])
def test_power_tells_a_step_from_layers_that_go_on_without_a_pause(period_s: float, hidden: bool) -> None:
    rng = np.random.default_rng(round(100 * period_s))
    traffic, watts, mean_s = job(LAYERS, period_s, 0.005, rng, hidden)
    found = step_period(traffic_of(traffic, 50.0, rng), energy(watts, rng))
    assert math.isnan(found) or found == pytest.approx(mean_s, rel=0.03)
    assert hidden is False or found == pytest.approx(mean_s, rel=0.03)


@pytest.mark.parametrize("period_s", [0.44, 0.83, 2.1, 7.3])
def test_where_nothing_is_sent_the_energy_counter_shows_the_step(period_s: float) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        _, watts, mean_s = job([], period_s, 0.01, rng)
        assert step_period(None, energy(watts, rng)) == pytest.approx(mean_s, rel=0.03)


def test_momentary_power_alone_shows_long_steps_and_says_nothing_of_short_ones() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        _, watts, mean_s = job([], 2.3, 0.01, rng)
        assert step_period(None, moments(watts, rng)) == pytest.approx(mean_s, rel=0.03)
        _, watts, _ = job([], 0.55, 0.01, rng)  # or a faster one that is looked at now and then
        assert math.isnan(step_period(None, moments(watts, rng)))


@pytest.mark.parametrize("power", [energy, moments])
def test_hardly_any_rhythm_faster_than_all_readings_is_taken_for_a_slower_one(power) -> None:  # type: ignore[no-untyped-def]
    answers = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        bursts = JOBS[str(rng.choice(["tail", "hidden", "accumulation", "buckets"]))]
        traffic, watts, _ = job(bursts, float(rng.uniform(0.05, 0.35)), float(rng.choice([0.005, 0.02, 0.05])), rng,
                                hidden=bool(rng.integers(2)))  # fmt: skip
        answers += not math.isnan(step_period(traffic_of(traffic, 10.0, rng), power(watts, rng)))
    assert answers <= 3


def test_a_rhythm_that_power_is_too_slow_for_is_left_to_the_traffic() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        traffic, watts, mean_s = job(JOBS["tail"], 0.18, 0.01, rng)
        for power in (energy(watts, rng), moments(watts, rng)):
            assert step_period(traffic_of(traffic, 50.0, rng), power) == pytest.approx(mean_s, rel=0.03)


@pytest.mark.parametrize(("sent_s", "computed_s"), [(1.3, 3.1), (4.7, 0.9), (2.0, 2.7)])
def test_two_rhythms_that_have_nothing_to_do_with_each_other_are_no_step(sent_s: float, computed_s: float) -> None:
    rng = np.random.default_rng(5)
    traffic, _, _ = job(JOBS["tail"], sent_s, 0.01, rng)
    _, watts, _ = job([], computed_s, 0.01, rng)
    assert math.isnan(step_period(traffic_of(traffic, 50.0, rng), energy(watts, rng)))


def test_what_both_show_faintly_is_found_and_what_one_shows_faintly_is_not() -> None:
    together = apart = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        traffic, watts, mean_s = job(JOBS["tail"], 1.7, 0.02, rng)
        noisy = traffic_of(traffic, 10.0, rng)
        noisy = Signal(noisy.t, np.clip(noisy.x + rng.normal(0, 0.75, len(noisy.t)), 0, 1))
        beside = energy(watts + np.repeat(rng.normal(0, 190.0, 600), 100), rng)
        assert beside is not None
        apart += not math.isnan(step_period(noisy)) and not math.isnan(step_period(None, beside))
        found = step_period(noisy, beside)
        assert math.isnan(found) or found == pytest.approx(mean_s, rel=0.03)
        together += not math.isnan(found)
    assert together > apart


@pytest.mark.parametrize("kind", ["tail", "buckets"])
def test_steps_that_take_longer_from_some_second_on_are_counted_or_not_told(kind: str) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        parts = [job(JOBS[kind], period_s, 0.01, rng, seconds=length_s) for period_s, length_s in ((1.0, 38.0), (1.35, 22.0))]
        traffic, watts = (np.concatenate([p[k] for p in parts]) for k in (0, 1))
        mean_s = 60.0 / (38.0 / 1.0 + 22.0 / 1.35)
        a, b = traffic_of(traffic, 50.0, rng), energy(watts, rng)
        assert b is not None
        found = GpuMemory().confirmed(step_period(a, b), lambda a=a, b=b: step_period(a.later(), b.later()))  # type: ignore[misc]
        assert math.isnan(found) or found == pytest.approx(mean_s, rel=0.03)


def test_a_stall_each_eight_steps_is_not_taken_for_the_step() -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        sent, watts = [], []
        for _ in range(6):
            busy, taken, _ = job(JOBS["tail"], 1.0, 0.01, rng, seconds=8.0)
            stalled = np.zeros(int(rng.uniform(1800, 3000)))
            sent += [busy, stalled]
            watts += [taken, stalled + 120.0]
        traffic, power = np.concatenate(sent)[:60_000], np.concatenate(watts)[:60_000]
        found = step_period(traffic_of(traffic, 50.0, rng), energy(power, rng))
        assert math.isnan(found) or found == pytest.approx(1.0, rel=0.03)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(2.0, 200.0), st.floats(0.0, 1.0))
def test_noise_in_both_has_no_period(seed: int, spread: float, base: float) -> None:
    rng = np.random.default_rng(seed)
    t = np.arange(600) * 0.1
    sent = Signal(t, np.clip(base + 0.3 * rng.standard_normal(600), 0, 1))
    scaled = between_levels(np.clip(500.0 + spread * rng.standard_normal(600), 60.0, 700.0))
    assert math.isnan(step_period(sent, None if scaled is None else Signal(t, scaled)))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.sampled_from([0.0, 0.0, 1.5, 70.0, -500.0, math.nan])), max_size=40))
def test_watts_between_new_values_of_energy_equal_their_slow_twin(polled: list[tuple[float, float]]) -> None:
    t = np.cumsum([gap for gap, _ in polled])
    gained = np.array([step for _, step in polled])
    joules = np.where(np.isnan(gained), np.nan, 1e4 + np.cumsum(np.nan_to_num(gained)))
    when, watts = mean_watts(t, joules)
    wanted = naive.mean_watts(t.tolist(), joules.tolist())
    assert when.tolist() == pytest.approx([at for at, _ in wanted])
    assert watts.tolist() == pytest.approx([mean for _, mean in wanted])


def test_power_that_stands_still_has_no_levels_and_others_lie_between_theirs() -> None:
    rng = np.random.default_rng(0)
    assert between_levels(400.0 + rng.normal(0, 4.0, 600)) is None
    assert between_levels(np.empty(0)) is None
    scaled = between_levels(np.where(np.arange(600) % 10 < 5, 300.0, 650.0))
    assert scaled is not None
    assert set(scaled.tolist()) == {0.0, 1.0}


# From second to second


@cache
def said(name: str, seconds: int) -> tuple[tuple[float | None, ...], float]:
    """What the session says at each second of a long trace of one job, and the true step."""
    trace = simulate(name, float(seconds), seed=3, gpus=2)
    session, answers = Session(), []
    for event in trace:
        if isinstance(event, Record) and session.advance(event.t_s):
            answers.append(next(a.step_period_s for a in session.verdicts.analyses if a.window_s == 60.0))
        session.take(event)
    return tuple(answers), trace.truth_between(60.0, float(seconds))["gpus"]["GPU-0"]["step_period_s"]


@pytest.mark.parametrize("name", ["fsdp_no_prefetch", "gradient_accumulation", "zero3", "compute_only", "serialized"])
def test_over_minutes_the_answer_never_leaps_to_a_multiple_or_a_part(name: str) -> None:
    answers, step_s = said(name, 200)
    found = [p for p in answers if p is not None]
    assert found == pytest.approx([step_s] * len(found), rel=0.03)
    assert max(abs(b / a - 1) for a, b in pairwise(found)) < 0.02
    assert sum(p is None for p in answers[65:]) <= 10


def test_the_newest_of_the_estimates_that_agree_is_told() -> None:
    memory = GpuMemory()
    for at_s, period_s in ((4.0, 1.0), (8.0, 1.02), (12.0, 1.04)):
        memory.periods.append((at_s, period_s))
    assert memory.period(13.0) == 1.04
    memory.periods.append((16.0, 2.08))
    assert memory.period(17.0) == 1.04


def test_one_look_without_a_rhythm_changes_nothing_unless_the_one_before_is_long_ago_and_two_end_the_answer() -> None:
    memory = GpuMemory()
    for at_s, period_s in ((4.0, 1.0), (8.0, 1.0), (12.0, 1.0), (16.0, math.nan)):
        memory.periods.append((at_s, period_s))
    assert memory.period(17.0) == 1.0
    memory.periods.append((20.0, math.nan))
    assert memory.period(21.0) is None
    settled = GpuMemory()
    for at_s, period_s in ((4.0, 1.0), (8.0, 1.0), (12.0, 1.0), (24.0, math.nan)):
        settled.periods.append((at_s, period_s))
    assert settled.period(24.0) is None


def test_steps_that_grow_longer_are_looked_at_more_often_than_settled_ones() -> None:
    steady, growing = GpuMemory(), GpuMemory()
    for k in range(4):
        steady.periods.append((4.0 * k, 1.0 + 0.001 * k))
        growing.periods.append((4.0 * k, 1.0 + 0.02 * k))
    assert steady.settled
    assert not growing.settled


def test_a_step_whose_layers_were_seen_first_is_told_although_it_is_many_layers_long() -> None:
    memory = GpuMemory()
    memory.periods.append((40.0, 0.645))
    assert memory.confirmed(8.14, lambda: 8.1) == 8.14
    assert math.isnan(memory.confirmed(7.74, lambda: 7.74))  # twelve layers: two rhythms in one window repeat like that


@pytest.mark.parametrize(("said_s", "truth_s", "outcome"), [
    (1.02, 1.0, "right"), (2.04, 1.0, "multiples"), (0.33, 1.0, "fractions"), (1.08, 1.0, "otherwise wrong"),
    (0.645, 8.1, "fractions"), (0.7, 1.0, "otherwise wrong"), (None, 1.0, "silent"), (None, None, "right"),
    (1.0, None, "otherwise wrong"),
])  # fmt: skip
def test_the_benchmark_tells_apart_how_an_answer_is_wrong(said_s: float | None, truth_s: float | None, outcome: str) -> None:
    assert Said("", "", truth_s, said_s).outcome == outcome
