"""Asking who the GPUs work for: silence makes the answer old, never the daemon slow, and never a metric wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from exporter.clock import ManualClock
from exporter.history import History
from exporter.model import Device, GpuJob, GpuPod, Inventory, Record, SourceError, SourceStatus
from exporter.workloads import KEPT_S, Inquiry, Workloads, WorkloadSettings, jobs_of_gpus
from tests.fake_kubelet import FakeKubelet, Pod

GPUS = (Device("gpu", "GPU-0", index=0, uuid="GPU-6a"), Device("gpu", "GPU-1", index=1, uuid="GPU-6b"))


class Answers:
    """Answers one after the other; an exception is raised."""

    def __init__(self, *answers: object) -> None:
        self.left = list(answers)

    def __call__(self) -> tuple[object, dict[str, int]]:
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, {}


def inquiry(clock: ManualClock, *answers: object) -> Inquiry[object]:
    return Inquiry("pods", 10.0, Answers(*answers), clock, 0.0)


def test_an_answer_stays_in_force_while_the_source_is_silent_and_ends_after_a_quarter_of_an_hour() -> None:
    clock = ManualClock(100.0)
    asked = inquiry(clock, "first", SourceError("missing", "no socket"), SourceError("timeout", "slow"), "second")
    assert asked.answer() is None
    asked.ask_once()
    clock.set(110.0)
    asked.ask_once()
    assert asked.answer() == "first"
    clock.set(100.0 + KEPT_S)
    assert asked.answer() == "first"
    clock.set(100.1 + KEPT_S)
    assert asked.answer() is None
    asked.ask_once()
    assert asked.answer() is None
    asked.ask_once()
    assert asked.answer() == "second"


def test_health_of_a_silent_source_shows_its_age_and_its_errors() -> None:
    clock = ManualClock(100.0)
    asked = inquiry(clock, "first", SourceError("missing", "no socket"), SourceError("missing", "no socket"))
    history = History()
    history.apply(Inventory("node-1", 0.0, sources=(asked.source,)))
    for at_s in (100.0, 110.0, 120.0):
        clock.set(at_s)
        asked.ask_once()
    for event in asked.events():
        history.apply(event)
    (health,) = history.health()
    assert (health.source, health.up, health.reason) == ("pods", False, "missing")
    assert (health.reads, health.errors, health.last_success_s, health.interval_s) == (1, {"missing": 2}, 100.0, 10.0)
    assert asked.events() == []


def test_a_source_that_answers_again_is_up_and_its_errors_stay_counted() -> None:
    clock = ManualClock()
    asked = inquiry(clock, SourceError("timeout", "slow"), "answer")
    asked.ask_once()
    asked.ask_once()
    statuses = [e for e in asked.events() if isinstance(e, SourceStatus)]
    told = [(s.up, s.reason, dict(s.errors)) for s in statuses]
    assert told == [(False, "timeout", {"timeout": 1}), (True, None, {"timeout": 1})]


def test_parts_that_were_left_out_are_counted_beside_the_answer(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("4711")
    (tmp_path / "1").write_bytes(b"\xff")
    work = Workloads(WorkloadSettings(jobs_directory=str(tmp_path), jobs_scheduler="pbs"), ManualClock(5.0), 0.0)
    assert work._jobs is not None
    work._jobs.ask_once()
    record, status = work.events()
    assert isinstance(record, Record)
    assert isinstance(status, SourceStatus)
    assert (record.source, record.t_s, tuple(record.values)) == ("jobs", 5.0, ())
    assert (status.up, dict(status.errors)) == (True, {"not_understood": 1})
    assert work.jobs(GPUS) == (GpuJob("GPU-0", "pbs", "4711"),)


def test_nothing_is_asked_and_no_thread_runs_where_nothing_is_set() -> None:
    work = Workloads(WorkloadSettings(), ManualClock(), 0.0)
    before = threading.active_count()
    work.start()
    assert threading.active_count() == before
    assert (work.sources, work.events(), work.pods(GPUS), work.jobs(GPUS), work.ports_of_pods(())) == ((), [], (), (), {})
    work.stop()


def test_a_kubelet_that_restarts_is_found_again_and_its_pods_are_never_lost(tmp_path: Path) -> None:
    kubelet = FakeKubelet(tmp_path / "kubelet.sock")
    work = Workloads(WorkloadSettings(pods_socket=str(kubelet.path)), ManualClock(), 0.0)
    assert work._pods is not None
    kubelet.pods = [Pod("ml", "a", {"main": {"nvidia.com/gpu": ("GPU-6b",)}})]
    with kubelet:
        work._pods.ask_once()
    work._pods.ask_once()
    assert work.pods(GPUS) == (GpuPod("GPU-1", "ml", "a", "main"),)
    kubelet.pods = [Pod("ml", "b", {"main": {"nvidia.com/gpu": ("GPU-6b",)}})]
    with kubelet:
        work._pods.ask_once()
    assert work.pods(GPUS) == (GpuPod("GPU-1", "ml", "b", "main"),)
    reasons = [e.reason for e in work.events() if isinstance(e, SourceStatus)]
    assert reasons == [None, "missing", None]


def test_a_source_that_hangs_is_left_behind_when_the_daemon_stops() -> None:
    asked, freed = threading.Event(), threading.Event()

    def hang() -> tuple[object, dict[str, int]]:
        asked.set()
        freed.wait(30)
        return None, {}

    hanging = Inquiry("jobs", 10.0, hang, ManualClock(), 0.0)
    hanging.start()
    assert asked.wait(5)
    assert hanging.events() == []
    hanging.stop()
    assert hanging._thread.is_alive()
    freed.set()
    hanging._thread.join(5)
    assert not hanging._thread.is_alive()


@pytest.mark.parametrize(
    ("pods", "jobs", "expected"),
    [
        ([], [], {}),
        ([GpuPod("GPU-0", "ml", "a", "x"), GpuPod("GPU-0", "ml", "a", "y")], [], {"GPU-0": "ml/a"}),
        ([GpuPod("GPU-0", "ml", "b", "x"), GpuPod("GPU-0", "ml", "a", "x")], [], {"GPU-0": "ml/a, ml/b"}),
        ([GpuPod("GPU-0", "slurm", "node", "slurmd")], [GpuJob("GPU-0", "slurm", "7")], {"GPU-0": "7"}),
    ],
)
def test_jobs_of_gpus_are_batch_jobs_before_pods(pods: list[GpuPod], jobs: list[GpuJob], expected: dict[str, str]) -> None:
    assert jobs_of_gpus(pods, jobs) == expected
