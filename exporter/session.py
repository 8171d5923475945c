"""The way of a sample from event to verdict: history, then transport, analysis and diagnosis at every whole second.

One Session serves the daemon, `demo`, `replay` and `analyze` alike, so that the same events give the same numbers live
and offline. Time is the time stamps of the events: nothing here knows a clock, a device or a client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from exporter.analysis import Analyzer
from exporter.diagnosis import Diagnosis
from exporter.history import History
from exporter.model import Device, Event, Finding, Inventory, OverlapAnalysis, TransportVerdict
from exporter.rules import Facts
from exporter.transport import Transport

# A second is judged this long after it ended: what was read in it has come through the pipe by then.
GRACE_S = 0.25
# A gap longer than this is not stepped through second by second: nothing of before it is left in any window.
_LONGEST_GAP_S = 400
# A GPU that has gone is still named for this long, with up 0.
_GONE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What one evaluation said: of every GPU, of the node's transport, and the causes that are active."""

    at_s: float
    analyses: tuple[OverlapAnalysis, ...]
    transport: TransportVerdict
    findings: tuple[Finding, ...] = ()


class Session:
    """Events in by `take`; `advance` evaluates the whole seconds that have become due."""

    def __init__(
        self,
        windows_s: tuple[float, ...] = (15.0, 60.0, 300.0),
        verdict_window_s: float = 60.0,
        horizon_s: float = 602.0,  # ten minutes for the flight recorder and the page, and what is read beside them
    ) -> None:
        self.verdict_window_s = verdict_window_s
        self.windows_s = windows_s
        self.history = History(max(horizon_s, windows_s[-1] + 60.0))
        self.analyzer = Analyzer(windows_s, verdict_window_s)
        self._transport = Transport()
        self._diagnosis = Diagnosis()
        self.verdicts = Verdicts(0.0, (), TransportVerdict("unknown", "settling"))
        self._next_s = 1
        self._gone: dict[str, tuple[float, Device]] = {}

    def take(self, event: Event) -> None:
        """Take in one event; events of one source come in the order of their time."""
        if isinstance(event, Inventory):
            self._note_gone(self.history.inventory, event)
        self.history.apply(event)

    def _note_gone(self, before: Inventory, after: Inventory) -> None:
        here = {d.uuid_or_id for d in after.of_kind("gpu")}
        for gpu in before.of_kind("gpu"):
            if gpu.uuid_or_id not in here:
                self._gone[gpu.uuid_or_id] = (self._next_s, gpu)
        for uuid in here & self._gone.keys():
            del self._gone[uuid]

    def gone(self, now_s: float) -> tuple[Device, ...]:
        """GPUs that have left within the last 24 hours."""
        for uuid in [u for u, (since_s, _) in self._gone.items() if now_s - since_s > _GONE_S]:
            del self._gone[uuid]
        return tuple(gpu for _, gpu in self._gone.values())

    @property
    def next_due_s(self) -> float:
        """When `advance` will have something to do."""
        return self._next_s + GRACE_S

    def advance(self, now_s: float) -> bool:
        """Evaluate every whole second that ended at least GRACE_S before now_s; True if there was one."""
        due_s = math.floor(now_s - GRACE_S)
        if due_s < self._next_s:
            return False
        for second in range(max(self._next_s, due_s - _LONGEST_GAP_S), due_s + 1):
            self._evaluate(float(second))
        self._next_s = due_s + 1
        return True

    def finish(self, last_s: float) -> None:
        """The events have ended at last_s: evaluate the whole seconds up to it without waiting."""
        self.advance(last_s + GRACE_S)

    def _evaluate(self, at_s: float) -> None:
        transport = self._transport.step(self.history, self.history.inventory, at_s, self._busy())
        inventory = self._judged(transport)
        analyses = self.analyzer.step(self.history, inventory, at_s)
        facts = Facts(at_s, inventory, analyses, transport, self.history, self.verdict_window_s)
        self.verdicts = Verdicts(at_s, analyses, transport, self._diagnosis.step(facts))

    def _busy(self) -> bool | None:
        """Whether at least half of the GPUs were at work by the last evaluation; None where none has data."""
        shortest_s = self.windows_s[0]
        states = [a.state for a in self.verdicts.analyses if a.window_s == shortest_s and a.state != "no_data"]
        return 2 * sum(state != "idle" for state in states) >= len(states) if states else None

    def _judged(self, transport: TransportVerdict) -> Inventory:
        """The inventory with the interfaces that carry the job over TCP as the GPUs' own."""
        inventory = self.history.inventory
        return replace(inventory, links=inventory.links + transport.links) if transport.links else inventory

    @property
    def inventory(self) -> Inventory:
        """The inventory as it is judged, with the links that were found in the traffic."""
        return self._judged(self.verdicts.transport)

    def evaluate(self, at_s: float, windows_s: tuple[float, ...]) -> tuple[OverlapAnalysis, ...]:
        """A named instant, besides the whole seconds: all windows, all fields; changes nothing."""
        return self.analyzer.evaluate(self.history, self.inventory, at_s, windows_s)
