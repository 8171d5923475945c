"""What open event streams are sent, as bytes that are made once for all who look at the same thing.

`endpoints` runs one loop per client over `next`: the snapshot of each second, and for the GPU that a client looks at what
`watches` makes of it. A client that cannot follow misses events: nothing is kept for it, and the page asks for the
stretch that it missed.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from exporter.api import snapshot_json
from exporter.collector import Exposition
from exporter.model import Series
from exporter.scope import sparks_json
from exporter.watches import Watches

_HEARTBEAT_S = 5.0
_SPARK_S, _SPARK_POINTS = 6.0, 60  # a point per reading of power
WAITING = b": waiting\n\n"  # a comment, which browsers pass over: shows that we are still there


def to_json(value: Any) -> bytes:
    """Compact JSON; a NaN that slipped through is an error here, not in the browser."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(slots=True)
class Client:
    """One open stream, and what it was sent last. gpu: the id of the GPU that it looks at; None: snapshots alone."""

    gpu: str | None = None
    live: int = 0
    sent: dict[str, bytes] = field(default_factory=dict)


class Stream:
    """Lives in one event loop.

    `exposition` gives the newest one, or None before the first; `history` the readings; `looked_at` hears at each poll that
    somebody looks on.
    """

    def __init__(
        self, exposition: Callable[[], Exposition | None], history: Callable[[], Series],
        looked_at: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._exposition = exposition
        self._history = history
        self._made_of: Exposition | None = None
        self._polled: Exposition | None = None
        self._snapshot = b""
        self._looked_at = looked_at
        self._someone = asyncio.Event()
        self._changed = asyncio.Event()
        self._woken_s = -math.inf
        self._watches = Watches(history, to_json, self._wake)
        self.clients = 0
        self.closing = False

    def join(self, client: Client) -> None:
        """A stream is opened."""
        self.clients += 1
        self._someone.set()
        self._watches.join(client.gpu)

    def leave(self, client: Client) -> None:
        """It has ended."""
        self.clients -= 1
        self._watches.leave(client.gpu)
        if not self.clients:
            self._someone.clear()

    async def move(self, period_s: float) -> None:
        """Poll in this rhythm for as long as somebody looks on; nothing happens while nobody does."""
        while True:
            await self._someone.wait()
            await asyncio.sleep(period_s)
            self.poll()

    def poll(self) -> None:
        """To be called ten times a second: wakes the streams if there is something new for any of them."""
        self._looked_at()
        exposition = self._exposition()
        changed = exposition is not self._polled
        self._polled = exposition
        if exposition is not None:
            changed |= self._watches.poll(exposition.snapshot)
        if changed or asyncio.get_running_loop().time() - self._woken_s >= _HEARTBEAT_S:
            self._wake()

    def close(self) -> None:
        """End the streams."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        self._woken_s = asyncio.get_running_loop().time()
        self._changed.set()
        self._changed = asyncio.Event()

    async def next(self, client: Client) -> bytes:
        """What is new for a client; a comment where there has been nothing for five seconds, and when the streams end."""
        if not (news := self.news(client)) and not self.closing:
            await self._changed.wait()
            news = self.news(client)
        return news or WAITING

    def news(self, client: Client) -> bytes:
        """The events that a client was not sent yet, which count as sent from now on; empty where there are none."""
        live, client.live = self._watches.live(client.gpu, client.live)
        new = [live] if live else []
        for name, event in (("snapshot", self._newest()), ("picture", self._watches.picture(client.gpu))):
            if event and client.sent.get(name) is not event:
                client.sent[name] = event
                new.append(event)
        return b"".join(new)

    def _newest(self) -> bytes:
        """The event of the newest snapshot; empty before the first."""
        exposition = self._exposition()
        if exposition is not None and exposition is not self._made_of:
            self._made_of = exposition
            snapshot = exposition.snapshot
            sparks = sparks_json(self._history(), snapshot.inventory, snapshot.t_s, _SPARK_S, _SPARK_POINTS)
            self._snapshot = b"data: " + to_json({**snapshot_json(snapshot, words=False), "sparks": sparks}) + b"\n\n"
        return self._snapshot
