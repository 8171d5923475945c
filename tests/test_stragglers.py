"""Of eight GPUs the one that the others wait for is named, and stays named; equal GPUs are not."""

from __future__ import annotations

import pytest

from benchmarks.stragglers import outcome


@pytest.mark.parametrize("lag", [0.15, 0.3])
def test_the_gpu_that_the_others_wait_for_is_named_without_a_break(lag: float) -> None:
    said = outcome(lag, seed=0)
    assert (said.right, said.wrong) == (1.0, 0.0)
    assert said.said_wait == pytest.approx(said.true_wait, abs=0.03)
    assert said.own_wait < 0.02


@pytest.mark.parametrize("lag", [0.0, 0.02])
def test_equal_gpus_and_lags_too_small_to_matter_name_nobody(lag: float) -> None:
    said = outcome(lag, seed=1)
    assert (said.right, said.wrong, said.first_s) == (0.0, 0.0, None)
    assert said.said_wait == pytest.approx(said.true_wait, abs=0.02)
