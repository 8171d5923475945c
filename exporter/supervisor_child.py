"""One reader process as the exporter sees it: its pipes, its page of announcements, its end.

`supervisor_reader.py` decides what becomes of it; nothing here decides anything or waits for a device.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from exporter import announcements
from exporter.announcements import Announcements, Touch
from exporter.model import Device, Inventory, Quarantine, Record, SourceStatus
from exporter.wire import Decoder

_PIPE_BYTES = 1 << 20  # a minute of a large node, should the exporter be held up
_READ_BYTES = 1 << 18

ReaderEvent = Record | Inventory | SourceStatus | Quarantine


class Child:
    """A reader process; `start_child` makes one."""

    def __init__(
        self, process: subprocess.Popen[bytes], fd: int, page: Announcements, decoder: Decoder, started_mono_s: float
    ) -> None:
        self.fd = fd  # what it writes its frames to, the reading end; -1 once closed
        self.started_mono_s = started_mono_s
        self.quarantined: dict[tuple[str, str], str] = {}  # by the reader itself
        self.has_spoken = False  # whether its first inventory has come
        self.asked_to_end_s: float | None = None
        self.exit_code: int | None = None
        self.cpu_s = 0.0
        self.broken = False  # wrote frames that make no sense
        self._process = process
        self._page = page
        self._decoder = decoder

    @property
    def pid(self) -> int:
        """Process id, also after the end."""
        return self._process.pid

    @property
    def extra(self) -> Mapping[str, Any]:
        """Plain values that the reader sent with its inventory."""
        return self._decoder.extra

    def read(self) -> list[ReaderEvent]:
        """What has come through the pipe; never blocks."""
        events: list[ReaderEvent] = []
        while self.fd >= 0:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._close_frames()
                break
            try:
                events.extend(self._decoder.feed(data))
            except (ValueError, KeyError, TypeError):
                self.broken = True
                self._close_frames()
        return events

    def touched(self) -> list[Touch]:
        """What is being touched now and is not given up by the reader itself; after the end: what was."""
        return [touch for touch in self._page.touched() if not touch.given_up]

    def heartbeat_mono_s(self) -> float:
        """When the reader last said that it is alive; its start before that."""
        return max(self.started_mono_s, self._page.heartbeat_mono_s())

    def tell_skip(self, device_ids: Iterable[str]) -> None:
        """Have the reader leave these devices alone, and no others."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with suppress(OSError):  # it has just ended
                stdin.write(json.dumps({"skip": sorted(device_ids)}).encode() + b"\n")

    def ask_to_end(self, now_mono_s: float) -> None:
        """Close its standard input: it ends as soon as it touches no device."""
        if self.asked_to_end_s is None:
            self.asked_to_end_s = now_mono_s
            if self._process.stdin is not None:
                self._process.stdin.close()

    def abandon(self, now_mono_s: float) -> None:
        """Never listen to it again. It is not killed: that has frozen machines while a process was in the driver."""
        self.ask_to_end(now_mono_s)
        self._close_frames()

    def kill(self) -> None:
        """End a reader that touches nothing and does not answer."""
        if self.exit_code is None:
            os.kill(self._process.pid, signal.SIGKILL)

    def reap(self) -> bool:
        """Whether the process has ended; takes its exit code and its CPU time."""
        if self.exit_code is None:
            try:
                pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else waited for it
                self.exit_code = self._process.returncode = 0
                return True
            if pid == 0:
                return False
            self.exit_code = self._process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = usage.ru_utime + usage.ru_stime
        return True

    def close(self) -> None:
        """Give back what belongs to an ended reader."""
        self._close_frames()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._page.close()

    def _close_frames(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def start_child(name: str, settings: Mapping[str, Any], decoder: Decoder, now_mono_s: float) -> Child:
    """Start a reader. By the main thread only: the kernel ends the reader when the thread that started it ends."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a reader is started by the main thread, which lives as long as the exporter")
    page, page_fd = announcements.create()
    fd, frames_fd = os.pipe()
    os.set_blocking(fd, False)
    with suppress(OSError):  # more than an unprivileged process may have
        fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), _PIPE_BYTES)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "exporter.reader", name, json.dumps(settings), "--frames-fd", str(frames_fd),
             "--page-fd", str(page_fd), "--parent", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(frames_fd, page_fd), start_new_session=True, bufsize=0,
        )  # fmt: skip
    finally:
        os.close(frames_fd)
        os.close(page_fd)
    return Child(process, fd, page, decoder, now_mono_s)


def keep_skipped(inventory: Inventory, before: Inventory | None, skip: Mapping[str, str]) -> Inventory:
    """An inventory, and the devices that the reader was told to leave alone (id -> kind): they are still there.

    A GPU that hung before anything of it was known is there too, without a UUID.
    """
    if not skip:
        return inventory
    known = () if before is None else before.devices
    here = {d.id: d for d in inventory.devices}
    merged = {d.id: d for d in known if d.id in skip or d.id.split("/")[0] in skip} | here
    for device_id in [i for i, kind in skip.items() if kind == "gpu" and i not in merged]:
        index = device_id.rpartition("-")[2]
        merged[device_id] = Device("gpu", device_id, index=int(index) if index.isdigit() else None, uuid="")
    order = dict.fromkeys([*(d.id for d in known), *merged])
    return replace(inventory, devices=tuple(merged[i] for i in order if i in merged))
