"""The flight recorder: the last minutes of what was read, out of the memory of the session, as a trace.

`endpoints` sends it, `incidents` writes it to a file. What was read is cut out under the history's lock as views, in
microseconds; making lines of it takes seconds for a large node, in pieces that the caller places in a thread of its own.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from math import floor

import numpy as np
from numpy.typing import NDArray

from exporter.history import Cut, History
from exporter.model import Inventory, Record
from exporter.trace import TraceWriter

LONGEST_S = 600.0
_LINES = 1000  # per piece: some ten milliseconds of work


def cut(history: History, seconds: float, now_s: float) -> Cut:
    """The last seconds; begins at a whole second, so that the trace is judged at the instants at which the daemon judged."""
    return history.cut(max(0.0, floor(now_s - min(seconds, LONGEST_S))), now_s)


def encode(part: Cut) -> Iterator[bytes]:
    """The gzip of a trace in pieces, some of them empty. Its time begins with the cut, on the daemon's own clock."""
    buffer = io.BytesIO()
    writer = TraceWriter(buffer)

    def taken() -> bytes:
        data = buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        return data

    inventories = [(since_s, _moved(inventory, part.start_s)) for since_s, inventory in part.inventories]
    writer.write(inventories.pop(0)[1])
    for number, (k, row, t_s) in enumerate(_in_order(part), 1):
        while inventories and t_s > inventories[0][0]:
            writer.write(inventories.pop(0)[1])
        source, _, values = part.readings[k]
        writer.write(Record(source.name, t_s - part.start_s, values[:, row].tolist()))
        if number % _LINES == 0:
            yield taken()
    for _, inventory in inventories:
        writer.write(inventory)
    writer.close()
    yield taken()


def _moved(inventory: Inventory, start_s: float) -> Inventory:
    return replace(inventory, started_unix_s=inventory.started_unix_s + start_s)


def _in_order(part: Cut) -> Iterator[tuple[int, int, float]]:
    """Every reading by its time: number of the source, row of the reading, time. A stretch of seconds in memory at once."""
    at = part.start_s
    while at < part.end_s:
        until = min(at + 5.0, part.end_s)
        spans = [t.searchsorted((at, until), side="right").tolist() for _, t, _ in part.readings]
        times: list[NDArray[np.float64]] = [t[i:j] for (_, t, _), (i, j) in zip(part.readings, spans, strict=True)]
        sources = np.repeat(np.arange(len(spans)), [j - i for i, j in spans])
        rows = np.concatenate([np.arange(i, j) for i, j in spans]) if spans else np.empty(0, dtype=np.intp)
        all_times = np.concatenate(times) if times else np.empty(0)
        order = np.argsort(all_times, kind="stable")
        yield from zip(sources[order].tolist(), rows[order].tolist(), all_times[order].tolist(), strict=True)
        at = until


def name_of(inventory: Inventory, at_s: float, what: str = "") -> str:
    """A file name that says whose trace it is and of when, with nothing in it that a shell or a path would mind.

    >>> name_of(Inventory("node-1", 1767225600.0), 61.0, "gpu_lost")
    'overlap-node-1-20260101T000101Z-gpu_lost.jsonl.gz'
    """
    when = np.datetime64(int(inventory.started_unix_s + at_s), "s").item().strftime("%Y%m%dT%H%M%SZ")
    host = "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "-" for c in inventory.host)[:64].strip(".-") or "node"
    return "-".join(part for part in ("overlap", host, when, what) if part) + ".jsonl.gz"
