"""Rule files and what belongs to them: they are what the tables say, use what the exporter exposes, and have a runbook each."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.prometheus.alerts import ALERTS
from deploy.prometheus.build import HERE, files
from deploy.prometheus.recording import RECORDING
from deploy.prometheus.rule import Alert, Recording, faster
from deploy.prometheus.runbooks import runbook_url
from exporter.advice import ADVICE
from exporter.metrics import FAMILIES
from exporter.rules import RULES
from tests.promql import unknown
from tests.tools import require

DEPLOY = HERE.parent
RULE_FILES = ("overlap-recording.yml", "overlap-alerts.yml")
TABLE = {rule.name: rule for group in ALERTS for rule in group.rules if isinstance(rule, Alert)}
EXPRESSIONS = {
    f"{group.name}/{rule.name if isinstance(rule, Alert) else rule.record} {number}": rule.expr
    for group in (*RECORDING, *ALERTS)
    for number, rule in enumerate(group.rules)
}


def test_the_rule_files_are_what_the_tables_say() -> None:
    for name, text in files().items():
        assert (HERE / name).read_text(encoding="utf-8") == text, f"{name} is not up to date: run make dashboards"


def test_promtool_finds_nothing_in_the_rules() -> None:
    command = [require("promtool"), "check", "rules", "--lint=all", "--lint-fatal", *(str(HERE / f) for f in RULE_FILES)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_rule_uses_metrics_and_labels_of_the_catalogue_only(name: str) -> None:
    assert unknown(EXPRESSIONS[name]) == []


@pytest.mark.parametrize("alert", TABLE)
def test_queries_in_the_text_of_an_alert_use_the_catalogue_only(alert: str) -> None:
    queries = re.findall(r'query \(printf "((?:[^"\\]|\\.)*)"', TABLE[alert].summary)
    assert all(unknown(query) == [] for query in queries)
    assert "{{" in TABLE[alert].summary


def test_the_catalogue_check_finds_a_misspelt_metric_and_label() -> None:
    assert unknown("rate(overlap_phase_second_total[5m])") == ["overlap_phase_second_total"]
    assert unknown('overlap_state{stat="idle"}') == ["overlap_state{stat}"]
    assert unknown("sum by (node) (overlap_gpu_up)") == ["by or on (node)"]


def test_recorded_series_are_used_with_the_labels_that_they_have() -> None:
    joined = {f.name: f for f in FAMILIES}
    for name in ("overlap_gpu_pod_info", "overlap_gpu_job_info"):
        if name in joined:  # labels of the join as the contract has them
            assert {"gpu", "uuid"} <= set(joined[name].labels)


def test_faster_changes_durations_and_nothing_else() -> None:
    slow, fast = files(), files(by=10)
    assert slow.keys() == fast.keys()
    number = re.compile(r"\d+[smhd]\b")
    for name, text in slow.items():
        assert text != fast[name]
        assert number.sub("T", text) == number.sub("T", fast[name])
    for group in (*RECORDING, *ALERTS):
        assert faster(group, 10).interval_s * 10 == group.interval_s


def test_a_duration_that_cannot_be_divided_is_refused() -> None:
    group = RECORDING[0]
    odd = group.__class__("g", 30, (Recording("a:b", "rate(c[15s])"),))
    with pytest.raises(ValueError, match="no whole number"):
        faster(odd, 10)


@pytest.mark.parametrize("alert", TABLE)
def test_an_alert_says_why_and_points_to_its_runbook(alert: str) -> None:
    rule = TABLE[alert]
    assert rule.why
    assert rule.why_for
    assert rule.why_keep
    assert rule.for_s >= 120, "shorter than two scrapes of a minute"
    assert rule.keep_s >= 300
    assert rule.severity in ("critical", "warning", "info")
    text = yaml.safe_load((HERE / "overlap-alerts.yml").read_text(encoding="utf-8"))
    (written,) = (r for g in text["groups"] for r in g["rules"] if r["alert"] == alert)
    assert written["annotations"]["runbook_url"] == runbook_url(alert)


def addresses(text: str) -> dict[str, tuple[str, str]]:
    """Alert -> its runbook and its dashboard."""
    rules = (rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"])
    return {r["alert"]: (r["annotations"]["runbook_url"], r["annotations"]["dashboard"]) for r in rules}


def test_the_address_of_grafana_makes_every_link_whole_and_own_runbooks_take_the_place_of_the_dashboard(tmp_path: Path) -> None:
    shipped = addresses(files()["overlap-alerts.yml"])
    assert all(link.startswith("/d/overlap-") for links in shipped.values() for link in links)
    command = [sys.executable, "-m", "deploy.prometheus.build", "--out", str(tmp_path), "--grafana", "https://g.example.com/x/"]
    subprocess.run(command, check=True, cwd=DEPLOY.parent)
    whole = addresses((tmp_path / "overlap-alerts.yml").read_text())
    assert whole == {alert: tuple(f"https://g.example.com/x{link}" for link in links) for alert, links in shipped.items()}
    subprocess.run([*command, "--runbooks", "https://wiki.example.com/gpu"], check=True, cwd=DEPLOY.parent)
    own = addresses((tmp_path / "overlap-alerts.yml").read_text())
    assert own == {alert: (f"https://wiki.example.com/gpu/{alert}.md", panel) for alert, (_, panel) in whole.items()}
    operator = yaml.safe_load((tmp_path / "prometheusrule-alerts.yml").read_text())["spec"]
    assert addresses(yaml.safe_dump(operator)) == own


def test_the_operators_rules_are_the_same_groups() -> None:
    for kind in ("recording", "alerts"):
        plain = yaml.safe_load((HERE / f"overlap-{kind}.yml").read_text(encoding="utf-8"))
        operator = yaml.safe_load((HERE / f"prometheusrule-{kind}.yml").read_text(encoding="utf-8"))
        assert operator["kind"] == "PrometheusRule"
        assert operator["spec"] == plain


SECTIONS = ["What it means", "How to confirm it", "What to change, in this order", "When to silence it"]


@pytest.mark.parametrize("alert", TABLE)
def test_a_runbook_says_what_how_in_which_order_and_when_not(alert: str) -> None:
    text = (DEPLOY / "runbooks" / f"{alert}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert text.startswith(f"# {alert}\n")
    assert all(len(part.split()) >= 5 for part in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:])


ADVICE_OF = {"OverlapSerialized": "exposed_communication", "RdmaFellBackToTcp": "tcp_fallback", "InputStall": "input_stall",
             "StragglerNode": "straggler_wait", "RdmaCongestion": "congestion", "RdmaLinkDegraded": "link_degraded",
             "RdmaLinkDown": "link_degraded", "GpuPowerCapped": "power_capped", "SensorTooSlow": "sensor_too_slow"}  # fmt: skip


@pytest.mark.parametrize("alert", ADVICE_OF)
def test_a_runbook_advises_what_the_live_page_advises_in_the_same_order(alert: str) -> None:
    text = " ".join((DEPLOY / "runbooks" / f"{alert}.md").read_text(encoding="utf-8").split())
    (rule,) = (r for r in RULES if r.finding == ADVICE_OF[alert])
    places = [text.find(ADVICE[key].action.en) for key in rule.advice]
    assert -1 not in places, [key for key, place in zip(rule.advice, places, strict=True) if place < 0]
    assert places == sorted(places)


def test_no_runbook_is_without_an_alert_and_the_list_is_whole() -> None:
    pages = {p.stem for p in (DEPLOY / "runbooks").glob("*.md")}
    assert pages == {*TABLE, "README"}
    index = (DEPLOY / "runbooks" / "README.md").read_text(encoding="utf-8")
    assert {(n, s) for n, s in re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \| (\w+) \|", index, re.MULTILINE)} == {
        (rule.name, rule.severity) for rule in TABLE.values()
    }


def test_no_expression_is_written_twice_in_two_tables() -> None:
    assert len(set(EXPRESSIONS.values())) == len(EXPRESSIONS)


def test_no_rule_file_is_left_over() -> None:
    assert {p.name for p in HERE.glob("*overlap-*.yml")} | {p.name for p in HERE.glob("prometheusrule-*.yml")} == set(files())


def test_the_documents_name_every_alert_and_every_recorded_series() -> None:
    text = (DEPLOY.parent / "docs" / "alerts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (critical|warning|info) \| .* \| (\d+m) \|$", text, re.MULTILINE)
    assert sorted(rows) == sorted((rule.name, rule.severity, f"{rule.for_s // 60}m") for rule in TABLE.values())
    for group in RECORDING:
        for rule in group.rules:
            assert isinstance(rule, Recording)
            assert rule.record in text or f"..:{rule.record.partition(':')[2]}" in text, rule.record
