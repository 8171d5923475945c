"""How well the step period is told: the product's own analysis on traces, simulated jobs and draws whose steps are known.

    python -m benchmarks.periods [--seeds N] [--draws N] [--truth FILE] [--misses] [FOLDER ...]

One table from one run. Every scenario of the simulator is judged through the session that the daemon runs, at its last second
and, for steadiness, at every second before; draws are timelines of kernels finer than the sensors, judged once. A FOLDER
holds traces with an index.csv (file, t_end_s and step_s; or period_s, the mean time from burst to burst, which is a step
where steps have one burst). FILE is a table of the same kind (file, step_s) whose rows win over those of an index; an empty
step_s says that there is none to be found. A step of which fewer than three lie in the window, or which is shorter than four
polls of the bytes, or of power where nothing is sent, counts as none. Asserts nothing.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from exporter.analysis import Analyzer
from exporter.model import Event, Record
from exporter.session import GRACE_S, Session
from exporter.signals import rates
from exporter.sources.scenarios import SCENARIOS
from exporter.sources.simulator import simulate
from exporter.trace import read_trace
from tests.draws_timelines import FAMILIES, TIMELINES, draw, only

WINDOW_S, SECONDS = 60.0, 120.0
CLOSE, HARMONIC = 0.03, 0.06
_MOST, _LEAST_POLLS, _LEAST_PERIODS = 20, 4.0, 3.0
_COLUMNS = ("right", "multiples", "fractions", "otherwise wrong", "silent")


@dataclass(frozen=True, slots=True)
class Said:
    """One answer at the end of a trace, the truth (None: nothing that could be told), and all answers on the way."""

    kind: str
    name: str
    truth_s: float | None
    said_s: float | None
    on_the_way_s: tuple[float, ...] = ()

    @property
    def outcome(self) -> str:
        """One of the columns; where there is no truth, silence is right."""
        if self.said_s is None:
            return "silent" if self.truth_s is not None else "right"
        if self.truth_s is None:
            return "otherwise wrong"
        ratio = self.said_s / self.truth_s
        if abs(ratio - 1.0) <= CLOSE:
            return "right"
        for name, times in (("multiples", ratio), ("fractions", 1.0 / ratio)):
            if 2 <= round(times) <= _MOST and abs(times / round(times) - 1.0) <= HARMONIC:
                return name
        return "otherwise wrong"

    @property
    def leaps(self) -> int:
        """How often the answer went to another one that is further off than a tenth."""
        pairs = zip(self.on_the_way_s, self.on_the_way_s[1:], strict=False)
        return sum(abs(later / before - 1.0) > 0.1 for before, later in pairs)


def through_session(events: Iterable[Event], at_s: float) -> tuple[Session, float | None, tuple[float, ...]]:
    """The answer for the first GPU at at_s, and all that the session said before."""
    session, way = Session(), []
    for event in events:
        if isinstance(event, Record):
            if event.t_s >= at_s + GRACE_S:
                break
            if session.advance(event.t_s):
                way += [a.step_period_s for a in session.verdicts.analyses[:3] if a.window_s == WINDOW_S]
        session.take(event)
    session.advance(at_s + GRACE_S)
    answer = session.evaluate(at_s, (WINDOW_S,))[0].step_period_s
    return session, answer, tuple(p for p in way if p is not None)


def told(session: Session, step_s: float, at_s: float) -> float | None:
    """The true step, or None where no sensor could tell it."""
    gpu = session.inventory.of_kind("gpu")[0].id
    channels = [f"{gpu}/power_watts"]
    analysis = session.evaluate(at_s, (WINDOW_S,))[0]
    if analysis.communication:
        channels = [f"{k.device_id}/receive_bytes_total" for k in session.inventory.links if k.gpu_id == gpu]
    t = [session.history.series(c, at_s - WINDOW_S, at_s)[0] for c in channels]
    poll_s = min((rates.poll_interval(of) for of in t if len(of) > 2), default=math.inf)
    return step_s if _LEAST_POLLS * poll_s <= step_s <= WINDOW_S / _LEAST_PERIODS else None


def simulated(seeds: int) -> Iterator[Said]:
    """Every scenario, each with its own truth."""
    for row in SCENARIOS:
        for seed in range(seeds):
            events = simulate(row.name, SECONDS, seed, max(2, row.min_gpus))
            step_s = events.truth_between(SECONDS - WINDOW_S, SECONDS)["gpus"]["GPU-0"]["step_period_s"]
            _, said, way = through_session(events, SECONDS)
            yield Said("simulated", f"{row.name}, seed {seed}", step_s, said, way)


def drawn(count: int) -> Iterator[Said]:
    """Timelines of kernels, with bytes at 10 Hz; the true step is that of the draw, steps vary by some per cent."""
    made = list(TIMELINES)
    for number in range(count):
        rng = np.random.default_rng([number, 77])
        step_s = float(np.exp(rng.uniform(np.log(0.42), np.log(12.0))))
        name, family = made[number % len(made)], FAMILIES[number // len(made) % len(FAMILIES)]
        channels, inventory, truth = draw(TIMELINES[name](rng), family, step_s, rng)
        for readings in ("power25_nic10", "gpm_paired"):
            seen = only(channels, inventory, readings)
            said = Analyzer((WINDOW_S,), WINDOW_S).evaluate(*seen, truth.at_s, (WINDOW_S,))[0].step_period_s
            yield Said(f"draws, {readings}", f"{name} {family} {step_s:.2f} s, {number}", step_s, said)


def folder(path: Path, known: dict[str, str]) -> Iterator[Said]:
    """Labelled traces, judged as `analyze` would."""
    with (path / "index.csv").open(encoding="utf-8") as file:
        rows = {(row["file"], row["t_end_s"]): row for row in csv.DictReader(file)}
    for (name, end), row in rows.items():
        step = known.get(name, row.get("step_s") or row.get("period_s") or "")
        session, said, way = through_session(read_trace(str(path / name)), float(end))
        truth_s = told(session, float(step), float(end)) if step not in ("", "nan") else None
        kind = f"{path.name}, {row.get('readings') or row.get('sensor') or ''}".rstrip(", ")
        yield Said(kind if "step_s" in row else path.name, f"{name}, {end} s", truth_s, said, way)


def show(results: list[Said], misses: bool) -> None:
    """The table: a row per set, first where there is a step to be told, then where there is none."""
    console = Console(width=128, highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("set", "steps", "answered", *_COLUMNS[:4], "no step", "silent there", "leaps on the way"):
        table.add_column(column, justify="left" if column == "set" else "right")
    for kind in dict.fromkeys(r.kind for r in results):
        mine = [r for r in results if r.kind == kind]
        there = Counter(r.outcome for r in mine if r.truth_s is not None)
        none = Counter(r.outcome for r in mine if r.truth_s is None)
        table.add_row(kind, str(there.total()), str(there.total() - there["silent"]), *(str(there[c]) for c in _COLUMNS[:4]),
                      str(none.total()), str(none["right"]), str(sum(r.leaps for r in mine)))  # fmt: skip
    console.print(table)
    for r in results if misses else ():
        if r.outcome not in ("right", "silent"):
            console.print(f"{r.kind}: {r.name}: said {r.said_s}, truth {r.truth_s}, {r.outcome}")


def main() -> None:
    """Print how well steps are told."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.periods", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="of each scenario of the simulator (default 1)")
    parser.add_argument("--draws", type=int, default=120, help="timelines of kernels (default 120)")
    parser.add_argument("--truth", type=Path, help="table of steps that are known better than an index has them")
    parser.add_argument("--misses", action="store_true", help="name every wrong answer")
    parser.add_argument("folders", nargs="*", type=Path)
    given = parser.parse_args()
    known: dict[str, str] = {}
    if given.truth:
        with given.truth.open(encoding="utf-8") as file:
            known = {row["file"]: row["step_s"] for row in csv.DictReader(file)}
    results = [said for path in given.folders for said in folder(path, known)]
    show([*results, *simulated(given.seeds), *drawn(given.draws)], given.misses)


if __name__ == "__main__":
    main()
