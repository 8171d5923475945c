"""Incidents: the flight recorder is written to a directory when a finding starts, so that the moment of failure is kept.

The daemon notes every evaluation; a thread of its own writes. The files together stay below a quota: the oldest go first.
A directory that cannot be written is said once and costs nothing else. Without a directory nothing is ever written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from exporter.flight import LONGEST_S, cut, encode, name_of
from exporter.history import History
from exporter.model import Finding

log = logging.getLogger(__name__)

AFTERMATH_S = 20.0  # of what follows the start of a finding is kept, too
APART_S = 120.0  # two files never begin closer together: findings that start within this time share one
_SUFFIX = ".jsonl.gz"
_STOP_S = 2.0


class Incidents:
    """Writes at most one file at a time. Used from the daemon's thread; `stop` waits a moment for a file that is begun."""

    def __init__(self, directory: str | Path, quota_bytes: float, history: History) -> None:
        self._directory = Path(directory)
        self._quota_bytes = quota_bytes
        self._history = history
        self._known: frozenset[tuple[str, str | None]] = frozenset()
        self._due: tuple[float, str] | None = None
        self._last_s = -APART_S
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._complaint: str | None = None

    def note(self, at_s: float, findings: Sequence[Finding]) -> None:
        """The findings of an evaluation: one that was not there before asks for a file a little later."""
        now = frozenset((f.finding, f.gpu_id) for f in findings)
        started = sorted(name for name, gpu in now - self._known)
        self._known = now
        if started and self._due is None:
            self._due = (max(at_s + AFTERMATH_S, self._last_s + APART_S), started[0])
        if self._due is not None and at_s >= self._due[0] and not (self._thread and self._thread.is_alive()):
            (_, what), self._due, self._last_s = self._due, None, at_s
            self._thread = threading.Thread(target=self._write, args=(at_s, what), name="incident", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """No more files; one that is being written is given up after a moment."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _write(self, at_s: float, what: str) -> None:
        part = cut(self._history, LONGEST_S, at_s)
        target = self._directory / name_of(part.inventories[-1][1], at_s, what)
        begun = target.with_name(target.name + ".part")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            size = 0
            with begun.open("wb") as file:
                for piece in encode(part):
                    if self._ending.is_set():
                        break
                    size += file.write(piece)
                    if size > self._quota_bytes:
                        break
            if self._ending.is_set() or size > self._quota_bytes:
                begun.unlink()
                if size > self._quota_bytes:
                    self._complain(f"recorder.quota_bytes: {self._quota_bytes:.0f} is less than one file takes")
                return
            begun.replace(target)
            removed = make_room(self._directory, self._quota_bytes)
        except OSError as error:
            self._complain(f"recorder.directory: {self._directory} cannot be written: {error.strerror or error}")
            return
        self._complaint = None
        log.info("%s began: the last %.0f s are kept in %s%s", what, part.end_s - part.start_s, target,
                 f", {removed} older files were removed" if removed else "")

    def _complain(self, line: str) -> None:
        if line != self._complaint:
            self._complaint = line
            log.warning("%s", line)


def make_room(directory: Path, quota_bytes: float) -> int:
    """Remove the oldest recordings, and what was never finished, until the rest fits; how many of them went."""
    for left in directory.glob(f"overlap-*{_SUFFIX}.part"):
        left.unlink(missing_ok=True)
    files = sorted((p.stat().st_mtime, p.stat().st_size, p) for p in directory.glob(f"overlap-*{_SUFFIX}") if p.is_file())
    total, removed = sum(size for _, size, _ in files), 0
    for _, size, path in files[:-1]:
        if total <= quota_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
        removed += 1
    return removed
