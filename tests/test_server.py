from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import bcrypt
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from exporter import answer, endpoints, server, stream, watches
from exporter.collector import OPENMETRICS_TYPE, TEXT_TYPE, Exposition
from exporter.history import History
from exporter.model import Device, Record, Snapshot
from exporter.server import Server, ServerError, parse_address
from exporter.trace import read_trace
from exporter.trend import Trend
from tests import snapshots
from tests.test_web_config import certificate


class Daemon:
    """A State as the daemon gives it, moved by hand."""

    def __init__(self, snapshot: Snapshot | None = None, history: History | None = None) -> None:
        self.exposition = None if snapshot is None else Exposition.render(snapshot)
        self.history = history or History()
        self.reason: str | None = None
        self.trend = Trend(60.0)
        self.looks = 0

    def looked_at(self) -> None:
        self.looks += 1

    def not_ready(self) -> str | None:
        return self.reason

    def show(self, snapshot: Snapshot) -> None:
        self.exposition = Exposition.render(snapshot)


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers on free ports of loopback and stops them at the end."""
    running: list[Server] = []

    def start(state: Daemon, web_config: str | None = None, listen: str = "127.0.0.1:0") -> Server:
        made = Server(listen, web_config, state)
        made.start()
        running.append(made)
        return made

    yield start
    for made in running:
        made.stop(5.0)


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def text(self) -> str:
        return self.body.decode()


def get(at: Server, path: str, method: str = "GET", **headers: str) -> Answer:
    host, port = at.address
    with closing(http.client.HTTPConnection(host or "127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        return Answer(connection.getresponse())


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def full() -> Iterator[Server]:
    """A server over the full node, for the tests that only read."""
    made = Server("127.0.0.1:0", None, Daemon(snapshots.snapshot(), snapshots.history()))
    made.start()
    yield made
    made.stop(5.0)


# --- /metrics ---


def test_metrics_are_text_unless_openmetrics_is_asked_for(full: Server) -> None:
    text = get(full, "/metrics")
    assert (text.status, text.headers["Content-Type"]) == (200, TEXT_TYPE)
    assert text.body.startswith(b"# HELP overlap_health_ratio")
    openmetrics = get(full, "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert openmetrics.headers["Content-Type"] == OPENMETRICS_TYPE
    assert any(f.name == "overlap_state" for f in parse_openmetrics(openmetrics.text))


def test_metrics_are_compressed_for_who_takes_gzip(full: Server) -> None:
    plain, packed = get(full, "/metrics"), get(full, "/metrics", Accept_Encoding="gzip")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 5
    assert plain.headers["Content-Encoding"] is None
    assert {"Accept", "Accept-Encoding"} == set(plain.headers["Vary"].split(", "))


def test_head_gives_the_headers_of_get_without_a_body(full: Server) -> None:
    head, answer = get(full, "/metrics", "HEAD"), get(full, "/metrics")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(answer.body))


def test_a_scrape_sees_the_newest_snapshot(serve: Serve) -> None:
    daemon = Daemon(snapshots.snapshot())
    at = serve(daemon)
    daemon.show(replace(snapshots.snapshot(), mode="demo"))
    assert 'mode="demo"' in get(at, "/metrics").text


def test_before_the_first_snapshot_metrics_are_refused_and_the_process_is_healthy(serve: Serve) -> None:
    daemon = Daemon()
    daemon.reason = "nvml/GPU-0 has not been read yet"
    at = serve(daemon)
    assert get(at, "/metrics").status == 503
    assert get(at, "/-/healthy").status == 200
    ready = get(at, "/-/ready")
    assert (ready.status, ready.text) == (503, "not ready: nvml/GPU-0 has not been read yet\n")
    daemon.reason = None
    assert get(at, "/-/ready").status == 200


# --- API ---


def test_the_snapshot_is_json(full: Server) -> None:
    answer = get(full, "/api/v1/snapshot")
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert [gpu["index"] for gpu in json.loads(answer.body)["gpus"]] == list(range(8))


@pytest.mark.parametrize("gpu", ["2", "GPU-2", "GPU-5f2ac1de-0002-4a11-9c3e-0123456789ab"])
def test_a_waveform_is_given_by_index_id_and_uuid(gpu: str, full: Server) -> None:
    wave = json.loads(get(full, f"/api/v1/waveform?gpu={gpu}&seconds=10").body)
    assert (wave["gpu"], len(wave["power"]["watts"]), len(wave["traffic"]["rdma"])) == ("GPU-2", 200, 200)


@pytest.mark.parametrize(("query", "status", "line"), [
    ("", 400, "gpu is missing: expected an index, an id or a UUID"),
    ("?gpu=8", 404, "gpu: '8' is not here: expected an index, an id or a UUID of this node"),
    ("?gpu=1&seconds=soon", 400, "seconds: 'soon' is not allowed: expected a number from 1 to 600"),
    ("?gpu=1&seconds=1e9", 400, "seconds: '1e9' is not allowed: expected a number from 1 to 600"),
    ("?gpu=1&seconds=nan", 400, "seconds: 'nan' is not allowed: expected a number from 1 to 600"),
    ("?gpu=%3Cscript%3E", 404, "gpu: '<script>' is not here: expected an index, an id or a UUID of this node"),
    ("?gpu=%FF", 400, None),
])  # fmt: skip
def test_a_wrong_question_gets_one_line_that_says_what_is_expected(query: str, status: int, line: str, full: Server) -> None:
    answer = get(full, "/api/v1/waveform" + query)
    assert answer.status == status
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.text.count("\n") == 1
    assert line is None or answer.text == line + "\n"


def test_an_unknown_path_and_an_unknown_method_get_one_line(full: Server) -> None:
    missing = get(full, "/metricz")
    assert (missing.status, missing.text.count("\n")) == (404, 1)
    posted = get(full, "/metrics", "POST")
    assert (posted.status, posted.headers["Allow"]) == (405, "GET, HEAD")
    assert posted.text == "only GET and HEAD are answered here\n"


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/snapshot", "/nothing", "/page/main.js", "/-/healthy"])
def test_every_answer_carries_the_security_headers(path: str, full: Server) -> None:
    headers = get(full, path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Server"] == "overlap-exporter"


def test_the_files_of_the_page_are_served_and_nothing_else(full: Server) -> None:
    page = get(full, "/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert get(full, "/page/main.js").headers["Content-Type"] == "text/javascript; charset=utf-8"
    for path in ("/page/", "/page/../server.py", "/page/%2e%2e/server.py", "/page/server.py", "/page//etc/passwd"):
        assert get(full, path).status == 404
    tag = page.headers["Etag"]
    assert get(full, "/", If_None_Match=tag).status == 304


# --- the event stream ---


def events(at: Server) -> tuple[socket.socket, Iterator[dict[str, object]]]:
    """An open event stream and its events as they come."""
    line = socket.create_connection(at.address, 10)
    line.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")

    def read() -> Iterator[dict[str, object]]:
        for row in line.makefile("rb"):
            if row.startswith(b"data: "):
                yield json.loads(row[6:])

    return line, read()


def test_nothing_moves_the_page_while_nobody_looks_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_HEARTBEAT_S", 0.05)
    daemon = Daemon(snapshots.snapshot())
    at = serve(daemon)
    for _ in range(2):  # and again after everybody has gone
        while daemon.looks:
            daemon.looks = 0
            time.sleep(0.4)
        line, news = events(at)
        with closing(line):
            next(news)
            while daemon.looks < 3:
                time.sleep(0.05)
        del news  # the file that it reads holds the connection open


def test_the_stream_gives_every_snapshot_as_it_comes(serve: Serve) -> None:
    daemon = Daemon(snapshots.snapshot())
    line, news = events(serve(daemon))
    with closing(line):
        assert next(news)["t_s"] == 400.0
        for t_s in (401.0, 402.0, 403.0):
            daemon.show(replace(snapshots.snapshot(), t_s=t_s))
            assert next(news)["t_s"] == t_s


def test_a_snapshot_is_sent_once_however_long_the_next_one_takes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_HEARTBEAT_S", 0.05)
    daemon = Daemon(snapshots.snapshot())
    with closing(socket.create_connection(serve(daemon).address, 10)) as line:
        line.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        got = b""
        while got.count(b": waiting") < 5:
            got += line.recv(65536)
        assert got.count(b"data: ") == 1


def test_a_stream_opened_before_the_first_snapshot_waits_for_it(serve: Serve) -> None:
    daemon = Daemon()
    line, news = events(serve(daemon))
    with closing(line):
        daemon.show(snapshots.snapshot())
        assert next(news)["host"] == "node-1"


def test_a_client_that_does_not_read_misses_snapshots_and_is_let_go(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "SLOWEST_WRITE_S", 0.5)
    daemon = Daemon(snapshots.snapshot())
    at = serve(daemon)
    with closing(socket.socket()) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(at.address)
        lazy.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        line, news = events(at)
        with closing(line):
            next(news)
            lazy.settimeout(0.0)
            big = tuple(replace(f, finding="x" * 100_000) for f in snapshots.mixed().findings)
            last = 400.0

            def closed() -> bool:
                nonlocal last
                last += 1.0
                daemon.show(replace(snapshots.snapshot(), t_s=last, findings=big))
                while next(news)["t_s"] != last:  # the client that reads keeps up all the while
                    pass
                return _reset(lazy)

            until(closed)
    assert get(at, "/-/healthy").status == 200


def _reset(line: socket.socket) -> bool:
    """Whether the other side has closed; what was sent before is left unread."""
    return line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0 or _state(line) != 1


def _state(line: socket.socket) -> int:
    """TCP state: 1 is ESTABLISHED (tcp(7), TCP_INFO)."""
    return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def test_streams_are_bounded_and_a_closed_one_makes_room(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_MOST_STREAMS", 2)
    daemon = Daemon(snapshots.snapshot())
    at = serve(daemon)
    first, news = events(at)
    second, more = events(at)
    next(news), next(more)
    assert get(at, "/api/v1/stream").status == 503
    first.shutdown(socket.SHUT_RDWR)
    first.close()

    def has_room() -> bool:
        daemon.show(snapshots.snapshot())
        line, _ = events(at)
        with closing(line):
            return b" 200 " in line.recv(64)

    until(has_room)
    second.close()


# --- clients that hang ---


def test_hanging_clients_never_shut_out_a_scrape_or_a_probe(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 20)
    at = serve(Daemon(snapshots.snapshot()))
    hanging = [socket.create_connection(at.address, 10) for _ in range(60)]
    for line in hanging[::2]:
        line.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    for _ in range(5):
        assert get(at, "/metrics").status == 200
        assert get(at, "/-/healthy").status == 200
    for line in hanging:
        line.close()


def test_a_request_head_that_is_never_finished_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_FIRST_HEAD_S", 0.3)
    at = serve(Daemon(snapshots.snapshot()))
    with closing(socket.create_connection(at.address, 10)) as line:
        line.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        assert line.recv(100) == b""


def test_a_connection_is_kept_between_scrapes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_FIRST_HEAD_S", 0.2)
    at = serve(Daemon(snapshots.snapshot()))
    with closing(http.client.HTTPConnection(*at.address, timeout=10)) as connection:
        for _ in range(3):
            connection.request("GET", "/-/healthy")
            line = connection.sock
            assert connection.getresponse().read()
            time.sleep(0.3)
            assert connection.sock is line


def test_heads_and_bodies_that_are_too_large_are_refused(serve: Serve) -> None:
    at = serve(Daemon(snapshots.snapshot()))
    with closing(socket.create_connection(at.address, 10)) as line:
        line.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n")
        assert b" 200 " not in line.recv(100)
    with closing(socket.create_connection(at.address, 10)) as line:
        line.sendall(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert b" 200 " not in line.recv(100)
    assert get(at, "/-/healthy").status == 200


def test_many_scrapes_at_once_are_all_answered(serve: Serve) -> None:
    at = serve(Daemon(snapshots.snapshot()))
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(get(at, "/metrics").status)) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 30


# --- starting and stopping ---


@pytest.mark.parametrize(("text", "parsed"), [
    (":9777", ("", 9777)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:9777", ("::1", 9777)), ("node-1:0", ("node-1", 0)),
])  # fmt: skip
def test_listen_addresses_are_understood(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "9777", "host", "host:", "host:http", "::1:9777", ":70000", ":-1", ":٣"])
def test_other_listen_addresses_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ServerError, match=r"--web\.listen-address: .* is not allowed: expected :9777, host:port or \[::1\]"):
        parse_address(text)


def test_an_empty_host_is_every_address_of_both_families(serve: Serve) -> None:
    at = serve(Daemon(snapshots.snapshot()), listen=":0")
    for host in ("127.0.0.1", "::1"):
        with closing(http.client.HTTPConnection(host, at.address[1], timeout=10)) as connection:
            connection.request("GET", "/-/healthy")
            assert connection.getresponse().status == 200


def test_an_ipv6_address_is_listened_on_and_its_url_is_bracketed(serve: Serve) -> None:
    at = serve(Daemon(snapshots.snapshot()), listen="[::1]:0")
    assert at.url == f"http://[::1]:{at.address[1]}/"
    assert get(at, "/-/healthy").status == 200


def test_a_port_in_use_is_a_clear_error(serve: Serve) -> None:
    port = serve(Daemon()).address[1]
    with pytest.raises(ServerError, match=rf"port {port} is taken: .* choose another with --web.listen-address"):
        serve(Daemon(), listen=f"127.0.0.1:{port}")


def test_an_address_of_another_machine_is_a_clear_error(serve: Serve) -> None:
    with pytest.raises(ServerError, match=r"cannot listen on 192\.0\.2\.1, port 0"):
        serve(Daemon(), listen="192.0.2.1:0")


def test_after_stop_the_port_is_free_and_open_streams_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    made = Server("127.0.0.1:0", None, Daemon(snapshots.snapshot()))
    before = threading.active_count()
    made.start()
    line, news = events(made)
    next(news)
    hanging = socket.create_connection(made.address, 10)
    made.stop(5.0)
    assert list(news) == []
    line.close()
    hanging.close()
    assert threading.active_count() == before
    assert caplog.records == []
    again = Server(f"127.0.0.1:{made.address[1]}", None, Daemon(snapshots.snapshot()))
    again.start()
    again.stop(5.0)


def test_stop_without_start_and_twice_does_nothing(serve: Serve) -> None:
    Server("127.0.0.1:0", None, Daemon()).stop()
    made = serve(Daemon())
    made.stop(5.0)
    made.stop(5.0)


# --- TLS and passwords ---


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    """A web configuration with one user, and the liveness probe free for all."""
    hashed = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(4)).decode()
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{prometheus: '{hashed}'}}\nauth_excluded_paths: [/-/healthy]\n"
                    "http_server_config: {headers: {X-Frame-Options: sameorigin}}\n")  # fmt: skip
    return path


def test_every_path_asks_for_the_password_but_those_excluded(serve: Serve, guarded: Path) -> None:
    at = serve(Daemon(snapshots.snapshot(), snapshots.history(1.0)), str(guarded))
    paths = ("/", "/metrics", "/-/ready", "/api/v1/snapshot", "/api/v1/waveform?gpu=0", "/api/v1/stream", "/page/main.js", "/x")
    for path in paths:
        refused = get(at, path)
        assert (refused.status, refused.headers["WWW-Authenticate"].split()[0]) == (401, "Basic")
    assert get(at, "/-/healthy").status == 200
    assert get(at, "/metrics", Authorization=basic("prometheus", "s3cret")).status == 200
    assert get(at, "/metrics", Authorization=basic("prometheus", "wrong")).status == 401


def test_headers_of_the_file_replace_the_usual_ones(serve: Serve, guarded: Path) -> None:
    assert get(serve(Daemon(), str(guarded)), "/-/healthy").headers.get_all("X-Frame-Options") == ["sameorigin"]


def test_a_changed_password_is_taken_without_a_restart(serve: Serve, guarded: Path) -> None:
    at = serve(Daemon(snapshots.snapshot()), str(guarded))
    assert get(at, "/metrics", Authorization=basic("prometheus", "s3cret")).status == 200
    guarded.write_text(f"basic_auth_users: {{prometheus: '{bcrypt.hashpw(b'new', bcrypt.gensalt(4)).decode()}'}}\n")
    until(lambda: get(at, "/metrics", Authorization=basic("prometheus", "new")).status == 200)
    assert get(at, "/metrics", Authorization=basic("prometheus", "s3cret")).status == 401


def test_a_bad_web_configuration_is_an_error_at_the_start(serve: Serve, guarded: Path) -> None:
    guarded.write_text("basic_auth_users: {me: plain}\n")
    with pytest.raises(ServerError, match="expected a bcrypt hash"):
        serve(Daemon(), str(guarded))


def ask_with_tls(at: Server, context: ssl.SSLContext) -> int:
    with closing(http.client.HTTPSConnection("localhost", at.address[1], context=context, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().status


def test_tls_is_spoken_and_a_renewed_certificate_is_taken(serve: Serve, tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")
    at = serve(Daemon(snapshots.snapshot()), str(tmp_path / "web.yml"))
    assert at.url.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "server.crt"))
    assert ask_with_tls(at, trusting) == 200
    with pytest.raises((http.client.HTTPException, OSError)):
        get(at, "/metrics")
    certificate(tmp_path, "server")
    renewed = ssl.create_default_context(cafile=str(tmp_path / "server.crt"))

    def taken() -> bool:
        try:
            return ask_with_tls(at, renewed) == 200
        except ssl.SSLError:
            return False

    until(taken)


def test_client_certificates_are_demanded_and_their_names_checked(serve: Serve, tmp_path: Path) -> None:
    for name, subject in (("server", "localhost"), ("friend", "friend.example"), ("stranger", "stranger.example")):
        certificate(tmp_path, name, subject)
    (tmp_path / "ca.crt").write_bytes((tmp_path / "friend.crt").read_bytes() + (tmp_path / "stranger.crt").read_bytes())
    (tmp_path / "web.yml").write_text(
        "tls_server_config: {cert_file: server.crt, key_file: server.key, client_auth_type: RequireAndVerifyClientCert,"
        " client_ca_file: ca.crt, client_allowed_sans: [friend.example]}\n")  # fmt: skip
    at = serve(Daemon(snapshots.snapshot()), str(tmp_path / "web.yml"))

    def context(name: str | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(tmp_path / "server.crt"))
        if name is not None:
            made.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        return made

    assert ask_with_tls(at, context("friend")) == 200
    assert ask_with_tls(at, context("stranger")) == 403
    with pytest.raises((ssl.SSLError, OSError)):
        ask_with_tls(at, context(None))


def test_a_client_that_never_finishes_the_tls_handshake_is_cut_off(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_FIRST_HEAD_S", 0.3)
    certificate(tmp_path, "server")
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")
    at = serve(Daemon(snapshots.snapshot()), str(tmp_path / "web.yml"))
    with closing(socket.create_connection(at.address, 10)) as line:
        assert line.recv(100) == b""


# --- the GPU that is looked at ---


def named_events(at: Server, query: str) -> tuple[socket.socket, Iterator[tuple[str, dict[str, object]]]]:
    """An open event stream, and its events with their names."""
    line = socket.create_connection(at.address, 10)
    line.sendall(f"GET /api/v1/stream{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    def read() -> Iterator[tuple[str, dict[str, object]]]:
        name = "message"
        for row in line.makefile("rb"):
            if row.startswith(b"event: "):
                name = row[7:].strip().decode()
            elif row.startswith(b"data: "):
                yield name, json.loads(row[6:])
                name = "message"

    return line, read()


def test_a_stream_with_a_gpu_brings_its_picture_and_its_readings_as_they_come(serve: Serve) -> None:
    daemon = Daemon(snapshots.snapshot(), snapshots.history(20.0))
    line, news = named_events(serve(daemon), "?gpu=2")
    with closing(line):
        name, snapshot = next(news)
        assert (name, len(snapshot["sparks"]["gpus"])) == ("message", 8)
        name, picture = next(news)
        assert (name, picture["gpu"], set(picture["readings"]["phases"]) >= {"c", "e"}) == ("picture", "GPU-2", True)
        values = list({**snapshots.GPU_VALUES, "power_watts": 123.4}.values())
        daemon.history.apply(Record("nvml/GPU-2", 400.1, values))
        name, live = next(news)
        assert (name, live["gpu"], live["power"]) == ("live", "GPU-2", {"t_s": [400.1], "watts": [123.4]})
        daemon.history.apply(Record("nvml/GPU-3", 400.2, values))  # nobody looks at it
        daemon.show(replace(snapshots.snapshot(), t_s=401.0))
        assert {next(news)[0], next(news)[0]} == {"message", "picture"}


def test_nothing_is_made_of_a_gpu_that_nobody_looks_at(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = watches.picture_json

    def counted(history: History, snapshot: Snapshot, gpu: Device) -> object:
        made.append(gpu.id)
        return real(history, snapshot, gpu)

    monkeypatch.setattr(watches, "picture_json", counted)
    daemon = Daemon(snapshots.snapshot(), snapshots.history(5.0))
    at = serve(daemon)
    first, news = named_events(at, "?gpu=1")
    second, more = named_events(at, "?gpu=1")
    plain, few = named_events(at, "")
    for each in (news, more):
        assert {next(each)[0], next(each)[0]} == {"message", "picture"}
    next(few)
    assert made == ["GPU-1"], "made once, however many look on"
    for line in (first, second, plain):
        line.close()


def test_a_stream_of_a_gpu_that_is_not_here_is_refused(full: Server) -> None:
    assert get(full, "/api/v1/stream?gpu=17").status == 404


def test_a_picture_that_cannot_be_drawn_is_said_once_and_stops_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch,
                                                                       caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(watches, "picture_json", broken)
    daemon = Daemon(snapshots.snapshot(), snapshots.history(5.0))
    line, news = named_events(serve(daemon), "?gpu=1")
    with closing(line):
        for k in range(3):
            assert next(news)[0] == "message"
            daemon.show(replace(snapshots.snapshot(), t_s=401.0 + k))
        assert next(news)[0] == "message"
        until(lambda: bool(caplog.records))
        daemon.show(replace(snapshots.snapshot(), t_s=405.0))
        assert next(news)[0] == "message"
    assert [r.message for r in caplog.records] == ["GPU-1 cannot be drawn: ValueError: broken"]


def test_the_scope_and_the_trend_of_a_gpu_are_json(full: Server) -> None:
    scope = json.loads(get(full, "/api/v1/scope?gpu=2&seconds=30").body)
    assert (scope["gpu"], len(scope["power"]["t_s"]), len(scope["traffic"]["rdma"])) == ("GPU-2", 600, 300)
    assert get(full, "/api/v1/scope?gpu=2&seconds=400").status == 400
    assert json.loads(get(full, "/api/v1/trend?gpu=2").body)["t_s"] == []
    assert get(full, "/api/v1/trend?gpu=9").status == 404


def test_the_flight_recorder_is_sent_as_a_trace(full: Server, tmp_path: Path) -> None:
    sent = get(full, "/api/v1/trace?seconds=10")
    assert sent.headers["Content-Type"] == "application/gzip"
    assert sent.headers["Content-Disposition"] == 'attachment; filename="overlap-node-1-20260101T000640Z.jsonl.gz"'
    (tmp_path / "t.jsonl.gz").write_bytes(sent.body)
    times = [e.t_s for e in read_trace(tmp_path / "t.jsonl.gz") if isinstance(e, Record)]
    assert (len(times) > 2000, min(times) >= 0, max(times)) == (True, True, pytest.approx(10.0))
    head = get(full, "/api/v1/trace?seconds=10", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert get(full, "/api/v1/trace?seconds=601").status == 400


def test_a_client_that_does_not_take_its_trace_is_let_go_and_holds_up_nobody(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "SLOWEST_WRITE_S", 0.5)
    monkeypatch.setattr(endpoints, "_MOST_DOWNLOADS", 1)
    large = [os.urandom(100_000)] * 200  # more than the kernel takes for a client that does not read
    monkeypatch.setattr(endpoints, "encode", lambda part: iter(large if part.end_s - part.start_s > 100 else [b"small"]))
    at = serve(Daemon(snapshots.snapshot(), snapshots.history(2.0)))
    with closing(socket.socket()) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        lazy.connect(at.address)
        lazy.sendall(b"GET /api/v1/trace HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: get(at, "/api/v1/trace").status == 503)
        assert get(at, "/-/healthy").status == 200
        until(lambda: _reset(lazy))
    until(lambda: get(at, "/api/v1/trace?seconds=2").status == 200)


@pytest.mark.parametrize("sent", [
    b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"\r\n" * 2000,
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gopher\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000 + b"\r\n", b"GET /" + b"a" * 70_000, b"\0" * 100,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /api/v1/waveform?gpu=" + b"%00" * 500 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
], ids=range(11))  # fmt: skip
def test_malformed_and_oversized_requests_get_no_page_and_break_nothing(sent: bytes, serve: Serve,
                                                                        caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    at = serve(Daemon(snapshots.snapshot()))
    with closing(socket.create_connection(at.address, 10)) as line:
        with contextlib.suppress(OSError):
            line.sendall(sent)
            line.shutdown(socket.SHUT_WR)
        got = b""
        with contextlib.suppress(OSError):
            while more := line.recv(4096):
                got += more
    assert b" 200 " not in got[:20]
    assert b"Traceback" not in got
    assert get(at, "/-/healthy").status == 200
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_a_slow_loris_on_every_connection_leaves_metrics_reachable(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-sent heads that drip on, and half-closed connections: each is cut off, none takes the place of a scrape."""
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 16)
    monkeypatch.setattr(server, "_FIRST_HEAD_S", 1.0)
    at = serve(Daemon(snapshots.snapshot()))
    lines = [socket.create_connection(at.address, 10) for _ in range(40)]
    for line in lines[::2]:
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_WR)
    for k in range(15):
        for line in lines[1::2]:
            with contextlib.suppress(OSError):
                line.sendall(b"GET /metrics HTTP/1.1\r\n"[k : k + 1])
        assert get(at, "/metrics").status == 200
        time.sleep(0.1)
    for line in lines:
        line.settimeout(5)
        with contextlib.suppress(OSError):
            assert line.recv(10) == b""
        line.close()


@pytest.mark.parametrize("path", [
    "/page/../../../../etc/passwd", "/page/..%2f..%2fetc%2fpasswd", "/page/vendor/../main.js", "/page/vendor/%2e%2e/style.css",
    "/page/vendor/uPlot.LICENSE", "/page/types.d.ts", "/page/vendor/", "/page//vendor/uPlot.min.css",
    "/page/vendor%2fuPlot.min.css",
])  # fmt: skip
def test_no_path_from_outside_opens_a_file(path: str, full: Server) -> None:
    assert get(full, path).status == 404


def test_the_library_of_the_plots_comes_from_the_package(full: Server) -> None:
    script, style = get(full, "/page/vendor/uPlot.iife.min.js"), get(full, "/page/vendor/uPlot.min.css")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert style.headers["Content-Type"] == "text/css; charset=utf-8"
    assert b"uPlot" in script.body
