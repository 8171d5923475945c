"""Overlap: shares of time from deficit and presence, against slow twins and known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.signals import overlap
from tests import naive

share = st.one_of(st.floats(0, 1), st.just(math.nan))
pairs = st.lists(st.tuples(share, share), min_size=1, max_size=60)


@given(pairs)
def test_exposed_equals_its_slow_twin(both: list[tuple[float, float]]) -> None:
    lack, tau = (np.array(x) for x in zip(*both, strict=True))
    assert float(overlap.exposed(lack, tau)) == pytest.approx(naive.exposed(lack.tolist(), tau.tolist()), nan_ok=True)


@given(pairs, st.sampled_from([0.02, 0.1, 0.5]))
def test_bounds_enclose_the_exposed_share_and_equal_their_slow_twins(both: list[tuple[float, float]], step_s: float) -> None:
    lack, tau = (np.array([x]) for x in zip(*both, strict=True))
    low, high = (float(x[0]) for x in overlap.exposed_bounds(lack, tau, np.array([step_s])))
    x = float(overlap.exposed(lack, tau)[0])
    if math.isnan(x):
        assert math.isnan(low)
        return
    assert low - 1e-9 <= x
    assert low == pytest.approx(naive.exposed_low(lack[0].tolist(), tau[0].tolist()))
    unknown = np.isnan(lack[0]) | np.isnan(tau[0])
    reach = round((0.3 / step_s - 1) / 2)
    smooth = [naive.boxcar_mean(np.where(unknown, np.nan, y[0]).tolist(), max(0, reach)) for y in (lack, tau)]
    assert high == pytest.approx(max(low, naive.mean([min(a, b) for a, b in zip(*smooth, strict=True)])))


@given(st.lists(share, min_size=1, max_size=60), st.integers(0, 9))
def test_the_boxcar_equals_its_slow_twin(x: list[float], reach: int) -> None:
    np.testing.assert_allclose(overlap.boxcar_mean(np.array(x), reach), naive.boxcar_mean(x, reach), atol=1e-9)


@given(st.lists(share, min_size=1, max_size=60))
def test_communication_equals_its_slow_twin(scaled: list[float]) -> None:
    tau = [naive.soft_presence(v) for v in scaled]
    fast = overlap.communication(np.array(scaled), np.array(tau), np.array(0.1), np.array(0.1))
    assert float(fast) == pytest.approx(naive.communication(scaled, tau, 0.1, 0.1), nan_ok=True)


@pytest.mark.parametrize("period_s", [0.53, 1.07, 3.1])
def test_the_share_of_bursts_is_right_although_intervals_smear_them(period_s: float) -> None:
    fine = np.arange(60_000) * 0.001
    on = (fine % period_s) < 0.3 * period_s
    intervals = on.reshape(-1, 100).mean(axis=1)
    c = overlap.communication(intervals, np.clip((intervals - 0.06) / 0.64, 0, 1), np.array(0.1), np.array(0.1))
    assert float(c) == pytest.approx(0.3, abs=0.035)


@given(pairs)
def test_joining_two_equal_streams_changes_no_share(both: list[tuple[float, float]]) -> None:
    lack, tau = (np.array(x) for x in zip(*both, strict=True))
    once, twice = overlap.exposed(lack, tau), overlap.exposed(np.tile(lack, 2), np.tile(tau, 2))
    assert float(once) == pytest.approx(float(twice), nan_ok=True)


@given(pairs, st.data())
def test_a_missing_reading_never_invents_a_number(both: list[tuple[float, float]], data: st.DataObject) -> None:
    lack, tau = (np.array(x) for x in zip(*both, strict=True))
    k = data.draw(st.integers(0, len(lack) - 1))
    without = overlap.exposed(np.delete(lack, k), np.delete(tau, k))
    lack[k] = np.nan
    assert float(overlap.exposed(lack, tau)) == pytest.approx(float(without), nan_ok=True)


def test_time_without_a_kernel_is_a_stall_and_the_rest_a_wait() -> None:
    x, stall, wait = overlap.split(np.array(0.1), np.array(0.05), np.array(0.5), np.array(0.77))
    assert (float(x), float(stall), float(wait)) == (pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.2))


def test_a_stall_beside_bytes_is_not_exposed_communication() -> None:
    x, stall, _ = overlap.split(np.array(0.4), np.array(0.1), np.array(0.4), np.array(0.57))
    assert (float(x), float(stall)) == (pytest.approx(0.1), pytest.approx(0.3))


def test_without_utilisation_the_stall_is_unknown_and_all_is_wait() -> None:
    x, stall, wait = overlap.split(np.array(0.1), np.array(0.0), np.array(0.5), np.array(np.nan))
    assert float(x) == 0.1
    assert np.isnan(stall)
    assert float(wait) == pytest.approx(0.4)


def test_fast_rhythms_take_the_middle_of_what_pairing_leaves_open() -> None:
    x = overlap.settle(np.array([0.3, 0.3, 0.3]), np.array([0.4, 0.4, 0.2]), np.array([-0.1, np.nan, -0.9]))
    np.testing.assert_allclose(x, [0.35, 0.3, 0.3])


def test_health_does_not_exist_without_communication() -> None:
    assert np.isnan(overlap.health(np.array(0.0), np.array(0.0)))
    assert float(overlap.health(np.array(0.3), np.array(0.2))) == 0.0


@given(st.lists(st.one_of(st.floats(-1e3, 1e3), st.just(math.nan)), max_size=60))
def test_moments_equal_their_slow_twin(x: list[float]) -> None:
    middle, variance = (float(v) for v in overlap.moments(np.array(x)))
    slow = naive.mean(x)
    assert middle == pytest.approx(slow, nan_ok=True)
    assert variance == pytest.approx(naive.mean([(v - slow) ** 2 for v in x]), abs=1e-6, nan_ok=True)
