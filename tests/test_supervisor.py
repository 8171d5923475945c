"""The supervisor: real readers on the fake library that hang, crash, are killed, released and stopped."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from exporter import announcements
from exporter.clock import SystemClock
from exporter.model import Event, Inventory, Quarantine, Record, SourceStatus
from exporter.sources import GpuSettings, NetSettings
from exporter.supervisor import ReaderSpec, Supervisor
from tests.nvml_library import ALL_CALLS, LIB_RM_VERSION_MISMATCH, Board, FakeNvml
from tests.sysfs_tree import Node

CLOCK = SystemClock()
QUIET = tuple(c for c in ALL_CALLS if c not in ("xid", "gpm"))
ROOT = Path(__file__).parent.parent


class Watched:
    """A supervisor and what it said."""

    def __init__(self, specs: list[ReaderSpec], hang_s: float = 2.0, longest_pause_s: float = 600.0) -> None:
        self.started_s = CLOCK.mono_s()
        self.supervisor = Supervisor(
            specs, CLOCK, started_mono_s=self.started_s, hang_s=hang_s, longest_pause_s=longest_pause_s
        )
        self.events: list[tuple[str, Event]] = []
        self.supervisor.start()

    def now_s(self) -> float:
        return CLOCK.mono_s() - self.started_s

    def run(self, seconds: float) -> None:
        until_s = CLOCK.mono_s() + seconds
        while CLOCK.mono_s() < until_s:
            self.events.extend(self.supervisor.poll(0.05))

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
        until_s = CLOCK.mono_s() + timeout_s
        while not condition():
            assert CLOCK.mono_s() < until_s, f"nothing came of it: {self.quarantines()}, {self.supervisor.restarts()}"
            self.events.extend(self.supervisor.poll(0.05))

    def times(self, source: str, after_s: float = 0.0) -> list[float]:
        return [e.t_s for _, e in self.events if isinstance(e, Record) and e.source == source and e.t_s > after_s]

    def quarantines(self) -> list[tuple[str, str | None]]:
        return [(e.id, e.reason) for _, e in self.events if isinstance(e, Quarantine)]

    def statuses(self, source: str) -> list[tuple[bool, str | None]]:
        return [(e.up, e.reason) for _, e in self.events if isinstance(e, SourceStatus) and e.source == source]

    def inventories(self, reader: str) -> list[Inventory]:
        return [e for name, e in self.events if isinstance(e, Inventory) and name == reader]

    def delivers(self, source: str, after_s: float) -> Callable[[], bool]:
        return lambda: len(self.times(source, after_s)) >= 3


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    machine = FakeNvml(tmp_path / "fake", [Board(supports=QUIET) for _ in range(4)])
    for key, value in machine.environment.items():
        monkeypatch.setenv(key, value)
    yield machine
    for index in range(len(machine.boards)):  # nobody is left in a device after a test
        machine.edit(index, hang=0.0, crash=0)


def gpu_spec(fake: FakeNvml, **settings: object) -> ReaderSpec:
    return ReaderSpec("gpu", "nvml", asdict(GpuSettings(nvml_library=str(fake.library), **settings)))  # type: ignore[arg-type]


@pytest.fixture
def watched(fake: FakeNvml, tmp_path: Path) -> Iterator[Watched]:
    """Both readers, each having delivered."""
    tree = Node().build(tmp_path / "tree")
    net = asdict(NetSettings(sysfs_root=tree.sys, procfs_root=tree.proc, network_hertz=20.0))
    both = Watched([gpu_spec(fake), ReaderSpec("net", "rdma", net)])
    both.run_until(lambda: all(len(both.times(s)) > 5 for s in ("nvml/GPU-0", "nvml/GPU-1", port_source(both))))
    yield both
    fake.general.update(init_error=0, init_hang=0.0)
    for index in range(len(fake.boards)):
        fake.edit(index, hang=0.0, crash=0)
    both.supervisor.stop(5.0)


def port_source(watched: Watched) -> str:
    names = [s.name for i in watched.inventories("net") for s in i.sources]
    return next((name for name in names if name.startswith("rdma/") and name.count("/") == 1), "rdma/none")


def longest_gap_s(times: list[float]) -> float:
    return max(b - a for a, b in itertools.pairwise(times))


def test_a_hung_gpu_is_quarantined_the_others_return_and_its_return_lifts_that(fake: FakeNvml, watched: Watched) -> None:
    old = watched.supervisor.pids()["gpu"]
    hung_s = watched.now_s()
    fake.edit(1, hang=60.0)
    watched.run_until(lambda: ("GPU-1", "hang") in watched.quarantines())
    watched.run_until(watched.delivers("nvml/GPU-0", hung_s + 1.9))
    back_s = watched.times("nvml/GPU-0", hung_s + 1.9)[0]
    assert back_s - hung_s < 4.0  # 2 s of patience, and the start of a process
    assert watched.times("nvml/GPU-1", hung_s + 0.5) == []
    assert [d.id for d in watched.inventories("gpu")[-1].devices] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert watched.supervisor.restarts() == {"gpu": 1, "net": 0}
    os.kill(old, 0)  # it was left to itself, not killed
    assert longest_gap_s(watched.times(port_source(watched))) < 1.0
    returned_s = watched.now_s()
    fake.edit(1, hang=0.0)
    watched.run_until(lambda: ("GPU-1", None) in watched.quarantines())
    watched.run_until(watched.delivers("nvml/GPU-1", returned_s))
    with pytest.raises(ProcessLookupError):
        os.kill(old, 0)
    assert watched.supervisor.restarts()["gpu"] == 1


def test_the_third_hang_takes_the_source_down_until_one_process_is_back(fake: FakeNvml) -> None:
    one = Watched([gpu_spec(fake)], hang_s=0.5)
    for index in (1, 2, 3):
        one.run_until(one.delivers("nvml/GPU-0", one.now_s()))
        fake.edit(index, hang=60.0)
        one.run_until(lambda index=index: (f"GPU-{index}", "hang") in one.quarantines())  # type: ignore[misc]
    one.run_until(lambda: (False, "devices_hang") in one.statuses("nvml"))
    one.run(0.5)
    assert one.supervisor.pids() == {}
    returned_s = one.now_s()
    fake.edit(3, hang=0.0)
    one.run_until(one.delivers("nvml/GPU-0", returned_s))
    assert one.statuses("nvml")[-1] == (True, None)
    for index in (1, 2):
        fake.edit(index, hang=0.0)
    assert one.supervisor.stop(5.0) == []


def test_a_gpu_that_hangs_again_soon_is_left_alone_for_longer(fake: FakeNvml) -> None:
    one = Watched([gpu_spec(fake)], hang_s=0.5)
    one.run_until(lambda: len(one.times("nvml/GPU-1")) > 2)
    for _ in range(2):
        fake.edit(1, hang=60.0)
        one.run_until(lambda: one.quarantines()[-1:] == [("GPU-1", "hang")])
        returned_s = one.now_s()
        fake.edit(1, hang=0.0)
        one.run_until(one.delivers("nvml/GPU-0", returned_s))
        one.run(1.0)
    assert one.quarantines() == [("GPU-1", "hang"), ("GPU-1", None), ("GPU-1", "hang")]
    assert one.supervisor.stop(5.0) == []


def test_a_gpu_that_hangs_before_it_is_known_is_still_there_without_a_uuid(fake: FakeNvml) -> None:
    fake.edit(2, hang=60.0)
    one = Watched([gpu_spec(fake)], hang_s=0.5)
    one.run_until(one.delivers("nvml/GPU-3", 0.0))
    assert one.quarantines() == [("GPU-2", "hang")]
    devices = one.inventories("gpu")[-1].devices
    assert sorted((d.id, d.index, bool(d.uuid)) for d in devices) == [
        ("GPU-0", 0, True), ("GPU-1", 1, True), ("GPU-2", 2, False), ("GPU-3", 3, True)]  # fmt: skip
    fake.edit(2, hang=0.0)
    one.run_until(one.delivers("nvml/GPU-2", 0.0))
    assert all(d.uuid for d in one.inventories("gpu")[-1].devices)
    assert one.supervisor.stop(5.0) == []


def test_a_library_that_hangs_blames_no_device(fake: FakeNvml) -> None:
    fake.set(init_hang=60.0)
    one = Watched([gpu_spec(fake)], hang_s=0.5)
    one.run_until(lambda: (False, "library_hangs") in one.statuses("nvml"))
    assert one.quarantines() == []
    fixed_s = one.now_s()
    fake.set(init_hang=0.0)
    one.run_until(one.delivers("nvml/GPU-0", fixed_s))
    assert one.statuses("nvml")[-1] == (True, None)
    assert one.supervisor.stop(5.0) == []


def test_a_gpu_that_crashes_its_reader_is_left_out_at_the_third_time(fake: FakeNvml, watched: Watched) -> None:
    parent = os.getpid()
    crashed_s = watched.now_s()
    fake.edit(1, crash=1)
    watched.run_until(lambda: ("GPU-1", "crash") in watched.quarantines())
    watched.run_until(watched.delivers("nvml/GPU-0", watched.now_s()))
    assert watched.supervisor.restarts() == {"gpu": 3, "net": 0}
    assert longest_gap_s(watched.times("nvml/GPU-0", crashed_s - 0.5)) < 3.0
    assert longest_gap_s(watched.times(port_source(watched))) < 1.0
    assert os.getpid() == parent
    watched.run(0.5)
    assert watched.supervisor.restarts()["gpu"] == 3


def test_a_gpu_that_crashed_too_often_is_read_again_after_its_pause_and_not_trusted_at_once(fake: FakeNvml) -> None:
    one = Watched([gpu_spec(fake)], longest_pause_s=1.0)
    one.run_until(one.delivers("nvml/GPU-1", 0.0))
    fake.edit(1, crash=1)
    one.run_until(lambda: one.quarantines() == [("GPU-1", "crash"), ("GPU-1", None), ("GPU-1", "crash")])
    assert one.supervisor.restarts() == {"gpu": 4}  # three, and the one more that was enough
    healed_s = one.now_s()
    fake.edit(1, crash=0)
    one.run_until(one.delivers("nvml/GPU-1", healed_s))
    assert one.quarantines()[-1] == ("GPU-1", None)
    assert one.supervisor.stop(5.0) == []


def test_a_release_ends_every_pause(fake: FakeNvml) -> None:
    one = Watched([gpu_spec(fake)])
    one.run_until(one.delivers("nvml/GPU-1", 0.0))
    fake.edit(1, crash=1)
    one.run_until(lambda: one.quarantines() == [("GPU-1", "crash")])
    one.supervisor.release("gpu", 600.0)
    one.run_until(lambda: one.supervisor.pids() == {})
    fake.edit(1, crash=0)  # a reset, for which the devices were released
    mended_s = one.now_s()
    one.supervisor.resume("gpu")
    one.run_until(one.delivers("nvml/GPU-1", mended_s))
    assert one.quarantines() == [("GPU-1", "crash"), ("GPU-1", None)]
    assert one.supervisor.stop(5.0) == []


def test_to_be_killed_inside_a_device_is_not_held_against_the_device(fake: FakeNvml) -> None:
    one = Watched([gpu_spec(fake)], hang_s=30.0)
    for _ in range(3):
        fake.edit(1, hang=0.0)
        one.run_until(one.delivers("nvml/GPU-1", one.now_s()))
        hangs = len(fake.events())
        fake.edit(1, hang=60.0)
        one.run_until(lambda hangs=hangs: any("hang 1" in line for line in fake.events()[hangs:]))  # type: ignore[misc]
        os.kill(one.supervisor.pids()["gpu"], signal.SIGKILL)  # as the kernel does where memory is short
    fake.edit(1, hang=0.0)
    one.run_until(one.delivers("nvml/GPU-1", one.now_s()))
    assert one.supervisor.restarts() == {"gpu": 3}
    assert one.quarantines() == []
    assert one.supervisor.stop(5.0) == []


def test_a_killed_reader_delivers_again_at_once_and_the_other_notices_nothing(watched: Watched) -> None:
    for name, source, other in (("gpu", "nvml/GPU-0", port_source(watched)), ("net", port_source(watched), "nvml/GPU-0")):
        killed_s = watched.now_s()
        first = watched.supervisor.pids()[name]
        os.kill(first, signal.SIGKILL)
        watched.run_until(watched.delivers(source, killed_s + 0.05))
        assert watched.times(source, killed_s + 0.05)[0] - killed_s < 3.0
        assert longest_gap_s(watched.times(other, killed_s - 0.5)) < 1.0
        assert watched.supervisor.pids()[name] != first
    assert watched.supervisor.restarts() == {"gpu": 1, "net": 1}
    assert all(cpu_s > 0.0 for cpu_s in watched.supervisor.ended_cpu_s().values())
    # The quarantine of a device is not the answer to a death that no device explains.
    assert watched.quarantines() == []


def test_deaths_that_nothing_explains_are_answered_with_growing_pauses(fake: FakeNvml, watched: Watched) -> None:
    fake.set(init_error=LIB_RM_VERSION_MISMATCH)
    os.kill(watched.supervisor.pids()["gpu"], signal.SIGKILL)
    watched.run(3.7)
    starts = len([line for line in fake.events() if line == f"init {LIB_RM_VERSION_MISMATCH}"])
    assert 2 <= starts <= 4  # at once, after 1 s, after 2 s
    assert {reason for up, reason in watched.statuses("nvml") if not up} == {"library_driver_mismatch"}
    fixed_s = watched.now_s()
    fake.set(init_error=0)
    watched.run_until(watched.delivers("nvml/GPU-0", fixed_s))
    assert watched.statuses("nvml")[-1] == (True, None)


def test_a_silent_reader_that_touches_nothing_is_replaced(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.supervisor_reader.HEARTBEAT_S", 0.5)
    stopped_s = watched.now_s()
    first = watched.supervisor.pids()["gpu"]
    os.kill(first, signal.SIGSTOP)
    watched.run_until(watched.delivers("nvml/GPU-0", stopped_s + 0.5))
    assert watched.supervisor.pids()["gpu"] != first


def test_a_main_loop_that_was_held_up_blames_no_reader(watched: Watched) -> None:
    pid = watched.supervisor.pids()["gpu"]
    os.kill(pid, signal.SIGSTOP)  # as when the whole machine was suspended: nobody ran
    CLOCK.sleep_until(CLOCK.mono_s() + 3.0)
    os.kill(pid, signal.SIGCONT)
    resumed_s = watched.now_s()
    watched.run_until(watched.delivers("nvml/GPU-0", resumed_s))
    assert watched.quarantines() == []
    assert watched.supervisor.restarts()["gpu"] == 0


def test_a_released_reader_is_gone_until_it_is_resumed(fake: FakeNvml, watched: Watched) -> None:
    pid = watched.supervisor.pids()["gpu"]
    watched.supervisor.release("gpu", 600.0)
    watched.run_until(lambda: "gpu" not in watched.supervisor.pids())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert fake.events()[-1] == "shutdown"
    assert watched.statuses("nvml")[-1] == (False, "released")
    watched.run(0.5)
    assert "gpu" not in watched.supervisor.pids()
    resumed_s = watched.now_s()
    watched.supervisor.resume("gpu")
    watched.run_until(watched.delivers("nvml/GPU-1", resumed_s))
    assert watched.statuses("nvml")[-1] == (True, None)
    watched.supervisor.release("gpu", 0.8)  # and by itself when its time is over
    released_s = watched.now_s()
    watched.run_until(watched.delivers("nvml/GPU-1", released_s + 0.8))


def test_other_settings_are_read_with_in_a_new_process(fake: FakeNvml, watched: Watched) -> None:
    changed_s = watched.now_s()
    watched.supervisor.replace(gpu_spec(fake, exclude=("1",), gpu_hertz=20.0))
    watched.run_until(lambda: len(watched.times("nvml/GPU-0", changed_s + 0.5)) > 5)
    assert [d.id for d in watched.inventories("gpu")[-1].devices] == ["GPU-0", "GPU-2", "GPU-3"]
    assert watched.inventories("gpu")[-1].sources[0].interval_s == 0.05
    assert watched.supervisor.extra("gpu")["nvml_gpus"] == 4


def test_stopping_does_not_wait_for_a_reader_inside_the_driver(fake: FakeNvml) -> None:
    one = Watched([gpu_spec(fake)])
    one.run_until(lambda: len(one.times("nvml/GPU-1")) > 2)
    pid = one.supervisor.pids()["gpu"]
    fake.edit(1, hang=60.0)
    one.run(0.4)
    before_s = CLOCK.mono_s()
    assert one.supervisor.stop(1.0) == [pid]
    assert CLOCK.mono_s() - before_s < 2.0
    os.kill(pid, 0)  # still there, and not killed
    fake.edit(1, hang=0.0)
    assert one.supervisor.stop(5.0) == []


def test_no_process_outlives_an_exporter_that_was_killed(fake: FakeNvml, tmp_path: Path) -> None:
    code = (
        "import sys, json\n"
        "from exporter.supervisor import ReaderSpec, Supervisor\n"
        "from exporter.clock import SystemClock\n"
        "specs = [ReaderSpec(*spec) for spec in json.loads(sys.argv[1])]\n"
        "supervisor = Supervisor(specs, SystemClock(), started_mono_s=0.0)\n"
        "supervisor.start()\n"
        "seen = set()\n"
        "while True:\n"
        "    seen |= {name for name, _ in supervisor.poll(0.1)}\n"
        "    if len(seen) == 2:\n"
        "        print(*supervisor.pids().values(), flush=True)\n"
        "        seen.add('told')\n"
    )
    specs = [["gpu", "nvml", dict(gpu_spec(fake).settings)],
             ["net", "rdma", asdict(NetSettings(sysfs_root=str(tmp_path), procfs_root=str(tmp_path)))]]  # fmt: skip
    command = [sys.executable, "-c", code, json.dumps(specs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        fake.edit(1, hang=60.0)  # one of them is stuck in a device
        CLOCK.sleep_until(CLOCK.mono_s() + 0.3)
        parent.kill()
    until_s = CLOCK.mono_s() + 2.0
    while any(alive(pid) for pid in pids):
        assert CLOCK.mono_s() < until_s, "a reader outlived its exporter"
        CLOCK.sleep_until(CLOCK.mono_s() + 0.05)


def alive(pid: int) -> bool:
    """Whether a process still runs; a zombie that nobody has waited for does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_readers_are_started_by_the_main_thread_only(fake: FakeNvml) -> None:
    caught: list[BaseException] = []

    def start() -> None:
        try:
            Supervisor([gpu_spec(fake)], CLOCK, started_mono_s=0.0).start()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_announcements_are_seen_on_the_other_side_of_a_page() -> None:
    mine, fd = announcements.create()
    theirs = announcements.Announcements(os.dup(fd))
    assert theirs.touched() == []
    mine.touch(2, mine.number("rdma_port", "mlx5_0/1"), 12.5)
    mine.touch(0, mine.number("gpu", ""), 13.0)
    assert [(t.slot, t.kind, t.id, t.since_mono_s, t.given_up) for t in theirs.touched()] == [
        (0, "gpu", "", 13.0, False), (2, "rdma_port", "mlx5_0/1", 12.5, False)]  # fmt: skip
    mine.give_up(2, True)
    mine.leave(0)
    assert [(t.slot, t.given_up) for t in theirs.touched()] == [(2, True)]
    mine.beat(99.0)
    assert theirs.heartbeat_mono_s() == 99.0
    mine.leave(2)
    mine.close()
    theirs.close()
    os.close(fd)


def test_a_device_is_blamed_by_its_own_name_after_any_number_of_names_have_come_and_gone() -> None:
    page, fd = announcements.create()
    page.touch(1, page.number("nic", "stuck"), 1.0)
    for k in range(10 * announcements.NAMES):
        page.touch(0, page.number("nic", f"veth{k}"), 2.0)
        assert [(t.slot, t.id) for t in page.touched()] == [(0, f"veth{k}"), (1, "stuck")]
        page.touch(0, page.number("nic", "eth0"), 3.0)
        assert page.touched()[0].id == "eth0"
    page.close()
    os.close(fd)
