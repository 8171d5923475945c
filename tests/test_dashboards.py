"""The dashboards as files: what Python says, what Grafana's schema allows, and what a reader may expect of every panel."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.prometheus.build import HERE as RULES
from deploy.prometheus.runbooks import FOLDER as RUNBOOKS
from deploy.prometheus.runbooks import NAMES, panel_of, runbook_url
from exporter.rules import RULES as FINDINGS
from tests.promql import unknown

FOLDER = RULES.parent.parent / "dashboards"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}
SCHEMAS = Path(__file__).parent / "fixtures" / "grafana"
Json = dict[str, Any]


def read(name: str) -> Json:
    found: Json = json.loads(FILES[name].read_text(encoding="utf-8"))
    return found


def panels(name: str) -> list[Json]:
    return [p for p in read(name)["panels"] if p["type"] != "row"]


PANELS = {f"{name}: {panel['title']}": panel for name in FILES for panel in panels(name)}
QUERIES = {
    f"{name}: {panel['title']} {target['refId']}": target["expr"]
    for name in FILES for panel in panels(name) for target in panel.get("targets", ())
}  # fmt: skip
DRAWN = {title: panel for title, panel in PANELS.items() if panel["type"] != "text"}


def test_there_are_four_dashboards_and_the_runbooks() -> None:
    assert set(FILES) == {"overlap-fleet", "overlap-job", "overlap-node", "overlap-exporter", "overlap-runbooks"}


# The library that writes them asks for Python 3.11; the exporter itself runs on 3.10, and so do all other tests.
@pytest.mark.skipif(sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11")
def test_the_files_are_what_the_generator_writes_byte_for_byte() -> None:
    from dashboards.build import files

    written = files()
    assert {f"{name}.json" for name in FILES} <= set(written)
    for name, text in written.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name} is not up to date: run make dashboards"


@functools.cache
def validator(name: str, part: str | None = None) -> jsonschema.Draft7Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    if part:
        schema = {"$schema": schema["$schema"], "$ref": f"#/definitions/{part}", "definitions": schema["definitions"]}
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("name", FILES)
def test_a_dashboard_obeys_the_schema_of_grafana(name: str) -> None:
    errors = [f"{list(e.absolute_path)}: {e.message[:200]}" for e in validator("dashboard").iter_errors(read(name))]
    assert errors == []


@pytest.mark.parametrize("wrong", [
    lambda d: d["panels"][0].update(titel="x"),
    lambda d: d["panels"][0]["fieldConfig"]["defaults"].update(unitt="s"),
    lambda d: d["panels"][0]["gridPos"].update(w="12"),
    lambda d: d.update(graphTooltip=7),
    lambda d: d.update(panel=[]),
    lambda d: d["templating"]["list"][0].update(type="datasauce"),
], ids=["panel", "field", "grid", "enum", "top", "variable"])  # fmt: skip
def test_the_schema_finds_what_is_wrong(wrong: Any) -> None:
    dashboard = read("overlap-node")
    wrong(dashboard)
    assert list(validator("dashboard").iter_errors(dashboard))


# What the schema of a dashboard leaves open: options and custom fields, per kind of panel.
KINDS = {"timeseries": True, "stat": False, "bargauge": False, "table": True, "state-timeline": True, "text": False}


@pytest.mark.parametrize("title", PANELS)
def test_the_options_of_a_panel_obey_the_schema_of_its_kind(title: str) -> None:
    panel = PANELS[title]
    kind = panel["type"].replace("-", "")
    errors = [e.message for e in validator(kind, "Options").iter_errors(panel["options"])]
    if KINDS[panel["type"]]:
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        # A default need not be written out.
        errors += [e.message for e in validator(kind, "FieldConfig").iter_errors(custom) if e.validator != "required"]
        properties = validator(kind, "FieldConfig").schema["definitions"]["FieldConfig"]["properties"]
        for override in panel["fieldConfig"]["overrides"]:
            for entry in override["properties"]:
                if entry["id"].startswith("custom."):
                    assert entry["id"].removeprefix("custom.") in properties, entry
    assert errors == []


@pytest.mark.parametrize("name", FILES)
def test_ids_of_panels_and_letters_of_queries_are_unique(name: str) -> None:
    ids = [p["id"] for p in read(name)["panels"]]
    assert len(set(ids)) == len(ids)
    assert 0 not in ids
    for panel in panels(name):
        letters = [t["refId"] for t in panel.get("targets", ())]
        assert len(set(letters)) == len(letters)
        assert "" not in letters


def rectangles(name: str) -> Iterator[tuple[str, set[tuple[int, int]]]]:
    for panel in panels(name):
        g = panel["gridPos"]
        yield panel["title"], {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}


@pytest.mark.parametrize("name", FILES)
def test_panels_do_not_overlap_and_stay_within_the_page(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for title, cells in rectangles(name):
        assert not taken & cells, title
        assert max(x for x, _ in cells) < 24, title
        taken |= cells


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_explains_itself(title: str) -> None:
    panel = PANELS[title]
    assert len(panel["description"].split()) >= 3
    assert panel["description"].endswith(".")


@pytest.mark.parametrize("title", DRAWN)
def test_values_have_a_unit_and_thresholds_and_come_from_the_chosen_source(title: str) -> None:
    panel = DRAWN[title]
    assert "unit" in panel["fieldConfig"]["defaults"]
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_uses_metrics_and_labels_of_the_catalogue_only(name: str) -> None:
    assert unknown(QUERIES[name]) == []


@pytest.mark.parametrize("name", QUERIES)
def test_ranges_follow_the_scrape_interval(name: str) -> None:
    for range_ in re.findall(r"\[([^\]]+)\]", QUERIES[name]):
        assert range_ in ("$__rate_interval", "$__range", "$__range:1m"), range_


@pytest.mark.parametrize("name", FILES)
def test_every_variable_is_used_and_every_used_one_is_there(name: str) -> None:
    dashboard = read(name)
    variables = {v["name"] for v in dashboard["templating"].get("list", ())}
    text = json.dumps(dashboard)
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__all", "__rate_interval", "__range", "__value", "__url_time_range"}
    assert used == variables


def variable(name: str, wanted: str) -> Json:
    (found,) = (v for v in read(name)["templating"]["list"] if v["name"] == wanted)
    return dict(found)


@pytest.mark.parametrize("name", sorted({*FILES} - {"overlap-runbooks"}))
def test_a_missing_cluster_label_matches_all(name: str) -> None:
    cluster = variable(name, "cluster")
    assert cluster["includeAll"] is True
    assert cluster["allValue"] == ".*"
    assert all('cluster=~"$cluster"' in t["expr"] for p in panels(name) for t in p["targets"] if "ALERTS" not in t["expr"])


def test_the_variables_are_those_that_people_choose_by() -> None:
    variables = {name: read(name)["templating"].get("list", []) for name in FILES}
    names = {name: {v["name"] for v in found} for name, found in variables.items()}
    assert names == {
        "overlap-fleet": {"datasource", "cluster", "instance"},
        "overlap-job": {"datasource", "cluster", "namespace", "workload", "window"},
        "overlap-node": {"datasource", "cluster", "instance", "gpu", "window"},
        "overlap-exporter": {"datasource", "cluster", "instance"},
        "overlap-runbooks": set(),
    }
    for found in variables.values():
        for v in found:
            if v["type"] == "query":
                metric = re.fullmatch(r"label_values\((.*), (\w+)\)", v["query"], re.DOTALL)
                assert metric is not None
                assert unknown(f"count by ({metric[2]}) ({metric[1]})") == []


def test_the_dashboards_link_to_each_other_and_the_node_to_its_live_page() -> None:
    uids = {read(name)["uid"] for name in FILES}
    assert uids == set(FILES)
    for name in FILES:
        urls = {link["url"] for link in read(name)["links"]}
        assert urls >= {f"/d/{uid}" for uid in uids if uid != name}
    assert "http://${instance}:9777/" in {link["url"] for link in read("overlap-node")["links"]}


def links_of(panel: Json) -> Iterator[Mapping[str, Any]]:
    for override in panel.get("fieldConfig", {}).get("overrides", ()):
        for entry in override["properties"]:
            if entry["id"] == "links":
                yield from entry["value"]


@pytest.mark.parametrize("title", PANELS)
def test_a_link_in_a_cell_leads_to_a_dashboard_or_a_runbook(title: str) -> None:
    for link in links_of(PANELS[title]):
        assert re.match(r"/d/overlap-(job|node)\?var-|/d/overlap-runbooks\?viewPanel=\$\{__value\.raw\}$", link["url"]), link
        assert link["targetBlank"] is False


def test_every_alert_has_its_runbook_where_links_lead_to() -> None:
    """By number, as alerts and cells write it; the text is that of the folder, whole."""
    by_number = {panel["id"]: panel for panel in panels("overlap-runbooks")}
    assert len(by_number) == len(NAMES) + 1
    for name in NAMES:
        panel = by_number[panel_of(name)]
        assert panel["title"] == name
        assert f"# {name}\n\n{panel['options']['content']}" == (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
        assert runbook_url(name).startswith("/d/overlap-runbooks/")
        assert runbook_url(name).endswith(f"?viewPanel={panel['id']}")
    listed = re.findall(r"\[(\w+)\]\(\./d/overlap-runbooks\?viewPanel=(\d+)\)", by_number[1]["options"]["content"])
    assert {name: int(number) for name, number in listed} == {name: panel_of(name) for name in NAMES}


@pytest.mark.parametrize("title", ["overlap-fleet: Findings now", "overlap-job: Findings"])
def test_a_cell_shows_the_name_of_the_runbook_whose_number_it_holds(title: str) -> None:
    from dashboards.words import CAUSES

    (query,) = (target["expr"] for target in PANELS[title]["targets"])
    numbers = dict.fromkeys(re.findall(r'"runbook", "(\d+)"', query))
    (override,) = (o for o in PANELS[title]["fieldConfig"]["overrides"] if o["matcher"]["options"] == "Runbook")
    ((mapping,),) = (entry["value"] for entry in override["properties"] if entry["id"] == "mappings")
    shown = {number: mapping["options"][number]["text"] for number in numbers}
    assert shown == {str(panel_of(cause.runbook)): cause.runbook for cause in CAUSES}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11")
def test_runbooks_of_your_own_are_linked_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dashboards.build", "--runbooks", "https://wiki.example.com/gpu/", "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=FOLDER.parent)
    for name in FILES:
        shipped, own = (FOLDER / f"{name}.json").read_text(), (tmp_path / f"{name}.json").read_text()
        changed = shipped.replace("/d/overlap-runbooks?viewPanel=${__value.raw}", "https://wiki.example.com/gpu/${__value.text}.md")
        assert own == changed
        assert (own != shipped) == (name in ("overlap-fleet", "overlap-job"))


def test_every_finding_has_words_a_first_step_and_a_runbook() -> None:
    from dashboards.words import CAUSES

    assert {c.runbook for c in CAUSES} <= set(NAMES)
    assert sorted(c.finding for c in CAUSES) == sorted(r.finding for r in FINDINGS)
    for cause in CAUSES:
        assert 3 <= len(cause.first.split()) <= 8


def test_codes_of_states_are_those_of_the_recording_rule() -> None:
    from dashboards.words import STATES
    from deploy.prometheus.recording import CLUSTER

    (rule,) = (r for r in CLUSTER.rules if getattr(r, "record", "") == "instance:overlap_state:worst")
    assert re.findall(r'state="(\w+)"} \* (\d)', rule.expr) == [(state, str(code)) for code, (state, _) in enumerate(STATES)]


def test_runbooks_name_panels_that_exist() -> None:
    titles = {panel["title"] for panel in PANELS.values()}
    for page in RUNBOOKS.glob("*.md"):
        text = " ".join(page.read_text(encoding="utf-8").split())
        for sentence in re.findall(r"[^.]*dashboard[^.]*\.", text):
            for quoted in re.findall(r'"([A-Z][^"]+)"', sentence):
                assert quoted.rstrip(",") in titles, (page.name, quoted)


def test_the_folder_can_be_provisioned_from_files() -> None:
    provider = yaml.safe_load((FOLDER / "provisioning.yml").read_text(encoding="utf-8"))
    assert provider["apiVersion"] == 1
    assert {p["type"] for p in provider["providers"]} == {"file"}


def test_the_config_maps_are_labelled_for_the_sidecar_and_fit() -> None:
    custom = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    assert custom["generatorOptions"]["labels"]["grafana_dashboard"] == "1"
    assert {f for g in custom["configMapGenerator"] for f in g["files"]} == {path.name for path in FILES.values()}
    assert all(path.stat().st_size < 256 * 1024 for path in FILES.values())  # what kubectl apply keeps in an annotation
