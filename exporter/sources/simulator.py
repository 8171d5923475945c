"""Simulated nodes as streams of events with a known truth: labelled traces, and the endless walk of the demo.

`simulate` (the command) writes what `simulate` here returns; `demo` feeds `demo_events` to the daemon on a scaled clock.
Events are made a second at a time while they are taken, the same for the same seed, with memory that does not grow.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, cycle
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from exporter.model import Event, Inventory, Quarantine, Record
from exporter.sources.job_levels import Array, Column, Step
from exporter.sources.jobs import Site
from exporter.sources.scenarios import DEMO_BOARD, DEMO_WALK, Board, Scenario, scenario
from exporter.sources.simulated_node import XID_CODES, SimulatedNode
from exporter.sources.simulated_waveform import START_S, Crew, Timeline

DEFAULT_SECONDS = 120.0
STARTED_UNIX_S = 1_767_225_600.0
_CHUNK_S = 1.0
_AHEAD_S = .1  # polls come late, ranks are skewed
_DEMO_STAY_S = (60.0, 90.0)
_NOTICE_S = .3  # from a fault to its quarantine


@dataclass(frozen=True, slots=True)
class Simulation:
    """A labelled trace: the inventory, with the truth, and the events from t = 0, each time it is iterated."""

    name: str
    seconds: float
    seed: int
    gpus: int
    inventory: Inventory

    def __iter__(self) -> Iterator[Event]:
        row = scenario(self.name)
        yield self.inventory
        yield from _events(_node(row, self.gpus, self.seconds, self.seed), self.seconds)

    def truth_between(self, start_s: float, end_s: float) -> dict[str, Any]:
        """The truth of a stretch of the trace, as the header has that of the whole; a GPU that is gone by then: no_data."""
        if not 0 <= start_s < end_s <= self.seconds:
            raise ValueError(f"{start_s} to {end_s} s: a stretch within 0 to {self.seconds} s is needed")
        return _truth(scenario(self.name), self.gpus, self.seconds, self.seed, start_s, end_s)


def simulate(name: str, seconds: float | None = None, seed: int = 0, gpus: int = 8) -> Simulation:
    """A scenario with its truth. KeyError: no such scenario; ValueError: a length or a number of GPUs that cannot be."""
    row = scenario(name)
    length_s = DEFAULT_SECONDS if seconds is None else float(seconds)
    if not (math.isfinite(length_s) and length_s > 0):
        raise ValueError(f"seconds is {seconds}: a length of more than 0 is needed")
    if not row.min_gpus <= gpus <= 16:
        raise ValueError(f"gpus is {gpus}: {name} needs {row.min_gpus} to 16")
    if seed < 0:
        raise ValueError(f"seed is {seed}: 0 or more is needed")
    node = _node(row, gpus, length_s, seed)
    jobs = {f"GPU-{g}": crew.name for crew in node.timeline.crews for g in crew.gpus} if row.other_job else {}
    inventory = _inventory(node, STARTED_UNIX_S, jobs, _truth(row, gpus, length_s, seed, 0.0, length_s))
    return Simulation(name, length_s, seed, gpus, inventory)


def demo_events(seed: int = 0, gpus: int = 8, started_unix_s: float = STARTED_UNIX_S) -> Iterator[Event]:
    """An inventory, then events for ever: one node whose job walks through the scenarios of the demo, 60 to 90 s each."""
    key = (seed, zlib.crc32(b"demo"))
    crew = Crew("demo", tuple(range(gpus)), _walk(gpus, np.random.default_rng([*key, 1])))
    node = SimulatedNode(DEMO_BOARD, _timeline(DEMO_BOARD, [crew], key, gpus), key)
    yield _inventory(node, started_unix_s, {}, {})
    yield from _events(node, math.inf)


def _walk(gpus: int, rng: np.random.Generator) -> Iterator[Step]:
    for row in cycle(map(scenario, DEMO_WALK)):
        stay_s = float(rng.uniform(*_DEMO_STAY_S))
        passed_s = 0.0
        for step in row.job(Site(gpus, row.level * DEMO_BOARD.limit_watts, row.bytes_per_s, rng, route=row.route)):
            yield step
            passed_s += step.duration_s
            if passed_s >= stay_s:
                break


def _inventory(node: SimulatedNode, started_unix_s: float, jobs: Mapping[str, str], truth: Mapping[str, Any]) -> Inventory:
    return Inventory("node-1", started_unix_s, node.devices, node.links, tuple(lane.source for lane in node.lanes),
                     MappingProxyType(dict(jobs)), MappingProxyType(dict(truth)))


def _timeline(board: Board, crews: list[Crew], key: tuple[int, int], gpus: int) -> Timeline:
    """Boards differ by some per mille, ranks start a step up to two milliseconds apart."""
    rng = np.random.default_rng([*key, 0])
    gains, skews_s = rng.uniform(.996, 1.004, gpus).tolist(), rng.uniform(0.0, .002, gpus).tolist()
    return Timeline(crews, gains, skews_s, board.limit_watts)


def _node(row: Scenario, gpus: int, seconds: float, seed: int) -> SimulatedNode:
    key = (seed, zlib.crc32(row.name.encode()))
    fault_s = seconds * row.fault_at if row.fault else math.inf
    half = (gpus + 1) // 2
    teams = [(row.job, range(half)), (row.other_job, range(half, gpus))] if row.other_job else [(row.job, range(gpus))]
    crews = []
    for n, (job, members) in enumerate(teams):
        rng = np.random.default_rng([*key, 10 + n])
        # Traffic over the NIC is the node's: each GPU has its part of it.
        bytes_per_s = row.bytes_per_s / (gpus if _over_tcp(row) else 1)
        site = Site(len(members), row.level * row.board.limit_watts, bytes_per_s, rng, fault_s - START_S, row.route)
        assert job is not None
        crews.append(Crew("ab"[n], tuple(members), job(site)))
    return SimulatedNode(
        row.board, _timeline(row.board, crews, key, gpus), key, ports=half if row.other_job else None,
        link_fault_s=fault_s if row.fault == "link" else math.inf, gpu_fault_s=fault_s if row.fault == "gpu" else math.inf,
        events=row.events,
    )


def _over_tcp(row: Scenario) -> bool:
    return any(column is Column.NIC_TRANSMIT for column, _ in row.route)


def _events(node: SimulatedNode, end_s: float) -> Iterator[Event]:
    """Everything that is read before `end_s`, in order of time."""
    pool: list[tuple[float, int, Event]] = []
    if node.gpu_fault_s < end_s:
        gpu, xids = f"GPU-{node.lost_gpu}", [float(code == 79) for code in XID_CODES]
        pool.append((node.gpu_fault_s, -1, Record(f"xid/{gpu}", node.gpu_fault_s, xids)))
        pool.append((node.gpu_fault_s + _NOTICE_S, -1, Quarantine("gpu", gpu, node.gpu_fault_s + _NOTICE_S, "gpu_lost")))
    for k in count():
        begin_s, until_s = k * _CHUNK_S, min((k + 1) * _CHUNK_S, end_s)
        if begin_s >= end_s:
            return
        node.timeline.advance(until_s + _AHEAD_S)
        for n, lane in enumerate(node.lanes):
            pool += [(record.t_s, n, record) for record in lane.records(until_s)]
        pool.sort(key=lambda entry: entry[:2])
        due = next((i for i, entry in enumerate(pool) if entry[0] >= until_s), len(pool))
        yield from (event for _, _, event in pool[:due])
        del pool[:due]


# The truth

_SHARES = ("health", "exposed", "communication", "stall", "wait")


def _truth(row: Scenario, gpus: int, seconds: float, seed: int, start_s: float, end_s: float) -> dict[str, Any]:
    """What the sensors look at from start_s to end_s: shares of running time per GPU, from the intervals themselves."""
    node = _node(row, gpus, seconds, seed)
    there_s = [max(start_s, min(end_s, node.gpu_fault_s)) if g == node.lost_gpu else end_s for g in range(gpus)]
    totals: dict[float, list[Array]] = {}
    durations_s: dict[str, list[float]] = {crew.name: [] for crew in node.timeline.crews}
    reached_s = 0.0
    for mark_s in sorted({start_s, *there_s}):
        while reached_s < mark_s or reached_s == 0.0:
            reached_s = min(reached_s + _CHUNK_S, end_s)
            node.timeline.advance(reached_s + _AHEAD_S)
            for crew in node.timeline.crews if reached_s > start_s else ():
                durations_s[crew.name] += crew.durations_s
        totals[mark_s] = [wave.totals(mark_s) for wave in node.timeline.waves]
    gpu_truth: dict[str, dict[str, Any]] = {}
    for crew in node.timeline.crews:
        period_s = round(median(durations_s[crew.name]), 6) if durations_s[crew.name] else None
        for g in crew.gpus:
            if there_s[g] <= start_s:
                gpu_truth[f"GPU-{g}"] = {**dict.fromkeys(_SHARES), "state": "no_data", "step_period_s": None}
                continue
            means = (totals[there_s[g]][g] - totals[start_s][g]) / (there_s[g] - start_s)
            verdict = verdict_of(means, hidden=row.blind or row.other_job is not None)
            gpu_truth[f"GPU-{g}"] = {**verdict, "step_period_s": None if verdict["state"] == "idle" else period_s}
    return {"scenario": row.name, "seed": seed, "start_s": start_s, "end_s": end_s, **gpu_truth["GPU-0"], "gpus": gpu_truth}


def verdict_of(means: Array, hidden: bool = False) -> dict[str, Any]:
    """Shares, health and state from the mean levels [columns] of a stretch of time; None where there is no answer.

    hidden: nobody outside could tell: another job uses the same ports, or the sensors are too slow for this one.
    """
    running = float(means[Column.RUNNING])
    if running < .05:
        return {**dict.fromkeys(_SHARES), "state": "idle"}
    communication, exposed, stall, wait = (
        round(float(means[column]) / running, 6) for column in (Column.COMMUNICATION, Column.EXPOSED, Column.STALL, Column.WAIT)
    )
    communicates = communication >= .01
    health = round(1.0 - exposed / communication, 6) if communicates else None
    rules = (  # the first that holds
        ("stalled" if stall >= .17 else "compute_only", health is None),
        ("unobservable", hidden),
        ("stalled", stall >= .17),
        ("overlapped", (health or 0.0) > .8 or exposed < .02),
        ("serialized", (health or 0.0) < .3),
        ("partial", True),
    )
    state = next(name for name, holds in rules if holds)
    return {"state": state, "health": health, "exposed": exposed, "communication": communication, "stall": stall, "wait": wait}
