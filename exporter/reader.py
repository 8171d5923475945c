"""The child process that touches devices.

    python -m exporter.reader gpu|net SETTINGS [--frames-fd N] [--page-fd N] [--parent PID]

Started by `supervisor.py`. SETTINGS is JSON (sources.GpuSettings or NetSettings); frames (wire.py) go to the descriptor
given, else to standard output; standard input carries commands, a JSON object a line: {"skip": [device ids]}. The end of
standard input is the end of the process, as soon as no device is being touched. It loads neither numpy nor the web stack:
a device that takes the process with it costs little, and a replacement starts in a tenth of a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from exporter import announcements
from exporter.announcements import Announcements
from exporter.clock import Clock, SystemClock
from exporter.reader_outlet import Outlet
from exporter.reader_rounds import Opener, Rounds, Settings
from exporter.sources import GpuSettings, NetSettings, settings_from_json

_PR_SET_PDEATHSIG = 1
_WATCH_S = 0.1  # where threads may have to be left behind
_BEAT_S = 0.25  # elsewhere only a sign of life is needed
_PATIENCE_S = 2.0  # for the rounds to end once they touch nothing; a thread that is stuck in a file is not waited for
_STDIN = 0
EXIT_USAGE = 2


def _gpu() -> Opener:
    from exporter.sources.nvml import close_gpu, open_gpu

    return Opener("nvml", "gpu", open_gpu, close_gpu, rediscover_s=3600.0, independent=False)


def _net() -> Opener:
    from exporter.sources.net import open_net

    return Opener("rdma", "rdma_port", open_net, None, rediscover_s=30.0, independent=True)


READERS: dict[str, tuple[type[GpuSettings] | type[NetSettings], Callable[[], Opener]]] = {
    "gpu": (GpuSettings, _gpu),
    "net": (NetSettings, _net),
}


def die_with(parent_pid: int) -> None:
    """Have the kernel end this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).

    A parent that was gone before this call sends no signal any more: then we are somebody else's child already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


class Process:
    """One reader from start to end."""

    def __init__(self, opener: Opener, settings: Settings, frames_fd: int, page: Announcements, clock: Clock) -> None:
        self._page = page
        self._clock = clock
        self._independent = opener.independent
        outlet = Outlet(frames_fd, self._end)
        self._rounds = Rounds(opener, settings, outlet=outlet, page=page, clock=clock, leave=os._exit)
        self._commands = b""

    def _end(self) -> None:
        self._rounds.crew.ending = True

    def run(self) -> NoReturn:
        """Watch over the rounds until the exporter closes the pipe; never returns."""
        crew = self._rounds.crew
        crew.start()
        while not crew.ending:
            self._page.beat(self._clock.mono_s())
            readable, _, _ = select.select([_STDIN], [], [], _WATCH_S if self._independent else _BEAT_S)
            if readable and not self._obey():
                crew.ending = True
            crew.watch(self._clock.mono_s())
        self._wait()
        os._exit(0)  # no interpreter shutdown: threads may be stuck in devices

    def _wait(self) -> None:
        """Until the rounds are over. A thread inside the driver is waited for without end: ending it there can wedge a GPU."""
        until_s = self._clock.mono_s() + _PATIENCE_S
        while not self._rounds.crew.join(_WATCH_S):
            self._page.beat(self._clock.mono_s())
            touching = not self._independent and any(self._page.touched())
            if not touching and self._clock.mono_s() > until_s:
                return

    def _obey(self) -> bool:
        """Take commands; False at the end of the pipe."""
        data = os.read(_STDIN, 65536)
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            self._rounds.set_skip(frozenset(command["skip"]))
        return bool(data)


def main(arguments: Sequence[str]) -> NoReturn:
    """Parse the command line and run."""
    kind, text, *options = arguments
    numbers = {name: int(value) for name, value in zip(options[::2], options[1::2], strict=True)}
    if "--parent" in numbers:
        die_with(numbers["--parent"])
    # The exporter alone decides when a reader ends: a signal to the whole group must not hit a thread inside the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    settings_type, opener = READERS[kind]
    page = Announcements(numbers["--page-fd"]) if "--page-fd" in numbers else announcements.create()[0]
    settings = settings_from_json(settings_type, text)  # type: ignore[type-var]
    Process(opener(), settings, numbers.get("--frames-fd", 1), page, SystemClock()).run()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in READERS:
        sys.stderr.write("usage: python -m exporter.reader gpu|net SETTINGS [--frames-fd N] [--page-fd N] [--parent PID]\n")
        raise SystemExit(EXIT_USAGE)
    main(sys.argv[1:])
