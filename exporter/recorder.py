"""`record`: the feed of this node into a trace file, with progress on a terminal. Called by `app`.

Whatever ends it (a signal, a full disk, the time that was asked for), what was written before stays readable. SIGUSR1 lets go
of the GPU devices and takes them up again, as with `serve`: the trace goes on without their lines, and is `no_data` there.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from exporter.daemon import LONGEST_START_S, check_required
from exporter.history import History
from exporter.live import LiveFeed
from exporter.model import Event, Inventory, OneLineError, Record
from exporter.release import ReleaseSwitch
from exporter.trace import TraceWriter

log = logging.getLogger(__name__)

_LOOK_S = 0.25  # how soon a signal is noticed


def record_feed(
    feed: LiveFeed, create: Callable[[], TraceWriter], path: str, seconds: float | None, require: tuple[str, ...]
) -> None:
    """Write events until `seconds` have passed or SIGINT or SIGTERM comes; says at the end what is in the file.

    The time begins with the first inventory, and so does the file.
    """
    stop: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    switch = ReleaseSwitch(feed)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGUSR1, lambda number, frame: switch.toggle())
    history = History(horizon_s=1.0)  # for what is there, and why the rest is not
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("recording"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[readings]} readings"),
        console=console,
    )  # fmt: skip
    writer: TraceWriter | None = None
    events: list[Event] = []
    readings, began_s = 0, 0.0
    with ExitStack() as stack:
        if console.is_terminal:
            stack.enter_context(progress)
        task = progress.add_task("record", total=seconds, readings=0)
        while not stop and (writer is None or seconds is None or feed.now_s() < began_s + seconds):
            switch.step()
            until_s = feed.now_s() + _LOOK_S
            news = feed.poll(until_s if writer is None or seconds is None else min(until_s, began_s + seconds))
            for event in news:
                history.apply(event)
            events += news
            if writer is None and (feed.starting() is None or feed.now_s() > LONGEST_START_S):
                _check(history, require)
                writer, began_s = stack.enter_context(create()), feed.now_s()
            if writer is not None:
                for event in events:
                    writer.write(event)
                    readings += isinstance(event, Record)
                events.clear()
                progress.update(task, completed=feed.now_s() - began_s, readings=readings)
    if writer is None:
        raise OneLineError(f"stopped before anything was read: {path} was not written")
    _report(path, history.inventory, readings, feed.now_s() - began_s)


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
