"""A ring: the readings of one source, bounded in time. Called by the history, which holds the lock."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_EMPTY: Array = np.empty(0)
_ROOM = 128  # readings that a ring has room for at first, and gains at least each time that it is full
_ROOM_SHARE = 64  # of what is kept: the rest of the room is memory that holds nothing


class Ring:
    """Readings of one source: times [n] and values [channel, n], oldest first, contiguous, bounded in time.

    What is kept moves into new arrays, a little longer, when the end is reached: some sixty copies of each reading within
    the horizon, for memory of which hardly anything is empty. Times must not go back; a reading that is not newer than
    the last is refused.
    """

    def __init__(self, channels: int, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._t = np.empty(_ROOM)
        self._v = np.empty((channels, _ROOM))
        self._begin = 0
        self._end = 0
        self._asked: tuple[float, float, int, int] | None = None  # the channels of a device are asked for one after the other
        self._found = (0, 0, _EMPTY)

    def append(self, t_s: float, values: Sequence[float]) -> bool:
        """Add one reading; False where its time is not after the last one."""
        if self._end > self._begin and t_s <= self._t[self._end - 1]:
            return False
        if self._end == len(self._t):
            self._make_room(t_s)
        self._t[self._end] = t_s
        self._v[:, self._end] = values
        self._end += 1
        return True

    def _make_room(self, now_s: float) -> None:
        self._begin += int(np.searchsorted(self._t[self._begin : self._end], now_s - self._horizon_s))
        kept = self._end - self._begin
        capacity = kept + max(_ROOM, kept // _ROOM_SHARE)
        t, v = np.empty(capacity), np.empty((len(self._v), capacity))
        t[:kept] = self._t[self._begin : self._end]
        v[:, :kept] = self._v[:, self._begin : self._end]
        self._t, self._v, self._begin, self._end = t, v, 0, kept

    def slice(self, row: int, start_s: float, end_s: float) -> tuple[Array, Array]:
        """Views of times and values of one channel with start_s < t <= end_s. Appending never changes them.

        Channels of one ring have the very same times: `is` tells.
        """
        i, j, t = self._between(start_s, end_s)
        return t, self._v[row, i:j]

    def cut(self, start_s: float, end_s: float) -> tuple[Array, Array]:
        """Views of times [n] and of all channels [channel, n] with start_s < t <= end_s. Appending never changes them."""
        i, j, t = self._between(start_s, end_s)
        return t, self._v[:, i:j]

    def _between(self, start_s: float, end_s: float) -> tuple[int, int, Array]:
        """Where the readings with start_s < t <= end_s are, and their times."""
        asked = (start_s, end_s, self._begin, self._end)
        if self._asked != asked:
            i, j = self._t[self._begin : self._end].searchsorted((start_s, end_s), side="right").tolist()
            i, j = self._begin + i, self._begin + j
            self._asked, self._found = asked, (i, j, self._t[i:j])
        return self._found

    @property
    def newest_s(self) -> float:
        """Time of the last reading; minus infinity before the first."""
        return float(self._t[self._end - 1]) if self._end > self._begin else -math.inf

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return self._t.nbytes + self._v.nbytes
