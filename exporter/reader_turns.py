"""When a lane is read: its deadlines, how late it was, how far it backs off, and what there is to say about it.

`reader_rounds.py` asks a Turn for its deadline, reads the lane and hands back how that went. Nothing here touches a device or a
clock: time is an argument.
"""

from __future__ import annotations

import math
from collections import deque

from exporter.model import SourceStatus
from exporter.sources import Lane

SHARE = 0.02  # a monitor never takes more of a device's time than this
_CHEAP_SHARE = SHARE / 4  # below it the interval halves again: after that the share is still half the bound
_READS = 10  # reads that a change of interval is decided on; their median is blind to a few preempted ones
_LONGEST_FACTOR = 16


class Turn:
    """One lane's place in the round.

    Deadlines are start + k * interval and do not drift; those that pass while somebody is late are skipped and counted.
    When the median read takes more than SHARE of the interval, the interval doubles, at most to sixteen times the planned
    one; it halves again when reads have become cheap.
    """

    def __init__(self, lane: Lane, phase_mono_s: float, now_mono_s: float) -> None:
        """Deadlines lie at phase + k * interval; the first is the last one of these before now, so it is due at once."""
        self.lane = lane
        self.interval_s = self._planned_s(lane)
        self.missed_ticks = 0
        self.held = False  # a thread is stuck in this lane: nobody else may touch it
        self.up = True
        self.reason: str | None = None
        passed = math.floor((now_mono_s - phase_mono_s) / self.interval_s)
        self._start_s = phase_mono_s + passed * self.interval_s
        self._k = 0
        self.due_mono_s = self._start_s  # the deadline that comes next (or has passed)
        self._durations_s: deque[float] = deque(maxlen=_READS)
        self._backed_off = False
        self._errors_before: dict[str, int] = {}
        self._told: SourceStatus | None = None

    @staticmethod
    def _planned_s(lane: Lane) -> float:
        interval_s = lane.source.interval_s
        assert interval_s is not None
        return interval_s

    def take(self, now_mono_s: float) -> None:
        """The deadline is being met now; the next one is the first after now, in the phase of the start."""
        if now_mono_s < self.due_mono_s + self.interval_s:  # nearly always
            self._k += 1
        else:
            passed = math.floor((now_mono_s - self._start_s) / self.interval_s + 1e-9)
            self.missed_ticks += max(0, passed - self._k)
            self._k = max(passed, self._k) + 1
        self.due_mono_s = self._start_s + self._k * self.interval_s

    def pass_by(self, now_mono_s: float) -> None:
        """Nobody may read the lane now (a thread is stuck in it): the deadlines that have passed are missed ones."""
        passed = math.floor((now_mono_s - self._start_s) / self.interval_s + 1e-9)
        self.missed_ticks += max(0, passed + 1 - self._k)
        self._k = max(passed + 1, self._k)
        self.due_mono_s = self._start_s + self._k * self.interval_s

    def read_took(self, duration_s: float) -> None:
        """A read came back after this long: back off, or come closer again."""
        self._durations_s.append(duration_s)
        if len(self._durations_s) < _READS or (duration_s <= SHARE * self.interval_s and not self._backed_off):
            return  # a cheap read is no reason to back off, and there is nothing to come back from
        planned_s = self._planned_s(self.lane)
        share = sorted(self._durations_s)[_READS // 2] / self.interval_s
        if share > SHARE and self.interval_s < _LONGEST_FACTOR * planned_s:
            self._change_interval(self.interval_s * 2)
        elif share < _CHEAP_SHARE and self.interval_s > planned_s:
            self._change_interval(max(planned_s, self.interval_s / 2))

    def _change_interval(self, interval_s: float) -> None:
        """The new deadlines go on from the one met last."""
        self._start_s = self.due_mono_s - self.interval_s
        self._k = 1
        self.interval_s = interval_s
        self._backed_off = interval_s > self._planned_s(self.lane)
        self.due_mono_s = self._start_s + self.interval_s
        self._durations_s.clear()

    def replace_lane(self, lane: Lane) -> None:
        """The device was opened anew: error counts go on from where they are."""
        self._errors_before = self.errors()
        self.lane.close()
        self.lane = lane
        self._backed_off = self.interval_s > self._planned_s(lane)
        self.held = False

    def errors(self) -> dict[str, int]:
        """Running totals by reason over all lanes that had this turn."""
        totals = dict(self._errors_before)
        for reason, count in dict(self.lane.errors).items():
            totals[reason] = totals.get(reason, 0) + count
        return totals

    def news(self) -> SourceStatus | None:
        """What there is to say, if it is not what was said last; its time is that of the frame it goes into."""
        status = SourceStatus(
            self.lane.source.name, 0.0, self.missed_ticks, self.interval_s, self.errors(), self.up, self.reason
        )
        if status == self._told:
            return None
        self._told = status
        return status
