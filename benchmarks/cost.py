"""What the running daemon costs: CPU, memory, and how long a scrape takes, on a fake node as large as they come.

`python -m benchmarks` runs it. The daemon is the real one, with its two readers; only the devices are fake (a compiled NVML
library, files in place of sysfs). A peer is scraped beside it at the same rate, so that a slow machine shows in both.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.end_to_end.processes import Daemon, daemon, eventually
from tests.machines import Machine
from tests.nvml_library import Board, Wave
from tests.sysfs_tree import Node

PEER = "prometheus-node-exporter"
# What Prometheus 2.42 and later send.
_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
              "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": "0.9",
}  # fmt: skip
_WARM_UP_S = 15.0  # imports, opening devices, the first scrapes


NETWORK_HERTZ = 50.0  # the rate at which the project promises its cost; the plans of drivers cost less
_TICKS_S, _ANEW_S = 0.02, 0.004  # of the fake counters: as often as they are read, and often enough to look new at each read


def large_node(refresh_s: float = _TICKS_S) -> Machine:
    """8 GPUs, 8 RDMA ports and 9 NICs."""
    boards = tuple(Board(wave=Wave(650.0, 240.0, 0.6, 0.4, 0.013 * k), noise=3.0) for k in range(8))
    return Machine("large", boards, Node(8, 8, 9, netdevs=False), refresh_s=refresh_s)


@dataclass
class Target:
    """A process, or several, that answers at one address; what was seen of it."""

    name: str
    host: str
    port: int
    processes: Callable[[], Mapping[str, psutil.Process]]
    scrapes_ms: list[float] = field(default_factory=list)
    body_bytes: int = 0
    cpu_before_s: Mapping[str, float] = field(default_factory=dict)
    cpu_after_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    _connection: http.client.HTTPConnection | None = None

    def scrape(self) -> None:
        """One scrape over the connection that is kept, as Prometheus does it."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began_s = time.perf_counter()
        self._connection.request("GET", "/metrics", headers=_HEADERS)
        answer = self._connection.getresponse()
        body = answer.read()
        self.scrapes_ms.append(1e3 * (time.perf_counter() - began_s))
        if answer.status != 200:
            raise RuntimeError(f"{self.name}: {answer.status} {body[:200]!r}")
        self.body_bytes = len(body)

    def cpu_s(self) -> dict[str, float]:
        """User and system time of each process."""
        return {role: sum(process.cpu_times()[:2]) for role, process in self.processes().items()}

    def proportional_bytes(self) -> dict[str, float]:
        """Pss of each process: pages shared by several are divided among them."""
        return {role: float(process.memory_full_info().pss) for role, process in self.processes().items()}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def watch(targets: Sequence[Target], seconds: float) -> float:
    """Scrape every target once a second, half a second apart; the time that passed between the two looks at their CPU."""
    deadline_s = time.monotonic()

    def rounds(count: float) -> None:
        nonlocal deadline_s
        for _ in range(round(count)):
            for k, target in enumerate(targets):
                time.sleep(max(0.0, deadline_s + k / len(targets) - time.monotonic()))
                target.scrape()
            deadline_s += 1.0

    rounds(_WARM_UP_S)
    for target in targets:
        target.scrapes_ms.clear()
        target.cpu_before_s = target.cpu_s()
    began_s = time.monotonic()
    rounds(seconds)
    for target in targets:
        target.cpu_after_s = target.cpu_s()
        target.memory_bytes = target.proportional_bytes()
    return time.monotonic() - began_s


@contextmanager
def peer() -> Iterator[Target | None]:
    """Debian's node exporter on loopback, with its own defaults; None where it is not installed."""
    command = shutil.which(PEER)
    if command is None:
        print(f"{PEER} is not installed: no peer beside it", file=sys.stderr)
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [command, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens, 10, f"{PEER} listens")
        yield Target(PEER, "127.0.0.1", port, lambda: {PEER: psutil.Process(process.pid)})
    finally:
        process.terminate()
        process.wait(10)


def own_processes(running: Daemon) -> Mapping[str, psutil.Process]:
    """The exporter and its readers, by the names that they have in its own metrics."""
    readers = {f"reader_{name}": process for name, process in running.readers().items()}
    return {"exporter": psutil.Process(running.process.pid), **readers}


def _memory() -> str | None:
    """A folder in memory, as sysfs is: on a disk every read of a counter that moves would write its access time."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


@dataclass(frozen=True)
class Cost:
    """What came out, in the units of the table."""

    seconds: float
    targets: tuple[Target, ...]
    own_cpu_s: Mapping[str, float]  # by the exporter's own account, over the same time
    analysis_ms: float
    analysis_over_20_ms: float
    reads_per_s: Mapping[str, float]
    missed_ticks: Mapping[str, float]
    series: int


def measure(seconds: float, network_hertz: float | None = NETWORK_HERTZ) -> Cost:
    """Run daemon and peer side by side and watch both. network_hertz None: byte counters by the plan of each driver."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="overlap-bench-", dir=_memory())))
        running = stack.enter_context(large_node(_TICKS_S if network_hertz else _ANEW_S).running(folder / "node"))
        settings = folder / "overlap.yml"
        settings.write_text(json.dumps({"sampling": {"network_hertz": network_hertz}}), encoding="utf-8")
        arguments = [*running.arguments, "--config.file", str(settings)]
        own = stack.enter_context(daemon(folder / "daemon", arguments, running.environment))
        own.ready(30.0)
        host, _, port = own.url.removeprefix("http://").rpartition(":")
        targets = [Target("overlap-exporter", host, int(port), lambda: own_processes(own))]
        if (other := stack.enter_context(peer())) is not None:
            targets.append(other)
        before = _Account(own)
        passed_s = watch(targets, seconds)
        after = _Account(own)
        for target in targets:
            target.close()
        runs = after.analyses - before.analyses
        return Cost(
            seconds=passed_s,
            targets=tuple(targets),
            own_cpu_s={k: (v - before.cpu_s[k]) / (after.at_s - before.at_s) for k, v in after.cpu_s.items()},
            analysis_ms=1e3 * (after.analysis_s - before.analysis_s) / runs,
            analysis_over_20_ms=(after.analyses_slow - before.analyses_slow) / runs,
            reads_per_s={k: (v - before.reads[k]) / (after.at_s - before.at_s) for k, v in after.reads.items()},
            missed_ticks={k: v - before.missed[k] for k, v in after.missed.items()},
            series=after.series,
        )


class _Account:
    """The exporter's own account of itself, from one scrape."""

    def __init__(self, own: Daemon) -> None:
        samples = own.metrics()
        self.at_s = time.monotonic()
        self.series = sum(name.startswith("overlap_") for name, _ in samples)
        self.cpu_s = _by(samples, "overlap_process_cpu_seconds_total", "process")
        self.reads = _by(samples, "overlap_source_reads_total", "source")
        self.missed = _by(samples, "overlap_source_missed_ticks_total", "source")
        self.analyses = samples["overlap_analysis_duration_seconds_count", frozenset()]
        self.analysis_s = samples["overlap_analysis_duration_seconds_sum", frozenset()]
        fast = samples["overlap_analysis_duration_seconds_bucket", frozenset({("le", "0.02")})]
        self.analyses_slow = self.analyses - fast


def _by(samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, label: str) -> dict[str, float]:
    return {dict(labels)[label]: value for (n, labels), value in samples.items() if n == name}
