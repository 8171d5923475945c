"""The endpoints that act, for the node itself alone: POST /-/release and POST /-/resume. `endpoints` lists them in ROUTES.

Whoever asks from another machine, through a proxy or from a page in a browser is refused; the last two may well come from
the node's own address, so their headers are looked at. Devices are not touched here: the main loop does what is asked.
"""

from __future__ import annotations

import asyncio
import math
from ipaddress import ip_address

from exporter.answer import Endpoint, RefusalError
from exporter.release import DEFAULT_S, LONGEST_S, ReleaseSwitch, SwitchState

_WAIT_S = 5.0  # for the last process to have let go
_LOOK_S = 0.05
# A browser names the page that it asks for, also where that page is not ours; a proxy names for whom it asks.
_FOREIGN_HEADERS = ("Origin", "Forwarded", "X-Forwarded-For", "X-Real-Ip")


def is_loopback(address: str) -> bool:
    """Whether a peer's address is of this machine: 127.0.0.0/8 or ::1.

    >>> is_loopback("127.8.0.1"), is_loopback("::1"), is_loopback("::ffff:127.0.0.1"), is_loopback("10.0.0.1"), is_loopback("")
    (True, True, True, False, False)
    """
    try:
        peer = ip_address(address)
    except ValueError:
        return False
    return (getattr(peer, "ipv4_mapped", None) or peer).is_loopback


class LoopbackEndpoint(Endpoint):
    """Answers POST, from the node itself."""

    allow = "POST"

    async def prepare(self) -> None:
        await super().prepare()
        if self.request.method != "POST":
            raise RefusalError(405, "")
        if not is_loopback(self.request.remote_ip or ""):
            raise RefusalError(403, "only the node itself may ask for this: POST to 127.0.0.1 or [::1]")
        foreign = next((name for name in _FOREIGN_HEADERS if name in self.request.headers), None)
        if foreign is not None:
            raise RefusalError(403, f"only the node itself may ask for this, and not with the header {foreign}")

    def switch(self) -> ReleaseSwitch:
        """The release switch; 409 where no device is read."""
        if (switch := self.context.state.switch) is None:
            raise RefusalError(409, "there is nothing to release: what is shown here was not read from devices of this node")
        return switch

    async def carried_out(self, switch: ReleaseSwitch, ticket: int, *, free: bool) -> SwitchState:
        """Wait, within bounds, for the main loop to have done it, and (free) for the devices to be held by nobody."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _WAIT_S
        while (state := switch.state).carried_out < ticket or (free and state.released and state.holders):
            if loop.time() > until_s:
                break
            await asyncio.sleep(_LOOK_S)
        return state


class Release(LoopbackEndpoint):
    """POST /-/release?seconds=600: answers 200 once no process of the exporter holds a GPU device."""

    async def post(self) -> None:
        seconds = self._seconds()
        switch = self.switch()
        state = await self.carried_out(switch, switch.ask_release(seconds), free=True)
        if state.released and state.holders:
            pids = ", ".join(str(pid) for pid in state.holders)
            raise RefusalError(503, f"released, but still held by process {pids}, which is inside the driver: ask again")
        self.say(f"released for {seconds:g} s: no process of overlap-exporter holds a GPU device; POST /-/resume ends this")

    def _seconds(self) -> float:
        given = self.get_query_argument("seconds", f"{DEFAULT_S:g}")
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not 1.0 <= seconds <= LONGEST_S:
            raise RefusalError(400, f"seconds: {given[:64]!r} is not allowed: expected a number from 1 to {LONGEST_S:g}")
        return seconds


class Resume(LoopbackEndpoint):
    """POST /-/resume: take the devices up again."""

    async def post(self) -> None:
        switch = self.switch()
        await self.carried_out(switch, switch.ask_resume(), free=False)
        self.say("the GPU devices are read again")
