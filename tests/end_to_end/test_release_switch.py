"""The release switch on the real daemon: every device file is closed, seen from outside, and everything comes back."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from exporter.model import Inventory, Record
from exporter.offline import analyze
from exporter.trace import read_trace
from tests.end_to_end.metronome import Metronome
from tests.end_to_end.processes import EXPORTER, Daemon, children, daemon, eventually
from tests.machines import Machine, Running, antiphase
from tests.nvml_library import Board
from tests.sysfs_tree import Node

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(120)]
RELEASED_WITHIN_S = 2.0


def device_files(folder: Path) -> Path:
    """Files that stand for /dev/nvidiactl and /dev/nvidia0 to 3: the fake library holds them as the real one does."""
    folder.mkdir()
    for name in ("nvidiactl", *(f"nvidia{k}" for k in range(4))):
        (folder / name).touch()
    return folder


def held(running: Daemon) -> set[str]:
    """The device files that any process of the daemon has open."""
    return held_by(running.process.pid)


def held_by(pid: int) -> set[str]:
    """The device files that a process or one of its children has open."""
    found = set()
    for process in [psutil.Process(pid), *children(pid)]:
        try:
            found |= {Path(f.path).name for f in process.open_files() if "/dev-nvidia/" in f.path}
        except psutil.Error:
            continue  # it has just ended
    return found


def post(running: Daemon, path: str, host: str | None = None, **headers: str) -> tuple[int, str]:
    where = urllib.parse.urlsplit(running.url)
    with closing(http.client.HTTPConnection(host or str(where.hostname), where.port, timeout=10)) as connection:
        connection.request("POST", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Daemon, Running]]:
    """A daemon that reads two GPUs and two ports, and holds the device files."""
    with antiphase(2).running(tmp_path / "machine") as machine:
        assert machine.nvml is not None
        machine.nvml.set(devices=device_files(tmp_path / "dev-nvidia"))
        with daemon(tmp_path, machine.arguments, machine.environment) as running:
            running.ready()
            yield running, machine


def nvml_up(running: Daemon) -> float | None:
    return running.value("overlap_source_up", source="nvml")


def test_a_post_closes_every_device_file_and_another_opens_them_again(node: tuple[Daemon, Running]) -> None:
    running, machine = node
    assert machine.nvml is not None
    assert held(running) == {"nvidiactl", "nvidia0", "nvidia1"}
    rdma_reads = running.value("overlap_source_reads_total", source="rdma")
    began = time.monotonic()
    status, line = post(running, "/-/release?seconds=300")
    assert (status, held(running)) == (200, set()), line
    assert time.monotonic() - began < RELEASED_WITHIN_S
    assert "300 s" in line
    assert machine.nvml.events()[-1] == "shutdown"
    eventually(lambda: nvml_up(running) == 0.0, 3, "the source says that it is down")
    eventually(lambda: running.value("overlap_gpu_power_watts", gpu="0") is None, 4, "values disappear")
    assert running.value("overlap_gpu_up", gpu="0") == 0.0
    assert running.get("/-/healthy")[0] == 200
    assert (running.value("overlap_source_reads_total", source="rdma") or 0.0) > (rdma_reads or 0.0)
    # While it is released another board may take its place, as after a change of MIG or a reload of the driver.
    machine.nvml.edit(0, uuid="GPU-another")
    assert post(running, "/-/resume")[0] == 200
    eventually(lambda: running.value("overlap_gpu_power_watts", uuid="GPU-another"), 5, "the new board is read")
    assert held(running) == {"nvidiactl", "nvidia0", "nvidia1"}
    assert nvml_up(running) == 1.0
    assert not [line for line in machine.nvml.events() if line.startswith("stale")]


def test_a_signal_releases_and_the_next_one_takes_up_again(node: tuple[Daemon, Running]) -> None:
    running, _ = node
    began = time.monotonic()
    running.process.send_signal(signal.SIGUSR1)
    eventually(lambda: not held(running), 5, "all is closed")
    assert time.monotonic() - began < RELEASED_WITHIN_S
    eventually(lambda: nvml_up(running) == 0.0, 3, "the source says that it is down")
    running.process.send_signal(signal.SIGUSR1)
    eventually(lambda: held(running) == {"nvidiactl", "nvidia0", "nvidia1"}, 5, "all is open again")
    eventually(lambda: running.value("overlap_gpu_power_watts", gpu="1"), 5, "values are back")
    assert running.process.poll() is None


def test_the_time_that_was_asked_for_takes_up_again_by_itself(node: tuple[Daemon, Running]) -> None:
    running, _ = node
    assert post(running, "/-/release?seconds=3")[0] == 200
    began = time.monotonic()
    assert held(running) == set()
    assert post(running, "/-/release?seconds=2")[0] == 200  # asked again, the time begins anew
    eventually(lambda: held(running) == {"nvidiactl", "nvidia0", "nvidia1"}, 8, "all is open again")
    assert time.monotonic() - began > 1.9
    eventually(lambda: nvml_up(running) == 1.0, 3, "the source is up")


def test_a_reader_stuck_in_the_driver_is_named_by_the_answer(node: tuple[Daemon, Running]) -> None:
    running, machine = node
    assert machine.nvml is not None
    pid = running.readers()["gpu"].pid
    machine.nvml.edit(1, hang=60.0)
    eventually(lambda: [line for line in machine.nvml.events() if line.startswith("hang 1")], 3, "the call hangs")
    status, line = post(running, "/-/release")
    assert status == 503
    assert str(pid) in line
    assert held(running) == {"nvidiactl", "nvidia0", "nvidia1"}  # nobody can take them from a call inside the driver
    machine.nvml.edit(1, hang=0.0)
    eventually(lambda: not held(running), 5, "the call came back, and the process ended")
    assert post(running, "/-/release")[0] == 200
    assert post(running, "/-/resume")[0] == 200
    eventually(lambda: running.value("overlap_gpu_power_watts", gpu="0"), 5, "values are back")


def test_only_the_node_itself_may_ask(tmp_path: Path) -> None:
    own = own_address()
    machine = Machine("one", (Board(),), Node(1, 1, 1))
    with machine.running(tmp_path / "machine") as at, daemon(
        tmp_path, [*at.arguments, "--web.listen-address", ":0"], at.environment
    ) as running:  # fmt: skip
        running.url = f"http://127.0.0.1:{urllib.parse.urlsplit(running.url).port}"
        running.ready()
        pid = running.readers()["gpu"].pid
        refused = [
            post(running, "/-/release", Origin="http://evil.example"),
            post(running, "/-/release", X_Forwarded_For="10.0.0.1"),
            *([post(running, "/-/release", host=own), post(running, "/-/resume", host=own)] if own else []),
        ]
        assert [status for status, _ in refused] == [403] * len(refused), refused
        assert all(line.count("\n") == 1 for _, line in refused)
        for seconds in ("0", "-1", "nan", "1e9", "soon"):
            status, line = post(running, f"/-/release?seconds={seconds}")
            assert (status, "expected a number from 1 to 86400" in line) == (400, True)
        assert running.get("/-/release")[0] == 405
        time.sleep(0.5)
        assert running.readers()["gpu"].pid == pid
        assert post(running, "/-/release")[0] == 200
        assert "gpu" not in running.readers()


def own_address() -> str | None:
    """An address of this machine that is not loopback; None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


def test_a_recording_lets_go_too_and_its_gap_is_a_state_of_the_trace(tmp_path: Path) -> None:
    out, all_files = tmp_path / "out.jsonl.gz", {"nvidiactl", "nvidia0", "nvidia1"}
    with antiphase(2).running(tmp_path / "machine") as machine, Metronome() as metronome:
        assert machine.nvml is not None
        machine.nvml.set(devices=device_files(tmp_path / "dev-nvidia"))
        recording = subprocess.Popen(
            [*EXPORTER, "record", str(out), *machine.arguments], env={**os.environ, **machine.environment},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            eventually(lambda: held_by(recording.pid) == all_files and out.exists(), 15, "it records")
            time.sleep(6.0)
            metronome.follow(recording.pid)
            began = time.monotonic()
            recording.send_signal(signal.SIGUSR1)
            eventually(lambda: not held_by(recording.pid), 10, "all is closed")
            took_s = time.monotonic() - began
            assert took_s - metronome.held_up_s(began, time.monotonic()) < RELEASED_WITHIN_S
            time.sleep(8.0)
            assert held_by(recording.pid) == set()
            recording.send_signal(signal.SIGUSR1)
            eventually(lambda: held_by(recording.pid) == all_files, 10, "all is open again")
            time.sleep(6.0)
            recording.send_signal(signal.SIGINT)
            _, said = recording.communicate(timeout=10)
        finally:
            recording.kill()
    assert recording.returncode == 0, said
    assert "the GPU devices are released for 600 s" in said
    reader = read_trace(out)
    records = [event for event in reader if isinstance(event, Record)]
    assert reader.cut is None
    power, port = ([r.t_s for r in records if r.source == source] for source in ("nvml/GPU-1", "rdma/mlx5_0"))
    gap_s, gap_end_s = max((b - a, b) for a, b in pairwise(power))
    assert gap_s > 7.5
    assert len(power) > 50
    assert max(b - a for a, b in pairwise(port)) < gap_s / 2  # ports are read on
    assert all([d.id for d in i.of_kind("gpu")] == ["GPU-0", "GPU-1"] for i in reader if isinstance(i, Inventory))
    instants = (gap_end_s - gap_s - 0.1, gap_end_s - 0.5, power[-1])
    results, _, _ = analyze(str(out), (5.0,), instants, None)
    states = [result.state for result in results if result.gpu_id == "GPU-1"]
    assert [state == "no_data" for state in states] == [False, True, False], states


def test_a_simulation_has_nothing_to_release(tmp_path: Path) -> None:
    with daemon(tmp_path, [], command="demo") as running:
        running.process.send_signal(signal.SIGUSR1)
        for path in ("/-/release", "/-/resume"):
            status, line = post(running, path)
            assert (status, line.count("\n")) == (409, 1)
        assert running.process.poll() is None
