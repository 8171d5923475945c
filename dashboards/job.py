"""One job: its nodes side by side, what it loses over time and to what, and what to do about it."""

from __future__ import annotations

from dataclasses import replace

from grafana_foundation_sdk.builders import dashboard, timeseries
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from dashboards.panels import (
    BLUE,
    EXPOSED,
    GREEN,
    GREY,
    HEALTH,
    LOSS,
    LOST,
    NAMES,
    ORANGE,
    RUNBOOK,
    SHARE,
    TEXT,
    YELLOW,
    Column,
    Look,
    Query,
    grid,
    lines,
    number,
    painted,
)
from dashboards.variables import cluster, page, variable, window
from dashboards.words import PHASES, runbook_link, with_runbook

_J = 'cluster=~"$cluster",workload_namespace=~"$namespace",workload=~"$workload"'
_GPU = "cluster, instance, uuid"
_MEMBERS = f"max by ({_GPU}) (gpu:overlap_workload:info{{{_J}}})"
_NODES = f"instance_workload:overlap_gpus:count{{{_J}}}"
_OF_GPUS = 'overlap_finding{uuid!=""}'
# The boards answer with the mean since the read before: a scrape sees a tenth of a second of it.
_SM = "avg_over_time(overlap_gpu_sm_utilization_ratio[$__rate_interval])"
_TENSOR = "avg_over_time(overlap_gpu_tensor_utilization_ratio[$__rate_interval])"
_CORRELATION = 'overlap_power_traffic_correlation{window="$window"}'
_NODE_URL = "/d/overlap-node?var-instance=${__value.raw}&var-cluster=$cluster&${__url_time_range}"


# Without a judgement: more is neither better nor worse by itself.
PLAIN = replace(SHARE, steps=((None, GREY),))


def _mine(series: str) -> str:
    """A series of GPUs, of this job's GPUs only."""
    return f"({series} and on ({_GPU}) {_MEMBERS})"


def _share(phase: str) -> str:
    return f"workload:overlap_{phase}:ratio_rate5m{{{_J}}}"


def band(panel: timeseries.Panel, low: str, median: str, high: str, color: str, *, right: bool = False) -> timeseries.Panel:
    """Draws a median line within the band between two others; `right`: on the other axis."""
    axis = [DynamicConfigValue("custom.axisPlacement", "right" if right else "left")]
    fixed = DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})
    thin = [DynamicConfigValue("custom.lineWidth", 0), fixed, *axis]
    panel.override_by_name(low, thin)
    panel.override_by_name(
        high, [*thin, DynamicConfigValue("custom.fillBelowTo", low), DynamicConfigValue("custom.fillOpacity", 20)]
    )
    # Two lines that lie on each other are still two: the one on the right is dashed.
    style = [DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [12, 8]})] if right else []
    return panel.override_by_name(median, [fixed, *axis, *style])


def job() -> dashboard.Dashboard:
    """Job dashboard."""
    d = page("overlap-job", "Overlap / Job",
    "One job over all its nodes: by Slurm job, by group of pods, or by node where neither "
             "is known. Reads the recording rules of deploy/prometheus.")  # fmt: skip
    d.with_variable(cluster())
    d.with_variable(
        variable(
            "namespace",
            "Namespace",
            'label_values(gpu:overlap_workload:info{cluster=~"$cluster"}, workload_namespace)',
            "Namespace of the pods; Slurm jobs have none",
            many=True,
        )
    )
    d.with_variable(
        variable(
            "workload",
            "Job",
            'label_values(gpu:overlap_workload:info{cluster=~"$cluster",workload_namespace=~"$namespace"}, workload)',
            "Slurm job, group of pods, or node",
            many=False,
        )
    )
    d.with_variable(window())

    d.with_panel(
        number(
            "GPUs",
            "GPUs of the job that answer.",
            Query(f"workload:overlap_gpus:count{{{_J}}}"),
            Look(steps=((None, GREEN),)),
            (3, 4),
        )
    )
    d.with_panel(
        number(
            "Nodes",
            "Nodes of the job.",
            Query(f"workload:overlap_nodes:count{{{_J}}}"),
            Look(steps=((None, GREEN),)),
            (3, 4),
        )
    )
    d.with_panel(
        number(
            "Exposed",
            "Share of the job's running time that is lost to communication which nothing hides.",
            Query(_share("exposed")),
            EXPOSED,
            (4, 4),
        )
    )
    d.with_panel(
        number(
            "Health",
            "Share of the job's communication time that is hidden behind compute.",
            Query(f"workload:overlap_health:ratio_rate5m{{{_J}}}"),
            HEALTH,
            (4, 4),
        )
    )
    d.with_panel(
        number(
            "GPUs lost",
            "Exposed communication, stalls and waits as a number of GPUs that do nothing useful.",
            Query(f'sum(workload:overlap_phase_seconds:rate5m{{{_J},phase=~"exposed|stall|wait"}})'),
            Look("short", decimals=1, steps=((None, ORANGE),)),
            (3, 4),
        )
    )
    d.with_panel(
        number(
            "Compute share",
            "Share of the running time with compute, hidden communication included.",
            Query(
                f'sum(workload:overlap_phase_seconds:rate5m{{{_J},phase=~"compute|overlapped"}})'
                f" / sum(workload:overlap_running:rate5m{{{_J}}})"
            ),
            PLAIN,
            (4, 4),
        )
    )
    d.with_panel(
        number(
            "Upper bound of MFU",
            "Tensor activity: share of cycles in which tensor cores worked, where the board tells it (Hopper and later). "
            "Model FLOPs utilisation cannot be higher.",
            Query(f"avg({_mine(_TENSOR)})"),
            PLAIN,
            (3, 4),
        )
    )

    d.with_panel(grid(
        "Nodes side by side", "What each node of the job loses, over five minutes. One row that differs from the others is a "
        "node's own trouble; all alike is the job's or the fabric's. Click a node to see its GPUs.",
        [Query(f"instance_workload:overlap_exposed:ratio_rate5m{{{_J}}}", ref="A"),
         Query(f"instance_workload:overlap_health:ratio_rate5m{{{_J}}}", ref="B"),
         Query(f"instance_workload:overlap_stall:ratio_rate5m{{{_J}}}", ref="C"),
         Query(f"instance_workload:overlap_wait:ratio_rate5m{{{_J}}}", ref="D"),
         Query(f"instance_workload:overlap_wait_least:ratio_rate5m{{{_J}}}", ref="E"),
         Query(f"instance_workload:overlap_step_period_seconds:median{{{_J}}}", ref="F"),
         Query(_NODES, ref="G")],
        [Column("instance", "Node", TEXT, width=140, url=_NODE_URL), Column("Value #B", "Health", HEALTH, "gauge", 125),
         Column("Value #A", "Exposed", EXPOSED, "gauge", 125), Column("Value #C", "Stall", LOST, "gauge", 125),
         Column("Value #D", "Wait", LOST, "gauge", 125), Column("Value #E", "Least wait", SHARE, width=90),
         Column("Value #F", "Step", Look("s", decimals=2), width=85), Column("Value #G", "GPUs", Look("short"), width=55)],
        (14, 9), ("Exposed", True)))  # fmt: skip
    d.with_panel(grid(
        "Findings", "Causes that the exporters of the job's nodes name at present. Click one for its runbook.",
        [Query(with_runbook(
            f"count by (finding, instance) (\n  {_mine(_OF_GPUS)}\n"
            f"  or (overlap_finding{{uuid=''}} and on (cluster, instance) {_NODES})\n)"))],
        [Column("finding", "Finding", NAMES), Column("instance", "Node", TEXT, width=120, url=_NODE_URL),
         Column("Value", "GPUs", Look("short"), width=55),
         Column("runbook", "Runbook", RUNBOOK, width=165, url=runbook_link())],
        (10, 9)))  # fmt: skip

    d.with_panel(
        painted(
            lines(
                "Exposed, stall and wait",
                "What the job loses of its running time: to the network, to input or storage, to stragglers and bubbles.",
                [Query(_share(phase), phase, ref) for phase, ref in (("exposed", "A"), ("stall", "B"), ("wait", "C"))],
                LOSS,
                stacked=True,
            ),
            PHASES,
        )
    )
    d.with_panel(
        lines(
            "Health of each node",
            "Share of the communication time that each node hides, and the whole job.",
            [Query(f"instance_workload:overlap_health:ratio_rate5m{{{_J}}}", "{{instance}}"),
             Query(f"workload:overlap_health:ratio_rate5m{{{_J}}}", "whole job", "B")],
            HEALTH,
        )
    )
    d.with_panel(
        lines(
            "Exposed share of each node",
            "Nodes of a synchronous job lose alike; one that loses more is the reason or has a worse link.",
            [Query(f"instance_workload:overlap_exposed:ratio_rate5m{{{_J}}}", "{{instance}}")],
            LOSS,
        )
    )
    d.with_panel(
        lines(
            "Wait of the GPU that waits least",
            "On each node, the wait of the GPU that waits least. One low line among high ones is the node that all others "
            "wait for.",
            [Query(f"instance_workload:overlap_wait_least:ratio_rate5m{{{_J}}}", "{{instance}}")],
            LOSS,
        )
    )
    d.with_panel(
        lines(
            "Step period across nodes",
            "The rhythm of the job as each node shows it. Nodes of a synchronous job agree.",
            [Query(f"instance_workload:overlap_step_period_seconds:median{{{_J}}}", "{{instance}}")],
            Look("s", 0),
        )
    )
    d.with_panel(
        lines(
            "Correlation of power and traffic",
            "Pearson correlation, mean over the job's GPUs on each node: near -1 they take turns; near 0 or missing, they "
            "do not alternate or are both flat. It cannot say how much is lost.",
            [Query(f"avg by (instance) ({_mine(_CORRELATION)})", "{{instance}}")],
            Look("short", -1, 1),
        )
    )
    for title, what, series, unit, factor, color in (
        ("Power", "board power", "overlap_gpu_power", "watt", "", ORANGE),
        ("Traffic", "traffic of each GPU", "overlap_traffic", "bps", "8 * ", BLUE),
    ):
        suffix = "watts" if unit == "watt" else "bytes_per_second"
        names = ("5 %", "median", "95 %")
        queries = [Query(f"{factor}avg({_mine(f'{series}_{part}_{suffix}')})", name, ref)
                   for part, name, ref in zip(("low", "median", "high"), names, "ABC", strict=True)]  # fmt: skip
        text = f"Mean over the job's GPUs of the 5, 50 and 95 % of {what} within a minute: the swing that no scrape sees."
        panel = lines(f"Band of {title.lower()}", text, queries, Look(unit, 0))
        d.with_panel(band(panel, *names, color))
    d.with_panel(
        painted(
            lines(
                "Compute share and tensor activity (upper bound of MFU)",
                "Time with compute as a share of running time; activity of SMs and tensor cores where the board tells it "
                "(Hopper and later). Model FLOPs utilisation cannot be higher than tensor activity.",
                [
                    Query(
                        f'sum(workload:overlap_phase_seconds:rate5m{{{_J},phase=~"compute|overlapped"}})'
                        f" / sum(workload:overlap_running:rate5m{{{_J}}})",
                        "compute share",
                    ),
                    Query(f"avg({_mine(_SM)})", "SM activity", "B"),
                    Query(
                        f"avg({_mine(_TENSOR)})",
                        "tensor activity: upper bound of MFU",
                        "C",
                    ),
                ],
                SHARE,
            ),
            {"compute share": BLUE, "SM activity": YELLOW, "tensor activity: upper bound of MFU": GREEN},
        )
    )
    d.with_panel(
        painted(
            lines(
                "GPUs by phase",
                "GPU-seconds per second of the job by phase: the height is its number of GPUs.",
                [Query(f"sum by (phase) (workload:overlap_phase_seconds:rate5m{{{_J}}})", "{{phase}}")],
                Look("short", 0),
                stacked=True,
            ),
            PHASES,
        )
    )
    return d
