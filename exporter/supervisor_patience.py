"""How much patience there is with the devices of one reader: how long one that failed is left alone.

`supervisor_reader.py` tells it of hangs and crashes and asks when to go on. Time is an argument; nothing here knows a
process. Whoever waits for a device that hangs keeps the other devices of its reader waiting too, so the rules are:

- After its first hang a device is read again as soon as it answers; after later ones in the same hour, and after three
  crashes in a minute, it is left alone for 60, 120, 240 ... s, never longer than the longest pause that is set.
- A device that crashes its reader within a minute after such a pause needs no second and third time.
- No device is tried again while the failures of the last five minutes leave no room for two more: the others keep 95 %.
"""

from __future__ import annotations

from collections import defaultdict, deque

CRASHES, CRASH_WINDOW_S = 3, 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 600.0
GIVEN_UP_PAUSE_S = 300.0  # of devices in which one reader has got stuck together
MEMORY_S = 3600.0
HANG, CRASH = "hang", "crash"
# What one failure may cost the other devices: the deadline and the start of a process; the start alone.
_SILENCE_S = {HANG: 3.0, CRASH: 1.0}
_WINDOW_S, _SILENCE_SHARE = 300.0, 0.05
_MOST_STEPS = 16


class Patience:
    """What the devices of one reader have done lately."""

    def __init__(self, longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        self.longest_pause_s = longest_pause_s
        self._crashes: dict[str, deque[float]] = defaultdict(deque)
        self._sentences: dict[str, deque[float]] = defaultdict(deque)  # when each device was left alone
        self._tried_again: dict[str, float] = {}  # those that had crashed, and when their pause ended
        self._failures: deque[tuple[float, str]] = deque()

    def hung(self, device_id: str, now_s: float) -> float:
        """A device hangs: how long it is left alone after its return [s]."""
        self._book(HANG, now_s)
        return self._pause_s(device_id, now_s, at_first_s=0.0)

    def crashed(self, device_id: str, now_s: float) -> float | None:
        """A reader died in this device: how long that is left alone [s]; None where it is tried again at once."""
        self._book(CRASH, now_s)
        crashes = _recent(self._crashes[device_id], now_s, CRASH_WINDOW_S)
        if len(crashes) < CRASHES and device_id not in self._tried_again:
            return None
        crashes.clear()
        return self._pause_s(device_id, now_s, at_first_s=FIRST_PAUSE_S)

    def gave_up(self) -> float:
        """A reader got stuck in several devices at once: how long these are left alone [s]."""
        return min(GIVEN_UP_PAUSE_S, self.longest_pause_s)

    def may_try(self, until_s: float, now_s: float) -> bool:
        """Whether a device whose pause ended at until_s is read again now."""
        if now_s < until_s:
            return False
        self._forget(now_s)
        silence_s = sum(_SILENCE_S[kind] for _, kind in self._failures)
        room = silence_s + 2 * _SILENCE_S[HANG] <= _SILENCE_SHARE * _WINDOW_S
        return room or now_s >= until_s + self.longest_pause_s

    def tries(self, device_id: str, reason: str, now_s: float) -> None:
        """A device is read again."""
        if reason == CRASH:
            self._tried_again[device_id] = now_s

    def forgive(self) -> None:
        """The devices were released, and may have been put right meanwhile."""
        for memory in (self._crashes, self._sentences, self._tried_again):
            memory.clear()
        self._failures.clear()

    def _pause_s(self, device_id: str, now_s: float, at_first_s: float) -> float:
        before = len(_recent(self._sentences[device_id], now_s, MEMORY_S)) - 1
        doublings = before if at_first_s else before - 1
        pause_s = FIRST_PAUSE_S * 2.0 ** min(doublings, _MOST_STEPS) if before else at_first_s
        return min(pause_s, self.longest_pause_s)

    def _book(self, kind: str, now_s: float) -> None:
        self._forget(now_s)
        self._failures.append((now_s, kind))

    def _forget(self, now_s: float) -> None:
        """What is too long ago to matter; names of devices may change for months."""
        while self._failures and now_s - self._failures[0][0] > _WINDOW_S:
            self._failures.popleft()
        for memory, window_s in ((self._crashes, CRASH_WINDOW_S), (self._sentences, MEMORY_S)):
            for device_id in [i for i, times in memory.items() if not times or now_s - times[-1] > window_s]:
                del memory[device_id]
        self._tried_again = {i: t_s for i, t_s in self._tried_again.items() if now_s - t_s <= CRASH_WINDOW_S}


def _recent(times: deque[float], now_s: float, window_s: float) -> deque[float]:
    """Add now, and drop what is older than the window."""
    times.append(now_s)
    while now_s - times[0] > window_s:
        times.popleft()
    return times
