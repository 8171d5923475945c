"""Which device a reader is touching, and since when: a page of memory that reader and exporter share.

The reader writes two words before it touches a device and one after it; the supervisor and the reader's own watch read
them. Nothing here blocks, and nothing here needs the other side to be well: that is the point of it.

The page holds a heartbeat, the names of devices (written once, when a device is first announced) and one slot per thread
that touches devices. A slot is two doubles, since [monotonic s] and number of the device; a number of 0 is "none". The
words are written one by one in an order that makes a torn look harmless: since before number.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

SLOTS = 16
NAMES = 256
_NAME_BYTES = 96
_HEARTBEAT = 0
_SLOT_WORDS = 3
_HEAD_WORDS = 8
_WORDS = _HEAD_WORDS + SLOTS * _SLOT_WORDS
SIZE = _WORDS * 8 + NAMES * _NAME_BYTES


@dataclass(frozen=True, slots=True)
class Touch:
    """A device that is being touched. An empty id is the library, or the tree as a whole."""

    slot: int
    kind: str
    id: str
    since_mono_s: float
    given_up: bool  # the reader knows that this touch hangs and goes on without it


class Announcements:
    """The page, as either side sees it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)
        view = memoryview(self._map)
        self._words = view[: _WORDS * 8].cast("d")
        self._names = view[_WORDS * 8 :]
        self._numbers: dict[tuple[str, str], int] = {}

    def beat(self, mono_s: float) -> None:
        """The reader is alive."""
        self._words[_HEARTBEAT] = mono_s

    def heartbeat_mono_s(self) -> float:
        """When the reader last said that it is alive; 0 before the first time."""
        return self._words[_HEARTBEAT]

    def number(self, kind: str, device_id: str) -> int:
        """The number of a device in this page. A full table forgets the name that is there longest and is not being touched.

        Devices come and go for months, under ever new names; one that is still there is named anew at its next touch.
        """
        key = (kind, device_id)
        number = self._numbers.get(key)
        if number is None:
            number = len(self._numbers) + 1 if len(self._numbers) < NAMES else self._free_number()
            text = f"{kind}\0{device_id}".encode()[: _NAME_BYTES - 1]
            at = (number - 1) * _NAME_BYTES
            self._names[at : at + _NAME_BYTES] = text.ljust(_NAME_BYTES, b"\xff")
            self._numbers[key] = number
        return number

    def _free_number(self) -> int:
        touched = {self._words[_HEAD_WORDS + slot * _SLOT_WORDS + 1] for slot in range(SLOTS)}
        oldest = next(key for key, number in self._numbers.items() if number not in touched)
        return self._numbers.pop(oldest)

    def touch(self, slot: int, number: int, mono_s: float) -> None:
        """This thread is about to touch device `number`."""
        at = _HEAD_WORDS + slot * _SLOT_WORDS
        self._words[at] = mono_s
        self._words[at + 1] = number

    def leave(self, slot: int) -> None:
        """This thread touches nothing."""
        self._words[_HEAD_WORDS + slot * _SLOT_WORDS + 1] = 0.0

    def give_up(self, slot: int, given_up: bool) -> None:
        """The reader deals itself with the device that hangs in this slot (or no longer)."""
        self._words[_HEAD_WORDS + slot * _SLOT_WORDS + 2] = float(given_up)

    def touched(self) -> list[Touch]:
        """What is being touched now."""
        found = []
        for slot in range(SLOTS):
            at = _HEAD_WORDS + slot * _SLOT_WORDS
            number = int(self._words[at + 1])
            if number:
                name = bytes(self._names[(number - 1) * _NAME_BYTES : number * _NAME_BYTES]).rstrip(b"\xff")
                kind, _, device_id = name.decode(errors="replace").partition("\0")
                found.append(Touch(slot, kind, device_id, self._words[at], self._words[at + 2] != 0.0))
        return found

    def close(self) -> None:
        """Give the page back."""
        self._words.release()
        self._names.release()
        self._map.close()


def create() -> tuple[Announcements, int]:
    """A new page, all zero, and the descriptor to hand to a reader (close it once the reader runs)."""
    fd = os.memfd_create("overlap-announcements", os.MFD_CLOEXEC)
    os.ftruncate(fd, SIZE)
    return Announcements(fd), fd
