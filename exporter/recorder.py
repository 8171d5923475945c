"""`record`: the feed of this node into a trace file, with progress on a terminal. Called by `app`.

Whatever ends it (a signal, a full disk, the time that was asked for), what was written before stays readable.
"""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from exporter.daemon import LONGEST_START_S, Feed, check_required
from exporter.history import History
from exporter.model import Inventory, OneLineError, Record
from exporter.trace import TraceWriter

log = logging.getLogger(__name__)


def record_feed(feed: Feed, writer: TraceWriter, path: str, seconds: float | None, require: tuple[str, ...]) -> None:
    """Write events until `seconds` have passed or SIGINT or SIGTERM comes; says at the end what is in the file."""
    stop: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    history = History(horizon_s=1.0)  # for what is there, and why the rest is not
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("recording"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[readings]} readings"), console=console
    )
    readings, until_s, checked = 0, seconds, False
    with writer, progress if console.is_terminal else nullcontext():
        task = progress.add_task("record", total=seconds, readings=0)
        while not stop and (until_s is None or feed.now_s() < until_s):
            for event in feed.poll(feed.now_s() + 0.25 if until_s is None else min(until_s, feed.now_s() + 0.25)):
                history.apply(event)
                writer.write(event)
                readings += isinstance(event, Record)
                if isinstance(event, Inventory) and seconds is not None and until_s == seconds:
                    until_s = feed.now_s() + seconds  # the time asked for begins with the first reading
            if not checked and (feed.starting() is None or feed.now_s() > LONGEST_START_S):
                checked = True
                _check(history, require)
            progress.update(task, completed=None if seconds is None else max(0.0, feed.now_s() - (until_s or 0.0) + seconds),
                            readings=readings)
    _report(path, history.inventory, readings, feed.now_s())


def _check(history: History, require: tuple[str, ...]) -> None:
    check_required(require, history)
    for health in history.health():
        if not health.up:
            log.warning("%s is not available: %s", health.source, health.reason)
    if not history.inventory.sources:
        raise OneLineError("there is nothing to record here: neither a GPU nor a network device can be read")


def _report(path: str, inventory: Inventory, readings: int, seconds: float) -> None:
    kinds = (("gpu", "GPUs"), ("rdma_port", "RDMA ports"), ("nic", "NICs"))
    found = ", ".join(f"{len(inventory.of_kind(kind))} {name}" for kind, name in kinds)
    size = Path(path).stat().st_size if Path(path).is_file() else 0
    sys.stderr.write(f"{path}: {readings} readings of {found} in {seconds:.0f} s, {size / 1e3:.0f} kB\n")
