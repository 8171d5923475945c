"""Kinds of training jobs, as kernels of one step: what computes, what communicates, drawn anew each time.

Used by `draws_timelines`, which repeats a step and reads it. Invented, not recorded: each kind is one way in which real jobs
communicate, with its numbers drawn from a wide range.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Interval = tuple[float, float, str]  # begin, end, kind: compute, comm, or wait (a kernel of communication that moves nothing)


def buckets(rng: np.random.Generator) -> list[Interval]:
    """Forward, then backward with a reduction per bucket; one stream, so that late buckets reach past the end."""
    count, forward = int(rng.integers(4, 40)), rng.uniform(0.3, 0.5)
    each = rng.uniform(0.3, 1.3) / count
    out, free = [(0.0, forward, "compute")], 0.0
    for k in range(count):
        ready = forward + (k + 1) / count
        out.append((ready - 1 / count, ready - rng.uniform(0.0, 0.1) / count, "compute"))
        begin = max(ready, free)
        free = begin + each * rng.uniform(0.5, 1.5)
        out.append((begin, free, "comm"))
    return [*out, (free + 0.01, free + 0.01 + rng.uniform(0.02, 0.1), "compute")]


def sharded(rng: np.random.Generator) -> list[Interval]:
    """Layers that gather their weights before they compute, one layer ahead or not at all, and scatter gradients."""
    layers, gather, ahead = int(rng.integers(6, 40)), rng.uniform(0.2, 1.1), bool(rng.integers(2))
    out: list[Interval] = []
    at, gathered = 0.0, gather
    for k in range(2 * layers):
        begin = max(at, gathered) if ahead else at + gather
        out.append((begin - gather if not ahead else gathered - gather, begin if not ahead else gathered, "comm"))
        length = rng.uniform(0.8, 1.2) * (1 if k < layers else 2)
        out.append((begin, begin + length, "compute"))
        at, gathered = begin + length, max(begin, gathered) + gather
        if k >= layers:
            out.append((begin + length * 0.3, begin + length * 0.3 + 0.6 * gather, "comm"))
    return out


def tensor_parallel(rng: np.random.Generator) -> list[Interval]:
    """Every layer ends in a reduction that nothing hides, with gaps between kernels."""
    out: list[Interval] = []
    at, reduce, gap = 0.0, rng.uniform(0.1, 1.2), rng.uniform(0.0, 0.3)
    for _ in range(int(rng.integers(20, 90))):
        length = rng.uniform(0.6, 1.4)
        out += [(at, at + length, "compute"), (at + length, at + length + reduce, "comm")]
        at += length + reduce + gap * rng.uniform(0.5, 1.5)
    return out


def experts(rng: np.random.Generator) -> list[Interval]:
    """Exchanges between experts, beside a shared expert that hides a part of them."""
    out: list[Interval] = []
    at, exchange, shared = 0.0, rng.uniform(0.2, 0.9), rng.uniform(0.1, 0.9)
    for _ in range(int(rng.integers(10, 50))):
        for _ in range(2):
            out += [(at, at + exchange, "comm"), (at, at + shared * exchange, "compute")]
            at += exchange
            length = rng.uniform(0.4, 1.0)
            out.append((at, at + length, "compute"))
            at += length
    return out


def starved(rng: np.random.Generator) -> list[Interval]:
    """Waits for input, small kernels with gaps, a few exchanges."""
    out: list[Interval] = []
    at, fill = rng.uniform(1.0, 6.0), rng.uniform(0.3, 0.8)
    for k in range(int(rng.integers(20, 80))):
        length = rng.uniform(0.1, 0.3)
        out.append((at, at + fill * length, "compute"))
        if k % 5 == 0:
            length += rng.uniform(0.0, 0.5)
            out.append((at + fill * length * rng.uniform(0.2, 1.0), at + length * rng.uniform(1.0, 1.4), "comm"))
        at += length
    return out


def one_tail(rng: np.random.Generator) -> list[Interval]:
    """Compute with short reductions inside, then one long exchange at the end."""
    inner, tail = int(rng.integers(3, 12)), rng.uniform(0.05, 1.2)
    out = [(0.0, 1.0, "compute"), (1.0, 1.0 + tail, "comm")]
    for k in range(inner):
        begin = (k + rng.uniform(0.2, 0.7)) / inner
        out.append((begin, begin + rng.uniform(0.05, 0.3) / inner, "comm"))
    if rng.integers(2):
        out.append((1.0 + 0.3 * tail, 1.0 + 0.5 * tail, "compute"))
    return out


def recommender(rng: np.random.Generator) -> list[Interval]:
    """Look-ups exchanged with everybody, between dense layers; the host prepares the next batch and is late."""
    out: list[Interval] = []
    at, late, hidden = 0.0, rng.uniform(0.5, 4.0), rng.uniform(0.0, 0.6)
    for _ in range(int(rng.integers(2, 7))):
        exchange, dense = rng.uniform(0.3, 1.5), rng.uniform(0.3, 1.5)
        out += [(at, at + exchange, "comm"), (at, at + hidden * exchange, "compute")]
        out.append((at + exchange, at + exchange + dense, "compute"))
        at += exchange + dense + late * rng.uniform(0.0, 0.5)
    return out


def accumulated(rng: np.random.Generator) -> list[Interval]:
    """Micro-batches without an exchange, then a reduction of everything, which the last backward hides in part."""
    micro, reduce, hidden = int(rng.integers(2, 9)), rng.uniform(0.3, 2.5), rng.uniform(0.0, 1.0)
    end = micro + rng.uniform(0.0, 0.3)
    out = [(k, k + rng.uniform(0.9, 1.0), "compute") for k in range(micro)]
    pieces = int(rng.integers(1, 12))
    for k in range(pieces):
        begin = micro - hidden + k * max(reduce, hidden) / pieces
        out.append((begin, begin + reduce / pieces * rng.uniform(0.7, 1.0), "comm"))
        end = max(end, out[-1][1])
    return [*out, (end, end + rng.uniform(0.05, 0.3), "compute")]


def pipelined(rng: np.random.Generator) -> list[Interval]:
    """A stage that hands on activations after each block, hidden by the next one, and waits for its neighbours at the end."""
    out: list[Interval] = []
    at, send, bubble = 0.0, rng.uniform(0.1, 0.8), rng.uniform(0.0, 3.0)
    for k in range(2 * int(rng.integers(4, 16))):
        length = rng.uniform(0.9, 1.1) * (1 + k % 2)
        out += [(at, at + length, "compute"), (at + length, at + length + send, "comm")]
        at += length + (rng.uniform(0.0, 0.3) if rng.integers(2) else 0.0)
    return [*out, (at + send, at + send + bubble, "wait")]


def irregular(rng: np.random.Generator) -> list[Interval]:
    """Kernels, gaps and exchanges of all lengths, each beside or behind the one before: no two stretches are alike."""
    out: list[Interval] = []
    at, gap, share, beside = 0.0, rng.uniform(0.0, 0.8), rng.uniform(0.1, 0.5), rng.uniform(0.0, 1.0)
    for _ in range(int(rng.integers(30, 200))):
        length = float(rng.lognormal(0.0, 1.0))
        if rng.uniform() < share:
            out.append((at, at + length, "comm"))
            if rng.uniform() < beside:
                out.append((at, at + length * rng.uniform(0.5, 1.5), "compute"))
        else:
            out.append((at, at + length, "compute"))
        at += length + (gap * float(rng.exponential()) if rng.uniform() < 0.5 else 0.0)
    return out


TIMELINES: dict[str, Callable[[np.random.Generator], list[Interval]]] = {
    f.__name__: f for f in (buckets, sharded, tensor_parallel, experts, starved, one_tail, recommender, accumulated,
                              pipelined, irregular)
}
