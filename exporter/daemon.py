"""The daemon's loop: events from a feed into the session, a snapshot out each second, until it is told to stop.

`app` builds the parts and runs it. One thread does everything but HTTP: it polls the feed, lets the session judge every
whole second, and publishes one immutable snapshot with its exposition. The server's thread only ever reads the newest.
"""

from __future__ import annotations

import logging
import math
import signal
from bisect import bisect_left
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Protocol

from exporter.clock import Clock
from exporter.collector import Exposition, Form
from exporter.history import History
from exporter.incidents import Incidents
from exporter.model import (
    ANALYSIS_DURATION_BOUNDS_S,
    Event,
    GpuJob,
    GpuPod,
    Inventory,
    OneLineError,
    Quarantine,
    Snapshot,
)
from exporter.processes import Processes
from exporter.release import ReleaseSwitch
from exporter.session import Session, Verdicts
from exporter.trend import Trend

log = logging.getLogger(__name__)


_LOOKED_LATELY_S = 1.0  # a page that is open says so ten times a second
# A form of /metrics that was asked for within this time is made with every snapshot, so that a scrape copies memory.
_ASKED_LATELY_S = 130.0  # two scrapes a minute apart, with room
LONGEST_START_S = 15.0  # by then a device that is required has been found, or is missing


class MissingError(OneLineError):
    """A source that was required is not there."""


def check_required(require: tuple[str, ...], history: History) -> None:
    """MissingError where a kind of device that was required is absent; says why, as far as its reader said."""
    kinds = {"gpu": ("gpu", "nvml"), "rdma": ("rdma_port", "rdma")}
    reasons = {s.source: s.reason for s in history.health() if not s.up}
    for name in require:
        device_kind, source = kinds[name]
        if not history.inventory.of_kind(device_kind):
            why = reasons.get(source)
            raise MissingError(f"--require {name}: no {device_kind.replace('_', ' ')} was found" + (f" ({why})" if why else ""))


class Feed(Protocol):
    """Where events come from: the readers of this node, a trace, or a simulation."""

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        ...

    def now_s(self) -> float:
        """Session time."""
        ...

    def poll(self, until_s: float, closely: bool = False) -> list[Event]:
        """Wait for events, at most until session time until_s; those that came, in the order of each source's time.

        closely: somebody looks at the live page, whose curves move with what comes.
        """
        ...

    def pids(self) -> Mapping[str, tuple[int, ...]]:
        """Its processes by role, for the account of what the exporter costs."""
        ...

    def ended_cpu_s(self) -> Mapping[str, float]:
        """CPU time of its processes that have ended, by role."""
        ...

    def counted_gpus(self) -> tuple[int | None, int | None]:
        """GPUs as sysfs and as NVML count them; None where there is no count."""
        ...

    def starting(self) -> str | None:
        """What has not yet said what there is to read; None once all have."""
        ...

    def owners(self) -> tuple[tuple[GpuPod, ...], tuple[GpuJob, ...]]:
        """Pods and batch jobs that hold the GPUs, as last heard."""
        ...

    def stop(self) -> None:
        """End what was started."""
        ...


class Daemon:
    """Implements what the server asks for (`exposition`, `history`, `not_ready`, `looked_at`, `switch`)."""

    def __init__(
        self, feed: Feed, session: Session, mode: str, clock: Clock, own_pid: int, on_hangup: Callable[[], bool],
        require: tuple[str, ...] = (), switch: ReleaseSwitch | None = None,
        incidents: Incidents | None = None,
    ) -> None:  # fmt: skip
        self.switch = switch  # None: nothing here holds a device
        self._incidents = incidents
        self._feed = feed
        self._session = session
        self._mode = mode
        self._clock = clock
        self._own_pid = own_pid
        self._on_hangup = on_hangup
        self._require = require
        self._processes = Processes()
        self._stopping = False
        self._hung_up = False
        self._looked_at_s = -math.inf
        self._reload_ok = True
        self._analysis_buckets = [0] * (len(ANALYSIS_DURATION_BOUNDS_S) + 1)
        self._analysis_sum_s = 0.0
        self._sources_down: dict[str, str | None] = {}
        self._forms: dict[Form, float] = {}  # and when they were last asked for
        self.exposition: Exposition | None = None
        self.trend = Trend(session.verdict_window_s)

    @property
    def history(self) -> History:
        """For the waveforms of the page."""
        return self._session.history

    def not_ready(self) -> str | None:
        """Why `/-/ready` says no: a reader that has not looked yet, a source without a read, no analysis so far."""
        if (starting := self._feed.starting()) is not None:
            return f"{starting} has not looked yet"
        alone = {q.id for q in self.history.quarantined()}
        present = {s.name for s in self.history.inventory.sources}
        for source in self.history.health():
            device = source.source.partition("/")[2].split("/")[0]
            if source.source in present and source.up and not source.reads and device not in alone:
                return f"{source.source} has given no sample yet"
        # The snapshot is made a moment after its analysis: ready is what can be scraped.
        return "no analysis has run yet" if not self._session.verdicts.at_s or self.exposition is None else None

    def looked_at(self) -> None:
        """Somebody looks at the live page just now: for a second from now on readings are fetched more often."""
        self._looked_at_s = self._clock.mono_s()

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT stop, SIGHUP reloads, SIGUSR1 works the release switch; also as process 1, which has no
        default action for them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)
        signal.signal(signal.SIGUSR1, self._on_switch)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _on_reload(self, number: int, frame: FrameType | None) -> None:
        self._hung_up = True

    def _on_switch(self, number: int, frame: FrameType | None) -> None:
        if self.switch is not None:
            self.switch.toggle()

    def run(self) -> None:
        """Until a signal says stop, or the feed has ended."""
        while not self._stopping:
            if self._hung_up:
                self._hung_up = False
                self._reload_ok = self._on_hangup()
                self._publish()
            if self.switch is not None:
                self.switch.step()
            closely = self._clock.mono_s() - self._looked_at_s < _LOOKED_LATELY_S
            events = self._feed.poll(self._session.next_due_s, closely)
            urgent = False
            for event in events:
                self._session.take(event)
                urgent = urgent or isinstance(event, (Quarantine, Inventory))
            if self._require and (self._feed.starting() is None or self._feed.now_s() > LONGEST_START_S):
                check_required(self._require, self.history)
                self._require = ()
            began_s = self._clock.mono_s()
            if self._session.advance(self._feed.now_s()):
                self._book_analysis(self._clock.mono_s() - began_s)
                self._note(self._session.verdicts)
                self._publish()
            elif urgent and self.exposition is not None:
                self._publish()  # what is gone must not be shown for another second
            if self._feed.done:
                log.info("the trace has ended; still serving its last state")
                self._idle()
        log.info("stopping")

    def _note(self, verdicts: Verdicts) -> None:
        """What is kept of an evaluation besides the newest snapshot."""
        self.trend.add(verdicts.at_s, verdicts.analyses)
        if self._incidents is not None:
            self._incidents.note(verdicts.at_s, verdicts.findings)

    def _idle(self) -> None:
        while not self._stopping:
            self._clock.sleep_until(self._clock.mono_s() + 0.2)

    def _book_analysis(self, duration_s: float) -> None:
        self._analysis_buckets[bisect_left(ANALYSIS_DURATION_BOUNDS_S, duration_s)] += 1
        self._analysis_sum_s += duration_s

    def _publish(self) -> None:
        session, history = self._session, self._session.history
        now_s = self._feed.now_s()
        pci_gpus, nvml_gpus = self._feed.counted_gpus()
        pods, jobs = self._feed.owners()
        snapshot = Snapshot(
            t_s=now_s,
            wall_s=self._clock.wall_s(),
            inventory=session.inventory,
            mode=self._mode,
            latest=history.latest(now_s),
            analyses=session.verdicts.analyses,
            phases=session.analyzer.phases,
            findings=session.verdicts.findings,
            transport=session.verdicts.transport.transport,
            sources=history.health(),
            quarantined=history.quarantined(),
            gone=session.gone(now_s),
            refresh=session.analyzer.refresh,
            processes=self._processes.measure(
                {"exporter": (self._own_pid,), **self._feed.pids()}, self._feed.ended_cpu_s(), now_s
            ),
            analysis_duration_buckets=tuple(self._analysis_buckets),
            analysis_duration_sum_s=self._analysis_sum_s,
            config_reload_ok=self._reload_ok,
            verdict_window_s=session.verdict_window_s,
            pci_gpus=pci_gpus,
            nvml_gpus=nvml_gpus,
            pods=pods,
            jobs=jobs,
        )
        self._tell_changes(snapshot)
        self.exposition = Exposition.render(snapshot, self._forms_wanted(now_s))

    def _forms_wanted(self, now_s: float) -> list[Form]:
        """The forms that somebody has asked for lately."""
        if self.exposition is not None:
            self._forms.update(dict.fromkeys(self.exposition.asked(), now_s))
        return [form for form, asked_s in self._forms.items() if now_s - asked_s <= _ASKED_LATELY_S]

    def _tell_changes(self, snapshot: Snapshot) -> None:
        """One line per change of a source, not one per second."""
        for source in snapshot.sources:
            before = self._sources_down.get(source.source, "")
            if source.up and source.source in self._sources_down:
                del self._sources_down[source.source]
                log.info("%s is back", source.source)
            elif not source.up and before != source.reason:
                self._sources_down[source.source] = source.reason
                log.warning("%s is not available: %s", source.source, source.reason or "no reason given")
