"""What all answers of the HTTP server have in common: who may ask, the security headers, errors as one line of text.

`endpoints` has one subclass of Endpoint per path. Answers come from memory: nothing here touches a device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from tornado.web import HTTPError, RequestHandler

from exporter.collector import Exposition
from exporter.connections import Connections
from exporter.credentials import BusyError, Credentials
from exporter.history import History
from exporter.release import ReleaseSwitch
from exporter.stream import Stream, to_json
from exporter.trend import Trend
from exporter.web_config import WebConfigFile

SLOWEST_WRITE_S = 10.0  # from handing something to a client until it is taken

_HEADERS: Mapping[str, str] = {
    "Server": "overlap-exporter",
    "Cache-Control": "no-store",
    # Own files only, no inline script or style: nothing that a device or a pod is called can become code.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class State(Protocol):
    """What the server needs of the daemon. Read from the server's thread; every attribute is one immutable object."""

    @property
    def exposition(self) -> Exposition | None:
        """Of the newest snapshot; None before the first."""
        ...

    @property
    def history(self) -> History:
        """What waveforms and traces are cut from."""
        ...

    @property
    def trend(self) -> Trend:
        """The verdicts of the last hour."""
        ...

    @property
    def switch(self) -> ReleaseSwitch | None:
        """The release switch; None where nothing holds a device."""
        ...

    def not_ready(self) -> str | None:
        """Why the daemon is not ready yet; None once it is."""
        ...

    def looked_at(self) -> None:
        """Somebody looks at the live page just now."""
        ...


class Context:
    """What the endpoints of one server share."""

    def __init__(self, state: State, web_config: WebConfigFile, connections: Connections) -> None:
        self.state = state
        self.web_config = web_config
        self.connections = connections
        self.credentials = Credentials()
        self.stream = Stream(lambda: state.exposition, lambda: state.history, state.looked_at)
        self.downloads = 0


class RefusalError(HTTPError):
    """A request that is not answered, and the line that says why."""

    def __init__(self, status: int, line: str, **headers: str) -> None:
        super().__init__(status)
        self.line = line
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Endpoint(RequestHandler):
    """What all answers have in common: headers, authentication, errors as one line."""

    allow = "GET, HEAD"

    def initialize(self, context: Context) -> None:
        self.context = context

    def set_default_headers(self) -> None:
        for name, value in {**_HEADERS, **self.settings["context"].web_config.current.headers}.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        """Before any path is answered: who asks?"""
        self.context.connections.begin(self._stream())
        config = self.context.web_config.current
        if config.allowed_sans and not config.allowed_sans & _names(self.request.get_ssl_certificate()):
            raise RefusalError(403, "the client certificate names nobody of client_allowed_sans")
        if not config.users or self.request.path in config.open_paths:
            return
        try:
            allowed = await self.context.credentials.allow(config.users, self.request.headers.get("Authorization", ""))
        except BusyError:
            raise RefusalError(503, "too many passwords are being checked", Retry_After="1") from None
        if not allowed:
            realm = 'Basic realm="overlap-exporter", charset="UTF-8"'
            raise RefusalError(401, "user name and password needed", WWW_Authenticate=realm)

    def on_finish(self) -> None:
        self.context.connections.end(self._stream())

    def _stream(self) -> Any:
        return getattr(self.request.connection, "stream", None)

    def compute_etag(self) -> str | None:
        """None: answers change each second. The files of the page have one."""
        return None

    def write_error(self, status_code: int, **about: Any) -> None:
        """One line of text, in place of an HTML page."""
        error = about.get("exc_info", (None, None, None))[1]
        line = error.line if isinstance(error, RefusalError) else self._reason
        if status_code == 405:
            self.set_header("Allow", self.allow)
            line = f"only {self.allow.replace(', ', ' and ')} {'are' if ',' in self.allow else 'is'} answered here"
        for name, value in getattr(error, "headers", {}).items():
            self.set_header(name, value)
        self.say(line)

    def answer(self, content_type: str, body: bytes) -> None:
        """Send a whole body. Content-Length is set, and HEAD gets the headers alone."""
        self.set_header("Content-Type", content_type)
        self.finish(body)

    def say(self, line: str) -> None:
        self.answer("text/plain; charset=utf-8", f"{line}\n".encode())

    def answer_json(self, value: Any) -> None:
        self.answer("application/json; charset=utf-8", to_json(value))

    async def taken(self) -> None:
        """What was written is on its way; a client that does not take it within ten seconds is a TimeoutError."""
        sent = self.flush()
        if sent.done():
            sent.result()
        else:
            await asyncio.wait_for(asyncio.ensure_future(sent), SLOWEST_WRITE_S)

    def exposition(self) -> Exposition:
        """The newest exposition; 503 before the first."""
        if (exposition := self.context.state.exposition) is None:
            raise RefusalError(503, "nothing was read yet, try again in a second")
        return exposition

    def head(self, *args: str) -> Any:
        return getattr(self, "get")(*args)  # noqa: B009


def _names(certificate: Any) -> set[str]:
    """The subject alternative names of a verified client certificate."""
    return {name for _, name in (certificate or {}).get("subjectAltName", ())} if isinstance(certificate, dict) else set()
