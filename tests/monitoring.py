"""Real servers of the Prometheus family on loopback, for tests: Prometheus, Alertmanager, and a webhook that listens."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.end_to_end.processes import eventually
from tests.tools import require


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """A running Prometheus and its query API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str | float) -> Any:
        data = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}{path}", data, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found = self.ask("/api/v1/query", query=expression)
        return [{"metric": {}, "value": found["result"]}] if found["resultType"] == "scalar" else found["result"]

    def range(self, expression: str, seconds: float, step_s: float = 1.0) -> list[dict[str, Any]]:
        now_s = time.time()
        return list(self.ask("/api/v1/query_range", query=expression, start=now_s - seconds, end=now_s, step=step_s)["result"])


@contextmanager
def _running(command: Sequence[str], log: Path, url: str) -> Iterator[None]:
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)

    def up() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        eventually(up, 20, f"{command[0]} is ready")
        yield
    finally:
        end(server)


def end(server: subprocess.Popen[bytes]) -> None:
    """A server that is not ours may take its time to end on a busy machine: that is nothing to fail for."""
    server.terminate()
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def prometheus(folder: Path, targets: Iterable[tuple[str, str]], *, rules: Mapping[str, str] | None = None,
               alertmanager: str | None = None, every: str = "500ms") -> Iterator[Prometheus]:  # fmt: skip
    """Prometheus that scrapes `targets` (instance, host:port[/path]) and evaluates `rules` (file name -> text)."""
    for name, text in (rules or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    scrapes = []
    for name, at in targets:
        address, _, path = at.partition("/")
        scrapes.append({"targets": [address], "labels": {"instance": name, "__metrics_path__": f"/{path or 'metrics'}"}})
    config: dict[str, Any] = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": "1s"},
        "rule_files": sorted(rules or ()),
        "scrape_configs": [{"job_name": "overlap-exporter", "static_configs": scrapes}],
    }
    if alertmanager:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.removeprefix("http://")]}]}]}
    with prometheus_of(folder, json.dumps(config)) as server:  # JSON is YAML
        yield server


@contextmanager
def prometheus_of(folder: Path, config: str) -> Iterator[Prometheus]:
    """Prometheus with this configuration."""
    url = f"http://127.0.0.1:{free_port()}"
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    command = [require("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
               f"--web.listen-address={url.removeprefix('http://')}"]  # fmt: skip
    with _running(command, folder / "prometheus.log", url):
        yield Prometheus(url)


@contextmanager
def alertmanager(folder: Path, config: str) -> Iterator[str]:
    """A running Alertmanager; gives its address."""
    url = f"http://127.0.0.1:{free_port()}"
    file = folder / "alertmanager.yml"
    file.write_text(config, encoding="utf-8")
    command = [require("prometheus-alertmanager"), f"--config.file={file}", f"--storage.path={folder / 'alertmanager'}",
               f"--web.listen-address={url.removeprefix('http://')}", "--cluster.listen-address="]  # fmt: skip
    with _running(command, folder / "alertmanager.log", url):
        yield url


@dataclass
class Webhook:
    """What was delivered: (receiver, alert as Alertmanager sends it), in order."""

    url: str
    delivered: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def heard(self, receiver: str, status: str, **labels: str) -> dict[str, Any] | None:
        """The last delivery to a receiver with this status and these labels."""
        found = [a for r, a in self.delivered
                 if r == receiver and a["status"] == status and labels.items() <= a["labels"].items()]  # fmt: skip
        return found[-1] if found else None


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A server on loopback that takes what Alertmanager posts; the first part of the path names the receiver."""
    hook = Webhook("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            receiver = self.path.strip("/")
            hook.delivered.extend((receiver, alert) for alert in body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
