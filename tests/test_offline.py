"""What `analyze` says besides numbers: causes with their evidence, what to do, in two languages, as text and as JSON."""

from __future__ import annotations

import ast
import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exporter import rules, symptoms, wording
from exporter.advice import ADVICE
from exporter.meanings import EVIDENCE, FINDINGS
from exporter.model import Evidence, Finding
from exporter.offline import analyze
from exporter.rules import RULES
from exporter.sources.simulator import simulate
from exporter.trace import TraceError, TraceWriter
from exporter.wording import evidence_text, finding_json, language_of

RULE = {rule.finding: rule for rule in RULES}
Traces = dict[str, Path]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """100 s of a job with two causes, and of one with none, on three GPUs."""
    folder = tmp_path_factory.mktemp("traces")
    paths = {}
    for name in ("link_degraded", "perfect_overlap"):
        paths[name] = folder / f"{name}.jsonl.gz"
        with TraceWriter(paths[name]) as writer:
            for event in simulate(name, 100.0, gpus=3):
                writer.write(event)
    return paths


def run(*args: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "LC_MESSAGES")}
    done = subprocess.run([sys.executable, "-m", "exporter", "analyze", *args], capture_output=True, text=True, timeout=60,
                          encoding="utf-8", env={**clean, "PYTHONUTF8": "1", **environment})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def words(text: str) -> str:
    """Without line breaks and indentation, which depend on the width."""
    return "".join(text.split())


def test_causes_follow_the_table_with_evidence_and_advice_and_costs(traces: Traces) -> None:
    said = run(str(traces["link_degraded"]), "--window", "60")
    table, _, findings = said.partition("Findings at 99 s")
    assert "GPU-0    60 s  partial" in table
    assert "The job's traffic goes over RDMA. RDMA ports move the bytes." in table
    for name in ("exposed_communication", "link_degraded"):
        assert f"{FINDINGS[name].title.en} ({name})" in findings
        assert words(FINDINGS[name].meaning.en) in words(findings)
        for number, key in enumerate(RULE[name].advice, 1):
            told = f"{number}. {ADVICE[key].action.en} Cost: {ADVICE[key].cost.en}"
            assert words(told) in words(findings), key
    assert re.search(r"  GPU-1, since \d+ s: exposed communication \d+ % \(threshold 5 %\), health \d+ %", findings)
    assert re.search(r"  this node, since \d+ s: mlx5_2/1 line rate 25 GB/s \(threshold 45 GB/s\), mlx5_2/1 link", findings)


def test_advice_is_given_once_for_all_gpus_of_a_cause(traces: Traces) -> None:
    said = run(str(traces["link_degraded"]))
    assert len(re.findall(r"^  GPU-\d, since", said, re.MULTILINE)) == 3
    assert said.count("bucket_cap_mb") == 1


def test_the_same_in_chinese(traces: Traces) -> None:
    said = run(str(traces["link_degraded"]), "--language", "zh")
    for name in ("exposed_communication", "link_degraded"):
        assert f"{FINDINGS[name].title.zh} ({name})" in said
        for key in RULE[name].advice:
            assert words(ADVICE[key].action.zh) in words(said)
            assert words(f"代价：{ADVICE[key].cost.zh}") in words(said)
    assert "mlx5_2/1 线路速率 25 GB/s（阈值 45 GB/s）" in said
    assert "Cost" not in said


@pytest.mark.parametrize(("environment", "chinese"), [
    ({"LANG": "zh_CN.UTF-8"}, True),
    ({"LANG": "C.UTF-8", "LC_ALL": "zh_TW.UTF-8"}, True),
    ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, False),
    ({}, False),
])  # fmt: skip
def test_the_language_is_that_of_the_terminal(traces: Traces, environment: dict[str, str], chinese: bool) -> None:
    assert ("可以怎么做" in run(str(traces["link_degraded"]), **environment)) is chinese


def test_the_flag_beats_the_terminal(traces: Traces) -> None:
    assert "What to do" in run(str(traces["link_degraded"]), "--language", "en", LANG="zh_CN.UTF-8")


def test_a_job_that_is_well_has_no_finding_and_the_output_says_so(traces: Traces) -> None:
    assert run(str(traces["perfect_overlap"])).endswith("No finding: no rule names a cause.\n")
    assert json.loads(run(str(traces["perfect_overlap"]), "--json"))["findings"] == []


def test_json_holds_the_findings_with_all_words_and_the_transport(traces: Traces) -> None:
    document: dict[str, Any] = json.loads(run(str(traces["link_degraded"]), "--json", LANG="zh_CN.UTF-8"))
    assert document["transport"] == "rdma"
    assert document["transport_reason"] == "rdma_moves"
    assert document["findings_at_s"] == 99.0
    assert [(f["finding"], f["gpu"]) for f in document["findings"]] == [
        *(("exposed_communication", f"GPU-{g}") for g in range(3)), ("link_degraded", None),
    ]
    finding = document["findings"][-1]
    assert set(finding) == {"finding", "gpu", "since_s", "title", "meaning", "evidence", "advice"}
    assert 33.0 <= finding["since_s"] <= 36.0  # the port falls after a third of the trace, and is read each second
    assert finding["title"] == {"en": FINDINGS["link_degraded"].title.en, "zh": FINDINGS["link_degraded"].title.zh}
    assert {"name": "mlx5_2/1 rate", "value": 25e9, "unit": "bytes_per_second", "threshold": 45e9} in finding["evidence"]
    assert [a["key"] for a in finding["advice"]] == list(RULE["link_degraded"].advice)
    for advice in finding["advice"]:
        known = ADVICE[advice["key"]]
        assert advice["en"] == {"action": known.action.en, "cost": known.cost.en}
        assert advice["zh"] == {"action": known.action.zh, "cost": known.cost.zh}


def test_findings_are_those_of_the_last_instant_named(traces: Traces) -> None:
    early, late = (json.loads(run(str(traces["link_degraded"]), "--json", "--at", at, "--at", "10")) for at in ("20", "95.5"))
    assert (early["findings_at_s"], early["findings"]) == (20.0, [])
    assert late["findings_at_s"] == 95.0
    assert {f["finding"] for f in late["findings"]} == {"exposed_communication", "link_degraded"}
    assert [r["at_s"] for r in late["results"][::9]] == [10.0, 95.5]


def test_an_instant_beyond_the_end_is_still_refused_after_one_within(traces: Traces) -> None:
    with pytest.raises(TraceError, match="--at 180: the trace ends at 100"):
        analyze(str(traces["link_degraded"]), (60.0,), (20.0, 180.0), None)


def test_a_trace_that_is_cut_off_says_so_also_when_an_early_instant_is_asked_for(traces: Traces, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(traces["link_degraded"].read_bytes()[:-2000])
    results, session, reason = analyze(str(cut), (15.0,), (20.0,), None)
    assert reason
    assert session.verdicts.at_s == 20.0
    assert {r.at_s for r in results} == {20.0}


def test_every_number_that_a_rule_may_give_has_words() -> None:
    """The names as they stand in the code of the rules; the counters of congestion and links from their tables."""
    names = {sign.counter for sign in symptoms.CONGESTION} | symptoms._LINK_EVENTS.keys()
    names |= {name for _, name, _ in rules._WITNESSES}
    for module in (rules, symptoms):
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ("Evidence", "_evidence"):
                names |= {part.split()[-1] for part in fixed_parts(node.args[0])}
    assert names == set(EVIDENCE)


def fixed_parts(node: ast.expr) -> list[str]:
    """The constant text of a name: "exposed", or " rate" of f"{port.id} rate"."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return [str(part.value) for part in parts if isinstance(part, ast.Constant) and str(part.value).strip()]


@pytest.mark.parametrize(("evidence", "en", "zh"), [
    (Evidence("health", 0.021, "ratio"), "health 2.1 %", "重叠健康度 2.1 %"),
    (Evidence("power_median", 688.4, "watts", 679.0), "median power 688 W (threshold 679 W)", "功耗中位数 688 W（阈值 679 W）"),
    (Evidence("resolution", 0.4, "seconds"), "shortest rhythm that can be seen 0.4 s", "能分辨的最短节奏 0.4 s"),
    (Evidence("disk_read", 3.2e6, "bytes_per_second"), "read from disks 3.2 MB/s", "磁盘读取 3.2 MB/s"),
    (Evidence("mlx5_1/1 pfc_pause", 4200.0, "per_second", 1000.0), "mlx5_1/1 pause frames 4,200/s (threshold 1,000/s)",
     "mlx5_1/1 PFC 暂停帧 4,200/s（阈值 1,000/s）"),
    (Evidence("something_new", 3.0, "furlongs"), "something new 3 furlongs", "something new 3 furlongs"),
])  # fmt: skip
def test_a_number_is_told_with_unit_and_threshold(evidence: Evidence, en: str, zh: str) -> None:
    assert (evidence_text(evidence, "en"), evidence_text(evidence, "zh")) == (en, zh)


def test_a_number_that_json_cannot_hold_is_null() -> None:
    told = finding_json(Finding("congestion", None, 1.0, (Evidence("drops", float("nan"), "ratio", float("inf")),)))
    assert told["evidence"] == [{"name": "drops", "value": None, "unit": "ratio", "threshold": None}]
    json.dumps(told, allow_nan=False)


def test_an_empty_variable_does_not_hide_the_next() -> None:
    assert language_of({"LC_ALL": "", "LC_MESSAGES": "", "LANG": "zh_CN"}) == "zh"


def test_the_examples_of_the_wording_are_right() -> None:
    found = doctest.testmod(wording)
    assert found.attempted >= 5
    assert found.failed == 0
