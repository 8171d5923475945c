"""Reads PromQL: which metrics and labels a query uses, and whether the catalogue knows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import promql_parser

from deploy.prometheus.recording import RECORDING
from deploy.prometheus.rule import Recording
from exporter.metrics import FAMILIES

# What scraping adds; `cluster` comes from external or target labels, and may be missing.
TARGET_LABELS = frozenset(("instance", "job", "cluster"))
_PROCESS = ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds")
# Join series of the contract: rules and dashboards are written with them, and do without.
_JOINS = {
    "overlap_gpu_pod_info": "gpu uuid mig_uuid workload_namespace workload_pod workload_container",
    "overlap_gpu_job_info": "gpu uuid scheduler job_id",
}
_OF_LEVEL = {
    "gpu": "instance gpu uuid workload workload_namespace workload_pod",
    "instance_workload": "instance workload workload_namespace phase",
    "workload": "instance workload workload_namespace phase",  # instance: of workload:overlap_place:info
    "instance": "instance phase",
    "cluster": "phase",
    "port": "instance device port",
}


def _known() -> Mapping[str, frozenset[str]]:
    known = {name: frozenset(labels.split()) for name, labels in _JOINS.items()}
    for family in FAMILIES:
        if family.kind == "histogram":
            for suffix in ("_bucket", "_sum", "_count"):
                known[family.name + suffix] = frozenset((*family.labels, "le"))
        else:
            known[family.name] = frozenset(family.labels)
    known |= dict.fromkeys(("up", "ALERTS", *_PROCESS), frozenset())
    known["ALERTS"] = frozenset(("alertname", "alertstate", "severity", "workload", "workload_namespace", "source"))
    for group in RECORDING:
        for rule in group.rules:
            assert isinstance(rule, Recording)
            known[rule.record] = frozenset(_OF_LEVEL[rule.record.partition(":")[0]].split())
    return {name: labels | TARGET_LABELS for name, labels in known.items()}


KNOWN = _known()
# What label_replace and label_join in a query make.
_MADE = re.compile(r'label_(?:replace|join)\([^"]*?"(\w+)"', re.DOTALL)


def plain(query: str) -> str:
    """A query of a dashboard or of an alert's text as PromQL: variables have values."""
    query = re.sub(r"\$\{?(__rate_interval|__interval|__range)\}?", "5m", query)
    return re.sub(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)", "x", query.replace("%q", '"x"'))


def _walk(node: object) -> Iterator[object]:
    yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        if (child := getattr(node, name, None)) is not None and not isinstance(child, (str, float)):
            yield from _walk(child)
    for child in getattr(node, "args", ()) or ():
        yield from _walk(child)


def unknown(query: str) -> list[str]:
    """Metrics and labels of a query that nothing exposes; ValueError where it is no PromQL."""
    text = plain(query)
    found: list[str] = []
    usable = set(_MADE.findall(text))
    nodes = list(_walk(promql_parser.parse(text)))
    selectors = [n for n in nodes if isinstance(n, promql_parser.VectorSelector)]
    assert selectors or re.fullmatch(r"vector\(.*\)|time\(\)", text), f"no metric in {query}"
    for selector in selectors:
        if selector.name not in KNOWN:
            found.append(str(selector.name))
            continue
        usable |= KNOWN[selector.name]
        found += [f"{selector.name}{{{m.name}}}" for m in selector.matchers.matchers if m.name not in KNOWN[selector.name]]
    for node in nodes:
        for label in _labels_of(node):
            if label not in usable:
                found.append(f"by or on ({label})")
    return found


def _labels_of(node: object) -> Iterator[str]:
    modifier = getattr(node, "modifier", None)
    if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
        yield from modifier.labels
    if isinstance(node, promql_parser.BinaryExpr) and modifier is not None:
        if modifier.matching is not None:
            yield from modifier.matching.labels
        if modifier.group_labels is not None:
            yield from modifier.group_labels
