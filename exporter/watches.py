"""The GPUs that somebody looks at: their newest readings ten times a second, and their picture each second.

`stream` polls it and sends what it makes; each event is made once, however many look on, and nothing is made of a GPU
that nobody looks at. Lives in the server's event loop; the picture is drawn in a thread beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from exporter.model import Device, Series, Snapshot
from exporter.scope import live_json, newest_s, picture_json

log = logging.getLogger(__name__)

_MOST_LIVE = 20  # two seconds, for who was held up for a moment


@dataclass(slots=True)
class _Watch:
    clients: int = 0
    live: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_MOST_LIVE))  # numbered
    made: int = 0  # events of live so far
    picture: bytes = b""
    picture_of: Snapshot | None = None
    after_s: tuple[float, float] | None = None  # up to here power and traffic have been sent
    drawing: asyncio.Task[None] | None = None


class Watches:
    """By id of the GPU. `to_json` makes bytes of a value; `wake` is called when a picture has been drawn."""

    def __init__(self, history: Callable[[], Series], to_json: Callable[[Any], bytes], wake: Callable[[], None]) -> None:
        self._history = history
        self._to_json = to_json
        self._wake = wake
        self._watches: dict[str, _Watch] = {}
        self._complaint = ""

    def join(self, gpu_id: str | None) -> None:
        """One more looks at this GPU."""
        if gpu_id is not None:
            self._watches.setdefault(gpu_id, _Watch()).clients += 1

    def leave(self, gpu_id: str | None) -> None:
        """One less; the last one takes the events along."""
        if gpu_id is not None:
            self._watches[gpu_id].clients -= 1
            if not self._watches[gpu_id].clients:
                del self._watches[gpu_id]

    def live(self, gpu_id: str | None, after: int) -> tuple[bytes, int]:
        """The events of readings behind number `after`, of the last two seconds at most, and the number of the newest."""
        watch = self._watches.get(gpu_id or "")
        if watch is None or watch.made == after:
            return b"", after
        return b"".join(event for number, event in watch.live if number > after), watch.made

    def picture(self, gpu_id: str | None) -> bytes:
        """The newest picture of a GPU; empty where there is none yet."""
        watch = self._watches.get(gpu_id or "")
        return b"" if watch is None else watch.picture

    def poll(self, snapshot: Snapshot) -> bool:
        """Make events of what has come since the last call; whether there are any."""
        found = False
        gpus = {gpu.id: gpu for gpu in snapshot.inventory.of_kind("gpu")}
        for gpu_id, watch in self._watches.items():
            if (gpu := gpus.get(gpu_id)) is None:
                continue
            try:
                found |= self._read(watch, gpu, snapshot)
            except Exception as error:
                self._complain(gpu_id, error)
            if watch.picture_of is not snapshot and watch.drawing is None:
                watch.picture_of = snapshot
                watch.drawing = asyncio.create_task(self._draw(watch, gpu, snapshot))
        return found

    def _read(self, watch: _Watch, gpu: Device, snapshot: Snapshot) -> bool:
        history, inventory = self._history(), snapshot.inventory
        if watch.after_s is None:
            watch.after_s = (snapshot.t_s, snapshot.t_s)
        end_s = newest_s(history, inventory, gpu, min(watch.after_s))
        if end_s <= min(watch.after_s):
            return False
        body, after_s = live_json(history, inventory, gpu, watch.after_s, end_s)
        if after_s == watch.after_s:
            return False
        watch.after_s = after_s
        watch.made += 1
        watch.live.append((watch.made, b"event: live\ndata: " + self._to_json({"gpu": gpu.id, **body}) + b"\n\n"))
        return True

    async def _draw(self, watch: _Watch, gpu: Device, snapshot: Snapshot) -> None:
        try:
            drawn = await asyncio.to_thread(picture_json, self._history(), snapshot, gpu)
            watch.picture = b"event: picture\ndata: " + self._to_json({"gpu": gpu.id, **drawn}) + b"\n\n"
            self._wake()
        except Exception as error:
            self._complain(gpu.id, error)
        finally:
            watch.drawing = None

    def _complain(self, gpu_id: str, error: Exception) -> None:
        """Once for as long as it is the same: a page that cannot be drawn must not fill the log."""
        if (line := f"{gpu_id} cannot be drawn: {type(error).__name__}: {error}") != self._complaint:
            self._complaint = line
            log.error("%s", line, exc_info=error)
