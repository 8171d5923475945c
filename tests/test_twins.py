"""What stays impossible: jobs with the same readings and another truth are refused alike, within bounds that hold for both."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from exporter.analysis import Analyzer
from exporter.model import OverlapAnalysis
from tests.draws_twins import TWINS, Twins, read

NAMES = [twins.name for twins in TWINS]


@cache
def verdicts(twins: Twins) -> tuple[OverlapAnalysis, OverlapAnalysis]:
    said = []
    for which in (0, 1):
        node, inventory = read(twins, which)
        analyzer = Analyzer((15.0, 60.0), 60.0)
        for second in (15.0, 30.0, 45.0, 60.0, 70.0, 73.0):
            analyzer.step(node, inventory, second)
        said.append(analyzer.evaluate(node, inventory, 74.0, (60.0,))[0])
    return said[0], said[1]


@pytest.mark.parametrize("twins", TWINS, ids=NAMES)
def test_the_truths_of_twins_are_opposite_and_their_readings_the_same(twins: Twins) -> None:
    assert [job.health for job in twins.jobs] in ([1.0, 0.0], [0.0, 1.0])
    (one, _), (other, _) = read(twins, 0), read(twins, 1)
    for key, (t, value) in one.channels.items():
        assert np.array_equal(t, other.channels[key][0])
        means = [np.ptp(x) / np.ptp(t) if "total" in key else x.mean() for x in (value, other.channels[key][1])]
        within = 0.07 if twins.gpm and key.endswith("power_watts") else 0.01  # levels are not known better than that
        assert means[0] == pytest.approx(means[1], rel=within)


@pytest.mark.parametrize("twins", TWINS, ids=NAMES)
def test_twins_are_refused_alike_with_a_reason(twins: Twins) -> None:
    one, other = verdicts(twins)
    for got in (one, other):
        assert got.state == "unobservable"
        assert got.health is None
        assert "finer than the sensors resolve" in str(got.reason)
    assert one.exposed_high == pytest.approx(other.exposed_high, abs=0.02)


@pytest.mark.parametrize("twins", TWINS, ids=NAMES)
def test_bounds_hold_the_truth_of_both(twins: Twins) -> None:
    for got in verdicts(twins):
        assert got.exposed_low is not None
        assert got.exposed_high is not None
        for job in twins.jobs:
            assert got.exposed_low - 0.01 <= job.share("transfer") <= got.exposed_high + 0.01


def test_what_is_lost_to_transfers_and_waits_together_is_told_all_the_same_where_gpm_is_read() -> None:
    twins = next(t for t in TWINS if t.gpm)
    for got, job in zip(verdicts(twins), twins.jobs, strict=True):
        assert got.exposed_or_wait == pytest.approx(job.share("transfer", "wait"), abs=0.02)
