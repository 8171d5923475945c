"""Volleys: reads that follow each other closely for a while, and what they tell of a counter that is read in pairs.

Pairs need a counter that is new at each read. One that takes a new value every 10 ms stands still in some pairs and jumps in
others, which looks like short bursts at a multiple of their rate; neither pairs nor polls show that. `reader_turns.py` makes
a volley now and then and hands in what was read; the analysis measures the refresh by the same reads. No clock, no device.
"""

from __future__ import annotations

from collections.abc import Sequence

VOLLEY_READS = 24
_FEWEST_CHANGES = 2  # so that ticks of 50 ms are seen: 25 polls a second blur those, 50 do not
_LEAST_BYTES = 1 << 20  # in a volley: packets that come and go look like ticks
_IN_A_ROW = 3  # volleys that agree


class Volleys:
    """The volleys of one lane of byte counters."""

    def __init__(self) -> None:
        self._amid = False
        self._first: Sequence[float] | None = None
        self._before: Sequence[float] | None = None
        self._changes = 0  # reads that differ from the one before
        self._next_to = 0  # of these, those that follow another one directly
        self._changed = False
        self._ticking = 0  # volleys in a row that showed no two changes next to each other

    def begin(self) -> None:
        """The read that comes next is the first of a volley."""
        self._amid, self._first, self._before = True, None, None
        self._changes, self._next_to, self._changed = 0, 0, False

    def saw(self, values: Sequence[float], last: bool) -> bool:
        """Take in a read; True where it ends the volley after which the counter counts as one that ticks.

        Of a counter that is new at each read some changes follow each other read by read, however short its bursts are, as
        long as one lasts for two reads. NaN ends a volley without an answer.
        """
        if not self._amid:
            return False
        if any(value != value for value in values):
            self._amid = False
            return False
        if self._first is None or self._before is None:
            self._first = values
        else:
            changed = values != self._before
            self._changes += changed
            self._next_to += changed and self._changed
            self._changed = changed
        self._before = values
        if not last:
            return False
        self._amid = False
        if self._changes >= _FEWEST_CHANGES and sum(values) - sum(self._first) >= _LEAST_BYTES:
            self._ticking = self._ticking + 1 if self._next_to * 8 < self._changes else 0
        return self._ticking >= _IN_A_ROW
