"""Kernel gap: time in which a kernel is resident and none computes, from the activity means of GPM.

Means are linear: over any stretch, kernel-busy less compute-busy is exposed transfer and exposed waiting together (the
identity behind every profiler's "exposed communication"), however fine their grain. SM activity gives compute-busy: it
is near 1 while compute kernels run, and small while a communication kernel spins alone. Called by the routes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from exporter.signals import levels
from exporter.signals.overlap import counted, mean, or_zero

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

SPINNING = 0.14  # SM activity of a communication kernel that runs alone
_RESIDENT = 0.02  # kernel-busy below: the ratio of activity says nothing
_PLATEAU, _NEAR, _ALIKE = 0.012, 0.03, 0.93  # activity of pure compute: upper quantiles agree, beside no traffic, or high
_USUAL = 0.96  # SM activity of compute where no tile shows it alone
_CALM = 0.08
_SHARP, _BRISK = 0.0015, 0.85  # upper quantiles so near to each other: bursts in the tiles would set them further apart
_PLAIN_ERROR, _USUAL_ERROR = 0.01, 0.035


class Activity(NamedTuple):
    """SM activity while a compute kernel runs, and how far it may be off. [...]"""

    ratio: Array
    error: Array


def compute_activity(kernel_busy: Array, sm_activity: Array, presence: Array) -> Activity:
    """SM activity of compute: the plateau of activity per kernel time, if tiles of pure compute exist; else a usual value.

    A job whose tiles all hold the same mixture has a plateau as well: it counts only if tiles without traffic show it, if it
    is so high that little can be mixed in, or high and so sharp that no bursts are. kernel_busy, sm_activity, presence of
    traffic [..., q]; [...]. O(q log q).

    >>> a = np.array
    >>> compute_activity(np.ones(50), a([0.9] * 30 + [0.2] * 20), a([0.0] * 30 + [1.0] * 20)).ratio.round(3).tolist()
    0.9
    >>> compute_activity(np.ones(50), a([0.6] * 50), a([0.5] * 50)).ratio.tolist()
    0.96
    >>> compute_activity(np.ones(50), a([0.9] * 50), a([1.0] * 50)).ratio.round(3).tolist()
    0.9
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(kernel_busy > _RESIDENT, sm_activity / kernel_busy, np.nan)
        upper, top = levels.quantiles(ratio, (0.8, 0.95))
        calm = counted((presence < _CALM) & (ratio > top[..., None] - _NEAR))
        count = counted(~np.isnan(ratio))
        shown = (calm >= np.maximum(5.0, 0.02 * count)) | (top >= _ALIKE) | ((top - upper <= _SHARP) & (top >= _BRISK))
        plain = (top - upper <= _PLATEAU) & shown
    return Activity(np.where(plain, (upper + top) / 2, np.fmax(_USUAL, top)), np.where(plain, _PLAIN_ERROR, _USUAL_ERROR))


def gap(kernel_busy: Array, sm_activity: Array, compute: Array) -> Array:
    """Share of each tile with a kernel and no compute, 0 to kernel_busy. compute [...] is SM activity of compute.

    S = compute * C + SPINNING * (B - C), solved for B - C. kernel_busy, sm_activity [..., q]; NaN stays NaN. O(q).

    >>> gap(np.array([1.0, 1.0, 0.5]), np.array([0.94, 0.54, 0.47]), np.array(0.94)).round(2).tolist()
    [0.0, 0.5, 0.0]
    """
    scale = compute[..., None]
    return np.clip((scale * kernel_busy - sm_activity) / np.maximum(scale - SPINNING, 1e-6), 0.0, kernel_busy)


def exposed_share(lack: Array, tau: Array, share: Array) -> Array:
    """Share of communication that is exposed, 0 to 1: as much of traffic as fits into the gap of its tile, and of all.

    Exact at any grain if every gap is a transfer: then gap and exposed traffic are the same thing. lack, tau [..., q],
    share [...] duty of traffic. O(q).

    >>> float(exposed_share(np.array([0.5, 0.0]), np.array([0.4, 0.4]), np.array(0.4)))
    0.5
    """
    moved = or_zero(mean(tau))
    fits = or_zero(mean(np.minimum(lack, tau))) / np.maximum(moved, 1e-9)
    return np.minimum(np.minimum(fits, or_zero(mean(lack)) / np.maximum(share, 1e-9)), 1.0)
