"""Accuracy: labelled traces through the very path of `analyze`, and drawn jobs with known truth.

The traces below fixtures/traces are simulated jobs and a real training job seen through modelled sensors; index.csv
holds the truth of a window of each. Tolerances are those that users were promised, not what the code happens to reach.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from exporter.analysis import Analyzer
from exporter.model import OverlapAnalysis
from exporter.offline import analyze
from tests.draws import GRAIN_S, alternation, node

TRACES = Path(__file__).parent / "fixtures" / "traces"
with (TRACES / "index.csv").open(encoding="utf-8") as _index:
    ROWS = list(csv.DictReader(_index))


@pytest.mark.parametrize("row", ROWS, ids=[f"{r['file'].removesuffix('.jsonl.gz')}-{r['window_s']}s" for r in ROWS])
def test_a_labelled_trace_is_judged_as_it_was_made(row: dict[str, str]) -> None:
    at_s, window_s = float(row["t_end_s"]), float(row["window_s"])
    results, _, _ = analyze(str(TRACES / row["file"]), (window_s,), [at_s], None)
    got = next(r for r in results if r.gpu_id == "GPU-0")
    assert (got.at_s, got.window_s) == (at_s, window_s)
    assert got.state in row["states"].split("|"), got
    if row["answer"] == "no":
        assert got.health is None, got
        assert got.exposed is None, got
        assert got.reason, got
        return
    assert got.exposed == pytest.approx(float(row["exposed"]), abs=float(row["tolerance"]))
    assert got.exposed_low is not None
    assert got.exposed_high is not None
    assert got.exposed_low <= got.exposed <= got.exposed_high
    assert got.exposed_low - 0.01 <= float(row["exposed"]) <= got.exposed_high + 0.01
    assert got.stall == pytest.approx(float(row["stall"]), abs=0.06)
    assert got.health is not None
    truth = float(row["health"])
    assert truth - 0.3 < got.health < truth + 0.3 or "partial" in row["states"]


def judged(compute: np.ndarray, traffic: np.ndarray, rng: np.random.Generator, **board: float) -> OverlapAnalysis:
    """The verdict on the last minute of a drawn job."""
    channels, inventory = node(compute, traffic, rng, **board)
    analyzer, end_s = Analyzer(), len(compute) * GRAIN_S - 0.4
    for second in (20, 40, 60, int(end_s)):
        analyzer.step(channels, inventory, float(second))
    return analyzer.evaluate(channels, inventory, end_s, (60.0,))[0]


@pytest.mark.parametrize("seed", range(10))
def test_100_ms_of_compute_and_80_ms_of_communication_in_turns_are_serialized_in_every_phase(seed: int) -> None:
    rng = np.random.default_rng(seed)
    compute, traffic = alternation(75.0, 0.1, 0.08, 0.02, rng)
    got = judged(compute, traffic, rng, high=390.0, limit=400.0)
    assert got.state == "serialized"
    assert got.exposed == pytest.approx(0.444, abs=0.11)
    assert got.correlation is not None
    assert got.correlation < -0.2


@pytest.mark.parametrize("limit", [410.0, 700.0])
@pytest.mark.parametrize("seed", range(5))
def test_flat_power_beside_flat_traffic_is_overlapped_on_every_board(seed: int, limit: float) -> None:
    rng = np.random.default_rng(seed)
    got = judged(np.ones(75_000), np.ones(75_000), rng, high=402.0, limit=limit)
    assert (got.state, got.health) == ("overlapped", pytest.approx(1.0))
    assert got.correlation is None


@pytest.mark.parametrize("seed", range(5))
def test_80_ms_of_communication_hidden_in_100_ms_of_compute_are_overlapped(seed: int) -> None:
    rng = np.random.default_rng(seed)
    compute, traffic = alternation(75.0, 0.1, 0.08, 0.02, rng, hidden=1.0)
    got = judged(compute, traffic, rng, high=390.0, limit=400.0)
    assert got.state == "overlapped"
    assert got.exposed == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize("window_s", [0.025, 0.1])
@pytest.mark.parametrize("byte_hz", [10.0, 50.0])
@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
def test_rhythms_of_several_windows_are_measured_within_hundredths(window_s: float, byte_hz: float, hidden: float) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        share, period_s = rng.uniform(0.15, 0.45), rng.uniform(0.8, 4.0)
        compute, traffic = alternation(75.0, period_s * (1 - (1 - hidden) * share), period_s * share, 0.03, rng, hidden=hidden)
        got = judged(compute, traffic, rng, window_s=window_s, byte_hz=byte_hz, high=rng.uniform(350, 650))
        window = slice(len(compute) - 60_400, len(compute) - 400)
        exposed = float((traffic * (1 - compute))[window].mean())
        communication = float(traffic[window].mean())
        assert got.exposed == pytest.approx(exposed, abs=0.04)
        assert got.communication == pytest.approx(communication, abs=0.06)
        assert got.health == pytest.approx(1 - exposed / communication, abs=0.15)


@pytest.mark.parametrize("period_s", [0.2, 0.5, 1.0, 2.0])
def test_a_sensor_that_averages_over_a_second_never_praises_a_fast_alternation(period_s: float) -> None:
    rng = np.random.default_rng(7)
    compute, traffic = alternation(75.0, 0.6 * period_s, 0.4 * period_s, 0.03, rng)
    got = judged(compute, traffic, rng, window_s=1.0)
    assert got.state == "unobservable"
    assert got.health is None
    assert got.reason == "power sensor averages over 1 s: rhythms below 4 s cannot be seen"
    assert got.exposed_low is not None
    assert got.exposed_high is not None
    assert got.exposed_low <= 0.4 <= got.exposed_high
