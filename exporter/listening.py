"""Opens the sockets that the HTTP server listens on, and says plainly why it cannot. Only `server` calls it."""

from __future__ import annotations

import contextlib
import errno
import socket

_BACKLOG = 128
# An address of a family that is switched off on this machine: the other family goes on.
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ServerError(Exception):
    """The server cannot start; the message says what to change."""


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of a listen address; an empty host means all addresses.

    >>> parse_address(":9777"), parse_address("[::1]:9777"), parse_address("localhost:0")
    (('', 9777), ('::1', 9777), ('localhost', 0))
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host and not bracketed):
        raise ServerError(f"--web.listen-address: {text!r} is not allowed: expected :9777, host:port or [::1]:9777")
    return host[1:-1] if bracketed else host, int(port)


def listen(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of the host, or for all addresses of both families where it is empty.

    Port 0 takes a free one, the same for all. ServerError says what stands in the way; no socket is left open then.
    """
    with contextlib.ExitStack() as opened:
        lines: list[socket.socket] = []
        skipped: OSError | None = None
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, (name, _, *scope) in sorted({(f, address) for f, _, _, _, address in found}):
                at = lines[0].getsockname()[1] if lines else port
                try:
                    lines.append(opened.enter_context(_listening(family, (name, at, *scope))))
                except OSError as error:
                    if error.errno not in _NO_SUCH_FAMILY:
                        raise
                    skipped = error
            if not lines and skipped is not None:
                raise skipped
        except OSError as error:
            raise ServerError(_why_not(error, host, port)) from None
        opened.pop_all()
        return lines


def _listening(family: int, address: tuple[str | int, ...]) -> socket.socket:
    line = socket.socket(family, socket.SOCK_STREAM)
    try:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            line.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        line.setblocking(False)
        line.bind(address)
        line.listen(_BACKLOG)
    except OSError:
        line.close()
        raise
    return line


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken: stop what uses it, or choose another with --web.listen-address"
    if error.errno == errno.EACCES:
        return f"port {port} may not be opened by this user: choose one above 1023 with --web.listen-address"
    return f"cannot listen on {host or 'all addresses'}, port {port}: {error.strerror or error}"
