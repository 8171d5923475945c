"""Writes the dashboards beside it: `python -m dashboards.build [--runbooks URL] [--out F]`.

The JSON is committed; a test regenerates it and compares bytes. What the library leaves out (ids of panels) is added here,
what it writes without need (fields of other kinds of variables) is taken out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.exporter import exporter
from dashboards.fleet import fleet
from dashboards.job import job
from dashboards.node import node
from dashboards.runbooks import runbooks
from dashboards.words import runbook_link

HERE = Path(__file__).parent
DASHBOARDS: Mapping[str, Callable[[], Dashboard]] = {
    "overlap-fleet": fleet, "overlap-job": job, "overlap-node": node, "overlap-exporter": exporter,
    "overlap-runbooks": runbooks,
}  # fmt: skip
_OF_INTERVALS = ("auto", "auto_count", "auto_min")  # the library writes them on every kind of variable


def _lay_out(panels: Iterable[dict[str, Any]]) -> None:
    """Places each panel as high as it fits, then as far left: small ones stack beside a tall one."""
    filled = [0] * 24
    for panel in panels:
        width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
        y, x = min((max(filled[x : x + width]), x) for x in range(24 - width + 1))
        filled[x : x + width] = [y + height] * width
        panel["gridPos"] |= {"x": x, "y": y}


def as_json(build: Callable[[], Dashboard]) -> str:
    """The text of a dashboard's file."""
    built = json.loads(JSONEncoder(sort_keys=True).encode(build().build()))
    _lay_out(built["panels"])
    for number, panel in enumerate(built["panels"], 1):
        panel["id"] = number
    for variable in built["templating"].get("list", []):
        for key in _OF_INTERVALS:
            variable.pop(key, None)
    built["version"] = 1
    return json.dumps(built, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def files(own_runbooks: str = "") -> Mapping[str, str]:
    """File name -> text of everything that is generated here; `own_runbooks` is the address of that flag."""
    texts = {f"{name}.json": as_json(build) for name, build in DASHBOARDS.items()}
    return {name: text.replace(runbook_link(), runbook_link(own_runbooks)) for name, text in texts.items()}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.build", description="Write the dashboards.")
    parser.add_argument("--runbooks", default="", metavar="URL",
                        help="runbooks of your own, NAME.md below this address (default: the dashboard Overlap / Runbooks)")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER", help="where to write (default: beside this file)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in files(args.runbooks).items():
        (args.out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
