"""Where a reader's frames go: numbers sources by the inventory in force and writes each tick at once.

The other parts of the reader send through it from several threads; `wire.py` knows the frames. When the other side has gone
the process ends: nobody is left to read for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from exporter.model import Device, Source, SourceStatus
from exporter.wire import inventory_frame, quarantine_frame, record_frame, status_frame


class Reading(NamedTuple):
    """A read of one source, before it is a frame."""

    source: Source
    mono_s: float  # the middle of the read
    duration_s: float
    values: Sequence[float]


class Outlet:
    """The writing end of the pipe to the exporter. Thread-safe."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._numbered: dict[str, tuple[int, Source]] = {}  # by name: cheaper to look up than a whole Source

    def send_inventory(
        self, devices: Sequence[Device], sources: Sequence[Source], extra: Mapping[str, Any], mono_s: float
    ) -> None:
        """What is read from now on."""
        with self._lock:
            self._numbered = {source.name: (number, source) for number, source in enumerate(sources)}
            self._write(inventory_frame(devices, sources, mono_s, extra))

    def send_readings(self, readings: Sequence[Reading]) -> None:
        """The reads of one tick, in one write. One of a source that is not in the inventory is dropped."""
        frames: list[bytes] = []
        with self._lock:
            for source, mono_s, duration_s, values in readings:
                number, told = self._numbered.get(source.name, (0, None))
                if told is source or told == source:
                    frames.append(record_frame(number, mono_s, duration_s, values))
            self._write(b"".join(frames))

    def send_status(self, statuses: Sequence[SourceStatus], mono_s: float) -> None:
        """How sources do."""
        with self._lock:
            self._write(b"".join(status_frame(status, mono_s) for status in statuses))

    def send_quarantine(self, kind: str, device_id: str, reason: str | None, mono_s: float) -> None:
        """A device that is left alone from now on, or (reason None) read again."""
        with self._lock:
            self._write(quarantine_frame(kind, device_id, reason, mono_s))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            self._on_broken()
