"""Duty: the share of time with traffic, when bursts may be shorter than the polls; and how well it is known.

Called by the shares; arrays [..., n], NaN = missing. A poll says how many bytes flowed, not for how long: a steady
stream and short bursts at a higher rate read the same. Two reads a few milliseconds apart show the rate inside a burst;
bytes over that rate are time. Never guesses beyond the line rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from exporter.signals import levels
from exporter.signals.overlap import ON, counted, mean, moments, or_zero, to_unit, zeroed

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_CLEARLY = 0.3  # of the way from low to high: a reading that lies well inside a burst
_USUAL, _TOP = 0.75, 0.98  # quantiles of those readings: the rate of bursts that fill readings, and of bursts that do not
_SMEAR = 0.8  # of an interval that a run of readings gains at its two ends
_FULL = 0.85  # of the usual rate: a pair of reads that lies wholly inside a burst
_ALWAYS = 0.9  # share of readings with traffic beyond which there are no bursts to measure
_FAST = 0.85  # how surely traffic that fills every interval of 50 ms is a stream
_ALIKE, _UNLIKE, _FEW_INSIDE = 0.1, 0.3, 5  # standard deviation of intervals inside runs, as a share of their mean
_MIN_PAIRS = 50
_BEYOND = 1.1  # of the line rate
_SLOW, _SLOW_SPAN = 0.1, 0.15  # of the line rate: collectives are slower only on a wire that something else limits


class Bursts(NamedTuple):
    """Traffic in units of its rate inside bursts: `low` [...] stays, `rate` [...] above it is 1. Bytes per second."""

    low: Array
    rate: Array


class Duty(NamedTuple):
    """Share of time with traffic [...]: as it reads, what bytes over line rate leave, how surely it is the former."""

    share: Array
    least: Array
    known: Array  # 0: nothing between least and share is more likely than the rest; 1: share
    error: Array  # of share, relative
    bursts: Mask  # traffic pauses often enough for bursts to be told

    def row(self, k: int) -> Duty:
        """Number k of the first axis."""
        return Duty(self.share[k], self.least[k], self.known[k], self.error[k], self.bursts[k])

    @property
    def low(self) -> Array:
        """The lower end of what is possible: the geometric middle of both by what is known."""
        return np.maximum(self.least, 1e-9) ** (1 - self.known) * np.maximum(self.share, 1e-9) ** self.known

    @property
    def likely(self) -> Array:
        """Between the lower end and the share as it reads: half way where nothing is known."""
        ahead = (1 - self.known) / 2
        return np.maximum(self.share, 1e-9) ** (1 - ahead) * self.low**ahead


def ramp(x: Array, begin: float, span: float) -> Array:
    """0 up to `begin`, rising to 1 over `span`.

    >>> ramp(np.array([0.2, 0.6, 2.0]), 0.5, 0.2).round(2).tolist()
    [0.0, 0.5, 1.0]
    """
    return to_unit((x - begin) / span)


def dispersion(p: Array) -> Array:
    """Variance of p over that of a coin with its mean, 0 to 1: 1 where every reading is on or off, 0 where all are alike.

    p [..., n] from 0 to 1; 0 for a row that is (nearly) always on or off, and for an empty one. O(n).

    >>> float(dispersion(np.array([0.0, 1.0, 1.0, 0.0]))), float(dispersion(np.array([0.5, 0.5])))
    (1.0, 0.0)
    """
    return _dispersed(*moments(p))


def _dispersed(middle: Array, variance: Array) -> Array:
    coin = or_zero(middle * (1 - middle))
    return np.where(coin > 1e-4, or_zero(variance) / np.where(coin > 1e-4, coin, 1.0), 0.0)


def bursts(traffic: Array, low: Array, high: Array) -> tuple[Bursts, Array]:
    """The rate of bursts, from readings well inside them: the usual one, and [...] that of bursts shorter than readings.

    traffic [..., n], low and high its levels [...]. O(n).

    >>> traffic = np.array([0.0, 0.0, 8.0, 9.0, 9.0, 10.0])
    >>> usual, top = bursts(traffic, np.array(0.0), np.array(10.0))
    >>> float(usual.rate), float(top)
    (9.25, 9.94)
    """
    usual, top = levels.quantiles(traffic, (_USUAL, _TOP), above=low + _CLEARLY * (high - low))
    usual, top = (np.where(np.isnan(x), high, x) - low for x in (usual, top))
    return Bursts(low, usual), top


def burst_polls(f: Array, step_s: Array, length_s: Array) -> tuple[Array, Array, Array]:
    """Mean length of a burst in intervals, share of time in bursts, and share of intervals with traffic. All [...].

    f [..., n] presence at intervals of `length_s`, one each `step_s`: a burst of b is seen on for b + 0.8 length. O(n).

    >>> length, share, on = burst_polls(np.array([0.0, 1.0, 1.0, 0.0, 0.0]), np.array(0.1), np.array(0.1))
    >>> round(float(length), 2), round(float(share), 2), float(on)
    (1.2, 0.24, 0.4)
    """
    with np.errstate(invalid="ignore"):
        on = f > ON
    count = np.maximum(counted(~np.isnan(f)), 1)
    seen = counted(on)
    runs = np.maximum(counted(on[..., 1:] & ~on[..., :-1]) + on[..., :1].sum(axis=-1), 1)
    steps = np.maximum(seen - _SMEAR * runs * length_s / step_s, 0.0)
    return steps / runs * step_s / length_s, steps / count, seen / count


def steadiness(f: Array, step_s: Array, length_s: Array) -> Array:
    """How alike the intervals inside long runs of traffic are, 0 to 1; 1 where there are too few to tell. [...].

    A burst that lasts several polls fills those in its middle alike. Where they differ, each holds a burst or two that are
    shorter than the polls, however clearly traffic seems to be on and off. f [..., n] presence, not clipped. O(n).

    >>> one = np.array(0.1)
    >>> float(steadiness(np.tile([0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.6], 9), one, one))
    1.0
    >>> float(steadiness(np.tile([0.0, 0.5, 0.5, 1.0, 0.5, 1.0, 0.5], 9), one, one))
    0.0
    """
    with np.errstate(invalid="ignore"):
        on = f > ON
    reach = int(np.nanmax(np.rint(length_s / step_s), initial=1.0))
    inside = on.copy()
    for by in {1, reach}:
        inside[..., by:] &= on[..., :-by]
        inside[..., :-by] &= on[..., by:]
    filled = np.where(inside, f, np.nan)
    middle, variance = moments(filled)
    spread = np.sqrt(variance)
    few = counted(inside) < _FEW_INSIDE
    with np.errstate(invalid="ignore"):
        return np.where(few, 1.0, 1 - ramp(spread / np.where(few, 1.0, middle), _ALIKE, _UNLIKE - _ALIKE))


def polled(f: Array, of_line: Array, least: Array, step_s: Array, length_s: Array) -> Duty:
    """Duty from polls alone: runs of traffic where polls resolve bursts, mean presence where they do not.

    f [..., n] presence in units of the burst rate; of_line [...] burst rate over line rate, NaN where that is not known;
    least [...] bytes over line rate. Known where bursts last several polls and polls are clearly on or off; where
    traffic hardly pauses, only a rate near that of the line tells a stream from bursts. O(n).

    >>> f = np.tile([1.0] * 8 + [0.0] * 12, 20)
    >>> d = polled(f, np.array(0.8), np.array(0.3), np.array(0.1), np.array(0.1))
    >>> float(d.share.round(2)), float(d.known)
    (0.36, 1.0)
    """
    alike = steadiness(f, step_s, length_s)
    present, variance = moments(levels.soft_presence(f))
    length, in_runs, on = burst_polls(f, step_s, length_s)
    sharp = _dispersed(present, variance)
    weight = np.maximum(ramp(sharp, 0.85, 0.1), ramp(length, 15.0, 15.0))
    share = weight * np.minimum(in_runs, or_zero(present)) + (1 - weight) * or_zero(mean(to_unit(f)))
    known = ramp(length, 1.5, 2.5) * ramp(sharp, 0.45, 0.25) * alike
    stream = np.fmax(np.where(np.isnan(of_line), 0.5, ramp(of_line, 0.4, 0.4)), _FAST * ramp(-length_s, -0.09, 0.04))
    known = np.where(on > _ALWAYS, stream, known)
    return Duty(share, _least(least, share), known, np.full(share.shape, 0.05), np.asarray(on <= _ALWAYS))


def paired(f: Array, presence: Array, least: Array) -> Duty:
    """Duty from pairs of reads a few milliseconds apart: all bytes over the rate that whole pairs inside bursts show.

    f [..., m] rates of the pairs, presence [..., n] all traffic, both in units of the burst rate; least as in `polled`.
    Bytes are counted without gaps, so that chance enters through the rate alone. O(m + n).

    >>> f = np.array([0.0, 1.0, 0.0, 1.0]); d = paired(f, np.array([0.3, 0.5]), np.array(0.1))
    >>> float(d.share), float(d.known)
    (0.4, 1.0)
    """
    p = levels.soft_presence(f)
    known = np.where(or_zero(mean(p)) > _ALWAYS, _FAST, ramp(dispersion(p), 0.6, 0.25))
    share = to_unit(or_zero(mean(np.maximum(presence, 0.0))))
    return Duty(share, _least(least, share), known, 0.02 + 0.05 * (1 - known), np.ones(share.shape, dtype=bool))


def _least(least: Array, share: Array) -> Array:
    """Half of the share where the line rate is unknown."""
    return np.minimum(np.where(np.isnan(least), share / 2, least), share)


def whole_rate(pairs: Array, usual: Bursts) -> Array:
    """Mean rate above low of pairs that lie wholly inside a burst, [...]. pairs [..., m] bytes/s. O(m).

    >>> float(whole_rate(np.array([0.0, 2.0, 9.0, 10.0, 11.0]), Bursts(np.array(0.0), np.array(10.0))))
    10.0
    """
    above = pairs - usual.low[..., None]
    with np.errstate(invalid="ignore"):
        return np.fmax(mean(np.where(above > _FULL * usual.rate[..., None], above, np.nan)), 1e-9)


def pairs_tell(pairs: Array, line: Array) -> Mask:
    """Whether pairs can be believed: enough of them, and no rate beyond the line, [...].

    A counter that refreshes more slowly than the pair stands still in some and jumps in others: whatever flows near half
    the line rate then reads as more than the line can carry. pairs [..., m] bytes/s, line [...] (NaN: not known). O(m).

    >>> a = np.array
    >>> bool(pairs_tell(a([9.0] * 60), a(10.0))), bool(pairs_tell(a([0.0, 18.0] * 30), a(10.0)))
    (True, False)
    """
    enough = counted(~np.isnan(pairs)) >= _MIN_PAIRS
    with np.errstate(invalid="ignore"):
        beyond = levels.quantiles(pairs, (0.9,))[0] > _BEYOND * line
    return np.asarray(enough & ~beyond)


def pairs_resolve(of_line: Array, clear: Array) -> Array:
    """How surely bursts last longer than a pair of reads, 0 to 1. [...]

    A burst that fits between two reads lends them its bytes but not its rate: pairs then show a rate far below the line, and
    readings of power are neither on nor off. A slow stream is as slow, but lasts. of_line rate inside bursts over line rate,
    clear how clearly traffic is on or off in readings of power.

    >>> pairs_resolve(np.array([0.6, 0.2, 0.1, 0.1]), np.array([0.0, 0.0, 0.0, 0.9])).round(2).tolist()
    [1.0, 0.67, 0.0, 1.0]
    """
    return np.maximum(ramp(of_line, _SLOW, _SLOW_SPAN), ramp(clear, 0.2, 0.3))


def scaled_to(flow: Array, share: Array) -> Array:
    """Time with traffic within each tile: linear in bytes, none above 1, scaled so that the mean is `share`.

    flow [..., n] from 0 up, any unit; share [...] from 0 to 1, or several for each row [k, ...]; NaN stays NaN. A tile that is
    full hands what is left to the others. O(n).

    >>> scaled_to(np.array([0.0, 1.0, 3.0]), np.array(0.5)).round(3).tolist()
    [0.0, 0.5, 1.0]
    """
    missing = np.isnan(flow)
    known = zeroed(np.maximum(flow, 0.0), missing)
    wanted = share * (flow.shape[-1] - counted(missing))
    total, full = known.sum(axis=-1), np.zeros((*wanted.shape, flow.shape[-1]), dtype=bool)
    count = scale = np.zeros(wanted.shape)
    for _ in range(6):
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = np.where(total > 0, np.maximum(wanted - count, 0.0) / total, 0.0)
            full = full | (known > (1.0 / scale)[..., None])
        now = counted(full)
        if (now == count).all():
            break
        count, total = now, np.where(full, 0.0, known).sum(axis=-1)
    tau = np.minimum(known * scale[..., None], 1.0)
    np.copyto(tau, 1.0, where=full)
    np.copyto(tau, np.nan, where=missing)
    return tau
