"""One node: the picture that everybody knows, power beside traffic, for each GPU, and all that explains it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from dashboards.gpus import NODE, WINDOW, by_gpu, gpus
from dashboards.job import band
from dashboards.panels import (
    BLUE,
    GREEN,
    HEALTH,
    LOSS,
    ORANGE,
    RED,
    STATE,
    TEXT,
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
from dashboards.words import state_code

_G = f'{NODE},gpu=~"$gpu"'
_LIVE = "http://${instance}:9777/"
_ERRORS = "link_error|link_down|credit_stall|peer_dead"
_ERROR_RATE = f'rate(overlap_rdma_events_total{{{NODE},counter=~"{_ERRORS}"}}[$__rate_interval])'
_THROTTLED = f"rate(overlap_gpu_throttled_seconds_total{{{_G}}}[$__rate_interval])"
_XIDS = f"increase(overlap_gpu_xid_errors_total{{{_G}}}[$__rate_interval])"
_CONGESTION = (
    "ecn_marked_rx|cnp_tx|cnp_rx|out_of_order_rx|seq_nak_rx|ack_timeout|retransmit|rnr|rate_limited|drops|pfc_pause"
)


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
    indices = f"label_values(overlap_gpu_up{{{NODE}}}, gpu)"
    d.with_variable(variable("gpu", "GPU", indices, "GPUs of the node, by index", many=True))
    d.with_variable(window())
    d.link(
        link(
            "Live page of the node",
            _LIVE,
            "The exporter's own page: power and traffic as they come, evidence and advice. The port is that of the default.",
        )
    )
    d.with_panel(gpus())

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
            [Query(by_gpu(f"overlap_health_ratio{{{_G},{WINDOW}}}"), "GPU {{gpu}}")],
            HEALTH,
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Exposed communication",
            "Share of running time lost to communication that nothing hides.",
            [Query(by_gpu(f"overlap_exposed_ratio{{{_G},{WINDOW}}}"), "GPU {{gpu}}")],
            LOSS,
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Correlation of power and traffic",
            "Near -1: they take turns. Near 0 or absent: they do not, or both are flat, which is perfect overlap. It "
            "cannot say how much time is lost.",
            [Query(by_gpu(f"overlap_power_traffic_correlation{{{_G},{WINDOW}}}"), "GPU {{gpu}}")],
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
            [Query(f"8 * rate(overlap_rdma_transmit_bytes_total{{{NODE}}}[$__rate_interval])", "{{device}}/{{port}}")],
            Look("bps", 0),
        )
    )
    d.with_panel(
        lines(
            "Traffic of interfaces",
            "Bits per second of the kernel's interfaces. Two-way traffic in the rhythm of the GPUs beside silent RDMA "
            "ports is a fall-back to TCP.",
            [
                Query(f"8 * rate(overlap_nic_transmit_bytes_total{{{NODE}}}[$__rate_interval])", "{{device}} sent"),
                Query(f"8 * rate(overlap_nic_receive_bytes_total{{{NODE}}}[$__rate_interval])", "{{device}} received", "B"),
            ],
            Look("bps", 0),
        )
    )
    d.with_panel(
        lines(
            "Line rates",
            "Rate of each RDMA port, one direction. A port below its peers has trained down.",
            [Query(f"8 * overlap_rdma_port_rate_bytes_per_second{{{NODE}}}", "{{device}}/{{port}}")],
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
                    f'sum by (counter) (rate(overlap_rdma_events_total{{{NODE},counter=~"{_CONGESTION}"}}[$__rate_interval]))',
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
            "Share of time with clocks held down: by reason, on the worst GPU, and by GPU, for its worst reason. power_cap: "
            "the power limit; thermal: cooling.",
            [
                Query(f"max by (reason) ({_THROTTLED})", "{{reason}}"),
                Query(f"max by (gpu) ({_THROTTLED})", "GPU {{gpu}}", "B"),
            ],
            LOSS,
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Clocks",
            "Clock of the SMs. GPUs of one node under the same load run alike.",
            [Query(by_gpu(f"overlap_gpu_sm_clock_hertz{{{_G}}}"), "GPU {{gpu}}")],
            Look("hertz", 0),
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Temperature",
            "Of the GPU cores.",
            [Query(by_gpu(f"overlap_gpu_temperature_celsius{{{_G}}}"), "GPU {{gpu}}")],
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
                    Query(f"rate(overlap_host_disk_read_bytes_total{{{NODE}}}[$__rate_interval])", "disks, read"),
                    Query(f"rate(overlap_host_disk_written_bytes_total{{{NODE}}}[$__rate_interval])", "disks, written", "B"),
                    Query(
                        f"rate(overlap_host_network_filesystem_read_bytes_total{{{NODE}}}[$__rate_interval])",
                        "network file systems, read",
                        "C",
                    ),
                ],
                Look("Bps", 0),
                (8, 8),
            ),
            {"disks, read": BLUE, "disks, written": ORANGE, "network file systems, read": GREEN},
        )
    )
    d.with_panel(
        lines(
            "CPUs in I/O wait",
            "How many CPUs do nothing but wait for input or output.",
            [Query(f"rate(overlap_host_cpu_iowait_seconds_total{{{NODE}}}[$__rate_interval])", "CPUs in iowait")],
            Look("short", 0, at_least=1),
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "XID errors",
            "Events that the driver reported, by code and by GPU. 48, 94 and 95 are memory errors, 79 is a GPU that fell off "
            "the bus.",
            [
                Query(f"sum by (xid) ({_XIDS})", "XID {{xid}}"),
                Query(f"sum by (gpu) ({_XIDS})", "GPU {{gpu}}", "B"),
            ],
            Look("short", 0, at_least=1, steps=((None, RED),)),
            (8, 8),
        )
    )
    return d
