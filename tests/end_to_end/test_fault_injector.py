"""Faults at random, several at a time, on the real daemon: what is promised must hold at every moment and at the end.

    OVERLAP_FAULT_SECONDS=300 OVERLAP_FAULT_SEED=7 python -m pytest -s tests/end_to_end/test_fault_injector.py

The seed is printed, and with the same seed the same faults come in the same order. Devices fail here more often within a
minute than in a year outside, so the longest time for which one is left alone is set to seconds instead of ten minutes.
"""

from __future__ import annotations

import math
import os
import random
import re
import signal
import socket
import time
import urllib.parse
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.metronome import Metronome
from tests.end_to_end.observed import GONE_WITHIN_S, LONGEST_SCRAPE_S
from tests.end_to_end.processes import Daemon, children, daemon, eventually
from tests.end_to_end.test_release_switch import post
from tests.machines import Machine, Running, antiphase
from tests.nvml_library import DRIVER_NOT_LOADED, GPU_IS_LOST, UNINITIALIZED, UNKNOWN
from tests.sysfs_tree import Node

SECONDS = float(os.environ.get("OVERLAP_FAULT_SECONDS", "60"))
SEED = int(os.environ.get("OVERLAP_FAULT_SEED", "20260101"))
RECOVERY_S = 90.0  # a lost GPU is tried each 30 s, the longest back-off of a reader and of the library are as long
GOOD = "quarantine: {longest_pause_seconds: 5}\n"
MOST_AT_ONCE = 3
GPUS = PORTS = 4
GONE_S = GONE_WITHIN_S + 1.0  # where a reader is replaced while it waits for a hung call, staleness decides, once a second
REASONS = {"hang", "crash", "gpu_lost", "unknown_error", "reset_required", "insufficient_power", "memory", "not_ready"}

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(SECONDS + 2 * RECOVERY_S + 120)]
Heal = Callable[[], None]


@dataclass
class World:
    """The machine, the daemon, and what was done to them."""

    draw: random.Random  # of the fault at hand
    machine: Running
    ran: Daemon
    folder: Path
    stack: ExitStack
    broken_ports: set[int] = field(default_factory=set)  # now
    ill_since: dict[int, float] = field(default_factory=dict)  # GPUs of which no reading can come, and since when
    suspended_s: float = 0.0  # all together

    def edit(self, index: int, **changes: object) -> None:
        assert self.machine.nvml is not None
        self.machine.nvml.edit(index, **changes)
        self._note_illness()

    def library(self, **changes: object) -> None:
        assert self.machine.nvml is not None
        self.machine.nvml.set(**changes)
        self._note_illness()

    def _note_illness(self) -> None:
        assert self.machine.nvml is not None
        for k, board in enumerate(self.machine.nvml.boards):
            if board.hang or board.crash or board.error or self.machine.nvml.general.get("error"):
                self.ill_since.setdefault(k, time.monotonic() - self.suspended_s)
            else:
                self.ill_since.pop(k, None)


def hang(w: World) -> Heal | None:
    k = w.draw.randrange(GPUS)
    w.edit(k, hang=120.0)
    return lambda: w.edit(k, hang=0.0)


def crash(w: World) -> Heal | None:
    """At each touch, until it heals: once or a few times, as it comes."""
    k = w.draw.randrange(GPUS)
    w.edit(k, crash=1)
    return lambda: w.edit(k, crash=0)


def gpu_error(w: World) -> Heal | None:
    k = w.draw.randrange(GPUS)
    w.edit(k, error=w.draw.choice((GPU_IS_LOST, UNKNOWN, 16, 8, 20, 27, 3, 4)))
    return lambda: w.edit(k, error=0)


def slow_gpu(w: World) -> Heal | None:
    k = w.draw.randrange(GPUS)
    w.edit(k, latency_ms=w.draw.choice((5.0, 50.0, 300.0)))
    return lambda: w.edit(k, latency_ms=0.0)


def nonsense(w: World) -> Heal | None:
    k = w.draw.randrange(GPUS)
    w.edit(k, power_raw=w.draw.choice((("u32", "0"), ("i64", "-1"), ("f64", "nan"), ("u32", "4294967295"))), util_raw=250)
    return lambda: w.edit(k, power_raw=None, util_raw=-1)


def driver_gone(w: World) -> Heal | None:
    w.library(error=w.draw.choice((UNINITIALIZED, DRIVER_NOT_LOADED, UNKNOWN, 28)), init_error=DRIVER_NOT_LOADED)
    return lambda: w.library(error=0, init_error=0)


def driver_upgraded(w: World) -> Heal | None:
    w.library(error=18, init_error=18)
    return lambda: w.library(error=0, init_error=0)


def killed_reader(w: World) -> Heal | None:
    readers = w.ran.readers()
    if name := w.draw.choice(("gpu", "net")) if len(readers) == 2 else None:
        with suppress(psutil.Error):
            readers[name].kill()
    return lambda: None


def stopped_reader(w: World) -> Heal | None:
    if (process := w.ran.readers().get("net")) is None:
        return None
    with suppress(psutil.Error):
        process.suspend()

    def heal() -> None:
        with suppress(psutil.Error):
            process.resume()

    return heal


def stopped_daemon(w: World) -> Heal | None:
    """As when the whole machine is suspended; nobody can be asked anything meanwhile."""
    family = [psutil.Process(w.ran.process.pid), *children(w.ran.process.pid)]
    for act in ("suspend", "resume"):
        for process in family:
            with suppress(psutil.Error):
                getattr(process, act)()
        time.sleep(1.5 if act == "suspend" else 0.0)
    w.suspended_s += 1.5
    return lambda: None


def blocking_file(w: World) -> Heal | None:
    k, name = w.draw.randrange(PORTS), w.draw.choice(("port_xmit_data", "port_rcv_data", "symbol_error"))
    if k in w.broken_ports:
        return None
    w.broken_ports.add(k)
    file = w.machine.tree.root / w.machine.node.port_counter(k, name)
    aside = file.with_name(f"{file.name}.aside")
    file.rename(aside)
    os.mkfifo(file)

    def heal() -> None:
        fifo = file.with_name(f"{file.name}.fifo")
        file.rename(fifo)
        aside.rename(file)
        for _ in range(4):  # those who wait in open(2) get their end of file
            with suppress(OSError):
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        fifo.unlink()
        w.broken_ports.discard(k)

    return heal


def unplugged_port(w: World) -> Heal | None:
    k = w.draw.randrange(PORTS)
    if k in w.broken_ports:
        return None
    w.broken_ports.add(k)
    real = w.machine.tree.root / f"sys/{w.machine.node.port(k).path}/infiniband"
    entry = w.machine.tree.root / f"sys/class/infiniband/mlx5_{k}"
    aside, target = w.folder / f"unplugged-{k}", entry.readlink()
    entry.unlink()
    real.rename(aside)

    def heal() -> None:
        aside.rename(real)
        entry.symlink_to(target)
        w.broken_ports.discard(k)

    return heal


def renamed_interface(w: World) -> Heal | None:
    net = w.machine.tree.root / "sys/class/net"
    if not (net / "eth0").exists():
        return None
    (net / "eth0").rename(net / "wan0")
    return lambda: (net / "wan0").rename(net / "eth0") and None


def hanging_clients(w: World) -> Heal | None:
    where = urllib.parse.urlsplit(w.ran.url)
    words = (b"", b"GET /metr", b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01")
    clients = []
    for _ in range(60):
        with suppress(OSError):
            client = w.stack.enter_context(socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=2))
            client.sendall(w.draw.choice(words))
            clients.append(client)

    def heal() -> None:
        for client in clients:
            client.close()

    return heal


def bad_reload(w: World) -> Heal | None:
    config = w.folder / "config.yml"
    if config.read_text() != GOOD:
        return None
    config.write_text(w.draw.choice(("{", "sampling: 7", "nonsense: 1", "\x00")))
    w.ran.process.send_signal(signal.SIGHUP)

    def heal() -> None:
        config.write_text(GOOD)
        w.ran.process.send_signal(signal.SIGHUP)

    return heal


def released(w: World) -> Heal | None:
    post(w.ran, "/-/release?seconds=5")
    return lambda: post(w.ran, "/-/resume") and None


FAULTS: tuple[Callable[[World], Heal | None], ...] = (
    hang, crash, gpu_error, gpu_error, slow_gpu, nonsense, driver_gone, driver_upgraded, killed_reader, stopped_reader,
    stopped_daemon, blocking_file, unplugged_port, renamed_interface, hanging_clients, bad_reload, released,
)  # fmt: skip


def look(w: World, metronome: Metronome) -> None:
    """What holds at every moment."""
    for path in ("/metrics", "/-/healthy"):
        before = time.monotonic()
        status, body = w.ran.get(path)
        now = time.monotonic()
        assert status == 200
        assert now - before < LONGEST_SCRAPE_S + 2 * metronome.held_up_s(before, now), (path, now - before)
        assert not re.search(rb"(?<!\+)\b(nan|inf)\b", body, re.IGNORECASE)
    asked_s = time.monotonic()
    samples = w.ran.metrics()
    for (name, labels), value in samples.items():
        if name == "overlap_gpu_power_watts":
            assert 0.0 < value < 1100.0, labels
            ill_s = asked_s - w.suspended_s - w.ill_since.get(int(dict(labels)["gpu"]), math.inf)
            assert ill_s < GONE_S + metronome.held_up_s(asked_s - ill_s, asked_s), (labels, ill_s)
        elif name.endswith("_ratio"):
            assert -1.0 <= value <= 1.0, (name, labels, value)
        elif name == "overlap_device_quarantined":
            assert dict(labels)["reason"] in REASONS, labels
    assert len(samples) < 1200
    assert w.ran.process.poll() is None, w.ran.log()
    # The daemon, two readers, at most three that were left in a device, and those that are about to end.
    assert len(children(w.ran.process.pid)) <= 8


def test_whatever_happens_scrapes_are_answered_and_all_comes_back(tmp_path: Path) -> None:
    print(f"\nOVERLAP_FAULT_SEED={SEED} OVERLAP_FAULT_SECONDS={SECONDS:g}")
    config = tmp_path / "config.yml"
    config.write_text(GOOD)
    machine = Machine("faulty", antiphase(GPUS).boards, Node(GPUS, PORTS, 2))
    with (
        machine.running(tmp_path / "machine") as at, ExitStack() as stack, Metronome() as metronome,
        daemon(tmp_path, [*at.arguments, "--config.file", str(config)], at.environment) as ran,
    ):  # fmt: skip
        metronome.follow(ran.process.pid)
        ran.ready()
        w = World(random.Random(SEED), at, ran, tmp_path, stack)
        before, process = set(shown(ran)), psutil.Process(ran.process.pid)
        threads, descriptors = process.num_threads(), process.num_fds()
        done = inject(w, plan(SEED, SECONDS), metronome)
        print(f"{len(done)} faults: {', '.join(done)}")
        assert len(set(done)) > len(set(FAULTS)) / 2
        eventually(lambda: before <= set(shown(ran)), RECOVERY_S, f"seed {SEED}: all is back; missing {missing(before, ran)}")
        eventually(lambda: not quarantined(ran), RECOVERY_S, f"seed {SEED}: nothing is left alone")
        for source in ("nvml", "rdma", "nic", "host"):
            eventually(lambda source=source: ran.value("overlap_source_up", source=source) == 1.0, 15, f"{source} is up")
        eventually(lambda: len(children(ran.process.pid)) == 2, 10, "nobody was left behind")
        eventually(lambda: process.num_threads() <= threads + 1, 10, "threads are given back")
        eventually(lambda: process.num_fds() <= descriptors + 2, 10, "descriptors are given back")
        assert ran.value("overlap_config_last_reload_successful") == 1.0
        assert "Traceback" not in ran.log(), ran.log()
        assert ran.stop() == 0
    assert at.nvml is not None
    assert not [line for line in at.nvml.events() if "parallel" in line or "gpm pair" in line]


@dataclass(frozen=True)
class Planned:
    """A fault to come: when, which, for how long, and with which draws of its own."""

    at_s: float
    fault: Callable[[World], Heal | None]
    lasts_s: float
    seed: int


def plan(seed: int, seconds: float) -> list[Planned]:
    """What will be done, drawn before anything runs: however slow the machine is, a seed means the same faults."""
    draw, planned = random.Random(seed), []
    for half in range(int(2 * seconds)):
        active = sum(p.at_s + p.lasts_s > half / 2 for p in planned)
        if active < MOST_AT_ONCE and draw.random() < 0.5:
            planned.append(Planned(half / 2, draw.choice(FAULTS), draw.uniform(0.5, 6.0), draw.randrange(1 << 32)))
    return planned


def inject(w: World, planned: list[Planned], metronome: Metronome) -> list[str]:
    """Begin and end faults as planned; all are healed in the end. Those that were not possible just then are left out."""
    active: list[tuple[float, Heal]] = []
    done: list[str] = []
    began_s = time.monotonic()
    while planned or active:
        now_s = time.monotonic() - began_s
        for item in [item for item in active if item[0] <= now_s]:
            active.remove(item)
            item[1]()
        while planned and planned[0].at_s <= now_s:
            next_one = planned.pop(0)
            w.draw = random.Random(next_one.seed)
            if (heal := next_one.fault(w)) is not None:
                done.append(next_one.fault.__name__)
                active.append((next_one.at_s + next_one.lasts_s, heal))
        look(w, metronome)
        time.sleep(0.5)
    return done


def shown(ran: Daemon) -> list[tuple[str, frozenset[tuple[str, str]]]]:
    names = ("overlap_gpu_power_watts", "overlap_rdma_transmit_bytes_total", "overlap_rdma_receive_bytes_total",
             "overlap_nic_transmit_bytes_total")  # fmt: skip
    return [key for key in ran.metrics() if key[0] in names]


def missing(before: set[tuple[str, frozenset[tuple[str, str]]]], ran: Daemon) -> list[str]:
    return sorted(str(key) for key in before - set(shown(ran)))


def quarantined(ran: Daemon) -> list[dict[str, str]]:
    return [dict(labels) for name, labels in ran.metrics() if name == "overlap_device_quarantined"]
