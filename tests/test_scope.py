"""The scope: phases of readings, the folded step, readings that fit together; held against what the simulator did."""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.history import History
from exporter.model import Device, Inventory, Link, Record, Snapshot, Source
from exporter.scope import live_json, newest_s, picture_json, scope_json, sparks_json
from exporter.session import Session
from exporter.signals.fold import fold, step_starts
from exporter.sources.simulator import simulate
from tests import snapshots

END_S = 75.0


@lru_cache(maxsize=16)
def scene(name: str) -> tuple[History, Snapshot, Device]:
    """A scenario judged at its end, and its first GPU."""
    session = Session()
    for event in simulate(name, END_S, 2, gpus=2 if name != "two_jobs" else 4):
        session.advance(getattr(event, "t_s", 0.0))
        session.take(event)
    session.finish(END_S)
    said = session.verdicts.analyses
    shown = Snapshot(END_S, 1.8e9, session.inventory, "demo", {}, said, {}, refresh=session.analyzer.refresh)
    return session.history, shown, session.inventory.of_kind("gpu")[0]


def shares(name: str) -> dict[str, float]:
    history, shown, gpu = scene(name)
    letters = picture_json(history, shown, gpu)["readings"]["phases"]
    return {letter: count / len(letters) for letter, count in Counter(letters).items()}


@pytest.mark.parametrize(("name", "phase", "least"), [
    ("perfect_overlap", "o", 0.97), ("compute_only", "c", 0.9), ("idle", "i", 0.99), ("two_jobs", "u", 0.99),
    ("ddp_bucketed", "o", 0.55), ("serialized", "e", 0.28), ("input_stall", "s", 0.15),
])  # fmt: skip
def test_most_readings_have_the_phase_that_the_job_had(name: str, phase: str, least: float) -> None:
    assert shares(name).get(phase, 0.0) >= least


def test_what_is_hidden_is_not_called_exposed() -> None:
    for name in ("perfect_overlap", "ddp_bucketed", "compute_only", "idle"):
        assert shares(name).get("e", 0.0) < 0.03, name


@pytest.mark.parametrize("name", ["perfect_overlap", "serialized", "input_stall", "idle", "two_jobs", "gpu_lost"])
def test_a_scope_is_plain_json_of_columns_of_one_length(name: str) -> None:
    history, shown, gpu = scene(name)
    told = json.loads(json.dumps(scope_json(history, shown, gpu, 30.0), allow_nan=False))
    readings = told["picture"]["readings"]
    assert len(readings["t_s"]) == len(readings["watts"]) == len(readings["bytes_per_s"]) == len(readings["phases"])
    assert len(told["power"]["t_s"]) == len(told["power"]["watts"]) == pytest.approx(300, abs=3)
    assert told["picture"]["at_s"] == END_S


def test_the_folded_step_of_an_alternation_faster_than_the_sensor_shows_both_halves() -> None:
    """180 ms, of which 80 ms are communication, seen by a sensor that takes a value each 100 ms."""
    history, shown, gpu = scene("serialized")
    folded = picture_json(history, shown, gpu)["fold"]
    assert folded is not None
    assert folded["period_s"] == pytest.approx(0.18, abs=0.002)
    assert folded["steps"] > 300
    watts, rate = (np.array([v if v is not None else np.nan for v in folded[key]]) for key in ("watts", "rdma"))
    assert np.nanmax(rate) > 20e9
    assert np.nanmin(rate) < 1e9
    assert np.count_nonzero(rate > 11e9) / len(rate) == pytest.approx(0.44, abs=0.1)
    known = np.isfinite(watts) & np.isfinite(rate)
    assert np.corrcoef(watts[known], rate[known])[0, 1] < -0.7
    assert np.nanmax(watts) > 1.5 * np.nanmin(watts)


def test_without_traffic_the_rhythm_of_power_is_folded() -> None:
    history, shown, gpu = scene("compute_only")
    folded = picture_json(history, shown, gpu)["fold"]
    assert folded is not None
    assert folded["period_s"] == pytest.approx(0.439, rel=0.06)  # the step of that job


@pytest.mark.parametrize("name", ["perfect_overlap", "idle", "two_jobs"])
def test_without_a_rhythm_nothing_is_folded(name: str) -> None:
    history, shown, gpu = scene(name)
    assert picture_json(history, shown, gpu)["fold"] is None


def test_quadrants_meet_between_the_levels_and_are_absent_where_there_are_none() -> None:
    history, shown, gpu = scene("serialized")
    drawn = picture_json(history, shown, gpu)
    assert 150 < drawn["middle_watts"] < 350
    assert 5e9 < drawn["middle_bytes_per_s"] < 15e9
    history, shown, gpu = scene("idle")
    assert picture_json(history, shown, gpu)["middle_watts"] is None


def test_news_taken_bit_by_bit_are_the_same_as_taken_at_once() -> None:
    history, shown, gpu = scene("serialized")
    there = shown.inventory
    whole, _ = live_json(history, there, gpu, (70.0, 70.0), END_S)
    after = (70.0, 70.0)
    t_s: list[float] = []
    rates: list[float] = []
    for k in range(1, 51):
        news, after = live_json(history, there, gpu, after, 70.0 + 0.1 * k)
        t_s += news["power"]["t_s"]
        assert news["traffic"]["t0_s"] == pytest.approx(70.0 + len(rates) * news["traffic"]["step_s"], abs=1e-3)
        rates += news["traffic"]["rdma"]
    assert t_s == whole["power"]["t_s"]
    assert rates == pytest.approx(whole["traffic"]["rdma"][: len(rates)], rel=1e-3, abs=1e6)
    assert len(rates) >= len(whole["traffic"]["rdma"]) - 2


def test_news_end_where_the_slowest_counter_ends_and_a_dead_one_does_not_hold_them_up() -> None:
    ports = ("mlx5_0/1", "mlx5_1/1")
    sources = tuple(Source(f"rdma/{p}", (f"{p}/transmit_bytes_total",), 0.1) for p in ports)
    links = tuple(Link("GPU-0", p, "rdma", "PIX") for p in ports)
    gpu = Device("gpu", "GPU-0", 0)
    there = Inventory("n", 0.0, (gpu, *(Device("rdma_port", p) for p in ports)), links, sources)
    history = History()
    history.apply(there)
    for k in range(101):
        history.apply(Record("rdma/mlx5_0/1", 0.1 * k, (1e9 * k,)))
        if k <= 95:
            history.apply(Record("rdma/mlx5_1/1", 0.1 * k, (1e9 * k,)))
    news, (_, until_s) = live_json(history, there, gpu, (5.0, 5.0), 10.0)
    assert until_s == pytest.approx(9.5)
    assert news["traffic"]["rdma"] == [20e9] * 45
    assert newest_s(history, there, gpu, 5.0) == pytest.approx(10.0)
    for k in range(101, 150):
        history.apply(Record("rdma/mlx5_0/1", 0.1 * k, (1e9 * k,)))
    news, (_, until_s) = live_json(history, there, gpu, (9.0, 9.5), 14.9)
    assert until_s == pytest.approx(14.9)
    assert set(news["traffic"]["rdma"]) == {None}, "bytes of one port alone are not those of the GPU"


def test_sparks_hold_every_gpu_on_one_scale_of_time() -> None:
    sparks = sparks_json(snapshots.history(), snapshots.inventory(), snapshots.NOW_S, 6.0, 60)
    assert json.dumps(sparks, allow_nan=False)
    assert len(sparks["gpus"]) == 8
    serialized = sparks["gpus"]["GPU-2"]
    assert serialized["path"] == "rdma"
    assert len(serialized["watts"]) == len(serialized["bytes_per_s"]) == 60
    assert max(v for v in serialized["watts"] if v) > 600
    assert sparks["gpus"]["GPU-7"]["watts"] == [None] * 60


@given(st.floats(0.15, 3.0), st.floats(0.15, 0.6), st.floats(0.0, 0.04), st.integers(0, 1000))
def test_step_starts_follow_steps_of_uneven_length(period_s: float, busy: float, jitter: float, seed: int) -> None:
    """Each start lies where traffic has ended, whatever the length of the step."""
    rng = np.random.default_rng(seed)
    lengths = period_s * (1 + jitter * rng.standard_normal(40).clip(-2, 2))
    edges = np.concatenate(([0.0], np.cumsum(lengths)))
    t = np.arange(0.0, edges[-1], max(0.02, period_s / 60))
    k = np.searchsorted(edges, t, side="right") - 1
    phase = (t - edges[k]) / np.append(lengths, period_s)[k]
    flow = np.where(phase > 1 - busy, 1.0, 0.0)
    starts = step_starts(t, flow, period_s)
    assert len(starts) >= 30
    off = np.abs(starts[:, None] - edges[None, :]).min(axis=1)
    assert np.median(off) < 0.12 * period_s + 0.02


def test_a_fold_has_the_shape_of_one_step_and_its_mean_is_the_mean_of_all() -> None:
    t = np.arange(0.0, 60.0, 0.1) + 0.05
    period_s = 0.7310
    shape = np.where((t % period_s) < 0.3, 100.0, 600.0)
    starts = np.arange(0.0, 60.0, period_s)
    folded = fold(t, shape, starts, 20)
    assert np.nanmin(folded) == 100.0
    assert np.nanmax(folded) == 600.0
    assert np.mean(folded) == pytest.approx(shape.mean(), rel=0.03)
    assert np.count_nonzero(folded < 350) / 20 == pytest.approx(0.3 / period_s, abs=0.06)


def test_nothing_is_folded_of_nothing() -> None:
    assert len(step_starts(np.empty(0), np.empty(0), 1.0)) == 0
    assert len(step_starts(np.arange(100) * 0.1, np.full(100, math.nan), 1.0)) == 0
    assert len(step_starts(np.arange(100) * 0.1, np.ones(100), math.nan)) == 0
    assert np.isnan(fold(np.arange(3.0), np.arange(3.0), np.array([1.0]), 4)).all()
