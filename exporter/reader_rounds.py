"""The work of a reader: opens its devices, reads each lane at its deadlines, deals with devices that fail.

`reader.py` makes one per process and starts its crew of threads. All lanes are read by one thread in the order of the
inventory, and what one tick gave is one write; the reads of a pair go together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from exporter.announcements import Announcements, Touch
from exporter.clock import Clock
from exporter.model import SourceStatus
from exporter.reader_crew import Crew, Worker
from exporter.reader_ledger import Ledger
from exporter.reader_outlet import Outlet, Reading
from exporter.reader_turns import EARLY_S, Turn
from exporter.sources import (
    KEEP,
    QUARANTINE,
    REDISCOVER,
    REOPEN,
    RESTART,
    Announce,
    GpuSettings,
    Lane,
    LaneError,
    NetSettings,
    Opened,
)

LOST_RETRY_S = 30.0
REDISCOVER_SOON_S = 1.0
LONGEST_BACK_OFF_S = 30.0
STATUS_S = 1.0
EXIT_RESTART = 3  # the library no longer fits the driver
_HELD_S = 0.15  # so long a reading may wait for those that follow it closely, and go with them

Settings = GpuSettings | NetSettings


@dataclass(frozen=True, slots=True)
class Opener:
    """How one kind of reader gets at its devices."""

    kind: str  # the source whose status stands for all of them
    device_kind: str
    open: Callable[[Any, Announce], Opened]
    close: Callable[[], None] | None  # ends what all devices hang on
    rediscover_s: float
    independent: bool  # a stuck device may be left to its thread; lanes outlive a look for new devices


class Rounds:
    """What a reader reads. One thread at a time works on it: the owner of the crew."""

    def __init__(
        self, opener: Opener, settings: Settings, *, outlet: Outlet, page: Announcements, clock: Clock,
        leave: Callable[[int], None],
    ) -> None:
        self._opener = opener
        self._settings = settings
        self._outlet = outlet
        self._clock = clock
        self._leave = leave  # ends the process with a status
        self._phase_s = clock.mono_s()
        self._turns: dict[str, Turn] = {}
        self._ledger = Ledger(opener.kind, opener.device_kind, outlet, clock)
        self._stale: set[str] = set()  # sources whose lanes must not be kept
        self._skip: frozenset[str] = frozenset(settings.skip)  # what the exporter wants left alone
        self._stuck_opening: set[str] = set()  # what a thread was left behind in while it opened devices
        self._open_at_s = 0.0
        self._look_again_s = opener.rediscover_s  # shorter after a device has vanished: it may be on its way back
        self._retry_at_s = 0.0
        self._status_at_s = 0.0
        self._back_off_s = 1.0
        self._pending: list[Reading] = []
        self.crew = Crew(
            self, page=page, outlet=outlet, clock=clock, independent=opener.independent, leave=leave
        )

    def set_skip(self, device_ids: frozenset[str]) -> None:
        """Leave these devices alone from now on, and no others."""
        self._skip = device_ids
        self._open_at_s = 0.0

    def left_behind(self, worker: Worker, touch: Touch, now_s: float) -> None:
        """A worker is stuck: send what it had read, leave out what it is in."""
        if worker.turn is not None:
            self._hold(worker.turn.lane.device_id, True)
        elif touch.id:
            self._stuck_opening.add(touch.id)
            self._open_at_s = 0.0
        else:  # not a device: the tree itself does not answer
            self._open_at_s = now_s + LOST_RETRY_S
        readings, self._pending = self._pending, []
        self._outlet.send_readings(readings)

    def came_back(self, worker: Worker) -> None:
        """What a worker was stuck in can be read again."""
        if worker.turn is not None:
            self._hold(worker.turn.lane.device_id, False)
        elif worker.touch is not None:
            self._stuck_opening.discard(worker.touch.id)
        self._open_at_s = min(self._open_at_s, self._clock.mono_s() + REDISCOVER_SOON_S)

    def _hold(self, device_id: str, held: bool) -> None:
        """All lanes of a device that one thread is stuck in, so that no second one follows it."""
        for turn in list(self._turns.values()):
            if turn.lane.device_id == device_id:
                turn.held = held

    # ---- one tick ----------------------------------------------------------------------------------------------

    def step(self, me: Worker) -> float | None:
        """Do what is due; returns when something will be due again, None where another thread has taken over."""
        now_s = self._clock.mono_s()
        if now_s >= self._open_at_s and not self._open_all(me):
            return None
        if self._ledger.lost and now_s >= self._retry_at_s and not self._retry_lost(me):
            return None
        for turn in [t for t in self._turns.values() if not t.held and t.due_mono_s <= now_s + EARLY_S]:
            if self.crew.ending or turn.lane.source.name not in self._turns:
                continue  # its device was lost earlier in this tick
            mine, error = self._read(me, turn)
            if not mine:
                return None
            if error is not None and error.then != KEEP:
                self._act(me, turn, error)
        self._flush(now_s)
        return min([self._open_at_s, *(t.due_mono_s for t in self._turns.values() if not t.held)])

    def _read(self, me: Worker, turn: Turn) -> tuple[bool, LaneError | None]:
        """Read one lane; False where another thread has taken over meanwhile."""
        lane, error, values = turn.lane, None, None
        before_s = self._clock.mono_s()
        turn.take(before_s)
        me.turn = turn
        self.crew.touch(me, lane.device_kind, lane.device_id, before_s)
        try:
            values = lane.read()
        except LaneError as caught:
            error = caught
        except Exception as caught:  # a fault of ours costs this lane only
            error = self._own_fault(turn, caught)
        after_s = self._clock.mono_s()
        if not self.crew.leave(me):
            return False, None
        me.turn = None
        turn.read_took(after_s - before_s)
        turn.up, turn.reason = error is None, error.reason if error is not None else None
        if values is not None:
            self._back_off_s = 1.0
            turn.read_gave(values)
            self._pending.append(Reading(lane.source, (before_s + after_s) / 2, after_s - before_s, values))
        return True, error

    def _own_fault(self, turn: Turn, caught: Exception) -> LaneError:
        if turn.reason != "reader_fault":  # once per change of state
            import traceback

            traceback.print_exception(type(caught), caught, caught.__traceback__, file=sys.stderr)
        return LaneError("reader_fault")

    def _flush(self, now_s: float) -> None:
        """Send what this tick gave, in one write; once a second, how the sources do."""
        if self._pending and (now_s - self._pending[0].mono_s > _HELD_S or not any(t.amid for t in self._turns.values())):
            readings, self._pending = self._pending, []
            for reading in readings:
                if not self._ledger.knows(reading.source):
                    self._ledger.inventory(self._sources())  # a lane has grown a channel
                    break
            self._outlet.send_readings(readings)
        if now_s >= self._status_at_s:
            self._status_at_s = now_s + STATUS_S
            for turn in self._turns.values():
                if turn.held:
                    turn.pass_by(now_s)
            self._ledger.statuses(self._turns.values())

    def _sources(self) -> list[Any]:
        return [turn.lane.source for turn in self._turns.values()]

    # ---- failures ----------------------------------------------------------------------------------------------

    def _act(self, me: Worker, turn: Turn, error: LaneError) -> None:
        """Do what the error of a read asks for."""
        self._ledger.statuses(self._turns.values())  # the count that belongs to it, before its turn is gone
        if error.then == REDISCOVER:
            self._stale.add(turn.lane.source.name)
            self._look_again_s = REDISCOVER_SOON_S
            self._open_at_s = min(self._open_at_s, self._clock.mono_s() + REDISCOVER_SOON_S)
        elif error.then == QUARANTINE:
            device_id = turn.lane.device_id
            self._ledger.lose(device_id, error.reason)
            self._retry_at_s = self._clock.mono_s() + LOST_RETRY_S
            self._drop([t for t in self._turns.values() if t.lane.device_id == device_id])
            if not self._turns:  # all of them: then the library is what failed
                self._reopen_later(me, error.reason)
        elif error.then == REOPEN:
            self._reopen_later(me, error.reason)
        elif error.then == RESTART:
            self._restart(error.reason)

    def _drop(self, turns: list[Turn]) -> None:
        for turn in turns:
            turn.lane.close()
            del self._turns[turn.lane.source.name]

    def _reopen_later(self, me: Worker, reason: str) -> None:
        """Throw everything away and open it anew: at once is too soon, so back off 1, 2, 4 ... 30 s."""
        self._ledger.down([self._down(reason)])
        self._drop(list(self._turns.values()))
        self._shut(me)
        self._back_off()

    def _shut(self, me: Worker) -> None:
        if self._opener.close is not None:
            self.crew.touch(me, self._opener.device_kind, "")
            self._opener.close()
            self.crew.leave(me)

    def _back_off(self) -> None:
        self._open_at_s = self._clock.mono_s() + self._back_off_s
        self._back_off_s = min(LONGEST_BACK_OFF_S, 2 * self._back_off_s)

    def _restart(self, reason: str) -> None:
        self._ledger.down([self._down(reason)])
        self._leave(EXIT_RESTART)

    def _down(self, reason: str) -> SourceStatus:
        return SourceStatus(self._opener.kind, 0.0, up=False, reason=reason)

    # ---- opening -----------------------------------------------------------------------------------------------

    def _open_all(self, me: Worker) -> bool:
        self._open_at_s = self._clock.mono_s() + self._look_again_s
        self._look_again_s = min(self._opener.rediscover_s, 2 * self._look_again_s)
        return self._open(me, self._settings_now(), everything=True)

    def _retry_lost(self, me: Worker) -> bool:
        self._retry_at_s = self._clock.mono_s() + LOST_RETRY_S
        settings = self._settings_now()
        if not isinstance(settings, GpuSettings):
            return True
        return self._open(me, replace(settings, only=tuple(sorted(self._ledger.lost))), everything=False)

    def _settings_now(self) -> Settings:
        held = {t.lane.device_id for t in self._turns.values() if t.held}
        return replace(self._settings, skip=tuple(sorted(self._skip | self._stuck_opening | held)))

    def _open(self, me: Worker, settings: Settings, *, everything: bool) -> bool:
        """Look for devices and open them; False where another thread has taken over meanwhile."""
        error, opened = None, Opened()
        try:
            opened = self._opener.open(settings, lambda kind, device_id: self.crew.touch(me, kind, device_id))
        except LaneError as caught:
            error = caught
        if not self.crew.leave(me):
            for lane in opened.lanes:
                lane.close()
            return False
        if error is None:
            self._adopt(opened, settings.skip, everything=everything)
        elif error.then == RESTART:
            self._restart(error.reason)
        else:
            self._reopen_later(me, error.reason)
        return True

    def _adopt(self, opened: Opened, skipped: tuple[str, ...], *, everything: bool) -> None:
        """Go on with what was found."""
        for lane in opened.lanes:
            self._adopt_lane(lane)
        if everything:
            names = {lane.source.name for lane in opened.lanes}
            self._drop([t for name, t in self._turns.items() if name not in names and not t.held])
            self._stale.clear()
        if self._ledger.found(opened, self._sources(), skipped, everything=everything):
            self._retry_at_s = self._clock.mono_s() + LOST_RETRY_S
        if everything:
            all_lost = () if self._turns else tuple(self._ledger.lost.values())[:1]
            self._ledger.down([*opened.statuses, *(self._down(reason) for reason in all_lost)])
            if not self._turns and self._opener.close is not None:
                self._back_off()

    def _adopt_lane(self, lane: Lane) -> None:
        """Lanes of sources that are as they were are kept where devices are independent, else the new one is better."""
        name = lane.source.name
        turn = self._turns.get(name)
        if turn is None:
            self._turns[name] = Turn(lane, self._phase_s, self._clock.mono_s())
        elif turn.held:
            lane.close()  # a thread is still inside the one we have
        elif self._opener.independent and turn.lane.source == lane.source and name not in self._stale:
            lane.close()
        else:
            turn.replace_lane(lane)

    def close(self, me: Worker) -> None:
        """The end: give everything back, in the order in which it was taken."""
        self.crew.touch(me, self._opener.device_kind, "")
        self._drop([t for t in self._turns.values() if not t.held])
        self._shut(me)
        self.crew.leave(me)
