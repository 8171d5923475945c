"""The fleet: which jobs lose how much of the cluster, to what, and on which nodes something is odd."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import (
    EXPOSED,
    GREEN,
    HEALTH,
    LOSS,
    NAMES,
    ORANGE,
    RED,
    RUNBOOK,
    STATE,
    TEXT,
    YELLOW,
    Column,
    Look,
    Query,
    bars,
    dashed,
    grid,
    lines,
    number,
    painted,
    phases,
    timeline,
)
from dashboards.variables import cluster, instance, page
from dashboards.words import PHASES, runbook_link, with_runbook

_C = 'cluster=~"$cluster"'
_N = f'{_C},instance=~"$instance"'
_PHASES = "cluster:overlap_phase_seconds:rate5m"
_LOST = 'phase=~"exposed|stall|wait"'
_W = "cluster, workload, workload_namespace"
_HEALTH = f"instance_workload:overlap_health:ratio_rate5m{{{_N}}}"
_JOB_URL = "/d/overlap-job?var-workload=${__value.raw}&var-cluster=$cluster&${__url_time_range}"
_NODE_URL = "/d/overlap-node?var-instance=${__value.raw}&var-cluster=$cluster&${__url_time_range}"
_WORST = f"topk(25, workload:overlap_exposed:ratio_rate5m{{{_C}}})"
_OF_WORST = f"\nand on ({_W}) {_WORST}"
_DIFFERENCE = f"(\n  {_HEALTH}\n  - on ({_W}) group_left ()\n  quantile by ({_W}) (0.5, {_HEALTH})\n)"
_DIFFERS = f"({_DIFFERENCE} > 0.1\nor\n{_DIFFERENCE} < -0.1)"
_CONGESTION = "ecn_marked_rx|cnp_rx|cnp_tx|retransmit|drops|seq_nak_rx|out_of_order_rx|ack_timeout|rnr|pfc_pause"


def fleet() -> dashboard.Dashboard:
    """Fleet dashboard."""
    d = page("overlap-fleet", "Overlap / Fleet", "Does communication hide behind compute, over all nodes and jobs? Most panels "
             "read the recording rules of deploy/prometheus.", since="now-3h")  # fmt: skip
    d.with_variable(cluster()).with_variable(instance(many=True))

    d.with_panel(
        number(
            "Nodes",
            "Nodes whose exporter answers.",
            Query(f'count(up{{job="overlap-exporter",{_N}}} == 1)'),
            Look("short", steps=((None, GREEN),)),
        )
    )
    d.with_panel(
        number(
            "GPUs at work",
            "GPUs that run a job and can be judged: GPU-seconds per second, over five minutes.",
            Query(f"sum(cluster:overlap_running:rate5m{{{_C}}})"),
            Look("short", decimals=1, steps=((None, GREEN),)),
        )
    )
    d.with_panel(
        number(
            "Exposed communication",
            "Share of the running time of all GPUs that is lost to communication which nothing hides. 0.05 on 1,000 GPUs "
            "is 50 GPUs.",
            Query(f'sum({_PHASES}{{{_C},phase="exposed"}}) / sum(cluster:overlap_running:rate5m{{{_C}}})'),
            EXPOSED,
        )
    )
    d.with_panel(
        number(
            "Health",
            "Share of the communication time of all GPUs that is hidden behind compute.",
            Query(f'sum({_PHASES}{{{_C},phase="overlapped"}}) / sum({_PHASES}{{{_C},phase=~"overlapped|exposed"}})'),
            HEALTH,
        )
    )
    d.with_panel(
        number(
            "GPUs lost now",
            "How many GPUs' worth of time goes to exposed communication, stalls and waits together.",
            Query(f"sum({_PHASES}{{{_C},{_LOST}}})"),
            Look("short", decimals=1, steps=((None, ORANGE),)),
        )
    )
    d.with_panel(
        number(
            "Alerts firing",
            "Alerts of this project that fire at present, without those that only inform.",
            Query(
                'count(ALERTS{alertstate="firing",alertname=~"Overlap.*|Rdma.*|InputStall|StragglerNode|GpuLost|Exporter.*",'
                'severity!="info"}) or vector(0)'
            ),
            Look("short", steps=((None, GREEN), (1, RED))),
        )
    )

    d.with_panel(grid(
        "Worst jobs", "Jobs by the share of their running time that is lost to exposed communication, over five minutes. A job "
        "is a Slurm job, a group of pods, or the node where neither is known. Click a job to see its nodes.",
        [Query(_WORST, ref="A"),
         Query(f"workload:overlap_health:ratio_rate5m{{{_C}}}{_OF_WORST}", ref="B"),
         Query(f'workload:overlap_phase_seconds:rate5m{{{_C},phase="exposed"}}{_OF_WORST}', ref="C"),
         Query(f"workload:overlap_gpus:count{{{_C}}}{_OF_WORST}", ref="D"),
         Query(f"workload:overlap_nodes:count{{{_C}}}{_OF_WORST}", ref="E")],
        [Column("workload", "Job", TEXT, width=200, url=_JOB_URL), Column("Value #A", "Exposed", EXPOSED, "gauge"),
         Column("Value #B", "Health", HEALTH, "gauge"), Column("Value #C", "GPUs lost", Look("short", decimals=1), width=90),
         Column("Value #D", "GPUs", Look("short"), width=70), Column("Value #E", "Nodes", Look("short"), width=70)],
        (12, 12), ("Exposed", True)))  # fmt: skip
    d.with_panel(
        painted(
            bars(
                "GPU-hours lost today, and to what",
                "GPU-hours since midnight: exposed communication (network), stalls (input or storage), waits (stragglers, "
                "pipeline bubbles).",
                [Query(f"sum by (phase) (sum_over_time({_PHASES}{{{_C},{_LOST}}}[$__range:1m])) / 60", "{{phase}}")],
                Look("h", 0, decimals=1),
                (12, 4),
            ),
            {phase: PHASES[phase] for phase in ("exposed", "stall", "wait")},
        ).time_from("now/d")
    )
    d.with_panel(
        grid(
            "Findings now",
            "Causes that the exporters name at present, and on how many GPUs or nodes. The runbook says what to do.",
            [Query(with_runbook(f"count by (finding) (overlap_finding{{{_N}}})"))],
            [
                Column("finding", "Finding", NAMES),
                Column("Value", "GPUs or nodes", Look("short"), width=130),
                Column("runbook", "Runbook", RUNBOOK, width=170, url=runbook_link()),
            ],
            (12, 8),
            ("GPUs or nodes", True),
        )
    )

    d.with_panel(
        phases(
            lines(
                "Where GPU time goes",
                "GPU-seconds per second by phase: the height is the number of GPUs. Red, orange and yellow are lost.",
                [Query(f"sum by (phase) ({_PHASES}{{{_C}}})", "{{phase}}")],
                Look("short", 0),
                stacked=True,
            )
        )
    )
    d.with_panel(
        lines(
            "Exposed share of the worst jobs",
            "The jobs that lost most in the time that is shown.",
            [
                Query(
                    f"workload:overlap_exposed:ratio_rate5m{{{_C}}}\nand on ({_W})\n"
                    f"topk(10, max_over_time(workload:overlap_exposed:ratio_rate5m{{{_C}}}[$__range] @ end()))",
                    "{{workload}}",
                )
            ],
            LOSS,
        )
    )

    d.with_panel(
        timeline(
            "State per node",
            "The worst state among the GPUs of each node, for the 40 nodes that were worst in the time that is shown. "
            "Green is overlapped, red serialized, purple cannot be judged.",
            [
                Query(
                    f"instance:overlap_state:worst{{{_N}}}\nand on (cluster, instance)\n"
                    f"topk(40, avg_over_time(instance:overlap_state:worst{{{_N}}}[$__range] @ end()))",
                    "{{instance}}",
                )
            ],
            STATE,
            (24, 8),
        )
    )

    d.with_panel(grid(
        "Nodes that differ from their job", "Nodes whose health is a tenth and more away from the median of their job's nodes: "
        "one bad link, one slow GPU, one wrong setting.",
        [Query(_DIFFERS, ref="A"), Query(f"{_HEALTH}\nand on (instance, {_W}) {_DIFFERS}", ref="B")],
        [Column("instance", "Node", TEXT, width=160, url=_NODE_URL), Column("workload", "Job", TEXT, url=_JOB_URL),
         Column("Value #A", "Against the median", Look("percentunit", decimals=1, steps=((None, RED), (0, GREEN))),
         "colortext"),
         Column("Value #B", "Health", HEALTH, "gauge")],
        (12, 8), ("Against the median", False)))  # fmt: skip
    d.with_panel(
        painted(
            lines(
                "Transport",
                "Nodes by what carries their job's traffic. TCP where RDMA exists costs the whole job.",
                [Query(f"sum by (transport) (overlap_transport_state{{{_N}}})", "{{transport}}")],
                Look("short", 0),
                stacked=True,
            ),
            {"rdma": GREEN, "tcp": RED, "mixed": YELLOW, "none": "#7b8087", "unknown": "#5a5a66"},
        )
    )
    d.with_panel(
        lines(
            "Congestion and loss",
            "Events of all RDMA ports per second. Marks and notifications (ecn, cnp) are the fabric at work; retransmits, "
            "drops and timeouts are loss.",
            [
                Query(
                    f'sum by (counter) (rate(overlap_rdma_events_total{{{_N},counter=~"{_CONGESTION}"}}[$__rate_interval]))',
                    "{{counter}}",
                )
            ],
            Look("cps", 0),
        )
    )
    d.with_panel(
        dashed(
            lines(
                "RDMA traffic",
                "Bits per second of all RDMA ports, both directions.",
                [
                    Query(f"8 * sum(rate(overlap_rdma_transmit_bytes_total{{{_N}}}[$__rate_interval]))", "sent"),
                    Query(f"8 * sum(rate(overlap_rdma_receive_bytes_total{{{_N}}}[$__rate_interval]))", "received", "B"),
                ],
                Look("bps", 0),
            ),
            "received",
        )
    )
    return d
