"""THE tables of codes, colours and short words that several dashboards share: states, findings, phases.

A state or a finding is a label in Prometheus; a cell of a table needs a number that Grafana maps back to words and colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.prometheus.runbooks import DASHBOARD, panel_of
from exporter.meanings import FINDINGS

# As instance:overlap_state:worst has them: the worse, the higher.
STATES: tuple[tuple[str, str], ...] = (
    ("no_data", "#5a5a66"),
    ("idle", "#7b8087"),
    ("compute_only", "#5794f2"),
    ("overlapped", "#56a64b"),
    ("unobservable", "#b877d9"),
    ("partial", "#f2cc0c"),
    ("stalled", "#e0752d"),
    ("serialized", "#e02f44"),
)

PHASES: Mapping[str, str] = {
    "overlapped": "#56a64b",
    "compute": "#5794f2",
    "exposed": "#e02f44",
    "stall": "#e0752d",
    "wait": "#f2cc0c",
    "idle": "#7b8087",
    "unknown": "#5a5a66",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding as a cell shows it: its runbook, and in a few words what to do first."""

    finding: str
    runbook: str
    first: str

    @property
    def title(self) -> str:
        return FINDINGS[self.finding].title.en


# The one that explains most comes last: where several are active, a cell shows the highest.
CAUSES: tuple[Cause, ...] = (
    Cause("sensor_too_slow", "SensorTooSlow", "Read the bounds; profile a few steps"),
    Cause("shared_node", "SensorTooSlow", "Pair ports by configuration, or run alone"),
    Cause("power_capped", "GpuPowerCapped", "Compare power limits within the job"),
    Cause("exposed_communication", "OverlapSerialized", "Raise buckets; check prefetch and overlap_comm"),
    Cause("small_buckets", "OverlapSerialized", "Raise bucket_cap_mb; wrap larger units"),
    Cause("congestion", "RdmaCongestion", "Spread flows; check PFC and ECN"),
    Cause("input_stall", "InputStall", "More loader workers; local data; async checkpoints"),
    Cause("straggler_wait", "StragglerNode", "Compare its clocks, limits and XID errors"),
    Cause("link_degraded", "RdmaLinkDegraded", "Inspect the port; keep jobs away"),
    Cause("tcp_fallback", "RdmaFellBackToTcp", "NCCL_DEBUG=INFO; then restart on RDMA"),
)


def state_code(selector: str) -> str:
    """PromQL: the states that `selector` (its matchers, without braces) picks, each times its code; others are 0."""
    terms = (f'overlap_state{{{selector},state="{state}"}} * {code}' for code, (state, _) in enumerate(STATES))
    return "\nor ".join(terms)


def finding_code(selector: str) -> str:
    """PromQL: findings as numbers, 1 for the first of the table."""
    terms = (f'overlap_finding{{{selector},finding="{c.finding}"}} * {code}' for code, c in enumerate(CAUSES, 1))
    return "\nor ".join(terms)


# The number of a runbook's panel, which is what a cell holds -> its name, which is what the cell shows.
RUNBOOKS: Mapping[str, str] = {str(panel_of(cause.runbook)): cause.runbook for cause in CAUSES}


def runbook_link(base: str = "") -> str:
    """Where a cell with a runbook leads: its panel in Grafana, or the page NAME.md below `base`."""
    return f"{base.rstrip('/')}/${{__value.text}}.md" if base else f"/d/{DASHBOARD}?viewPanel=${{__value.raw}}"


def with_runbook(expr: str) -> str:
    """PromQL: the label `runbook`, the number of its panel, from the label `finding`."""
    for number, name in RUNBOOKS.items():
        findings = "|".join(cause.finding for cause in CAUSES if cause.runbook == name)
        expr = f'label_replace({expr}, "runbook", "{number}", "finding", "{findings}")'
    return expr
