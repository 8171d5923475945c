"""Every query of every dashboard is answered with data: replayed nodes in the states that the panels are for, Debian's
Prometheus, the rules that are shipped with every duration divided by thirty.

What no replay has (pods, Slurm jobs, a device in quarantine, a failed read) comes from handmade pages beside the nodes.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deploy.prometheus.build import HERE, files
from exporter.sources.simulator import simulate
from exporter.trace import TraceWriter
from tests.end_to_end.processes import daemon, eventually
from tests.monitoring import Prometheus, prometheus
from tests.tools import require

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(240)]
FOLDER = HERE.parent.parent / "dashboards"
GPUS, SPEED = 2, 5
NODES = {"a": "serialized", "b": "perfect_overlap", "c": "fsdp_no_prefetch", "d": "tcp_fallback"}
PODS = {"a": "train-worker-0", "b": "train-worker-1", "c": "train-worker-2"}
# The state that a dashboard is for, as values of its variables.
VARIABLES = {
    "overlap-fleet": {"instance": ".*"},
    "overlap-job": {"namespace": ".*", "workload": "llm/train"},
    "overlap-node": {"instance": "a", "gpu": ".*"},
    "overlap-exporter": {"instance": ".*"},
}
BUILT_IN = {"cluster": ".*", "window": "60s", "__rate_interval": "20s", "__range": "120s"}


def expanded(dashboard: str, query: str) -> str:
    values = BUILT_IN | VARIABLES[dashboard]
    return re.sub(r"\$\{?(\w+)\}?", lambda m: values[m[1]], query)


def uuid_of(gpu: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'simulated GPU {gpu}')}"


@contextmanager
def handmade() -> Iterator[str]:
    """Pages of series that no replay has; a counter on them grows with each look at it."""
    looks = iter(range(10**6))

    def page(node: str) -> str:
        lines = [f'overlap_gpu_pod_info{{gpu="{g}",uuid="{uuid_of(g)}",mig_uuid="",workload_namespace="llm",'
                 f'workload_pod="{PODS[node]}",workload_container="main"}} 1' for g in range(GPUS) if node in PODS]  # fmt: skip
        lines += [f'overlap_gpu_job_info{{gpu="{g}",uuid="{uuid_of(g)}",scheduler="slurm",job_id="4711"}} 1'
                  for g in range(GPUS) if node == "d"]  # fmt: skip
        if node == "d":
            lines.append('overlap_device_quarantined{kind="gpu",id="GPU-9",reason="hang"} 1')
            lines.append(f'overlap_source_errors_total{{source="pods",reason="timeout"}} {next(looks)}')
        return "\n".join(lines) + "\n"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page(self.path.strip("/")).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    require("prometheus")
    folder = tmp_path_factory.mktemp("dashboards")
    rules = {name: text for name, text in files(by=30).items() if name.startswith("overlap-")}
    with ExitStack() as stack:
        targets: list[tuple[str, str]] = []
        for node, scenario in NODES.items():
            trace = folder / f"{node}.jsonl.gz"
            with TraceWriter(trace) as writer:
                for event in simulate(scenario, 300.0, gpus=GPUS):
                    writer.write(event)
            running = stack.enter_context(daemon(folder / node, [str(trace), "--loop", "--speed", str(SPEED)],
                                                  command="replay"))  # fmt: skip
            targets.append((node, running.url.removeprefix("http://")))
        pages = stack.enter_context(handmade())
        targets += [(node, f"{pages}/{node}") for node in NODES]
        running_server = stack.enter_context(prometheus(folder, targets, rules=rules))

        def judged() -> bool:
            return all(map(running_server.query, (
                'count(overlap_exposed_ratio{window="60s"}) and on () (sum(cluster:overlap_running:rate5m) > 10)',
                'ALERTS{alertname="RdmaFellBackToTcp"}',
                "sum_over_time(cluster:overlap_phase_seconds:rate5m[2m:1m])",  # a full minute by the clock has passed
            )))  # fmt: skip

        eventually(judged, 120, "all nodes are judged and recorded")
        time.sleep(3)
        yield running_server


def queries(dashboard: str) -> Iterator[tuple[str, str, bool]]:
    for panel in json.loads((FOLDER / f"{dashboard}.json").read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"], target.get("instant", False)


@pytest.mark.parametrize("dashboard", VARIABLES)
def test_every_query_of_a_dashboard_is_answered_with_data(server: Prometheus, dashboard: str) -> None:
    empty = []
    for name, query, instant in queries(dashboard):
        expr = expanded(dashboard, query)
        found = server.query(expr) if instant else server.range(expr, 20.0)
        if not found:
            empty.append(f"{name}: {expr}")
    assert empty == []


def values_of(server: Prometheus, dashboard: str, panel: str) -> dict[str, float]:
    """Instant values of a panel's query by what its legend or rows are called."""
    (query,) = (q for name, q, _ in queries(dashboard) if name == panel)
    out = {}
    for sample in server.query(expanded(dashboard, query)):
        labels = sample["metric"]
        name = labels.get("workload") or labels.get("instance") or labels.get("gpu") or labels.get("phase") or ""
        out[name] = float(sample["value"][1])
    return out


def test_the_panels_say_what_the_nodes_are(server: Prometheus) -> None:
    assert values_of(server, "overlap-node", "GPUs B") == {"0": 7.0, "1": 7.0}  # serialized
    assert max(values_of(server, "overlap-node", "GPUs C").values()) < 0.3
    assert values_of(server, "overlap-node", "GPUs I") == {"0": 4.0, "1": 4.0}  # exposed communication
    worst = values_of(server, "overlap-fleet", "Worst jobs A")
    assert set(worst) == {"llm/train", "slurm/4711"}
    assert worst["slurm/4711"] == pytest.approx(0.34, abs=0.06)
    (query,) = (q for name, q, _ in queries("overlap-fleet") if name == "Nodes that differ from their job A")
    differ = server.query(expanded("overlap-fleet", query))
    assert {s["metric"]["instance"] for s in differ} >= {"b"}
    assert values_of(server, "overlap-job", "GPUs A") == {"llm/train": 3.0 * GPUS}


def test_ratios_from_counters_of_phases_agree_with_the_windows(server: Prometheus) -> None:
    for node in NODES:
        health = f'avg(overlap_health_ratio{{instance="{node}",window="60s"}})'
        recorded = f'avg(instance:overlap_health:ratio_rate5m{{instance="{node}"}})'
        exposed = f'avg(overlap_exposed_ratio{{instance="{node}",window="60s"}})'
        lost = f'avg(instance:overlap_exposed:ratio_rate5m{{instance="{node}"}})'
        # Counters are booked by single seconds, windows judged as a whole: a rhythm of 180 ms moves between exposed and wait.
        for window, counters, apart in ((health, recorded, 0.15), (exposed, lost, 0.1)):
            values = [float(server.query(q)[0]["value"][1]) for q in (window, counters)]
            assert values[0] == pytest.approx(values[1], abs=apart), (node, window)


def test_folder_and_test_know_the_same_dashboards() -> None:
    asking = {path.stem for path in Path(FOLDER).glob("overlap-*.json") if '"expr"' in path.read_text(encoding="utf-8")}
    assert asking == set(VARIABLES)
