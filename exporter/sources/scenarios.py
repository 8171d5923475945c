"""THE table of simulated scenarios: what each shows, its board and its job. `simulate --list` prints it.

A new scenario is one row here; the physics is in `jobs.py`, the sensors in `sensors.py`. Boards are real ones in their
averaging window and refresh (Yang, Adamek, Armour, "Part-time Power Measurements", 2024). Transfers and the gaps between
them are longer than the polls, or so short that traffic is one stretch: a burst of 6 ms cannot be told from one of 20.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from exporter.sources import jobs
from exporter.sources.job_levels import Column, Step
from exporter.sources.jobs import Ddp, Job, Sharded, Site


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU board and its sensors."""

    name: str
    architecture: str
    limit_watts: float
    power_window_s: float
    power_refresh_s: float
    sm_clock_hertz: float
    gpm: bool = False
    nvlink: bool = False
    power_source: str = "instant"


A100 = Board("NVIDIA A100-SXM4-80GB", "ampere", 400.0, .025, .1, 1.41e9)
H100 = Board("NVIDIA H100 80GB HBM3", "hopper", 700.0, .025, .1, 1.98e9)
H100_410 = replace(H100, limit_watts=410.0)
H100_GPM = replace(H100, gpm=True)
H100_NVLINK = replace(H100, nvlink=True)
H100_MEAN = replace(H100, power_window_s=1.0, power_source="usage")  # with a driver from before instant power
L40S = Board("NVIDIA L40S", "ada", 350.0, .1, .1, 2.52e9)

PORT_BYTES_PER_S = 50e9  # 400 Gbit/s
NIC_BYTES_PER_S = 3.125e9  # 25 Gbit/s


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row. `level`: compute power as a share of the limit; `bytes_per_s`: of a transfer, per port and direction (for
    traffic over the NIC: of the whole node); `fault` is what breaks, at `fault_at` of the trace; `events` of a port per second
    of traffic, where they are not those of a healthy fabric; `blind`: the sensors cannot resolve this job."""

    name: str
    shows: str
    board: Board
    job: Job
    level: float = .88
    bytes_per_s: float = 22.5e9
    route: tuple[tuple[Column, float], ...] = jobs.RDMA
    other_job: Job | None = None  # runs on the second half of the GPUs, over the same ports
    fault: str | None = None  # link, gpu
    fault_at: float = .5
    min_gpus: int = 1
    events: tuple[tuple[str, float], ...] = ()
    blind: bool = False


def _ddp(**shape: float) -> Job:
    return partial(jobs.ddp, shape=Ddp(**shape))  # type: ignore[arg-type]


def _sharded(**shape: float) -> Job:
    return partial(jobs.sharded, shape=Sharded(**shape))  # type: ignore[arg-type]


def slow_rank(gpus: int) -> int:
    """Which GPU is the straggler."""
    return min(3, gpus - 1)


def _straggler(site: Site) -> Iterator[Step]:
    return jobs.straggler(site, compute_s=.62, slower=1.25, gather_s=.5, scatter_s=.06, slow=slow_rank(site.gpus), jitter=.02)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("perfect_overlap", "flat 400 W and more beside flat 180 Gbit/s: everything is hidden",
             H100_410, jobs.flat, level=.993),
    Scenario("serialized", "100 ms of compute, 80 ms of communication, in turns: nothing is hidden",
             A100, partial(jobs.alternating, compute_s=.1, transfer_s=.08), level=.95),
    Scenario("ddp_bucketed", "DDP, 25 MB buckets leave during the backward: only the last one shows",
             H100, _ddp(forward_s=.26, backward_s=.52, optimizer_s=.03, buckets=200, bucket_s=.0025), bytes_per_s=19e9),
    Scenario("ddp_small_buckets", "DDP, 1 MB buckets: latency of 1,400 small transfers outlasts the backward",
             H100, _ddp(forward_s=.16, backward_s=.32, optimizer_s=.03, buckets=1400, bucket_s=.00035), bytes_per_s=5e9),
    Scenario("ddp_no_overlap", "gradients are reduced by hand after the backward",
             H100_NVLINK, _ddp(forward_s=.24, backward_s=.48, optimizer_s=.06, buckets=1, bucket_s=.36, overlap=False),
             route=jobs.RDMA_AND_NVLINK),
    Scenario("fsdp_prefetch", "FSDP2, each block is gathered while the one before computes",
             H100_GPM, _sharded(blocks=20, gather_s=.072, forward_s=.12, backward_s=.24, scatter_s=.072, optimizer_s=.04,
                                prefetch=1), level=.9),
    Scenario("fsdp_no_prefetch", "FSDP2 without prefetch: every gather is waited for",
             H100_GPM, _sharded(blocks=8, gather_s=.09, forward_s=.16, backward_s=.32, scatter_s=.15, optimizer_s=.08,
                                prefetch=0), level=.9),
    Scenario("zero3", "ZeRO-3, the wire is the bottleneck: gathers are prefetched, and still too slow",
             H100_GPM, _sharded(blocks=16, gather_s=.045, forward_s=.03, backward_s=.06, scatter_s=.045, optimizer_s=.04,
                                prefetch=1), level=.86),
    Scenario("gradient_accumulation", "eight micro-steps per exchange, whose tail is exposed",
             H100_NVLINK, _ddp(forward_s=.08, backward_s=.17, optimizer_s=.03, buckets=12, bucket_s=.025, micro_steps=8),
             route=jobs.RDMA_AND_NVLINK),
    Scenario("tcp_fallback", "RDMA ports are up and idle, NCCL runs over TCP: what took 10 ms takes 100",
             L40S, _ddp(forward_s=.15, backward_s=.3, optimizer_s=.02, buckets=5, bucket_s=.1),
             bytes_per_s=.92 * NIC_BYTES_PER_S, route=jobs.TCP, level=.9),
    Scenario("input_stall", "the loader is late: no kernel for a third of each step",
             H100, _ddp(loader_s=.3, forward_s=.2, backward_s=.4, optimizer_s=.03, buckets=100, bucket_s=.0039,
                        loader_bytes_per_s=3e8, jitter=.04)),
    Scenario("storage_checkpoint", "a checkpoint of 7.5 s every half minute, one way over the same ports",
             H100, _ddp(forward_s=.26, backward_s=.52, optimizer_s=.03, buckets=100, bucket_s=.0051, checkpoint_every_s=22.5,
                        checkpoint_s=7.5, checkpoint_bytes_per_s=6e9)),
    Scenario("straggler", "one GPU is a quarter slower; the others spin until it comes",
             H100, _straggler, min_gpus=2),
    Scenario("pipeline_bubbles", "a pipeline with a stage per GPU: each waits while it fills and drains",
             H100, partial(jobs.pipeline, micro_batches=32, forward_s=.06, backward_s=.12, send_s=.03, optimizer_s=.05,
                           jitter=.02), bytes_per_s=18e9, min_gpus=2),
    Scenario("power_capped", "power stays at the limit without a dip; traffic is hidden",
             H100, partial(jobs.hidden, step_s=.9, start=.25, end=.8, jitter=.02, capped=True), level=1.0),
    Scenario("compute_only", "nothing is exchanged", H100,
             partial(jobs.compute_only, forward_s=.14, backward_s=.28, optimizer_s=.02, jitter=.02)),
    Scenario("idle", "no job", H100, partial(jobs.flat, compute=False, traffic=False)),
    Scenario("link_degraded", "one port falls to half its rate, and every collective with it",
             H100, _ddp(forward_s=.2, backward_s=.4, optimizer_s=.03, buckets=40, bucket_s=.0098, slower_after_fault=2.0),
             bytes_per_s=40e9, fault="link", fault_at=1 / 3),
    Scenario("gpu_lost", "a GPU falls off the bus; the others spin until the watchdog fires, then go on without it",
             H100, _ddp(forward_s=.2, backward_s=.4, optimizer_s=.03, buckets=40, bucket_s=.0098, hang_s=10.0, restart_s=8.0),
             fault="gpu", fault_at=.5, min_gpus=2),
    Scenario("two_jobs", "two jobs on halves of the node share the ports: bytes cannot be told apart",
             H100, _ddp(forward_s=.2, backward_s=.4, optimizer_s=.03, buckets=1, bucket_s=.25, overlap=False),
             other_job=_ddp(forward_s=.15, backward_s=.3, optimizer_s=.02, buckets=30, bucket_s=.009), bytes_per_s=18e9,
             min_gpus=2),
    Scenario("congestion", "a fabric that marks and pauses: the same buckets take half as long again as the backward",
             H100, _ddp(forward_s=.26, backward_s=.52, optimizer_s=.03, buckets=200, bucket_s=.0039), bytes_per_s=12e9,
             events=(("ecn_marked_rx", 6e4), ("cnp_tx", 9e2), ("cnp_rx", 9e2), ("pfc_pause", 2.5e3))),
    Scenario("slow_sensor", "the job of serialized, but power is a mean over a second: nobody can tell",
             H100_MEAN, partial(jobs.alternating, compute_s=.1, transfer_s=.08), blind=True),
)

DEMO_WALK = ("perfect_overlap", "serialized", "ddp_bucketed", "gradient_accumulation", "input_stall", "idle")
DEMO_BOARD = H100_410  # one node, so one board: what the first scenario needs


def scenario(name: str) -> Scenario:
    """The row of that name; KeyError, with all names, where there is none."""
    for row in SCENARIOS:
        if row.name == name:
            return row
    raise KeyError(f"no scenario is called {name!r}; there are: {', '.join(row.name for row in SCENARIOS)}")


def list_scenarios() -> tuple[tuple[str, str], ...]:
    """Name and one line of explanation of each scenario, for people."""
    return tuple((row.name, row.shows) for row in SCENARIOS)
