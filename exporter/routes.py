"""Routes: which readings of a GPU decide about its communication. The one place where that choice is made.

Called by the shares, for all GPUs at once. Three routes lead from readings to the exposed share of communication:

1. GPM gives kernel-busy and compute-busy as means, so that their gap is exact at any grain: where it is read, it decides.
2. Readings of power that hold either compute or communication (`resolved`): rhythms of several sensor windows.
3. Readings that mix both (`mixtures`): bounds on what may be exposed, and the likely value between them.

The second and third are blended by how clearly traffic, or power that falls with traffic, is on or off within a reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.mixtures import Mixtures, mixtures
from exporter.resolved import Resolved, resolved
from exporter.signals import kernel_gap
from exporter.signals.compute_level import room
from exporter.signals.duty import Duty, dispersion, ramp, scaled_to
from exporter.signals.levels import soft_presence
from exporter.signals.overlap import counted, mean, or_zero, to_unit
from exporter.traffic import Traffic

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Widths of the bounds of the exposed share of traffic beyond which there is no answer. Jobs hide most of fine communication or
# hardly any: an answer in the middle is more often the mean of two possibilities than a measurement, and has to be known
# better by MIDDLE than one at either end. A sensor that averages over all of a byte interval sees what the bytes see: its
# bounds leave nothing out, and only those that leave everything open are too wide.
OPEN_WIDTH, POWER_WIDTH, PAIRED_WIDTH, GAP_WIDTH, MIDDLE = 0.95, 1.12, 1.08, 0.65, 0.4
SLOW_SENSOR_S = 0.3  # such a window shows no mixtures, only their mean
RESOLVED_ERROR = 0.07
_BY_TIME = 0.25  # weight of a resolved rhythm's exposed time, beside its exposed share of traffic
_APART = 2.5  # by which the distance of the two counts as width: a third of traffic is as open as it may be
_MIN_TILES = 50
_WHOLE = 0.8  # of a byte interval
_FAST_POLLS_S = 0.06  # flat traffic at longer intervals may be bursts that all of them hold alike
FLAT_TRAFFIC, FLAT_POWER = 0.15, 0.035  # standard deviation as a share of the mean
_STREAM = 0.85  # duty by pairs of reads from which on traffic is one stream


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the routes say, [g] unless said otherwise. Width: of the bounds of the exposed share of traffic, over its limit."""

    exposed: Array
    low: Array
    high: Array
    communication: Array
    stall: Array
    gap: Array  # exposed communication and waits together
    width: Array
    resolved: Array  # weight of `resolved` in the answer; what it needs of the sensors counts as much
    measured: Mask  # by GPM
    lack: Array  # [g, n] without compute
    tau: Array  # [g, n] with traffic


@dataclass(frozen=True, slots=True)
class Window:
    """What was read in one window of the job's time, NaN = missing: [g, n] beside power, [g, q] of GPM, and [g]."""

    t: Array  # [g, n] s
    power: Array  # [g, n] W
    top_watts: Array  # [g] q95 of it
    utilization: Array  # [g, n]
    soft: Array  # [g, n] soft presence of traffic between its levels
    on: Mask  # [g, n] plain presence
    fine: Array  # [g, m] presence between levels at the finest intervals
    fine_soft: Array  # [g, m] soft presence
    traffic: Traffic
    tiles: Tiles
    correlation: Array
    flat_power: Mask
    flat_traffic: Mask  # beside power
    limit_watts: Array
    remembered: Array
    window_s: Array  # of the power sensor
    step_s: Array
    fine_step_s: Array
    fine_length_s: Array


@dataclass(frozen=True, slots=True)
class Tiles:
    """Means of GPM over stretches of about 0.1 s, [g, q]; presence of traffic in units of the burst rate; NaN = missing."""

    t: Array  # end
    kernel_busy: Array
    sm_activity: Array
    presence: Array

    @property
    def usable(self) -> Mask:
        """[g]: enough of them to decide."""
        return np.asarray(counted(~np.isnan(self.kernel_busy)) >= _MIN_TILES)


def resolved_weight(clear: Array, mixed: Mixtures, r: Array, still: Mask) -> Array:
    """How surely the readings hold either compute or communication, 0 to 1. [g]

    Either traffic is clearly on or off in them; or power is, and it falls with traffic: then the sensor resolves a rhythm
    that is too fast for the polls of bytes. Flat power beside traffic that fast polls or pairs show as one stream has no
    rhythm, and is taken at its word.
    """
    swings = ramp(dispersion(to_unit((mixed.depth - 0.15) / 0.7)), 0.7, 0.1)
    falls = ramp(-or_zero(r), 0.2, 0.15)
    return np.where(still, 1.0, np.maximum(ramp(clear, 0.6, 0.2), swings * falls))


def judge(w: Window) -> tuple[Verdicts, Resolved]:
    """What the readings of a window say of communication; and what a resolved rhythm alone would make of them."""
    seen, measured = w.traffic, w.tiles.usable
    if measured.all():
        first = _first(w, np.zeros(len(measured)))
        return by_activity(w.tiles, seen.duty, seen.polled, w.t, seen.beside, _room(w)), first
    mixed = mixtures(w.t, w.power, w.utilization, seen.beside, seen.duty, seen.polled, w.limit_watts, w.remembered)
    with np.errstate(invalid="ignore"):
        steady = np.where(seen.polled, w.fine_length_s < _FAST_POLLS_S, seen.duty.share > _STREAM)
        still = steady & w.flat_traffic & w.flat_power
    first = _first(w, np.where(still, 0.0, mixed.lowest_watts))
    part = np.where(seen.polled, POWER_WIDTH, PAIRED_WIDTH)
    limit = np.where(w.window_s >= _WHOLE * w.fine_length_s, OPEN_WIDTH + MIDDLE, part)
    weight = resolved_weight(seen.clear, mixed, w.correlation, still)
    by_power = blend(mixed, first, weight, seen.duty, seen.polled, limit)
    if not measured.any():
        return by_power, first
    return choose(by_power, by_activity(w.tiles, seen.duty, seen.polled, w.t, seen.beside, _room(w)), measured), first


def _room(w: Window) -> Array:
    return room(w.power, w.top_watts, w.limit_watts)


def _first(w: Window, floor_watts: Array) -> Resolved:
    return resolved(w.power, w.top_watts, w.utilization, w.soft, w.on, w.correlation, w.remembered, floor_watts, w.step_s,
                    w.fine, w.fine_soft, w.fine_step_s, w.fine_length_s)  # fmt: skip


def blend(mixed: Mixtures, first: Resolved, weight: Array, duty: Duty, polled: Mask, limit: Array) -> Verdicts:
    """Power alone: what mixtures allow and what a resolved rhythm says, by weight; limit of the width. [g]

    polled: bytes were not read in pairs. Pairs know the duty better than intervals, which smear every burst: what a resolved
    rhythm says is then held to that duty.
    """
    some = ~np.isnan(first.exposed)
    w = np.where(some, weight, 0.0)
    x1, c1 = np.where(some, first.exposed, 0.0), np.where(some, first.communication, 0.0)
    smeared, c1 = c1, duty.known * duty.share + (1 - duty.known) * c1
    held, apart = held_to_duty(x1, smeared, c1)
    x1, apart = np.where(polled, x1, held), np.where(polled, 0.0, apart)
    c1 = np.maximum(c1, x1)
    x = (1 - w) * mixed.exposed * mixed.communication + w * x1
    c = np.maximum((1 - w) * mixed.communication + w * c1, x)
    e, e1 = np.minimum(x / np.maximum(c, 1e-9), 1.0), np.minimum(x1 / np.maximum(c1, 1e-9), 1.0)
    low = to_unit(np.minimum((1 - w) * mixed.low + w * (e1 - RESOLVED_ERROR - _BY_TIME * apart), e))
    high = to_unit(np.maximum((1 - w) * mixed.high + w * (e1 + RESOLVED_ERROR + (1 - _BY_TIME) * apart), e))
    low = np.minimum(low, np.where(w > 0.5, first.low / np.maximum(c1, 1e-9), low))
    high = np.maximum(high, np.where(w > 0.5, np.minimum(first.high / np.maximum(c1, 1e-9), 1.0), high))
    least = (1 - w) * np.minimum((duty.low * (1 - duty.error) + c) / 2, c) + w * (0.9 * c - 0.025)
    most = (1 - w) * np.maximum((np.minimum(1.0, duty.share * (1 + duty.error)) + c) / 2, c) + w * (1.1 * c + 0.025)
    middle = MIDDLE * 4 * mixed.exposed * (1 - mixed.exposed)
    width = np.maximum(mixed.width + middle, mixed.width * limit / OPEN_WIDTH)
    width = (1 - w) * width + w * (2 * RESOLVED_ERROR + _APART * apart)
    stall = np.where(np.isnan(first.stall), np.nan, mixed.stall)
    first_gap = np.maximum(first.noncompute - or_zero(stall), 0.0)
    spread = w[:, None]
    return Verdicts(
        exposed=x, low=np.clip(low * least, 0.0, x),
        high=np.clip(high * most, x, 1.0), communication=c, stall=stall,
        gap=np.maximum((1 - w) * mixed.gap + w * or_zero(first_gap), x), width=width / limit,
        resolved=w, measured=np.zeros(len(w), dtype=bool), lack=(1 - spread) * mixed.lack + spread * first.lack,
        tau=(1 - spread) * mixed.tau + spread * first.tau,
    )  # fmt: skip


def held_to_duty(x: Array, smeared: Array, c: Array) -> tuple[Array, Array]:
    """Exposed share of time of a resolved rhythm whose traffic fills `c` of the time, not `smeared`; and how open it is. [g]

    Either the exposed share of traffic stays as it was, x / smeared, or the exposed time, x: three parts the first, one part
    the second. How far the two lie apart, as shares of traffic, is the second result: intervals that smear bursts to several
    times their length say little about what these met.

    >>> a = np.array
    >>> [v.round(3).tolist() for v in held_to_duty(a([0.1, 0.1, 0.1]), a([0.2, 0.4, 0.4]), a([0.2, 0.2, 0.1]))]
    [[0.1, 0.062, 0.044], [0.0, 0.25, 0.75]]
    """
    by_share, by_time = x * np.minimum(c / np.maximum(smeared, 1e-6), 1.0), np.minimum(x, c)
    return by_share + _BY_TIME * (by_time - by_share), (by_time - by_share) / np.maximum(c, 1e-6)


def by_activity(tiles: Tiles, duty: Duty, polled: Mask, t: Array, tile: Array, room: Array) -> Verdicts:
    """Where GPM is read. polled [g]: bytes were not read in pairs; t, tile [g, n] of the power readings, for lack and tau;
    room [g]: what power leaves at most.

    Exact if no communication kernel waits. Waits that no traffic explains can stand beside transfers in a stretch of 0.1 s
    and look the same: the lower bound gives way where traffic is finer than the stretches.
    """
    busy, presence = tiles.kernel_busy, np.maximum(tiles.presence, 0.0)
    activity = kernel_gap.compute_activity(busy, tiles.sm_activity, presence)
    sharp = dispersion(soft_presence(presence))
    duty = duty._replace(known=np.where(polled, np.maximum(duty.known, ramp(sharp, 0.7, 0.2)), duty.known))
    c, ends = duty.likely, np.stack((duty.low, duty.share))
    taus = scaled_to(presence, np.concatenate((c[None], ends)))
    lacks = kernel_gap.gap(busy, tiles.sm_activity, activity.ratio + np.multiply.outer((0, -1, 1), activity.error))
    tau, lack = taus[0], lacks[0]
    e, idle = kernel_gap.exposed_share(np.stack((lack, to_unit(lack + 1 - busy))), tau, c)
    e = np.where(polled, e + 0.6 * (1 - duty.known) * (idle - e), e)
    corners = kernel_gap.exposed_share(lacks[1:, None], taus[1:], ends)  # [2, 2, g]: activity, duty
    others = np.concatenate((e[None], corners.reshape(4, -1)))
    below, above = others.min(axis=0), others.max(axis=0)
    gap = np.minimum(or_zero(mean(lack)), room)
    waits = or_zero(mean(np.maximum(lack - tau, 0.0))) / np.maximum(or_zero(mean(tau)), 1e-9)
    below = below - 0.7 * np.minimum(waits, e) * np.maximum(0.0, 1 - sharp / 0.3)
    low = to_unit(e - 1.4 * (e - below) - 0.03 - 0.004 / np.maximum(c, 1e-3))
    high = to_unit(e + 1.4 * (above - e) + 0.03 + 0.004 / np.maximum(c, 1e-3))
    high = np.maximum(np.minimum(high, (room + 0.02) / np.maximum(c, 1e-3)), low)
    off = duty.error * c + 0.004
    mean_busy = or_zero(mean(busy))
    x = np.minimum(e * c, gap)
    ceiling = gap + 0.01 + activity.error * mean_busy / np.maximum(activity.ratio - kernel_gap.SPINNING, 0.1)
    lacking = _onto(t, tiles.t, 1 - busy + lack)
    return Verdicts(
        exposed=x, low=np.clip(low * (c - off), 0.0, x), high=np.maximum(np.minimum(high * (c + off), ceiling), x),
        communication=c, stall=np.maximum(0.0, 1 - mean_busy - 0.01), gap=gap, width=(high - low) / GAP_WIDTH,
        resolved=np.zeros(len(c)), measured=np.ones(len(c), dtype=bool), lack=lacking, tau=scaled_to(np.maximum(tile, 0.0), c),
    )  # fmt: skip


def _onto(t: Array, tile_t: Array, value: Array) -> Array:
    """Values of the stretches at the times of the power readings, [g, n]; NaN where a row has none."""
    out = np.full(t.shape, np.nan)
    for g in range(len(t)):
        known = ~np.isnan(value[g])
        if known.any():
            out[g] = np.interp(t[g], tile_t[g, known], value[g, known])
    return out


def observability(first: Array, said: Verdicts, window_s: Array) -> Array:
    """How well the sensors resolve the job, 0 to 1; .5 is where bounds are too wide for an answer. All [g].

    `first` says how well they resolve its rhythm; it counts as far as the answer needs a rhythm. A mean over a second is no
    mixture of anything: there it counts in full.
    """
    counts = np.where(said.measured, 0.0, np.where(window_s >= SLOW_SENSOR_S, 1.0, said.resolved))
    return np.fmin(counts * first + 1 - counts, 1 - 0.5 * said.width)


def choose(power: Verdicts, activity: Verdicts, has_activity: Mask) -> Verdicts:
    """GPM where it is read, power elsewhere."""
    fields = {}
    for name in Verdicts.__dataclass_fields__:
        a, b = getattr(activity, name), getattr(power, name)
        fields[name] = np.where(has_activity[:, None] if a.ndim == 2 else has_activity, a, b)
    return Verdicts(**fields)

