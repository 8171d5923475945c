"""The release switch: asks the readers to let go of the GPU devices, and to take them up again.

A driver cannot be reloaded, nor MIG be changed, while somebody holds /dev/nvidia*. Requests come from a signal or from the
HTTP server's thread; the daemon's loop carries them out, because readers are started and ended by the main thread alone.
Nothing here touches a device or waits.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import Protocol

DEFAULT_S = 600.0
LONGEST_S = 86400.0

log = logging.getLogger(__name__)


class Releasable(Protocol):
    """Whoever has processes that hold devices."""

    def release(self, seconds: float) -> None:
        """End what holds devices, for so long or until `resume`."""
        ...

    def resume(self) -> None:
        """Take the devices up again."""
        ...

    def released(self) -> bool:
        """Whether devices are being left alone by request now."""
        ...

    def holders(self) -> tuple[int, ...]:
        """Process ids that may hold a device."""
        ...


@dataclass(frozen=True, slots=True)
class SwitchState:
    """How things stand. Requests with tickets up to `carried_out` have been done."""

    carried_out: int = 0
    released: bool = False
    holders: tuple[int, ...] = ()


class ReleaseSwitch:
    """Requests in from any thread or signal handler, done by `step` in the main loop."""

    def __init__(self, feed: Releasable) -> None:
        self._feed = feed
        # Appending and taking are single steps of the interpreter: no lock that a signal handler could find taken.
        self._asked: deque[tuple[int, float | None]] = deque()  # ticket; seconds, 0: resume, None: the other of the two
        self._tickets = count(1)
        self.state = SwitchState()

    def ask_release(self, seconds: float = DEFAULT_S) -> int:
        """Let go of the devices for so long; asked again, the time begins anew. Returns a ticket, see SwitchState."""
        return self._ask(seconds)

    def ask_resume(self) -> int:
        """Take the devices up again; no matter if they were not released."""
        return self._ask(0.0)

    def toggle(self) -> None:
        """Release, or resume where they are released. Safe in a signal handler."""
        self._ask(None)

    def _ask(self, seconds: float | None) -> int:
        ticket = next(self._tickets)
        self._asked.append((ticket, seconds))
        return ticket

    def step(self) -> None:
        """Do what was asked for. Called often, by the main thread."""
        carried_out = self.state.carried_out
        while self._asked:
            ticket, seconds = self._asked.popleft()
            self._carry_out(seconds)
            carried_out = max(carried_out, ticket)
        state = SwitchState(carried_out, self._feed.released(), self._feed.holders())
        if state.released and not state.holders and self.state.holders:
            log.info("no process of the exporter holds a GPU device any more")
        if self.state.released and not state.released:
            log.info("the GPU devices are taken up again")
        self.state = state

    def _carry_out(self, seconds: float | None) -> None:
        if seconds is None:
            seconds = 0.0 if self._feed.released() else DEFAULT_S
        if seconds > 0.0:
            log.warning("the GPU devices are released for %g s", seconds)
            self._feed.release(seconds)
        else:
            self._feed.resume()
