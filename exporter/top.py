"""`top`: the live view in a terminal, a row per GPU with state, health, exposed share and sparklines. Called by `cli`.

Asks a daemon over HTTP once a second and draws with rich; prints one snapshot and ends where its output is no terminal.
Never touches a device: all that it knows comes from `/api/v1/snapshot` and `/api/v1/waveform`.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from exporter.advice import Text as Words
from exporter.clock import Clock
from exporter.meanings import FINDINGS, TRANSPORTS
from exporter.model import OneLineError
from exporter.reasons import in_both
from exporter.wording import measured

DEFAULT_URL = "http://localhost:9777/"
_TIMEOUT_S = 5.0
_EVERY_S = 1.0
_SPARK_S, _SPARK_POINTS = 2.4, 24  # a bar per reading of power
_STALE_S = 3.0
_BARS = "▁▂▃▄▅▆▇█"
_PIPE_WIDTH = 140


class TopError(OneLineError):
    """The daemon does not answer as it should; one line says what to look at."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens, and who asks it."""

    host: str
    port: int
    tls: bool
    path: str
    authorization: str | None

    @property
    def shown(self) -> str:
        """The URL without the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path or '/'}"


def parse_url(text: str) -> Address:
    """A URL, or host:port alone; user and password may stand in it, percent-encoded.

    >>> parse_url("node-1:9777").shown, parse_url("https://me:s%40fe@[::1]/").shown
    ('http://node-1:9777/', 'https://[::1]:9777/')
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        shown = text.rpartition("@")[2] if "@" in text else text
        raise TopError(f"{shown!r} is not allowed: expected http://HOST:PORT/, https://HOST:PORT/ or HOST:PORT")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Address(parts.hostname, port or 9777, parts.scheme == "https", parts.path.rstrip("/"), authorization)


class Client:
    """Asks one daemon over a connection that is kept; TopError says why there is no answer."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, **query: str | float) -> Any:
        """The JSON of an endpoint."""
        target = f"{self._address.path}/api/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        kept = self._connection is not None
        try:
            status, body = self._get(target)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            if kept and not isinstance(error, TimeoutError):  # the daemon may close a connection that it kept
                return self.ask(path, **query)
            raise TopError(f"{self._address.shown}: {_why(error, self._address)}") from None
        if status != 200:
            raise TopError(f"{self._address.shown}: {_refused(status, body)}")
        try:
            return json.loads(body)
        except ValueError:
            raise TopError(f"{self._address.shown}: answers, but is no overlap-exporter") from None

    def _get(self, target: str) -> tuple[int, bytes]:
        if self._connection is None:
            of = (self._address.host, self._address.port)
            self._connection = (
                http.client.HTTPSConnection(*of, timeout=_TIMEOUT_S, context=ssl.create_default_context())
                if self._address.tls else http.client.HTTPConnection(*of, timeout=_TIMEOUT_S)
            )  # fmt: skip
        headers = {"Accept": "application/json"}
        if self._address.authorization is not None:
            headers["Authorization"] = self._address.authorization
        self._connection.request("GET", target, headers=headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _why(error: Exception, address: Address) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE names the file of a CA that is"
    if isinstance(error, ssl.SSLError):
        return "does not speak TLS: try http://"
    if isinstance(error, TimeoutError):
        return f"no answer within {_TIMEOUT_S:g} s" + (": does it speak TLS?" if address.tls else "")
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: is the daemon running, and is this its --web.listen-address?"
    if isinstance(error, socket.gaierror):
        return f"no such host: {address.host}"
    if isinstance(error, (http.client.BadStatusLine, ConnectionResetError)) and not address.tls:
        return "does not answer in HTTP: try https://"
    return f"{getattr(error, 'strerror', None) or error}"


def _refused(status: int, body: bytes) -> str:
    if status == 401:
        return "user name and password needed: give them as http://USER:PASSWORD@HOST:PORT/"
    if status == 404:
        return "answers, but is no overlap-exporter, or an older one"
    line = body.decode(errors="replace").strip().splitlines()
    return f"answers {status}" + (f": {line[0][:120]}" if line else "")


@dataclass(frozen=True, slots=True)
class View:
    """What is drawn: a snapshot, the waveform of each GPU by id, and why it is old, if it is."""

    snapshot: Mapping[str, Any]
    waves: Mapping[str, Mapping[str, Any]]
    complaint: str | None = None


def look(client: Client) -> View:
    """One snapshot with the waveforms of all GPUs that are there."""
    snapshot = client.ask("snapshot")
    if not isinstance(snapshot, dict) or "gpus" not in snapshot:
        raise TopError("answers, but is no overlap-exporter")
    waves: dict[str, Mapping[str, Any]] = {}
    for gpu in snapshot["gpus"]:
        if not gpu["gone"]:
            with suppress(TopError):  # it may have gone in between
                waves[gpu["id"]] = client.ask("waveform", gpu=gpu["id"], seconds=_SPARK_S)
    return View(snapshot, waves)


def sparkline(values: Sequence[float | None], points: int, top: float) -> str:
    """Values as bars from 0 to top, each the mean of its part; a space where nothing was read.

    >>> sparkline([0.0, 1.0, 2.0, None], 4, 2.0)
    '▁▅█ '
    """
    if not values or not top > 0:
        return " " * points if not values else _BARS[0] * points
    bars = ""
    for k in range(points):
        begin = math.floor(k * len(values) / points)
        part = [v for v in values[begin : max(begin + 1, math.floor((k + 1) * len(values) / points))] if v is not None]
        bars += _BARS[min(len(_BARS) - 1, round(sum(part) / len(part) / top * (len(_BARS) - 1)))] if part else " "
    return bars


_STATES: Mapping[str, tuple[str, str, Words]] = {
    "overlapped": ("green", "●", Words("overlapped", "重叠良好")),
    "partial": ("yellow", "◐", Words("partial", "部分重叠")),
    "serialized": ("red", "◆", Words("serialized", "串行")),
    "compute_only": ("blue", "■", Words("compute only", "仅计算")),
    "stalled": ("magenta", "▲", Words("stalled", "停顿")),
    "idle": ("bright_black", "○", Words("idle", "空闲")),
    "unobservable": ("bright_black", "?", Words("unobservable", "无法判断")),
    "no_data": ("bright_black", "∅", Words("no data", "无数据")),
}
_COLUMNS = (
    (Words("GPU", "GPU"), "left"), (Words("state", "状态"), "left"), (Words("health", "健康度"), "right"),
    (Words("exposed", "暴露"), "right"), (Words("step", "步时"), "right"), (Words("power", "功耗"), "left"),
    (Words("traffic", "流量"), "left"), (Words("cause", "原因"), "left"),
)  # fmt: skip
_SIMULATED = Words("SIMULATED: nothing here was measured", "模拟数据：均非实测")
_RECORDED = Words("REPLAY: a trace, not the present", "回放：录制的轨迹，不是当前状态")
_NO_GPU = Words("No GPU can be read on this node.", "本节点没有可读取的 GPU。")
_MISSING = Words("missing: {}", "缺失：{}")
_OLD = Words("no news for {:.0f} s", "{:.0f} 秒无更新")
_END = Words("Ctrl-C ends", "Ctrl-C 结束")


def draw(view: View, language: str, hint: bool = False) -> Group:
    """The whole view, for a rich console."""
    snapshot = view.snapshot
    head = Text.assemble(
        (snapshot["host"] or "?", "bold"), f"   {len([g for g in snapshot['gpus'] if not g['gone']])} GPU   ",
        TRANSPORTS[snapshot["transport"]].of(language) if snapshot["transport"] in TRANSPORTS else snapshot["transport"],
    )  # fmt: skip
    lines: list[Text | Table] = [head]
    if (note := {"demo": _SIMULATED, "replay": _RECORDED}.get(snapshot["mode"])) is not None:
        lines.append(Text(note.of(language), style="black on yellow"))
    if view.complaint:
        lines.append(Text(view.complaint, style="bold red"))
    down = sorted({f"{s['source']} ({(s['reason'] or '?').replace('_', ' ')})" for s in snapshot["sources"] if not s["up"]})
    if down:
        lines.append(Text(_MISSING.of(language).format(", ".join(down)), style="yellow"))
    lines += [Text("! " + FINDINGS[f["finding"]].title.of(language), style="yellow") for f in snapshot["node_findings"]
              if f["finding"] in FINDINGS]  # fmt: skip
    lines.append(_table(view, language) if snapshot["gpus"] else Text(_NO_GPU.of(language)))
    if hint:
        lines.append(Text(_END.of(language), style="bright_black"))
    return Group(*lines)


def _table(view: View, language: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for k, (name, side) in enumerate(_COLUMNS):
        table.add_column(name.of(language), justify="right" if side == "right" else "left", no_wrap=k != 7,
                         overflow="ellipsis", style="bright_black" if k == 7 else None)  # fmt: skip
    snapshot = view.snapshot
    for gpu in snapshot["gpus"]:
        verdict: Mapping[str, Any] = next((a for a in gpu["analyses"] if a["window_s"] == snapshot["verdict_window_s"]), {})
        state = "no_data" if gpu["gone"] else verdict.get("state", "no_data")
        style, icon, word = _STATES.get(state, ("", "", Words(state, state)))
        table.add_row(
            str(gpu["index"]) if gpu["index"] is not None else gpu["id"], Text(f"{icon} {word.of(language)}", style=style),
            _percent(verdict.get("health")), _exposed(verdict), _step(verdict.get("step_period_s")),
            _power(gpu, view.waves.get(gpu["id"])), _traffic(view.waves.get(gpu["id"])), _cause(gpu, verdict, language),
        )  # fmt: skip
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _exposed(verdict: Mapping[str, Any]) -> str:
    low, high = verdict.get("exposed_low"), verdict.get("exposed_high")
    bounds = "" if low is None or high is None else f" ({100 * low:.0f}-{100 * high:.0f})"
    return _percent(verdict.get("exposed")) + bounds


def _step(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _power(gpu: Mapping[str, Any], wave: Mapping[str, Any] | None) -> Text:
    watts = list((wave or {}).get("power", {}).get("watts", ()))
    top = max([gpu["power_limit_watts"] or 0.0, *watts], default=0.0)
    now = f"{sum(watts[-10:]) / len(watts[-10:]):4.0f} W" if watts else "   -"
    return Text.assemble((sparkline(watts, _SPARK_POINTS, top), "yellow"), f" {now}")


def _traffic(wave: Mapping[str, Any] | None) -> Text:
    paths = {p: v for p, v in (wave or {}).get("traffic", {}).items() if p != "t_s"}
    path = max(paths, key=lambda p: (p != "nvlink", sum(v or 0.0 for v in paths[p])), default=None)
    rates = paths.get(path or "", [])
    known = [v for v in rates if v is not None]
    now = measured(sum(known[-20:]) / len(known[-20:]), "bytes_per_second") if known else "-"
    return Text.assemble((sparkline(rates, _SPARK_POINTS, max(known, default=0.0)), "cyan"), f" {now}")


def _cause(gpu: Mapping[str, Any], verdict: Mapping[str, Any], language: str) -> str:
    titles = [FINDINGS[f["finding"]].title.of(language) for f in gpu["findings"] if f["finding"] in FINDINGS]
    if gpu["quarantined"]:
        titles.insert(0, gpu["quarantined"].replace("_", " "))
    return ", ".join(titles) or in_both(verdict.get("reason") or "").of(language)


def top(url: str, clock: Clock, language: str) -> None:
    """Draw until interrupted; where the output is no terminal, print one snapshot. TopError where there is no daemon."""
    console = Console(highlight=False)
    with Client(parse_url(url)) as client:
        view = look(client)
        if not console.is_terminal:
            Console(width=_PIPE_WIDTH, highlight=False).print(draw(view, language))
            return
        with Live(draw(view, language, hint=True), console=console, screen=True, auto_refresh=False) as live:
            watch(client, clock, view, lambda seen: live.update(draw(seen, language, hint=True), refresh=True), language)


def watch(client: Client, clock: Clock, view: View, show: Callable[[View], None], language: str) -> None:
    """Ask each second and show what came; what is old is called old, and a daemon that is away is asked again. Never ends."""
    fresh_at_s = clock.mono_s()
    while True:
        clock.sleep_until(clock.mono_s() + _EVERY_S)
        try:
            seen = look(client)
        except TopError as error:
            show(View(view.snapshot, view.waves, str(error)))
            continue
        if seen.snapshot["t_s"] != view.snapshot["t_s"]:
            fresh_at_s = clock.mono_s()
        age_s = clock.mono_s() - fresh_at_s
        view = View(seen.snapshot, seen.waves, _OLD.of(language).format(age_s) if age_s > _STALE_S else None)
        show(view)
