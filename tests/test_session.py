"""One session for all commands: the same events give the same numbers, live and offline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.clock import ManualClock
from exporter.model import Device, Event, Inventory, OverlapAnalysis, Record, Source
from exporter.offline import analyze, as_dict
from exporter.playback import Playback
from exporter.session import GRACE_S, Session
from exporter.sources.simulator import simulate
from exporter.trace import TraceWriter, read_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 s of a job that is partly hidden, on two GPUs."""
    path = tmp_path_factory.mktemp("traces") / "t.jsonl.gz"
    with TraceWriter(path) as writer:
        for event in simulate("ddp_bucketed", 40.0, seed=3, gpus=2):
            writer.write(event)
    return path


def live(path: Path, poll_s: float) -> dict[float, tuple[OverlapAnalysis, ...]]:
    """What a daemon would have said at each whole second, polling every poll_s."""
    clock = ManualClock()
    feed = Playback(lambda: iter(read_trace(path)), clock)
    session = Session()
    said: dict[float, tuple[OverlapAnalysis, ...]] = {}
    while not feed.done or feed.now_s() < 40.3:
        for event in feed.poll(min(session.next_due_s, feed.now_s() + poll_s)):
            session.take(event)
        if session.advance(feed.now_s()):
            said[session.verdicts.at_s] = session.verdicts.analyses
    return said


def test_the_same_trace_gives_the_same_numbers_live_and_offline(trace: Path) -> None:
    said = live(trace, 0.05)
    results, session, cut = analyze(str(trace), (15.0, 60.0), (), 1.0)
    assert cut is None
    assert {r.at_s for r in results} >= {float(k) for k in range(1, 40)}
    for result in results:
        if result.at_s == 40.0 or result.window_s not in (15.0, 60.0) or result.at_s not in said:
            continue
        now = next(a for a in said[result.at_s] if (a.gpu_id, a.window_s) == (result.gpu_id, result.window_s))
        assert as_dict(now) == as_dict(result)
    assert session.verdicts.analyses == said[session.verdicts.at_s]


def test_how_often_the_daemon_polls_changes_no_number(trace: Path) -> None:
    assert live(trace, 0.013) == live(trace, 0.4)


def test_a_named_instant_changes_nothing_of_what_follows(trace: Path) -> None:
    with_questions, _, _ = analyze(str(trace), (60.0,), (33.3, 36.0, 39.5), None)
    alone, _, _ = analyze(str(trace), (60.0,), (39.5,), None)
    assert [r for r in with_questions if r.at_s == 39.5] == alone


def test_a_named_instant_sees_only_what_was_read_by_then(trace: Path, tmp_path: Path) -> None:
    lines = [e for e in read_trace(trace) if not isinstance(e, Record) or e.t_s <= 30.5]
    shorter = tmp_path / "shorter.jsonl.gz"
    with TraceWriter(shorter) as writer:
        for event in lines:
            writer.write(event)
    assert analyze(str(trace), (15.0,), (30.5,), None)[0] == analyze(str(shorter), (15.0,), (30.5,), None)[0]


def events(seconds: float) -> list[Event]:
    gpu = Device("gpu", "GPU-0", 0)
    source = Source("nvml/GPU-0", ("GPU-0/power_watts",), 0.1)
    records = [Record("nvml/GPU-0", k / 10, (400.0,)) for k in range(1, round(seconds * 10))]
    return [Inventory("n", 0.0, (gpu,), (), (source,)), *records]


def test_a_second_is_judged_when_its_grace_has_passed() -> None:
    session = Session()
    for event in events(5.0):
        session.take(event)
    assert not session.advance(1.0 + GRACE_S - 0.01)
    assert session.advance(1.0 + GRACE_S)
    assert session.verdicts.at_s == 1.0
    assert session.advance(4.9)
    assert session.verdicts.at_s == 4.0


def test_a_gap_of_years_is_not_stepped_through_second_by_second() -> None:
    session = Session()
    for event in events(3.0):
        session.take(event)
    session.advance(3.0)
    assert session.advance(3e8)
    assert {a.state for a in session.verdicts.analyses} == {"no_data"}


def test_a_gpu_that_has_left_is_named_for_a_day_and_no_longer() -> None:
    session = Session()
    for event in events(3.0):
        session.take(event)
    session.advance(3.0)
    session.take(Inventory("n", 0.0))
    assert [g.id for g in session.gone(10.0)] == ["GPU-0"]
    assert session.gone(90_000.0) == ()
    session.take(events(1.0)[0])
    assert session.gone(10.0) == ()


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "exporter", *args], capture_output=True, text=True, timeout=60)


def test_analyze_prints_one_json_document_with_null_for_what_does_not_exist(trace: Path) -> None:
    done = run("analyze", str(trace), "--window", "15", "--window", "300", "--at", "20.5", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["trace"] == str(trace)
    assert [(r["gpu"], r["at_s"], r["window_s"]) for r in document["results"]] == [
        ("GPU-0", 20.5, 15.0), ("GPU-0", 20.5, 300.0), ("GPU-1", 20.5, 15.0), ("GPU-1", 20.5, 300.0),
    ]
    full, short = document["results"][:2]
    assert set(full) >= {"state", "health", "exposed", "exposed_low", "exposed_high", "communication", "stall", "wait",
                         "exposed_or_wait", "correlation", "observability", "step_period_s", "reason"}
    assert full["state"] in ("overlapped", "partial")
    assert short["state"] == "no_data"
    assert short["health"] is None
    assert short["reason"]


def test_analyze_prints_a_table_of_every_gpu_and_window(trace: Path) -> None:
    done = run("analyze", str(trace))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("GPU-") and " s " in line[:16]]
    assert [(r[0], r[1]) for r in rows] == [(g, w) for g in ("GPU-0", "GPU-1") for w in ("15", "60", "300")]
    assert "power was read for" in done.stdout  # why 300 s say nothing


def test_an_instant_beyond_the_end_is_one_clear_line(trace: Path) -> None:
    done = run("analyze", str(trace), "--at", "500")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"overlap-exporter: {trace}: --at 500: the trace ends at 40.0 s\n"
