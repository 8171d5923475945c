"""What the HTTP API says: a Snapshot and a stretch of waveform as values ready for JSON.

`endpoints.py` sends them, `top` reads them. Pure functions over what is in memory; what does not exist is None, and
nothing here reads a clock or a device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporter import __version__
from exporter.advice import ADVICE
from exporter.meanings import EVIDENCE, FINDINGS, STATES, TRANSPORTS
from exporter.model import Device, Finding, Inventory, Link, OverlapAnalysis, Series, Snapshot, SourceHealth
from exporter.quantities import split_channel
from exporter.reasons import SENTENCES, pattern, replacement
from exporter.waveform import links_of, numbers, power_of, traffic_of
from exporter.wording import LANGUAGES, both, evidence_json, finding_json

Array = NDArray[np.float64]

_FINEST_STEP_S = 0.05
_MOST_POINTS = 600


def snapshot_json(snapshot: Snapshot, *, words: bool = True) -> dict[str, Any]:
    """All of a snapshot that people look at. Times `*_s` are seconds of the session; `wall_s` is Unix time.

    words: findings carry title, meaning and advice in every language, as in `analyze --json`; else the keys alone, for
    the page, which has the words already and takes a snapshot each second.
    """
    tell = finding_json if words else _brief
    readings = _readings_by_device(snapshot)
    return {
        "t_s": snapshot.t_s,
        "wall_s": snapshot.wall_s,
        "started_unix_s": snapshot.inventory.started_unix_s,
        "host": snapshot.inventory.host,
        "version": __version__,
        "mode": snapshot.mode,
        "transport": snapshot.transport,
        "verdict_window_s": snapshot.verdict_window_s,
        "config_reload_ok": snapshot.config_reload_ok,
        "gpus": [_gpu(snapshot, d, readings, tell, gone=False) for d in snapshot.inventory.of_kind("gpu")]
        + [_gpu(snapshot, d, readings, tell, gone=True) for d in snapshot.gone],
        "ports": [_device(d, readings) for d in snapshot.inventory.of_kind("rdma_port")],
        "nics": [_device(d, readings) for d in snapshot.inventory.of_kind("nic")],
        "node_findings": [tell(f) for f in snapshot.findings if f.gpu_id is None],
        "sources": [_source(snapshot, s) for s in snapshot.sources],
        "quarantined": [{"kind": q.kind, "id": q.id, "reason": q.reason, "since_s": q.t_s} for q in snapshot.quarantined],
        "counted_gpus": {"pci": snapshot.pci_gpus, "nvml": snapshot.nvml_gpus},
        "refresh": [{"kind": r.kind, "id": r.id, "quantity": r.quantity, "refresh_s": r.refresh_s} for r in snapshot.refresh],
        "processes": [{"process": p.process, "cpu_s": p.cpu_s, "memory_bytes": p.memory_bytes} for p in snapshot.processes],
    }


def _readings_by_device(snapshot: Snapshot) -> dict[str, dict[str, float]]:
    ids = frozenset(d.id for d in snapshot.inventory.devices)
    readings: dict[str, dict[str, float]] = {}
    for channel, (value, _) in snapshot.latest.items():
        if math.isfinite(value) and (split := split_channel(channel, ids)) is not None:
            readings.setdefault(split[0], {})[split[1]] = value
    return readings


def _device(device: Device, readings: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {
        "id": device.id,
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "driver": device.driver,
        "rate_bytes_per_s": device.rate_bytes_per_s,
        "info": dict(device.info),
        "readings": readings.get(device.id, {}),
    }


def _gpu(snapshot: Snapshot, device: Device, readings: dict[str, dict[str, float]],
         tell: Callable[[Finding], dict[str, Any]], *, gone: bool) -> dict[str, Any]:  # fmt: skip
    mine = not gone
    quarantine = next((q.reason for q in snapshot.quarantined if mine and q.kind == "gpu" and q.id == device.id), None)
    refresh_s = next((r.refresh_s for r in snapshot.refresh if mine and r.id == device.id and r.quantity == "power"), None)
    return {
        **_device(device, {} if gone else readings),
        "gone": gone,
        "quarantined": quarantine,
        "power_source": device.power_source,
        "power_limit_watts": device.power_limit_watts,
        "power_refresh_s": refresh_s,
        "analyses": [_analysis(a) for a in snapshot.analyses if mine and a.gpu_id == device.id],
        "phases": dict(snapshot.phases.get(device.id, {})) if mine else {},
        "links": [_link(li) for li in snapshot.inventory.links if mine and li.gpu_id == device.id],
        "findings": [tell(f) for f in snapshot.findings if mine and f.gpu_id == device.id],
    }


def _analysis(analysis: OverlapAnalysis) -> dict[str, Any]:
    """The fields of `analyze --json`: "gpu" stands for gpu_id, the rest as in the model."""
    fields = dataclasses.asdict(analysis)
    return {"gpu": fields.pop("gpu_id"), **{k: _finite(v) for k, v in fields.items()}}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _link(link: Link) -> dict[str, Any]:
    return {"device": link.device_id, "path": link.path, "reason": link.reason, "weight": link.weight}


def _brief(finding: Finding) -> dict[str, Any]:
    """Without words, and with the keys of its advice alone: those who know the words of `texts_json` need no more."""
    return {
        "finding": finding.finding,
        "gpu": finding.gpu_id,
        "since_s": finding.since_s,
        "evidence": evidence_json(finding),
        "advice": list(finding.advice),
    }


def _source(snapshot: Snapshot, source: SourceHealth) -> dict[str, Any]:
    last_s = source.last_success_s
    return {
        "source": source.source,
        "kind": source.source.split("/", 1)[0],
        "up": source.up,
        "reason": source.reason,
        "reads": source.reads,
        "errors": dict(source.errors),
        "missed_ticks": source.missed_ticks,
        "restarts": source.restarts,
        "interval_s": source.interval_s,
        "silent_s": None if last_s is None else max(0.0, snapshot.t_s - last_s),
    }


def texts_json() -> dict[str, Any]:
    """The words for findings with evidence and advice, states, transports and reasons, in both languages, for the page."""
    return {
        "findings": {k: {"title": both(m.title), "meaning": both(m.meaning)} for k, m in FINDINGS.items()},
        "advice": {k: {"action": both(a.action), "cost": both(a.cost)} for k, a in ADVICE.items()},
        "states": {k: both(text) for k, text in STATES.items()},
        "transports": {k: both(text) for k, text in TRANSPORTS.items()},
        "evidence": {k: both(text) for k, text in EVIDENCE.items()},
        "reasons": [{"pattern": pattern(k), **{n: replacement(k, n) for n in LANGUAGES}} for k in SENTENCES],
    }


def find_gpu(inventory: Inventory, wanted: str) -> Device | None:
    """The GPU that an index, an id or a UUID names."""
    return next((d for d in inventory.of_kind("gpu") if wanted in (d.id, d.uuid, str(d.index))), None)


def waveform_json(history: Series, inventory: Inventory, gpu: Device, end_s: float, seconds: float) -> dict[str, Any]:
    """Power as it was read, and traffic by path on an even grid, over end_s - seconds to end_s.

    power.t_s [n] and power.watts [n]; traffic.t_s [m], traffic.<path> [m] in bytes per second, where m is at most 600.
    None stands where a counter was not read for a second or restarted. A path without a counter is missing.
    """
    t_s, watts = power_of(history, gpu, end_s - seconds, end_s)
    step_s = max(_FINEST_STEP_S, seconds / _MOST_POINTS)
    grid_s: Array = end_s - seconds + step_s * np.arange(round(seconds / step_s) + 1, dtype=np.float64)
    traffic = traffic_of(history, links_of(inventory, gpu), end_s - seconds, end_s).between(grid_s[:-1], grid_s[1:])
    return {
        "gpu": gpu.id,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "start_s": end_s - seconds,
        "end_s": end_s,
        "power": {"t_s": numbers(t_s, 3), "watts": numbers(watts, 1)},
        "traffic": {"t_s": numbers(grid_s[1:], 3), **{path: numbers(rate, 0) for path, rate in traffic.items()}},
    }
