"""Pairs of jobs that give the same readings and have different truths: what no analysis of these readings can tell apart.

Used by a test (both get the same answer, and its bounds hold both truths) and by the pictures of the documents. Levels are
chosen so that the means agree exactly; noise and the times of reads are the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.model import Device, Inventory, Link, Source
from tests.draws import Node, polls

Array = NDArray[np.float64]
Phase = tuple[float, str]  # seconds, what runs: compute, transfer, hidden (a transfer beside compute) or wait
GRAIN_S, SECONDS = 0.0005, 75.0
SPINNING_ACTIVITY, COMPUTE_ACTIVITY = 0.14, 0.95
RATE_BYTES_PER_S, LINE_BYTES_PER_S, LIMIT_WATTS = 20e9, 50e9, 700.0


@dataclass(frozen=True, slots=True)
class Job:
    """Phases in turn, for ever; W of each."""

    phases: tuple[Phase, ...]
    watts: tuple[float, ...]
    rate_bytes_per_s: float = RATE_BYTES_PER_S

    @property
    def period_s(self) -> float:
        return sum(seconds for seconds, _ in self.phases)

    def share(self, *kinds: str) -> float:
        """Of time in these phases."""
        return sum(seconds for seconds, kind in self.phases if kind in kinds) / self.period_s

    @property
    def health(self) -> float:
        return 1.0 - self.share("transfer") / self.share("transfer", "hidden")


@dataclass(frozen=True, slots=True)
class Twins:
    """Two jobs, and what is read of both: gpm or power; bytes in pairs of reads or not."""

    name: str
    title: str
    jobs: tuple[Job, Job]
    gpm: bool = False
    paired: bool = True


TWINS: tuple[Twins, ...] = (
    Twins("level", "Power, no level of compute", (
        Job(((0.004, "hidden"), (0.004, "compute")), (400.0, 400.0)),
        Job(((0.004, "transfer"), (0.004, "compute")), (230.0, 570.0)),
    )),
    Twins("rate", "Bytes at 10 Hz", (
        Job(((0.01, "hidden"),), (400.0,), RATE_BYTES_PER_S),
        Job(((0.005, "transfer"), (0.005, "compute")), (230.0, 570.0), 2 * RATE_BYTES_PER_S),
    ), paired=False),
    Twins("wait", "GPM, tiles of 100 ms", (
        Job(((0.03, "transfer"), (0.03, "wait"), (0.04, "compute")), (230.0, 160.0, 550.0)),
        Job(((0.03, "hidden"), (0.01, "compute"), (0.06, "wait")), (550.0, 550.0, 160.0)),
    ), gpm=True),
)  # fmt: skip


def waveforms(job: Job) -> tuple[Array, Array, Array]:
    """Power in W, bytes per second, and SM activity at every grain."""
    ends = np.cumsum([seconds for seconds, _ in job.phases])
    at = np.searchsorted(ends, (np.arange(round(SECONDS / GRAIN_S)) + 0.5) * GRAIN_S % job.period_s, side="right")
    kind = np.array([kind for _, kind in job.phases])[at]
    rate = np.where((kind == "transfer") | (kind == "hidden"), job.rate_bytes_per_s, 0.0)
    active = np.where((kind == "compute") | (kind == "hidden"), COMPUTE_ACTIVITY, SPINNING_ACTIVITY)
    return np.array(job.watts)[at], rate, active


def read(twins: Twins, which: int, seed: int = 3) -> tuple[Node, Inventory]:
    """What the sensors say of one of the two: 25 ms of power and bytes ten times a second, and GPM."""
    rng = np.random.default_rng(seed)
    watts, rate, active = waveforms(twins.jobs[which])
    grid = np.arange(len(watts) + 1) * GRAIN_S
    of_key = {"watts": watts, "rate": rate, "active": active}
    total = {key: np.concatenate(([0.0], np.cumsum(x) * GRAIN_S)) for key, x in of_key.items()}

    def between(key: str, begin: Array, end: Array) -> Array:
        return (np.interp(end, grid, total[key]) - np.interp(begin, grid, total[key])) / (end - begin)

    node = Node()
    t = polls(SECONDS, 10.0, 0.005, rng)
    t = t[t > 0.15]
    window_s = 0.1 if twins.gpm else 0.024  # whole periods of the job: a window that is not would show a ripple of both
    node.channels["GPU-0/power_watts"] = t, np.round(between("watts", t - window_s, t) + rng.normal(0, 6.0, len(t)), 1)
    node.channels["GPU-0/utilization_ratio"] = t, np.ones(len(t))
    sources = [Source("nvml/GPU-0", ("GPU-0/power_watts", "GPU-0/utilization_ratio"))]
    if twins.gpm:
        node.channels["GPU-0/kernel_busy_ratio"] = t[1:], np.ones(len(t) - 1)
        node.channels["GPU-0/sm_utilization_ratio"] = t[1:], np.round(between("active", t[:-1], t[1:]), 4)
        sources.append(Source("gpm/GPU-0", ("GPU-0/kernel_busy_ratio", "GPU-0/sm_utilization_ratio")))
    t = polls(SECONDS, 10.0, 0.005, rng)
    t = np.sort(np.concatenate((t - 0.005, t)))[2:] if twins.paired else t
    bytes_read = np.round(7e12 + np.interp(t, grid, total["rate"]))
    for key in ("transmit", "receive"):
        node.channels[f"mlx5_0/1/{key}_bytes_total"] = t, bytes_read
    gpu = Device("gpu", "GPU-0", index=0, power_limit_watts=LIMIT_WATTS, power_source="instant",
                 power_window_s=0.1 if twins.gpm else 0.025, power_refresh_s=0.1)  # fmt: skip
    port = Device("rdma_port", "mlx5_0/1", rate_bytes_per_s=LINE_BYTES_PER_S)
    sources.append(Source("rdma/mlx5_0", ("mlx5_0/1/transmit_bytes_total", "mlx5_0/1/receive_bytes_total")))
    links = (Link("GPU-0", "mlx5_0/1", "rdma", "PIX"),)
    return node, Inventory("node-1", 0.0, (gpu, port), links, tuple(sources))
