"""The offline report: one self-contained HTML file with the verdict in words, plots, tables, causes and sensors.

`cli` calls it for `analyze --html`. Everything is inside the file: no address is named, nothing is loaded. Both languages
stand in it, and a few lines of script switch between them. What is shown was judged by the session; nothing is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from exporter import __version__
from exporter.advice import ADVICE, Text
from exporter.meanings import FINDINGS, STATES, TRANSPORT_REASONS, TRANSPORTS
from exporter.model import Device, Finding, OneLineError, OverlapAnalysis, Snapshot
from exporter.reasons import in_both
from exporter.report_plots import fold_svg, scatter_svg, trend_svg, waveform_svg
from exporter.scope import scope_json
from exporter.session import Session
from exporter.trend import Trend
from exporter.waveform import links_of
from exporter.wording import evidence_text, measured

_SHOWN_S = 10.0
_ASSETS = Path(__file__).parent / "page"


class ReportError(OneLineError):
    """The report cannot be written; one line."""


def check_target(path: str, force: bool) -> None:
    """ReportError where the file exists and may not be replaced, before minutes of work are spent."""
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise ReportError(f"{path}: cannot be written: {'a directory' if target.is_dir() else 'its directory does not exist'}")
    if target.exists() and not force:
        raise ReportError(f"{path}: exists already and is not overwritten; --force does")


@dataclass(frozen=True, slots=True)
class Judged:
    """A trace with what was said of it. results: as the table shows them; cut: where the trace ended before its end."""

    trace: str
    session: Session
    results: Sequence[OverlapAnalysis]
    trend: Trend
    last_s: float
    cut: str | None = None


def write_report(path: str, judged: Judged, language: str) -> int:
    """Write the file; its size in bytes. The language is the one that it opens in."""
    document = report(judged, language)
    try:
        return Path(path).write_bytes(document.encode())
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror or error}") from None


def report(judged: Judged, language: str) -> str:
    """The whole document."""
    session = judged.session
    inventory = session.inventory
    gpus = inventory.of_kind("gpu")
    verdicts = session.evaluate(judged.last_s, (session.verdict_window_s,))
    snapshot = Snapshot(
        t_s=judged.last_s, wall_s=inventory.started_unix_s + judged.last_s, inventory=inventory, mode="analyze", latest={},
        analyses=verdicts, phases=session.analyzer.phases, findings=session.verdicts.findings,
        transport=session.verdicts.transport.transport, refresh=session.analyzer.refresh,
        verdict_window_s=session.verdict_window_s,
    )  # fmt: skip
    worst = max(verdicts, key=lambda a: a.exposed if a.exposed is not None else -1.0, default=None)
    name = Path(judged.trace).name
    body = "".join((
        _head(name, judged, snapshot, language), _notes(judged, snapshot),
        _section(Text("Verdict", "判断"), _verdict(verdicts, session)),
        _section(Text("Causes and what to do", "原因与对策"), _causes(session.verdicts.findings)),
        _section(Text("Each GPU", "各 GPU"), "".join(
            _gpu(gpu, judged, snapshot, is_open=worst is not None and gpu.id == worst.gpu_id) for gpu in gpus)),
        _section(Text("Every window", "各时间窗"), _table(judged.results)),
        _section(Text("Sensors and their limits", "传感器及其局限"), _sensors(snapshot)),
    ))  # fmt: skip
    style, script = ((_ASSETS / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return (
        f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)} · overlap-exporter</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n"
        f'<footer>overlap-exporter {escape(__version__)}</footer>\n<script>\n{script}</script>\n</body>\n</html>\n'
    )  # fmt: skip


def _t(text: Text) -> str:
    return f'<span lang="en">{escape(text.en)}</span><span lang="zh">{escape(text.zh)}</span>'


def _section(title: Text, content: str) -> str:
    return f"<section><h2>{_t(title)}</h2>{content}</section>"


def _head(name: str, judged: Judged, snapshot: Snapshot, language: str) -> str:
    inventory = snapshot.inventory
    gpus, ports = len(inventory.of_kind("gpu")), len(inventory.of_kind("rdma_port"))
    facts = Text(f"{inventory.host}: {gpus} GPUs, {ports} RDMA ports; "
                 f"judged at {judged.last_s:.0f} s, over the last {snapshot.verdict_window_s:g} s",
                 f"{inventory.host}：{gpus} 块 GPU，{ports} 个 RDMA 端口；"
                 f"判断时刻 {judged.last_s:.0f} 秒，依据此前 {snapshot.verdict_window_s:g} 秒")  # fmt: skip
    other = "English" if language == "zh" else "中文"
    return (f'<header><div><h1>{escape(name)}</h1><p class="sub">{_t(facts)}</p></div>'
            f'<button id="language" type="button">{other}</button></header>')  # fmt: skip


def _notes(judged: Judged, snapshot: Snapshot) -> str:
    notes: list[str] = []
    if scenario := snapshot.inventory.truth.get("scenario"):
        notes.append(_t(Text(f"Simulated ({scenario}): nothing here was measured.", f"模拟数据（{scenario}）：均非实测。")))
    if judged.cut:
        notes.append(_t(Text(f"The trace is {judged.cut}.", f"轨迹不完整：{judged.cut}。")))
    return "".join(f'<p class="note">{note}</p>' for note in notes)


_STATE_NAMES: Mapping[str, Text] = {
    "overlapped": Text("Overlapped", "重叠良好"), "partial": Text("Partial", "部分重叠"),
    "serialized": Text("Serialized", "串行"),
    "compute_only": Text("Compute only", "仅计算"), "stalled": Text("Stalled", "停顿"), "idle": Text("Idle", "空闲"),
    "unobservable": Text("Unobservable", "无法判断"), "no_data": Text("No data", "无数据"),
}  # fmt: skip


def _state(state: str) -> str:
    return f'<b class="chip {escape(state)}">{_t(_STATE_NAMES.get(state, Text(state, state)))}</b>'


def _verdict(verdicts: Sequence[OverlapAnalysis], session: Session) -> str:
    """A sentence per state: how many GPUs, what it means, how much is lost."""
    lines: list[str] = []
    for state in dict.fromkeys(a.state for a in verdicts):
        mine = [a for a in verdicts if a.state == state]
        lost = [a.exposed for a in mine if a.exposed is not None]
        means = STATES.get(state, Text("", ""))
        count = _t(Text(f"{len(mine)} of {len(verdicts)} GPUs", f"{len(verdicts)} 块 GPU 中的 {len(mine)} 块"))
        loss = ""
        if lost:
            mean = 100 * sum(lost) / len(lost)
            loss = _t(Text(f" {mean:.0f} % of the running time is lost to exposed communication.",
                           f"运行时间的 {mean:.0f} % 损失于暴露的通信。"))  # fmt: skip
        lines.append(f"<p>{_state(state)} {count}: {_t(means)}{loss}</p>")
    transport = session.verdicts.transport
    lines.append(f"<p>{_t(TRANSPORTS[transport.transport])} {_t(TRANSPORT_REASONS[transport.reason])}</p>")
    return "".join(lines)


def _causes(findings: Sequence[Finding]) -> str:
    if not findings:
        return f"<p>{_t(Text('No finding: no rule names a cause.', '没有发现问题：没有规则指出原因。'))}</p>"
    parts: list[str] = []
    for name in dict.fromkeys(f.finding for f in findings):
        mine = [f for f in findings if f.finding == name]
        told = FINDINGS[name]
        rows = "".join(
            f"<tr><th>{escape(f.gpu_id) if f.gpu_id else _t(Text('this node', '本节点'))}</th>"
            f"<td>{_t(Text(*('; '.join(evidence_text(e, lang) for e in f.evidence) for lang in ('en', 'zh'))))}</td>"
            f'<td class="sub">{_t(Text(f"since {f.since_s:.0f} s", f"自 {f.since_s:.0f} 秒起"))}</td></tr>'
            for f in mine
        )
        advice = [ADVICE[key] for key in mine[0].advice]
        steps = "".join(f'<li>{_t(a.action)}<p class="sub">{_t(a.cost)}</p></li>' for a in advice)
        parts.append(
            f'<article id="{escape(name)}"><h3>{_t(told.title)}</h3><p>{_t(told.meaning)}</p>'
            f'<div class="wide"><table>{rows}</table></div>'
            f"<h4>{_t(Text('What to do, least effort first', '可以怎么做（由易到难）'))}</h4><ol>{steps}</ol></article>"
        )
    return "".join(parts)


_FIGURES: tuple[tuple[Text, str, str], ...] = (
    (Text("Health", "健康度"), "health", "ratio"), (Text("Exposed", "暴露"), "exposed", "ratio"),
    (Text("Communication", "通信"), "communication", "ratio"), (Text("Stall", "停顿"), "stall", "ratio"),
    (Text("Wait", "等待"), "wait", "ratio"), (Text("Correlation", "相关系数"), "correlation", ""),
    (Text("Observability", "可观测度"), "observability", "ratio"), (Text("Step", "步时"), "step_period_s", "seconds"),
)  # fmt: skip


def _value(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.2f}" if not unit else measured(value, unit)


def _gpu(gpu: Device, judged: Judged, snapshot: Snapshot, is_open: bool) -> str:
    verdict = next(a for a in snapshot.analyses if a.gpu_id == gpu.id)
    scope = scope_json(judged.session.history, snapshot, gpu, _SHOWN_S)
    fold = scope["picture"]["fold"]
    plots = (
        (Text("Power against traffic", "功耗与流量"), scatter_svg(scope["picture"])),
        (Text("One step, folded", "一步的平均波形") if not fold else
         Text(f"One step: mean of {fold['steps']} steps of {measured(fold['period_s'], 'seconds')}",
              f"一步的平均波形：{fold['steps']} 步，每步 {measured(fold['period_s'], 'seconds')}"),
         fold_svg(fold) if fold else None),
        (Text("Over the trace: health, exposed, correlation", "全程：健康度、暴露、相关系数"),
         trend_svg(judged.trend.json(gpu.id))),
    )  # fmt: skip
    none = _t(Text("nothing to show: no rhythm or no readings", "没有可显示的内容：没有节奏或没有读数"))
    figures = "".join(
        f"<div><dt>{_t(name)}</dt><dd>{_value(getattr(verdict, field), unit)}</dd></div>" for name, field, unit in _FIGURES
    )
    reason = f'<p class="sub">{_t(in_both(verdict.reason))}</p>' if verdict.reason else ""
    legend = "".join(f'<span class="key {phase}">{_t(name)}</span>' for phase, name in _LEGEND)
    return (
        f'<details{" open" if is_open else ""} data-gpu="{escape(gpu.id)}"><summary><b>{escape(gpu.id)}</b> '
        f'<span class="sub">{escape(gpu.name or "")}</span> {_state(verdict.state)}</summary>{reason}<dl>{figures}</dl>'
        f"<h4>{_t(Text(f'The last {_SHOWN_S:g} s', f'最后 {_SHOWN_S:g} 秒'))}</h4>"
        f"{waveform_svg(scope, gpu.power_limit_watts, _SHOWN_S)}"
        f'<p class="legend">{legend}</p><div class="plots">'
        + "".join(f"<figure><figcaption>{_t(title)}</figcaption>{svg or f'<p>{none}</p>'}</figure>" for title, svg in plots)
        + "</div></details>"
    )


_LEGEND: tuple[tuple[str, Text], ...] = (
    ("power", Text("power", "功耗")), ("rdma", Text("RDMA", "RDMA")), ("nvlink", Text("NVLink", "NVLink")),
    ("tcp", Text("TCP", "TCP")),
    ("overlapped", Text("overlapped", "重叠")), ("exposed", Text("exposed", "暴露")), ("compute", Text("compute", "计算")),
    ("stall", Text("stall", "停顿")), ("wait", Text("wait", "等待")), ("idle", Text("idle", "空闲")),
    ("unknown", Text("unknown", "无法判断")),
)  # fmt: skip


def _rows(heads: Iterable[Text], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{_t(name)}</th>" for name in heads)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _table(results: Sequence[OverlapAnalysis]) -> str:
    """A row per GPU, instant and window."""
    heads = (Text("GPU", "GPU"), Text("at", "时刻"), Text("window", "时间窗"), Text("state", "状态"),
             *(name for name, _, _ in _FIGURES), Text("why not", "缺失原因"))  # fmt: skip
    return _rows(heads, (
        f"<tr><th>{escape(a.gpu_id)}</th><td>{a.at_s:.1f} s</td><td>{a.window_s:g} s</td><td>{_state(a.state)}</td>"
        + "".join(f"<td>{_value(getattr(a, field), unit)}</td>" for _, field, unit in _FIGURES)
        + f'<td class="sub">{_t(in_both(a.reason)) if a.reason else ""}</td></tr>'
        for a in results
    ))  # fmt: skip


def _sensors(snapshot: Snapshot) -> str:
    """What each GPU's power sensor can resolve, and where its bytes come from."""
    inventory = snapshot.inventory
    seen = {(r.id, r.quantity): r.refresh_s for r in snapshot.refresh}
    resolution = {a.gpu_id: a.resolution_s for a in snapshot.analyses}
    heads = (Text("GPU", "GPU"), Text("power read by", "功耗来源"), Text("averages over", "平均时长"),
             Text("new value every", "刷新周期"),
             Text("measured", "实测"), Text("blind below", "可分辨的最短节奏"),
             Text("traffic from", "流量来自"))  # fmt: skip

    def row(gpu: Device) -> str:
        links = "; ".join(
            f"{link.device_id} ({link.path}, {link.reason}, {_value(seen.get((link.device_id, 'bytes')), 'seconds')})"
            for link in links_of(inventory, gpu)
        )
        times = (gpu.power_window_s, gpu.power_refresh_s, seen.get((gpu.id, "power")), resolution.get(gpu.id))
        cells = (gpu.power_source or "–", *(_value(s, "seconds") for s in times), links or "–")
        return f"<tr><th>{escape(gpu.id)}</th>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"

    told = _t(Text("A job whose rhythm is shorter than “blind below” is not judged: health and exposed are absent then, never "
                   "guessed.", "节奏短于“可分辨的最短节奏”的作业不作判断：此时健康度与暴露缺失，绝不猜测。"))  # fmt: skip
    return f"<p>{told}</p>" + _rows(heads, map(row, inventory.of_kind("gpu")))
