"""The reader: deadlines and back-off, stuck devices, failing devices, and the process itself on the fake library."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter import announcements
from exporter.clock import SystemClock
from exporter.model import Device, Event, Inventory, Quarantine, Record, Source, SourceStatus
from exporter.reader_outlet import Outlet
from exporter.reader_rounds import Opener, Rounds
from exporter.reader_turns import Turn
from exporter.sources import (
    QUARANTINE,
    REDISCOVER,
    REOPEN,
    Announce,
    GpuSettings,
    Lane,
    LaneError,
    NetSettings,
    Opened,
    settings_to_json,
)
from exporter.wire import Decoder
from tests.nvml_library import ALL_CALLS, GPU_IS_LOST, UNINITIALIZED, UNKNOWN, Board, FakeNvml
from tests.sysfs_tree import Node

CLOCK = SystemClock()
QUIET = tuple(c for c in ALL_CALLS if c != "xid")


# ---- a turn ----------------------------------------------------------------------------------------------------------


class ScriptedLane:
    """A lane that does what its script says; without one it gives 1, 2, 3 ..."""

    device_kind = "rdma_port"

    def __init__(self, device_id: str, interval_s: float = 0.02, script: Callable[[int], float] | None = None) -> None:
        self.device_id = device_id
        self.source = Source(f"rdma/{device_id}", (f"{device_id}/transmit_bytes_total",), interval_s)
        self.errors: dict[str, int] = {"io_error": 0}
        self.reads = 0
        self.threads: set[str] = set()
        self.closed = False
        self._script = script

    def read(self) -> Sequence[float] | None:
        self.reads += 1
        self.threads.add(threading.current_thread().name)
        return [float(self.reads) if self._script is None else self._script(self.reads)]

    def close(self) -> None:
        self.closed = True


def test_deadlines_keep_their_phase_and_missed_ones_are_counted() -> None:
    turn = Turn(ScriptedLane("a", 0.1), 1000.0, 1000.234)
    assert turn.due_mono_s == pytest.approx(1000.2)  # at once, in the phase of the start
    turn.take(1000.234)
    assert (turn.due_mono_s, turn.missed_ticks) == (pytest.approx(1000.3), 0)
    turn.take(1000.61)
    assert (turn.due_mono_s, turn.missed_ticks) == (pytest.approx(1000.7), 3)
    for k in range(7, 100_000):
        turn.take(1000.0 + 0.1 * k + 0.003)
    assert turn.due_mono_s == pytest.approx(11000.0, abs=1e-6)
    assert turn.missed_ticks == 3


def test_deadlines_that_pass_while_a_thread_is_stuck_in_a_lane_are_missed_ones() -> None:
    turn = Turn(ScriptedLane("a", 0.1), 1000.0, 1000.0)
    turn.take(1000.0)
    turn.pass_by(1000.05)
    assert (turn.due_mono_s, turn.missed_ticks) == (pytest.approx(1000.1), 0)
    turn.pass_by(1001.02)
    assert (turn.due_mono_s, turn.missed_ticks) == (pytest.approx(1001.1), 10)
    turn.pass_by(1002.02)
    turn.take(1002.1)
    assert (turn.due_mono_s, turn.missed_ticks) == (pytest.approx(1002.2), 20)


def test_a_lane_that_costs_its_device_too_much_is_read_half_as_often_and_comes_back() -> None:
    turn = Turn(ScriptedLane("a", 0.1), 0.0, 0.0)
    seen = []
    for duration_s in (0.0015, 0.003, 0.003, 0.0001, 0.0001):
        for _ in range(10):
            turn.take(turn.due_mono_s)
            turn.read_took(duration_s)
        seen.append(turn.interval_s)
    # 1.5 % is bearable, 3 % is not, 1.5 % again is; then the reads are cheap
    assert seen == pytest.approx([0.1, 0.2, 0.2, 0.1, 0.1])


def test_back_off_is_bounded_and_one_slow_read_is_none() -> None:
    turn = Turn(ScriptedLane("a", 0.1), 0.0, 0.0)
    for k in range(200):
        turn.read_took(5.0 if k % 3 == 0 else 0.0001)
    assert turn.interval_s == 0.1
    for _ in range(200):
        turn.read_took(5.0)
    assert turn.interval_s == pytest.approx(1.6)


def test_error_counts_go_on_when_a_device_is_opened_anew() -> None:
    first, second = ScriptedLane("a"), ScriptedLane("a")
    first.errors["io_error"], second.errors["io_error"] = 3, 2
    turn = Turn(first, 0.0, 0.0)
    turn.replace_lane(second)
    assert turn.errors() == {"io_error": 5}
    assert first.closed
    assert turn.news() is not None
    assert turn.news() is None  # nothing changed since


# ---- rounds over scripted devices ------------------------------------------------------------------------------------


@dataclass
class Machine:
    """Scripted devices, the rounds over them, and what came out of the pipe."""

    lanes: Callable[[frozenset[str]], list[ScriptedLane]]
    independent: bool = True
    rediscover_s: float = 1000.0
    settings: NetSettings | GpuSettings = field(default_factory=NetSettings)
    events: list[Event] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    openings: int = 0
    closings: int = 0
    before_opening: Callable[[Announce, NetSettings], None] = lambda announce, settings: None

    def _open(self, settings: NetSettings, announce: Announce) -> Opened:
        self.openings += 1
        self.before_opening(announce, settings)
        lanes = self.lanes(frozenset(settings.skip))
        if isinstance(settings, GpuSettings) and settings.only:
            lanes = [lane for lane in lanes if lane.device_id in settings.only]
        return Opened(tuple(Device("rdma_port", lane.device_id) for lane in lanes), tuple(lanes))

    def _close(self) -> None:
        self.closings += 1

    def start(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.page, page_fd = announcements.create()
        os.close(page_fd)
        opener = Opener(
            "rdma", "rdma_port", self._open, None if self.independent else self._close, self.rediscover_s, self.independent
        )
        self.rounds = Rounds(
            opener, self.settings, outlet=Outlet(self.write_fd, lambda: None), page=self.page, clock=CLOCK,
            leave=self.exits.append,
        )  # fmt: skip
        self.decoder = Decoder(0.0, "host", 0.0)
        self.rounds.crew.start()

    def run(self, seconds: float) -> None:
        """Watch as the main thread of a reader does, and take in what comes."""
        until_s = CLOCK.mono_s() + seconds
        while CLOCK.mono_s() < until_s:
            if select.select([self.read_fd], [], [], 0.02)[0]:
                self.events.extend(self.decoder.feed(os.read(self.read_fd, 1 << 16)))
            self.rounds.crew.watch(CLOCK.mono_s())

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        until_s = CLOCK.mono_s() + timeout_s
        while not condition():
            assert CLOCK.mono_s() < until_s, "nothing came of it"
            self.run(0.03)

    def records(self, source: str) -> list[Record]:
        return [e for e in self.events if isinstance(e, Record) and e.source == source]

    def quarantines(self) -> list[tuple[str, str | None]]:
        return [(e.id, e.reason) for e in self.events if isinstance(e, Quarantine)]

    def stop(self) -> None:
        self.rounds.crew.ending = True
        assert self.rounds.crew.join(3.0)
        os.close(self.read_fd)
        os.close(self.write_fd)


@pytest.fixture
def machines() -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(**arguments: object) -> Machine:
        machine = Machine(**arguments)  # type: ignore[arg-type]
        made.append(machine)
        machine.start()
        return machine

    yield make
    for machine in made:
        machine.stop()


def test_a_stuck_device_costs_only_itself_and_is_taken_up_again(machines: Callable[..., Machine]) -> None:
    gate = threading.Event()
    made: list[ScriptedLane] = []

    def stuck_at_fifth(read: int) -> float:
        if read == 5:
            gate.wait(30.0)
        return float(read)

    def lanes(skip: frozenset[str]) -> list[ScriptedLane]:
        both = [ScriptedLane("a"), ScriptedLane("b", script=None if made else stuck_at_fifth), ScriptedLane("c")]
        made.extend(both)
        return [lane for lane in both if lane.device_id not in skip]

    machine = machines(lanes=lanes)
    try:
        machine.run_until(lambda: ("b", "hang") in machine.quarantines())
        before = len(machine.records("rdma/b"))
        machine.run(0.5)
        for healthy in ("rdma/a", "rdma/c"):
            times = [r.t_s for r in machine.records(healthy)]
            assert max(b - a for a, b in itertools.pairwise(times)) < 0.8  # the hang lasts for more than 1.5 s
            assert len(times) > 40
        assert len(machine.records("rdma/b")) == before == 4
        (touch,) = [t for t in machine.page.touched() if t.id == "b"]
        assert touch.given_up
    finally:
        gate.set()
    machine.run_until(lambda: len(machine.records("rdma/b")) > before)
    assert machine.quarantines() == [("b", "hang"), ("b", None)]
    assert machine.exits == []


def test_no_second_thread_follows_into_a_device_that_one_is_stuck_in(machines: Callable[..., Machine]) -> None:
    gate = threading.Event()
    lanes = [ScriptedLane("b", script=lambda read: float(gate.wait(30.0))), ScriptedLane("b", interval_s=0.05)]
    lanes[1].source = Source("rdma/b/events", ("b/events/drops",), 0.05)
    machine = machines(lanes=lambda skip: [] if "b" in skip else lanes)
    try:
        machine.run_until(lambda: ("b", "hang") in machine.quarantines())
        machine.run(0.3)
        assert lanes[1].reads <= 1
    finally:
        gate.set()
    machine.run_until(lambda: lanes[1].reads > 3)


def test_a_device_that_hangs_while_it_is_opened_is_left_out(machines: Callable[..., Machine]) -> None:
    gate = threading.Event()

    def before_opening(announce: Announce, settings: NetSettings) -> None:
        for name in ("a", "b"):
            if name not in settings.skip:
                announce("rdma_port", name)
                if name == "b":
                    gate.wait(30.0)

    machine = machines(
        lanes=lambda skip: [ScriptedLane(name) for name in ("a", "b") if name not in skip], before_opening=before_opening
    )
    try:
        machine.run_until(lambda: len(machine.records("rdma/a")) > 10)
        assert machine.quarantines() == [("b", "hang")]
    finally:
        gate.set()
    machine.run_until(lambda: len(machine.records("rdma/b")) > 3)
    assert machine.quarantines() == [("b", "hang"), ("b", None)]


def test_a_reader_with_too_many_stuck_threads_asks_to_be_replaced(machines: Callable[..., Machine]) -> None:
    gate = threading.Event()
    names = [f"p{k}" for k in range(6)]
    machine = machines(lanes=lambda skip: [
        ScriptedLane(name, script=lambda read: float(gate.wait(30.0))) for name in names if name not in skip])  # fmt: skip
    try:
        machine.run_until(lambda: machine.exits != [])
        machine.run(0.1)
        assert set(machine.exits) == {4}
        assert len(machine.quarantines()) >= 5
    finally:
        gate.set()


def test_a_device_that_vanished_is_looked_for_and_found_again(machines: Callable[..., Machine]) -> None:
    made: list[ScriptedLane] = []

    def vanished(read: int) -> float:
        if read > 5:
            raise LaneError("vanished", REDISCOVER)
        return float(read)

    def lanes(skip: frozenset[str]) -> list[ScriptedLane]:
        made.append(ScriptedLane("a", script=None if made else vanished))
        return [made[-1]]

    machine = machines(lanes=lanes)
    machine.run_until(lambda: len(machine.records("rdma/a")) > 10)
    assert made[0].closed
    assert len([e for e in machine.events if isinstance(e, Inventory)]) == 1  # the same device: nothing new to tell


def test_lanes_of_devices_that_stay_outlive_a_look_for_new_ones(machines: Callable[..., Machine]) -> None:
    openings = []

    def lanes(skip: frozenset[str]) -> list[ScriptedLane]:
        openings.append([ScriptedLane(name) for name in (("a",) if not openings else ("a", "b"))])
        return openings[-1]

    machine = machines(lanes=lanes, rediscover_s=0.3)
    machine.run_until(lambda: len(openings) >= 3 and len(machine.records("rdma/b")) > 3)
    assert openings[1][0].closed
    assert openings[1][0].reads == 0
    assert not openings[0][0].closed
    inventories = [e for e in machine.events if isinstance(e, Inventory)]
    assert [[d.id for d in i.devices] for i in inventories] == [["a"], ["a", "b"]]
    first_b = machine.events.index(machine.records("rdma/b")[0])
    assert machine.events.index(inventories[1]) < first_b


def test_a_fault_of_the_reader_costs_one_lane_and_is_reported_once(
    machines: Callable[..., Machine], capfd: pytest.CaptureFixture[str]
) -> None:
    machine = machines(lanes=lambda skip: [ScriptedLane("a", script=lambda read: 1.0 / 0.0), ScriptedLane("b")])
    machine.run_until(lambda: any(isinstance(e, SourceStatus) and e.reason == "reader_fault" for e in machine.events))
    assert len(machine.records("rdma/b")) > 1
    assert capfd.readouterr().err.count("ZeroDivisionError") == 1


def test_a_lost_device_is_quarantined_and_the_others_go_on(machines: Callable[..., Machine]) -> None:
    def lost(read: int) -> float:
        if read > 3:
            raise LaneError("gpu_lost", QUARANTINE)
        return 1.0

    machine = machines(
        lanes=lambda skip: [ScriptedLane("a"), ScriptedLane("b", script=lost)], independent=False
    )
    machine.run_until(lambda: len(machine.records("rdma/a")) > 12)
    assert machine.quarantines() == [("b", "gpu_lost")]
    assert len(machine.records("rdma/b")) == 3
    assert (machine.openings, machine.closings) == (1, 0)


def test_a_lost_device_is_tried_again_without_touching_the_others(
    machines: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.reader_rounds.LOST_RETRY_S", 0.3)
    made: list[list[ScriptedLane]] = []

    def lost(read: int) -> float:
        if read > 3:
            raise LaneError("gpu_lost", QUARANTINE)
        return 1.0

    def lanes(skip: frozenset[str]) -> list[ScriptedLane]:
        made.append([ScriptedLane("a"), ScriptedLane("b", script=None if made else lost)])
        return made[-1]

    machine = machines(lanes=lanes, independent=False, settings=GpuSettings())
    machine.run_until(lambda: len(machine.records("rdma/b")) > 6)
    assert machine.quarantines() == [("b", "gpu_lost"), ("b", None)]
    assert [(group[0].reads > 0, group[0].closed) for group in made] == [(True, False), (False, False)]
    assert len([e for e in machine.events if isinstance(e, Inventory)]) == 1


def test_rounds_that_end_by_a_fault_of_the_reader_end_the_process(
    machines: Callable[..., Machine], capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(announce: Announce, settings: NetSettings) -> None:
        raise RuntimeError("a fault while devices are opened")

    machine = machines(lanes=lambda skip: [], before_opening=fail)
    machine.run_until(lambda: machine.exits == [1])
    assert "a fault while devices are opened" in capfd.readouterr().err


def test_a_library_error_throws_all_lanes_away_and_opens_anew_after_a_second(machines: Callable[..., Machine]) -> None:
    made: list[ScriptedLane] = []

    def gone(read: int) -> float:
        if read > 3:
            raise LaneError("uninitialized", REOPEN)
        return 1.0

    def lanes(skip: frozenset[str]) -> list[ScriptedLane]:
        made.extend([ScriptedLane("a", script=gone if not made else None), ScriptedLane("b")])
        return made[-2:]

    machine = machines(lanes=lanes, independent=False)
    machine.run_until(lambda: len(made) == 4 and len(machine.records("rdma/a")) > 6)
    assert made[0].closed
    assert made[1].closed
    assert machine.closings == 1
    downs = [(e.source, e.up, e.reason) for e in machine.events if isinstance(e, SourceStatus) and e.source == "rdma"]
    assert downs == [("rdma", False, "uninitialized"), ("rdma", True, None)]
    gap_s = machine.records("rdma/a")[3].t_s - machine.records("rdma/a")[2].t_s
    assert 0.9 < gap_s < 2.0


# ---- the process -----------------------------------------------------------------------------------------------------


class ReaderProcess:
    """A reader started by hand."""

    def __init__(self, kind: str, settings: GpuSettings | NetSettings, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "exporter.reader", kind, settings_to_json(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**os.environ, **environment},
        )  # fmt: skip
        self.decoder = Decoder(0.0, "host", 0.0)
        self.events: list[Event] = []

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
        until_s = CLOCK.mono_s() + timeout_s
        while not condition():
            assert CLOCK.mono_s() < until_s, "nothing came of it"
            self.run(0.05)

    def run(self, seconds: float) -> None:
        until_s = CLOCK.mono_s() + seconds
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while (left_s := until_s - CLOCK.mono_s()) > 0:
            if select.select([fd], [], [], left_s)[0]:
                data = os.read(fd, 1 << 16)
                if not data:
                    return
                self.events.extend(self.decoder.feed(data))

    def records(self, source: str) -> list[Record]:
        return [e for e in self.events if isinstance(e, Record) and e.source == source]

    def statuses(self, source: str) -> list[SourceStatus]:
        return [e for e in self.events if isinstance(e, SourceStatus) and e.source == source]

    def end(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            code = self.process.wait(5.0)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
        return code


@pytest.fixture
def readers() -> Iterator[Callable[..., ReaderProcess]]:
    made: list[ReaderProcess] = []

    def start(kind: str, settings: GpuSettings | NetSettings, environment: Mapping[str, str]) -> ReaderProcess:
        made.append(ReaderProcess(kind, settings, environment))
        return made[-1]

    yield start
    for reader in made:
        reader.end()


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fake", [Board(supports=QUIET), Board(supports=QUIET)])


def test_a_reader_of_gpus_keeps_its_deadlines_and_loads_no_numpy(
    fake: FakeNvml, readers: Callable[..., ReaderProcess]
) -> None:
    reader = readers("gpu", GpuSettings(nvml_library=str(fake.library)), fake.environment)
    reader.run_until(lambda: len(reader.records("nvml/GPU-1")) >= 30)
    times = [r.t_s for r in reader.records("nvml/GPU-1")]
    # Every read lies on one grid of tenths of a second: the earliest of each third do, however late single ones were.
    off_s = [t - times[0] - 0.1 * round((t - times[0]) / 0.1) for t in times]
    third = len(off_s) // 3
    assert abs(min(off_s[-third:]) - min(off_s[:third])) < 0.02
    loaded = Path(f"/proc/{reader.process.pid}/maps").read_text(encoding="utf-8")
    assert "libnvidia-ml.so.1" in loaded
    assert not any(name in loaded for name in ("numpy", "tornado", "_yaml", "bcrypt"))
    assert reader.end() == 0
    assert [line for line in fake.events() if line in ("init 0", "shutdown")] == ["init 0", "shutdown"]


def test_importing_all_that_readers_load_brings_in_neither_numpy_nor_the_web_nor_yaml() -> None:
    code = (
        "import sys, exporter.reader, exporter.sources.nvml, exporter.sources.net, pynvml; "
        "print([m for m in ('numpy', 'tornado', 'yaml', 'bcrypt', 'prometheus_client', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_reader_of_the_network_delivers_ports_and_interfaces_at_their_own_rates(
    tmp_path: Path, readers: Callable[..., ReaderProcess]
) -> None:
    tree = Node().build(tmp_path / "tree")
    settings = NetSettings(sysfs_root=tree.sys, procfs_root=tree.proc, network_hertz=50.0, host_hertz=1.0)
    reader = readers("net", settings, {})
    reader.run_until(lambda: any(len(reader.records(s.source)) > 50 for s in reader.events if isinstance(s, Record)))
    inventory = next(e for e in reader.events if isinstance(e, Inventory))
    rates = {s.name: len(reader.records(s.name)) for s in inventory.sources}
    fast = [name for name in rates if name.startswith("rdma/") and name.count("/") == 1]
    assert fast
    assert all(rates[name] > 40 for name in fast)
    assert all(rates[name] <= 4 for name in rates if name.startswith("host/"))
    assert reader.end() == 0


def test_a_reader_asked_to_skip_a_device_drops_it_and_takes_it_up_again(
    fake: FakeNvml, readers: Callable[..., ReaderProcess]
) -> None:
    reader = readers("gpu", GpuSettings(nvml_library=str(fake.library)), fake.environment)
    reader.run_until(lambda: len(reader.records("nvml/GPU-1")) > 2)
    stdin = reader.process.stdin
    assert stdin is not None
    stdin.write(json.dumps({"skip": ["GPU-1"]}).encode() + b"\n")
    reader.run_until(lambda: len([e for e in reader.events if isinstance(e, Inventory)]) == 2)
    inventory = [e for e in reader.events if isinstance(e, Inventory)][-1]
    assert [d.id for d in inventory.devices] == ["GPU-0", "GPU-1"]  # it is still there
    assert not any("GPU-1" in s.name for s in inventory.sources)
    before = len(reader.records("nvml/GPU-1"))
    reader.run(0.4)
    assert len(reader.records("nvml/GPU-1")) == before
    stdin.write(b'{"skip": []}\n')
    reader.run_until(lambda: len(reader.records("nvml/GPU-1")) > before)


def test_a_slow_device_is_read_less_often_until_it_is_fast_again(fake: FakeNvml, readers: Callable[..., ReaderProcess]) -> None:
    fake.edit(1, latency_ms=0.8)
    reader = readers("gpu", GpuSettings(nvml_library=str(fake.library), gpu_hertz=20.0), fake.environment)
    reader.run_until(lambda: any((s.interval_s or 0) >= 0.1 for s in reader.statuses("nvml/GPU-1")))
    assert {s.interval_s for s in reader.statuses("nvml/GPU-0")} == {0.05}
    fake.edit(1, latency_ms=0.0)
    reader.run_until(lambda: reader.statuses("nvml/GPU-1")[-1].interval_s == 0.05)


@pytest.mark.parametrize(("code", "name"), [(UNINITIALIZED, "uninitialized"), (UNKNOWN, "unknown_error")])
def test_after_a_driver_reload_all_is_read_again_without_an_old_handle(
    fake: FakeNvml, readers: Callable[..., ReaderProcess], code: int, name: str
) -> None:
    reader = readers("gpu", GpuSettings(nvml_library=str(fake.library)), fake.environment)
    reader.run_until(lambda: len(reader.records("nvml/GPU-1")) > 5)
    fake.set(error=code, init_error=code)
    reader.run_until(lambda: any(not s.up and s.reason == name for s in reader.statuses("nvml")))
    before = len(reader.records("nvml/GPU-0"))
    reader.run(1.3)
    assert len(reader.records("nvml/GPU-0")) == before  # no value at all, not the last one
    fake.set(error=0, init_error=0)
    reader.run_until(lambda: len(reader.records("nvml/GPU-0")) > before + 3)
    assert reader.statuses("nvml")[-1].up
    assert not [line for line in fake.events() if line.startswith("stale")]
    lost = {e.id: e.reason for e in reader.events if isinstance(e, Quarantine)}
    assert all(reason is None for reason in lost.values())
    attempts = [line for line in fake.events() if line.startswith("init")]
    assert 2 <= len(attempts) <= 5  # back-off, not a storm


def test_a_lost_gpu_is_named_and_the_other_keeps_its_rate(fake: FakeNvml, readers: Callable[..., ReaderProcess]) -> None:
    reader = readers("gpu", GpuSettings(nvml_library=str(fake.library)), fake.environment)
    reader.run_until(lambda: len(reader.records("nvml/GPU-1")) > 5)
    fake.edit(1, error=GPU_IS_LOST)
    reader.run_until(lambda: any(isinstance(e, Quarantine) for e in reader.events))
    lost = next(e for e in reader.events if isinstance(e, Quarantine))
    assert (lost.kind, lost.id, lost.reason) == ("gpu", "GPU-1", "gpu_lost")
    reader.run_until(lambda: not reader.statuses("nvml/GPU-1")[-1].up)  # whichever of its lanes it was that noticed
    told = [reader.statuses(name) for name in ("nvml/GPU-1", "gpm/GPU-1")]
    assert sum(max(status.errors.get("gpu_lost", 0) for status in statuses) for statuses in told) == 1
    others, mine = len(reader.records("nvml/GPU-0")), len(reader.records("nvml/GPU-1"))
    reader.run(1.0)
    assert len(reader.records("nvml/GPU-0")) - others >= 9
    assert len(reader.records("nvml/GPU-1")) == mine
    assert [line for line in fake.events() if line.startswith("init")] == ["init 0"]


def test_a_host_without_the_library_has_an_idle_reader_that_says_why(
    tmp_path: Path, readers: Callable[..., ReaderProcess]
) -> None:
    reader = readers("gpu", GpuSettings(nvml_library=str(tmp_path / "nothing.so"), sysfs_root=str(tmp_path)), {})
    reader.run_until(lambda: reader.statuses("nvml") != [])
    status = reader.statuses("nvml")[0]
    assert (status.up, status.reason) == (False, "library_not_found")
    assert next(e for e in reader.events if isinstance(e, Inventory)).devices == ()
    assert reader.decoder.extra["nvml_gpus"] is None
    reader.run(1.5)
    assert len(reader.statuses("nvml")) == 1  # said once, tried again in silence
    assert reader.end() == 0


def test_a_reader_inside_the_driver_outlives_the_end_of_its_pipe_until_it_is_out(
    fake: FakeNvml, readers: Callable[..., ReaderProcess]
) -> None:
    reader = readers("gpu", GpuSettings(nvml_library=str(fake.library)), fake.environment)
    reader.run_until(lambda: len(reader.records("nvml/GPU-1")) > 2)
    fake.edit(1, hang=60.0)
    CLOCK.sleep_until(CLOCK.mono_s() + 0.3)
    for number in (signal.SIGINT, signal.SIGTERM):
        reader.process.send_signal(number)
    assert reader.process.stdin is not None
    reader.process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        reader.process.wait(2.5)
    fake.edit(1, hang=0.0)
    assert reader.process.wait(5.0) == 0
    assert "shutdown" in fake.events()


def test_a_wrong_command_line_is_a_usage_error() -> None:
    done = subprocess.run([sys.executable, "-m", "exporter.reader", "disk", "{}"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_a_scripted_lane_is_a_lane() -> None:
    lane: Lane = ScriptedLane("a")
    assert lane.read() == [1.0]
