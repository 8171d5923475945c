"""Rates: from byte counters to a flow in bytes per second, with resets, gaps and one-way traffic told apart.

Called by the gathering of readings, one device at a time. Never smooths more than the readings force it to, and never
fills a gap: what was not read stays NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exporter.signals.overlap import boxcar_sum, to_unit
from exporter.signals.sensor import SLOW_COUNTER

Array = NDArray[np.float64]

SYMMETRY_SPAN_S = 2.0  # collectives of real jobs send and receive in turns; over two seconds they are balanced
_SYMMETRY_FROM, _SYMMETRY_FULL = 0.5, 0.7  # ratio of the directions: below the first one-way, above the second balanced
_ACK_SHARE = 0.02  # what a one-way flow sends back: acknowledgements and read requests are not a collective
_TELLING = 500  # readings
PAIR_S = 0.0255  # reads that follow others so closely show the rate inside a burst
_PAIRED = 0.45  # of the distance of other reads
_FAST_S = 0.01  # polls so fast are pairs; at 20 ms a counter that ticks each 10 ms gives one to three ticks of a stream
FINE_S = 0.04  # shortest interval that is judged: below, counters that refresh every 10 ms quantise


def poll_interval(t: Array) -> float:
    """The gap between readings in which a random instant falls (median by time): reads in pairs count as one.

    t [n] s, ascending; the latest 500 tell. NaN with fewer than two readings. O(1).

    >>> poll_interval(np.array([0.0, 0.1, 0.2, 0.3]))
    0.1
    >>> round(poll_interval(np.array([0.0, 0.005, 0.1, 0.105, 0.2, 0.205])), 3)
    0.095
    """
    if len(t) < 2:
        return float("nan")
    t = t[-_TELLING:]
    gaps = t[1:] - t[:-1]
    gaps.sort()
    total = gaps.cumsum()
    return float(gaps[min(len(gaps) - 1, int(total.searchsorted(total[-1] / 2)))])


def flow(t: Array, transmit: Array, receive: Array, longest_gap_s: float) -> tuple[Array, Array]:
    """Cumulative bytes of two-way traffic, and cumulative seconds that cannot be known.

    Per interval between two readings: max(tx, rx) where both directions balance over about two seconds (collectives
    send and receive in turns), else min(tx, rx) less the acknowledgements of the larger (storage and checkpoints flow
    one way). A counter that falls, a missing reading, and a gap longer than `longest_gap_s` make an interval unknown.

    t [n] s, transmit and receive [n] bytes; NaN: not read. Returns bytes [n] and unknown seconds [n], both from 0.
    O(n).

    >>> t = np.arange(4.0)
    >>> done, unknown = flow(t, np.array([5.0, 7, 1, 4]), np.array([0.0, 2, 4, 7]), 2.0)
    >>> done.tolist(), unknown.tolist()
    ([0.0, 2.0, 2.0, 5.0], [0.0, 0.0, 1.0, 1.0])
    """
    if len(t) < 2:
        return np.zeros(len(t)), np.zeros(len(t))
    total, gaps = np.stack((transmit, receive)), t[1:] - t[:-1]
    moved = total[:, 1:] - total[:, :-1]
    smaller, larger = np.minimum(*moved), np.maximum(*moved)
    known = (smaller >= 0) & (gaps <= longest_gap_s)
    whole = bool(known.all())
    if not whole:
        moved, smaller, larger = (np.where(known, x, 0.0) for x in (moved, smaller, larger))
    reach = max(1, round(SYMMETRY_SPAN_S / 2 * len(gaps) / float(t[-1] - t[0])))
    over = _around(total, reach) if whole else boxcar_sum(moved, reach)
    balance = np.minimum(*over) / np.maximum(np.maximum(*over), 1e-300)
    weight = to_unit((balance - _SYMMETRY_FROM) / (_SYMMETRY_FULL - _SYMMETRY_FROM))
    one_way = np.maximum(0.0, smaller - _ACK_SHARE * larger)
    done, unknown = np.zeros(len(t)), np.zeros(len(t))
    np.cumsum(one_way + weight * (larger - one_way), out=done[1:])
    if not whole:
        np.cumsum(np.where(known, 0.0, gaps), out=unknown[1:])
    return done, unknown


def _around(total: Array, reach: int) -> Array:
    """What `boxcar_sum` gives of the differences of totals, from the totals themselves. total [..., n + 1]; [..., n]."""
    n = total.shape[-1] - 1
    reach = min(reach, n)
    over = np.empty((*total.shape[:-1], n))
    over[..., : n - reach] = total[..., reach + 1 :]
    over[..., n - reach :] = total[..., -1:]
    over[..., reach:] -= total[..., : n - reach]
    over[..., :reach] -= total[..., :1]
    return over


def changes(t: Array, total: Array, refresh_s: float) -> NDArray[np.intp]:
    """Indices of the polls that a slow counter answered with a new value, and of a poll at the end of each pause.

    Between them the counter moved on unseen. After a pause (unchanged for more than one and a half refreshes) the next
    bytes came within the one refresh before they were seen: the poll nearest to that moment ends the pause, the last of
    all the one that lies open. t [n] s, total [n] bytes. O(n).

    >>> changes(np.arange(8) * 1.0, np.array([0.0, 0, 1, 1, 1, 1, 1, 2]), 2.0).tolist()
    [0, 2, 5, 7]
    """
    moved = np.flatnonzero(np.concatenate(([True], total[1:] != total[:-1])))
    paused = np.diff(t[moved]) > 1.5 * refresh_s - 1e-9
    since, until = moved[:-1][paused], moved[1:][paused]
    after = np.clip(np.searchsorted(t, t[until] - refresh_s), since + 1, until)
    nearest = after - (t[after] - (t[until] - refresh_s) > (t[until] - refresh_s) - t[after - 1])
    ends = np.clip(nearest, since, until)
    last = [len(t) - 1] if t[-1] - t[moved[-1]] > 1.5 * refresh_s - 1e-9 else []
    return np.unique(np.concatenate((moved, ends, last))).astype(np.intp)


def rate_between(t: Array, done: Array, unknown: Array, start_s: Array, end_s: Array) -> Array:
    """Mean rate within each interval, bytes per second, from the straight line between readings.

    t, done, unknown [n] as `flow` gives them; start_s, end_s [k] s. NaN where an interval leaves the readings or
    touches time that is unknown. O(n + k).

    >>> t = np.array([0.0, 1.0, 2.0])
    >>> rate_between(t, np.array([0.0, 4.0, 4.0]), np.zeros(3), np.array([0.5, 1.5]), np.array([1.5, 2.5])).tolist()
    [2.0, nan]
    """
    if len(t) < 2:
        return np.full(len(start_s), np.nan)
    moved = np.interp(end_s, t, done, right=np.nan) - np.interp(start_s, t, done, left=np.nan)
    if unknown[-1] > 0:
        missing = np.interp(end_s, t, unknown) - np.interp(start_s, t, unknown)
        moved[missing > 1e-6] = np.nan
    return np.asarray(moved / (end_s - start_s))


def thin(t: Array, interval_s: float) -> NDArray[np.intp]:
    """Indices of readings without those that follow one that is kept within half an interval. t [n]. O(n).

    So of a pair the first is left, and of a volley of close reads one in each interval.

    >>> thin(np.array([0.0, 0.005, 0.1, 0.105]), 0.095).tolist()
    [0, 2]
    >>> thin(np.array([0.0, 0.1, 0.145, 0.19, 0.235, 0.28, 0.325, 0.37, 0.5]), 0.1).tolist()
    [0, 1, 4, 6, 8]
    """
    if len(t) == 0:
        return np.empty(0, dtype=np.intp)
    kept = np.ones(len(t), dtype=bool)
    np.greater(t[1:] - t[:-1], 0.5 * interval_s, out=kept[1:])
    if (kept[1:] | kept[:-1]).all():
        return np.flatnonzero(kept)  # pairs at most
    first = np.maximum.accumulate(np.where(kept, np.arange(len(t)), 0))  # of the close reads that each belongs to
    passed = np.floor((t - t[first]) / interval_s)
    kept[1:] |= (passed[1:] > passed[:-1]) & ~kept[1:]
    return np.flatnonzero(kept)


def pairs(t: Array, interval_s: float) -> NDArray[np.intp]:
    """Indices of readings that another one follows closely: read in pairs, or polled that fast anyway.

    Of fast polls about twenty a second are taken. t [n] s, ascending; interval_s of the polls. O(n).

    >>> pairs(np.array([0.0, 0.005, 0.1, 0.105]), 0.095).tolist()
    [0, 2]
    >>> pairs(np.arange(6) * 0.1, 0.1).tolist()
    []
    """
    if interval_s <= _FAST_S:
        return np.arange(0, len(t) - 1, max(1, round(0.05 / interval_s)))
    return np.flatnonzero(t[1:] - t[:-1] < min(PAIR_S, _PAIRED * interval_s))


def fine_polls(interval_s: float) -> int:
    """How many polls make the finest interval that can be judged: at least 40 ms, and one poll.

    >>> fine_polls(0.02), fine_polls(0.1)
    (2, 1)
    """
    return max(1, round(FINE_S / interval_s)) if interval_s > 0 else 1


def fine_knots(t: Array, interval_s: float, polls: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First and last reading of overlapping intervals of `polls` polls, one from each reading on; pairs count as one.

    t [n] s, ascending; interval_s of the polls. Returns indices [k], [k]. O(n).

    >>> first, last = fine_knots(np.arange(5) * 0.02, 0.02, 2)
    >>> first.tolist(), last.tolist()
    ([0, 1, 2], [2, 3, 4])
    """
    knots = thin(t, interval_s)
    return knots[:-polls], knots[polls:]


def resolved_s(interval_s: float, refresh_s: float) -> float:
    """The shortest interval over which bytes mean anything: a poll, or the refresh of a slower counter. Seconds.

    >>> resolved_s(0.02, 0.01), resolved_s(0.02, 0.1), resolved_s(0.1, float("nan"))
    (0.02, 0.1, 0.1)
    """
    return refresh_s if refresh_s > SLOW_COUNTER * interval_s else interval_s
