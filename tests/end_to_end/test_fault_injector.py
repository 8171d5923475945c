"""Faults at random, several at a time, on the real daemon: what is promised must hold at every moment and at the end.

    OVERLAP_FAULT_SECONDS=300 OVERLAP_FAULT_SEED=7 python -m pytest -s tests/end_to_end/test_fault_injector.py

The seed is printed, and with the same seed the same faults come in the same order.
"""

from __future__ import annotations

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

from tests.end_to_end.observed import LONGEST_SCRAPE_S, Metronome
from tests.end_to_end.processes import Daemon, children, daemon, eventually
from tests.end_to_end.test_release_switch import post
from tests.machines import Machine, Running, antiphase
from tests.nvml_library import DRIVER_NOT_LOADED, GPU_IS_LOST, UNINITIALIZED, UNKNOWN
from tests.sysfs_tree import Node

SECONDS = float(os.environ.get("OVERLAP_FAULT_SECONDS", "60"))
SEED = int(os.environ.get("OVERLAP_FAULT_SEED", "20260101"))
RECOVERY_S = 70.0  # a lost GPU is tried each 30 s, the longest back-off is as long
GPUS = PORTS = 4
REASONS = {"hang", "crash", "gpu_lost", "unknown_error", "reset_required", "insufficient_power", "memory", "not_ready"}

pytestmark = [pytest.mark.end_to_end, pytest.mark.soak, pytest.mark.timeout(SECONDS + RECOVERY_S + 120)]
Heal = Callable[[], None]


@dataclass
class World:
    """The machine, the daemon, and what was done to them."""

    draw: random.Random
    machine: Running
    ran: Daemon
    folder: Path
    stack: ExitStack
    hung: set[int] = field(default_factory=set)  # one that hangs again soon is left alone for minutes: once each
    crashed: set[int] = field(default_factory=set)  # so is one that crashes three times

    def gpu(self, avoid: set[int]) -> int | None:
        free = [k for k in range(GPUS) if k not in avoid]
        return self.draw.choice(free) if free else None

    def edit(self, index: int, **changes: object) -> None:
        assert self.machine.nvml is not None
        self.machine.nvml.edit(index, **changes)

    def library(self, **changes: object) -> None:
        assert self.machine.nvml is not None
        self.machine.nvml.set(**changes)

    def port_file(self, name: str) -> Path:
        return self.machine.tree.root / self.machine.node.port_counter(self.draw.randrange(PORTS), name)


def hang(w: World) -> Heal | None:
    if len(w.hung) >= 2 or (k := w.gpu(w.hung)) is None:  # a third at a time takes the source down by design
        return None
    w.hung.add(k)
    w.edit(k, hang=120.0)
    return lambda: w.edit(k, hang=0.0)


def crash_once(w: World) -> Heal | None:
    if (k := w.gpu(w.hung | w.crashed)) is None:
        return None
    w.crashed.add(k)
    w.edit(k, crash=1)
    restarts = w.ran.value("overlap_source_restarts_total", source="nvml")
    with suppress(AssertionError):
        eventually(lambda: w.ran.value("overlap_source_restarts_total", source="nvml") != restarts, 2)
    w.edit(k, crash=0)
    return lambda: None


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
    return lambda: None


def blocking_file(w: World) -> Heal | None:
    file = w.port_file(w.draw.choice(("port_xmit_data", "port_rcv_data", "symbol_error")))
    aside = file.with_name(f"{file.name}.aside")
    if aside.exists() or not file.exists():
        return None
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

    return heal


def unplugged_port(w: World) -> Heal | None:
    k = w.draw.randrange(PORTS)
    real = w.machine.tree.root / f"sys/{w.machine.node.port(k).path}/infiniband"
    aside = w.folder / f"unplugged-{k}"
    if aside.exists() or not real.exists():
        return None
    real.rename(aside)
    return lambda: aside.rename(real) and None


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
    good = config.read_text()
    config.write_text(w.draw.choice(("{", "sampling: 7", "nonsense: 1", "\x00")))
    w.ran.process.send_signal(signal.SIGHUP)

    def heal() -> None:
        config.write_text(good)
        w.ran.process.send_signal(signal.SIGHUP)

    return heal


def released(w: World) -> Heal | None:
    post(w.ran, "/-/release?seconds=5")
    return lambda: post(w.ran, "/-/resume") and None


FAULTS: tuple[Callable[[World], Heal | None], ...] = (
    hang, crash_once, gpu_error, gpu_error, slow_gpu, nonsense, driver_gone, driver_upgraded, killed_reader, stopped_reader,
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
    samples = w.ran.metrics()
    for (name, labels), value in samples.items():
        if name == "overlap_gpu_power_watts":
            assert 0.0 < value < 1100.0, labels
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
    config.write_text("sampling: {gpu_hertz: 10}\n")
    machine = Machine("faulty", antiphase(GPUS).boards, Node(GPUS, PORTS, 2))
    with (
        machine.running(tmp_path / "machine") as at, ExitStack() as stack, Metronome() as metronome,
        daemon(tmp_path, [*at.arguments, "--config.file", str(config)], at.environment) as ran,
    ):  # fmt: skip
        ran.ready()
        w = World(random.Random(SEED), at, ran, tmp_path, stack)
        before, threads = set(shown(ran)), psutil.Process(ran.process.pid).num_threads()
        done = inject(w, metronome)
        print(f"{len(done)} faults: {', '.join(done)}")
        eventually(lambda: before <= set(shown(ran)), RECOVERY_S, f"seed {SEED}: all is back; missing {missing(before, ran)}")
        eventually(lambda: not quarantined(ran), RECOVERY_S, f"seed {SEED}: nothing is left alone")
        for source in ("nvml", "rdma", "nic", "host"):
            eventually(lambda source=source: ran.value("overlap_source_up", source=source) == 1.0, 15, f"{source} is up")
        assert psutil.Process(ran.process.pid).num_threads() <= threads + 1
        eventually(lambda: len(children(ran.process.pid)) == 2, 10, "nobody was left behind")
        assert ran.value("overlap_config_last_reload_successful") == 1.0
        assert "Traceback" not in ran.log(), ran.log()
        assert ran.stop() == 0
    assert at.nvml is not None
    assert not [line for line in at.nvml.events() if "parallel" in line or "gpm pair" in line]


def inject(w: World, metronome: Metronome) -> list[str]:
    """Begin and end faults at random until the time is over; all are healed in the end."""
    active: list[tuple[float, Heal]] = []
    done: list[str] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if len(active) < 3 and w.draw.random() < 0.5:
            fault = w.draw.choice(FAULTS)
            if (heal := fault(w)) is not None:
                done.append(fault.__name__)
                active.append((time.monotonic() + w.draw.uniform(0.5, 6.0), heal))
        look(w, metronome)
        for item in [item for item in active if item[0] <= time.monotonic()]:
            active.remove(item)
            item[1]()
        time.sleep(0.5)
    for _, heal in active:
        heal()
    return done


def shown(ran: Daemon) -> list[tuple[str, frozenset[tuple[str, str]]]]:
    names = ("overlap_gpu_power_watts", "overlap_rdma_transmit_bytes_total", "overlap_rdma_receive_bytes_total",
             "overlap_nic_transmit_bytes_total")  # fmt: skip
    return [key for key in ran.metrics() if key[0] in names]


def missing(before: set[tuple[str, frozenset[tuple[str, str]]]], ran: Daemon) -> list[str]:
    return sorted(str(key) for key in before - set(shown(ran)))


def quarantined(ran: Daemon) -> list[dict[str, str]]:
    return [dict(labels) for name, labels in ran.metrics() if name == "overlap_device_quarantined"]
