"""Commands that work on trace files without a daemon: analyze, simulate. Called by `cli`; never touches a device.

`analyze` feeds the trace through a Session on the trace's own clock, exactly as the daemon would have seen it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.advice import ADVICE, Text
from exporter.meanings import FINDINGS, TRANSPORT_REASONS, TRANSPORTS
from exporter.model import Finding, OverlapAnalysis, Record
from exporter.reasons import in_both
from exporter.session import GRACE_S, Session, Verdicts
from exporter.sources.scenarios import list_scenarios
from exporter.sources.simulator import simulate
from exporter.trace import TraceError, TraceReader, TraceWriter, read_trace
from exporter.wording import evidence_text, finding_json

if TYPE_CHECKING:
    from rich.console import Console

_LONG_BYTES = 200_000  # a trace of about a minute

# contract name -> field of OverlapAnalysis
_JSON_FIELDS = {
    "gpu": "gpu_id", "at_s": "at_s", "window_s": "window_s", "state": "state", "health": "health", "exposed": "exposed",
    "exposed_low": "exposed_low", "exposed_high": "exposed_high", "communication": "communication", "stall": "stall",
    "wait": "wait", "exposed_or_wait": "exposed_or_wait", "correlation": "correlation", "anticorrelation": "anticorrelation",
    "observability": "observability", "step_period_s": "step_period_s", "running": "running", "resolution_s": "resolution_s",
    "reason": "reason",
}


def analyze(
    path: str, windows_s: tuple[float, ...], at_s: Sequence[float], every_s: float | None,
    watch: Callable[[Session, TraceReader], None] | None = None,
) -> tuple[list[OverlapAnalysis], Session, str | None]:
    """Verdicts of a trace at the named instants (default: its end), the session, and where the trace is cut off.

    watch is called after every evaluation. The session is left as it was at the last instant of at_s where nothing else is
    asked for, else at the trace's end.
    """
    session = Session()
    reader = read_trace(path)
    asked = _instants(sorted(set(at_s)), every_s)
    pending = next(asked, None)
    results: list[OverlapAnalysis] = []
    last_s = -math.inf
    for event in reader:
        if at_s and every_s is None and pending is None:
            continue  # nothing more is asked for; how the trace ends is said all the same
        if isinstance(event, Record):
            # Sources are stamped each by itself: an instant is due when nothing older can follow.
            while pending is not None and event.t_s >= pending + GRACE_S:
                session.advance(pending + GRACE_S)
                results += session.evaluate(pending, windows_s)
                pending = next(asked, None)
            if at_s and every_s is None and pending is None:
                continue
            if session.advance(event.t_s) and watch is not None:
                watch(session, reader)
            last_s = max(last_s, event.t_s)
        session.take(event)
    if last_s == -math.inf:
        raise TraceError(f"{path}: holds no readings")
    while pending is not None and pending <= last_s + GRACE_S:
        session.advance(pending + GRACE_S)
        results += session.evaluate(pending, windows_s)
        pending = next(asked, None)
    if at_s and pending is not None:
        raise TraceError(f"{path}: --at {pending:g}: the trace ends at {last_s:.1f} s")
    if not at_s or every_s is not None:
        session.finish(last_s)
    if not at_s and every_s is None:
        results += session.evaluate(last_s, windows_s)
    return results, session, reader.cut


def _instants(at_s: Sequence[float], every_s: float | None) -> Iterator[float]:
    if every_s is None:
        yield from at_s
        return
    named = list(at_s)
    k = 1
    while True:
        instant = k * every_s
        while named and named[0] < instant:
            yield named.pop(0)
        if named and named[0] == instant:
            named.pop(0)
        yield instant
        k += 1


@contextmanager
def progress(path: str) -> Iterator[Callable[[Session, TraceReader], None]]:
    """A bar for a trace that takes a while, on a terminal only; yields what `analyze` takes as `watch`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    size = Path(path).stat().st_size if Path(path).is_file() else 0
    if not console.is_terminal or size < _LONG_BYTES:
        yield lambda session, reader: None
        return
    columns = (TextColumn("judging"), BarColumn(), TextColumn("{task.fields[at]:.0f} s of the trace"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("judge", total=size, at=0.0)
        yield lambda session, reader: bar.update(task, completed=reader.read_bytes, at=session.verdicts.at_s)


def as_json(path: str, results: Sequence[OverlapAnalysis], cut: str | None, verdicts: Verdicts) -> str:
    """The document of `analyze --json`; what does not exist is null. Findings and transport are those of `verdicts`."""
    document: dict[str, Any] = {
        "trace": path,
        "results": [as_dict(r) for r in results],
        "transport": verdicts.transport.transport,
        "transport_reason": verdicts.transport.reason,
        "findings": [finding_json(f) for f in verdicts.findings],
        "findings_at_s": verdicts.at_s,
    }
    if cut:
        document["cut"] = cut
    return json.dumps(document, allow_nan=False)


def as_dict(analysis: OverlapAnalysis) -> Mapping[str, Any]:
    """One row of `analyze --json`: rounded to what the sensors can mean."""
    row = {name: getattr(analysis, field) for name, field in _JSON_FIELDS.items()}
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in row.items()}


_COLUMNS: tuple[tuple[str, str], ...] = (
    ("GPU", "gpu"), ("window", "window_s"), ("state", "state"), ("health", "health"), ("exposed", "exposed"),
    ("low", "exposed_low"), ("high", "exposed_high"), ("comm", "communication"), ("stall", "stall"), ("wait", "wait"),
    ("r", "correlation"), ("observability", "observability"), ("step", "step_period_s"),
)  # fmt: skip


def print_table(path: str, results: Sequence[OverlapAnalysis], session: Session, language: str) -> None:
    """A row per GPU and window; ratios as numbers from 0 to 1, "-" for what does not exist, reasons below."""
    from rich.table import Table

    console = _console()
    inventory = session.history.inventory
    console.print(f"{Path(path).name}: {len(inventory.of_kind('gpu'))} GPUs of {inventory.host}")
    for at_s in dict.fromkeys(r.at_s for r in results):
        table = Table(title=f"at {at_s:.1f} s", title_justify="left", box=None, pad_edge=False)
        for name, field in _COLUMNS:
            table.add_column(name, justify="left" if field in ("gpu", "state") else "right", no_wrap=True)
        for result in (r for r in results if r.at_s == at_s):
            row = as_dict(result)
            style = _STYLES.get(result.state) if console.is_terminal else None
            table.add_row(*(_cell(field, row[field]) for _, field in _COLUMNS), style=style)
        console.print(table)
    why = (f"{r.gpu_id}, {r.window_s:g} s: {in_both(r.reason).of(language)}" for r in results if r.reason)
    for reason in dict.fromkeys(why):
        console.print(reason)


def _console() -> Console:
    """As wide as the terminal; what is written to a file or a pipe has one width everywhere."""
    from rich.console import Console

    return Console(width=None if Console().is_terminal else 140, highlight=False, markup=False)


_HEADING = Text("Findings at {:.0f} s", "{:.0f} 秒时的结论")
_NO_FINDING = Text("No finding: no rule names a cause.", "没有发现问题：没有规则指出原因。")
_NODE = Text("this node", "本节点")
_SINCE = Text("{}, since {:.0f} s", "{}，自 {:.0f} 秒起")
_TO_DO = Text("What to do, least effort first:", "可以怎么做（由易到难）：")
_COST = Text("Cost: {}", "代价：{}")
_COLON, _COMMA = Text(": ", "："), Text(", ", "，")


def print_findings(verdicts: Verdicts, language: str) -> None:
    """The transport, then each cause with its evidence per GPU, and what to do with what it costs, in one language."""
    console = _console()
    transport = verdicts.transport
    console.print(f"\n{TRANSPORTS[transport.transport].of(language)}", TRANSPORT_REASONS[transport.reason].of(language),
                  sep="" if language == "zh" else " ")  # fmt: skip
    if not verdicts.findings:
        console.print(_NO_FINDING.of(language))
        return
    console.print(_HEADING.of(language).format(verdicts.at_s))
    for name in dict.fromkeys(f.finding for f in verdicts.findings):
        _print_finding(console, [f for f in verdicts.findings if f.finding == name], language)


def _print_finding(console: Console, findings: Sequence[Finding], language: str) -> None:
    """One cause on all of its GPUs: the advice is the same for them."""
    from rich.padding import Padding
    from rich.table import Table

    told = FINDINGS[findings[0].finding]
    console.print(f"\n{told.title.of(language)} ({findings[0].finding})", style="bold")
    console.print(Padding(told.meaning.of(language), (0, 0, 0, 2), expand=False))
    for finding in findings:
        whom = _SINCE.of(language).format(finding.gpu_id or _NODE.of(language), finding.since_s)
        numbers = _COMMA.of(language).join(evidence_text(e, language) for e in finding.evidence)
        console.print(Padding(f"{whom}{_COLON.of(language)}{numbers}", (0, 0, 0, 2), expand=False))
    console.print(Padding(_TO_DO.of(language), (0, 0, 0, 2), expand=False))
    steps = Table.grid(padding=(0, 1, 0, 0))
    for number, advice in enumerate((ADVICE[key] for key in findings[0].advice), 1):
        steps.add_row(f"{number}.", advice.action.of(language))
        steps.add_row("", _COST.of(language).format(advice.cost.of(language)))
    console.print(Padding(steps, (0, 0, 0, 4), expand=False))


# Colours of the states; the word stands beside them.
_STYLES = {"overlapped": "green", "partial": "yellow", "serialized": "red", "stalled": "red", "unobservable": "magenta"}


def _cell(field: str, value: Any) -> str:
    if value is None:
        return "-"
    if field in ("window_s", "step_period_s"):
        return f"{value:.3g} s"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def print_scenarios() -> None:
    """Name and one line of explanation of each scenario."""
    for name, shows in list_scenarios():
        print(f"{name:22s} {shows}")


def simulate_to_file(name: str, path: str, seconds: float | None, seed: int, force: bool) -> str:
    """Write a labelled trace of a scenario; one line that says what is in it."""
    try:
        simulation = simulate(name, seconds, seed)
    except (KeyError, ValueError) as error:
        raise TraceError(str(error.args[0])) from None
    last_s = 0.0
    with TraceWriter(path, force=force) as writer:
        for event in simulation:
            writer.write(event)
            if isinstance(event, Record):
                last_s = event.t_s
    truth = simulation.inventory.truth
    return f"{path}: {name}, {last_s:.0f} s; truth: " + ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in truth.items()
        if isinstance(value, (int, float, str))
    )
