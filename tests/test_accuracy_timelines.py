"""Accuracy where communication is finer than the sensors: drawn jobs, each seen through four sets of readings.

The draws are of our own invention: bursts of milliseconds, waits inside collectives, traffic moved against compute. What is
asked is that answers are near the truth, that bounds hold, and that silence is honest. Another seed moves the share of
misleading answers by 0.02 either way; docs/how-overlap-is-measured.md has the means over a thousand draws.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from exporter.analysis import Analyzer
from exporter.model import OverlapAnalysis
from tests.draws_timelines import READINGS, Truth, draws, only

SEED = 2024
DRAWS = 200  # every kind of job in every family at every length of a step
# mean error of the exposed share, of health; answered at least; wrong by more than .3 at most; truth inside the bounds
BARS = {
    "power100_nic10": (0.06, 0.15, 0.68, 0.09, 0.9),
    "power25_nic10": (0.05, 0.14, 0.70, 0.07, 0.9),
    "power25_paired": (0.04, 0.13, 0.72, 0.06, 0.9),
    "gpm_paired": (0.025, 0.08, 0.88, 0.04, 0.9),
}
# A set that holds more readings than the one before: what may be worse is chance. The limits of answers differ, so that one
# set answers a draw of which the other says nothing.
MORE = (("power100_nic10", "power25_nic10"), ("power25_nic10", "power25_paired"), ("power25_paired", "gpm_paired"))
EQUAL_HEALTH, EQUAL_MISLED, EQUAL_ANSWERED, EQUAL_EXPOSED = 0.005, 0.005, 0.03, 0.003


@cache
def judged() -> dict[str, list[tuple[Truth, OverlapAnalysis]]]:
    """Each timeline in each family, at steps in turn: the truth beside the answer from each set of readings."""
    out: dict[str, list[tuple[Truth, OverlapAnalysis]]] = {key: [] for key in READINGS}
    for node, inventory, truth in draws(DRAWS, np.random.default_rng(SEED)):
        for readings in READINGS:
            channels, seen = only(node, inventory, readings)
            analyzer = Analyzer((15.0, 60.0), 60.0)
            for second in (15.0, 30.0, 45.0, 60.0, 70.0, 72.0, 74.0):
                analyzer.step(channels, seen, second)
            out[readings].append((truth, analyzer.evaluate(channels, seen, truth.at_s, (60.0,))[0]))
    return out


def answered(readings: str) -> list[tuple[Truth, OverlapAnalysis]]:
    return [(t, a) for t, a in judged()[readings] if a.health is not None and t.communication >= 0.02]


def figures(readings: str) -> tuple[float, float, float, float]:
    """Mean error of the exposed share and of health, share answered, share answered wrong by more than .3."""
    got = answered(readings)
    asked = sum(t.communication >= 0.02 for t, _ in judged()[readings])
    errors = [abs(a.health - t.health) for t, a in got if a.health is not None]
    exposed = float(np.mean([abs(a.exposed - t.exposed) for t, a in got if a.exposed is not None]))
    return exposed, float(np.mean(errors)), len(got) / asked, sum(e > 0.3 for e in errors) / asked


@pytest.mark.parametrize("readings", READINGS)
def test_exposed_share_and_health_are_near_the_truth(readings: str) -> None:
    exposed, health, least, misled, _ = BARS[readings]
    by_exposed, by_health, told, wrong = figures(readings)
    assert by_exposed <= exposed
    assert by_health <= health
    assert told >= least
    assert wrong <= misled


@pytest.mark.parametrize("readings", READINGS)
def test_bounds_hold_the_truth_and_are_narrow_enough_to_say_something(readings: str) -> None:
    inside, widths = [], []
    for truth, got in answered(readings):
        assert got.exposed_low is not None
        assert got.exposed_high is not None
        assert got.exposed is not None
        assert got.exposed_low <= got.exposed <= got.exposed_high
        inside.append(got.exposed_low - 0.01 <= truth.exposed <= got.exposed_high + 0.01)
        widths.append(got.exposed_high - got.exposed_low)
    assert np.mean(inside) >= BARS[readings][4]
    assert np.median(widths) < 0.35


@pytest.mark.parametrize("readings", READINGS)
def test_where_there_is_no_answer_a_reason_and_bounds_stand_in_its_place(readings: str) -> None:
    for truth, got in judged()[readings]:
        if got.health is not None or truth.communication < 0.02:
            continue
        assert got.state in ("unobservable", "stalled")
        assert got.reason
        assert got.observability is not None
        assert got.observability < 0.5
        assert got.exposed_low is not None
        assert got.exposed_high is not None


def test_gpm_gives_exposed_communication_and_waits_together_at_any_grain() -> None:
    errors = [
        abs(got.exposed_or_wait - (truth.exposed + truth.wait))
        for truth, got in judged()["gpm_paired"] if got.exposed_or_wait is not None
    ]  # fmt: skip
    assert len(errors) == len(judged()["gpm_paired"])
    assert np.mean(errors) <= 0.025


@pytest.mark.parametrize(("fewer", "more"), MORE)
def test_more_readings_never_make_answers_worse(fewer: str, more: str) -> None:
    before, after = figures(fewer), figures(more)
    assert after[0] <= before[0] + EQUAL_EXPOSED
    assert after[1] <= before[1] + EQUAL_HEALTH
    assert after[2] >= before[2] - EQUAL_ANSWERED
    assert after[3] <= before[3] + EQUAL_MISLED


@pytest.mark.parametrize(("fewer", "more"), MORE)
def test_where_both_sets_answer_the_one_with_more_readings_is_nearer_to_the_truth(fewer: str, more: str) -> None:
    errors = [
        (abs(before.health - truth.health), abs(after.health - truth.health))
        for (truth, before), (_, after) in zip(judged()[fewer], judged()[more], strict=True)
        if before.health is not None and after.health is not None and truth.communication >= 0.02
    ]
    by_fewer, by_more = np.mean(errors, axis=0)
    assert by_more <= by_fewer


@pytest.mark.parametrize(("fewer", "more"), MORE)
def test_with_more_readings_even_the_middle_of_what_stays_open_is_nearer_to_the_truth(fewer: str, more: str) -> None:
    def error(readings: str) -> float:
        """Mean error of the exposed share over all draws; where there is no answer, of the middle of its bounds."""
        out = []
        for truth, got in judged()[readings]:
            low, high = got.exposed_low, got.exposed_high
            said = got.exposed if got.exposed is not None else (low + high) / 2 if None not in (low, high) else math.nan
            out.append(abs(said - truth.exposed))
        return float(np.nanmean(out))

    assert error(more) <= error(fewer) + EQUAL_EXPOSED
