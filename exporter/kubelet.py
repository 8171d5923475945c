"""One unary gRPC call over a unix socket, by h2: what asking the kubelet takes, and no more.

`pods.py` calls it. grpcio would do the same for 28 MiB of memory and seven threads; this costs 5 MiB and none (figures in
docs/deploy.md). Every wait has a limit, and an answer has one too. Nothing is kept between calls: a kubelet that was
restarted listens on a new socket of the same name.

Protocol: gRPC over HTTP/2 (grpc/grpc, doc/PROTOCOL-HTTP2.md): a message is five bytes of head (compressed or not, length)
and its body; the status stands in the trailers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import H2Error

from exporter.model import SourceError

LARGEST_ANSWER_BYTES = 64 << 20  # kubelet itself allows 16 MiB
_HEAD_BYTES = 5
_READ_BYTES = 1 << 16
_OK = 0
# gRPC status -> reason, where it says more than "other".
_STATUS_REASONS = {4: "timeout", 7: "permission_denied", 12: "protocol", 14: "connection"}


def call(path: str, method: str, request: bytes, mono_s: Callable[[], float], timeout_s: float) -> bytes:
    """The answer of `method` ("/v1.PodResourcesLister/List") to a message; SourceError with missing, permission_denied,
    timeout, connection, protocol or other. Returns or raises within timeout_s."""
    until_s = mono_s() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(timeout_s)
            stream.connect(path)
            return _exchange(stream, method, request, mono_s, until_s)
    except TimeoutError:
        raise SourceError("timeout", f"{path}: no answer within {timeout_s:g} s") from None
    except FileNotFoundError:
        raise SourceError("missing", f"{path}: no such socket") from None
    except PermissionError:
        raise SourceError("permission_denied", f"{path}: may not be opened by this user") from None
    except OSError as error:
        raise SourceError("connection", f"{path}: {error.strerror or error}") from None
    except H2Error as error:
        raise SourceError("protocol", f"{path}: {error}") from None


class _Answer:
    """What has come so far of one response."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.headers: dict[str, str] = {}
        self.ended = False

    def take(self, event: Event) -> None:
        if isinstance(event, (ResponseReceived, TrailersReceived)):
            self.headers.update(_texts(event.headers or ()))
        elif isinstance(event, DataReceived):
            self.body += event.data or b""
            if len(self.body) > LARGEST_ANSWER_BYTES:
                raise SourceError("protocol", f"an answer of more than {LARGEST_ANSWER_BYTES >> 20} MiB")
        elif isinstance(event, (StreamReset, ConnectionTerminated)):
            raise SourceError("connection", f"the call was ended with HTTP/2 error {event.error_code}")
        elif isinstance(event, StreamEnded):
            self.ended = True

    def message(self) -> bytes:
        """The one message of a good response."""
        status = self.headers.get("grpc-status", "")
        if self.headers.get(":status") != "200" or not status.isdecimal():
            raise SourceError("protocol", f"not a gRPC answer: HTTP status {self.headers.get(':status')}")
        if int(status) != _OK:
            reason = _STATUS_REASONS.get(int(status), "other")
            raise SourceError(reason, f"gRPC status {status} {self.headers.get('grpc-message', '')}".rstrip())
        compressed, length = bool(self.body[:1] != b"\0"), int.from_bytes(self.body[1:_HEAD_BYTES], "big")
        if compressed or length != len(self.body) - _HEAD_BYTES:
            raise SourceError("protocol", f"a message of {len(self.body)} bytes that is not one whole plain message")
        return bytes(self.body[_HEAD_BYTES:])


def _texts(headers: Iterable[tuple[str | bytes, str | bytes]]) -> Iterable[tuple[str, str]]:
    for name, value in headers:
        yield (name if isinstance(name, str) else name.decode("latin-1"),
               value if isinstance(value, str) else value.decode("latin-1"))  # fmt: skip


def _exchange(stream: socket.socket, method: str, request: bytes, mono_s: Callable[[], float], until_s: float) -> bytes:
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=False))
    connection.initiate_connection()
    stream_id = connection.get_next_available_stream_id()
    connection.send_headers(stream_id, [
        (":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"),
        ("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "overlap-exporter"),
    ])  # fmt: skip
    connection.send_data(stream_id, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
    answer = _Answer()
    while not answer.ended:
        if pending := connection.data_to_send():
            stream.sendall(pending)
        left_s = until_s - mono_s()
        if left_s <= 0:  # a peer that sends a byte now and then must not hold us
            raise TimeoutError
        stream.settimeout(left_s)
        data = stream.recv(_READ_BYTES)
        if not data:
            raise SourceError("connection", "the connection was closed before the answer was whole")
        for event in connection.receive_data(data):
            if isinstance(event, DataReceived) and event.flow_controlled_length:
                connection.acknowledge_received_data(event.flow_controlled_length, stream_id)
            answer.take(event)
    return answer.message()
