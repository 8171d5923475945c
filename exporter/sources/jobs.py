"""What simulated training jobs do, step after step: the physics of buckets, sharding, pipelines, stragglers and stalls.

`scenarios.py` fills these in with numbers; `simulator.py` lets sensors look at the result. Every job is a generator that
never ends, with little memory; all times are seconds, all rates bytes per second and direction of one port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from exporter.sources.job_levels import (
    BACKWARD,
    FLAT,
    FORWARD,
    IDLE,
    NOTHING,
    OPTIMIZER,
    STALL,
    Array,
    Column,
    Flow,
    RankStep,
    Spans,
    Step,
)

RDMA: tuple[tuple[Column, float], ...] = ((Column.RDMA_TRANSMIT, 1.0), (Column.RDMA_RECEIVE, 1.0))
# Collectives over several nodes reduce inside the node first, at the same time and over a wider path.
RDMA_AND_NVLINK: tuple[tuple[Column, float], ...] = (*RDMA, (Column.NVLINK, 4.0))
TCP: tuple[tuple[Column, float], ...] = ((Column.NIC_TRANSMIT, 1.0), (Column.NIC_RECEIVE, 1.0))


@dataclass(frozen=True, slots=True)
class Site:
    """Where a job runs: its GPUs, their compute level, what a collective moves, and the moment at which something breaks."""

    gpus: int
    watts: float
    bytes_per_s: float
    rng: np.random.Generator
    fault_s: float = float("inf")
    route: tuple[tuple[Column, float], ...] = RDMA

    def step(self, duration_s: float, ranks: RankStep | tuple[RankStep, ...], *, rhythm: bool = True,
             capped: bool = False) -> Step:
        """A step on this site; one RankStep stands for all GPUs."""
        each = ranks if isinstance(ranks, tuple) else (ranks,) * self.gpus
        return Step(duration_s, each, self.watts, self.route, rhythm, capped)

    def jitter(self, relative: float) -> float:
        """How much longer than planned this step takes: 1 and a little."""
        return float(max(0.5, 1.0 + relative * self.rng.standard_normal()))


Job = Callable[[Site], Iterator[Step]]


def flat(site: Site, *, compute: bool = True, traffic: bool = True, capped: bool = False) -> Iterator[Step]:
    """No phases at all: every second like the one before."""
    busy = Spans.of((0.0, 1.0, FLAT if compute else IDLE))
    rank = RankStep(busy, Spans.of((0.0, 1.0, site.bytes_per_s)) if traffic else NOTHING, IDLE)
    while True:
        yield site.step(1.0, rank, rhythm=False, capped=capped)


def alternating(site: Site, *, compute_s: float, transfer_s: float) -> Iterator[Step]:
    """Compute, then communication, exactly, for ever."""
    end_s = compute_s + transfer_s
    rank = RankStep(Spans.of((0.0, compute_s, FLAT)), Spans.of((compute_s, end_s, site.bytes_per_s)))
    while True:
        yield site.step(end_s, rank)


def hidden(site: Site, *, step_s: float, start: float, end: float, jitter: float, capped: bool = False) -> Iterator[Step]:
    """Compute without a gap; traffic from `start` to `end` of the step (shares), all of it hidden."""
    while True:
        t = step_s * site.jitter(jitter)
        rank = RankStep(Spans.of((0.0, t, FLAT)), Spans.of((start * t, end * t, site.bytes_per_s)))
        yield site.step(t, rank, capped=capped)


def compute_only(site: Site, *, forward_s: float, backward_s: float, optimizer_s: float, jitter: float) -> Iterator[Step]:
    """One GPU's job, eight times: nothing is exchanged."""
    a, b = forward_s, forward_s + backward_s
    busy = Spans.of((0.0, a, FORWARD), (a, b, BACKWARD), (b, b + optimizer_s, OPTIMIZER))
    while True:
        scale = site.jitter(jitter)
        yield site.step((b + optimizer_s) * scale, RankStep(busy.scaled(scale)))


@dataclass(frozen=True, slots=True)
class Ddp:
    """Data parallel training. Gradients leave in `buckets` of `bucket_s` each, latency included, during the last backward."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    buckets: int
    bucket_s: float
    overlap: bool = True  # False: all buckets wait for the end of the backward
    micro_steps: int = 1  # backward passes per exchange
    jitter: float = .02
    loader_s: float = 0.0  # input that is not ready in time
    loader_bytes_per_s: float = 0.0
    checkpoint_every_s: float = float("inf")
    checkpoint_s: float = 0.0
    checkpoint_bytes_per_s: float = 0.0
    slower_after_fault: float = 1.0  # how much longer a bucket takes when a link has lost half its lanes
    hang_s: float = 0.0  # after the fault: until the watchdog ends the collective that misses a rank
    restart_s: float = 0.0


def bucket_times(ready_s: Array, bucket_s: float) -> tuple[Array, Array]:
    """Start [n] and end [n] of buckets that become ready at ready_s [n] (in order) and go out one after the other.

    >>> start, end = bucket_times(np.array([1.0, 1.5, 9.0]), 1.0)
    >>> start.tolist(), end.tolist()
    ([1.0, 2.0, 9.0], [2.0, 3.0, 10.0])
    """
    k = np.arange(len(ready_s))
    start = np.maximum.accumulate(ready_s - k * bucket_s) + k * bucket_s
    return start, start + bucket_s


def ddp(site: Site, shape: Ddp) -> Iterator[Step]:
    """Steps of data parallel training, with loaders, checkpoints and faults as the shape says."""
    now_s, saved_s, hung = 0.0, 0.0, False
    while True:
        if now_s >= site.fault_s and shape.hang_s and not hung:
            hung = True
            step = _hang(site, shape)
        elif now_s - saved_s >= shape.checkpoint_every_s:
            saved_s = now_s + shape.checkpoint_s
            step = _checkpoint(site, shape)
        else:
            step = _ddp_step(site, shape, shape.slower_after_fault if now_s >= site.fault_s else 1.0)
        now_s += step.duration_s
        yield step


def _ddp_step(site: Site, shape: Ddp, slower: float) -> Step:
    scale = site.jitter(shape.jitter)
    rows: list[tuple[float, float, float]] = [(0.0, shape.loader_s, STALL)]
    t = shape.loader_s
    for _ in range(shape.micro_steps):
        rows += [(t, t + shape.forward_s, FORWARD), (t + shape.forward_s, t + shape.forward_s + shape.backward_s, BACKWARD)]
        t += shape.forward_s + shape.backward_s
    k = np.arange(1, shape.buckets + 1)
    ready = t - shape.backward_s * (1 - k / shape.buckets) if shape.overlap else np.full(shape.buckets, t)
    start, end = bucket_times(ready, shape.bucket_s * slower)
    t = max(t, float(end[-1]))
    rows.append((t, t + shape.optimizer_s, OPTIMIZER))
    t += shape.optimizer_s
    traffic = Spans(start, end, np.full(shape.buckets, site.bytes_per_s / slower)).scaled(scale)
    loads = Spans.of((0.0, t * scale, shape.loader_bytes_per_s))
    flows = (Flow(Column.DISK_READ, loads), Flow(Column.IOWAIT, Spans.of((0.0, shape.loader_s * scale, .8))))
    return site.step(t * scale, RankStep(Spans.of(*rows).scaled(scale), traffic, flows=flows if shape.loader_s else ()))


def _checkpoint(site: Site, shape: Ddp) -> Step:
    """Everything stops while each rank writes its shard: one-way traffic, no kernel."""
    t = shape.checkpoint_s
    spans = Spans.of((.05 * t, t, shape.checkpoint_bytes_per_s))
    flows = (Flow(Column.RDMA_TRANSMIT, spans), Flow(Column.RDMA_RECEIVE, spans.scaled(1.0, .005)))
    return site.step(t, RankStep(Spans.of((0.0, t, STALL)), flows=flows), rhythm=False)


def _hang(site: Site, shape: Ddp) -> Step:
    """A rank is gone: the others spin in the collective until the watchdog fires, then the job starts again."""
    t = shape.hang_s + shape.restart_s
    return site.step(t, RankStep(Spans.of((shape.hang_s, t, STALL))), rhythm=False)


@dataclass(frozen=True, slots=True)
class Sharded:
    """FSDP or ZeRO-3: weights are gathered before each block's forward and backward, gradients scattered after."""

    blocks: int
    gather_s: float
    forward_s: float  # of one block
    backward_s: float
    scatter_s: float
    optimizer_s: float
    prefetch: int  # blocks gathered ahead; 0: the gather starts when the block before has ended
    jitter: float = .01


def sharded(site: Site, shape: Sharded) -> Iterator[Step]:
    """Steps of sharded training: one compute stream, one communication stream, first come first served."""
    while True:
        compute, transfers = _sharded_times(site, shape)
        end_s = max(compute[-1][1], transfers[-1][1])
        optimizer = (end_s, end_s + shape.optimizer_s, OPTIMIZER)
        traffic = Spans.of(*((a, b, site.bytes_per_s) for a, b in transfers))
        yield site.step(optimizer[1], RankStep(Spans.of(*compute, optimizer), traffic))


def _sharded_times(site: Site, shape: Sharded) -> tuple[list[tuple[float, float, int]], list[tuple[float, float]]]:
    """When each block computes (start, end, what), and when the wire is in use (start, end)."""
    n = shape.blocks
    compute: list[tuple[float, float, int]] = []
    transfers: list[tuple[float, float]] = []
    waiting: list[float] = []  # scatters, by the time at which their gradients are there

    def send(ready_s: float, took_s: float) -> float:
        begin_s = max(ready_s, transfers[-1][1] if transfers else 0.0)
        transfers.append((begin_s, begin_s + took_s))
        return begin_s + took_s

    for k, wobble in enumerate(np.maximum(.5, 1 + shape.jitter * site.rng.standard_normal(2 * n)).tolist()):
        ended_s = compute[-1][1] if compute else 0.0
        ahead = k - shape.prefetch  # the gather is asked for when this block begins
        asked_s = ended_s if shape.prefetch == 0 else compute[ahead][0] if ahead >= 0 else 0.0
        while waiting and waiting[0] < asked_s:
            send(waiting.pop(0), shape.scatter_s)
        begin_s = max(send(asked_s, shape.gather_s), ended_s)
        end_s = begin_s + wobble * (shape.forward_s if k < n else shape.backward_s)
        compute.append((begin_s, end_s, FORWARD if k < n else BACKWARD))
        if k >= n:
            waiting.append(end_s)
    for ready_s in waiting:
        send(ready_s, shape.scatter_s)
    return compute, transfers


def straggler(site: Site, *, compute_s: float, slower: float, gather_s: float, scatter_s: float, slow: int,
              jitter: float) -> Iterator[Step]:
    """One rank computes `slower` times as long; the rest spin in the reduce-scatter until it comes. Gathers are hidden."""
    while True:
        scale = site.jitter(jitter)
        own = [compute_s * scale * (slower if i == slow else 1.0) for i in range(site.gpus)]
        last_s = max(own)
        t = last_s + scatter_s
        traffic = Spans.of((.02 * compute_s, .02 * compute_s + gather_s, site.bytes_per_s), (last_s, t, site.bytes_per_s))
        ranks = {c: RankStep(Spans.of((0.0, .35 * c, FORWARD), (.35 * c, c, BACKWARD)), traffic) for c in set(own)}
        yield site.step(t, tuple(ranks[c] for c in own))


def pipeline(site: Site, *, micro_batches: int, forward_s: float, backward_s: float, send_s: float, optimizer_s: float,
             jitter: float) -> Iterator[Step]:
    """A pipeline with one stage per GPU in the order "one forward, one backward" (Narayanan et al., 2019): stages wait for
    their neighbours while it fills and drains. Activations and gradients leave in slices, while their block still computes."""
    stages, m = site.gpus, micro_batches
    while True:
        scale = site.jitter(jitter)
        took = {FORWARD: forward_s * scale, BACKWARD: backward_s * scale}
        done: dict[tuple[int, int, int], float] = {}  # (stage, kind, micro batch) -> when it ended
        rows: list[list[tuple[float, float, float]]] = [[] for _ in range(stages)]
        moves: list[list[float]] = [[] for _ in range(stages)]
        orders = [_one_forward_one_backward(stage, stages, m) for stage in range(stages)]
        at = [0] * stages
        while any(at[s] < len(orders[s]) for s in range(stages)):
            for s in range(stages):
                while at[s] < len(orders[s]):
                    kind, i = orders[s][at[s]]
                    neighbour = s - 1 if kind == FORWARD else s + 1
                    needs = done.get((neighbour, kind, i)) if 0 <= neighbour < stages else 0.0
                    if needs is None:
                        break
                    begin_s = max(needs, rows[s][-1][1] if rows[s] else 0.0)
                    done[s, kind, i] = begin_s + took[kind]
                    rows[s].append((begin_s, done[s, kind, i], kind))
                    if needs:
                        moves[s].append(needs - send_s)
                        moves[neighbour].append(needs - send_s)
                    at[s] += 1
        t = max(row[-1][1] for row in rows)
        end_s = t + optimizer_s
        traffic = (_bursts(starts, send_s, site.bytes_per_s) for starts in moves)
        ranks = (RankStep(Spans.of(*row, (t, end_s, OPTIMIZER)), sent) for row, sent in zip(rows, traffic, strict=True))
        yield site.step(end_s, tuple(ranks))


def _one_forward_one_backward(stage: int, stages: int, m: int) -> list[tuple[int, int]]:
    warm = min(m, stages - 1 - stage)
    order = [(FORWARD, i) for i in range(warm)]
    for i in range(m - warm):
        order += [(FORWARD, warm + i), (BACKWARD, i)]
    return order + [(BACKWARD, i) for i in range(m - warm, m)]


def _bursts(starts_s: list[float], took_s: float, bytes_per_s: float) -> Spans:
    """Transfers that queue on one port, in the order in which they become ready."""
    if not starts_s:
        return NOTHING
    start, end = bucket_times(np.array(sorted(starts_s)), took_s)
    return Spans(start, end, np.full(len(start), bytes_per_s))
