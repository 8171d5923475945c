"""What a GPU does during one step of a simulated job, as intervals, and the levels that follow from it.

Jobs (`jobs.py`) say when a GPU computes and when bytes flow; `levels_of` turns that into one table of piecewise constant
levels: power, kernels, bytes, and the truth (exposed, stalled, ...) that sensors do not see. Nothing here is random.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


class Column(IntEnum):
    """The levels of one GPU, all per second: watts are joules per second, shares are seconds per second."""

    WATTS = 0
    KERNEL = 1  # a kernel is resident
    SM = 2  # share of the SMs in use
    TENSOR = 3
    CAPPED = 4  # clocks held down by the power limit
    RDMA_TRANSMIT = 5
    RDMA_RECEIVE = 6
    NVLINK = 7  # each direction
    NIC_TRANSMIT = 8
    NIC_RECEIVE = 9
    DISK_READ = 10
    DISK_WRITTEN = 11
    IOWAIT = 12  # CPU seconds
    RUNNING = 13  # from here on: the truth
    COMMUNICATION = 14
    EXPOSED = 15
    STALL = 16
    WAIT = 17


@dataclass(frozen=True, slots=True)
class Activity:
    """One thing that a GPU can be at. `watts` is a share of the job's compute level; `computes`: it is useful work."""

    name: str
    watts: float
    kernel: float
    sm: float
    tensor: float
    computes: bool = False


# A lone NCCL kernel keeps some 15 % of the SMs busy (NVIDIA/nccl#1432) and draws a third to two thirds of the compute
# power when it moves bytes; an H100 that only spins in it was measured at 153 W beside 551 W of compute and 70-75 W idle.
ACTIVITIES: tuple[Activity, ...] = (
    Activity("forward", .95, 1.0, .93, .52, computes=True),
    Activity("backward", 1.0, 1.0, .95, .58, computes=True),
    Activity("optimizer", .82, 1.0, .90, .02, computes=True),
    Activity("flat", 1.0, 1.0, .95, .55, computes=True),
    Activity("transfer", .41, 1.0, .15, .0),
    Activity("wait", .29, 1.0, .11, .0),
    Activity("stall", .18, .0, .0, .0),
    Activity("idle", .115, .0, .0, .0),
)
FORWARD, BACKWARD, OPTIMIZER, FLAT, TRANSFER, WAIT, STALL, IDLE = range(len(ACTIVITIES))

_ROWS: Array = np.zeros((len(ACTIVITIES), len(Column)))
for _code, _activity in enumerate(ACTIVITIES):
    _ROWS[_code, Column.WATTS : Column.TENSOR + 1] = (_activity.watts, _activity.kernel, _activity.sm, _activity.tensor)
_COMPUTES = np.array([activity.computes for activity in ACTIVITIES])


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals [n] in seconds since the start of the step, in order and apart, each with a value [n]."""

    start_s: Array
    end_s: Array
    value: Array

    @staticmethod
    def of(*rows: tuple[float, float, float]) -> Spans:
        """Spans of (start, end, value) rows; empty ones are left out.

        >>> Spans.of((0.0, 0.1, 1), (0.1, 0.1, 2)).end_s.tolist()
        [0.1]
        """
        kept = np.array([row for row in rows if row[1] > row[0]], float).reshape(-1, 3)
        return Spans(kept[:, 0], kept[:, 1], kept[:, 2])

    def at(self, t_s: Array, otherwise: float) -> Array:
        """The value at each time [m], `otherwise` outside the spans."""
        if not len(self.start_s):
            return np.full(len(t_s), otherwise)
        i = np.searchsorted(self.start_s, t_s, side="right") - 1
        inside = (i >= 0) & (t_s < self.end_s[i])
        return np.where(inside, self.value[i], otherwise)

    def scaled(self, time: float, value: float = 1.0) -> Spans:
        """The same with all times, and all values, stretched."""
        return Spans(self.start_s * time, self.end_s * time, self.value * value)


NOTHING = Spans.of()


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes (or CPU seconds) per second that are not the job's collectives: storage, loaders."""

    column: Column
    spans: Spans


@dataclass(frozen=True, slots=True)
class RankStep:
    """One GPU during one step: what it is busy with (codes), what it sends and receives in collectives (bytes per second
    and direction), and what it does when neither holds."""

    busy: Spans
    traffic: Spans = NOTHING
    gap: int = WAIT
    flows: tuple[Flow, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of all GPUs of a job, which start it together. `watts` is the compute level; `capped`: it is the limit."""

    duration_s: float
    ranks: tuple[RankStep, ...]
    watts: float
    route: tuple[tuple[Column, float], ...]  # where collective bytes are seen, and which share of them
    rhythm: bool = field(default=True)  # False: a stretch of time, not a step that repeats
    capped: bool = False


def levels_of(step: Step, rank: RankStep) -> tuple[Array, Array]:
    """Edges [n+1] in seconds from 0 to the step's duration, and levels [n, columns] between them.

    >>> rank = RankStep(Spans.of((0.0, 0.1, FLAT)), Spans.of((0.1, 0.18, 20e9)))
    >>> step = Step(0.2, (rank,), 600.0, ((Column.RDMA_TRANSMIT, 1.0),))
    >>> edges, levels = levels_of(step, rank)
    >>> edges.tolist(), levels[:, Column.WATTS].round().tolist(), levels[:, Column.EXPOSED].tolist()
    ([0.0, 0.1, 0.18, 0.2], [600.0, 246.0, 174.0], [0.0, 1.0, 0.0])
    """
    spans = (rank.busy, rank.traffic, *(flow.spans for flow in rank.flows))
    edges = np.unique(np.concatenate(([0.0, step.duration_s], *((s.start_s, s.end_s) for s in spans)), axis=None))
    edges = edges[(edges >= 0.0) & (edges <= step.duration_s)]
    middle = (edges[1:] + edges[:-1]) / 2
    code: Codes = rank.busy.at(middle, -1.0).astype(np.int64)
    bytes_per_s = rank.traffic.at(middle, 0.0)
    sends = bytes_per_s > 0
    code[code < 0] = rank.gap
    computes = _COMPUTES[code]
    code[sends & ~computes] = TRANSFER
    levels: Array = _ROWS[code]
    levels[:, Column.WATTS] *= step.watts
    if step.capped:  # the limit cuts off whatever compute asks for
        levels[computes, Column.WATTS] = step.watts
        levels[computes, Column.CAPPED] = .9
    for column, share in step.route:
        levels[:, column] += bytes_per_s * share
    for flow in rank.flows:
        levels[:, flow.column] += flow.spans.at(middle, 0.0)
    runs = code != IDLE
    lost = runs & ~computes & ~sends
    kernel = levels[:, Column.KERNEL] > 0
    levels[:, Column.RUNNING] = runs
    levels[:, Column.COMMUNICATION] = sends
    levels[:, Column.EXPOSED] = sends & ~computes
    levels[:, Column.STALL] = lost & ~kernel
    levels[:, Column.WAIT] = lost & kernel
    return edges, levels
