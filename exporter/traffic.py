"""Traffic of one window: how present it is in every reading, in units of its rate inside bursts, and its duty.

Called by the shares, for all GPUs at once; fabrics are combined by the larger presence at each instant. It decides whether
polls or pairs of reads tell the rate inside bursts; what communication costs is for the routes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.signals import duty as duties
from exporter.signals import levels
from exporter.signals.duty import Bursts, Duty
from exporter.signals.overlap import mean, to_unit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes per second by fabric, of one window and the job's time alone; NaN = missing."""

    beside: Array  # [f, g, n] power readings
    fine: Array  # [f, g, m] finest intervals
    pair: Array  # [f, g, k] two reads a few milliseconds apart
    tiles: Array  # [f, g, q] stretches of GPM
    line: Array  # [f, g] what the fabric can carry
    loud: Mask  # [f, g] it carries communication
    step_s: Array  # [g] between the finest intervals
    length_s: Array  # [g] of the finest intervals


@dataclass(frozen=True, slots=True)
class Traffic:
    """Presence, in units of the rate inside bursts, not clipped: beside power [g, n], in stretches of GPM [g, q]; duty [g]."""

    beside: Array
    tiles: Array
    duty: Duty
    polled: Mask  # [g]: no pairs tell the rate inside bursts
    clear: Array  # [g] 0 to 1: how clearly traffic is on or off beside power, on the fabric where it is least so


def traffic_of(seen: Bytes, low: Array, high: Array) -> Traffic:
    """Presence and duty; low, high [f, g] levels of traffic at the finest intervals. O(n log n)."""
    smeared, bursts, told = _bursts(seen, low, high)
    fine, beside, tiles = (_presence(x, bursts, seen.loud) for x in (seen.fine, seen.beside, seen.tiles))
    duty = _polled(seen, bursts, fine)
    if told.any():
        by_pairs = duties.paired(loudest(_presence(seen.pair, bursts, seen.loud)), loudest(fine), duty.least)
        duty = Duty(*(np.where(told, a, b) for a, b in zip(by_pairs, duty, strict=True)))
    on_or_off = _presence(seen.beside, smeared, seen.loud) if told.any() else beside
    sharp = duties.dispersion(levels.soft_presence(on_or_off))
    clear = np.where(seen.loud, sharp, 1.0).min(axis=0, initial=1.0)
    # Readings of power whose bytes are clearly on or off show bursts that polls of the same length blur.
    known = np.where(~told & duty.bursts, np.maximum(duty.known, duties.ramp(clear, 0.5, 0.3)), duty.known)
    if told.any():
        known = np.where(told, known * duties.pairs_resolve(_of_line(seen, bursts), clear), known)
    return Traffic(loudest(beside), loudest(tiles), duty._replace(known=known), ~told, clear)


def _of_line(seen: Bytes, bursts: Bursts) -> Array:
    """Rate inside bursts over line rate, of the loud fabric where it is least; 1 where no line rate is known. [g]"""
    with np.errstate(invalid="ignore"):
        share = np.where(seen.loud & ~np.isnan(seen.line), bursts.rate / seen.line, 1.0)
    return np.asarray(share.min(axis=0, initial=1.0))


def _polled(seen: Bytes, bursts: Bursts, fine: Array) -> Duty:
    """Duty from polls, of all traffic together, no better known than on the fabric where it is known least. fine [f, g, m]."""
    with np.errstate(invalid="ignore"):
        least, of_line = mean(seen.fine) / seen.line, bursts.rate / seen.line
    if len(fine) == 1:
        return duties.polled(fine, of_line, least, seen.step_s, seen.length_s).row(0)
    one = np.ones((1, *fine.shape[1:-1]))
    each_and_all = duties.polled(
        np.concatenate((fine, loudest(fine)[None])), np.concatenate((of_line, one)), np.concatenate((least, 0.0 * one)),
        seen.step_s, seen.length_s,
    )  # fmt: skip
    together, silent = each_and_all.row(-1), ~seen.loud
    if not len(fine):
        return together
    return together._replace(
        least=np.minimum(np.where(silent, 0.0, each_and_all.least[:-1]).max(axis=0), together.share),
        known=np.where(silent, 1.0, each_and_all.known[:-1]).min(axis=0),
        bursts=np.asarray((silent | each_and_all.bursts[:-1]).all(axis=0)),
    )


def _bursts(seen: Bytes, low: Array, high: Array) -> tuple[Bursts, Bursts, Mask]:
    """Low level and rate inside bursts [f, g] as intervals smear them, as they are best known; and where pairs tell [g]."""
    usual, top = duties.bursts(seen.fine, low, high)
    length, _, _ = duties.burst_polls(loudest(_presence(seen.fine, usual, seen.loud)), seen.step_s, seen.length_s)
    short = to_unit((3.0 - length) / 1.5)
    bursts = Bursts(low, usual.rate + short * np.maximum(top - usual.rate, 0.0))
    none = np.zeros(seen.loud.shape[1:], dtype=bool)
    if seen.pair.shape[-1] == 0 or not seen.loud.any():
        return bursts, bursts, none
    tells = duties.pairs_tell(seen.pair, seen.line)
    told: Mask = np.asarray(seen.loud.any(axis=0) & (tells | ~seen.loud).all(axis=0))
    if not told.any():
        return bursts, bursts, none
    pair_low, pair_high = levels.traffic_levels(seen.pair)
    by_pairs, _ = duties.bursts(seen.pair, pair_low, pair_high)
    whole = duties.whole_rate(seen.pair, by_pairs)
    return bursts, Bursts(np.where(told, pair_low, low), np.where(told, whole, bursts.rate)), told


def _presence(traffic: Array, bursts: Bursts, loud: Mask) -> Array:
    """Presence on each fabric, 0 where it is silent. [f, g, n]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        presence: Array = (traffic - bursts.low[..., None]) / np.maximum(bursts.rate, 1e-9)[..., None]
    return audible(presence, loud)


def audible(presence: Array, loud: Mask) -> Array:
    """Presence [f, g, n], 0 where a fabric is silent; loud [f, g]."""
    return presence if loud.all() else np.where(loud[..., None], presence, 0.0)


def loudest(presence: Array) -> Array:
    """The larger presence of the fabrics at each instant, [f, g, n] to [g, n]; NaN where one of them is missing."""
    if len(presence) == 1:
        return np.asarray(presence[0])
    return np.asarray(presence.max(axis=0)) if len(presence) else np.zeros(presence.shape[1:])
