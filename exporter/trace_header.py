"""The header line of the trace format: an Inventory as plain values and back, and what a trace may hold.

`trace.py` reads and writes whole traces with it. Nothing here touches a file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from exporter.model import Device, Inventory, Link, OneLineError, Source

FORMAT = "overlap-trace"
VERSION = 1

# Keys of a device in the header, beside kind and id, and the fields of Device that they fill. Readers of the format that
# do not know a key pass over it.
_DEVICE_KEYS: tuple[tuple[str, str, type], ...] = (
    ("index", "index", int),
    ("uuid", "uuid", str),
    ("name", "name", str),
    ("power_limit_watts", "power_limit_watts", float),
    ("power_source", "power_source", str),
    ("power_window_seconds", "power_window_s", float),
    ("power_refresh_seconds", "power_refresh_s", float),
    ("driver", "driver", str),
    ("rate_bytes_per_second", "rate_bytes_per_s", float),
    ("numa_node", "numa_node", int),
)
_PATH_OF_KIND = {"rdma_port": "rdma", "nic": "tcp", "gpu": "nvlink"}
_DEVICE_KINDS = ("gpu", "rdma_port", "nic", "disk")
_NVLINK_KEY = "nvlink_transmit_bytes_total"


class TraceError(OneLineError):
    """A trace that cannot be read or written; the message is one line for people."""


def header(inventory: Inventory) -> dict[str, Any]:
    """The header line of an inventory, as plain values.

    >>> header(Inventory("node-1", 0.0, (Device("gpu", "GPU-0", index=0),)))["devices"]
    [{'kind': 'gpu', 'id': 'GPU-0', 'index': 0}]
    """
    links: dict[str, list[str]] = {}
    for link in inventory.links:
        if link.device_id != link.gpu_id:  # NVLink of a GPU follows from its channels
            links.setdefault(link.gpu_id, []).append(link.device_id)
    line: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "host": inventory.host,
        "started_unix_s": inventory.started_unix_s,
        "devices": [_device_entry(device) for device in inventory.devices],
        "links": links,
        "sources": [_source_entry(source) for source in inventory.sources],
    }
    if inventory.jobs:
        line["jobs"] = dict(inventory.jobs)
    if inventory.truth:
        line["truth"] = _plain(inventory.truth)
    return line


def _device_entry(device: Device) -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": device.kind, "id": device.id}
    for key, name, _ in _DEVICE_KEYS:
        if (value := getattr(device, name)) is not None:
            entry[key] = value
    if device.info:
        entry["info"] = dict(device.info)
    return entry


def _source_entry(source: Source) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": source.name, "channels": list(source.channels)}
    if source.interval_s is not None:
        entry["interval_seconds"] = source.interval_s
    return entry


def _plain(value: Any) -> Any:
    """Mappings as dicts, floats without an answer as None: what JSON can say."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_header(line: Mapping[str, Any]) -> Inventory:
    """The inventory of a header line; unknown keys, kinds and channels are left out. TraceError where it is no header."""
    if line.get("format") != FORMAT:
        raise TraceError(f"not a trace: format is {line.get('format')!r}, not {FORMAT!r}")
    if line.get("version") != VERSION:
        raise TraceError(f"version {line.get('version')}; this program reads version {VERSION}")
    devices = tuple(_device(entry) for entry in _entries(line, "devices") if entry.get("kind") in _DEVICE_KINDS)
    kinds = {device.id: device.kind for device in devices}
    if len(kinds) < len(devices):
        twice = next(i for i, n in Counter(device.id for device in devices).items() if n > 1)
        raise TraceError(f"header: two devices are called {twice!r}")
    sources = tuple(_source(entry) for entry in _entries(line, "sources"))
    if len({source.name for source in sources}) < len(sources):
        twice = next(n for n, count in Counter(source.name for source in sources).items() if count > 1)
        raise TraceError(f"header: two sources are called {twice!r}")
    return Inventory(
        host=_typed(line, "host", str) or "",
        started_unix_s=_typed(line, "started_unix_s", float) or 0.0,
        devices=devices,
        links=_links(_mapping(line, "links"), kinds, sources),
        sources=sources,
        jobs=MappingProxyType({str(gpu): str(job) for gpu, job in _mapping(line, "jobs").items()}),
        truth=MappingProxyType(dict(_mapping(line, "truth"))),
    )


def _typed(entry: Mapping[str, Any], key: str, kind: type) -> Any:
    """The value of a key, None where it is missing or null; TraceError where it is of another kind."""
    value = entry.get(key)
    if value is None:
        return None
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            if math.isfinite(value):
                return float(value)
    elif isinstance(value, kind) and not isinstance(value, bool):
        return value
    wanted = {int: "a whole number", float: "a number", str: "a string"}[kind]
    raise TraceError(f"header: {key} is {short(value)}, not {wanted}")


def _entries(line: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    entries = line.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise TraceError(f"header: {key} is {short(entries)}, not a list of objects")
    return entries


def _mapping(line: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = line.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TraceError(f"header: {key} is {short(value)}, not an object")
    return value


def _device(entry: Mapping[str, Any]) -> Device:
    if (device_id := _typed(entry, "id", str)) is None:
        raise TraceError(f"header: a device of kind {entry.get('kind')} has no id")
    fields = {name: _typed(entry, key, kind) for key, name, kind in _DEVICE_KEYS}
    info = MappingProxyType({str(k): str(v) for k, v in _mapping(entry, "info").items()})
    return Device(kind=str(entry["kind"]), id=device_id, info=info, **fields)


def _source(entry: Mapping[str, Any]) -> Source:
    name, channels = _typed(entry, "name", str), entry.get("channels")
    if name is None or not isinstance(channels, list) or not all(isinstance(c, str) for c in channels):
        raise TraceError(f"header: source {short(name)} needs a name and a list of channels")
    return Source(name, tuple(channels), _typed(entry, "interval_seconds", float))


def _links(links: Mapping[str, Any], kinds: Mapping[str, str], sources: Iterable[Source]) -> tuple[Link, ...]:
    """Links of known devices; a device that n GPUs list weighs 1/n for each of them."""
    wanted: list[tuple[str, str]] = []
    for gpu, ids in links.items():
        if not isinstance(ids, list):
            raise TraceError(f"header: links of {gpu} are {short(ids)}, not a list of device ids")
        wanted += [(gpu, i) for i in dict.fromkeys(map(str, ids)) if i != gpu and kinds.get(i) in _PATH_OF_KIND]
    wanted = [(gpu, i) for gpu, i in wanted if kinds.get(gpu) == "gpu"]
    shared = Counter(i for _, i in wanted)
    known = [Link(gpu, i, _PATH_OF_KIND[kinds[i]], "trace", 1.0 / shared[i]) for gpu, i in wanted]
    channels = {channel for source in sources for channel in source.channels}
    nvlink = [Link(i, i, "nvlink", "trace") for i, kind in kinds.items() if kind == "gpu" and f"{i}/{_NVLINK_KEY}" in channels]
    return tuple(known + nvlink)


def short(value: object) -> str:
    """A value as it may stand in a message of one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
