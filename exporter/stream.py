"""The newest snapshot for every open event stream, as bytes that are made once.

`endpoints` runs one loop per client over `next`. A client that cannot follow misses snapshots: none are kept for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from exporter.api import snapshot_json
from exporter.collector import Exposition

_HEARTBEAT_S = 5.0
WAITING = b": waiting\n\n"  # a comment, which browsers pass over: shows that we are still there


def to_json(value: Any) -> bytes:
    """Compact JSON; a NaN that slipped through is an error here, not in the browser."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


class Stream:
    """Lives in one event loop. `exposition` gives the newest one, or None before the first."""

    def __init__(self, exposition: Callable[[], Exposition | None]) -> None:
        self._exposition = exposition
        self._seen: Exposition | None = None
        self._event = WAITING
        self._changed = asyncio.Event()
        self.clients = 0
        self.closing = False

    def poll(self) -> None:
        """Wake the streams if there is a new snapshot."""
        if self._exposition() is not self._seen:
            self._wake()

    def close(self) -> None:
        """End the streams."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def next(self, sent: bytes) -> bytes | None:
        """The first event that is not the one sent; None after five seconds without, and when the streams end."""
        if (event := self.newest()) is sent:
            if self.closing:
                return None
            try:
                await asyncio.wait_for(self._changed.wait(), _HEARTBEAT_S)
            except asyncio.TimeoutError:
                return None
            event = self.newest()
        return event

    def newest(self) -> bytes:
        """The event of the newest snapshot; a comment before the first."""
        exposition = self._exposition()
        if exposition is not None and exposition is not self._seen:
            self._seen = exposition
            self._event = b"data: " + to_json(snapshot_json(exposition.snapshot, words=False)) + b"\n\n"
        return self._event
