"""Starts the real commands for the end-to-end tests, and looks at their processes from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.tools import require

EXPORTER = (sys.executable, "-m", "exporter")


def eventually(what: Callable[[], Any], within_s: float, why: str = "") -> Any:
    """The first true answer of `what`; fails, with the last answer, when there is none in time."""
    until = time.monotonic() + within_s
    while True:
        answer = what()
        if answer:
            return answer
        assert time.monotonic() < until, f"not within {within_s} s: {why or what} (last answer {answer!r})"
        time.sleep(0.05)


Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(status: int, body: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of a scrape that was answered."""
    assert status == 200, body
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(body.decode())
        for s in family.samples
    }


class Daemon:
    """A running daemon: its process, its log, its HTTP address."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log_file = log
        self.url = ""

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    def wait_for_address(self, within_s: float = 15.0) -> None:
        def found() -> str | None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.log()}"
            line = next((line for line in self.log().splitlines() if " is at http" in line), None)
            return line and line.split(" is at ")[1].split(",")[0].rstrip("/")

        self.url = eventually(found, within_s, "the daemon says its address")

    def get(self, path: str, timeout_s: float = 5.0, **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample of a scrape by name and labels."""
        return parsed(*self.get("/metrics"))

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample that has these labels (and maybe more); None where there is none."""
        wanted = frozenset(labels.items())
        found = [v for (n, have), v in self.metrics().items() if n == name and wanted <= have]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None

    def ready(self, within_s: float = 15.0) -> None:
        eventually(lambda: self.get("/-/ready")[0] == 200, within_s, "the daemon is ready")

    def readers(self) -> dict[str, psutil.Process]:
        """The reader processes that are listened to, by role."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                words = child.cmdline()
            except psutil.Error:
                continue  # it has just ended
            if "exporter.reader" in words:
                found[words[words.index("exporter.reader") + 1]] = child
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(10)


def without_rights() -> list[str]:
    """Words before a command for which a closed file is to be closed: for root, who may read any file, without that right."""
    if os.geteuid() != 0:
        return []
    return [require("setpriv"), "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]


@contextmanager
def daemon(folder: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None,
           command: str = "serve", before: Sequence[str] = ()) -> Iterator[Daemon]:  # fmt: skip
    """The real daemon on a free port of loopback; ended, with all its children, when the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{command}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*before, *EXPORTER, command, "--web.listen-address", "127.0.0.1:0", *arguments],
            stdout=out, stderr=out, env={**os.environ, **(environment or {})},
        )  # fmt: skip
    running = Daemon(process, log)
    try:
        running.wait_for_address()
        yield running
    finally:
        family = [process.pid, *(c.pid for c in children(process.pid))]
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        for pid in family[1:]:
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
