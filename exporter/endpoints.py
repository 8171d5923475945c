"""The HTTP endpoints: one class per path, one row of ROUTES each. `server` runs them.

Everything is answered from memory: the newest exposition, the history, and the files of the page.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Mapping
from pathlib import Path

from tornado.iostream import StreamClosedError

from exporter.answer import Endpoint, RefusalError
from exporter.api import find_gpu, snapshot_json, texts_json, waveform_json
from exporter.collector import negotiate
from exporter.flight import LONGEST_S as LONGEST_TRACE_S
from exporter.flight import cut, encode, name_of
from exporter.loopback import Release, Resume
from exporter.model import Device, Snapshot
from exporter.scope import LONGEST_S as LONGEST_SCOPE_S
from exporter.scope import scope_json
from exporter.stream import WAITING, Client, to_json

_DEFAULT_WAVEFORM_S = 30.0
_LONGEST_WAVEFORM_S = 600.0
_MOST_STREAMS = 64
_STREAM_BUFFER_BYTES = 128 * 1024
_MOST_DOWNLOADS = 2


class Metrics(Endpoint):
    """/metrics: text or OpenMetrics, plain or gzip, as asked for."""

    def get(self) -> None:
        content_type = negotiate(self.request.headers.get("Accept", ""))
        gzipped = _takes_gzip(self.request.headers.get("Accept-Encoding", ""))
        self.set_header("Vary", "Accept, Accept-Encoding")
        if gzipped:
            self.set_header("Content-Encoding", "gzip")
        self.answer(content_type, self.exposition().body(content_type, gzipped))


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether gzip is named and not refused by q=0.

    >>> _takes_gzip("deflate, gzip;q=0.5"), _takes_gzip("gzip;q=0"), _takes_gzip("")
    (True, False, False)
    """
    for part in accept_encoding.lower().replace(" ", "").split(","):
        name, _, quality = part.partition(";q=")
        if name == "gzip":
            return quality.strip("0.") != "" or quality == ""
    return False


class Healthy(Endpoint):
    """/-/healthy: the process answers; no device matters."""

    def get(self) -> None:
        self.say("overlap-exporter is healthy.")


class Ready(Endpoint):
    """/-/ready: every source that is present has given a sample and one analysis has run."""

    def get(self) -> None:
        if (reason := self.context.state.not_ready()) is not None:
            self.set_status(503)
            self.say(f"not ready: {reason}")
        else:
            self.say("overlap-exporter is ready.")


class SnapshotEndpoint(Endpoint):
    """/api/v1/snapshot: all that is known now."""

    def get(self) -> None:
        self.answer_json(snapshot_json(self.exposition().snapshot))


class Asked(Endpoint):
    """What the questions about one GPU, or about the last seconds, have in common."""

    def gpu(self, snapshot: Snapshot) -> Device:
        wanted = self.get_query_argument("gpu", "")
        if not wanted:
            raise RefusalError(400, "gpu is missing: expected an index, an id or a UUID")
        if (gpu := find_gpu(snapshot.inventory, wanted)) is None:
            raise RefusalError(404, f"gpu: {wanted[:64]!r} is not here: expected an index, an id or a UUID of this node")
        return gpu

    def seconds(self, usual_s: float, longest_s: float) -> float:
        given = self.get_query_argument("seconds", str(usual_s))
        try:
            seconds = float(given)
        except ValueError:
            seconds = 0.0
        if not 1.0 <= seconds <= longest_s:
            expected = f"expected a number from 1 to {longest_s:g}"
            raise RefusalError(400, f"seconds: {given[:64]!r} is not allowed: {expected}")
        return seconds


class Waveform(Asked):
    """/api/v1/waveform: power and traffic of one GPU over the last seconds."""

    def get(self) -> None:
        snapshot: Snapshot = self.exposition().snapshot
        gpu, seconds = self.gpu(snapshot), self.seconds(_DEFAULT_WAVEFORM_S, _LONGEST_WAVEFORM_S)
        self.answer_json(waveform_json(self.context.state.history, snapshot.inventory, gpu, snapshot.t_s, seconds))


class Scope(Asked):
    """/api/v1/scope: the last seconds of one GPU at full rate, with phases, scatter and folded step."""

    async def get(self) -> None:
        snapshot: Snapshot = self.exposition().snapshot
        gpu, seconds = self.gpu(snapshot), self.seconds(_DEFAULT_WAVEFORM_S, LONGEST_SCOPE_S)
        history = self.context.state.history
        body = await asyncio.to_thread(lambda: to_json(scope_json(history, snapshot, gpu, seconds)))
        self.answer("application/json; charset=utf-8", body)


class TrendEndpoint(Asked):
    """/api/v1/trend: the verdicts of the last hour on one GPU."""

    def get(self) -> None:
        self.answer_json(self.context.state.trend.json(self.gpu(self.exposition().snapshot).id))


class Trace(Asked):
    """/api/v1/trace: the flight recorder, the last seconds of all that was read, as a trace file."""

    async def get(self) -> None:
        snapshot: Snapshot = self.exposition().snapshot
        seconds = self.seconds(LONGEST_TRACE_S, LONGEST_TRACE_S)
        context = self.context
        if context.downloads >= _MOST_DOWNLOADS:
            raise RefusalError(503, f"{_MOST_DOWNLOADS} traces are being sent already, try again in a while", Retry_After="10")
        self.set_header("Content-Type", "application/gzip")
        self.set_header("Content-Disposition", f'attachment; filename="{name_of(snapshot.inventory, snapshot.t_s)}"')
        if self.request.method == "HEAD":
            return
        context.downloads += 1
        try:
            pieces = encode(cut(context.state.history, seconds, snapshot.t_s))
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                if piece:
                    self.write(piece)
                    await self.taken()
        except (StreamClosedError, asyncio.TimeoutError):
            context.connections.abort(self._stream())
        finally:
            context.downloads -= 1


class EventStream(Asked):
    """/api/v1/stream: the snapshot of each second as server-sent events; with gpu= the readings of that GPU as well."""

    async def get(self) -> None:
        stream = self.context.stream
        if stream.clients >= _MOST_STREAMS:
            raise RefusalError(503, f"{_MOST_STREAMS} streams are open already, no more are served")
        client = Client(self.gpu(self.exposition().snapshot).id if self.get_query_argument("gpu", "") else None)
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("X-Accel-Buffering", "no")
        if (line := getattr(self._stream(), "socket", None)) is not None:
            # So that a client that has stopped reading shows soon, in place of megabytes that the kernel keeps for it.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _STREAM_BUFFER_BYTES)
        stream.join(client)
        try:
            event = stream.news(client) or WAITING
            while not stream.closing:
                self.write(event)
                await self.taken()
                event = await stream.next(client)
        except (StreamClosedError, asyncio.TimeoutError):
            self.context.connections.abort(self._stream())
        finally:
            stream.leave(client)

    def head(self, *_: str) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")


class Page(Endpoint):
    """/ and the files of the live page, read into memory once."""

    def get(self, name: str = "") -> None:
        if (file := PAGE_FILES.get(name or "index.html")) is None:
            raise RefusalError(404, "no such page")
        content_type, body, etag = file
        self.set_header("Cache-Control", "no-cache")
        self.set_header("Etag", etag)
        if self.request.headers.get("If-None-Match") == etag:
            self.set_status(304)
            self.finish()
        else:
            self.answer(content_type, body)


_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json; charset=utf-8",
}


def _page_files(directory: Path) -> Mapping[str, tuple[str, bytes, str]]:
    """Name -> (content type, body, tag) of every file of the page, and the words for findings and advice beside them."""
    files = [*directory.iterdir(), *(directory / "vendor").iterdir()]
    bodies = {p.relative_to(directory).as_posix(): p.read_bytes() for p in sorted(files) if p.suffix in _CONTENT_TYPES}
    bodies["words.json"] = to_json(texts_json())
    return {
        name: (_CONTENT_TYPES[Path(name).suffix], body, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
        for name, body in bodies.items()
    }


PAGE_FILES = _page_files(Path(__file__).parent / "page")


class NotFound(Endpoint):
    """Every other path."""

    def get(self) -> None:
        raise RefusalError(404, "no such path; there are /metrics, /-/healthy, /-/ready, /api/v1/snapshot and /")


ROUTES: tuple[tuple[str, type[Endpoint]], ...] = (
    (r"/metrics", Metrics),
    (r"/-/healthy", Healthy),
    (r"/-/ready", Ready),
    (r"/-/release", Release),
    (r"/-/resume", Resume),
    (r"/api/v1/snapshot", SnapshotEndpoint),
    (r"/api/v1/waveform", Waveform),
    (r"/api/v1/scope", Scope),
    (r"/api/v1/trend", TrendEndpoint),
    (r"/api/v1/trace", Trace),
    (r"/api/v1/stream", EventStream),
    (r"/", Page),
    (r"/page/((?:vendor/)?[A-Za-z0-9_.-]+)", Page),
)
