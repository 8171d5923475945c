"""Runs the daemon on a fake machine while faults are made, and keeps all that a scraper sees of it.

A Case is a value: a machine, what happens to it and when. `observe` runs it and returns an Observation. Times are taken
without what this host kept everybody waiting (`metronome.py`).
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.metronome import Metronome
from tests.end_to_end.processes import Daemon, daemon, without_rights
from tests.machines import Machine, Running
from tests.tools import require

LONGEST_SCRAPE_S = 0.5
GONE_WITHIN_S = 3.0  # from a fault until no value of the device is shown
BACK_WITHIN_S = 3.0  # silence of the other devices of the same reader
_STEP_S = 0.5
_REPEATS = 3  # lines that differ in numbers only


@dataclass(frozen=True)
class Act:
    """Something that happens `at_s` seconds after the daemon was ready."""

    at_s: float
    do: Callable[[Running, Daemon], Any]


@dataclass(frozen=True)
class Case:
    """What is run. prepare: before the start; the stack ends what it starts. ready: wait for /-/ready first.

    rights: whether the daemon, when root runs it, may read files that are closed to everybody.
    """

    name: str
    machine: Machine
    seconds: float
    acts: tuple[Act, ...] = ()
    prepare: Callable[[Running, ExitStack, Path], Any] = lambda running, stack, folder: None
    config: Mapping[str, Any] = field(default_factory=dict)
    ready: bool = True
    rights: bool = True
    last: Callable[[Running, Daemon], Any] = lambda running, daemon: None  # its answer is kept in Observation.last


@dataclass
class Scrape:
    """One look at the daemon. t_s: since it was ready."""

    t_s: float
    took_s: float
    held_up_s: float
    status: int
    healthy: int
    body: str
    snapshot: dict[str, Any]
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def values(self, name: str, **labels: str) -> list[float]:
        wanted = frozenset(labels.items())
        return [v for (n, have), v in self.samples.items() if n == name and wanted <= have]

    def value(self, name: str, **labels: str) -> float | None:
        found = self.values(name, **labels)
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None

    def reads(self, source: str) -> int:
        return sum(s["reads"] for s in self.snapshot["sources"] if s["source"] == source)

    def interval_s(self, source: str) -> Any:
        return next((s["interval_s"] for s in self.snapshot["sources"] if s["source"] == source), None)


@dataclass
class Observation:
    """Everything that was seen."""

    case: Case
    scrapes: list[Scrape]
    log: str
    nvml_events: list[str]
    same_process: bool  # the daemon that was started is the one that answered last
    ended_with: int
    ended_after_s: float
    last: Any
    held_up_s: Callable[[float, float], float]  # by this host, between two times as t_s has them

    def at(self, t_s: float) -> Scrape:
        """The first look at or after t_s."""
        return next(s for s in self.scrapes if s.t_s >= t_s)

    @property
    def end(self) -> Scrape:
        return self.scrapes[-1]

    def first(self, start_s: float, what: Callable[[Scrape], Any]) -> float:
        """When, from start_s on, something was seen first; seconds after start_s, without what the host kept us waiting."""
        for scrape in self.scrapes:
            if scrape.t_s >= start_s and what(scrape):
                return scrape.t_s - start_s - _STEP_S - self.held_up_s(start_s, scrape.t_s)
        raise AssertionError(f"{self.case.name}: never seen after {start_s} s\n{self.log[-3000:]}")

    def check(self, healthy: Mapping[str, float] = {}) -> None:
        """The rules of every case. healthy: source -> seconds of silence that it is allowed in the whole run."""
        name = self.case.name
        for s in self.scrapes:
            assert (s.status, s.healthy) == (200, 200), (name, s.t_s)
            assert s.took_s < LONGEST_SCRAPE_S + 2 * s.held_up_s, (name, s.t_s, s.took_s, s.held_up_s)
            assert not re.search(r"(?<!\+)\b(nan|inf)\b", s.body, re.IGNORECASE), (name, s.t_s)
        checked = subprocess.run([require("promtool"), "check", "metrics"], input=self.end.body.encode(), capture_output=True)
        assert checked.returncode == 0, (name, checked.stderr)
        assert self.same_process, name
        assert "Traceback" not in self.log, self.log
        lines = Counter(re.sub(r"\d+", "0", line) for line in self.log.splitlines())
        assert max(lines.values()) <= _REPEATS, (name, lines.most_common(1))
        for source, silence_s in healthy.items():
            self._check_rate(source, silence_s)

    def _check_rate(self, source: str, silence_s: float) -> None:
        """Nine of ten samples, at the rate that was planned: only a host that is too busy may make a reader back off."""
        first, last = self.scrapes[0], self.end
        seconds, held_up_s = last.t_s - first.t_s, self.held_up_s(first.t_s, last.t_s)
        intervals_s = [s.interval_s(source) for s in self.scrapes if s.interval_s(source) is not None]
        in_force_s = max(intervals_s) if held_up_s > 0.1 * seconds else min(intervals_s)
        read, expected = last.reads(source) - first.reads(source), (seconds - silence_s - held_up_s) / in_force_s
        assert read >= 0.9 * expected, (self.case.name, source, read, expected, held_up_s, intervals_s[-1])


def observe(case: Case, folder: Path) -> Observation:
    """Run a case from start to end."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        running = stack.enter_context(case.machine.running(folder / "machine"))
        case.prepare(running, stack, folder)
        config = folder / "config.yml"
        config.write_text(json.dumps(case.config) if case.config else "{}")
        metronome = stack.enter_context(Metronome())
        arguments, before = [*running.arguments, "--config.file", str(config)], [] if case.rights else without_rights()
        ran = stack.enter_context(daemon(folder, arguments, running.environment, before=before))
        metronome.follow(ran.process.pid)
        if case.ready:
            ran.ready()
        started = time.monotonic()
        scrapes = _watch(case, running, ran, metronome, started)
        last = case.last(running, ran)
        same_process = ran.process.poll() is None
        before = time.monotonic()
        ended_with = ran.stop()
        ended_after_s = time.monotonic() - before - metronome.held_up_s(before, time.monotonic())
        log = ran.log()
        events = running.nvml.events() if running.nvml is not None else []
        _heal(running)
    return Observation(
        case, scrapes, log, events, same_process, ended_with, ended_after_s, last,
        lambda start_s, end_s: metronome.held_up_s(started + start_s, started + end_s),
    )  # fmt: skip


def _watch(case: Case, running: Running, ran: Daemon, metronome: Metronome, started: float) -> list[Scrape]:
    acts = sorted(case.acts, key=lambda act: act.at_s)
    scrapes: list[Scrape] = []
    while (now_s := time.monotonic() - started) < case.seconds:
        while acts and acts[0].at_s <= now_s:
            acts.pop(0).do(running, ran)
        scrapes.append(_look(ran, started, metronome))
        next_s = min([now_s + _STEP_S, *(act.at_s for act in acts[:1])])
        time.sleep(max(0.0, started + next_s - time.monotonic()))
    return scrapes


def _look(ran: Daemon, started: float, metronome: Metronome) -> Scrape:
    before = time.monotonic()
    status, body = ran.get("/metrics")
    took_s = time.monotonic() - before
    text = body.decode()
    families = text_string_to_metric_families(text)
    samples = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    healthy, _ = ran.get("/-/healthy")
    snapshot = json.loads(ran.get("/api/v1/snapshot")[1])
    held_up_s = metronome.held_up_s(before - _STEP_S, time.monotonic())
    return Scrape(before - started, took_s, held_up_s, status, healthy, text, snapshot, samples)


def _heal(running: Running) -> None:
    """Nobody stays in a device after a case."""
    if running.nvml is not None:
        for index in range(len(running.nvml.boards)):
            running.nvml.edit(index, hang=0.0, crash=0, error=0)
