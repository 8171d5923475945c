"""The HTTP endpoints: one class per path, one row of ROUTES each. `server` runs them.

Everything is answered from memory: the newest exposition, the history, and the files of the page.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path

from tornado.iostream import StreamClosedError

from exporter.answer import Endpoint, RefusalError
from exporter.api import find_gpu, snapshot_json, texts_json, waveform_json
from exporter.collector import negotiate
from exporter.loopback import Release, Resume
from exporter.model import Snapshot
from exporter.stream import WAITING, to_json

_DEFAULT_WAVEFORM_S = 30.0
_LONGEST_WAVEFORM_S = 600.0
_MOST_STREAMS = 32
_SLOWEST_WRITE_S = 10.0


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


class Waveform(Endpoint):
    """/api/v1/waveform: power and traffic of one GPU over the last seconds."""

    def get(self) -> None:
        snapshot: Snapshot = self.exposition().snapshot
        wanted = self.get_query_argument("gpu", "")
        seconds = self._seconds()
        if not wanted:
            raise RefusalError(400, "gpu is missing: expected an index, an id or a UUID")
        if (gpu := find_gpu(snapshot.inventory, wanted)) is None:
            raise RefusalError(404, f"gpu: {wanted[:64]!r} is not here: expected an index, an id or a UUID of this node")
        self.answer_json(waveform_json(self.context.state.history, snapshot.inventory, gpu, snapshot.t_s, seconds))

    def _seconds(self) -> float:
        given = self.get_query_argument("seconds", str(_DEFAULT_WAVEFORM_S))
        try:
            seconds = float(given)
        except ValueError:
            seconds = 0.0
        if not 1.0 <= seconds <= _LONGEST_WAVEFORM_S:
            expected = f"expected a number from 1 to {_LONGEST_WAVEFORM_S:g}"
            raise RefusalError(400, f"seconds: {given[:64]!r} is not allowed: {expected}")
        return seconds


class EventStream(Endpoint):
    """/api/v1/stream: the snapshot of each second as server-sent events."""

    async def get(self) -> None:
        stream = self.context.stream
        if stream.clients >= _MOST_STREAMS:
            raise RefusalError(503, f"{_MOST_STREAMS} streams are open already, no more are served")
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("X-Accel-Buffering", "no")
        stream.clients += 1
        try:
            sent = stream.newest()
            event: bytes | None = sent
            while not stream.closing:
                self.write(event or WAITING)
                # A client that does not take one event within this time is let go.
                await asyncio.wait_for(asyncio.ensure_future(self.flush()), _SLOWEST_WRITE_S)
                sent = event or sent
                event = await stream.next(sent)
        except (StreamClosedError, asyncio.TimeoutError):
            self.context.connections.abort(self._stream())
        finally:
            stream.clients -= 1

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
    bodies = {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.suffix in _CONTENT_TYPES}
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
    (r"/api/v1/stream", EventStream),
    (r"/", Page),
    (r"/page/([a-z0-9_.-]+)", Page),
)
