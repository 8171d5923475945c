"""Questions to one channel that judges of raw readings ask: how much did it count, what does it say now.

Called by transport and diagnosis. Never fills a gap: without an answer there is None, never 0.
"""

from __future__ import annotations

import numpy as np

from exporter.model import Series


def increase(series: Series, channel: str, start_s: float, end_s: float) -> tuple[float, float] | None:
    """How much a counter counted between its first and last reading in the interval, and the seconds between the two.

    A decrease is a reset (driver reload, cleared counters) or a wrap: what was counted across it is not known and left
    out. None with fewer than two readings. O(n).

    >>> class One:
    ...     def series(self, channel, start_s, end_s):
    ...         return np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 14.0, 1.0, 3.0])
    >>> increase(One(), "mlx5_0/1/transmit_bytes_total", 0.0, 4.0)
    (6.0, 3.0)
    """
    t, value = series.series(channel, start_s, end_s)
    if len(t) > 1 and (value[1:] >= value[:-1]).all():
        return float(value[-1] - value[0]), float(t[-1] - t[0])
    known = ~np.isnan(value)
    t, value = t[known], value[known]
    if len(t) < 2:
        return None
    steps = value[1:] - value[:-1]
    return float(steps[steps > 0].sum()), float(t[-1] - t[0])


def latest(series: Series, channel: str, t_s: float, age_s: float) -> float | None:
    """The newest value of a channel that is at most age_s old; None where there is none.

    >>> class One:
    ...     def series(self, channel, start_s, end_s):
    ...         return np.array([1.0, 2.0]), np.array([5.0, float("nan")])
    >>> latest(One(), "mlx5_0/1/up_ratio", 2.0, 10.0)
    5.0
    """
    _, value = series.series(channel, t_s - age_s, t_s)
    for newest in value[::-1]:
        if newest == newest:
            return float(newest)
    return None
