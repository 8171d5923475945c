"""Rates: against slow twins, by known answers, and by properties that hold for any stream."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.signals import rates
from tests import naive

steps = st.lists(st.integers(0, 10**9), min_size=3, max_size=60)


def times(n: int, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).uniform(0.01, 0.2, n))


@given(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=50))
def test_the_poll_interval_equals_its_slow_twin(gaps: list[float]) -> None:
    t = np.concatenate(([0.0], np.cumsum(gaps)))
    # Where two gaps meet exactly at the middle of the time, either is right.
    gap = rates.poll_interval(t)
    assert gap == pytest.approx(naive.poll_interval(t.tolist()), rel=1e-6) or np.isclose(
        sum(g for g in gaps if g < gap * (1 - 1e-9)), sum(gaps) / 2, rtol=1e-6
    )


def test_reads_in_pairs_count_as_one_poll() -> None:
    t = np.sort(np.concatenate((np.arange(50) * 0.1, np.arange(50) * 0.1 + 0.005)))
    assert rates.poll_interval(t) == pytest.approx(0.095)
    assert len(rates.thin(t, rates.poll_interval(t))) == 50


@given(steps, st.integers(0, 9), st.data())
def test_flow_equals_its_slow_twin(sent: list[int], seed: int, data: st.DataObject) -> None:
    received = data.draw(st.lists(st.integers(0, 10**9), min_size=len(sent), max_size=len(sent)))
    t = times(len(sent), seed)
    tx, rx = np.cumsum(sent).astype(float), np.cumsum(received).astype(float)
    if data.draw(st.booleans()):
        tx[len(tx) // 2 :] -= tx[len(tx) // 2]  # a reset
    done, unknown = rates.flow(t, tx, rx, 0.15)
    slow_done, slow_unknown = naive.flow(t.tolist(), tx.tolist(), rx.tolist(), 0.15)
    np.testing.assert_allclose(done, slow_done, rtol=1e-9, atol=1e-3)
    np.testing.assert_allclose(unknown, slow_unknown, atol=1e-9)


@given(steps, st.integers(0, 9), st.floats(0, 1), st.floats(0.01, 1))
def test_a_rate_equals_its_slow_twin(sent: list[int], seed: int, begin: float, share: float) -> None:
    t = times(len(sent), seed)
    done = np.cumsum(sent).astype(float)
    unknown = np.where(np.arange(len(t)) > len(t) // 2, 0.05, 0.0)
    start = t[0] + begin * (t[-1] - t[0])
    end = start + share * (t[-1] - t[0])
    fast = rates.rate_between(t, done, unknown, np.array([start]), np.array([end]))[0]
    slow = naive.rate_between(t.tolist(), done.tolist(), unknown.tolist(), start, end)
    assert fast == pytest.approx(slow, rel=1e-6, abs=1e-3, nan_ok=True)


@given(steps, st.integers(0, 9), st.floats(0.05, 0.95))
def test_splitting_an_interval_changes_no_bytes(sent: list[int], seed: int, share: float) -> None:
    t = times(len(sent), seed)
    done, zero = np.cumsum(sent).astype(float), np.zeros(len(t))
    middle = t[0] + share * (t[-1] - t[0])
    edges = np.array([t[0], middle, t[-1]])
    halves = rates.rate_between(t, done, zero, edges[:-1], edges[1:]) * np.diff(edges)
    assert halves.sum() == pytest.approx(done[-1] - done[0], rel=1e-9, abs=1e-3)


@given(steps, st.integers(0, 9), st.integers(0, 10**12))
def test_where_a_counter_starts_changes_nothing(sent: list[int], seed: int, start: int) -> None:
    t = times(len(sent), seed)
    total = np.cumsum(sent).astype(float)
    done, _ = rates.flow(t, total, total, 1.0)
    moved, _ = rates.flow(t, total + start, total + start, 1.0)
    np.testing.assert_allclose(done, moved, rtol=1e-9, atol=1e-2)


def test_a_reset_makes_its_interval_unknown_and_no_other() -> None:
    t = np.arange(10) * 0.1
    total = np.array([1e9, 2e9, 3e9, 1e6, 1e9, 2e9, 3e9, 4e9, 5e9, 6e9])
    done, unknown = rates.flow(t, total, total, 0.25)
    rate = rates.rate_between(t, done, unknown, t[:-1], t[1:])
    assert np.flatnonzero(np.isnan(rate)).tolist() == [2]
    assert np.nanmax(rate) < 1.1e10


def test_gathers_and_scatters_in_turns_count_as_steady_traffic() -> None:
    t = np.arange(100) * 0.1
    turn = (np.arange(100) // 3) % 2
    done, _ = rates.flow(t, np.cumsum(1e9 * turn), np.cumsum(1e9 * (1 - turn)), 0.25)
    assert done[-1] == pytest.approx(99e9)


def test_one_way_storage_with_its_acknowledgements_is_no_communication() -> None:
    t = np.arange(100) * 0.1
    done, _ = rates.flow(t, np.cumsum(np.full(100, 1e7)), np.cumsum(np.full(100, 1e9)), 0.25)
    assert done[-1] == 0.0


def test_a_collective_beside_storage_is_what_both_directions_share() -> None:
    t = np.arange(200) * 0.1
    burst = 1e9 * (np.arange(200) % 10 < 3)
    done, _ = rates.flow(t, np.cumsum(burst), np.cumsum(burst + 2e9), 0.25)
    assert done[-1] == pytest.approx(burst[1:].sum(), rel=0.08)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=60), st.floats(1.0, 4.0))
def test_changes_of_a_counter_equal_their_slow_twin(increments: list[int], refresh_s: float) -> None:
    t, total = np.arange(len(increments)) * 1.0, np.cumsum(increments).astype(float)
    assert rates.changes(t, total, refresh_s).tolist() == naive.changes(t.tolist(), total.tolist(), refresh_s)


def test_fine_intervals_last_at_least_forty_milliseconds() -> None:
    t = np.arange(100) * 0.005
    first, last = rates.fine_knots(t, 0.005, rates.fine_polls(0.005))
    np.testing.assert_allclose(t[last] - t[first], 0.04)


def test_too_few_readings_give_no_rate() -> None:
    one = np.array([1.0])
    assert np.isnan(rates.poll_interval(one))
    assert np.isnan(rates.rate_between(one, one, one, one, one + 1)).all()
    assert rates.flow(one, one, one, 1.0)[0].tolist() == [0.0]
    assert len(rates.thin(np.empty(0), 0.1)) == 0
