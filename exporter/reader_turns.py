"""When a lane is read: its deadlines, in pairs too, how late it was, how far it backs off, and what there is to say about it.

`reader_rounds.py` asks a Turn for its deadline, reads the lane and hands back how that went. Nothing here touches a device or a
clock: time is an argument.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from exporter.model import SourceStatus
from exporter.reader_volleys import VOLLEY_READS, Volleys
from exporter.sources import STEADY, Lane, Plan, PlannedLane

SHARE = 0.02  # a monitor never takes more of a device's time than this
_CHEAP_SHARE = SHARE / 4  # below it the interval halves again: after that the share is still half the bound
_READS = 10  # reads that a change of interval is decided on; their median is blind to a few preempted ones
_LONGEST_FACTOR = 16
_VOLLEY_EACH_S, _FIRST_VOLLEY_S = 15.0, 2.0
_UNEVEN, _GOLDEN = 0.4, 0.618  # volleys have no rhythm of their own: so far from the mean, spread as evenly as can be
_VOLLEY_APART_S, _VOLLEY_PLACES = 0.12, 64  # devices have neighbouring names, and their volleys follow each other
_VOLLEY_SHARE = 0.2  # of the device's time in a volley, at most
EARLY_S = 0.0005  # deadlines this close are met in the same tick


class Turn:
    """One lane's place in the round.

    Deadlines are start + k * interval and do not drift; those that pass while somebody is late are skipped and counted.
    When reads take more than SHARE of a device's time, by their median, the interval doubles, at most to sixteen times the
    planned one; it halves again when reads have become cheap.

    A second read of a pair, and the reads of a volley, come a few milliseconds after the read before, wherever that was:
    what counts is how far apart they are. They are no deadlines, and cannot be missed. A counter whose volleys show that it
    stands still in pairs is read steadily from then on.
    """

    def __init__(self, lane: Lane, phase_mono_s: float, now_mono_s: float) -> None:
        """Deadlines lie at phase + k * interval; the first is the last one of these before now, so it is due at once."""
        self.lane = lane
        self._plan = self._planned(lane)
        self._volleys = Volleys()
        self.interval_s = self._plan.interval_s
        self.missed_ticks = 0
        self.held = False  # a thread is stuck in this lane: nobody else may touch it
        self.up = True
        self.reason: str | None = None
        passed = math.floor((now_mono_s - phase_mono_s) / self.interval_s)
        self._start_s = phase_mono_s + passed * self.interval_s
        self._k = 0
        self.due_mono_s = self._start_s  # the deadline that comes next (or has passed)
        self._again = 0  # reads that are still to follow the last one closely
        place = sum(lane.source.name.encode()) % _VOLLEY_PLACES
        self._volley_at_s = now_mono_s + _FIRST_VOLLEY_S + place * _VOLLEY_APART_S
        self._volley_count = 0
        self._durations_s: deque[float] = deque(maxlen=_READS)
        self._backed_off = False
        self._errors_before: dict[str, int] = {}
        self._told: SourceStatus | None = None

    @staticmethod
    def _planned(lane: Lane) -> Plan:
        if isinstance(lane, PlannedLane):
            return lane.plan
        interval_s = lane.source.interval_s
        assert interval_s is not None
        return Plan(1.0 / interval_s)

    @property
    def amid(self) -> bool:
        """Whether the next read follows the last one within milliseconds, so that both can be sent together."""
        return self._again > 0 and not self.held

    def take(self, now_mono_s: float) -> None:
        """The deadline is being met now; the next one is the first after now, in the phase of the start."""
        if self._again:
            self._again -= 1
        else:
            self._meet(now_mono_s)
            if self._plan.pair_s:
                self._follow_up(now_mono_s)
        if self._again:
            self.due_mono_s = now_mono_s + self._plan.pair_s
        else:
            self.due_mono_s = self._start_s + self._k * self.interval_s

    def _follow_up(self, now_mono_s: float) -> None:
        """How many reads are to follow closely."""
        if now_mono_s >= self._volley_at_s:
            self._volley_count += 1
            self._volley_at_s = now_mono_s + _VOLLEY_EACH_S * (1 + _UNEVEN * (self._volley_count * _GOLDEN % 1 - 0.5))
            if self._median_s() <= _VOLLEY_SHARE * self._plan.pair_s and not self._backed_off:
                self._again = VOLLEY_READS - 1
                self._volleys.begin()
                self._k += math.floor(self._again * self._plan.pair_s / self.interval_s)  # deadlines within it
                return
        self._again = int(self._k % self._every() == 0)

    def _every(self) -> int:
        """Of the deadlines in force, each so many-th is a pair: backing off keeps pairs as long as it can."""
        return max(1, round(self._plan.every * self._plan.interval_s / self.interval_s))

    def _meet(self, now_mono_s: float) -> None:
        now_mono_s += EARLY_S
        if now_mono_s < self.due_mono_s + self.interval_s:  # nearly always
            self._k += 1
        else:
            passed = math.floor((now_mono_s - self._start_s) / self.interval_s + 1e-9)
            self.missed_ticks += max(0, passed - self._k)
            self._k = max(passed, self._k) + 1

    def pass_by(self, now_mono_s: float) -> None:
        """Nobody may read the lane now (a thread is stuck in it): the deadlines that have passed are missed ones."""
        passed = math.floor((now_mono_s - self._start_s) / self.interval_s + 1e-9)
        self.missed_ticks += max(0, passed + 1 - self._k)
        self._k = max(passed + 1, self._k)
        self._again = 0
        self.due_mono_s = self._start_s + self._k * self.interval_s

    def read_gave(self, values: Sequence[float]) -> None:
        """What a read gave: enough volleys of a counter that ticks, and pairs end."""
        if self._plan.pair_s and self._volleys.saw(values, last=not self._again):
            self._plan = STEADY
            self._change_interval(STEADY.interval_s)

    def read_took(self, duration_s: float) -> None:
        """A read came back after this long: back off, or come closer again."""
        self._durations_s.append(duration_s)
        reads = 1.0 + (1.0 / self._every() if self._plan.pair_s else 0.0)  # for each deadline
        if len(self._durations_s) < _READS or (reads * duration_s <= SHARE * self.interval_s and not self._backed_off):
            return  # a cheap read is no reason to back off, and there is nothing to come back from
        planned_s = self._plan.interval_s
        share = reads * self._median_s() / self.interval_s
        if share > SHARE and self.interval_s < _LONGEST_FACTOR * planned_s:
            self._change_interval(self.interval_s * 2)
        elif share < _CHEAP_SHARE and self.interval_s > planned_s:
            self._change_interval(max(planned_s, self.interval_s / 2))

    def _median_s(self) -> float:
        return sorted(self._durations_s)[len(self._durations_s) // 2] if self._durations_s else math.inf

    def _change_interval(self, interval_s: float) -> None:
        """The new deadlines go on from the one met last."""
        self._start_s += (self._k - 1) * self.interval_s
        self._k = 1
        self._again = 0
        self.interval_s = interval_s
        self._backed_off = interval_s > self._plan.interval_s
        self.due_mono_s = self._start_s + self.interval_s
        self._durations_s.clear()

    def replace_lane(self, lane: Lane) -> None:
        """The device was opened anew: error counts go on from where they are."""
        self._errors_before = self.errors()
        self.lane.close()
        self.lane = lane
        self._plan, self._volleys = self._planned(lane), Volleys()
        self._backed_off = self.interval_s > self._plan.interval_s
        if self.interval_s < self._plan.interval_s:  # it counts elsewhere now, where answers are new less often
            self._change_interval(self._plan.interval_s)
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
