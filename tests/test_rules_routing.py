"""The Alertmanager example: who hears of what, by amtool, and what hides what, by a real Alertmanager."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping

import pytest

from deploy.prometheus.build import HERE
from tests.monitoring import end
from tests.tools import require

EXAMPLE = HERE.parent / "alertmanager" / "alertmanager.yml"
TRAIN = {"workload": "llm/train", "workload_namespace": "llm"}
SLURM = {"workload": "slurm/4711"}
NODE = {"instance": "n0"}


def test_amtool_accepts_the_example() -> None:
    checked = subprocess.run([require("amtool"), "check-config", str(EXAMPLE)], capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(("alert", "severity", "labels", "receivers"), [
    ("OverlapSerialized", "warning", TRAIN, "llm-team"),
    ("OverlapSerialized", "warning", SLURM, "slurm-desk"),
    ("OverlapSerialized", "warning", {"workload": "node/n0"}, "gpu-team"),
    ("RdmaFellBackToTcp", "critical", TRAIN, "on-call,llm-team"),
    ("RdmaFellBackToTcp", "critical", {"workload": "node/n0"}, "on-call"),
    ("StragglerNode", "warning", TRAIN | NODE, "llm-team"),
    ("GpuPowerCapped", "info", TRAIN, "nowhere"),
    ("SensorTooSlow", "info", SLURM, "nowhere"),
    ("GpuLost", "critical", NODE, "on-call"),
    ("RdmaLinkDown", "critical", NODE, "on-call"),
    ("RdmaLinkDegraded", "warning", NODE, "platform"),
    ("ExporterDown", "warning", NODE, "platform"),
])  # fmt: skip
def test_an_alert_goes_to_whom_it_concerns(alert: str, severity: str, labels: Mapping[str, str], receivers: str) -> None:
    given = [f"{key}={value}" for key, value in {"alertname": alert, "severity": severity, **labels}.items()]
    tested = subprocess.run(
        [require("amtool"), "config", "routes", "test", f"--config.file={EXAMPLE}", f"--verify.receivers={receivers}", *given],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Alertmanager with the example, whose receivers lead nowhere."""
    command = require("prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("alertmanager")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [command, f"--config.file={EXAMPLE}", f"--storage.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
             "--cluster.listen-address="], stdout=log, stderr=log)  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                if urllib.request.urlopen(f"{url}/-/ready", timeout=1).status == 200:
                    break
            except OSError:
                time.sleep(0.05)
        yield url
    finally:
        end(server)


def hidden(url: str, alerts: list[Mapping[str, str]]) -> set[str]:
    """Names of the alerts that Alertmanager hides while all of them fire."""
    request = urllib.request.Request(f"{url}/api/v2/alerts", json.dumps([{"labels": a} for a in alerts]).encode(),
                                     {"Content-Type": "application/json"})  # fmt: skip
    with urllib.request.urlopen(request, timeout=5):
        pass
    time.sleep(0.3)
    with urllib.request.urlopen(f"{url}/api/v2/alerts?active=true&inhibited=true", timeout=5) as answer:
        found = json.load(answer)
    return {a["labels"]["alertname"] for a in found if a["labels"] in alerts and a["status"]["inhibitedBy"]}


@pytest.mark.parametrize(("cause", "others", "gone"), [
    ({"alertname": "ExporterDown", "instance": "a"},
     [{"alertname": "OverlapSerialized", "workload": "node/a", "instance": "a"}, {"alertname": "RdmaLinkDown", "instance": "a"},
      {"alertname": "ExporterSourceDown", "instance": "a", "source": "rdma"}, {"alertname": "GpuLost", "instance": "b"},
      {"alertname": "OverlapDegraded", "workload": "big/job"}],
     {"OverlapSerialized", "RdmaLinkDown", "ExporterSourceDown"}),
    ({"alertname": "NodeDown", "instance": "c", "cluster": "east"},
     [{"alertname": "StragglerNode", "workload": "w/x", "instance": "c", "cluster": "east"},
      {"alertname": "InputStall", "workload": "w/y", "instance": "c", "cluster": "west"}],
     {"StragglerNode"}),
    ({"alertname": "RdmaFellBackToTcp", "workload": "w/tcp"},
     [{"alertname": "OverlapSerialized", "workload": "w/tcp"}, {"alertname": "RdmaCongestion", "workload": "w/other"}],
     {"OverlapSerialized"}),
    ({"alertname": "OverlapSerialized", "workload": "w/s"}, [{"alertname": "OverlapDegraded", "workload": "w/s"}],
     {"OverlapDegraded"}),
    ({"alertname": "RdmaLinkDown", "instance": "d"}, [{"alertname": "RdmaLinkDegraded", "instance": "d"}],
     {"RdmaLinkDegraded"}),
    ({"alertname": "GpuLost", "instance": "e"},
     [{"alertname": "ExporterSourceDown", "instance": "e", "source": "nvml"},
      {"alertname": "ExporterSamplesLate", "instance": "e", "source": "rdma"}], {"ExporterSourceDown"}),
])  # fmt: skip
def test_a_cause_hides_its_effects_and_nothing_else(
    alertmanager: str, cause: Mapping[str, str], others: list[Mapping[str, str]], gone: set[str]
) -> None:
    assert hidden(alertmanager, [cause, *others]) == gone
