"""Writes docs/metrics.md from the catalogue of metrics: `python -m docs.metrics_table`. A test compares the two."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from exporter.family import Family
from exporter.metrics import FAMILIES
from exporter.quantities import QUANTITIES
from exporter.self_metrics import SELF_FAMILIES

PAGE = Path(__file__).parent / "metrics.md"

_INTRODUCTION = """\
# Metrics

Generated from the catalogue in `exporter/metrics.py` by `python -m docs.metrics_table`; do not edit by hand.

- Base units: seconds, bytes, watts, ratios from 0 to 1. **A value that does not exist is absent**, never 0, -1 or NaN.
- GPU series carry `gpu` (index) and `uuid`, RDMA series `device` and `port`, NIC series `device`.
- `window` is `15s`, `60s` or `300s` unless configured otherwise. Never add or average over windows.
- Info series and state sets are gauges; of a state set exactly one is 1.
- "Origin" is where the value is read: an NVML call, a file, or a part of the exporter.
- The standard `process_*` metrics of the main process stand beside these.
"""

_NOTES = {
    "Verdicts": "What the analysis says of each GPU. What the states mean: [what-the-states-mean.md](what-the-states-mean.md).",
    "Readings": "What was read from the devices, unchanged but for units.",
    "Devices and findings": "What there is, how it belongs together, and the causes that are active.",
    "The exporter itself": "Its sources, its analysis and its processes. `source` is a kind of reading, never a device.",
}


def _sections() -> Iterable[tuple[str, list[Family], str]]:
    """Title, families in the order of the catalogue, and the origin of those that name none."""
    raw, own = {q.metric for q in QUANTITIES}, {f.name for f in SELF_FAMILIES}
    rest = [f for f in FAMILIES if f.name not in own]
    yield "Verdicts", [f for f in rest if f.origin == "analysis"], ""
    yield "Readings", [f for f in rest if f.name in raw], ""
    yield "Devices and findings", [f for f in rest if f.name not in raw and f.origin != "analysis"], "inventory and diagnosis"
    yield "The exporter itself", [f for f in FAMILIES if f.name in own], "the exporter"


def _row(family: Family, origin: str) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
    where = family.origin or origin
    # Paths hold brackets that a browser would take for tags.
    where = f"`{where}`" if "/" in where or where.startswith("nvml") else where
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help.replace('|', chr(92) + '|')} | {where} |"


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for title, families, origin in _sections():
        rows = "\n".join(_row(family, origin) for family in families)
        head = "| name | kind | labels | meaning | origin |\n|---|---|---|---|---|"
        parts.append(f"## {title}\n\n{_NOTES[title]}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(FAMILIES)} metrics")
