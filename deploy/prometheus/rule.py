"""What a rule is, and how it is written as YAML; knows no metric.

`recording.py` and `alerts.py` are tables of these, `build.py` writes them. The text of every expression is taken over as it
stands; only `faster` changes it, and only its durations.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded series. why: what it is for, written above it as a comment."""

    record: str
    expr: str
    why: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. for_s and keep_s in seconds; `why_for` and `why_keep` say why so long, `why` where the limit is from.

    summary and description are templates of Prometheus: the summary carries numbers, the description the first step.
    panel: dashboard and variables that show the matter, as a path of Grafana.
    """

    name: str
    severity: str
    expr: str
    for_s: int
    keep_s: int
    why: str
    why_for: str
    why_keep: str
    summary: str
    description: str
    panel: str


@dataclass(frozen=True, slots=True)
class Links:
    """Where alerts point. runbook: name of an alert -> its runbook; grafana: what stands before paths of Grafana."""

    runbook: Callable[[str], str]
    grafana: str = ""

    def whole(self, path: str) -> str:
        """A path of Grafana with Grafana's address, where that is known; any other address as it is."""
        return f"{self.grafana.rstrip('/')}{path}" if path.startswith("/") else path


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated in turn, every `interval_s` seconds."""

    name: str
    interval_s: int
    rules: tuple[Recording | Alert, ...]
    why: str = ""


_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_DURATION = re.compile(r"(?<=[\[:])(\d+)([smhd])(?=[\]:])|(?<=offset )(\d+)([smhd])")


def duration(seconds: int) -> str:
    """As Prometheus writes it.

    >>> duration(900), duration(90), duration(86400)
    ('15m', '90s', '1d')
    """
    unit, length = next((u, n) for u, n in _UNITS if seconds % n == 0)
    return f"{seconds // length}{unit}"


def _shorter(expr: str, by: int) -> str:
    lengths = dict(_UNITS)

    def shorter(match: re.Match[str]) -> str:
        number, unit = match[1] or match[3], match[2] or match[4]
        seconds, rest = divmod(int(number) * lengths[unit], by)
        if rest:
            raise ValueError(f"{match[0]} divided by {by} is no whole number of seconds")
        return duration(seconds)

    return _DURATION.sub(shorter, expr)


def faster(group: Group, by: int) -> Group:
    """The same group with every duration divided by `by`: ranges, offsets, `for`, `keep_firing_for`, interval.

    For tests that must not take an hour, against a node that is played `by` times faster.

    >>> faster(Group("g", 30, (Recording("a", "rate(b[5m]) - rate(b[1h:10m] offset 2h)"),)), 10).rules[0].expr
    'rate(b[30s]) - rate(b[6m:1m] offset 12m)'
    """

    def shorter(rule: Recording | Alert) -> Recording | Alert:
        rule = replace(rule, expr=_shorter(rule.expr, by))
        return replace(rule, for_s=rule.for_s // by, keep_s=rule.keep_s // by) if isinstance(rule, Alert) else rule

    return replace(group, interval_s=group.interval_s // by, rules=tuple(map(shorter, group.rules)))


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(text, 110 - len(indent)):
        yield f"{indent}# {line}"


def _expression(expr: str, indent: str) -> Iterator[str]:
    yield f"{indent}expr: |-"
    yield from textwrap.indent(textwrap.dedent(expr).strip(), indent + "  ").splitlines()


def _labels(labels: Mapping[str, str]) -> Iterator[str]:
    if labels:
        yield "        labels:"
        yield from (f"          {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in labels.items())


def _recording(rule: Recording) -> Iterator[str]:
    yield from _comment(rule.why, "      ")
    yield f"      - record: {rule.record}"
    yield from _expression(rule.expr, "        ")
    yield from _labels(rule.labels)


def _alert(rule: Alert, links: Links, keep: bool) -> Iterator[str]:
    yield from _comment(rule.why, "      ")
    yield f"      - alert: {rule.name}"
    yield from _expression(rule.expr, "        ")
    yield from _comment(rule.why_for, "        ")
    yield f"        for: {duration(rule.for_s)}"
    if keep:
        yield from _comment(rule.why_keep, "        ")
        yield f"        keep_firing_for: {duration(rule.keep_s)}"
    yield from _labels({"severity": rule.severity})
    yield "        annotations:"
    runbook, panel = links.whole(links.runbook(rule.name)), links.whole(rule.panel)
    for key, value in (("summary", rule.summary), ("description", rule.description),
                       ("runbook_url", runbook), ("dashboard", panel)):  # fmt: skip
        yield f"          {key}: {json.dumps(value, ensure_ascii=False)}"


def groups_yaml(groups: tuple[Group, ...], links: Links, head: str = "", keep: bool = True) -> str:
    """A rule file; `head` is a comment at its top.

    keep: with keep_firing_for, which vmalert before 1.93 and Prometheus before 2.42 refuse.
    """
    lines = [*_comment(head, ""), "groups:"]
    for group in groups:
        lines += [*_comment(group.why, "  "), f"  - name: {group.name}"]
        lines += [f"    interval: {duration(group.interval_s)}", "    rules:"]
        for rule in group.rules:
            lines += _alert(rule, links, keep) if isinstance(rule, Alert) else _recording(rule)
    return "\n".join(lines) + "\n"


def operator_yaml(name: str, rule_file: str) -> str:
    """The same groups as a PrometheusRule of the Prometheus operator."""
    head = f"""\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: overlap-exporter
spec:
"""
    return head + textwrap.indent(rule_file, "  ", lambda line: bool(line.strip()))
