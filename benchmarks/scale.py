"""What a large fleet costs Prometheus: series, bytes and the time of all rules against the number of nodes.

`python -m benchmarks.scale [--nodes 50 100 200] [--seconds 330]`. One real page of a simulated 8-GPU node is taken from the
real daemon, twice, so that every counter has its slope; one process then serves a page per node, each with GPUs of its own.
Debian's Prometheus scrapes them every 15 s and evaluates the rules that are shipped. docs/scale.md has a run of it.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from deploy.prometheus.build import files
from tests.end_to_end.processes import daemon
from tests.monitoring import Prometheus, prometheus

GPUS_PER_JOB_NODES = 16  # nodes of a job: 128 GPUs
_FLEET = 1250
_SAMPLE = re.compile(r"^([a-z_:]+(?:\{.*\})?) (\S+)$")


@dataclass(frozen=True)
class Page:
    """A page as a template: series with the node's mark in place of its UUIDs, value and slope."""

    rows: tuple[tuple[str, float, float], ...]

    def text(self, node: int, passed_s: float) -> str:
        """The page of one node. Nodes differ by a few per cent in what they count."""
        pace = 0.95 + 0.1 * ((node * 37) % 101) / 101
        mark = f"{node:04d}"
        now_s = time.time()  # or every source would be late
        rows = (
            (series.replace("@@@@", mark), now_s if "_timestamp_" in series else value + slope * pace * passed_s)
            for series, value, slope in self.rows
        )
        return "\n".join(f"{series} {value:.12g}" for series, value in rows)


def template(folder: Path) -> Page:
    """Two looks at the real daemon on a simulated node, some seconds apart."""
    with daemon(folder / "template", ["--speed", "4"], command="demo") as running:
        running.ready()
        time.sleep(45)  # the longest windows fill
        first, began_s = _samples(running.get("/metrics")[1].decode()), time.monotonic()
        time.sleep(20)
        passed_s = 4 * (time.monotonic() - began_s)
        second = _samples(running.get("/metrics")[1].decode())
    rows = []
    for series, value in second.items():
        counts = re.match(r"[a-z_:]*(_total|_count|_sum|_bucket)\b", series) is not None
        slope = max(0.0, value - first.get(series, value)) / passed_s if counts else 0.0
        rows.append((re.sub(r'GPU-[0-9a-f]{8}-[0-9a-f]{4}', "GPU-@@@@", series), value, slope))
    for gpu in range(8):
        uuid = next(u for s, _, _ in rows if f'gpu="{gpu}",uuid="' in s for u in re.findall(r'uuid="([^"]+)"', s))
        pod = f'gpu="{gpu}",uuid="{uuid}",mig_uuid="",workload_namespace="llm",workload_pod="@pod@",workload_container="main"'
        rows.append((f"overlap_gpu_pod_info{{{pod}}}", 1.0, 0.0))
    return Page(tuple(rows))


def _samples(text: str) -> Mapping[str, float]:
    found = (_SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#"))
    return {m[1]: float(m[2]) for m in found if m}


@contextmanager
def fleet(page: Page, compress: bool = True) -> Iterator[str]:
    """Serves /0, /1, ...: as many nodes as are asked for. Gives host:port."""
    began_s = time.monotonic()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            node = int(self.path.strip("/"))
            text = page.text(node, time.monotonic() - began_s)
            text = text.replace("@pod@", f"train-{node // GPUS_PER_JOB_NODES}x-worker-{node % GPUS_PER_JOB_NODES}") + "\n"
            body = gzip.compress(text.encode(), 1) if compress else text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            if compress:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 512

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Run:
    """One number of nodes."""

    nodes: int
    series_per_node: float
    recorded_per_node: float
    text_bytes: int
    gzip_bytes: int
    rules_s: Mapping[str, float]  # seconds of the fastest evaluation, by group: without what else the machine did
    memory_bytes: float
    cpu_share: float


def measure(page: Page, nodes: int, seconds: float, folder: Path) -> Run:
    """Let Prometheus run over so many nodes, and ask it what that took."""
    folder.mkdir(parents=True)
    rules = {name: text for name, text in files().items() if name.startswith("overlap-")}
    with ExitStack() as stack:
        at = stack.enter_context(fleet(page))
        targets = [(f"node-{k}", f"{at}/{k}") for k in range(nodes)]
        server = stack.enter_context(prometheus(folder, targets, rules=rules, every="15s"))
        own = str(folder / "prometheus.yml")
        process = next(p for p in psutil.process_iter(["cmdline"]) if own in " ".join(p.info["cmdline"] or ()))
        durations: dict[str, list[float]] = {}
        until_s = time.monotonic() + seconds
        began_s, cpu_s = time.monotonic(), sum(process.cpu_times()[:2])
        while time.monotonic() < until_s:
            time.sleep(15)
            if time.monotonic() > until_s - seconds / 2:  # ranges of five minutes are full, or nearly
                for group, value in _group_durations(server).items():
                    durations.setdefault(group, []).append(value)
        text = page.text(0, 0.0).encode()
        return Run(
            nodes,
            _one(server, 'sum(scrape_samples_scraped{job="overlap-exporter"})') / nodes,
            _one(server, 'count({__name__=~".+:overlap_.+"})') / nodes,
            len(text),
            len(gzip.compress(text, 1)),
            {group: min(values) for group, values in durations.items()},
            process.memory_info().rss,
            (sum(process.cpu_times()[:2]) - cpu_s) / (time.monotonic() - began_s),
        )


def _group_durations(server: Prometheus) -> Mapping[str, float]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'^prometheus_rule_group_last_duration_seconds\{rule_group="[^"]*;([^"]+)"\} (\S+)$', text, re.MULTILINE)
    return {group: float(value) for group, value in found}


def _one(server: Prometheus, query: str) -> float:
    return float(server.query(query)[0]["value"][1])


def show(runs: Sequence[Run]) -> None:
    """The tables of docs/scale.md."""
    console = Console(width=118, highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("nodes", "series/node", "recorded/node", "page, kB", "gzip, kB", "rules, ms", "memory, MB", "CPU, % of core"):
        table.add_column(name, justify="right")
    for run in runs:
        cells = (
            f"{run.nodes}", f"{run.series_per_node:.0f}", f"{run.recorded_per_node:.1f}", f"{run.text_bytes / 1e3:.0f}",
            f"{run.gzip_bytes / 1e3:.1f}", f"{1e3 * sum(run.rules_s.values()):.0f}", f"{run.memory_bytes / 1e6:.0f}",
            f"{100 * run.cpu_share:.1f}",
        )  # fmt: skip
        table.add_row(*cells)
    console.print(table)
    groups = Table(box=None, pad_edge=False)
    groups.add_column("group of rules, ms")
    for run in runs:
        groups.add_column(f"{run.nodes} nodes", justify="right")
    for group in runs[-1].rules_s:
        groups.add_row(group, *(f"{1e3 * run.rules_s.get(group, 0.0):.1f}" for run in runs))
    console.print(groups)
    per_node_s = sum(runs[-1].rules_s.values()) / runs[-1].nodes
    series = _FLEET * runs[-1].series_per_node
    console.print(
        f"extrapolated to {_FLEET} nodes (linear from {runs[-1].nodes}): {series / 1e6:.2f} million series, "
        f"{series / 15:,.0f} samples a second, rules {_FLEET * per_node_s:.1f} s of every 30 s"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=main.__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[50, 100, 200], help="numbers of nodes, one run each")
    parser.add_argument("--seconds", type=float, default=390.0, help="how long each run takes (default 390)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overlap-scale-") as name:
        folder = Path(name)
        page = template(folder)
        runs = [measure(page, nodes, arguments.seconds, folder / str(nodes)) for nodes in arguments.nodes]
        show(runs)


if __name__ == "__main__":
    main()
