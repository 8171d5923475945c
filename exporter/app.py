"""Wiring and life cycle of the commands that run: build the parts, run the daemon, end everything in order.

Called by `cli`, which hands in the Config; only here, in `cli` and in `doctor` the whole Config is seen.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from exporter import __version__, config, logs
from exporter.clock import SystemClock
from exporter.config import Config, ConfigError
from exporter.daemon import Daemon, Feed
from exporter.heap import keep_freed_memory
from exporter.incidents import Incidents
from exporter.live import LiveFeed
from exporter.model import Event, OneLineError
from exporter.playback import Playback
from exporter.release import ReleaseSwitch
from exporter.server import Server, ServerError
from exporter.session import Session
from exporter.trace import TraceWriter, read_trace

log = logging.getLogger(__name__)


class AppError(OneLineError):
    """A command cannot go on; the message is one line that says what to change."""


def demo(settings: Config, file: str | None, flags: Mapping[str, Any], speed: float, seed: int) -> None:
    """The daemon on a simulated node; tells a person at the terminal where to look."""
    from exporter.sources.simulator import demo_events

    logs.setup(settings.log_level, settings.log_format)
    clock = SystemClock()
    feed = Playback(lambda: demo_events(seed), clock, speed)
    log.warning("demo: everything shown is simulated; no device of this machine is read")
    url = _run(settings, file, flags, feed, "demo", clock, say=_DEMO)
    print(f"overlap-exporter demo ended after {feed.now_s() / speed:.0f} s; it was at {url}, see README.md for what comes next")


_DEMO = """
  A simulated 8-GPU node. Each minute or so its job changes:
  perfect_overlap, serialized, ddp_bucketed, gradient_accumulation, input_stall, idle

  page      {url}
  metrics   {url}metrics
  look at   the state of the GPUs, health, and how power and traffic take turns or not
  end       Ctrl-C
"""


def serve(settings: Config, file: str | None, flags: Mapping[str, Any]) -> None:
    """The daemon on this node."""
    logs.setup(settings.log_level, settings.log_format)
    clock = SystemClock()
    feed = LiveFeed(settings, clock, platform.node())
    _run(settings, file, flags, feed, "serve", clock)


def record(settings: Config, path: str, seconds: float | None, force: bool) -> None:
    """Sample this node into a trace until the time is up or a signal comes.

    The file comes into being with the first reading: where there is nothing to record, nothing is left behind or lost.
    """
    from exporter.recorder import record_feed

    logs.setup(settings.log_level, settings.log_format)
    if not force and Path(path).is_file():
        raise AppError(f"{path}: exists already and is not overwritten; --force does")
    clock = SystemClock()
    feed = LiveFeed(settings, clock, platform.node())
    try:
        record_feed(feed, lambda: TraceWriter(path, force=force), path, seconds, settings.require)
    finally:
        feed.stop()


def replay(settings: Config, file: str | None, flags: Mapping[str, Any], path: str, speed: float, loop: bool) -> None:
    """The daemon, fed from a trace."""
    logs.setup(settings.log_level, settings.log_format)
    reader = read_trace(path)

    def events() -> Iterator[Event]:
        yield from reader
        if reader.cut:
            log.warning("%s: %s", path, reader.cut)

    clock = SystemClock()
    log.info("what is shown was recorded: %s", path)
    _run(settings, file, flags, Playback(events, clock, speed, loop), "replay", clock)


def _run(
    settings: Config, file: str | None, flags: Mapping[str, Any], feed: Feed, mode: str, clock: SystemClock, say: str = ""
) -> str:
    """Serve a feed until told to stop; the address that it was at."""
    keep_freed_memory()
    session = Session(settings.analysis_windows_seconds, settings.analysis_verdict_window_seconds)
    switch = ReleaseSwitch(feed) if isinstance(feed, LiveFeed) else None
    directory = settings.recorder_directory
    incidents = None if directory is None else Incidents(directory, settings.recorder_quota_bytes, session.history)
    reload = _reloader(settings, file, flags, feed)
    daemon = Daemon(feed, session, mode, clock, os.getpid(), reload, settings.require, switch, incidents)
    daemon.handle_signals()
    server = Server(settings.web_listen_address, settings.web_config_file, daemon)
    try:
        server.start()
    except ServerError as error:
        feed.stop()
        raise AppError(str(error)) from None
    log.info("overlap-exporter %s (%s) is at %s, metrics at %smetrics", __version__, mode, server.url, server.url)
    if say:
        print(say.format(url=server.url), flush=True)
    try:
        daemon.run()
    finally:
        server.stop()
        if incidents is not None:
            incidents.stop()
        feed.stop()
    return server.url


def _reloader(settings: Config, file: str | None, flags: Mapping[str, Any], feed: Feed) -> Callable[[], bool]:
    """What SIGHUP does: read the file again; a bad one keeps the old settings and says why."""
    in_force = [settings]

    def reload() -> bool:
        if file is None:
            log.info("SIGHUP: no --config.file was given, nothing to reload")
            return True
        try:
            new = config.load(file, flags)
        except ConfigError as error:
            log.error("the settings stay as they are: %s", error)
            return False
        old, in_force[0] = in_force[0], new
        logs.setup(new.log_level, new.log_format)
        reconfigure = getattr(feed, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(new)
        late = [name for name in _NEEDS_RESTART if getattr(old, name) != getattr(new, name)]
        log.info("%s was reloaded%s", file, f"; after a restart: {', '.join(late)}" if late else "")
        return True

    return reload


# Settings that are bound when the daemon starts.
_NEEDS_RESTART = (
    "web_listen_address", "web_config_file", "analysis_windows_seconds", "analysis_verdict_window_seconds", "nvml_library",
    "pods_socket", "pods_interval_seconds", "jobs_directory", "jobs_scheduler", "jobs_interval_seconds",
    "recorder_directory", "recorder_quota_bytes",
)
