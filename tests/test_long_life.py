"""A million reads with churn, from the files to the scrape, on a clock that runs as fast as it can: nothing may grow.

The real sources on a real tree and on the fake library, the reader's rounds, the frames, the session and the exposition,
without waiting: months of a life in a minute, as far as the number of events goes.
"""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from exporter import announcements
from exporter.clock import ManualClock
from exporter.collector import Exposition
from exporter.model import Record, Snapshot
from exporter.reader import READERS
from exporter.reader_outlet import Outlet
from exporter.reader_rounds import Opener, Rounds
from exporter.session import Session
from exporter.sources import GpuSettings, NetSettings
from exporter.sources.nvml import Session as NvmlSession
from exporter.wire import Decoder
from tests.nvml_library import ALL_CALLS, DRIVER_NOT_LOADED, GPU_IS_LOST, UNINITIALIZED, Board, FakeNvml
from tests.sysfs_tree import Node, Tree

CYCLES = int(os.environ.get("OVERLAP_LONG_LIFE_CYCLES", "1000000"))
BOARD_CYCLES = CYCLES // 10
CHURN_EVERY_S = 20.0
STARTED_S = 1000.0


@dataclass(frozen=True)
class Size:
    """What may not grow."""

    descriptors: int
    threads: int
    objects: int
    memory_mib: float
    series: int


class Life:
    """Reader and exporter in one process, moved by hand."""

    def __init__(self, opener: Opener, settings: NetSettings | GpuSettings, clock: ManualClock) -> None:
        self.clock = clock
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        page, _ = announcements.create()
        self.rounds = Rounds(
            opener, settings, outlet=Outlet(write_fd, self.broken), page=page, clock=self.clock, leave=self.left
        )
        self.worker = self.rounds.crew._owner
        self.decoder = Decoder(STARTED_S, "node", 0.0)
        self.session = Session((15.0,), 15.0, horizon_s=75.0)
        self.cycles = 0

    def broken(self) -> None:
        raise AssertionError("the pipe broke")

    def left(self, status: int) -> None:
        raise AssertionError(f"the reader left with {status}")

    def step(self) -> None:
        """One tick of the reader, and what the exporter makes of it."""
        wake_s = self.rounds.step(self.worker)
        assert wake_s is not None
        try:
            data = os.read(self._read_fd, 1 << 18)
        except BlockingIOError:  # nothing was read: a library that is away
            data = b""
        for event in self.decoder.feed(data):
            self.session.take(event)
            self.cycles += isinstance(event, Record)
        self.session.advance(self.clock.mono_s() - STARTED_S)
        self.clock.set(wake_s)

    def exposition(self, wall_jump_s: float = 0.0) -> bytes:
        now_s = self.clock.mono_s() - STARTED_S
        history = self.session.history
        return Exposition.render(Snapshot(
            now_s, self.clock.wall_s() + wall_jump_s, self.session.inventory, "serve", history.latest(now_s),
            self.session.verdicts.analyses, self.session.analyzer.phases, sources=history.health(),
            quarantined=history.quarantined(), refresh=self.session.analyzer.refresh,
        )).text  # fmt: skip

    def size(self) -> Size:
        text = self.exposition().decode()
        gc.collect()
        process = psutil.Process()
        series = [line for line in text.splitlines() if line.startswith("overlap_") and "sensor_refresh" not in line]
        return Size(
            process.num_fds(), threading.active_count(), len(gc.get_objects()), process.memory_info().rss / 2**20, len(series)
        )


def net_life(tree: Tree) -> Life:
    settings = NetSettings(sysfs_root=tree.sys, procfs_root=tree.proc, network_hertz=100.0)
    return Life(READERS["net"][1](), settings, ManualClock(STARTED_S))


class Churn:
    """An interface that is called otherwise each time, a port that is unplugged and comes back, veths by the dozen."""

    def __init__(self, tree: Tree, node: Node, aside: Path) -> None:
        self._tree, self._aside = tree, aside
        self._net = tree.root / "sys/class/net"
        self._port = tree.root / f"sys/{node.port(1).path}/infiniband"
        self._name = self._net / "eth1"
        self.turns = 0

    def turn(self) -> None:
        self.turns += 1
        fresh = self._net / f"wan{self.turns}"
        self._name.rename(fresh)
        self._name = fresh
        if self._port.exists():
            self._port.rename(self._aside)
        else:
            self._aside.rename(self._port)
            self._tree.write(str(self._port.relative_to(self._tree.root) / "mlx5_1/ports/1/counters/port_xmit_data"), "0")
        for k in range(3):
            old, new = f"veth{3 * self.turns + k - 3}", f"veth{3 * self.turns + k}"
            if (self._net / old).is_symlink():
                (self._net / old).unlink()
            self._tree.link(f"sys/class/net/{new}", "../../devices/virtual/net/veth")

    def restore(self) -> None:
        if not self._port.exists():
            self._aside.rename(self._port)


@pytest.mark.timeout(600)
def test_nothing_grows_over_a_million_reads_with_churn(tmp_path: Path) -> None:
    node = Node(0, 2, 2)
    tree = node.build(tmp_path / "tree")
    life, churn = net_life(tree), Churn(tree, node, tmp_path / "unplugged")
    tree.write("sys/devices/virtual/net/veth/statistics/tx_bytes", "1")
    churn_at_s, sizes = STARTED_S + CHURN_EVERY_S, []
    for share in (0.3, 0.65, 1.0):
        while life.cycles < share * CYCLES:
            life.step()
            if life.clock.mono_s() >= churn_at_s:
                churn.turn()
                churn_at_s += CHURN_EVERY_S
        churn.restore()
        settle_s = life.clock.mono_s() + 80.0  # what went is forgotten, what came back is read
        while life.clock.mono_s() < settle_s:
            life.step()
        sizes.append(life.size())
    first, _, last = sizes
    print(f"{life.cycles} reads, {churn.turns} turns of churn: {first} -> {last}")
    assert churn.turns > CYCLES / 20_000
    nothing_grew(first, last)
    text = life.exposition().decode()
    assert text.count("overlap_nic_info{") == 4  # eth0, the other under its latest name, an IPoIB interface per port
    assert f'overlap_nic_info{{device="wan{churn.turns}"' in text
    reads = next(line for line in text.splitlines() if line.startswith('overlap_source_reads_total{source="nic"}'))
    assert float(reads.split()[-1]) > 0.3 * CYCLES  # of all interfaces that there ever were


class BoardChurn:
    """The driver is reloaded, boards are counted the other way round, one is taken out and put in again, one is lost."""

    def __init__(self, nvml: FakeNvml) -> None:
        self._nvml = nvml
        self._all = [replace(board, uuid=board.lines(k)[1].split()[-1]) for k, board in enumerate(nvml.boards)]
        self.turns = 0

    def turn(self) -> None:
        boards = list(self._all)
        what = self.turns % 5
        if what == 1:
            boards.reverse()
        elif what == 2:
            boards.pop()
        elif what == 3:
            boards[1] = replace(boards[1], error=GPU_IS_LOST)
        self.turns += 1
        self._show(boards, UNINITIALIZED if what < 3 else 0)

    def load(self) -> None:
        """The driver is there again, or was never away."""
        self._show(self._nvml.boards, 0)

    def restore(self) -> None:
        self._show(list(self._all), UNINITIALIZED)

    def _show(self, boards: list[Board], error: int) -> None:
        self._nvml.boards = boards
        self._nvml.set(error=error, init_error=DRIVER_NOT_LOADED if error else 0)
        time.sleep(0.01)  # the library looks at its file every 5 ms


@pytest.mark.timeout(600)
def test_nothing_grows_over_reloads_of_the_driver_and_boards_that_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = tuple(call for call in ALL_CALLS if call != "xid")  # its thread waits in real time
    nvml = FakeNvml(tmp_path / "fake", [Board(supports=quiet) for _ in range(4)])
    for name, value in nvml.environment.items():
        monkeypatch.setenv(name, value)
    clock = ManualClock(STARTED_S)
    session = NvmlSession(clock)
    opener = Opener("nvml", "gpu", session.open, session.close, rediscover_s=3600.0, independent=False)
    life, churn = Life(opener, GpuSettings(nvml_library=str(nvml.library)), clock), BoardChurn(nvml)
    churn_at_s, load_at_s, sizes = STARTED_S + CHURN_EVERY_S, math.inf, []

    def live_until(until_s: float) -> None:
        while clock.mono_s() < until_s:
            nvml.play(clock.mono_s())
            life.step()

    try:
        for share in (0.3, 0.65, 1.0):
            while life.cycles < share * BOARD_CYCLES:
                live_until(clock.mono_s() + 1.0)
                if clock.mono_s() >= churn_at_s:
                    churn.turn()
                    churn_at_s, load_at_s = clock.mono_s() + CHURN_EVERY_S, clock.mono_s() + 5.0
                if clock.mono_s() >= load_at_s:
                    churn.load()
                    load_at_s = math.inf
            churn.restore()
            live_until(clock.mono_s() + 3.0)
            churn.load()
            live_until(clock.mono_s() + 80.0)
            sizes.append(life.size())
    finally:
        nvml.play(-1.0)
    first, _, last = sizes
    print(f"{life.cycles} reads, {churn.turns} turns of churn: {first} -> {last}")
    assert churn.turns > BOARD_CYCLES / 2000
    nothing_grew(first, last)
    up = [value for name, value in own_samples(life.exposition()).items() if name.startswith("overlap_gpu_up{")]
    assert up == [1.0] * 4
    assert not [line for line in nvml.events() if line.startswith("stale")]



def nothing_grew(first: Size, last: Size) -> None:
    """Whatever was there after the first stretch is still all there is."""
    assert last.descriptors == first.descriptors
    assert last.threads == first.threads
    assert last.series == first.series
    assert last.objects <= 1.02 * first.objects
    assert last.memory_mib <= first.memory_mib + 4.0

def test_a_jump_of_the_wall_clock_moves_time_stamps_and_nothing_else(tmp_path: Path) -> None:
    life = net_life(Node(0, 2, 1).build(tmp_path / "tree"))
    while life.clock.mono_s() < STARTED_S + 20.0:
        life.step()
    for jump_s in (-86400.0, 3600.0):
        before, after = (own_samples(life.exposition(jump)) for jump in (0.0, jump_s))
        assert before.keys() == after.keys()
        moved = {name for name in before if before[name] != after[name]}
        assert moved == {name for name in before if name.startswith("overlap_source_last_success_timestamp_seconds")} != set()
        assert {round(after[name] - before[name]) for name in moved} == {jump_s}


def own_samples(text: bytes) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if line.startswith("overlap_"))
    return {name: float(value) for name, _, value in lines}
