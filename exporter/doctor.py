"""`doctor`: looks at this node for a few seconds and says what works, what does not, and what to change.

Called by `cli`. What is looked at stands in `doctor_look`, how it is judged in `doctor_checks`; this module runs both and
prints the answer, as tables or as JSON. The answer is meant to go into a bug report: it holds no secret, no host name, and
nothing of the environment but the two variables that concern the GPUs of a container.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from exporter import __version__
from exporter.clock import SystemClock
from exporter.config import Config
from exporter.doctor_checks import CHECKS
from exporter.doctor_look import look_around, watch
from exporter.doctor_verdict import FAIL, Facts, Verdict

DEFAULT_S = 10.0
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
Row = tuple[str, Verdict]


def examine(config: Config, problems: Sequence[str], seconds: float) -> Facts:
    """Look around, and watch the readers for so long; from the main thread."""
    console = Console(stderr=True)
    waiting = console.status(f"watching the devices for {seconds:g} s") if console.is_terminal else nullcontext()
    # What the readers meet with is part of the answer; it need not be logged as well.
    logging.disable(logging.ERROR)
    try:
        with waiting:
            around = look_around(config)
            return Facts(config, tuple(problems), around, watch(config, SystemClock(), seconds))
    finally:
        logging.disable(logging.NOTSET)


def judge(facts: Facts) -> list[Row]:
    """Every check's lines, in the order of the table."""
    return [(check.name, verdict) for check in CHECKS for verdict in check.judge(facts)]


def doctor(config: Config, problems: Sequence[str], seconds: float, as_json: bool) -> bool:
    """Examine, judge, print; True where nothing that is needed is missing."""
    facts = examine(config, problems, seconds)
    rows = judge(facts)
    good = all(verdict.status != FAIL for _, verdict in rows)
    if as_json:
        print(json.dumps(answer(facts, rows, good), indent=2))
    else:
        _print(facts, rows, good)
    return good


def answer(facts: Facts, rows: Sequence[Row], good: bool) -> dict[str, Any]:
    """All of it as plain values; a value that does not exist is None."""
    seen = facts.seen
    around = asdict(facts.around)
    return {
        "version": __version__,
        "ok": good,
        "seconds": round(seen.seconds, 3),
        "checks": [{"check": name, "status": v.status, "saw": v.saw, "do": v.do or None} for name, v in rows],
        "system": around,
        "devices": [
            {"kind": d.kind, "id": d.id, "uuid": d.uuid, "name": d.name, "driver": d.driver, "power_source": d.power_source,
             "pci_path": d.pci_path, "numa_node": d.numa_node, "rate_bytes_per_s": d.rate_bytes_per_s, "info": dict(d.info)}
            for d in seen.inventory.devices
        ],
        "sources": [
            {"source": s.source, "up": s.up, "reason": s.reason, "reads": s.reads, "missed_ticks": s.missed_ticks,
             "interval_s": s.interval_s, "errors": {k: n for k, n in s.errors.items() if n},
             "read_s": asdict(seen.costs[s.source]) if s.source in seen.costs else None}
            for s in seen.sources
        ],
        "sensors": [asdict(s) for s in seen.sensors],
        "pairing": [{"gpu": k.gpu_id, "device": k.device_id, "path": k.path, "reason": k.reason} for k in seen.inventory.links],
        "transport": {"transport": seen.transport.transport, "reason": seen.transport.reason},
        "quarantined": [{"kind": q.kind, "id": q.id, "reason": q.reason} for q in seen.quarantined],
    }  # fmt: skip


def _print(facts: Facts, rows: Sequence[Row], good: bool) -> None:
    console = Console(width=None if Console().is_terminal else 140, highlight=False, markup=False)
    around, seen = facts.around, facts.seen
    console.print(f"overlap-exporter {__version__}, Python {around.python}, {around.kernel}, user {around.user_id}")
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in around.packages.items())
    console.print(f"packages: {packages}; kernel driver: {around.driver or 'not visible'}\n")
    console.print(_checks(rows))
    if seen.sources:
        console.print(_sources(facts))
    if seen.sensors:
        console.print(_sensors(facts))
    failed = sum(v.status == FAIL for _, v in rows)
    console.print("nothing that is needed is missing" if good else f"{failed} of the above must be changed first")
    sys.stdout.flush()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column.endswith((" ms", "reads", "missed")) else "left", overflow="fold")
    return table


def _checks(rows: Sequence[Row]) -> Table:
    table = _table("", "status", "check", "what was seen", "what to do")
    for name, verdict in rows:
        table.add_row(verdict.status, name, verdict.saw, verdict.do, style=_STYLES[verdict.status] if verdict.do else None)
    return table


def _sources(facts: Facts) -> Table:
    table = _table("\nsources", "source", "up", "reads", "missed", "each ms", "median ms", "longest ms", "errors")
    for s in facts.seen.sources:
        cost = facts.seen.costs.get(s.source)
        errors = ", ".join(f"{reason} {count}" for reason, count in s.errors.items() if count)
        table.add_row(
            s.source, "yes" if s.up else f"no: {s.reason}", str(s.reads), str(s.missed_ticks), _milli(s.interval_s),
            _milli(cost.median_s if cost else None), _milli(cost.longest_s if cost else None), errors,
        )  # fmt: skip
    return table


def _sensors(facts: Facts) -> Table:
    table = _table("\nsensors", "device", "quantity", "new each ms")
    for s in facts.seen.sensors:
        table.add_row(s.id, s.quantity, _milli(s.refresh_s))
    return table


def _milli(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.3g}"
