"""Jobs drawn with known truth, seen through modelled sensors: power with window, refresh, age and noise; byte counters.

Used by the tests of the analysis. The models follow the facts about boards (Yang, Adamek, Armour, 2024), not the code
under test.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from exporter.model import Device, Inventory, Link, Source

Array = NDArray[np.float64]
GRAIN_S = 0.001


@dataclass
class Node:
    """Channels in memory that can be asked like a history."""

    channels: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def series(self, channel: str, start_s: float, end_s: float) -> tuple[Array, Array]:
        t, value = self.channels.get(channel, (np.empty(0), np.empty(0)))
        i, j = np.searchsorted(t, (start_s, end_s), side="right")
        return t[i:j], value[i:j]


def alternation(seconds: float, compute_s: float, communication_s: float, jitter: float, rng: np.random.Generator,
                hidden: float = 0.0) -> tuple[Array, Array]:  # fmt: skip
    """Compute and communication, on or off per millisecond: compute, then communication of which `hidden` still computes."""
    n = round(seconds / GRAIN_S)
    compute, traffic = np.zeros(n), np.zeros(n)
    at = -rng.uniform(0, compute_s + communication_s)
    while at < seconds:
        a = compute_s * max(0.2, rng.normal(1, jitter))
        b = communication_s * max(0.2, rng.normal(1, jitter))
        edges = [max(0, min(n, round(x / GRAIN_S))) for x in (at, at + a - hidden * b, at + a, at + a + (1 - hidden) * b)]
        compute[edges[0] : edges[2]] = 1
        traffic[edges[1] : edges[3]] = 1
        at += a + (1 - hidden) * b
    return compute, traffic


def polls(seconds: float, hertz: float, jitter_s: float, rng: np.random.Generator) -> Array:
    """Times of reads that do not drift."""
    t = (np.arange(int(seconds * hertz)) + rng.uniform()) / hertz + rng.uniform(-jitter_s, jitter_s, int(seconds * hertz))
    t = np.sort(t[(t > 0) & (t < seconds)])
    return t[np.concatenate(([True], np.diff(t) > 1e-4))]


def power_readings(watts: Array, t: Array, window_s: float, refresh_s: float, noise_watts: float,
                   rng: np.random.Generator) -> Array:  # fmt: skip
    """What polls at t see of power given per millisecond: a boxcar mean, taken at each refresh."""
    energy = np.concatenate(([0.0], np.cumsum(watts)))
    grid = np.arange(len(watts) + 1) * GRAIN_S
    ticks = np.arange(rng.uniform(0, refresh_s), len(watts) * GRAIN_S, refresh_s * rng.uniform(0.99, 1.01))
    begin = np.maximum(ticks - window_s, 0)
    mean = (np.interp(ticks, grid, energy) - np.interp(begin, grid, energy)) / np.maximum((ticks - begin) / GRAIN_S, 1e-9)
    mean = np.round(mean + rng.normal(0, noise_watts, len(ticks)), 2)
    return mean[np.clip(np.searchsorted(ticks, t, side="right") - 1, 0, None)]


def byte_readings(rate: Array, t: Array, refresh_s: float) -> Array:
    """What polls at t see of a counter that is fed `rate` bytes per second, given per millisecond."""
    total = np.concatenate(([0.0], np.cumsum(rate * GRAIN_S)))
    seen = np.floor(t / refresh_s) * refresh_s if refresh_s > 0 else t
    return np.round(7e12 + np.interp(seen, np.arange(len(total)) * GRAIN_S, total))


def node(compute: Array, traffic: Array, rng: np.random.Generator, *, gpus: int = 1, high: float = 450.0,
         transfer: float = 170.0, waiting: float = 150.0, limit: float = 700.0, window_s: float | None = 0.025,
         refresh_s: float = 0.1, power_hz: float = 10.0, byte_hz: float = 50.0, line: float = 50e9, burst: float = 22.5e9,
         busy: Array | float = 1.0, true_window_s: float | None = None,
         noise: float = 4.0) -> tuple[Node, Inventory]:  # fmt: skip
    """GPUs that all run this job, with a port each; utilisation is `busy` (per millisecond)."""
    seconds = len(compute) * GRAIN_S
    busy_at = np.broadcast_to(np.asarray(busy, dtype=float), compute.shape)
    watts = np.where(compute > 0, high, np.where(traffic > 0, transfer, waiting))
    watts = np.where(busy_at > 0, watts, 100.0)
    out = Node()
    devices, links, sources = [], [], []
    for g in range(gpus):
        gpu, port = f"GPU-{g}", f"mlx5_{g}/1"
        t = polls(seconds, power_hz, 0.005, rng)
        seen = true_window_s if true_window_s is not None else window_s or 0.025
        out.channels[f"{gpu}/power_watts"] = t, power_readings(watts, t, seen, refresh_s, noise, rng)
        share = np.concatenate(([0.0], np.cumsum(busy_at)))
        end = np.clip((t / GRAIN_S).astype(int), 1, len(busy_at))
        begin = np.maximum(0, end - 166)
        out.channels[f"{gpu}/utilization_ratio"] = t, np.round((share[end] - share[begin]) / (end - begin), 2)
        t = polls(seconds, byte_hz, 0.001, rng)
        bytes_read = byte_readings(burst * traffic + 2000.0, t, 0.01)
        out.channels[f"{port}/transmit_bytes_total"] = t, bytes_read
        out.channels[f"{port}/receive_bytes_total"] = t, bytes_read + 5e11
        devices += [
            Device("gpu", gpu, index=g, power_limit_watts=limit, power_source="instant", power_window_s=window_s,
                   power_refresh_s=refresh_s if window_s is not None else None),
            Device("rdma_port", port, rate_bytes_per_s=line),
        ]  # fmt: skip
        links.append(Link(gpu, port, "rdma", "PIX"))
        sources += [Source(f"nvml/{gpu}", (f"{gpu}/power_watts", f"{gpu}/utilization_ratio")),
                    Source(f"rdma/mlx5_{g}", (f"{port}/transmit_bytes_total", f"{port}/receive_bytes_total"))]  # fmt: skip
    return out, Inventory("node-1", 0.0, tuple(devices), tuple(links), tuple(sources))
