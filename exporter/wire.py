"""Frames on the pipe from a reader to the exporter. Both sides import this; standard library only.

A frame is a header `<IBHdf` (payload length, type, source number, time stamp on the machine's monotonic clock, duration
of the read) and a payload. Records carry 8-byte floats in the order of the source's channels; the rare rest is JSON:
the part of the inventory that this reader sees, statuses, quarantines. A source's number is its place in the last
inventory frame of the same pipe. A reader writes the frames of one tick with one write.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from exporter.model import Device, Inventory, Quarantine, Record, Source, SourceStatus

_HEAD = struct.Struct("<IBHdf")
_RECORD, _INVENTORY, _STATUS, _QUARANTINE = 1, 2, 3, 4


def record_frame(number: int, mono_s: float, duration_s: float, values: Sequence[float]) -> bytes:
    """A read of source `number`, stamped at its middle."""
    payload = array("d", values).tobytes()
    return _HEAD.pack(len(payload), _RECORD, number, mono_s, duration_s) + payload


def inventory_frame(devices: Sequence[Device], sources: Sequence[Source], mono_s: float, extra: Mapping[str, Any]) -> bytes:
    """What this reader reads from now on. `extra` holds plain values for the exporter (nvml_gpus, pci_gpus, ...)."""
    body = {
        "devices": [{**asdict_device(d)} for d in devices],
        "sources": [asdict(s) for s in sources],
        "extra": dict(extra),
    }
    return _json_frame(_INVENTORY, mono_s, body)


def asdict_device(device: Device) -> dict[str, Any]:
    """A Device as plain values; `info` becomes a dict."""
    values = {name: getattr(device, name) for name in Device.__dataclass_fields__}
    values["info"] = dict(device.info)
    return values


def status_frame(status: SourceStatus, mono_s: float) -> bytes:
    """How a source does; its `t_s` is taken from `mono_s` on the other side."""
    body = {
        "source": status.source, "missed_ticks": status.missed_ticks, "interval_s": status.interval_s,
        "errors": dict(status.errors), "up": status.up, "reason": status.reason,
    }
    return _json_frame(_STATUS, mono_s, body)


def quarantine_frame(kind: str, device_id: str, reason: str | None, mono_s: float) -> bytes:
    """A device that this reader has given up, or (reason None) taken up again."""
    return _json_frame(_QUARANTINE, mono_s, {"kind": kind, "id": device_id, "reason": reason})


def _json_frame(kind: int, mono_s: float, body: Mapping[str, Any]) -> bytes:
    payload = json.dumps(body, separators=(",", ":")).encode()
    return _HEAD.pack(len(payload), kind, 0, mono_s, 0.0) + payload


class Decoder:
    """Turns the bytes of one pipe back into events. `feed` may be given any cut of the stream.

    started_mono_s is the start of the session: time stamps become seconds since then. A frame that makes no sense
    raises ValueError; the reader that wrote it is then replaced.
    """

    def __init__(self, started_mono_s: float, host: str, started_unix_s: float) -> None:
        self._started_mono_s = started_mono_s
        self._host = host
        self._started_unix_s = started_unix_s
        self._rest = b""
        self._sources: tuple[Source, ...] = ()
        self.extra: Mapping[str, Any] = {}

    def feed(self, data: bytes) -> Iterator[Record | Inventory | SourceStatus | Quarantine]:
        """Yield the events whose frames are whole now."""
        buffer = self._rest + data if self._rest else data
        at = 0
        while len(buffer) - at >= _HEAD.size:
            length, kind, number, mono_s, duration_s = _HEAD.unpack_from(buffer, at)
            if length > 1 << 24:
                raise ValueError(f"frame of {length} bytes")
            end = at + _HEAD.size + length
            if end > len(buffer):
                break
            payload = buffer[at + _HEAD.size : end]
            at = end
            t_s = mono_s - self._started_mono_s
            if kind == _RECORD:
                if number >= len(self._sources):
                    raise ValueError(f"record of unknown source {number}")
                values = array("d")
                values.frombytes(payload)
                yield Record(self._sources[number].name, t_s, values, duration_s)
            else:
                yield self._decode_json(kind, t_s, json.loads(payload))
        self._rest = buffer[at:]

    def _decode_json(self, kind: int, t_s: float, body: Mapping[str, Any]) -> Inventory | SourceStatus | Quarantine:
        if kind == _INVENTORY:
            self.extra = body["extra"]
            self._sources = tuple(Source(s["name"], tuple(s["channels"]), s["interval_s"]) for s in body["sources"])
            devices = tuple(Device(**d) for d in body["devices"])
            return Inventory(self._host, self._started_unix_s, devices, (), self._sources)
        if kind == _STATUS:
            return SourceStatus(t_s=t_s, **body)
        if kind == _QUARANTINE:
            return Quarantine(body["kind"], body["id"], t_s, body["reason"])
        raise ValueError(f"frame of unknown type {kind}")
