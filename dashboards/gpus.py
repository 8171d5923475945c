"""The table on top of the node dashboard: a row per GPU, from its state to what should be done first."""

from __future__ import annotations

from grafana_foundation_sdk.builders.table import Panel

from dashboards.panels import (
    CAUSE,
    EXPOSED,
    FIRST,
    HEALTH,
    LOST,
    STATE,
    TEXT,
    UP,
    Column,
    Look,
    Query,
    grid,
)
from dashboards.words import finding_code, state_code

NODE = 'cluster=~"$cluster",instance=~"$instance"'
WINDOW = 'window="$window"'

_OF_GPU, _OF_NODE = finding_code(f'{NODE},gpu!=""'), finding_code(f'{NODE},gpu=""')
# What the node has, each of its GPUs has; a GPU without a finding is 0.
_FINDING = (
    f"{_OF_GPU}\nor overlap_gpu_up{{{NODE}}} * on (cluster, instance) group_left ()\n"
    f"max by (cluster, instance) ({_OF_NODE})\nor overlap_gpu_up{{{NODE}}} * 0"
)
# The table on top: reference, query, column.
_TABLE: tuple[tuple[str, str, Column], ...] = (
    ("A", f"overlap_gpu_up{{{NODE}}}", Column("Value #A", "Answers", UP, "colortext", 75)),
    ("B", state_code(NODE), Column("Value #B", "State", STATE, "color", 110)),
    ("C", f"overlap_health_ratio{{{NODE},{WINDOW}}}", Column("Value #C", "Health", HEALTH, "gauge", 180)),
    ("D", f"overlap_exposed_ratio{{{NODE},{WINDOW}}}", Column("Value #D", "Exposed", EXPOSED, "gauge", 180)),
    ("E", f"overlap_stall_ratio{{{NODE},{WINDOW}}}", Column("Value #E", "Stall", LOST, "colortext", 75)),
    ("F", f"overlap_wait_ratio{{{NODE},{WINDOW}}}", Column("Value #F", "Wait", LOST, "colortext", 75)),
    ("G", f"overlap_power_traffic_correlation{{{NODE},{WINDOW}}}",
     Column("Value #G", "Correlation", Look(decimals=2), width=95)),
    ("H", f"overlap_gpu_power_median_watts{{{NODE}}} or overlap_gpu_power_watts{{{NODE}}}",
     Column("Value #H", "Power", Look("watt", decimals=0), width=75)),
    ("I", _FINDING, Column("Value #I", "Finding", CAUSE, "colortext", 260)),
    ("J", f"({_FINDING}) + 0", Column("Value #J", "What to do first", FIRST)),
)


def by_gpu(series: str) -> str:
    """PromQL: one series for each GPU of the node."""
    return f"max by (gpu) ({series})"


def gpus() -> Panel:
    """The table."""
    return grid(
        "GPUs",
        "A row per GPU: its state, how much of its communication is hidden (health), what is lost (exposed, stall, wait), "
        "the cause that the exporter names, and what to do first. Power is the median of a minute.",
        [Query(by_gpu(expr), ref=ref) for ref, expr, _ in _TABLE],
        [Column("gpu", "GPU", TEXT, width=55), *(column for _, _, column in _TABLE)],
        (24, 10),
        ("GPU", False),
    )
