"""How well overlap can be told from outside: the method beside simpler estimators, on draws with known truth.

    python -m benchmarks.estimators [--draws N] [--seed S] [FOLDER ...]

One table from one run. Draws are textbook alternations (rhythms of .2 to 4 s) and timelines of kernels whose communication
is finer than the sensors; a FOLDER holds traces with an index.csv (file, t_end_s, window_s, exposed, comm or communication;
rows that are marked `info` are left out). Every estimator gives the health of communication, 0 to 1, or nothing; those that
know no shares of time are given the mapping that is usual for them. Asserts nothing.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from exporter.analysis import Analyzer
from exporter.memories import GpuMemory
from exporter.model import Inventory, OverlapAnalysis, Record, Series
from exporter.readings import gather
from exporter.resolved import resolved
from exporter.session import GRACE_S, Session
from exporter.signals import correlation, levels, overlap
from exporter.trace import read_trace
from tests.draws import GRAIN_S, alternation, node
from tests.draws_timelines import READINGS, draws, only

Array = NDArray[np.float64]

WINDOW_S = 60.0
MISLEADING = 0.3
_LAGS = 5  # readings to either side that the search for a lag may try
_SEGMENT = 64


@dataclass(frozen=True, slots=True)
class Case:
    """What was read, and the truth; power and traffic beside it [n] are given to the estimators that need no more."""

    kind: str
    exposed: float
    communication: float
    wait: float  # NaN where the truth does not say
    said: OverlapAnalysis  # by the whole method; its health is None where it refuses
    first: float | None  # health of a resolved rhythm, whatever the sensors resolve: the method's beginning
    power: Array
    traffic: Array

    @property
    def health(self) -> float:
        return 1.0 - self.exposed / self.communication

    @property
    def holds(self) -> bool:
        """Whether the bounds hold the true exposed share."""
        low, high = self.said.exposed_low, self.said.exposed_high
        return low is not None and high is not None and low - 0.01 <= self.exposed <= high + 0.01

    @property
    def width(self) -> float:
        return (self.said.exposed_high or 0.0) - (self.said.exposed_low or 0.0)


def case_of(kind: str, series: Series, inventory: Inventory, analyzer: Analyzer, at_s: float, window_s: float,
            exposed: float, communication: float, wait: float = math.nan) -> Case:  # fmt: skip
    """Judge one window with the product, and take out what the simpler estimators are given."""
    gpu = inventory.of_kind("gpu")[0].id
    said = next(a for a in analyzer.evaluate(series, inventory, at_s, (window_s,)) if a.gpu_id == gpu)
    sensors = {d.id: GpuMemory().believed(d) for d in inventory.of_kind("gpu")}  # by the tables: nothing is measured
    readings = gather(series, inventory, at_s - window_s, at_s, sensors, {})
    inside = (readings.t > at_s - window_s) & (readings.t <= at_s)
    power = np.where(inside, readings.power, np.nan)[:1]
    traffic = np.where(inside, readings.traffic.sum(axis=0), np.nan)[:1]
    fine_inside = (readings.fine_t > at_s - window_s) & (readings.fine_t <= at_s)
    fine = np.where(fine_inside, readings.fine.sum(axis=0), np.nan)[:1]
    low, high = levels.traffic_levels(fine)
    scaled, fine_scaled = levels.presence(traffic, low, high), levels.presence(fine, low, high)
    with np.errstate(invalid="ignore"):
        on = scaled > overlap.ON
    first = resolved(power, levels.quantiles(power, (0.95,))[0], np.where(inside, readings.utilization, np.nan)[:1],
                     levels.soft_presence(scaled), on, correlation.pearson(power, traffic), np.array([np.nan]), np.zeros(1),
                     readings.step_s[:1], fine_scaled, levels.soft_presence(fine_scaled), readings.fine_step_s[:1],
                     readings.fine_length_s[:1])  # fmt: skip
    health = float(overlap.health(first.exposed, first.communication)[0])
    known = ~np.isnan(power[0]) & ~np.isnan(traffic[0])
    return Case(kind, exposed, communication, wait, said, None if math.isnan(health) else health, power[0, known],
                traffic[0, known])  # fmt: skip


def alternations(count: int, rng: np.random.Generator) -> Iterator[Case]:
    """Compute and communication in turns, some of it hidden, on sensors of 25 and of 100 ms."""
    for number in range(count):
        window_s = (0.025, 0.1)[number % 2]
        period_s, share, hidden = rng.uniform(0.2, 4.0), rng.uniform(0.1, 0.5), float(rng.choice([0.0, 0.3, 0.6, 1.0]))
        compute, traffic = alternation(75.0, period_s * (1 - (1 - hidden) * share), period_s * share, 0.03, rng, hidden=hidden)
        channels, inventory = node(compute, traffic, rng, window_s=window_s, byte_hz=(10.0, 50.0)[number // 2 % 2],
                                   high=rng.uniform(400, 660))  # fmt: skip
        inside = slice(round(14.0 / GRAIN_S), round(74.0 / GRAIN_S))
        exposed, communication = float((traffic * (1 - compute))[inside].mean()), float(traffic[inside].mean())
        yield case_of("alternations", channels, inventory, _warmed(channels, inventory), 74.0, WINDOW_S, exposed, communication)


def timelines(count: int, rng: np.random.Generator) -> Iterator[Case]:
    """Each draw through four sets of readings."""
    for channels, inventory, truth in draws(count, rng):
        if truth.communication < 0.02:
            continue
        for readings in READINGS:
            node_of, seen = only(channels, inventory, readings)
            yield case_of(f"fresh, {readings}", node_of, seen, _warmed(node_of, seen), truth.at_s, WINDOW_S, truth.exposed,
                          truth.communication, truth.wait)  # fmt: skip


def folder(path: Path) -> Iterator[Case]:
    """Labelled traces, judged as `analyze` would."""
    with (path / "index.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        communication = float(row.get("comm") or row.get("communication") or "nan")
        if not communication >= 0.02 or row.get("judge") == "info":
            continue
        at_s, session = float(row["t_end_s"]), Session()
        for event in read_trace(str(path / row["file"])):
            if isinstance(event, Record):
                if event.t_s >= at_s + GRACE_S:
                    break
                session.advance(event.t_s)
            session.take(event)
        session.advance(at_s + GRACE_S)
        kind = f"{path.name}, {row['readings']}" if "readings" in row else path.name
        yield case_of(kind, session.history, session.inventory, session.analyzer, at_s, float(row["window_s"]),
                      float(row["exposed"]), communication)  # fmt: skip


def _warmed(series: Series, inventory: Inventory) -> Analyzer:
    """An analyzer that has seen the minute before, at some of its seconds."""
    analyzer = Analyzer((15.0, 60.0), 60.0)
    for second in (15.0, 30.0, 45.0, 60.0, 70.0, 73.0):
        analyzer.step(series, inventory, second)
    return analyzer


def pearson(power: Array, traffic: Array) -> float:
    """Health as 1 + r for falling power, 1 for rising: what a dashboard makes of a correlation. NaN where flat."""
    if len(power) < 10 or np.ptp(power) == 0 or np.ptp(traffic) == 0:
        return math.nan
    return 1.0 + min(0.0, float(np.corrcoef(power, traffic)[0, 1]))


def lagged(power: Array, traffic: Array) -> float:
    """The same with the most negative correlation within half a second."""
    found = [pearson(power[max(0, k) : len(power) + min(0, k)], traffic[max(0, -k) : len(traffic) - max(0, k)])
             for k in range(-_LAGS, _LAGS + 1)]  # fmt: skip
    return min(found, key=lambda h: 2.0 if math.isnan(h) else h)


def rank(power: Array, traffic: Array) -> float:
    """The same with ranks (Spearman, 1904)."""
    return pearson(power.argsort().argsort().astype(float), traffic.argsort().argsort().astype(float))


def coherence(power: Array, traffic: Array) -> float:
    """1 less the coherence of power and traffic, weighted by the power of traffic (Welch, 1967)."""
    starts = range(0, len(power) - _SEGMENT + 1, _SEGMENT // 2)
    if len(starts) < 3 or np.ptp(power) == 0 or np.ptp(traffic) == 0:
        return math.nan
    taper = np.hanning(_SEGMENT)
    p, q = (np.fft.rfft([taper * (x[s : s + _SEGMENT] - x[s : s + _SEGMENT].mean()) for s in starts])[:, 1:]
            for x in (power, traffic))  # fmt: skip
    pp, qq, pq = (abs(p) ** 2).mean(axis=0), (abs(q) ** 2).mean(axis=0), abs((p * q.conj()).mean(axis=0)) ** 2
    return 1.0 - float((pq / np.maximum(pp, 1e-12)).sum() / max(float(qq.sum()), 1e-12))


def thresholds(power: Array, traffic: Array) -> float:
    """Hard thresholds half way between the extremes: low power while traffic is on."""
    if len(power) < 10:
        return math.nan
    on = traffic > 0.5 * np.quantile(traffic, 0.95)
    low = power < 0.5 * (np.quantile(power, 0.95) + np.quantile(power, 0.05))
    return 1.0 - float((on & low).sum() / on.sum()) if on.any() else math.nan


ESTIMATORS: Mapping[str, Callable[[Case], float | None]] = {
    "this method": lambda c: c.said.health,
    "the first method": lambda c: c.first,
    "correlation": lambda c: pearson(c.power, c.traffic),
    "correlation, best lag": lambda c: lagged(c.power, c.traffic),
    "rank correlation": lambda c: rank(c.power, c.traffic),
    "coherence": lambda c: coherence(c.power, c.traffic),
    "hard thresholds": lambda c: thresholds(c.power, c.traffic),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimators", description=main.__doc__)
    parser.add_argument("--draws", type=int, default=60, help="of each kind (default 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    cases = [*alternations(arguments.draws, rng), *timelines(arguments.draws, rng)]
    for path in arguments.folders:
        if not (path / "index.csv").is_file():
            sys.exit(f"{path}: holds no index.csv")
        cases += folder(path)
    show(cases)


def show(cases: list[Case]) -> None:
    """A row per kind of draw and estimator: mean error of health, answered, wrong by more than .3 (shares of all).

    Of the method also how often its bounds hold the true exposed share, and how wide they are (median), where it answers.
    """
    table = Table(box=None, pad_edge=False)
    for name in ("draws", "estimator", "n", "health error", "answered", "misleading", "inside", "width"):
        table.add_column(name, justify="left" if name in ("draws", "estimator") else "right")
    for kind in dict.fromkeys(c.kind for c in cases):
        of_kind = [c for c in cases if c.kind == kind]
        told = [c for c in of_kind if c.said.health is not None]
        for number, (name, estimate) in enumerate(ESTIMATORS.items()):
            said = [(c.health, estimate(c)) for c in of_kind]
            errors = [abs(h - e) for h, e in said if e is not None and not math.isnan(e)]
            error = f"{np.mean(errors):.3f}" if errors else "-"
            wrong = sum(e > MISLEADING for e in errors) / len(of_kind)
            inside = f"{np.mean([c.holds for c in told]):.2f}" if told else "-"
            width = f"{np.median([c.width for c in told]):.2f}" if told else "-"
            first, last = ((kind, str(len(of_kind))), (inside, width)) if number == 0 else (("", ""), ("", ""))
            answered = f"{len(errors) / len(of_kind):.2f}"
            table.add_row(first[0], name, first[1], error, answered, f"{wrong:.3f}", *last)
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    main()
