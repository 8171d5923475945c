"""A finding in words: title, meaning, evidence with units and thresholds, advice with its costs, in English and Chinese.

`offline` prints it and puts it into `analyze --json`, `api` into the snapshot. Texts stand in `meanings.py` and
`advice.py`; nothing here decides when a finding appears, and a name without a text of its own is shown as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from exporter.advice import ADVICE, Text
from exporter.meanings import EVIDENCE, FINDINGS
from exporter.model import Evidence, Finding

LANGUAGES = ("en", "zh")
_THRESHOLD = Text("threshold", "阈值")
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def language_of(environment: Mapping[str, str]) -> str:
    """The language of a terminal: zh where its locale says so, else en. LC_ALL beats LC_MESSAGES beats LANG (POSIX).

    >>> language_of({"LANG": "zh_CN.UTF-8"}), language_of({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}), language_of({})
    ('zh', 'en', 'en')
    """
    locale = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := environment.get(name))), "")
    return "zh" if locale.lower().startswith("zh") else "en"


def both(text: Text) -> dict[str, str]:
    """A text in every language, ready for JSON.

    >>> both(Text("wait", "等待"))
    {'en': 'wait', 'zh': '等待'}
    """
    return {language: text.of(language) for language in LANGUAGES}


def evidence_json(finding: Finding) -> list[dict[str, Any]]:
    """The numbers of a finding: name, value, unit, and the threshold or None; None too for what JSON cannot hold."""
    return [
        {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in dataclasses.asdict(e).items()}
        for e in finding.evidence
    ]


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding with all of its words in every language; `gpu` is None for a finding on the node."""
    told = FINDINGS[finding.finding]
    return {
        "finding": finding.finding,
        "gpu": finding.gpu_id,
        "since_s": finding.since_s,
        "title": both(told.title),
        "meaning": both(told.meaning),
        "evidence": evidence_json(finding),
        "advice": [{"key": key, **{language: _advice(key, language) for language in LANGUAGES}} for key in finding.advice],
    }


def _advice(key: str, language: str) -> dict[str, str]:
    return {"action": ADVICE[key].action.of(language), "cost": ADVICE[key].cost.of(language)}


def evidence_text(evidence: Evidence, language: str) -> str:
    """One number as people read it, with its unit and what it was held against.

    >>> evidence_text(Evidence("exposed", 0.4437, "ratio", 0.05), "en")
    'exposed communication 44 % (threshold 5 %)'
    >>> evidence_text(Evidence("mlx5_2/1 rate", 25e9, "bytes_per_second", 45e9), "zh")
    'mlx5_2/1 线路速率 25 GB/s（阈值 45 GB/s）'
    """
    device, _, name = evidence.name.rpartition(" ")
    words = EVIDENCE[name].of(language) if name in EVIDENCE else name.replace("_", " ")
    said = " ".join(part for part in (device, words, measured(evidence.value, evidence.unit)) if part)
    if evidence.threshold is None:
        return said
    open_, close = ("（", "）") if language == "zh" else (" (", ")")
    return f"{said}{open_}{_THRESHOLD.of(language)} {measured(evidence.threshold, evidence.unit)}{close}"


def measured(value: float, unit: str) -> str:
    """A number in its unit, with as many digits as mean something; a ratio as per cent.

    >>> measured(1.2e-4, "ratio"), measured(6.9e2, "watts"), measured(22.5e9, "bytes_per_second"), measured(0.18, "seconds")
    ('0.012 %', '690 W', '22.5 GB/s', '0.18 s')
    >>> measured(2.0, "count"), measured(12345.6, "per_second"), measured(1.0, "ratio")
    ('2', '12,346/s', '100 %')
    """
    if unit == "ratio":
        percent = 100.0 * value
        return f"{percent:.0f} %" if abs(percent) >= 10 else f"{percent:.2g} %"
    if unit == "bytes_per_second":
        size, prefix = next(((size, prefix) for size, prefix in _PREFIXES if abs(value) >= size), (1.0, ""))
        return f"{value / size:.3g} {prefix}B/s"
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return number + {"watts": " W", "seconds": " s", "per_second": "/s", "count": ""}.get(unit, f" {unit.replace('_', ' ')}")
