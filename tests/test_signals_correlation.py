"""Correlation: sign and strength of an alternation, absent where a signal is flat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from exporter.signals import correlation
from tests import naive

seeds = st.integers(0, 10_000)


def signals(seed: int, n: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    power = rng.uniform(100, 600, n)
    traffic = rng.uniform(0, 1e10, n) - 5e6 * power * rng.uniform(-1, 1)
    power[rng.uniform(size=n) < 0.1] = np.nan
    return power, np.abs(traffic)


@given(seeds)
def test_correlation_equals_its_slow_twin(seed: int) -> None:
    power, traffic = signals(seed)
    slow = naive.pearson(power.tolist(), traffic.tolist())
    assert float(correlation.pearson(power, traffic)) == pytest.approx(slow, nan_ok=True)


@given(seeds, st.floats(0.01, 100), st.floats(0.01, 100))
def test_scaling_either_signal_changes_no_correlation(seed: int, a: float, b: float) -> None:
    power, traffic = signals(seed)
    assert float(correlation.pearson(a * power, b * traffic)) == pytest.approx(float(correlation.pearson(power, traffic)))


@given(seeds, st.floats(0, 500), st.floats(0, 5e9))
def test_shifting_either_signal_changes_no_correlation(seed: int, a: float, b: float) -> None:
    power, traffic = signals(seed)
    shifted = float(correlation.pearson(power + a, traffic + b))
    assume(not np.isnan(shifted))  # a shift may make the swing small against the mean: flat by definition
    assert shifted == pytest.approx(float(correlation.pearson(power, traffic)))


@given(seeds)
def test_a_missing_reading_never_invents_a_correlation(seed: int) -> None:
    power, traffic = signals(seed)
    holes = ~np.isnan(power)
    assert float(correlation.pearson(power, traffic)) == pytest.approx(float(correlation.pearson(power[holes], traffic[holes])))
    assert np.isnan(correlation.pearson(np.full(9, np.nan), traffic[:9]))


def test_flat_signals_have_no_correlation() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=100)
    assert np.isnan(correlation.pearson(400 + 5 * noise, 1e10 + 3e9 * noise))
    assert np.isnan(correlation.pearson(400 + 90 * noise, 1e10 + 1e8 * noise))


def test_anticorrelation_is_zero_for_flat_and_for_rising_signals() -> None:
    at = [np.array(v) for v in (100.0, 400.0, 100.0)]
    assert float(correlation.anticorrelation(np.array(np.nan), *at)) == 0.0
    assert float(correlation.anticorrelation(np.array(0.7), *at)) == 0.0
    assert float(correlation.anticorrelation(np.array(-0.7), *at)) == pytest.approx(0.7)
