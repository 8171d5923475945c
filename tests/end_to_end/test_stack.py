"""`make stack` and deploy/compose: what can be started here is started, the rest is held against schemas and real checkers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from exporter import __version__
from tests.monitoring import free_port
from tests.tools import require

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(400)]
ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "deploy" / "compose"


def test_the_stack_starts_and_its_first_alert_arrives() -> None:
    require("prometheus")
    require("prometheus-alertmanager")
    ports = {name: free_port() for name in ("port", "prometheus-port", "alertmanager-port")}
    arguments = [part for name, port in ports.items() for part in (f"--{name}", str(port))]
    done = subprocess.run([sys.executable, "-m", "deploy.stack", *arguments, "--speed", "2", "--until-alert"],
                          capture_output=True, text=True, cwd=ROOT, timeout=380)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for port in ports.values():
        assert f"http://127.0.0.1:{port}/" in done.stdout
    assert re.search(r"^(warning|critical|info): \w+: .+", done.stdout, re.MULTILINE), done.stdout
    assert "Arrived:" in done.stdout


def test_the_stack_knows_the_scenarios_and_says_so_before_it_starts_anything() -> None:
    require("prometheus")
    require("prometheus-alertmanager")
    done = subprocess.run([sys.executable, "-m", "deploy.stack", "--scenario", "sabotage"],
                          capture_output=True, text=True, cwd=ROOT, timeout=60)  # fmt: skip
    assert done.returncode == 1
    assert "sabotage" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["compose.yml"])
def test_the_compose_file_follows_the_specification(name: str) -> None:
    subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE / name)],
                   check=True, capture_output=True)  # fmt: skip


def test_what_compose_mounts_is_there_and_its_ports_are_open_on_this_machine_alone() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yml").read_text())["services"]
    assert set(services) == {"exporter", "prometheus", "alertmanager", "grafana"}
    for service in services.values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).exists(), mount
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    exporter = services["exporter"]
    assert exporter["image"] == f"overlap-exporter:{__version__}"
    assert exporter["build"]["args"]["VERSION"] == __version__
    assert (COMPOSE / exporter["build"]["context"] / "Dockerfile").exists()
    assert (exporter["read_only"], exporter["cap_drop"]) == (True, ["ALL"])


def test_its_prometheus_takes_the_shipped_rules_and_its_alertmanager_its_file(tmp_path: Path) -> None:
    text = (COMPOSE / "prometheus.yml").read_text().replace("/etc/prometheus/rules", str(ROOT / "deploy" / "prometheus"))
    (tmp_path / "prometheus.yml").write_text(text)
    check = [require("promtool"), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 rule files found" in done.stdout
    subprocess.run([require("amtool"), "check-config", str(COMPOSE / "alertmanager.yml")], check=True, capture_output=True)
    scrapes = yaml.safe_load(text)["scrape_configs"]
    assert [s["job_name"] for s in scrapes] == ["overlap-exporter"]
    assert scrapes[0]["static_configs"][0]["labels"]["instance"]


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    (source,) = yaml.safe_load((COMPOSE / "grafana" / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((ROOT / "dashboards" / "provisioning.yml").read_text())["providers"]
    mounts = yaml.safe_load((COMPOSE / "compose.yml").read_text())["services"]["grafana"]["volumes"]
    assert f"../../dashboards:{provider['options']['path']}:ro" in mounts
    assert "../../dashboards/provisioning.yml:/etc/grafana/provisioning/dashboards/overlap.yml:ro" in mounts
    assert all(json.loads(p.read_text())["title"] for p in (ROOT / "dashboards").glob("*.json"))


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.name)
def test_workflows_follow_the_schema_and_say_that_they_never_ran(path: Path) -> None:
    subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)],
                   check=True, capture_output=True)  # fmt: skip
    assert path.read_text().startswith("# Not run so far")
