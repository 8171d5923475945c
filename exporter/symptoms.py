"""Symptoms in raw readings that no ratio of overlap shows: slow links, congestion, capped power, traffic in crumbs.

Called by the rules, once per second and device. Each function answers with evidence that exceeds its threshold, or None:
not so, or not known. The paragraph above each threshold says why it stands where it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.channels import increase, latest
from exporter.model import Device, Evidence, Series
from exporter.signals.rates import poll_interval, thin

WINDOW_S = 60.0
STATE_AGE_S = 30.0  # port states and rates are read each fifth second

# A port that trained down loses half or more (400 to 200 Gbit/s, four lanes to two); a tenth is room for rounded rates.
_RATE_LEAST = 0.9
# A rate that the kernel does not know is printed as 4X SDR, 10 Gbit/s: no judgement on it or below.
_RATE_UNKNOWN = 1.25e9
_PEERS_LEAST = 3  # the rate of the majority means something from three ports on
# The InfiniBand specification allows a bit error ratio of 1e-12; vendors' tools warn from 120 symbol errors per hour,
# which is 10 in five minutes. A link that went down once in that time is one flap too many: a job hardly survives two.
_LINK_WINDOW_S = 300.0
_LINK_EVENTS: Mapping[str, float] = {"link_error": 10.0, "link_down": 1.0}


class LinkMemory:
    """What each port was seen capable of: its best rate, and whether it was up. Kept while the process lives."""

    def __init__(self) -> None:
        self.best_rate: dict[str, float] = {}
        self.was_up: set[str] = set()

    def remember(self, series: Series, ports: Iterable[Device], t_s: float) -> None:
        """Take in the state of the ports."""
        for port in ports:
            if (rate := rate_of(series, port, t_s)) is not None:
                self.best_rate[port.id] = max(rate, self.best_rate.get(port.id, 0.0))
            if latest(series, f"{port.id}/up_ratio", t_s, STATE_AGE_S) == 1:
                self.was_up.add(port.id)


def rate_of(series: Series, port: Device, t_s: float) -> float | None:
    """The line rate of a port that is up; None where it is down, or prints what the kernel prints for an unknown rate."""
    if latest(series, f"{port.id}/up_ratio", t_s, STATE_AGE_S) == 0:
        return None
    rate = latest(series, f"{port.id}/rate_bytes_per_second", t_s, STATE_AGE_S) or port.rate_bytes_per_s
    return rate if rate is not None and rate > _RATE_UNKNOWN else None


def hurt_links(series: Series, ports: Iterable[Device], memory: LinkMemory, t_s: float) -> tuple[Evidence, ...] | None:
    """Ports below their own best rate or that of most of their peers, gone down, or with link events; worst facts first."""
    ports = tuple(ports)
    rates = {port.id: rate for port in ports if (rate := rate_of(series, port, t_s)) is not None}
    usual: dict[str | None, float] = {}
    for driver in {port.driver for port in ports}:
        of_driver = [rates[port.id] for port in ports if port.driver == driver and port.id in rates]
        (rate, count), *_ = Counter(of_driver).most_common(1) or [(0.0, 0)]
        usual[driver] = rate if count >= _PEERS_LEAST and 2 * count > len(of_driver) else 0.0
    slow, events = [], []
    for port in ports:
        if port.id in memory.was_up and latest(series, f"{port.id}/up_ratio", t_s, STATE_AGE_S) == 0:
            slow.append(Evidence(f"{port.id} up", 0.0, "ratio", 1.0))
        least = _RATE_LEAST * max(memory.best_rate.get(port.id, 0.0), usual[port.driver])
        if (now := rates.get(port.id)) is not None and now < least:
            slow.append(Evidence(f"{port.id} rate", now, "bytes_per_second", least))
        for event, threshold in _LINK_EVENTS.items():
            counted = increase(series, f"{port.id}/events/{event}", t_s - _LINK_WINDOW_S, t_s)
            if counted is not None and counted[0] >= threshold:
                events.append(Evidence(f"{port.id} {event}", counted[0], "count", threshold))
    return (*slow, *events) or None


@dataclass(frozen=True, slots=True)
class CongestionSign:
    """An event counter and how much of it is too much: per packet sent or received, or per second."""

    counter: str
    per: str  # transmit, receive: packets of that direction; second
    threshold: float
    infiniband: bool = True  # whether it means congestion on InfiniBand as well


# Packets are not counted everywhere, so bytes stand for them: the largest packet of RoCE and InfiniBand carries 4 KiB, and
# smaller ones make a sign look up to four times as strong.
_PACKET_BYTES = 4096.0
# Below a gigabyte a minute the job hardly communicates, and below ten events a share is chance.
_LEAST_BYTES, _LEAST_EVENTS = 1e9, 10.0
# cnp_rx: at 400 Gbit/s, 1e-4 is one a millisecond; DCQCN needs five timers of 300 us to recover its rate, so it never does.
# ecn_marked_rx: switches mark some packets in every short burst; one in a hundred means a queue that stands.
# retransmit, drops: go-back-N resends all that is under way, and its goodput suffers visibly from 1e-4 on (Mittal et al.,
#   "Revisiting network support for RDMA", 2018). EFA resends single packets over many paths, 1e-5 and more in health.
# seq_nak_rx: each is such a go-back. With adaptive routing on InfiniBand packets overtake each other, and it means nothing.
# ack_timeout: each may stand for a second or more of silence (4.096 us * 2^NCCL_IB_TIMEOUT); one in ten seconds costs a tenth.
# pfc_pause: one frame stops a priority for up to 84 us at 400 Gbit/s; a thousand a second is up to a twelfth of the time.
# credit_stall is left out: its ticks have a length of the device's own, so that no number of them is too many.
CONGESTION: tuple[CongestionSign, ...] = (
    CongestionSign("cnp_rx", "transmit", 1e-4),
    CongestionSign("ecn_marked_rx", "receive", 1e-2),
    CongestionSign("retransmit", "transmit", 1e-4),
    CongestionSign("drops", "transmit", 1e-4),
    CongestionSign("seq_nak_rx", "transmit", 1e-5, infiniband=False),
    CongestionSign("ack_timeout", "second", 0.1),
    CongestionSign("pfc_pause", "second", 1e3),
)  # fmt: skip


def congestion(series: Series, ports: Iterable[Device], t_s: float) -> tuple[Evidence, ...] | None:
    """For each sign, the port that exceeds it most."""
    worst: dict[str, Evidence] = {}
    for port in ports:
        bytes_of = {d: increase(series, f"{port.id}/{d}_bytes_total", t_s - WINDOW_S, t_s) for d in ("transmit", "receive")}
        for sign in CONGESTION:
            counted = increase(series, f"{port.id}/events/{sign.counter}", t_s - WINDOW_S, t_s)
            moved = bytes_of["transmit" if sign.per == "second" else sign.per]
            if counted is None or moved is None or moved[0] < _LEAST_BYTES:
                continue
            if not sign.infiniband and port.info.get("link_layer") == "InfiniBand":
                continue
            per_second = sign.per == "second"
            # Rates, not counts: events are read more rarely than bytes, so the two cover different stretches.
            share = counted[0] / counted[1] / (1.0 if per_second else moved[0] / moved[1] / _PACKET_BYTES)
            least_events = 1.0 if per_second else _LEAST_EVENTS
            before = worst.get(sign.counter)
            if counted[0] >= least_events and share >= sign.threshold and (before is None or share > before.value):
                unit = "per_second" if per_second else "ratio"
                worst[sign.counter] = Evidence(f"{port.id} {sign.counter}", share, unit, sign.threshold)
    return tuple(worst.values()) or None


# Boost clocks brush the limit in every heavy kernel and cost a percent or two; held for a third of the time, the clocks of
# the whole job are lower than they could be.
_CAPPED_LEAST = 0.3
# Regulation keeps power a few percent below the limit on average; half of the readings there is no longer a peak.
_AT_LIMIT, _AT_LIMIT_LEAST = 0.97, 0.5


def capped_power(series: Series, gpu: Device, t_s: float) -> tuple[Evidence, ...] | None:
    """Time held down by the power limit where the board counts it; else the share of readings at the limit."""
    counted = increase(series, f"{gpu.id}/throttled_seconds_total/power_cap", t_s - WINDOW_S, t_s)
    if counted is not None and counted[1] >= WINDOW_S / 2:
        share = min(1.0, counted[0] / counted[1])
        return (Evidence("power_cap_time", share, "ratio", _CAPPED_LEAST),) if share >= _CAPPED_LEAST else None
    limit = latest(series, f"{gpu.id}/power_limit_watts", t_s, STATE_AGE_S) or gpu.power_limit_watts
    t, power = series.series(f"{gpu.id}/power_watts", t_s - WINDOW_S, t_s)
    power = power[~np.isnan(power)]
    if not limit or len(power) == 0 or t[-1] - t[0] < WINDOW_S / 2:
        return None
    share = float(np.mean(power >= _AT_LIMIT * limit))
    if share < _AT_LIMIT_LEAST:
        return None
    return (
        Evidence("at_power_limit_time", share, "ratio", _AT_LIMIT_LEAST),
        Evidence("power_median", float(np.median(power)), "watts", _AT_LIMIT * limit),
    )


# Collectives of whole buckets fill a third to nine tenths of the line. Buckets of a megabyte take less time on the wire
# than the collective needs to start, and stay near a tenth, whatever the line could do.
_FILL_MOST = 0.2
# What tells crumbs from bursts: reads 20 ms apart hold dozens of them, so that traffic looks like one even stretch. The
# scatter of single transfers that come and go within some reads is three times as large.
_SCATTER_MOST = 0.35
_IN_STRETCHES_LEAST = 0.7  # share of all bytes: in stretches of three blocks and more without a pause
_BLOCKS_LEAST = 10
_POLL_MOST_S = 0.045  # slower reads smooth everything
_BLOCK_S = 0.04  # counters may refresh every 10 ms or so: close reads together
_CRUMBS_WINDOW_S = 20.0  # dozens of steps; a longer look costs more and shows the same


def crumbs(series: Series, port: Device, t_s: float) -> tuple[Evidence, ...] | None:
    """Traffic in long even stretches far below the line rate: many transfers too short to be seen one by one."""
    line = rate_of(series, port, t_s)
    t, sent = series.series(f"{port.id}/transmit_bytes_total", t_s - _CRUMBS_WINDOW_S, t_s)
    known = ~np.isnan(sent)
    t, sent = t[known], sent[known]
    if line is None or len(t) < _CRUMBS_WINDOW_S / 2 / _POLL_MOST_S:
        return None
    polls = thin(t, poll_interval(t))
    t, sent = t[polls], sent[polls]
    poll_s = poll_interval(t)
    every = max(1, round(_BLOCK_S / poll_s))
    t, sent = t[::every], sent[::every]
    moved = np.maximum(0.0, np.diff(sent))
    total = float(moved.sum())
    if poll_s > _POLL_MOST_S or total < _LEAST_BYTES * _CRUMBS_WINDOW_S / WINDOW_S:
        return None
    rate = moved / np.diff(t)
    on = rate > 0.25 * float(np.quantile(rate, 0.95))
    core = on & _shifted(on, 1) & _shifted(on, -1)  # traffic before and after, too: a stretch of three blocks or more
    inside = rate[core]
    if len(inside) < _BLOCKS_LEAST:
        return None
    stretches = core | _shifted(core, 1) | _shifted(core, -1)
    in_stretches = float(moved[stretches].sum()) / total
    fill, scatter = float(np.median(inside)) / line, float(inside.std() / inside.mean())
    if fill > _FILL_MOST or scatter > _SCATTER_MOST or in_stretches < _IN_STRETCHES_LEAST:
        return None
    return (
        Evidence(f"{port.id} line_fill", fill, "ratio", _FILL_MOST),
        Evidence(f"{port.id} scatter", scatter, "ratio", _SCATTER_MOST),
    )


def _shifted(flags: NDArray[np.bool_], by: int) -> NDArray[np.bool_]:
    """The flags of the neighbours, `by` places before; beyond the ends there are none."""
    out = np.zeros_like(flags)
    if by > 0:
        out[by:] = flags[:-by]
    else:
        out[:by] = flags[-by:]
    return out
