"""Unit tests of rules by promtool: series in, expected samples or alerts at a minute out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.prometheus.build import files
from tests.tools import require

Series = Mapping[str, str]  # a series as it is written in PromQL -> its values, one a minute, in promtool's notation


def run(folder: Path, series: Series, *, samples: Sequence[Mapping[str, Any]] = (),
        alerts: Sequence[Mapping[str, Any]] = (), rules: Mapping[str, str] | None = None) -> str:  # fmt: skip
    """What promtool has to say against the expectations; empty where they are met. rules: those that are shipped, or others."""
    promtool = require("promtool")
    rules = {n: t for n, t in files().items() if n.startswith("overlap-")} if rules is None else rules
    for name, text in rules.items():
        (folder / name).write_text(text, encoding="utf-8")
    test = {
        "rule_files": sorted(rules),
        "evaluation_interval": "30s",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": list(samples),
            "alert_rule_test": list(alerts),
        }],
    }  # fmt: skip
    file = folder / "test.yml"
    file.write_text(json.dumps(test), encoding="utf-8")  # JSON is YAML
    done = subprocess.run([promtool, "test", "rules", file.name], cwd=folder, capture_output=True, text=True, timeout=200)
    assert (done.returncode == 0) == ("SUCCESS" in done.stdout), done
    return "" if done.returncode == 0 else done.stdout + done.stderr
