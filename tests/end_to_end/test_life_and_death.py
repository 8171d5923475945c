"""The real daemon on fake machines: which processes it has, how each of them dies, and that none is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.end_to_end.metronome import Metronome
from tests.end_to_end.processes import EXPORTER, Daemon, daemon, eventually, parsed
from tests.machines import Machine, Running, antiphase, bare
from tests.tools import own_pid_namespace, require

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(120)]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
BACK_WITHIN_S = 3.0


def alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(running: Daemon) -> list[int]:
    """Everything that belongs to a daemon, itself first."""
    return [running.process.pid, *(c.pid for c in psutil.Process(running.process.pid).children(recursive=True))]


def named(folder: Path) -> list[list[str]]:
    """Command lines of the living processes that name a folder: all that was started for it."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(str(folder) in word for word in words):
            found.append(words)
    return found


def reader(running: Daemon, name: str) -> psutil.Process | None:
    """A reader that runs now; None while there is none."""
    try:
        return running.readers().get(name)
    except psutil.Error:  # one of them is just ending
        return None


def maps(pid: int) -> str:
    """Files that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()


def check_exposition(running: Daemon) -> None:
    """Both forms of /metrics: promtool has nothing to say of the one, the strict parser takes the other."""
    status, text = running.get("/metrics")
    assert status == 200
    checked = subprocess.run([require("promtool"), "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    status, openmetrics = running.get("/metrics", Accept=OPENMETRICS)
    assert status == 200
    assert openmetrics.endswith(b"# EOF\n")
    names = {f.name for f in parse_openmetrics(openmetrics.decode())}
    assert "overlap_build_info" in names
    assert len(names) > 15


@dataclass
class Scrape:
    """One of many: when it began, how long it took (without what this machine held up everybody), what it brought."""

    at_s: float
    took_s: float
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, name: str, **labels: str) -> float | None:
        wanted = frozenset(labels.items())
        return next((v for (n, have), v in self.samples.items() if n == name and wanted <= have), None)


@dataclass
class Watch:
    """Scrapes from a thread, one each 100 ms."""

    running: Daemon
    metronome: Metronome
    scrapes: list[Scrape] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def loop(self, ending: threading.Event) -> None:
        while not ending.wait(0.1):
            began_s = time.monotonic()
            try:
                status, body = self.running.get("/metrics")
                ended_s = time.monotonic()
                samples = parsed(status, body)
            except (OSError, AssertionError, ValueError) as error:
                self.failures.append(repr(error))
                continue
            self.scrapes.append(Scrape(began_s, ended_s - began_s - self.metronome.held_up_s(began_s, ended_s), samples))

    def first(self, what: Callable[[Scrape], Any], after_s: float, within_s: float, why: str) -> Scrape:
        """The first scrape after a time that has it; waits for it."""
        found = lambda: next((s for s in list(self.scrapes) if s.at_s > after_s and what(s)), None)  # noqa: E731
        scrape: Scrape = eventually(found, after_s + within_s - time.monotonic(), why)
        return scrape

    def check(self) -> None:
        assert self.failures == []
        assert max(s.took_s for s in self.scrapes) < 0.5


@contextmanager
def watching(running: Daemon) -> Iterator[Watch]:
    """Scrapes while the block lasts; none of them may fail or be slow."""
    with Metronome() as metronome:
        metronome.follow(running.process.pid)
        watch, ending = Watch(running, metronome), threading.Event()
        thread = threading.Thread(target=watch.loop, args=(ending,))
        thread.start()
        try:
            yield watch
        finally:
            ending.set()
            thread.join(10)
    watch.check()


@contextmanager
def serving(machine: Machine, folder: Path, *arguments: str) -> Iterator[Daemon]:
    """A daemon on a fake machine."""
    with machine.running(folder / "machine") as there, daemon(
        folder, [*there.arguments, *arguments], there.environment
    ) as running:
        yield running


@dataclass
class Node:
    """A daemon that many tests share, its machine, and its configuration file."""

    running: Daemon
    machine: Running
    config: Path


GOOD = "sampling: {gpu_hertz: 10, network_hertz: 50}\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Two GPUs, two ports and a NIC; whoever breaks something here mends it again."""
    folder = tmp_path_factory.mktemp("node")
    config = folder / "overlap.yml"
    config.write_text(GOOD)
    with antiphase(2).running(folder / "machine") as machine:
        arguments = [*machine.arguments, "--config.file", str(config)]
        with daemon(folder, arguments, machine.environment) as running:
            running.ready()
            yield Node(running, machine, config)


# ---- who is there ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [antiphase(1), bare()], ids=lambda m: m.name)
def test_serve_is_three_processes_also_where_it_finds_nothing(machine: Machine, tmp_path: Path) -> None:
    with serving(machine, tmp_path) as running:
        running.ready()
        assert sorted(running.readers()) == ["gpu", "net"]
        assert len(family(running)) == 3


def test_a_reader_loads_neither_numpy_nor_the_web_stack(node: Node) -> None:
    assert "numpy" in maps(node.running.process.pid)
    assert "tornado" in maps(node.running.process.pid)
    for name, process in node.running.readers().items():
        loaded = maps(process.pid)
        assert "numpy" not in loaded, name
        assert "tornado" not in loaded, name
        assert ("libnvidia-ml" in loaded) == (name == "gpu")


def test_the_daemon_itself_has_no_device_library_loaded(node: Node) -> None:
    assert "libnvidia-ml" not in maps(node.running.process.pid)


def test_it_is_healthy_at_once_and_ready_once_everything_has_been_read(tmp_path: Path) -> None:
    with serving(antiphase(1), tmp_path) as running:
        assert running.get("/-/healthy")[0] == 200
        status, why = running.get("/-/ready")
        assert status == 503, why
        assert b"not ready: " in why
        running.ready()
        assert running.value("overlap_source_reads_total", source="nvml")
        assert running.value("overlap_source_reads_total", source="rdma")
        assert running.value("overlap_analysis_duration_seconds_count")


def test_a_node_with_nothing_is_served_and_says_what_is_missing(tmp_path: Path) -> None:
    with serving(bare(), tmp_path) as running:
        running.ready()
        samples = running.metrics()
        up = {dict(labels)["source"]: v for (name, labels), v in samples.items() if name == "overlap_source_up"}
        assert up == {"nvml": 0.0, "rdma": 0.0, "nic": 1.0, "host": 1.0}
        assert not [name for name, _ in samples if name.startswith(("overlap_gpu_", "overlap_health", "overlap_rdma_"))]
        assert "nvml is not available: library_not_found" in running.log()
        assert "rdma is not available: no_rdma_devices" in running.log()
        check_exposition(running)


def test_both_forms_of_a_scrape_are_valid(node: Node) -> None:
    check_exposition(node.running)


# ---- readers that die or hang --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source", "other", "reads_per_s"), [("gpu", "nvml", "rdma", 100), ("net", "rdma", "nvml", 20)]
)
def test_a_killed_reader_is_back_and_nobody_else_notices(
    node: Node, name: str, source: str, other: str, reads_per_s: float
) -> None:
    process = reader(node.running, name)
    assert process is not None
    with watching(node.running) as watch:
        time.sleep(1.2)
        before = watch.scrapes[-1]
        killed_s = time.monotonic()
        process.kill()
        restarts = before.value("overlap_source_restarts_total", source=source) or 0.0
        newest = before.value("overlap_source_last_success_timestamp_seconds", source=source)
        assert newest is not None

        def fresh(scrape: Scrape) -> bool:
            at_s = scrape.value("overlap_source_last_success_timestamp_seconds", source=source) or 0.0
            again = scrape.value("overlap_source_restarts_total", source=source) == restarts + 1
            return again and at_s > newest + 0.5

        watch.first(fresh, killed_s, BACK_WITHIN_S, f"{source} has fresh samples after its reader was killed")
        assert reader(node.running, name) is not None
        time.sleep(2.2)
    around = [s for s in watch.scrapes if s.at_s > killed_s - 1.0]
    reads = [(s.at_s, s.value("overlap_source_reads_total", source=other) or 0.0) for s in around]
    steps = [(t, n) for (t, n), (_, before_n) in zip(reads[1:], reads[:-1], strict=True) if n != before_n]
    assert len(steps) >= 3
    rate = (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])
    assert rate > 0.8 * reads_per_s, f"{other} was read {rate:.0f} times a second meanwhile"
    # Of the other source no scrape ever showed anything older than the last snapshot.
    ages = [time.time() - (time.monotonic() - s.at_s) - (s.value(
        "overlap_source_last_success_timestamp_seconds", source=other) or 0.0) for s in around]  # fmt: skip
    assert max(ages) < 2.0
    restarts_of_other = {s.value("overlap_source_restarts_total", source=other) for s in around}
    assert len(restarts_of_other) == 1


def test_a_call_that_hangs_costs_its_gpu_alone(node: Node) -> None:
    nvml = node.machine.nvml
    assert nvml is not None
    with watching(node.running) as watch:
        hung_s = time.monotonic()
        nvml.edit(0, hang=60.0)
        gone = watch.first(lambda s: s.value("overlap_gpu_up", gpu="0") == 0.0, hung_s, 4.0, "the GPU that hangs is down")
        assert gone.value("overlap_gpu_power_watts", gpu="0") is None
        assert gone.value("overlap_gpu_utilization_ratio", gpu="0") is None
        assert gone.value("overlap_gpu_info", gpu="0") == 1.0
        assert gone.value("overlap_device_quarantined", kind="gpu", reason="hang") == 1.0
        read = gone.value("overlap_source_reads_total", source="nvml") or 0.0
        other = watch.first(
            lambda s: (s.value("overlap_source_reads_total", source="nvml") or 0.0) >= read + 5
            and s.value("overlap_gpu_power_watts", gpu="1") is not None,
            gone.at_s, BACK_WITHIN_S, "the other GPU is read again",
        )  # fmt: skip
        assert other.value("overlap_gpu_up", gpu="1") == 1.0
        assert other.value("overlap_gpu_up", gpu="0") == 0.0
        check_exposition(node.running)
        back_s = time.monotonic()
        nvml.edit(0, hang=0.0)
        watch.first(
            lambda s: s.value("overlap_gpu_up", gpu="0") == 1.0 and s.value("overlap_device_quarantined", kind="gpu") is None,
            back_s, 8.0, "the GPU that answers again is up",
        )  # fmt: skip
    eventually(lambda: len(family(node.running)) == 3, 5.0, "the reader that was left behind has ended")


# ---- settings ------------------------------------------------------------------------------------------------------------


def test_sighup_takes_a_good_file_and_leaves_a_bad_one(node: Node) -> None:
    def hang_up(text: str) -> None:
        node.config.write_text(text)
        node.running.process.send_signal(signal.SIGHUP)

    def successful() -> float | None:
        return node.running.value("overlap_config_last_reload_successful")

    def interval() -> float | None:
        return node.running.value("overlap_source_interval_seconds", source="rdma")

    assert successful() == 1.0
    assert interval() == pytest.approx(0.02)
    try:
        hang_up("sampling: {gpu_hertz: 10, network_hertz: 1000}\n")
        eventually(lambda: successful() == 0.0, 3.0, "a bad file is told")
        assert "network_hertz" in node.running.log()
        assert "expected a number from 1 to 100" in node.running.log()
        assert interval() == pytest.approx(0.02)
        hang_up(GOOD)
        eventually(lambda: successful() == 1.0, 3.0, "a good file is taken")
        node.config.unlink()
        node.running.process.send_signal(signal.SIGHUP)
        eventually(lambda: successful() == 0.0, 3.0, "a file that cannot be read is told")
        assert f"{node.config}: cannot be read: No such file or directory" in node.running.log()
        hang_up("sampling: {gpu_hertz: 10, network_hertz: 25}\n")
        eventually(lambda: successful() == 1.0, 3.0, "a good file is taken")
        assert f"{node.config} was reloaded" in node.running.log()
        eventually(lambda: interval() == pytest.approx(0.04), 5.0, "ports are read at the new rate")
    finally:
        hang_up(GOOD)
    eventually(lambda: interval() == pytest.approx(0.02), 5.0, "ports are read at the old rate")
    assert node.running.process.poll() is None


# ---- the end ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_ends_everything_within_5_s(number: signal.Signals, tmp_path: Path) -> None:
    with serving(antiphase(1), tmp_path) as running:
        running.ready()
        pids = family(running)
        asked_s = time.monotonic()
        assert running.stop(number) == 0
        assert time.monotonic() - asked_s < 5.0
        assert [pid for pid in pids if alive(pid)] == []


def test_a_daemon_that_is_killed_takes_its_readers_along(tmp_path: Path) -> None:
    with serving(antiphase(1), tmp_path) as running:
        running.ready()
        pids = family(running)
        assert len(pids) == 3
        running.process.kill()
        running.process.wait(5)
        eventually(lambda: not [pid for pid in pids if alive(pid)], 2.0, "every process has ended")


def test_as_process_1_it_obeys_sigterm(tmp_path: Path) -> None:
    words = own_pid_namespace()
    with bare().running(tmp_path / "machine") as there, (tmp_path / "log").open("wb") as out:
        outer = subprocess.Popen(
            [*words, *EXPORTER, "serve", "--web.listen-address", "127.0.0.1:0", *there.arguments], stdout=out, stderr=out
        )
        running = Daemon(outer, tmp_path / "log")
        try:
            running.wait_for_address()
            running.ready()
            (inner,) = psutil.Process(outer.pid).children()
            assert [line.split()[-1] for line in Path(f"/proc/{inner.pid}/status").read_text().splitlines()
                    if line.startswith("NSpid:")] == ["1"]
            pids = [inner.pid, *(c.pid for c in inner.children(recursive=True))]
            assert len(pids) == 3
            os.kill(inner.pid, signal.SIGTERM)
            assert outer.wait(5) == 0
            assert [pid for pid in pids if alive(pid)] == []
        finally:
            if outer.poll() is None:
                for child in psutil.Process(outer.pid).children(recursive=True):
                    child.kill()
                outer.kill()
                outer.wait(5)


# ---- what cannot start -----------------------------------------------------------------------------------------------------


def refused(folder: Path, arguments: list[str], environment: Mapping[str, str]) -> str:
    """The one line of a daemon that does not start; none of its processes is left."""
    ended = subprocess.run(
        [*EXPORTER, "serve", "--log.level", "error", *arguments],
        capture_output=True, text=True, timeout=30, env={**os.environ, **environment},
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    writer = [words for words in named(folder) if "tests.sysfs_tree" not in words]
    assert writer == []
    return lines[0]


def test_a_required_source_that_is_missing_is_an_error_at_start(tmp_path: Path) -> None:
    with bare().running(tmp_path / "machine") as there:
        arguments = [*there.arguments, "--web.listen-address", "127.0.0.1:0"]
        line = refused(tmp_path, [*arguments, "--require", "gpu,rdma"], there.environment)
        assert line == "overlap-exporter: --require gpu: no gpu was found (library_not_found)"
        line = refused(tmp_path, [*arguments, "--require", "rdma"], there.environment)
        assert line == "overlap-exporter: --require rdma: no rdma port was found (no_rdma_devices)"


def test_required_sources_that_are_there_change_nothing(tmp_path: Path) -> None:
    with serving(antiphase(1), tmp_path, "--require", "gpu,rdma") as running:
        running.ready()
        assert running.stop() == 0


def test_a_port_that_is_in_use_is_one_line(tmp_path: Path) -> None:
    with bare().running(tmp_path / "machine") as there, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(tmp_path, [*there.arguments, "--web.listen-address", f"127.0.0.1:{port}"], there.environment)
        assert line.startswith(f"overlap-exporter: port {port} is taken: ")
