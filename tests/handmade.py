"""Readings made by hand: counters that follow a rate, values that stand or change. For tests of judges of raw readings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from exporter.model import Device

Array = NDArray[np.float64]
Rate = float | Callable[[Array], Array]
GPU = Device("gpu", "GPU-0", index=0, power_limit_watts=700.0, power_window_s=0.1, power_refresh_s=0.1)


class Handmade:
    """A Series whose channels are set one by one."""

    def __init__(self, end_s: float = 100.0) -> None:
        self.end_s = end_s
        self.channels: dict[str, tuple[Array, Array]] = {}

    def series(self, channel: str, start_s: float, end_s: float) -> tuple[Array, Array]:
        t, value = self.channels.get(channel, (np.empty(0), np.empty(0)))
        i, j = np.searchsorted(t, (start_s, end_s), side="right")
        return t[i:j], value[i:j]

    def times(self, hertz: float, start_s: float = 0.0, end_s: float | None = None) -> Array:
        end_s = self.end_s if end_s is None else end_s
        return start_s + np.arange(1, round((end_s - start_s) * hertz) + 1) / hertz

    def value(self, channel: str, value: Rate, hertz: float = 1.0, start_s: float = 0.0,
              end_s: float | None = None) -> Handmade:  # fmt: skip
        """A gauge: a constant, or a function of the times."""
        t = self.times(hertz, start_s, end_s)
        self.channels[channel] = (t, np.asarray(value(t) if callable(value) else np.full(len(t), value), float))
        return self

    def counter(self, channel: str, rate: Rate, hertz: float = 10.0, start_s: float = 0.0,
                end_s: float | None = None) -> Handmade:  # fmt: skip
        """A counter that grows by a constant rate, or by the integral of a function of the times."""
        t = self.times(hertz, start_s, end_s)
        fine = np.arange(0.0, self.end_s + 0.005, 0.005)
        per_s = rate(fine) if callable(rate) else np.full(len(fine), rate)
        total = np.concatenate(([0.0], np.cumsum(per_s[:-1] * 0.005)))
        self.channels[channel] = (t, 1e9 + np.interp(t, fine, total))
        return self

    def traffic(self, device_id: str, sent: Rate, received: Rate | None = None, hertz: float = 10.0,
                end_s: float | None = None) -> Handmade:  # fmt: skip
        """Both byte counters of a device; two-way where `received` is not given."""
        self.counter(f"{device_id}/transmit_bytes_total", sent, hertz, end_s=end_s)
        return self.counter(f"{device_id}/receive_bytes_total", sent if received is None else received, hertz, end_s=end_s)


def square(high: float, low: float = 0.0, period_s: float = 1.0, duty: float = 0.4,
           phase: float = 0.0) -> Callable[[Array], Array]:  # fmt: skip
    """`high` for the first `duty` of each period, `low` for the rest.

    >>> square(5.0)(np.array([0.1, 0.7])).tolist()
    [5.0, 0.0]
    """
    return lambda t: np.where((t / period_s + phase) % 1.0 < duty, high, low)


def wandering(mean: float, seed: int) -> Callable[[Array], Array]:
    """A rate of its own mind: a random level every 0.7 s."""
    levels = np.random.default_rng(seed).uniform(0.0, 2.0 * mean, 1000)
    return lambda t: levels[(t / 0.7).astype(int)]


def port(number: int = 0, *, link_layer: str = "Ethernet", netdev: str = "", driver: str = "mlx5_core") -> Device:
    """A port of 400 Gbit/s."""
    info = {"link_layer": link_layer, "netdev": netdev, "byte_source": "counters/port_xmit_data"}
    return Device("rdma_port", f"mlx5_{number}/1", driver=driver, rate_bytes_per_s=50e9, info=info)


def nic(name: str = "eth0", kind: str = "physical", rate_bytes_per_s: float | None = 3.125e9) -> Device:
    """An interface of 25 Gbit/s."""
    return Device("nic", name, rate_bytes_per_s=rate_bytes_per_s, info={"kind": kind})
