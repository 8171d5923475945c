"""Waveforms: the readings of one GPU and of what carries its traffic, as arrays on a common axis of time.

`api`, `scope` and the report cut what they draw from here. Pure functions over a Series; nothing here judges what it
reads, and nothing here reads a clock or a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.model import PATHS, Device, Inventory, Link, Series

Array = NDArray[np.float64]

# Counters that carry the bytes, by path; those of NVLink are the GPU's own.
_BYTE_COUNTERS = {
    "rdma": ("transmit_bytes_total", "receive_bytes_total"),
    "tcp": ("transmit_bytes_total", "receive_bytes_total"),
    "nvlink": ("nvlink_transmit_bytes_total", "nvlink_receive_bytes_total"),
}
_LONGEST_READ_GAP_S = 1.0
_FINEST_STEP_S, _COARSEST_STEP_S = 0.01, 1.0


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter over time: t [n] s, sent [n] bytes since the first reading, breaks [n] gaps and restarts before it."""

    t: Array
    sent: Array
    breaks: Array

    def between(self, begin_s: Array, end_s: Array) -> Array:
        """Rate within intervals [m], per second; NaN where a break touches one, and beyond the readings."""
        sent = np.interp(end_s, self.t, self.sent, np.nan, np.nan) - np.interp(begin_s, self.t, self.sent, np.nan, np.nan)
        broken = np.interp(end_s, self.t, self.breaks) > np.interp(begin_s, self.t, self.breaks)
        rate: Array = np.where(broken, np.nan, sent / np.maximum(end_s - begin_s, 1e-9))
        return rate


def counted(t_s: Array, total: Array) -> Counted | None:
    """A counter as it was read: t_s [n] s, total [n]; NaN is left out. None with fewer than two readings. O(n).

    A break is where the reads lie more than 1 s apart, or the counter went back (a restart): no bytes are known there.
    """
    good = np.isfinite(total)
    if np.count_nonzero(good) < 2:
        return None
    t_s, total = (t_s, total) if good.all() else (t_s[good], total[good])
    steps = np.diff(total)
    broken = (steps < 0) | (np.diff(t_s) > _LONGEST_READ_GAP_S)
    sent = np.concatenate(([0.0], np.cumsum(np.where(broken, 0.0, steps))))
    return Counted(t_s, sent, np.concatenate(([0.0], np.cumsum(broken, dtype=np.float64))))


def counter_rate(t_s: Array, total: Array, grid_s: Array) -> Array | None:
    """Rate of a counter on the intervals between the points of a grid.

    t_s [n] s, total [n] as read; grid_s [m] s, rising. Returns [m - 1] per second: no byte is lost or counted twice,
    whatever the rates of reading and grid. NaN where the reads around an interval lie more than 1 s apart, where the
    counter went back (a restart), and beyond the readings. NaN readings are left out. None with fewer than two readings.

    >>> counter_rate(np.array([0.0, 1.0, 2.0]), np.array([0.0, 10.0, 40.0]), np.array([0.0, 0.5, 1.0, 2.0]))
    array([10., 10., 30.])
    """
    counter = counted(t_s, total)
    return None if counter is None else counter.between(grid_s[:-1], grid_s[1:])


@dataclass(frozen=True, slots=True)
class Traffic:
    """What carries the traffic of one GPU: per path the two directions of each link, with the link's weight."""

    links: tuple[tuple[str, float, tuple[Counted, ...]], ...]
    newest_s: float  # up to here all links that still answer have been read; NaN without any

    def between(self, begin_s: Array, end_s: Array) -> dict[str, Array]:
        """Bytes per second within intervals [m], by path, in the order of model.PATHS.

        Of the two directions of a link the busier counts: collectives send and receive the same bytes.
        """
        found: dict[str, Array] = {}
        for path, weight, directions in self.links:
            rate = np.fmax.reduce([counter.between(begin_s, end_s) for counter in directions]) * weight
            found[path] = found[path] + rate if path in found else rate
        return found


def traffic_of(series: Series, links: Iterable[Link], start_s: float, end_s: float) -> Traffic:
    """The counters of these links in (start_s, end_s] and a second on either side; a link that was not read is missing."""
    found: list[tuple[str, float, tuple[Counted, ...]]] = []
    newest: list[float] = []
    for link in sorted(links, key=lambda k: PATHS.index(k.path)):
        directions = [
            counter
            for channel in byte_channels(link)
            if (counter := counted(*series.series(channel, start_s - _LONGEST_READ_GAP_S, end_s + _LONGEST_READ_GAP_S)))
        ]
        if directions:
            found.append((link.path, link.weight, tuple(directions)))
            newest.append(min(float(counter.t[-1]) for counter in directions))
    alive = [t_s for t_s in newest if end_s - t_s <= _LONGEST_READ_GAP_S]
    return Traffic(tuple(found), min(alive) if alive else max(newest, default=float("nan")))


def links_of(inventory: Inventory, gpu: Device) -> tuple[Link, ...]:
    """What carries the traffic of this GPU."""
    return tuple(link for link in inventory.links if link.gpu_id == gpu.id)


def byte_channels(link: Link) -> tuple[str, ...]:
    """The counters that hold the bytes of a link, one per direction."""
    return tuple(f"{link.device_id}/{key}" for key in _BYTE_COUNTERS[link.path])


def read_every_s(inventory: Inventory, links: Iterable[Link]) -> float:
    """How often the counters of these links are read, by the fastest of their sources, seconds; 0.1 where nobody says."""
    wanted = {channel for link in links for channel in byte_channels(link)}
    known = [s.interval_s for s in inventory.sources if s.interval_s and not wanted.isdisjoint(s.channels)]
    return min(max(min(known, default=0.1), _FINEST_STEP_S), _COARSEST_STEP_S)


def power_of(series: Series, gpu: Device, start_s: float, end_s: float) -> tuple[Array, Array]:
    """Times [n] s and watts [n] as they were read in (start_s, end_s], without what was not read."""
    t_s, watts = series.series(f"{gpu.id}/power_watts", start_s, end_s)
    good = np.isfinite(watts)
    return t_s[good], watts[good]


def numbers(values: Array, digits: int) -> list[float | None]:
    """Ready for JSON: rounded, None for NaN; whole numbers without a point.

    >>> numbers(np.array([1.26, np.nan]), 1), numbers(np.array([1.6]), 0)
    ([1.3, None], [2])
    """
    listed: list[float | None] = np.round(values, digits).tolist()
    if digits == 0:
        return [None if v is None or v != v else int(v) for v in listed]
    return [v if v == v else None for v in listed]
