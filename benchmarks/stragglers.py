"""Measures how well the GPU that the others wait for is named: a table over its lag. `python -m benchmarks.stragglers`.

Eight simulated GPUs run one job, of which one computes longer than the rest; their sensors are read as those of a real node,
and the session that the daemon runs judges every second. Beside them jobs of all kinds whose GPUs are equal: there nobody
may be named. Boards differ by some percent of power. Prints what was said; asserts nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from rich.console import Console
from rich.table import Table

from exporter.model import Inventory, Record
from exporter.session import Session
from exporter.sources.jobs import Site, straggler
from exporter.sources.scenarios import H100
from exporter.sources.simulated_node import SimulatedNode
from exporter.sources.simulated_waveform import Crew, Timeline
from exporter.sources.simulator import simulate

GPUS, SLOW = 8, 3
LAGS = (0.0, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3)  # of the compute time
BALANCED = ("ddp_bucketed", "ddp_small_buckets", "ddp_no_overlap", "fsdp_prefetch", "fsdp_no_prefetch", "zero3", "serialized",
            "gradient_accumulation", "input_stall", "storage_checkpoint", "pipeline_bubbles", "congestion")  # fmt: skip
_GAIN = 0.03  # boards of one kind take so much more or less power for the same work
SECONDS, WATCHED_S = 150.0, 60
_COMPUTE_S, _GATHER_S, _SCATTER_S, _JITTER = 0.62, 0.42, 0.03, 0.02


@dataclass(frozen=True)
class Outcome:
    """What the last minute said of one job: share of its seconds with the right, and with a wrong, GPU named."""

    lag: float
    true_wait: float  # of the seven, from the length of a step
    said_wait: float  # median of the seven
    own_wait: float  # of the one that is late
    lost: tuple[float, ...]  # by each GPU to exposed communication and waits together, in the end
    right: float
    wrong: float
    first_s: float | None  # since the start of the trace


def readings(lag: float, seed: int) -> Iterator[Inventory | Record]:
    """A node whose GPU 3 computes longer by `lag` than the others: what its sensors say, in order of time."""
    rng = np.random.default_rng([seed, 1])
    site = Site(GPUS, 0.88 * H100.limit_watts, 22.5e9, rng)
    steps = straggler(site, compute_s=_COMPUTE_S, slower=1.0 + lag, gather_s=_GATHER_S, scatter_s=_SCATTER_S, slow=SLOW,
                      jitter=_JITTER)  # fmt: skip
    gains, skews_s = rng.uniform(1 - _GAIN, 1 + _GAIN, GPUS).tolist(), rng.uniform(0.0, 0.002, GPUS).tolist()
    timeline = Timeline([Crew("a", tuple(range(GPUS)), steps)], gains, skews_s, H100.limit_watts)
    node = SimulatedNode(H100, timeline, (seed, 2))
    yield Inventory("node-1", 0.0, node.devices, node.links, tuple(lane.source for lane in node.lanes))
    for second in range(1, int(SECONDS) + 1):
        timeline.advance(second + 0.1)
        yield from sorted((r for lane in node.lanes for r in lane.records(float(second))), key=lambda r: r.t_s)


def outcome(lag: float, seed: int) -> Outcome:
    """One job from its start to its end."""
    session = Session()
    named: list[set[str]] = []
    waits: list[list[float]] = []
    lost: tuple[float, ...] = ()
    first_s = None
    for event in readings(lag, seed):
        if isinstance(event, Record) and session.advance(event.t_s):
            said = session.verdicts
            named.append({str(f.gpu_id) for f in said.findings if f.finding == "straggler_wait"})
            found = [a.wait for a in said.analyses if a.window_s == session.verdict_window_s]
            waits.append([w for w in found if w is not None])
            shares = [a.exposed_or_wait for a in said.analyses if a.window_s == session.verdict_window_s]
            lost = tuple(x for x in shares if x is not None)
            if first_s is None and f"GPU-{SLOW}" in named[-1]:
                first_s = said.at_s
        session.take(event)
    late = [w for w in waits[-WATCHED_S:] if len(w) == GPUS]
    own = fmean(w[SLOW] for w in late)
    others = fmean(median(x for g, x in enumerate(w) if g != SLOW) for w in late)
    last = named[-WATCHED_S:]
    return Outcome(
        lag, lag * _COMPUTE_S / (_COMPUTE_S * (1.0 + lag) + _SCATTER_S), others, own, lost,
        sum(names == {f"GPU-{SLOW}"} for names in last) / len(last),
        sum(bool(names - {f"GPU-{SLOW}"}) for names in last) / len(last), first_s,
    )  # fmt: skip


def false_alarms(scenario: str, seed: int, seconds: float = 130.0) -> int:
    """Seconds in which a GPU of a balanced job is named."""
    session, named = Session(), 0
    for event in simulate(scenario, seconds, seed=seed, gpus=GPUS):
        if isinstance(event, Record) and session.advance(event.t_s):
            named += any(f.finding == "straggler_wait" for f in session.verdicts.findings)
        session.take(event)
    return named


def main() -> None:
    """Print a row per lag: waits, true and said, and whom the finding named; and false alarms of balanced jobs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stragglers", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="jobs per lag and kind (default 4)")
    seeds = range(parser.parse_args().seeds)
    table = Table(box=None, pad_edge=False)
    for name in ("lag", "true wait", "said wait", "own wait", "named, % of the minute", "another, %", "since, s"):
        table.add_column(name, justify="right")
    for lag in LAGS:
        found = [outcome(lag, seed) for seed in seeds]
        since = [o.first_s for o in found if o.first_s is not None]
        table.add_row(
            f"{100 * lag:.0f} %", f"{found[0].true_wait:.3f}", f"{fmean(o.said_wait for o in found):.3f}",
            f"{fmean(o.own_wait for o in found):.3f}", " ".join(f"{100 * o.right:.0f}" for o in found),
            " ".join(f"{100 * o.wrong:.0f}" for o in found), " ".join(f"{s:.0f}" for s in since) or "-",
        )  # fmt: skip
    console = Console(width=110, highlight=False)
    console.print(f"{GPUS} GPUs, one computes longer by its lag; steps of {_COMPUTE_S:.2f} s and more, the last minute of "
                  f"{SECONDS:.0f} s")  # fmt: skip
    console.print(table)
    alarms = {name: [false_alarms(name, seed) for seed in seeds] for name in BALANCED}
    said = ", ".join(f"{name} {' '.join(map(str, of))} s" for name, of in alarms.items() if any(of)) or "none"
    console.print(f"False alarms of {len(BALANCED)} kinds of balanced jobs, {len(seeds)} of each: {said}")


if __name__ == "__main__":
    main()
