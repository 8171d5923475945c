"""The last hour of verdicts: kept each fifth second, forgotten after the hour, of the right window."""

from __future__ import annotations

from dataclasses import replace

from exporter.trend import EVERY_S, KEPT_S, Trend
from tests import snapshots


def test_a_verdict_in_five_seconds_is_kept_with_its_state() -> None:
    trend = Trend(60.0)
    for second in range(1, 31):
        trend.add(float(second), [snapshots.analysis(2, w) for w in (15.0, 60.0, 300.0)])
    kept = trend.json("GPU-2")
    assert kept["t_s"] == [1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    assert (kept["health"][0], kept["exposed"][0], kept["correlation"][0]) == (0.03, 0.43, -0.94)
    assert set(kept["state"]) == {"serialized"}


def test_what_has_no_answer_is_null() -> None:
    trend = Trend(60.0)
    trend.add(5.0, [snapshots.analysis(6)])
    assert (trend.json("GPU-6")["health"], trend.json("GPU-6")["state"]) == ([None], ["idle"])
    assert trend.json("GPU-1")["t_s"] == []


def test_an_hour_is_kept_and_a_gpu_that_left_is_forgotten_after_it() -> None:
    trend = Trend(60.0)
    both, one = [snapshots.analysis(0), snapshots.analysis(1)], [snapshots.analysis(0)]
    for k in range(900):
        trend.add(k * 5.0, both if k < 10 else one)
    kept = trend.json("GPU-0")
    assert len(kept["t_s"]) == KEPT_S // EVERY_S
    assert kept["t_s"][-1] - kept["t_s"][0] == KEPT_S - EVERY_S
    assert trend.json("GPU-1")["t_s"] == []


def test_a_clock_that_runs_faster_than_life_still_gives_one_in_five_seconds() -> None:
    trend = Trend(60.0)
    for at_s in (3.0, 7.0, 11.0, 12.0, 13.0, 21.0):
        trend.add(at_s, [replace(snapshots.analysis(0), at_s=at_s)])
    assert trend.json("GPU-0")["t_s"] == [3.0, 7.0, 11.0, 21.0]
