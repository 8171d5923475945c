"""Duty, compute level, kernel gap and bounds on mixtures: against slow twins, known answers and their own limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter import routes
from exporter.signals import duty, kernel_gap, levels, pairing_bounds
from exporter.signals.compute_level import compute_level, room
from tests import naive

share = st.floats(0, 1)
maybe = st.one_of(share, st.just(math.nan))
some = st.lists(share, min_size=2, max_size=40)


@given(st.lists(maybe, min_size=1, max_size=40))
def test_dispersion_equals_its_slow_twin(p: list[float]) -> None:
    assert float(duty.dispersion(np.array(p))) == pytest.approx(naive.dispersion(p), abs=1e-9)


@given(st.lists(st.floats(0, 5), min_size=2, max_size=40), st.floats(0.05, 0.9))
def test_presence_is_scaled_like_its_slow_twin(flow: list[float], target: float) -> None:
    if np.count_nonzero(np.array(flow) > 1e-3) <= target * len(flow) + 1:
        return  # so few tiles with bytes cannot hold so much time
    got = duty.scaled_to(np.array(flow), np.array(target))
    np.testing.assert_allclose(got, naive.scaled_to(flow, target), atol=0.02)


def test_scaled_presence_keeps_missing_tiles_missing_and_never_exceeds_one() -> None:
    got = duty.scaled_to(np.array([np.nan, 1.0, 9.0, 0.0]), np.array(0.5))
    assert np.isnan(got[0])
    assert got[2] == 1.0
    assert np.nanmean(got) == pytest.approx(0.5)


def test_several_shares_of_the_same_tiles_are_scaled_as_each_alone() -> None:
    flow = np.random.default_rng(2).gamma(0.5, size=(2, 60))
    flow[0, :5] = np.nan
    shares = np.array([[0.2, 0.5], [0.6, 0.1], [0.0, 0.9]])
    for together, share in zip(duty.scaled_to(flow, shares), shares, strict=True):
        np.testing.assert_allclose(together, duty.scaled_to(flow, share))


@given(some, st.sampled_from([(0.1, 0.1), (0.02, 0.04)]))
def test_bursts_are_counted_like_their_slow_twin(f: list[float], grid: tuple[float, float]) -> None:
    got = duty.burst_polls(np.array(f), np.array(grid[0]), np.array(grid[1]))
    assert [float(x) for x in got] == pytest.approx(naive.burst_polls(f, *grid))


def pulses(burst_s: float, period_s: float, rng: np.random.Generator, seconds: float = 60.0) -> np.ndarray:
    """On or off per half millisecond; periods that wander."""
    out = np.zeros(round(seconds / 0.0005), dtype=bool)
    at = 0.0
    while at < seconds:
        out[round(at / 0.0005) : round((at + burst_s) / 0.0005)] = True
        at += period_s * rng.uniform(0.8, 1.2)
    return out


@pytest.mark.parametrize("burst_s", [0.02, 0.05, 0.3])
@pytest.mark.parametrize("duty_of", [0.15, 0.4])
def test_pairs_of_reads_tell_the_duty_of_bursts_shorter_than_a_poll(burst_s: float, duty_of: float) -> None:
    rng = np.random.default_rng(3)
    on = pulses(burst_s, burst_s / duty_of, rng)
    total = np.concatenate(([0.0], np.cumsum(on * 20e9 * 0.0005)))
    grid = np.arange(len(total)) * 0.0005
    second = np.arange(0.1, 60.0, 0.1) + rng.uniform(-0.006, 0.006, 599)
    pairs = (np.interp(second, grid, total) - np.interp(second - 0.005, grid, total)) / 0.005
    fine = np.diff(np.interp(second, grid, total)) / np.diff(second)
    usual, _ = duty.bursts(pairs, *levels.traffic_levels(pairs))
    rate = duty.whole_rate(pairs, usual)
    got = duty.paired(pairs / rate, fine / rate, np.array(fine.mean() / 50e9))
    assert float(got.known) > 0.6
    assert float(got.likely) == pytest.approx(on.mean(), abs=0.03)
    least, poll = np.array(fine.mean() / 50e9), np.array(0.1)
    alone = duty.polled(fine / np.quantile(fine, 0.95), np.array(0.4), least, poll, poll)
    assert float(alone.low) <= on.mean() + 0.03
    assert float(alone.share) >= on.mean() - 0.03


@given(st.lists(st.floats(0, 2), min_size=12, max_size=60))
def test_steadiness_equals_its_slow_twin(f: list[float]) -> None:
    one = np.array(0.1)
    assert float(duty.steadiness(np.array(f), one, one)) == pytest.approx(naive.steadiness(f), abs=1e-6)


@given(some)
def test_the_likely_duty_lies_between_what_the_line_allows_and_what_polls_show(f: list[float]) -> None:
    got = duty.polled(np.array(f), np.array(0.5), np.array(float(np.mean(f)) / 2), np.array(0.1), np.array(0.1))
    assert float(got.low) - 1e-9 <= float(got.likely) <= float(got.share) + 1e-9
    assert 0 <= float(got.known) <= 1


def test_pairs_of_a_slow_counter_are_not_believed_beyond_the_line_rate() -> None:
    jumping = np.tile([0.0, 60e9], 100)
    assert not duty.pairs_tell(jumping, np.array(50e9))
    assert duty.pairs_tell(jumping / 2, np.array(50e9))
    assert not duty.pairs_tell(np.full(20, 9e9), np.array(50e9))


@given(st.lists(st.tuples(maybe, maybe), min_size=1, max_size=30), st.floats(0.5, 1.0))
def test_the_kernel_gap_equals_its_slow_twin(tiles: list[tuple[float, float]], compute: float) -> None:
    busy, active = (np.array(x) for x in zip(*tiles, strict=True))
    want = [naive.kernel_gap(b, s, compute) for b, s in tiles]
    np.testing.assert_allclose(kernel_gap.gap(busy, active, np.array(compute)), want, atol=1e-9)


@pytest.mark.parametrize("grain", [1, 7, 50])
def test_the_kernel_gap_is_the_same_at_every_grain(grain: int) -> None:
    rng = np.random.default_rng(grain)
    compute = np.repeat(rng.uniform(size=20_000 // grain + 1) < 0.6, grain)[:20_000]
    busy = compute | np.repeat(rng.uniform(size=20_000 // grain + 1) < 0.5, grain)[:20_000]
    active = np.where(compute, 0.94, np.where(busy, 0.14, 0.0))
    tiles = [x.astype(float).reshape(-1, 100).mean(axis=1) for x in (busy, active)]
    got = kernel_gap.gap(*tiles, np.array(0.94))
    assert float(got.mean()) == pytest.approx(float((busy & ~compute).mean()), abs=1e-6)


def test_a_plateau_of_mixtures_is_not_taken_for_pure_compute() -> None:
    mixed = kernel_gap.compute_activity(np.ones(200), np.full(200, 0.6), np.full(200, 0.4))
    assert float(mixed.ratio) >= 0.96
    pure = kernel_gap.compute_activity(np.ones(200), np.repeat([0.82, 0.3], 100), np.repeat([0.0, 1.0], 100))
    assert (float(pure.ratio), float(pure.error)) == (pytest.approx(0.82), 0.01)


@given(st.lists(st.tuples(maybe, maybe), min_size=2, max_size=40))
def test_gaps_on_top_of_traffic_equal_their_slow_twin(both: list[tuple[float, float]]) -> None:
    lack, tau = (np.array(x) for x in zip(*both, strict=True))
    unknown = np.isnan(lack + tau)
    lack, tau = np.where(unknown, np.nan, lack), np.where(unknown, np.nan, tau)
    if not np.nansum(tau) > 1e-3:
        return
    got = pairing_bounds.together(lack, tau, pairing_bounds.neighbours(tau))
    assert float(got) == pytest.approx(naive.together(lack.tolist(), tau.tolist()))
    assert float(pairing_bounds.independent(lack, tau)) <= float(np.nansum(np.minimum(lack, tau)) / np.nansum(tau)) + 1e-9


@given(st.lists(maybe, min_size=1, max_size=30))
def test_neighbours_are_a_boxcar_of_three(x: list[float]) -> None:
    np.testing.assert_allclose(pairing_bounds.neighbours(np.array(x)), naive.boxcar_mean(x, 1), atol=1e-9)


def test_the_compute_level_says_how_it_was_found() -> None:
    t, ones = np.arange(600) * 0.1, np.ones(600)
    off = np.tile(np.repeat([1.0, 0.0], 10), 30)
    alternating = compute_level(t, 200 + 300 * off, ones, 1 - off, 500.0, 100.0, 700.0, math.nan)
    assert (alternating.certainty, alternating.watts) == ("plain", pytest.approx(500.0))
    broken = compute_level(t, 100 + 200 * off, 0.5 * off, 1 - off, 300.0, 100.0, 700.0, math.nan)
    assert (broken.certainty, broken.watts) == ("seen", pytest.approx(500.0))
    mixture = compute_level(t, 380 * ones, ones, 0.4 * ones, 380.0, 100.0, 700.0, math.nan)
    assert mixture.certainty == "inferred"
    assert 380 < mixture.low < mixture.watts < mixture.high < 700
    remembered = compute_level(t, 380 * ones, ones, 0.4 * ones, 380.0, 100.0, 700.0, 600.0)
    assert (remembered.certainty, remembered.watts) == ("plain", 600.0)
    nothing_known = compute_level(t, 380 * ones, ones, 0.4 * ones, 380.0, 100.0, math.nan, math.nan)
    assert nothing_known.high > nothing_known.watts == pytest.approx(380.0)


@given(st.lists(st.tuples(st.one_of(st.floats(80, 700), st.just(math.nan)), share), min_size=1, max_size=30))
def test_the_deficit_of_the_time_with_a_kernel_equals_its_slow_twin(readings: list[tuple[float, float]]) -> None:
    power, still = (np.array(x) for x in zip(*readings, strict=True))
    got = pairing_bounds.busy_deficit(power, np.array(220.0), np.array(560.0), np.array(110.0), still)
    np.testing.assert_allclose(got, [naive.busy_deficit(p, 220.0, 560.0, 110.0, s) for p, s in readings], atol=1e-9)


def test_time_without_a_kernel_is_not_counted_against_traffic_placed_by_chance() -> None:
    rng = np.random.default_rng(4)
    still = rng.uniform(0.2, 0.8, 600)  # the rest computes without a pause, and a tenth of it has traffic beside
    power = 100 * still + 500 * (1 - still)
    levels_of = (np.array(210.0), np.array(500.0))
    tau = 0.1 * (1 - still)
    assert float(pairing_bounds.independent(pairing_bounds.deficit(power, *levels_of), tau)) > 0.4
    netted = pairing_bounds.busy_deficit(power, *levels_of, np.array(100.0), still)
    assert float(pairing_bounds.independent(netted, tau)) == pytest.approx(0.0, abs=1e-9)


@given(st.lists(share, min_size=1, max_size=30), share)
def test_what_power_can_tell_of_time_without_a_kernel_equals_its_slow_twin(still: list[float], stall: float) -> None:
    got = pairing_bounds.tellable(np.array(still), np.array(stall))
    np.testing.assert_allclose(got, [naive.tellable(s, stall) for s in still], atol=1e-9)


@pytest.mark.parametrize(("stall", "low", "high"), [(0.1, 0.0, 0.02), (0.6, 0.9, 1.0)])
def test_time_without_a_kernel_lies_on_top_of_traffic_only_in_jobs_that_mostly_stall(
    stall: float, low: float, high: float
) -> None:
    still = np.tile([2 * stall, 0.0] if stall < 0.5 else [stall, stall], 300)  # the rest computes, with traffic beside it
    power = 100 * still + 500 * (1 - still)
    tau = 0.1 * (1 - still)
    levels_of = (np.array(210.0), np.array(500.0))
    ran = pairing_bounds.filled(power, levels_of[1], np.array(100.0), pairing_bounds.tellable(still, np.array(stall)))
    exposed = float(pairing_bounds.together(pairing_bounds.deficit(ran, *levels_of), tau, pairing_bounds.neighbours(tau)))
    assert low <= exposed <= high


@given(share, st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_resolved_rhythm_is_held_to_its_duty_like_its_slow_twin(part: float, smeared: float, c: float) -> None:
    got = routes.held_to_duty(*(np.array([v]) for v in (part * smeared, smeared, c)))
    assert [float(v[0]) for v in got] == pytest.approx(naive.held_to_duty(part * smeared, smeared, c), abs=1e-9)
    assert 0.0 <= got[0] <= min(part * smeared, c) + 1e-9


@given(st.lists(st.floats(80, 700), min_size=1, max_size=30), st.floats(300, 700), st.floats(300, 700))
def test_the_room_that_power_leaves_equals_its_slow_twin(power: list[float], high: float, limit: float) -> None:
    got = room(np.array([power]), np.array([high]), np.array([limit]))
    assert float(got[0]) == pytest.approx(naive.room(power, high, limit), abs=1e-9)


def test_power_at_its_limit_leaves_no_room_and_without_a_limit_there_is_room_for_everything() -> None:
    flat = np.full((1, 600), 405.0)
    assert float(room(flat, np.array([405.0]), np.array([410.0]))[0]) == 0.0
    assert float(room(flat, np.array([405.0]), np.array([math.nan]))[0]) == 1.0


def test_activity_that_hardly_moves_is_that_of_compute_unless_it_is_low() -> None:
    rng = np.random.default_rng(2)
    still, moving = (0.9 + rng.normal(0, noise, 600) for noise in (0.0003, 0.01))
    sharp = kernel_gap.compute_activity(np.ones(600), still, np.ones(600))
    assert (float(sharp.ratio), float(sharp.error)) == (pytest.approx(0.9, abs=0.001), 0.01)
    assert float(kernel_gap.compute_activity(np.ones(600), moving, np.ones(600)).ratio) == pytest.approx(0.96)
    assert float(kernel_gap.compute_activity(np.ones(600), still - 0.3, np.ones(600)).ratio) == pytest.approx(0.96)


@given(share, share)
def test_pairs_resolve_fast_bursts_or_clear_ones(of_line: float, clear: float) -> None:
    got = float(duty.pairs_resolve(np.array(of_line), np.array(clear)))
    assert got == pytest.approx(max(naive.clip((of_line - 0.1) / 0.15), naive.clip((clear - 0.2) / 0.3)))
