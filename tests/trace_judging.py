"""A small loader of traces that feeds history and analysis as the daemon would; used by the accuracy test."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exporter.analysis import Analyzer
from exporter.history import History
from exporter.model import Device, Inventory, Link, OverlapAnalysis, Record, Source

_PATH_OF = {"rdma_port": "rdma", "nic": "tcp", "gpu": "nvlink"}


def inventory_of(header: Mapping[str, Any]) -> Inventory:
    """The inventory that a header line describes."""
    devices = tuple(
        Device(
            d["kind"], d["id"], index=d.get("index"), uuid=d.get("uuid"), name=d.get("name"), driver=d.get("driver"),
            power_limit_watts=d.get("power_limit_watts"), power_source=d.get("power_source"),
            power_window_s=d.get("power_window_seconds"), power_refresh_s=d.get("power_refresh_seconds"),
            rate_bytes_per_s=d.get("rate_bytes_per_second"),
        )
        for d in header["devices"]
    )  # fmt: skip
    kinds = {d.id: d.kind for d in devices}
    links = tuple(Link(g, d, _PATH_OF[kinds[d]], "trace") for g, ids in header["links"].items() for d in ids)
    sources = tuple(Source(s["name"], tuple(s["channels"])) for s in header["sources"])
    return Inventory("node-1", header["started_unix_s"], devices, links, sources, header.get("jobs", {}))


def events_of(path: Path) -> Iterator[Inventory | Record]:
    """Inventories and records of a trace, in order."""
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if isinstance(row, dict):
                yield inventory_of(row)
            else:
                yield Record(row[1], row[0], [float("nan") if v is None else float(v) for v in row[2]])


def judged(path: Path, instants: Mapping[tuple[float, float], Any]) -> dict[tuple[float, float], OverlapAnalysis]:
    """(t_end, window) -> the verdict on GPU-0, with the memories that the daemon would have had."""
    history, analyzer = History(), Analyzer()
    asked = sorted(instants)
    found: dict[tuple[float, float], OverlapAnalysis] = {}
    second = 1

    def settle(until_s: float) -> None:
        nonlocal second
        while True:
            named = next((a for a in asked if a not in found and a[0] <= until_s), None)
            if second <= until_s and (named is None or second <= named[0]):
                analyzer.step(history, history.inventory, float(second))
                second += 1
            elif named is not None:
                found[named] = analyzer.evaluate(history, history.inventory, named[0], (named[1],))[0]
            else:
                return

    for event in events_of(path):
        if isinstance(event, Record):
            settle(event.t_s - 1e-9)
            if len(found) == len(asked):
                return found
        history.apply(event)
    settle(max(a[0] for a in asked))
    return found
