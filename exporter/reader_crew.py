"""The threads of a reader: one does the rounds; one that gets stuck in a device is left there and another goes on.

`reader_rounds.py` says what the work is, `reader.py` calls `watch` often. Only where devices are independent of each
other (ports, interfaces) may a thread be left behind: NVML is one library and is never called from a second thread; there
the exporter replaces the whole reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from exporter.announcements import SLOTS, Announcements, Touch
from exporter.clock import Clock
from exporter.reader_outlet import Outlet
from exporter.reader_turns import Turn

STUCK_S = 0.1  # a read that takes longer no longer holds up the other devices
HANG_S = 1.0  # a device that has been touched for so long is reported
MOST_GIVEN_UP = 4  # stuck threads that one reader puts up with
EXIT_FAULT, EXIT_GIVEN_UP = 1, 4
_LONGEST_SLEEP_S = 0.25  # how long an end may go unnoticed


class Worker(threading.Thread):
    """A thread that does the rounds until another does."""

    def __init__(self, crew: Crew, slot: int) -> None:
        super().__init__(name=f"rounds-{slot}", daemon=True)
        self._crew = crew
        self.slot = slot
        self.turn: Turn | None = None  # what it is reading; None while it opens devices
        self.touch: Touch | None = None  # what it was left behind in
        self.told = False  # whether that was reported

    def run(self) -> None:
        try:
            self._crew.run(self)
        except Exception:
            import traceback

            traceback.print_exc()
            self._crew.give_up()


class Work(Protocol):
    """What there is to do in a round; the crew sees to it that one thread at a time does it."""

    def step(self, me: Worker) -> float | None:
        """Do what is due; returns when something will be due again, None once `me` is no longer the owner."""
        ...

    def left_behind(self, worker: Worker, touch: Touch, now_s: float) -> None:
        """A worker is stuck; the next one must not touch what it is in. Called with the crew's lock held."""
        ...

    def came_back(self, worker: Worker) -> None:
        """A worker that was left behind is out of its device. Called with the crew's lock held."""
        ...

    def close(self, me: Worker) -> None:
        """The end: give everything back."""
        ...


class Crew:
    """Who does the rounds."""

    def __init__(
        self, work: Work, *, page: Announcements, outlet: Outlet, clock: Clock, independent: bool, leave: Callable[[int], None]
    ) -> None:
        self._work = work
        self._page = page
        self._outlet = outlet
        self._clock = clock
        self._independent = independent
        self._leave = leave  # ends the process with a status
        self._lock = threading.Lock()
        self._owner = Worker(self, 0)
        self._stuck: list[Worker] = []
        self.ending = False

    def start(self) -> None:
        """Begin the rounds."""
        self._owner.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the owner to end; False where it did not."""
        self._owner.join(timeout_s)
        return not self._owner.is_alive()

    def run(self, me: Worker) -> None:
        """Go round until the end, or until another thread has taken over."""
        while not self.ending:
            wake_s = self._work.step(me)
            if wake_s is None:
                self._come_back(me)
                return
            self._clock.sleep_until(min(wake_s, self._clock.mono_s() + _LONGEST_SLEEP_S))
        self._work.close(me)

    def give_up(self) -> None:
        """The rounds ended by a fault of ours: a reader that goes on without them would look alive."""
        self._leave(EXIT_FAULT)

    def touch(self, me: Worker, kind: str, device_id: str, now_s: float | None = None) -> None:
        """`me` is about to touch this device."""
        self._page.touch(me.slot, self._page.number(kind, device_id), self._clock.mono_s() if now_s is None else now_s)

    def leave(self, me: Worker) -> bool:
        """`me` touches nothing any more; False where another thread has gone on without it."""
        with self._lock:
            self._page.leave(me.slot)
            return self._owner is me

    def watch(self, now_s: float) -> None:
        """Called often by a thread that touches nothing."""
        if not self._independent:
            return
        touched = {t.slot: t for t in self._page.touched()}
        if not touched:
            return
        with self._lock:
            touched = {t.slot: t for t in self._page.touched()}  # as it is now that nobody can leave
            self._replace_owner(touched.get(self._owner.slot), now_s)
            self._report(touched, now_s)

    def _replace_owner(self, touch: Touch | None, now_s: float) -> None:
        me = self._owner
        limit_s = STUCK_S if me.turn is not None else HANG_S
        if touch is None or now_s - touch.since_mono_s < limit_s:
            return
        taken = {w.slot for w in self._stuck} | {me.slot}
        free = next((slot for slot in range(SLOTS) if slot not in taken), None)
        if free is None:
            self._leave(EXIT_GIVEN_UP)
            return
        me.touch = touch
        self._stuck.append(me)
        self._work.left_behind(me, touch, now_s)
        self._owner = Worker(self, free)
        self._owner.start()

    def _report(self, touched: dict[int, Touch], now_s: float) -> None:
        for worker in self._stuck:
            touch = touched.get(worker.slot)
            if touch is not None and not worker.told and now_s - touch.since_mono_s >= HANG_S:
                worker.told = True
                self._page.give_up(worker.slot, True)
                self._outlet.send_quarantine(touch.kind, touch.id, "hang", now_s)
        if sum(w.told for w in self._stuck) > MOST_GIVEN_UP:
            self._leave(EXIT_GIVEN_UP)

    def _come_back(self, me: Worker) -> None:
        with self._lock:
            self._stuck.remove(me)
            self._page.give_up(me.slot, False)
            self._work.came_back(me)
            if me.told and me.touch is not None:
                self._outlet.send_quarantine(me.touch.kind, me.touch.id, None, self._clock.mono_s())
