"""Every trace of tests/fixtures/traces, judged by `analyze --json`: a change of a verdict is read as a diff of its golden file.

Numbers are rounded to 3 digits, and may differ from the file by one and a half units of the last: the sums of numpy differ
from version to version in the last bits. Texts of findings are left out; they have tests of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.offline import analyze, as_json
from tests.conftest import GOLDEN

TRACES = sorted((Path(__file__).parent / "fixtures" / "traces").glob("*.jsonl.gz"))
WINDOWS_S = (15.0, 60.0, 300.0)
DIGITS = 3


def judged(path: Path) -> dict[str, Any]:
    """What `analyze --json TRACE` prints, without texts and rounded."""
    results, session, cut = analyze(str(path), WINDOWS_S, (), None)
    document = json.loads(as_json(path.name, results, cut, session.verdicts))
    for finding in document["findings"]:
        for text in ("title", "meaning"):
            del finding[text]
        finding["advice"] = [advice["key"] for advice in finding["advice"]]
    return rounded(document)  # type: ignore[no-any-return]


def rounded(value: Any) -> Any:
    """Plain values with every float rounded."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def differences(got: Any, wanted: Any, place: str = "") -> list[str]:
    """Where two documents differ by more than the last digit may."""
    if isinstance(got, dict) and isinstance(wanted, dict) and list(got) == list(wanted):
        return [d for key in got for d in differences(got[key], wanted[key], f"{place}.{key}")]
    if isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        return [d for i, (g, w) in enumerate(zip(got, wanted, strict=True)) for d in differences(g, w, f"{place}[{i}]")]
    if isinstance(got, float) and isinstance(wanted, float):
        return [] if got == pytest.approx(wanted, abs=1.5 * 10**-DIGITS, rel=1e-6) else [f"{place}: {got}, not {wanted}"]
    return [] if got == wanted and type(got) is type(wanted) else [f"{place}: {got!r}, not {wanted!r}"]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_a_trace_is_judged_as_its_golden_file_says(
    path: Path, golden: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    name = f"traces/{path.name.removesuffix('.jsonl.gz')}.json"
    document = judged(path)
    if request.config.getoption("--update-golden"):
        golden(name, json.dumps(document, indent=1) + "\n")
        return
    assert (GOLDEN / name).exists(), f"{name} is missing: run with --update-golden and read what it wrote"
    assert differences(document, json.loads((GOLDEN / name).read_text(encoding="utf-8"))) == []


def test_there_is_a_golden_file_for_every_trace_and_none_besides() -> None:
    assert len(TRACES) > 20
    assert {p.stem for p in (GOLDEN / "traces").glob("*.json")} == {p.name.removesuffix(".jsonl.gz") for p in TRACES}


def test_a_difference_is_found_wherever_it_is() -> None:
    document = {"results": [{"state": "partial", "exposed": 0.2, "health": None}], "findings": []}
    assert differences(document, document) == []
    for changed in (
        {"results": [{"state": "partial", "exposed": 0.202, "health": None}], "findings": []},
        {"results": [{"state": "overlapped", "exposed": 0.2, "health": None}], "findings": []},
        {"results": [{"state": "partial", "exposed": 0.2, "health": 0.0}], "findings": []},
        {"results": [], "findings": []},
        {"results": [{"state": "partial", "exposed": 0.2, "health": None}], "findings": [{}]},
    ):
        assert len(differences(changed, document)) == 1
