"""`top`: what it draws, what it says when it cannot, and that it goes on when the daemon comes back."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import bcrypt
import pytest
from rich.console import Console

from exporter.cli import main
from exporter.clock import ManualClock
from exporter.model import Inventory, Snapshot
from exporter.server import Server
from exporter.top import Client, TopError, View, draw, look, parse_url, sparkline, top, watch
from tests import snapshots
from tests.test_server import Daemon
from tests.test_web_config import certificate


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    made = Server("127.0.0.1:0", None, Daemon(snapshots.mixed(), snapshots.history()))
    made.start()
    yield made
    made.stop(5.0)


def drawn(view: View, language: str = "en", width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(draw(view, language))
    return out.getvalue()


def seen_at(server: Server) -> View:
    with Client(parse_url(server.url)) as client:
        return look(client)


def test_a_row_per_gpu_with_state_numbers_and_sparklines(served: Server) -> None:
    text = drawn(seen_at(served))
    rows = {line.split()[0]: line for line in text.splitlines() if line[:1].isdigit()}
    assert len(rows) == 8
    assert "◆ serialized" in rows["2"]
    assert " 3 %  43 % (38-47)  800 ms" in rows["2"]
    assert "Communication is not hidden" in " ".join(text.split())
    bars = [c for c in rows["2"] if c in "▁▂▃▄▅▆▇█"]
    assert len(bars) == 48
    assert {"▁", "█"} <= set(bars)
    assert "hang" in rows["7"]


def test_what_is_simulated_missing_or_wrong_with_the_node_stands_above(served: Server) -> None:
    text = drawn(seen_at(served))
    assert "SIMULATED: nothing here was measured" in text
    assert "missing: gpm (unsupported), nvml/GPU-7 (hang)" in text
    assert "! The network is congested" in text
    chinese = drawn(seen_at(served), "zh")
    assert "模拟数据" in chinese
    assert "串行" in chinese


def test_a_node_without_gpus_says_so() -> None:
    made = Server("127.0.0.1:0", None, Daemon(Snapshot(1.0, 1.8e9, Inventory("cpu-node", 1.8e9), "serve", {}, (), {})))
    made.start()
    try:
        text = drawn(seen_at(made))
    finally:
        made.stop(5.0)
    assert "cpu-node" in text
    assert "No GPU can be read on this node." in text


def test_piped_it_prints_one_snapshot_and_ends(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", served.url, "--language", "en"]) == 0
    out = capsys.readouterr().out
    assert out.count("serialized") == 1
    assert "\x1b" not in out


def refusal(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["top", url]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_each_way_to_fail_is_one_line_that_says_what_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert "nothing listens there: is the daemon running" in refusal(f"127.0.0.1:{port}", capsys)
    assert "no such host: node.invalid" in refusal("http://node.invalid/", capsys)
    for url in ("ftp://x/", "http://", "http://x:port/", "x?y=1"):
        assert "is not allowed: expected http://HOST:PORT/" in refusal(url, capsys)
    assert "s3cret" not in refusal("ftp://me:s3cret@x/", capsys)


def test_another_server_is_no_exporter(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as line:
        import threading

        def answer() -> None:
            for body in (b"404 Not Found\r\nContent-Length: 0\r\n\r\n", b"200 OK\r\nContent-Length: 2\r\n\r\nhi"):
                client, _ = line.accept()
                with closing(client):
                    client.recv(4096)
                    client.sendall(b"HTTP/1.1 " + body)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"127.0.0.1:{line.getsockname()[1]}"
        assert "is no overlap-exporter, or an older one" in refusal(url, capsys)
        assert "answers, but is no overlap-exporter" in refusal(url, capsys)
        thread.join()


def test_passwords_stand_in_the_url_and_are_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hashed = bcrypt.hashpw(b"s3/cret", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(f"basic_auth_users: {{prometheus: '{hashed}'}}\n")
    made = Server("127.0.0.1:0", str(tmp_path / "web.yml"), Daemon(snapshots.snapshot(), snapshots.history(2.0)))
    made.start()
    try:
        host = made.url.removeprefix("http://")
        assert "give them as http://USER:PASSWORD@HOST:PORT/" in refusal(f"http://{host}", capsys)
        wrong = refusal(f"http://prometheus:wr0ng@{host}", capsys)
        assert "user name and password needed" in wrong
        assert "wr0ng" not in wrong
        assert main(["top", f"http://prometheus:s3%2Fcret@{host}"]) == 0
    finally:
        made.stop(5.0)
    assert "serialized" in capsys.readouterr().out


def test_tls_is_spoken_and_an_unknown_certificate_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    certificate(tmp_path, "server")
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")
    made = Server("127.0.0.1:0", str(tmp_path / "web.yml"), Daemon(snapshots.snapshot(), snapshots.history(2.0)))
    made.start()
    try:
        url = f"https://localhost:{made.address[1]}/"
        assert "its certificate is not trusted" in refusal(url, capsys)
        assert "try https://" in refusal(url.replace("https", "http"), capsys)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.crt"))
        assert main(["top", url]) == 0
    finally:
        made.stop(5.0)
    assert "serialized" in capsys.readouterr().out


class Enough(Exception):  # noqa: N818
    """Ends a loop that never ends."""


def test_old_news_are_called_old_and_a_daemon_that_is_away_is_asked_again() -> None:
    daemon = Daemon(snapshots.mixed(), snapshots.history(2.0))
    made = Server("127.0.0.1:0", None, daemon)
    made.start()
    client, clock = Client(parse_url(made.url)), ManualClock()
    complaints: list[str | None] = []
    address = f"127.0.0.1:{made.address[1]}"

    def show(view: View) -> None:
        complaints.append(view.complaint)
        if len(complaints) == 5:
            daemon.show(replace(snapshots.mixed(), t_s=401.0))
        if len(complaints) == 6:
            made.stop(5.0)
        if len(complaints) == 8:
            again.start()
        if len(complaints) == 10:
            raise Enough

    again = Server(address, None, daemon)
    try:
        with pytest.raises(Enough):
            watch(client, clock, look(client), show, "en")
    finally:
        again.stop(5.0)
        client.close()
    assert complaints[:3] == [None, None, None]
    assert complaints[3:5] == ["no news for 4 s", "no news for 5 s"]
    assert complaints[5] is None
    assert all(c is not None and "nothing listens there" in c for c in complaints[6:8])
    assert complaints[8:] == [None, "no news for 4 s"], "it is back, and shows what it showed before"


def test_a_sparkline_has_a_bar_per_part_and_a_space_where_nothing_was_read() -> None:
    assert sparkline([], 4, 1.0) == "    "
    assert sparkline([1.0, 1.0, 0.0, 0.0], 2, 1.0) == "█▁"
    assert sparkline([5.0] * 10, 5, 0.0) == "▁▁▁▁▁"
    assert len(sparkline([float(k) for k in range(7)], 24, 6.0)) == 24


def test_a_url_may_be_short_and_is_shown_without_its_password() -> None:
    assert parse_url("node-1").shown == "http://node-1:9777/"
    assert parse_url("[::1]:80").shown == "http://[::1]:80/"
    assert parse_url("https://u:p@h/sub/").shown == "https://h:9777/sub"
    with pytest.raises(TopError):
        parse_url("")


def test_top_of_nothing_ends_with_an_error_and_not_a_traceback() -> None:
    with pytest.raises(TopError, match="nothing listens there"):
        top("127.0.0.1:1", ManualClock(), "en")


@pytest.mark.end_to_end
def test_in_a_terminal_it_goes_on_until_interrupted(served: Server) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "exporter", "top", served.url, "--language", "en"],
        stdin=follower, stdout=follower, stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "30"},
    )  # fmt: skip
    os.close(follower)
    seen = b""
    end = time.monotonic() + 20
    while time.monotonic() < end and seen.count(b"Ctrl-C ends") < 2:
        if select.select([leader], [], [], 0.5)[0]:
            seen += os.read(leader, 65536)
    process.send_signal(signal.SIGINT)
    while select.select([leader], [], [], 5.0)[0]:
        try:
            if not (more := os.read(leader, 65536)):
                break
            seen += more
        except OSError:
            break
    os.close(leader)
    assert process.wait(10) == 130
    assert seen.count(b"Ctrl-C ends") >= 2
    assert b"serialized" in seen
    assert b"\x1b[?1049l" in seen, "the screen of before is given back"
    assert b"Traceback" not in seen
