"""The HTTP server: its own thread and event loop, its sockets, its bounds. `app` starts and stops it.

Answers come from memory by way of `endpoints`; a client can neither touch a device nor hold up sampling or analysis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from concurrent.futures import Future
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.web import Application

from exporter.answer import Context, State
from exporter.connections import Connections
from exporter.endpoints import ROUTES, NotFound
from exporter.listening import ServerError, listen, parse_address
from exporter.web_config import WebConfigError, WebConfigFile

__all__ = ["Server", "ServerError", "State", "parse_address"]

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 128
_FIRST_HEAD_S = 10.0  # from connecting to a whole request head, TLS included
_IDLE_S = 120.0  # between the requests of one connection: longer than any usual scrape interval
_LARGEST_HEAD_BYTES = 16 * 1024
_LARGEST_BODY_BYTES = 4 * 1024  # nothing here takes a body
_BODY_S = 5.0
_POLL_S = 0.1  # how often the page moves
_REFRESH_S = 1.0
_GOODBYE_S = 0.5  # for open streams to end, and then for connections to close


class _BoundedServer(HTTPServer):
    """Tornado's server, with every connection admitted by Connections and a deadline for its first request head."""

    connections: Connections

    def handle_stream(self, stream: Any, address: Any) -> None:
        peer = address[0] if isinstance(address, tuple) else ""
        if self.connections.admit(stream, peer):
            asyncio.get_running_loop().call_later(_FIRST_HEAD_S, self.connections.drop_if_silent, stream)
            super().handle_stream(stream, address)

    def on_close(self, server_conn: Any) -> None:
        self.connections.forget(server_conn.stream)
        super().on_close(server_conn)


class Server:
    """Serves one State until stopped. Nothing is opened before `start`."""

    def __init__(self, listen_address: str, web_config_path: str | None, state: State) -> None:
        self._listen_address = listen_address
        self._web_config_path = web_config_path
        self._state = state
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._tls = False
        self._bound: tuple[str, int] = ("", 0)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are really listened on; the host is empty for all addresses."""
        return self._bound

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        host, port = self._bound
        shown = f"[{host}]" if ":" in host else host or "localhost"
        return f"{'https' if self._tls else 'http'}://{shown}:{port}/"

    def start(self) -> None:
        """Listen and serve; ServerError where the port or the web configuration does not allow it."""
        try:
            web_config = WebConfigFile(self._web_config_path)
        except WebConfigError as error:
            raise ServerError(str(error)) from None
        self._tls = web_config.current.tls is not None
        host, port = parse_address(self._listen_address)
        sockets = listen(host, port)
        self._bound = (host, sockets[0].getsockname()[1])
        serving: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(sockets, web_config, serving), name="http", daemon=True)
        self._thread.start()
        serving.result()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Close the sockets, end the streams, and return when the thread has ended, or after timeout_s."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("the HTTP server did not end within %g s", timeout_s)

    def _run(self, sockets: list[socket.socket], web_config: WebConfigFile, serving: Future[None]) -> None:
        try:
            asyncio.run(self._serve(sockets, web_config, serving))
        except Exception as error:
            if serving.done():
                log.exception("the HTTP server ended")
            else:
                serving.set_exception(error)

    async def _serve(self, sockets: list[socket.socket], web_config: WebConfigFile, serving: Future[None]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connections = Connections(_MOST_CONNECTIONS)
        context = Context(self._state, web_config, connections)
        handed = {"context": context}
        application = Application(
            [(path, endpoint, handed) for path, endpoint in ROUTES],
            default_handler_class=NotFound, default_handler_args=handed, log_function=_log_failure, context=context,
        )
        server = _BoundedServer(
            application, ssl_options=web_config.current.tls, idle_connection_timeout=_IDLE_S, body_timeout=_BODY_S,
            max_header_size=_LARGEST_HEAD_BYTES, max_body_size=_LARGEST_BODY_BYTES, max_buffer_size=1024 * 1024,
        )
        server.connections = connections
        server.add_sockets(sockets)
        serving.set_result(None)
        duties = [
            asyncio.ensure_future(context.stream.move(_POLL_S)),
            asyncio.ensure_future(_repeat(_REFRESH_S, lambda: _refresh(server, web_config))),
        ]
        await self._stop.wait()
        server.stop()
        context.stream.close()
        for duty in duties:
            duty.cancel()
        context.credentials.close()
        end = self._loop.time() + _GOODBYE_S
        while context.stream.clients and self._loop.time() < end:
            await asyncio.sleep(0.01)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.close_all_connections(), _GOODBYE_S)


async def _repeat(period_s: float, duty: Any) -> None:
    while True:
        await asyncio.sleep(period_s)
        duty()


def _refresh(server: HTTPServer, web_config: WebConfigFile) -> None:
    """New connections get the new certificate; those that are open keep theirs."""
    if web_config.refresh():
        server.ssl_options = web_config.current.tls


def _log_failure(handler: Any) -> None:
    """Only what is our fault: a scrape each second is not news."""
    if handler.get_status() == 500:
        log.error("%s %s failed", handler.request.method, handler.request.path)
