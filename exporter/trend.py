"""The last hour of every GPU, a verdict each five seconds: what the page draws as a trend.

The daemon adds after every evaluation, the server's thread reads. Nothing here judges: verdicts are kept as they came,
those of GPUs that have gone until the hour is over. Some 150 kB for eight GPUs.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Sequence
from typing import Any

from exporter.model import STATES, OverlapAnalysis

EVERY_S = 5
KEPT_S = 3600
_FIELDS = ("health", "exposed", "correlation")
_NONE = float("nan")


class Trend:
    """Verdicts of one window by GPU id, oldest first."""

    def __init__(self, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._kept_at = -math.inf
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[array[float], ...]] = {}  # t_s, one per field, number of the state

    def add(self, at_s: float, analyses: Sequence[OverlapAnalysis]) -> None:
        """Take in the verdicts of a whole second; one in five seconds is kept."""
        if at_s // EVERY_S == self._kept_at // EVERY_S:
            return
        self._kept_at = at_s
        with self._lock:
            for analysis in analyses:
                if analysis.window_s == self._window_s:
                    self._append(analysis, at_s)
            for gpu_id in [g for g, (t, *_) in self._rows.items() if at_s - t[-1] > KEPT_S]:
                del self._rows[gpu_id]

    def _append(self, analysis: OverlapAnalysis, at_s: float) -> None:
        rows = self._rows.setdefault(analysis.gpu_id, tuple(array("d" if k == 0 else "f") for k in range(len(_FIELDS) + 2)))
        fields = (getattr(analysis, name) for name in _FIELDS)
        row = (at_s, *(_NONE if v is None else v for v in fields), STATES.index(analysis.state))
        for column, value in zip(rows, row, strict=True):
            column.append(value)
            if len(column) > KEPT_S // EVERY_S:
                del column[0]

    def json(self, gpu_id: str) -> dict[str, Any]:
        """Columns t_s, health, exposed, correlation and state of one GPU; None where there was no answer."""
        with self._lock:
            t_s, *fields, states = (column.tolist() for column in self._rows.get(gpu_id, (array("d"),) * (len(_FIELDS) + 2)))
        columns = {name: [None if v != v else round(v, 3) for v in of] for name, of in zip(_FIELDS, fields, strict=True)}
        return {"gpu": gpu_id, "every_s": EVERY_S, "t_s": t_s, **columns, "state": [STATES[int(s)] for s in states]}
