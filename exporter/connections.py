"""Bounds how many clients may be connected, so that those who hang never shut out those who ask.

`server` admits every connection here. When all places are taken, the connection that has been idle longest, of the
address that holds most of them, makes room: Prometheus and a liveness probe always get in, whatever else hangs on.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

_RESET = struct.pack("ii", 1, 0)  # linger for 0 s: what is unsent is thrown away (socket(7), SO_LINGER)


class Closable(Protocol):
    """A connection, as far as this module cares."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Place:
    stream: Closable
    address: str
    asked: bool = False  # has sent a whole request head, once at least
    busy: bool = False  # a request is being answered


class Connections:
    """The open connections of one server, oldest use first. Used from the server's thread only."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._places: dict[int, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def admit(self, stream: Closable, address: str) -> bool:
        """Take in a connection; False where all places are busy, and then it is closed."""
        if len(self._places) >= self._at_most and not self._make_room():
            stream.close()
            return False
        self._places[id(stream)] = _Place(stream, address)
        return True

    def _make_room(self) -> bool:
        idle = [p for p in self._places.values() if not p.busy]
        if not idle:
            return False
        held = Counter(p.address for p in self._places.values())
        # max keeps the first of equals: the one that has been idle longest.
        self.drop(max(idle, key=lambda p: held[p.address]).stream)
        return True

    def begin(self, stream: Closable) -> None:
        """A request has come in whole."""
        if (place := self._places.get(id(stream))) is not None:
            place.asked = place.busy = True

    def end(self, stream: Closable) -> None:
        """Its answer is on its way; the connection counts as idle, and as the one used last."""
        if (place := self._places.pop(id(stream), None)) is not None:
            place.busy = False
            self._places[id(stream)] = place

    def drop_if_silent(self, stream: Closable) -> None:
        """The deadline for the first request head has passed."""
        if (place := self._places.get(id(stream))) is not None and place.stream is stream and not place.asked:
            self.drop(stream)

    def drop(self, stream: Closable) -> None:
        """Close a connection."""
        self.forget(stream)
        stream.close()

    def abort(self, stream: Closable) -> None:
        """Close a connection whose client does not take what it is sent: the kernel need not keep it any longer either."""
        if (line := getattr(stream, "socket", None)) is not None:
            with contextlib.suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.drop(stream)

    def forget(self, stream: Closable) -> None:
        """It is closed."""
        self._places.pop(id(stream), None)
