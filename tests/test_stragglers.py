"""Of eight GPUs the one that the others wait for is named, and stays named; equal GPUs are not."""

from __future__ import annotations

import pytest

from benchmarks.stragglers import false_alarms, outcome


@pytest.mark.parametrize("lag", [0.03, 0.08, 0.3])
def test_the_gpu_that_the_others_wait_for_is_named_without_a_break(lag: float) -> None:
    said = outcome(lag, seed=0)
    assert (said.right, said.wrong) == (1.0, 0.0)
    assert said.said_wait == pytest.approx(said.true_wait, abs=0.03)
    assert said.own_wait < 0.02


def test_equal_gpus_name_nobody() -> None:
    said = outcome(0.0, seed=1)
    assert (said.right, said.wrong, said.first_s) == (0.0, 0.0, None)
    assert said.said_wait == pytest.approx(said.true_wait, abs=0.02)


@pytest.mark.parametrize("scenario", ["ddp_small_buckets", "input_stall", "pipeline_bubbles"])
def test_a_balanced_job_whose_readings_scatter_raises_no_alarm(scenario: str) -> None:
    assert false_alarms(scenario, seed=0) == 0
