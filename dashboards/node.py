"""One node: the picture that everybody knows, power beside traffic, for each GPU, and all that explains it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from dashboards.job import band
from dashboards.panels import (
    BLUE,
    CAUSE,
    EXPOSED,
    FIRST,
    GREEN,
    HEALTH,
    LOST,
    ORANGE,
    RED,
    SHARE,
    STATE,
    TEXT,
    UP,
    Column,
    Look,
    Query,
    grid,
    lines,
    painted,
    phases,
    timeline,
)
from dashboards.variables import cluster, instance, link, page, variable, window
from dashboards.words import finding_code, state_code

_N = 'cluster=~"$cluster",instance=~"$instance"'
_G = f'{_N},gpu=~"$gpu"'
_W = 'window="$window"'
_LIVE = "http://${instance}:9777/"
_ERRORS = "link_error|link_down|credit_stall|peer_dead"
_ERROR_RATE = f'rate(overlap_rdma_events_total{{{_N},counter=~"{_ERRORS}"}}[$__rate_interval])'
_CONGESTION = (
    "ecn_marked_rx|cnp_tx|cnp_rx|out_of_order_rx|seq_nak_rx|ack_timeout|retransmit|rnr|rate_limited|drops|pfc_pause"
)
_OF_GPU, _OF_NODE = finding_code(f'{_N},gpu!=""'), finding_code(f'{_N},gpu=""')
# What the node has, each of its GPUs has; a GPU without a finding is 0.
_FINDING = (
    f"{_OF_GPU}\nor overlap_gpu_up{{{_N}}} * on (cluster, instance) group_left ()\n"
    f"max by (cluster, instance) ({_OF_NODE})\nor overlap_gpu_up{{{_N}}} * 0"
)
# The table on top: reference, query, column.
_TABLE: tuple[tuple[str, str, Column], ...] = (
    ("A", f"overlap_gpu_up{{{_N}}}", Column("Value #A", "Answers", UP, "colortext", 75)),
    ("B", state_code(_N), Column("Value #B", "State", STATE, "color", 110)),
    ("C", f"overlap_health_ratio{{{_N},{_W}}}", Column("Value #C", "Health", HEALTH, "gauge", 190)),
    ("D", f"overlap_exposed_ratio{{{_N},{_W}}}", Column("Value #D", "Exposed", EXPOSED, "gauge", 190)),
    ("E", f"overlap_stall_ratio{{{_N},{_W}}}", Column("Value #E", "Stall", LOST, "colortext", 75)),
    ("F", f"overlap_wait_ratio{{{_N},{_W}}}", Column("Value #F", "Wait", LOST, "colortext", 75)),
    ("G", f"overlap_power_traffic_correlation{{{_N},{_W}}}", Column("Value #G", "Correlation", Look(decimals=2), width=95)),
    ("H", f"overlap_gpu_power_watts{{{_N}}}", Column("Value #H", "Power", Look("watt", decimals=0), width=75)),
    ("I", _FINDING, Column("Value #I", "Finding", CAUSE, "colortext", 230)),
    ("J", f"({_FINDING}) + 0", Column("Value #J", "What to do first", FIRST)),
)


def _by_gpu(series: str) -> str:
    return f"max by (gpu) ({series})"


def node() -> dashboard.Dashboard:
    """Node dashboard."""
    d = page(
        "overlap-node",
        "Overlap / Node",
        "One node: a row per GPU, power beside traffic, pairing, links, throttling. Reads the exporter's own series only.",
        refresh="15s",
        since="now-15m",
    )
    d.with_variable(cluster()).with_variable(instance(many=False))
    gpus = f"label_values(overlap_gpu_up{{{_N}}}, gpu)"
    d.with_variable(variable("gpu", "GPU", gpus, "GPUs of the node, by index", many=True))
    d.with_variable(window())
    d.link(
        link(
            "Live page of the node",
            _LIVE,
            "The exporter's own page: power and traffic as they come, evidence and advice. The port is that of the default.",
        )
    )
    d.with_panel(
        grid(
            "GPUs",
            "A row per GPU: its state, how much of its communication is hidden (health), what is lost (exposed, stall, wait), "
            "the cause that the exporter names, and what to do first.",
            [Query(_by_gpu(expr), ref=ref) for ref, expr, _ in _TABLE],
            [Column("gpu", "GPU", TEXT, width=55), *(column for _, _, column in _TABLE)],
            (24, 10),
            ("GPU", False),
        )
    )

    power, traffic = ("power 5 %", "power median", "power 95 %"), ("traffic 5 %", "traffic median", "traffic 95 %")
    queries = [
        *(Query(f"max by (gpu) (overlap_gpu_power_{part}_watts{{{_G}}})", name, ref)
          for part, name, ref in zip(("low", "median", "high"), power, "ABC", strict=True)),
        *(Query(f"8 * max by (gpu) (overlap_traffic_{part}_bytes_per_second{{{_G}}})", name, ref)
          for part, name, ref in zip(("low", "median", "high"), traffic, "DEF", strict=True)),
    ]  # fmt: skip
    picture = lines(
        "Power and traffic of GPU $gpu",
        "Power (left) beside traffic (right), median and the band from 5 to 95 % within a minute. Flat beside flat is good; "
        "bands that both reach from low to high mean that they take turns, which two averages would never show.",
        queries,
        Look("watt", 0),
        (24, 9),
    )
    band(band(picture, *power, ORANGE), *traffic, BLUE, right=True)
    for name in traffic:
        picture.override_by_name(name, [DynamicConfigValue("unit", "bps")])
    d.with_panel(picture.repeat("gpu").repeat_direction("h").max_per_row(2))

    d.with_panel(
        timeline(
            "State",
            "Verdict on each GPU over time.",
            [Query(f"max by (gpu) (\n{state_code(_G)}\n)", "GPU {{gpu}}")],
            STATE,
            (24, 8),
        )
    )
    d.with_panel(
        lines(
            "Health",
            "Share of communication time hidden behind compute. Absent where it cannot be judged.",
            [Query(_by_gpu(f"overlap_health_ratio{{{_G},{_W}}}"), "GPU {{gpu}}")],
            HEALTH,
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Exposed communication",
            "Share of running time lost to communication that nothing hides.",
            [Query(_by_gpu(f"overlap_exposed_ratio{{{_G},{_W}}}"), "GPU {{gpu}}")],
            EXPOSED,
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Correlation of power and traffic",
            "Near -1: they take turns. Near 0 or absent: they do not, or both are flat, which is perfect overlap. It "
            "cannot say how much time is lost.",
            [Query(_by_gpu(f"overlap_power_traffic_correlation{{{_G},{_W}}}"), "GPU {{gpu}}")],
            Look("short", -1, 1),
            (8, 8),
        )
    )
    d.with_panel(
        phases(
            lines(
                "Where GPU time goes",
                "GPU-seconds per second by phase; the height is the number of GPUs.",
                [Query(f"sum by (phase) (rate(overlap_phase_seconds_total{{{_G}}}[$__rate_interval]))", "{{phase}}")],
                Look("short", 0),
                (12, 8),
                stacked=True,
            )
        )
    )
    d.with_panel(
        grid(
            "Pairing",
            "Which port, interface or fabric carries the traffic of which GPU, and why: PIX and PXB share a PCIe switch, "
            "NODE a NUMA node.",
            [Query(f"overlap_gpu_link_info{{{_G}}}")],
            [
                Column("gpu", "GPU", TEXT, width=60),
                Column("path", "Path", TEXT, width=80),
                Column("device", "Device", TEXT),
                Column("port", "Port", TEXT, width=60),
                Column("reason", "Why", TEXT),
            ],
            (12, 8),
            ("GPU", False),
        )
    )

    d.with_panel(
        lines(
            "RDMA traffic by port",
            "Bits per second, sent.",
            [Query(f"8 * rate(overlap_rdma_transmit_bytes_total{{{_N}}}[$__rate_interval])", "{{device}}/{{port}}")],
            Look("bps", 0),
        )
    )
    d.with_panel(
        lines(
            "Traffic of interfaces",
            "Bits per second of the kernel's interfaces. Two-way traffic in the rhythm of the GPUs beside silent RDMA "
            "ports is a fall-back to TCP.",
            [
                Query(f"8 * rate(overlap_nic_transmit_bytes_total{{{_N}}}[$__rate_interval])", "{{device}} sent"),
                Query(f"8 * rate(overlap_nic_receive_bytes_total{{{_N}}}[$__rate_interval])", "{{device}} received", "B"),
            ],
            Look("bps", 0),
        )
    )
    d.with_panel(
        lines(
            "Line rates",
            "Rate of each RDMA port, one direction. A port below its peers has trained down.",
            [Query(f"8 * overlap_rdma_port_rate_bytes_per_second{{{_N}}}", "{{device}}/{{port}}")],
            Look("bps", 0),
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Link errors",
            "Events of each port's link per second: bit errors, links that went down, stalls of credits.",
            [
                Query(
                    f"sum by (device) ({_ERROR_RATE})",
                    "{{device}}",
                )
            ],
            Look("cps", 0),
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Congestion and loss",
            "Marks, notifications, pauses, retransmits and drops of all ports per second.",
            [
                Query(
                    f'sum by (counter) (rate(overlap_rdma_events_total{{{_N},counter=~"{_CONGESTION}"}}[$__rate_interval]))',
                    "{{counter}}",
                )
            ],
            Look("cps", 0),
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Throttling",
            "Share of time with clocks held down, by reason. power_cap: the power limit; thermal: cooling.",
            [
                Query(
                    f"max by (gpu, reason) (rate(overlap_gpu_throttled_seconds_total{{{_G}}}[$__rate_interval]))",
                    "GPU {{gpu}} {{reason}}",
                )
            ],
            SHARE,
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Clocks",
            "Clock of the SMs. GPUs of one node under the same load run alike.",
            [Query(_by_gpu(f"overlap_gpu_sm_clock_hertz{{{_G}}}"), "GPU {{gpu}}")],
            Look("hertz", 0),
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Temperature",
            "Of the GPU cores.",
            [Query(_by_gpu(f"overlap_gpu_temperature_celsius{{{_G}}}"), "GPU {{gpu}}")],
            Look("celsius"),
            (8, 8),
        )
    )
    d.with_panel(
        painted(
            lines(
                "Disk and file system",
                "What storage did: read and written bytes of disks and network file systems. Beside a stall, it says "
                "whether data or checkpoints are waited for.",
                [
                    Query(f"rate(overlap_host_disk_read_bytes_total{{{_N}}}[$__rate_interval])", "disks, read"),
                    Query(f"rate(overlap_host_disk_written_bytes_total{{{_N}}}[$__rate_interval])", "disks, written", "B"),
                    Query(
                        f"rate(overlap_host_network_filesystem_read_bytes_total{{{_N}}}[$__rate_interval])",
                        "network file systems, read",
                        "C",
                    ),
                ],
                Look("Bps", 0),
            ),
            {"disks, read": BLUE, "disks, written": ORANGE, "network file systems, read": GREEN},
        )
    )
    d.with_panel(
        lines(
            "XID errors and I/O wait",
            "XID events in the time shown, and CPUs that wait for input or output.",
            [
                Query(
                    f"sum by (gpu, xid) (increase(overlap_gpu_xid_errors_total{{{_G}}}[$__rate_interval]))",
                    "GPU {{gpu}} XID {{xid}}",
                ),
                Query(f"rate(overlap_host_cpu_iowait_seconds_total{{{_N}}}[$__rate_interval])", "CPUs in iowait", "B"),
            ],
            Look("short", 0, steps=((None, RED),)),
        )
    )
    return d
