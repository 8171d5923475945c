"""The life of one reader: when a device is to blame, when it is started again, when there is no point any more.

`supervisor.py` keeps one per reader and calls it often, from the main thread. The rules:

- A device that is touched for longer than HANG_S hangs: it is quarantined, the process is left to itself, another goes on
  without the device. When the old process comes back it ends; that lifts the quarantine. At most two processes are left
  behind at a time: a third hang takes the source down.
- A process that crashed while a device was touched starts again at once, the third time in a minute without that device.
- Any other death: at once the first time, then after 1, 2, 4 ... 30 s, until a reader has lived for a minute. To be killed
  from outside says nothing of a device.

How long a device is left alone that fails again and again stands in `supervisor_patience.py`.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from exporter.announcements import Touch
from exporter.model import Inventory, Quarantine, SourceStatus
from exporter.supervisor_child import Child, ReaderEvent, keep_skipped, start_child
from exporter.supervisor_patience import CRASH, HANG, LONGEST_PAUSE_S, Patience
from exporter.wire import Decoder

HANG_S = 2.0
HEARTBEAT_S = 10.0  # silence after which a reader that touches nothing is ended
END_S = 2.0  # for a reader that was asked to end
MOST_ABANDONED = 2
LONGEST_BACK_OFF_S = 30.0
LONG_LIFE_S = 60.0
EXIT_RESTART, EXIT_GIVEN_UP = 3, 4  # the library no longer fits, which it says; too many of a net reader's threads are stuck

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """A reader to keep alive. `source` is the kind whose status stands for all of it (nvml, rdma)."""

    name: str  # gpu, net
    source: str
    settings: Mapping[str, Any]  # plain values, as exporter.sources has them


@dataclass(slots=True)
class _Skip:
    """A device that is left alone: until `child` has ended, then until `until_s` (None: not known yet)."""

    kind: str
    reason: str
    child: Child | None
    until_s: float | None
    pause_s: float = 0.0


class Reader:
    """One reader and the processes that it had."""

    def __init__(
        self, spec: ReaderSpec, new_decoder: Callable[[], Decoder], started_mono_s: float, hang_s: float,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:  # fmt: skip
        self.spec = spec
        self._new_decoder = new_decoder
        self._started_mono_s = started_mono_s
        self._hang_s = hang_s
        self.patience = Patience(longest_pause_s)
        self.child: Child | None = None
        self.abandoned: list[Child] = []
        self.restarts = 0
        self.ended_cpu_s = 0.0
        self._starts = 0
        self._start_at_s: float | None = 0.0  # None: not to be started by itself
        self._resume_at_s: float | None = None
        self._back_off_s = 0.0
        self._skips: dict[str, _Skip] = {}
        self._inventory: Inventory | None = None
        self._kinds_down: set[str] = set()  # whole kinds that were said to be down
        self._all_hang = False
        self._events: list[ReaderEvent] = []

    # ---- what the supervisor asks ------------------------------------------------------------------------------

    def tick(self, now_s: float, watched_since_s: float) -> list[ReaderEvent]:
        """Do what is due and take what has come; silence from before watched_since_s is ours, not the reader's."""
        self._reap_abandoned(now_s)
        self._lift(now_s)
        if (child := self.child) is not None:
            self._take(child, now_s)
            if child.reap():
                self._take(child, now_s)  # what it wrote last
                self._ended(child, now_s)
            else:
                self._judge(child, now_s, watched_since_s)
        if self._resume_at_s is not None and now_s >= self._resume_at_s:
            self.resume(now_s)
        if self.child is None and self._start_at_s is not None and now_s >= self._start_at_s:
            self._start(now_s)
        events, self._events = self._events, []
        return events

    def release(self, now_s: float, until_s: float) -> None:
        """End the process, so that nothing holds the devices, and start it again at until_s."""
        self._start_at_s, self._resume_at_s, self._all_hang = None, until_s, False
        self._say_down(now_s, "released")
        if self.child is not None:
            self.child.ask_to_end(now_s)

    def resume(self, now_s: float) -> None:
        """Take released devices up again, also those that had failed: they were released to be put right."""
        if self._resume_at_s is None:
            return
        self._resume_at_s = None
        self.patience.forgive()
        for skip in self._skips.values():
            skip.pause_s, skip.until_s = 0.0, None if skip.child else now_s
        if len(self.abandoned) > MOST_ABANDONED:  # as before: no further process goes in there
            self._all_hang = True
            self._say_down(now_s, "devices_hang")
        else:
            self._start_at_s = now_s

    @property
    def released(self) -> bool:
        """Whether the devices are left alone by request."""
        return self._resume_at_s is not None

    def replace(self, spec: ReaderSpec, now_s: float) -> None:
        """Go on with other settings, in a new process."""
        self.spec = spec
        if self.child is not None:
            self.child.ask_to_end(now_s)

    def end(self, now_s: float) -> None:
        """Ask every process to end; none is started any more."""
        self._start_at_s = self._resume_at_s = None
        self._all_hang = False
        for child in self.children():
            child.ask_to_end(now_s)

    def children(self) -> list[Child]:
        """All processes that may still run, the one that is listened to first."""
        return ([self.child] if self.child is not None else []) + self.abandoned

    def bury(self) -> list[Child]:
        """After `end`: take leave of the processes that have ended; returns the others."""
        for child in [c for c in self.children() if c.reap()]:
            self.ended_cpu_s += child.cpu_s
            child.close()
            self.child = None if child is self.child else self.child
            self.abandoned = [c for c in self.abandoned if c is not child]
        return self.children()

    # ---- life and death ----------------------------------------------------------------------------------------

    def _start(self, now_s: float) -> None:
        self._start_at_s = now_s  # a restart needs no other reason than that there is no process
        settings = {**self.spec.settings, "skip": sorted({*self.spec.settings.get("skip", ()), *self._skips})}
        if known := [f"{d.uuid}={d.id}" for d in (self._inventory.devices if self._inventory else ()) if d.uuid]:
            settings["known"] = known  # a board keeps its id although the driver may number boards anew
        self.child = start_child(self.spec.name, settings, self._new_decoder(), now_s)
        self.restarts += self._starts > 0
        self._starts += 1

    def _take(self, child: Child, now_s: float) -> None:
        for event in child.read():
            if isinstance(event, Inventory):
                self._take_inventory(event, child, now_s)
                continue
            if isinstance(event, Quarantine):
                if event.reason is None:
                    child.quarantined.pop((event.kind, event.id), None)
                else:
                    child.quarantined[event.kind, event.id] = event.reason
            elif isinstance(event, SourceStatus) and not event.up and "/" not in event.source:
                self._kinds_down.add(event.source)
            self._events.append(event)

    def _take_inventory(self, inventory: Inventory, child: Child, now_s: float) -> None:
        """With its first inventory a process speaks for itself: what was down before it is not any more, or it says so."""
        self._inventory = keep_skipped(inventory, self._inventory, {i: skip.kind for i, skip in self._skips.items()})
        self._events.append(self._inventory)
        if not child.has_spoken:
            child.has_spoken = True
            for source in sorted(self._kinds_down):
                self._events.append(SourceStatus(source, now_s - self._started_mono_s))
            self._kinds_down.clear()

    def _judge(self, child: Child, now_s: float, watched_since_s: float) -> None:
        """A living process: does it hang, has it fallen silent, does it not end although it was asked to?"""
        touched = child.touched()
        for touch in touched:
            if now_s - max(touch.since_mono_s, watched_since_s) > self._hang_s:
                self._abandon(child, touch, now_s)
                return
        if touched:
            return
        silent = now_s - max(child.heartbeat_mono_s(), watched_since_s) > HEARTBEAT_S
        overdue = child.asked_to_end_s is not None and now_s - max(child.asked_to_end_s, watched_since_s) > END_S
        if silent or overdue or child.broken:
            _log.warning("reader %s (%d) does not answer and is ended", self.spec.name, child.pid)
            child.kill()

    def _abandon(self, child: Child, touch: Touch, now_s: float) -> None:
        name = self.spec.name
        _log.error("%s %s hangs: reader %s (%d) is left to itself", touch.kind, touch.id or "library", name, child.pid)
        child.abandon(now_s)
        self.abandoned.append(child)
        self.child = None
        self._forget_own(child, now_s)
        if touch.id:
            self._skip(touch, HANG, child, self.patience.hung(touch.id, now_s), now_s)
        if self._resume_at_s is not None or self._start_at_s is None:
            return
        if len(self.abandoned) > MOST_ABANDONED:
            self._start_at_s, self._all_hang = None, True
            self._say_down(now_s, "devices_hang")
        elif touch.id:
            self._start_at_s = now_s
        else:
            self._start_later(now_s, None)
            self._say_down(now_s, "library_hangs")

    def _ended(self, child: Child, now_s: float) -> None:
        """The process that was listened to is gone: find out why, and when there is to be another."""
        code, self.child = child.exit_code or 0, None
        crashed = code < 0 and code != -signal.SIGKILL  # one that ends itself, or is killed, is not ended by the device at hand
        touch = next((t for t in child.touched() if t.id), None) if crashed else None
        self.ended_cpu_s += child.cpu_s
        self._forget_own(child, now_s)
        child.close()
        if child.asked_to_end_s is not None or self._start_at_s is None:
            return
        if now_s - child.started_mono_s > LONG_LIFE_S:
            self._back_off_s = 0.0
        if touch is None:
            _log.warning("reader %s (%d) ended with %s", self.spec.name, child.pid, code)
            self._start_later(now_s, None if code == EXIT_RESTART else "reader_died")
            return
        _log.error("reader %s (%d) ended with %s while it touched %s", self.spec.name, child.pid, code, touch.id)
        if (pause_s := self.patience.crashed(touch.id, now_s)) is not None:
            self._skip(touch, CRASH, None, pause_s, now_s)
        self._start_at_s = now_s

    def _start_later(self, now_s: float, reason: str | None) -> None:
        if self._back_off_s > 0.0 and reason is not None:
            self._say_down(now_s, reason)
        self._start_at_s = now_s + self._back_off_s
        self._back_off_s = min(LONGEST_BACK_OFF_S, 2 * self._back_off_s or 1.0)

    # ---- devices that are left alone ---------------------------------------------------------------------------

    def _skip(self, touch: Touch, reason: str, child: Child | None, pause_s: float, now_s: float) -> None:
        self._skips[touch.id] = _Skip(touch.kind, reason, child, None if child else now_s + pause_s, pause_s)
        if pause_s:
            _log.warning("%s %s is left alone for %g s%s", touch.kind, touch.id, pause_s, " after its return" if child else "")
        self._quarantine(touch.kind, touch.id, reason, now_s)

    def _forget_own(self, child: Child, now_s: float) -> None:
        """What a reader had quarantined itself ends with it; what made it give up is left alone for a while."""
        for (kind, device_id), reason in child.quarantined.items():
            if reason == HANG and child.exit_code == EXIT_GIVEN_UP:
                self._skips[device_id] = _Skip(kind, reason, None, now_s + self.patience.gave_up())
            else:
                self._quarantine(kind, device_id, None, now_s)
        child.quarantined.clear()

    def _reap_abandoned(self, now_s: float) -> None:
        for child in [c for c in self.abandoned if c.reap()]:
            self.abandoned.remove(child)
            self.ended_cpu_s += child.cpu_s
            child.close()
            for skip in self._skips.values():
                if skip.child is child:
                    skip.child, skip.until_s = None, now_s + skip.pause_s
            if self._all_hang:
                self._all_hang, self._start_at_s = False, now_s

    def _lift(self, now_s: float) -> None:
        over = [i for i, s in self._skips.items() if s.until_s is not None and self.patience.may_try(s.until_s, now_s)]
        for device_id in over:
            skip = self._skips.pop(device_id)
            self.patience.tries(device_id, skip.reason, now_s)
            _log.info("%s %s is read again", skip.kind, device_id)
            self._quarantine(skip.kind, device_id, None, now_s)
        if over and self.child is not None:
            self.child.tell_skip({*self.spec.settings.get("skip", ()), *self._skips})

    # ---- telling -----------------------------------------------------------------------------------------------

    def _quarantine(self, kind: str, device_id: str, reason: str | None, now_s: float) -> None:
        self._events.append(Quarantine(kind, device_id, now_s - self._started_mono_s, reason))

    def _say_down(self, now_s: float, reason: str) -> None:
        self._kinds_down.add(self.spec.source)
        self._events.append(SourceStatus(self.spec.source, now_s - self._started_mono_s, up=False, reason=reason))
