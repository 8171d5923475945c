"""Levels: quantiles that ignore NaN, and readings placed between low and high."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.signals import levels
from tests import naive

number = st.floats(0, 1e6, allow_nan=False)
reading = st.one_of(number, st.just(math.nan))
row = st.lists(reading, min_size=1, max_size=60)


@given(row, st.floats(0, 1))
def test_quantiles_equal_their_slow_twin(x: list[float], share: float) -> None:
    assert levels.quantiles(np.array(x), (share,))[0] == pytest.approx(naive.quantile(x, share), nan_ok=True)


@given(row, st.floats(0, 1), number)
def test_quantiles_above_a_limit_are_those_of_what_lies_above_it(x: list[float], share: float, above: float) -> None:
    got = levels.quantiles(np.array(x), (share,), above=np.array(above))[0]
    assert got == pytest.approx(naive.quantile([v for v in x if v > above], share), nan_ok=True)


@given(row, st.integers(0, 20), st.floats(0, 1))
def test_quantiles_ignore_nan(x: list[float], holes: int, share: float) -> None:
    padded = np.concatenate((np.full(holes, np.nan), x))
    np.testing.assert_array_equal(levels.quantiles(padded, (share,)), levels.quantiles(np.array(x), (share,)))


def test_quantiles_of_several_rows_are_those_of_each_row() -> None:
    x = np.random.default_rng(1).normal(size=(3, 2, 50))
    x[0, 1, 7:30] = np.nan
    together = levels.quantiles(x, (0.05, 0.5))
    for f in range(3):
        for g in range(2):
            np.testing.assert_array_equal(together[:, f, g], levels.quantiles(x[f, g], (0.05, 0.5)))


@given(row)
def test_traffic_levels_equal_their_slow_twin(x: list[float]) -> None:
    low, high = levels.traffic_levels(np.array(x))
    slow_low, slow_high = naive.traffic_levels(x)
    assert float(high) == pytest.approx(slow_high, nan_ok=True)
    assert float(low) == pytest.approx(0.0 if math.isnan(slow_high) else slow_low) or math.isnan(slow_high)


def test_rare_bursts_set_the_high_level() -> None:
    x = np.zeros(1000)
    x[::50] = 8e9
    low, high = levels.traffic_levels(x)
    assert (float(low), float(high)) == (0.0, 4.8e9)


def test_traffic_that_is_always_there_is_the_low_level_and_a_short_pause_does_not_make_one() -> None:
    steady = np.where(np.arange(1000) % 10 < 3, 20e9, 6e9)
    assert float(levels.traffic_levels(steady)[0]) == 6e9
    pausing = np.where(np.arange(1000) % 20 < 1, 4e9, 8e9) * (np.arange(1000) % 50 > 1)
    assert float(levels.traffic_levels(pausing)[0]) == 0.0


@given(st.lists(reading, min_size=3, max_size=40), st.data(), st.one_of(st.just(math.nan), st.floats(1, 1e6)))
def test_power_levels_equal_their_slow_twin(power: list[float], data: st.DataObject, remembered: float) -> None:
    on = data.draw(st.lists(st.booleans(), min_size=len(power), max_size=len(power)))
    low, high = levels.power_levels(np.array(power), np.array(on), np.array(remembered))
    if math.isnan(naive.quantile(power, 0.95)):
        return
    slow_low, slow_high = naive.power_levels(power, on, remembered)
    assert (float(low), float(high)) == (pytest.approx(slow_low), pytest.approx(slow_high))


def test_a_phase_without_compute_is_held_against_the_remembered_level() -> None:
    waiting = np.full(100, 150.0)
    low, high = levels.power_levels(waiting, np.ones(100, bool), np.array(500.0))
    assert float(high) == 450.0
    assert levels.deficit(waiting, low, high).min() == 1.0


@given(st.floats(0, 1e4), st.floats(1, 100), st.floats(101, 1000))
def test_deficit_equals_its_slow_twin(power: float, low: float, high: float) -> None:
    fast = levels.deficit(np.array([[power]]), np.array([low]), np.array([high]))[0, 0]
    assert fast == pytest.approx(naive.deficit(power, low, high))


@given(st.floats(-2, 3))
def test_soft_presence_equals_its_slow_twin(scaled: float) -> None:
    assert levels.soft_presence(np.array([scaled]))[0] == pytest.approx(naive.soft_presence(scaled))


def test_a_ripple_of_a_twelfth_is_no_deficit() -> None:
    power = 500 + 40 * np.sin(np.arange(600))
    low, high = levels.power_levels(power, np.ones(600, bool), np.array(np.nan))
    assert levels.deficit(power[None], low[None], high[None]).max() == 0.0


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_runs_equal_their_slow_twin(on: list[bool]) -> None:
    t = np.arange(len(on)) * 0.1
    np.testing.assert_allclose(levels.run_seconds(t, np.array(on), 0.1), naive.run_seconds(t.tolist(), on, 0.1))


def test_a_missing_reading_stays_missing() -> None:
    nan = np.array([[np.nan]])
    one, two = np.array([1.0]), np.array([2.0])
    assert np.isnan(levels.presence(nan, one, two)).all()
    assert np.isnan(levels.presence(nan, one, one)).all()
    assert np.isnan(levels.soft_presence(nan)).all()
    assert np.isnan(levels.deficit(nan, one, two)).all()
    assert np.isnan(levels.quantiles(np.empty((2, 0)), (0.5,))).all()
