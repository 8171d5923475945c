"""The rest of the world on the real daemon: clients without manners, suspended machines, full disks, hot-plug."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from exporter.model import Record
from exporter.trace import read_trace
from tests.end_to_end.metronome import Metronome
from tests.end_to_end.observed import LONGEST_SCRAPE_S
from tests.end_to_end.processes import EXPORTER, Daemon, Samples, children, daemon, eventually
from tests.machines import Machine, Running, antiphase
from tests.sysfs_tree import Node

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(120)]


def address(ran: Daemon) -> tuple[str, int]:
    where = urllib.parse.urlsplit(ran.url)
    assert where.hostname is not None
    assert where.port is not None
    return where.hostname, where.port


@contextmanager
def crowd(ran: Daemon, silent: int, half: int, streams: int, never_reading: int) -> Iterator[None]:
    """Clients that connect and say nothing, stop within a head, hold streams, or ask and never read the answer."""
    with ExitStack() as stack:
        def connect(request: bytes) -> None:
            client = stack.enter_context(socket.create_connection(address(ran), timeout=5))
            client.sendall(request)

        for count, request in (
            (streams, b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n"), (half, b"GET /metrics HTTP/1.1\r\nHos"),
            (never_reading, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 3), (silent, b""),
        ):  # fmt: skip
            for _ in range(count):
                connect(request)
        yield


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Daemon, Running]]:
    with antiphase(2).running(tmp_path / "machine") as machine, daemon(tmp_path, machine.arguments, machine.environment) as ran:
        ran.ready()
        yield ran, machine


def test_a_scrape_and_a_probe_are_answered_whatever_crowd_hangs_on(node: tuple[Daemon, Running]) -> None:
    ran, _ = node
    reads = ran.value("overlap_source_reads_total", source="nvml") or 0.0
    with Metronome() as metronome, crowd(ran, silent=150, half=50, streams=40, never_reading=30):
        metronome.follow(ran.process.pid)
        began = time.monotonic()
        while time.monotonic() - began < 5.0:
            for path in ("/metrics", "/-/healthy"):
                before = time.monotonic()
                assert ran.get(path)[0] == 200
                now = time.monotonic()
                assert now - before < LONGEST_SCRAPE_S + 2 * metronome.held_up_s(before, now)
            time.sleep(0.25)
        seconds = time.monotonic() - began - 2 * metronome.held_up_s(began, time.monotonic())
    # Nobody outside slows the sampling down: two GPUs, ten times a second.
    assert (ran.value("overlap_source_reads_total", source="nvml") or 0.0) - reads > 0.9 * 2 * 10 * seconds
    assert len(psutil.Process(ran.process.pid).net_connections()) < 140


def test_random_bytes_are_answered_or_cut_off_and_never_break_the_server(node: tuple[Daemon, Running]) -> None:
    ran, _ = node
    seed = int(os.environ.get("OVERLAP_FAULT_SEED", "1"))
    print(f"OVERLAP_FAULT_SEED={seed}")
    draw = random.Random(seed)
    pieces = [
        b"GET ", b"POST ", b"OPTIONS * ", b"/metrics", b"/api/v1/waveform?gpu=", b"?seconds=1e999", b"/../../etc/passwd",
        b"%00%ff..%2f", b" HTTP/1.1\r\n", b" HTTP/9.9\r\n", b"Host: x\r\n", b"Content-Length: ", b"99999999999\r\n", b"-1\r\n",
        b"Transfer-Encoding: chunked\r\n", b"ffffffff\r\n", b"\r\n\r\n", b"\x00\xff\xfe", b"A" * 5000,
        b"Accept: application/openmetrics-text;q=nope\r\n", b"Expect: 100-continue\r\n", b"Authorization: Basic !!!!\r\n",
    ]

    def piece() -> bytes:
        return draw.choice(pieces) if draw.random() < 0.9 else draw.randbytes(20)

    for _ in range(300):
        noise = b"".join(piece() for _ in range(draw.randrange(1, 14)))
        with socket.create_connection(address(ran), timeout=5) as client:
            client.settimeout(0.02)
            try:
                client.sendall(noise)
                answer = client.recv(65536)
            except (TimeoutError, OSError):
                continue
            assert b"root:" not in answer, (seed, noise)
            assert not answer.startswith(b"HTTP/1.1 500"), (seed, noise)
    assert ran.get("/metrics")[0] == 200
    assert "Traceback" not in ran.log()


def test_a_suspended_machine_blames_no_device_and_catches_nothing_up(node: tuple[Daemon, Running]) -> None:
    ran, _ = node
    family = [psutil.Process(ran.process.pid), *children(ran.process.pid)]
    restarts = ran.value("overlap_source_restarts_total", source="nvml")
    for process in reversed(family):
        process.suspend()
    time.sleep(5.0)
    before_reads = None
    for process in family:
        process.resume()
    began = time.monotonic()
    time.sleep(1.5)
    before_reads = ran.value("overlap_source_reads_total", source="nvml") or 0.0
    time.sleep(2.0)
    reads = (ran.value("overlap_source_reads_total", source="nvml") or 0.0) - before_reads
    assert reads <= 1.3 * 2 * 10 * (time.monotonic() - began)  # never in bursts
    eventually(lambda: ran.value("overlap_gpu_power_watts", gpu="0"), 5, "values are back")
    # Two GPUs at 10 Hz for five seconds, and the slow lanes.
    assert (ran.value("overlap_source_missed_ticks_total", source="nvml") or 0.0) > 60
    assert ran.value("overlap_source_restarts_total", source="nvml") == restarts
    assert not [key for key in ran.metrics() if key[0] == "overlap_device_quarantined"]


def test_an_exporter_that_gets_a_tenth_of_its_time_misses_ticks_and_blames_nobody(node: tuple[Daemon, Running]) -> None:
    """As under a CPU quota: all its processes run for 20 ms and stand still for 180."""
    ran, _ = node
    family = [psutil.Process(ran.process.pid), *children(ran.process.pid)]
    before = ran.metrics()

    def count(samples: Samples, name: str, source: str) -> float:
        return next(v for (n, labels), v in samples.items() if n == name and ("source", source) in labels)

    began = time.monotonic()
    while time.monotonic() - began < 15.0:
        for process in family:
            process.suspend()
        time.sleep(0.18)
        for process in family:
            process.resume()
        time.sleep(0.02)
    eventually(lambda: ran.value("overlap_gpu_power_watts", gpu="0"), 5, "values are back")
    after = ran.metrics()
    for source in ("nvml", "rdma"):
        missed = [count(samples, "overlap_source_missed_ticks_total", source) for samples in (before, after)]
        assert missed[1] > missed[0]
        restarts = [count(samples, "overlap_source_restarts_total", source) for samples in (before, after)]
        assert restarts[1] == restarts[0]
    assert not [key for key in after if key[0] == "overlap_device_quarantined"]
    assert {p.pid for p in children(ran.process.pid)} == {p.pid for p in family[1:]}
    assert "hangs" not in ran.log()


def test_devices_that_come_go_and_change_their_names_leave_nothing_behind(tmp_path: Path) -> None:
    machine = Machine("churn", antiphase(2).boards, Node(2, 2, 2))
    with machine.running(tmp_path / "machine") as at, daemon(tmp_path, at.arguments, at.environment) as ran:
        ran.ready()
        classes = at.tree.root / "sys/class"
        before = measure(ran)
        # A port is unplugged and plugged in again; an interface gets another name; virtual ones come and go.
        port, aside = classes / "infiniband/mlx5_1", tmp_path / "mlx5_1"
        real = at.tree.root / f"sys/{at.node.port(1).path}/infiniband/mlx5_1"
        port.rename(aside)
        real.rename(tmp_path / "unplugged")
        (classes / "net/eth1").rename(classes / "net/wan0")
        for k in range(40):
            at.tree.write(f"sys/devices/virtual/net/veth{k}/statistics/tx_bytes", "1")
            at.tree.link(f"sys/class/net/veth{k}", f"../../devices/virtual/net/veth{k}")
        eventually(lambda: ran.value("overlap_rdma_transmit_bytes_total", device="mlx5_1") is None, 4, "the port is gone")
        eventually(lambda: ran.value("overlap_nic_info", device="wan0"), 35, "the new name is seen")
        assert ran.value("overlap_nic_info", device="eth1") is None
        eventually(lambda: ran.value("overlap_source_up", source="nic") == 1.0, 3, "what is not there is not down")
        assert ran.value("overlap_rdma_transmit_bytes_total", device="mlx5_0") is not None
        (tmp_path / "unplugged").rename(real)
        aside.rename(port)
        eventually(lambda: ran.value("overlap_rdma_transmit_bytes_total", device="mlx5_1") is not None, 35, "the port is back")
        (classes / "net/wan0").rename(classes / "net/eth1")
        for k in range(40):
            (classes / f"net/veth{k}").unlink()
        eventually(lambda: ran.value("overlap_nic_transmit_bytes_total", device="eth1") is not None, 35, "the old name is back")
        after = measure(ran)
        assert after["series"] == before["series"]
        assert after["threads"] == before["threads"]
        assert after["descriptors"] <= before["descriptors"] + 2
        assert "Traceback" not in ran.log()


def measure(ran: Daemon) -> dict[str, int]:
    family = [psutil.Process(ran.process.pid), *children(ran.process.pid)]
    return {
        # Those of devices and sources; what is judged and measured of them comes with time.
        "series": sum(name.startswith(("overlap_rdma_", "overlap_nic_", "overlap_source_")) for name, _ in ran.metrics()),
        "threads": sum(p.num_threads() for p in family),
        "descriptors": sum(p.num_fds() for p in family),
    }


def test_boards_that_change_places_keep_their_own_numbers(node: tuple[Daemon, Running]) -> None:
    ran, machine = node
    nvml = machine.nvml
    assert nvml is not None
    first, second = (labels(ran, gpu) for gpu in ("0", "1"))
    assert first != second
    # After a reload of the driver the boards are counted the other way round.
    nvml.set(error=1, init_error=9)
    eventually(lambda: ran.value("overlap_source_up", source="nvml") == 0.0, 4, "the library is away")
    lines = [nvml.boards[k].lines(k)[1].split()[-1] for k in range(2)]
    nvml.boards.reverse()
    for k, uuid in enumerate(reversed(lines)):
        nvml.edit(k, uuid=uuid)
    nvml.set(error=0, init_error=0)
    eventually(lambda: ran.value("overlap_gpu_power_watts", gpu="0"), 10, "they are read again")
    shown = {(dict(ls)["gpu"], dict(ls)["uuid"]) for (n, ls) in ran.metrics() if n == "overlap_gpu_power_watts"}
    assert {uuid for _, uuid in shown} == {first, second}
    assert len(shown) == 2
    assert "Traceback" not in ran.log()


def labels(ran: Daemon, gpu: str) -> str:
    return next(dict(ls)["uuid"] for (n, ls) in ran.metrics() if n == "overlap_gpu_info" and ("gpu", gpu) in ls)


# --- files ----------------------------------------------------------------------------------------------------------

_NOTE_WRITES = """
import os, sys
_fd = os.open(os.environ["OVERLAP_TEST_WRITES"], os.O_WRONLY | os.O_APPEND)
def _hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and not isinstance(path, int) and not str(path).startswith("/dev/"):
            os.write(_fd, f"open {path!r} {flags:o}\\n".encode())
    elif event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link"):
        os.write(_fd, f"{event} {arguments!r}\\n".encode())
sys.addaudithook(_hook)
"""


def test_nothing_is_ever_written_so_that_a_read_only_root_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(_NOTE_WRITES)
    writes = tmp_path / "writes"
    writes.touch()
    environment = {"PYTHONPATH": str(tmp_path / "site"), "OVERLAP_TEST_WRITES": str(writes), "PYTHONDONTWRITEBYTECODE": "1"}
    with antiphase(1).running(tmp_path / "machine") as machine, daemon(
        tmp_path, machine.arguments, {**machine.environment, **environment}
    ) as ran:  # fmt: skip
        ran.ready()
        assert ran.get("/")[0] == 200
        ran.process.send_signal(signal.SIGHUP)
        ran.readers()["net"].kill()
        eventually(lambda: ran.value("overlap_source_restarts_total", source="rdma") == 1.0, 5, "a new reader")
        assert ran.stop() == 0
    assert writes.read_text() == ""
    # The hook does see writes.
    subprocess.run([sys.executable, "-c", f"open({str(tmp_path / 'x')!r}, 'w')"], env={**os.environ, **environment}, check=True)
    assert writes.read_text().startswith("open")


def test_a_full_disk_ends_a_recording_with_one_line_and_keeps_what_was_written(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.gz"
    fast = tmp_path / "fast.yml"
    fast.write_text("sampling: {gpu_hertz: 50, network_hertz: 100}\n")
    with antiphase(4).running(tmp_path / "machine") as machine:
        # Less than this no file of the process may be, its pages of shared memory included.
        done = subprocess.run(
            [*EXPORTER, "record", str(out), "--seconds", "60", "--config.file", str(fast), *machine.arguments],
            env={**os.environ, **machine.environment}, capture_output=True, text=True, timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)),
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert str(out) in done.stderr.strip().splitlines()[-1]
    assert sum(isinstance(event, Record) for event in read_trace(str(out))) > 100
    assert not [p for p in psutil.Process().children(recursive=True) if "exporter.reader" in " ".join(p.cmdline())]


def test_many_questions_at_once_from_several_threads_are_all_answered(node: tuple[Daemon, Running]) -> None:
    ran, _ = node
    answers: list[int] = []

    def ask() -> None:
        paths = ("/metrics", "/api/v1/snapshot", "/api/v1/waveform?gpu=0", "/-/ready", "/") * 4
        answers.extend(ran.get(path, 10.0)[0] for path in paths)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 12 * 20
