"""What readings tell of their sensor: refresh, averaging window, alignment, and whether a rhythm can be seen at all."""

from __future__ import annotations

import doctest
import importlib
import math
import pkgutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import exporter.signals
from exporter.signals import alignment, observability, sensor
from tests import naive
from tests.draws import GRAIN_S, alternation, polls, power_readings


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(exporter.signals.__path__)])
def test_every_example_in_the_signals_is_true(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"exporter.signals.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


def job_start(window_s: float, refresh_s: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    watts = np.where(np.arange(40_000) < 20_000 + rng.integers(200), 90.0, rng.uniform(350, 650))
    t = polls(40.0, 10.0, 0.005, rng)
    return t, power_readings(watts, t, window_s, refresh_s, 4.0, rng)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("window_s", "refresh_s"), [(0.01, 0.02), (0.025, 0.1), (0.1, 0.1)])
def test_a_job_start_proves_a_fast_sensor(window_s: float, refresh_s: float, seed: int) -> None:
    t, power = job_start(window_s, refresh_s, seed)
    assert sensor.transition_floor(t, power, 0.1)[1] <= 0.28


@pytest.mark.parametrize("seed", range(20))
def test_a_job_start_unmasks_a_sensor_that_averages_over_a_second(seed: int) -> None:
    t, power = job_start(1.0, 0.1, seed)
    assert sensor.transition_floor(t, power, 0.1)[1] >= 0.41


def test_flat_power_slow_polls_and_ripple_prove_nothing() -> None:
    t = np.arange(300) * 0.1
    flat = 400 + np.random.default_rng(0).normal(0, 4, 300)
    assert math.isnan(sensor.transition_floor(t, flat, 0.1)[1])
    assert math.isnan(sensor.transition_floor(t, 400 + 60 * np.sin(t * 3), 0.1)[1])
    step = np.where(np.arange(300) < 150, 100.0, 500.0)
    assert math.isnan(sensor.transition_floor(np.arange(300) * 0.5, step, 0.5)[1])


@pytest.mark.parametrize("refresh_s", [0.1, 0.5])
@pytest.mark.parametrize("hertz", [10, 50])
def test_the_measured_refresh_is_that_of_the_sensor_however_fast_one_polls(refresh_s: float, hertz: float) -> None:
    rng = np.random.default_rng(3)
    t = polls(20.0, hertz, 0.002, rng)
    power = power_readings(rng.normal(400, 50, 20_000), t, 0.025, refresh_s, 4.0, rng)
    assert sensor.measured_refresh(t, power) == pytest.approx(refresh_s, rel=0.2)


@pytest.mark.parametrize("scale_watts", [0.1, 0.001])
@pytest.mark.parametrize("hertz", [10, 20, 50])
@pytest.mark.parametrize("refresh_s", [0.1, 0.5])
def test_the_refresh_is_measured_on_a_square_wave_with_noise_too(refresh_s: float, hertz: float, scale_watts: float) -> None:
    rng = np.random.default_rng(4)
    compute, _ = alternation(20.0, 0.6, 0.4, 0.0, rng)
    t = polls(20.0, hertz, 0.002, rng)
    power = power_readings(240 + 400 * compute, t, 0.025, refresh_s, 4.0, rng)
    assert sensor.measured_refresh(t, np.round(power / scale_watts) * scale_watts) == pytest.approx(refresh_s, rel=0.2)


@pytest.mark.parametrize("levels", [(640.0, 240.0), (640.0, 240.0, 80.0), (640.0, 600.0, 520.0, 240.0)])
@pytest.mark.parametrize("hertz", [10, 50])
@pytest.mark.parametrize("step_s", [1.0, 1.7, 2.3])
def test_the_levels_of_a_signal_without_noise_are_not_taken_for_a_slow_sensor(levels: tuple[float, ...], hertz: float,
                                                                              step_s: float) -> None:  # fmt: skip
    rng = np.random.default_rng(5)
    place = (np.arange(20_000) * GRAIN_S / step_s + rng.uniform()) % 1.0
    t = polls(20.0, hertz, 0.002, rng)
    power = power_readings(np.array(levels)[(place * len(levels)).astype(int)], t, 0.025, 0.1, 0.0, rng)
    measured = sensor.measured_refresh(t, power)
    assert math.isnan(measured) or measured < 1.5 * 0.1


def test_power_that_stands_still_tells_nothing_of_the_sensor() -> None:
    t = np.arange(200) * 0.1
    assert math.isnan(sensor.measured_refresh(t, np.full(200, 70.0)))
    assert math.isnan(sensor.measured_refresh(t, np.where(t % 1.3 < 0.9, 70.0, 70.5)))
    assert math.isnan(sensor.returning(t))


@given(st.one_of(st.lists(st.integers(0, 3), min_size=2, max_size=80), st.lists(st.integers(0, 40), min_size=2, max_size=80)))
def test_the_measured_refresh_equals_its_slow_twin(values: list[int]) -> None:
    t = np.arange(len(values)) * 0.1
    fast = sensor.measured_refresh(t, np.array(values, dtype=float))
    assert fast == pytest.approx(naive.measured_refresh(t.tolist(), values), nan_ok=True)


def test_bursts_with_pauses_are_not_taken_for_a_slow_counter() -> None:
    rng = np.random.default_rng(0)
    _, traffic = alternation(15.0, 0.25, 0.05, 0.05, rng)
    t = polls(15.0, 10.0, 0.003, rng)
    total = np.interp(t, np.arange(15_001) * 0.001, np.concatenate(([0.0], np.cumsum(traffic))))
    assert sensor.counter_refresh(t, total, 0.1) < 1.35 * 0.1


def test_a_counter_slower_than_the_polls_is_seen() -> None:
    t = np.arange(750) * 0.02
    assert sensor.counter_refresh(t, np.floor(t / 0.1 + 0.01), 0.02) == pytest.approx(0.1, rel=0.05)


def test_old_values_of_a_counter_are_told_from_pauses() -> None:
    t = np.arange(150) * 0.1
    assert sensor.stale_share(t, 200 * np.floor(t / 0.125 + 1e-6), 1e6) == pytest.approx(0.2, abs=0.03)
    assert sensor.stale_share(t, 200.0 * np.arange(150), 1e6) == 0.0
    assert math.isnan(sensor.stale_share(t, np.zeros(150), 1e6))
    chatter = np.cumsum(np.random.default_rng(0).integers(0, 5000, 150) * (np.arange(150) % 5 > 0)).astype(float)
    assert sensor.stale_share(t, chatter, 1e6) == 0.0


values = st.lists(st.one_of(st.sampled_from([1.0, 2.0, math.nan])), min_size=1, max_size=80)


@given(values, st.floats(0.03, 0.2))
def test_fresh_readings_equal_their_slow_twin(power: list[float], refresh_s: float) -> None:
    t = np.arange(len(power)) * 0.02
    assert alignment.fresh(t, np.array(power), refresh_s).tolist() == naive.fresh(t.tolist(), power, refresh_s)


def test_flat_power_keeps_one_reading_per_refresh() -> None:
    kept = alignment.fresh(np.arange(500) * 0.02, np.full(500, 400.0), 0.1)
    assert len(kept) == pytest.approx(100, abs=3)


@pytest.mark.parametrize("offset_s", [0.001, 0.003, 0.097, 0.099])
def test_polls_in_step_with_the_sensor_tell_the_age_of_each_reading(offset_s: float) -> None:
    rng = np.random.default_rng(0)
    t = np.sort(np.arange(1, 400) * 0.1 + offset_s + rng.uniform(-0.008, 0.008, 399))
    tick = np.floor(t / 0.1 + 1e-9)
    power = rng.normal(400, 80, 401)[tick.astype(int)]
    ages = alignment.reading_ages(t, power, 0.1, 0.1)
    # Within the scatter of the estimate the two sides of a refresh cannot be told apart.
    assert np.mean(np.abs(ages - (t - 0.1 * tick)) < 0.012) > 0.9


def test_without_repeats_a_reading_is_half_a_refresh_old_on_average() -> None:
    t = np.arange(1, 400) * 0.1
    power = np.arange(399) * 1.0
    assert alignment.reading_ages(t, power, 0.1, 0.1).tolist() == [0.05] * 399
    assert alignment.reading_ages(t, np.full(399, 400.0), 0.1, 0.1).tolist() == [0.05] * 399  # flat: repeats of the signal
    assert alignment.reading_ages(t[::5], power[::5], 0.5, 0.1).tolist() == [0.05] * 80


def test_rows_of_unequal_length_line_up_at_the_newest_reading() -> None:
    assert alignment.stack([]).shape == (0, 0)
    stacked = alignment.stack([np.arange(3.0), np.empty(0)])
    assert stacked[0].tolist() == [0.0, 1.0, 2.0]
    assert np.isnan(stacked[1]).all()


@pytest.mark.parametrize(("period_s", "seen"), [(6.0, True), (4.0, True), (1.5, False), (0.3, False)])
def test_a_second_of_averaging_hides_rhythms_below_four_seconds(period_s: float, seen: bool) -> None:
    t = np.arange(6000) * 0.01
    traffic = ((t % period_s) < period_s / 2).astype(float).reshape(-1, 10).mean(axis=1)
    assert (observability.survival(traffic, 0.1, 0.1, 1.0) >= observability.LIMIT) is seen


def test_short_bursts_do_not_survive_a_long_window() -> None:
    traffic = (np.arange(600) % 31 < 3).astype(float)
    assert observability.survival(traffic, 0.1, 0.1, 1.0) == pytest.approx(0.3, abs=0.08)


def test_intervals_that_are_all_half_full_hold_a_faster_rhythm() -> None:
    tau = np.random.default_rng(0).uniform(0.3, 0.7, (1, 600))
    slow, short = (float(observability.grain(tau, np.array([0.1]), np.array([w]))[0]) for w in (0.1, 0.025))
    assert slow < observability.LIMIT <= short


def test_flat_traffic_is_judged_by_the_sensor_and_by_the_level() -> None:
    one = np.ones((6, 50))

    def a(*x: float) -> np.ndarray:
        return np.array(x)

    got, modulated = observability.observability(
        one, one, a(0.1, 0.1, 0.1, 0.02, 0.1, 0.1), np.full(6, 0.1), a(0.025, 0.1, 1.0, 1.0, 0.025, 0.025),
        a(0, 0, 0, 0, 0, 0.1), a(400, 400, 400, 400, 200, 200), np.full(6, 500.0), a(400, 400, 400, 400, 200, 200))  # fmt: skip
    assert got.tolist() == [0.8, 0.6, 0.45, 0.5, 0.4, 0.6]
    assert not modulated.any()
