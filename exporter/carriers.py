"""Which network interfaces carry the job's traffic, told from their bytes and from what the GPUs do meanwhile.

Called by transport for the interfaces of the node. An interface of storage or management must never pass: its bytes would
become communication of the job. So the traffic has to be two-way, above a floor, and in the rhythm of a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from exporter.channels import increase, latest
from exporter.model import Device, Inventory, Series
from exporter.signals.alignment import fresh, intervals
from exporter.signals.correlation import pearson, variation
from exporter.signals.rates import flow, poll_interval, rate_between

Array = NDArray[np.float64]

WINDOW_S = 10.0
# A source may be late by this much (EFA is asked twice a second, bnxt_re answers once a second) before it is missing.
LATE_S = 5.0
# Keep-alives, monitoring and the job's own control messages stay far below a thousandth of the line.
FLOOR_SHARE = 1e-3
UNDECIDED = "undecided"
_NIC_RATE = 1.25e9  # bytes/s, where the line rate is not known: NCCL assumes 10 Gbit/s as well
# Collectives send what they receive. A quarter of one-way bytes leaves room for a checkpoint or a data set beside them.
_TWO_WAY_SHARE = 0.75
# The rhythm is judged over a minute. Unrelated rhythms reach 0.2 by chance in that time; an alternation over TCP 0.6.
_RHYTHM_S = 60.0
_RHYTHM_LEAST = 0.35
_FEWEST_READINGS = 50
_POWER_VARIES = 0.08  # of its mean; sensors alone scatter 1 to 3 %
# Power that stands still cannot confirm a flow; then the flow has to be a fair part of the line by itself.
_FLAT_SHARE = 1e-2


def byte_rate(series: Series, device_id: str, t_s: float, start_s: float | None = None) -> float | None:
    """Bytes per second of the busier direction since start_s (ten seconds); None: a direction is missing or stale."""
    start_s = t_s - WINDOW_S if start_s is None else start_s
    rates = []
    for quantity in ("transmit_bytes_total", "receive_bytes_total"):
        channel = f"{device_id}/{quantity}"
        counted = increase(series, channel, start_s, t_s)
        if counted is None or counted[1] < (t_s - start_s) / 2 or latest(series, channel, t_s, LATE_S) is None:
            return None
        rates.append(counted[0] / counted[1])
    return max(rates)


def echoes(series: Series, port_id: str, nic_ids: Sequence[str], t_s: float) -> bool:
    """Whether the Ethernet interfaces of a port (several, below a bond) count its RDMA bytes again, taken together.

    So does the uplink representor of mlx5 in switchdev mode. Its counters are refreshed in the background, so both halves
    of the window are compared, not every reading.
    """
    if not nic_ids:
        return False
    middle_s = t_s - WINDOW_S / 2
    for start_s, end_s in ((t_s - WINDOW_S, middle_s), (middle_s, t_s)):
        port, *nics = (byte_rate(series, device, end_s, start_s) for device in (port_id, *nic_ids))
        if not port or not 0.8 <= sum(nic or 0.0 for nic in nics) / port <= 1.3:
            return False
    return True


def carries(series: Series, inventory: Inventory, nic: Device, t_s: float) -> str | None:
    """Why an interface is taken to carry the job: config, rhythm or symmetry; None: it does not; UNDECIDED: too early.

    config: the inventory pairs it with a GPU already. rhythm: its two-way bytes follow the power of a GPU. symmetry: no
    GPU's power varies, and its two-way bytes are a fair part of the line. O(n) per GPU over a minute of readings.
    """
    line = nic.rate_bytes_per_s or latest(series, f"{nic.id}/rate_bytes_per_second", t_s, _RHYTHM_S) or _NIC_RATE
    rate = byte_rate(series, nic.id, t_s) or 0.0
    if rate <= FLOOR_SHARE * line:
        return None
    if any(link.device_id == nic.id and link.path == "tcp" for link in inventory.links):
        return "config"
    t, sent = series.series(f"{nic.id}/transmit_bytes_total", t_s - _RHYTHM_S, t_s)
    received_t, received = series.series(f"{nic.id}/receive_bytes_total", t_s - _RHYTHM_S, t_s)
    if not np.array_equal(t, received_t):
        received = np.interp(t, received_t, received, left=np.nan, right=np.nan)
    done, unknown = flow(t, sent, received, LATE_S)
    first = int(np.searchsorted(t, t_s - WINDOW_S))
    if done[-1] - done[first] < _TWO_WAY_SHARE * rate * (t[-1] - t[first]):
        return None
    rhythm = _rhythm(series, inventory.of_kind("gpu"), t_s, byte_t=t, done=done, unknown=unknown)
    if rhythm is None:
        return UNDECIDED
    if np.isnan(rhythm):
        return "symmetry" if rate >= _FLAT_SHARE * line else None
    return "rhythm" if rhythm >= _RHYTHM_LEAST else None


def _rhythm(
    series: Series, gpus: tuple[Device, ...], t_s: float, *, byte_t: Array, done: Array, unknown: Array
) -> float | None:
    """Largest |r| of a GPU's power and the flow, 0 for a flat flow; NaN: no GPU's power varies; None: too early to say.

    Unlike the verdict on overlap, this only asks whether the two belong together, so a few ages of a reading are tried.
    """
    best = np.nan
    enough = early = False
    gap_s = poll_interval(byte_t)
    for gpu in gpus:
        t, power = series.series(f"{gpu.id}/power_watts", t_s - _RHYTHM_S, t_s)
        refresh_s, window_s = gpu.power_refresh_s or 0.1, gpu.power_window_s or 0.1
        new = fresh(t, power, refresh_s)
        t, power = t[new], power[new]
        if len(t) < _FEWEST_READINGS:
            early = early or len(t) > 0
            continue
        enough = True
        if float(variation(power)) < _POWER_VARIES:
            continue
        for age_s in (0.0, refresh_s / 2, refresh_s):
            rate = rate_between(byte_t, done, unknown, *intervals(t, np.full(len(t), age_s), window_s, max(window_s, gap_s)))
            r = float(pearson(power, rate))
            best = float(np.fmax(best, 0.0 if np.isnan(r) else abs(r)))
    return None if early and not enough else best
