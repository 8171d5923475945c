"""What people who look on cost: fifty pages on one daemon, each with a GPU of its own choice at ten events a second.

`python -m benchmarks --viewers` runs it. The daemon is the real one on its large fake node; the viewers are open event
streams, read by a process of their own. Printed is the CPU of the exporter with and without them, and how far behind the
readings of the last event were.
"""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.cost import _memory, large_node
from tests.end_to_end.processes import daemon

VIEWERS = 50
GPUS = 8
_SETTLE_S = 8.0


@dataclass(frozen=True)
class Cost:
    """Shares of a core, per cent; rates per second; bytes per viewer and second."""

    viewers: int
    seconds: float
    alone: float
    watched: float
    dead: float
    live_per_s: float
    bytes_per_s: float
    late_ms: float


def measure(seconds: float, viewers: int = VIEWERS) -> Cost:
    """Watch the CPU of the exporter for so long without viewers, with them, and with as many that never read."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="overlap-viewers-", dir=_memory())))
        running = stack.enter_context(large_node().running(folder / "node"))
        own = stack.enter_context(daemon(folder / "daemon", running.arguments, running.environment))
        own.ready(30.0)
        time.sleep(_SETTLE_S)
        alone = cpu_share(own.process.pid, seconds)
        host, _, port = own.url.removeprefix("http://").rpartition(":")
        command = [sys.executable, "-m", "benchmarks.viewers", host, port, str(viewers), str(seconds + _SETTLE_S)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            time.sleep(_SETTLE_S / 2)
            watched = cpu_share(own.process.pid, seconds)
            told = json.loads(reader.communicate()[0])
        lines = [opened(host, int(port), k % GPUS, receives_bytes=4096) for k in range(viewers)]
        time.sleep(_SETTLE_S * 2)  # until their buffers are full and they are let go
        dead = cpu_share(own.process.pid, seconds)
        for line in lines:
            line.close()
        return Cost(viewers, seconds, alone, watched, dead, told["live_per_s"], told["bytes_per_s"], told["late_ms"])


def cpu_share(pid: int, seconds: float) -> float:
    """Per cent of a core that a process takes."""
    process = psutil.Process(pid)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return 100 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


def opened(host: str, port: int, gpu: int, receives_bytes: int | None = None) -> socket.socket:
    """An open event stream that looks at a GPU; with a small receive buffer it is full at once where nobody reads."""
    line = socket.socket()
    if receives_bytes is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
    line.connect((host, port))
    line.sendall(f"GET /api/v1/stream?gpu={gpu} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return line


def read(host: str, port: int, viewers: int, seconds: float) -> dict[str, float]:
    """Read so many streams for so long; per viewer what came, and how long events were apart at the worst twentieth."""
    selector = selectors.DefaultSelector()
    live, size = [0] * viewers, 0
    last = [0.0] * viewers
    gaps: list[float] = []
    for k in range(viewers):
        line = opened(host, port, k % GPUS)
        line.setblocking(False)
        selector.register(line, selectors.EVENT_READ, k)
    began = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        for key, _ in selector.select(0.2):
            data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
            size += len(data)
            if (count := data.count(b"event: live")) and now - began > _SETTLE_S / 2:
                live[key.data] += count
                if last[key.data]:
                    gaps.append(now - last[key.data])
                last[key.data] = now
    counted_s = seconds - _SETTLE_S / 2
    late_ms = 1e3 * statistics.quantiles(gaps, n=20)[-1]
    return {"live_per_s": sum(live) / viewers / counted_s, "bytes_per_s": size / viewers / seconds, "late_ms": late_ms}


def main(arguments: Sequence[str]) -> None:
    """The viewers: read, and print what came as JSON."""
    host, port, viewers, seconds = arguments
    print(json.dumps(read(host, int(port), int(viewers), float(seconds))))


if __name__ == "__main__":
    main(sys.argv[1:])
