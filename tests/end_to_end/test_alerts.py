"""From a trace to a person: replayed nodes, Debian's Prometheus with our rules, Alertmanager with our example, a webhook.

Rules are those that are shipped, with every duration divided by ten and nothing else changed; the nodes are played five times
faster than life, again and again. Then the jobs are mended, on the same nodes, and the alerts must end.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.prometheus.build import HERE, files
from deploy.prometheus.runbooks import runbook_url
from exporter.sources.simulator import simulate
from exporter.trace import TraceWriter
from tests.end_to_end.processes import Daemon, daemon, eventually
from tests.monitoring import Prometheus, Webhook, alertmanager, free_port, prometheus, webhook
from tests.tools import require

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(420)]
FASTER, SPEED = 10, 5
GPUS = 2
SCENARIOS = ("serialized", "tcp_fallback")


def trace(folder: Path, scenario: str) -> Path:
    file = folder / f"{scenario}.jsonl.gz"
    with TraceWriter(file) as writer:
        for event in simulate(scenario, 150.0, gpus=GPUS):
            writer.write(event)
    return file


def routes(hook: Webhook) -> str:
    """The example as it is shipped, with receivers that exist and without the patience of people."""
    text = (HERE.parent / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8")
    text = re.sub(r"http://([\w-]+)\.example\.invalid/\w+", rf"{hook.url}/\1", text)
    return re.sub(r"(group_wait|group_interval): \d+m", r"\1: 1s", text)


@dataclass
class Site:
    """Everything that runs."""

    hook: Webhook
    prometheus: Prometheus
    alertmanager: str
    ports: dict[str, int]
    traces: dict[str, Path]
    folder: Path
    nodes: dict[str, ExitStack]

    def play(self, node: str, scenario: str) -> Daemon:
        """Let a node show a scenario from now on."""
        self.nodes[node].close()
        address = f"127.0.0.1:{self.ports[node]}"
        arguments = [str(self.traces[scenario]), "--speed", str(SPEED), "--loop", "--web.listen-address", address]
        running = daemon(self.folder / f"{node}-{scenario}", arguments, command="replay")
        return self.nodes[node].enter_context(running)

    def alerts(self) -> list[dict[str, Any]]:
        """What Alertmanager holds, hidden alerts included."""
        with urllib.request.urlopen(f"{self.alertmanager}/api/v2/alerts", timeout=5) as answer:
            return list(json.load(answer))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require("prometheus")
    require("prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("alerts")
    traces = {scenario: trace(folder, scenario) for scenario in (*SCENARIOS, "perfect_overlap")}
    rules = {name: text for name, text in files(by=FASTER).items() if name.startswith("overlap-")}
    with ExitStack() as stack:
        hook = stack.enter_context(webhook())
        manager = stack.enter_context(alertmanager(folder, routes(hook)))
        ports = {node: free_port() for node in SCENARIOS}
        targets = [(node, f"127.0.0.1:{port}") for node, port in ports.items()]
        nodes = {node: stack.enter_context(ExitStack()) for node in SCENARIOS}
        server = stack.enter_context(prometheus(folder, targets, rules=rules, alertmanager=manager))
        site = Site(hook, server, manager, ports, traces, folder, nodes)
        for node in SCENARIOS:
            site.play(node, node)
        yield site


def test_alerts_reach_a_person_with_numbers_and_end_when_the_job_is_mended(site: Site) -> None:
    hook = site.hook
    job = {"workload": "node/serialized"}
    tcp = {"workload": "node/tcp_fallback"}

    fell_back = eventually(lambda: hook.heard("on-call", "firing", alertname="RdmaFellBackToTcp", **tcp), 120, "TCP is told")
    assert re.search(r"moves its gradients over TCP on 1 of 1 nodes", fell_back["annotations"]["summary"])
    assert fell_back["labels"]["instance"] == "tcp_fallback"

    serialized = eventually(lambda: hook.heard("gpu-team", "firing", alertname="OverlapSerialized", **job), 180, "cost is told")
    said = re.match(rf"node/serialized loses ([\d.]+)% of its time .* on {GPUS} GPUs: as if ([\d.]+) of them",
                    serialized["annotations"]["summary"])  # fmt: skip
    assert said is not None, serialized
    assert 30 < float(said[1]) < 50
    assert serialized["annotations"]["runbook_url"] == runbook_url("OverlapSerialized")

    # The node on TCP loses a third of its time as well: known, and hidden behind its cause.
    effect = {"alertname": "OverlapSerialized", **tcp}
    hidden = eventually(lambda: [a for a in site.alerts() if effect.items() <= a["labels"].items()], 90, "the effect is known")
    assert all(a["status"]["state"] == "suppressed" for a in hidden)

    # A trace that is played again and again is a node that keeps running: no counter of it fell.
    for counter in ("overlap_rdma_transmit_bytes_total", "overlap_nic_transmit_bytes_total", "overlap_phase_seconds_total"):
        (falls,) = site.prometheus.query(f"max(resets({counter}[5m]))")
        assert float(falls["value"][1]) == 0, counter

    for node in SCENARIOS:
        site.play(node, "perfect_overlap")
    began_s = time.monotonic()
    for receiver, name, labels, kept_s in (("gpu-team", "OverlapSerialized", job, 60),
                                           ("on-call", "RdmaFellBackToTcp", tcp, 90)):  # fmt: skip
        eventually(lambda r=receiver, n=name, w=labels: hook.heard(r, "resolved", alertname=n, **w), 240, f"{name} ends")
        assert time.monotonic() - began_s > kept_s - 10, f"{name} kept firing for its time"

    heard = {(receiver, alert["labels"]["alertname"], alert["labels"].get("workload")) for receiver, alert in hook.delivered}
    jobs = [h for h in heard if h[2] is not None and h[1] != "GpuPowerCapped"]
    assert sorted(jobs) == [("gpu-team", "OverlapSerialized", job["workload"]),
                            ("on-call", "RdmaFellBackToTcp", tcp["workload"])], heard  # fmt: skip
