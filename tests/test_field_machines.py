"""Every machine that people have, through the real sources: what they find and read is golden, what is judged is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.model import OverlapAnalysis
from exporter.quantities import quantity_of, split_channel
from tests.field_machines import FIELD_MACHINES
from tests.field_machines import machine as field_machine
from tests.field_parts import FieldMachine
from tests.live_machines import LiveMachine, listen_to
from tests.played import Played, played

NAMES = [m.name for m in FIELD_MACHINES]
AT_ONCE = 6  # machines, of two reader processes each
JUDGED = [m for m in FIELD_MACHINES if m.state is not None]


@pytest.mark.parametrize("machine", FIELD_MACHINES, ids=NAMES)
def test_what_the_sources_find_and_read_is_what_its_golden_file_says(
    machine: FieldMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    with played(machine, tmp_path, monkeypatch) as play:
        golden(f"machines/{machine.name}.txt", play.told().text(str(play.tree.root)))
        kinds = {device.id: device.kind for opened in play.opened for device in opened.devices}
        for channel in (channel for lane in play.lanes for channel in lane.source.channels):
            parts = split_channel(channel, set(kinds))
            assert parts is not None
            assert quantity_of(kinds[parts[0]], parts[1]) is not None, channel


def verdicts_after(play: Played, seconds: float, network_hertz: float = 20.0) -> list[OverlapAnalysis]:
    play.open(network_hertz=network_hertz)
    play.run(seconds)
    assert play.lost == []
    return [a for a in play.session.verdicts.analyses if a.window_s == 15.0]


@pytest.mark.parametrize("machine", JUDGED, ids=[m.name for m in JUDGED])
def test_each_machine_is_judged_as_its_job_is_or_says_why_it_cannot(
    machine: FieldMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(machine, tmp_path, monkeypatch) as play:
        verdicts = verdicts_after(play, 26.0)
    assert [a.gpu_id for a in verdicts] == [f"GPU-{k}" for k in range(len(machine.boards))]
    for analysis in verdicts:
        assert analysis.state == machine.state or (machine.within > 0.05 and analysis.state == "partial"), analysis
        if machine.state == "serialized":
            assert analysis.exposed == pytest.approx(0.4, abs=machine.within)
        elif machine.state == "unobservable":
            assert analysis.exposed is None
            assert analysis.health is None
        assert machine.why in (analysis.reason or ""), analysis.reason
        assert not any(math.isnan(v) for v in (analysis.health, analysis.exposed, analysis.correlation) if v is not None)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LiveMachine]:
    """A machine by its name as the daemon's own readers saw it; the readers of a few machines run at a time."""
    folder = tmp_path_factory.mktemp("live")
    seen: dict[str, LiveMachine] = {}

    def look(name: str) -> LiveMachine:
        if name not in seen:
            at = NAMES.index(name) // AT_ONCE * AT_ONCE
            group = [LiveMachine(machine, folder / machine.name) for machine in FIELD_MACHINES[at : at + AT_ONCE]]
            listen_to(group)
            seen.update((one.machine.name, one) for one in group)
        return seen[name]

    return look


@pytest.mark.parametrize("name", NAMES)
def test_the_readers_of_the_daemon_tell_of_a_machine_what_its_golden_file_says(
    name: str, live: Callable[[str], LiveMachine], golden: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("the golden file is written by the sources, in one process; this test is the other hand")
    machine = live(name)
    if machine.tree.faults:
        pytest.skip("this system has no file that fails as this machine's do, and a process cannot be made to see one")
    golden(f"machines/{name}.txt", machine.told.text(str(machine.tree.root)))


def test_a_byte_counter_that_is_too_slow_for_the_job_is_named_with_its_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(field_machine("bnxt_old"), tmp_path, monkeypatch) as play:
        play.open(network_hertz=10.0)
        play.run(100.0)
        verdict = next(a for a in play.session.verdicts.analyses if a.window_s == 60.0)
        findings = {(f.finding, f.gpu_id) for f in play.session.verdicts.findings}
        measured = {r.id: r.refresh_s for r in play.session.analyzer.refresh if r.quantity == "bytes"}
    assert verdict.reason == "byte counter of bnxt_re0/1 takes a new value each 1 s: rhythms below 4 s cannot be seen"
    assert verdict.resolution_s == pytest.approx(4.0)
    assert (verdict.exposed_low, verdict.exposed) == (0.0, None)
    assert verdict.exposed_high is not None
    assert verdict.exposed_high >= 0.4
    assert {("sensor_too_slow", f"GPU-{k}") for k in range(2)} <= findings
    assert measured == {f"bnxt_re{k}/1": pytest.approx(1.0, rel=0.2) for k in range(2)}


@pytest.mark.parametrize(("name", "sensor", "refresh_s", "window_s"), [
    ("v100_shared", None, 0.1, 0.01), ("h100_infiniband", None, 0.1, 0.025), ("a10_average", None, 0.1, 1.0),
    ("h100_infiniband", (1.0, 0.1, 0.0), 0.1, 1.0), ("h100_infiniband", (0.5, 0.5, 0.0), 0.5, 0.5),
])  # fmt: skip
def test_refresh_and_averaging_of_the_power_sensor_are_found_in_its_readings_whatever_its_table_says(
    name: str, sensor: tuple[float, float, float] | None, refresh_s: float, window_s: float, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    machine = field_machine(name)
    board = replace(machine.boards[0], wave=replace(machine.boards[0].wave, compute_s=4.0, communication_s=3.0), noise=2.0)
    boards = (board if sensor is None else replace(board, instant=sensor),)
    one = replace(machine, boards=boards, gpu_paths=machine.gpu_paths[:1], ports=machine.ports[:1])
    with played(one, tmp_path, monkeypatch) as play:
        play.open(network_hertz=10.0)
        play.run(45.0)
        (power,) = [r for r in play.session.analyzer.refresh if r.quantity == "power"]
    assert power.refresh_s == pytest.approx(refresh_s, rel=0.2)  # polled at 10 Hz, a faster sensor shows 0.1 s
    assert power.window_s == pytest.approx(window_s, rel=0.2)


def test_the_share_of_time_with_a_kernel_is_no_part_of_the_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that waits for its peers counts as busy, and a counter of it may be latched: neither bends the score."""
    machine = field_machine("h100_infiniband")
    board = replace(machine.boards[0], supports=tuple(c for c in machine.boards[0].supports if c != "gpm"))
    one = replace(machine, gpu_paths=machine.gpu_paths[:1], ports=machine.ports[:1])
    scores = set()
    for percent in (-1, 100, 55):  # as it is, latched, and any other
        with played(replace(one, boards=(replace(board, util_raw=percent),)), tmp_path / str(percent), monkeypatch) as play:
            (verdict,) = verdicts_after(play, 26.0)
        scores.add((verdict.health, verdict.exposed))
    assert len(scores) == 1
    assert scores.pop()[1] == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize(("name", "period_s", "state"), [
    ("a10_average", 2.0, "unobservable"), ("a10_average", 3.0, "unobservable"), ("a10_average", 8.0, "serialized"),
    ("bnxt_old", 2.0, "unobservable"), ("bnxt_old", 8.0, "serialized"), ("bnxt_old", 20.0, "serialized"),
])  # fmt: skip
def test_below_four_of_its_windows_a_slow_sensor_gives_no_verdict_and_above_a_true_one(
    name: str, period_s: float, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = field_machine(name)
    wave = {"compute_s": 0.6 * period_s, "communication_s": 0.4 * period_s}
    slower = tuple(replace(b, wave=replace(b.wave, **wave)) for b in machine.boards)
    with played(replace(machine, boards=slower), tmp_path, monkeypatch) as play:
        play.open(network_hertz=10.0)
        play.run(66.0)
        verdicts = [a for a in play.session.verdicts.analyses if a.window_s == 60.0]
    for verdict in verdicts:
        assert verdict.state == state or (state == "serialized" and verdict.state == "partial"), verdict
        assert (verdict.exposed is None) == (state == "unobservable")
        assert verdict.exposed is None or verdict.exposed == pytest.approx(0.4, abs=0.06)
