"""The product against the truth: every simulated scenario, judged by the session that the daemon runs, gives its own truth."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from exporter.model import OverlapAnalysis, Record
from exporter.session import GRACE_S, Session
from exporter.sources.scenarios import SCENARIOS
from exporter.sources.simulator import DEFAULT_SECONDS, simulate

GPUS = 4
TOLERANCE = 0.06
SHARES = ("exposed", "communication", "stall", "wait")
# The last minute, as the daemon shows it; where something breaks, also the stretch before.
LAST_MINUTE = (DEFAULT_SECONDS - 60.0, DEFAULT_SECONDS)
WINDOWS = {"link_degraded": ((0.0, 40.0), LAST_MINUTE), "gpu_lost": ((0.0, 60.0), LAST_MINUTE)}
CASES = [(row.name, window) for row in SCENARIOS for window in WINDOWS.get(row.name, (LAST_MINUTE,))]


@cache
def judged(name: str) -> dict[tuple[float, float], tuple[OverlapAnalysis, ...]]:
    """The verdicts on a scenario at the end of each of its windows, asked for when the trace was there."""
    session = Session()
    windows = list(WINDOWS.get(name, (LAST_MINUTE,)))
    said = {}
    for event in simulate(name, gpus=GPUS):
        if isinstance(event, Record):
            while windows and event.t_s >= windows[0][1] + GRACE_S:
                window = windows.pop(0)
                said[window] = at_end_of(session, window)
            session.advance(event.t_s)
        session.take(event)
    for window in windows:
        said[window] = at_end_of(session, window)
    return said


def at_end_of(session: Session, window: tuple[float, float]) -> tuple[OverlapAnalysis, ...]:
    start_s, end_s = window
    session.advance(end_s + GRACE_S)
    return session.evaluate(end_s, (end_s - start_s,))


@cache
def truth(name: str, window: tuple[float, float]) -> dict[str, dict[str, Any]]:
    gpus: dict[str, dict[str, Any]] = simulate(name, gpus=GPUS).truth_between(*window)["gpus"]
    return gpus


def pairs(name: str, window: tuple[float, float]) -> list[tuple[OverlapAnalysis, dict[str, Any]]]:
    """What was said of each GPU, and what is true."""
    found = [(analysis, truth(name, window)[analysis.gpu_id]) for analysis in judged(name)[window]]
    assert len(found) == GPUS
    return found


@pytest.mark.parametrize(("name", "window"), CASES)
def test_the_state_is_the_true_one(name: str, window: tuple[float, float]) -> None:
    for said, true in pairs(name, window):
        assert said.state == true["state"], said


@pytest.mark.parametrize(("name", "window"), CASES)
def test_shares_of_time_are_the_true_ones(name: str, window: tuple[float, float]) -> None:
    for said, true in pairs(name, window):
        for share in SHARES:
            if true["state"] in ("unobservable", "idle", "no_data"):
                continue
            if share == "exposed" and true["communication"] == 0:
                assert said.exposed is None, said.gpu_id  # nothing that could be exposed
                continue
            assert getattr(said, share) == pytest.approx(true[share], abs=TOLERANCE), (share, said.gpu_id)


@pytest.mark.parametrize(("name", "window"), CASES)
def test_a_gpu_that_cannot_be_judged_has_a_reason_and_no_numbers(name: str, window: tuple[float, float]) -> None:
    for said, true in pairs(name, window):
        if true["state"] in ("unobservable", "idle", "no_data"):
            assert said.reason
            assert (said.health, said.exposed) == (None, None)


# Health is a quotient: an error of .06 in shares of .44 is .14 in it. What the pictures must never be taken for stands here.
@pytest.mark.parametrize(("name", "least", "most"), [("perfect_overlap", 0.9, 1.0), ("serialized", 0.0, 0.3)])
def test_nobody_takes_one_of_the_two_pictures_for_the_other(name: str, least: float, most: float) -> None:
    for said, _ in pairs(name, LAST_MINUTE):
        assert said.health is not None
        assert least <= said.health <= most, said.gpu_id


# Also where nothing is sent, and where the bytes are those of two jobs: power shows the step.
@pytest.mark.parametrize(("name", "window"), CASES)
def test_the_step_period_is_the_true_one(name: str, window: tuple[float, float]) -> None:
    for said, true in pairs(name, window):
        if true["step_period_s"] is None:
            assert said.step_period_s is None, said
        else:
            assert said.step_period_s == pytest.approx(true["step_period_s"], rel=0.03), said


def test_every_state_is_the_truth_of_some_scenario() -> None:
    assert {true["state"] for name, window in CASES for _, true in pairs(name, window)} == {
        "overlapped", "partial", "serialized", "compute_only", "stalled", "idle", "unobservable", "no_data",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["serialized", "link_degraded", "gpu_lost", "two_jobs"])
def test_the_truth_of_the_whole_is_that_of_the_header(name: str) -> None:
    simulation = simulate(name, 30.0, seed=2, gpus=GPUS)
    assert simulation.truth_between(0.0, 30.0) == simulation.inventory.truth


def test_truths_of_halves_add_up_to_the_whole() -> None:
    simulation = simulate("link_degraded", 30.0, gpus=2)
    first, second = (simulation.truth_between(*half) for half in ((0.0, 12.5), (12.5, 30.0)))
    assert second["exposed"] > first["exposed"] + 0.1  # the fault is at 10 s
    for share in ("exposed", "communication"):
        assert (12.5 * first[share] + 17.5 * second[share]) / 30.0 == pytest.approx(simulation.inventory.truth[share], abs=1e-5)


@pytest.mark.parametrize("stretch", [(-1.0, 5.0), (5.0, 5.0), (8.0, 10.5)])
def test_a_stretch_outside_the_trace_has_no_truth(stretch: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="a stretch within 0 to"):
        simulate("idle", 10.0).truth_between(*stretch)
