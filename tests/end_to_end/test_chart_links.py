"""Addresses in the chart: two values make the links of alerts and dashboards, as the flags of the generators do."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from deploy.prometheus.build import files
from tests.manifests import CHART, Object, helmed, run, templated

pytestmark = pytest.mark.end_to_end
GRAFANA, WIKI = "https://grafana.example.com/gpu/", "https://wiki.example.com/runbooks/"
ENABLED = {"prometheusRule.enabled": "true", "dashboards.enabled": "true"}


def rules(found: tuple[Object, ...]) -> list[Object]:
    return sorted((o["spec"] for o in found if o["kind"] == "PrometheusRule"), key=str)


def dashboards(found: tuple[Object, ...]) -> dict[str, Object]:
    maps = [o for o in found if o["kind"] == "ConfigMap" and "grafana_dashboard" in o["metadata"]["labels"]]
    return {name: json.loads(text) for o in maps for name, text in o["data"].items()}


@pytest.mark.parametrize(("grafana", "runbooks"), [("", ""), (GRAFANA, ""), ("", WIKI), (GRAFANA, WIKI)])
def test_links_are_those_of_the_generators(grafana: str, runbooks: str) -> None:
    found = helmed({**ENABLED, "grafanaUrl": grafana, "runbookBaseUrl": runbooks})
    written = files(grafana=grafana, runbooks=runbooks)
    assert rules(found) == sorted((yaml.safe_load(t) for name, t in written.items() if name.startswith("overlap-")), key=str)
    if sys.version_info >= (3, 11):  # the library that writes dashboards asks for it
        from dashboards.build import files as boards

        assert dashboards(found) == {name: json.loads(text) for name, text in boards(runbooks).items()}


def test_an_address_that_is_none_is_refused_by_name() -> None:
    for value in ("grafanaUrl", "runbookBaseUrl"):
        done = templated({"image.repository": "r/x", value: "grafana.example.com"})
        assert done.returncode != 0
        assert f"/{value}" in done.stderr


def test_the_notes_tell_of_links_that_are_paths() -> None:
    command = ("helm", "install", "overlap-exporter", str(CHART), "--dry-run=client", "--set", "image.repository=r/x",
               "--set", "prometheusRule.enabled=true")  # fmt: skip
    assert "grafanaUrl" in run(*command).stdout
    assert "grafanaUrl" not in run(*command, "--set", f"grafanaUrl={GRAFANA}").stdout
