"""The exporter itself: are its readings there, on time, and what does it cost?"""

from __future__ import annotations

from dataclasses import replace

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import (
    GREEN,
    ORANGE,
    RED,
    TEXT,
    UP,
    YELLOW,
    Column,
    Look,
    Query,
    grid,
    lines,
    number,
)
from dashboards.variables import cluster, instance, page

_N = 'cluster=~"$cluster",instance=~"$instance"'
_BY = "instance, source"
_NODE_URL = "/d/overlap-node?var-instance=${__value.raw}&var-cluster=$cluster&${__url_time_range}"
_MISSED = (
    f"sum by ({_BY}) (rate(overlap_source_missed_ticks_total{{{_N}}}[$__rate_interval]))\n/ sum by ({_BY}) (\n"
    f"  rate(overlap_source_missed_ticks_total{{{_N}}}[$__rate_interval])\n  + "
    f"rate(overlap_source_reads_total{{{_N}}}[$__rate_interval])\n)"
)
AGE = Look("s", 0, decimals=1, steps=((None, GREEN), (10, YELLOW), (60, RED)))
LATE = Look("percentunit", 0, 1, decimals=2, steps=((None, GREEN), (0.02, YELLOW), (0.1, RED)))
ANY = Look("short", 0, steps=((None, GREEN), (1, ORANGE)))


def exporter() -> dashboard.Dashboard:
    """Exporter health dashboard."""
    d = page("overlap-exporter", "Overlap / Exporter health",
    "Whether the readings are there and on time, and what the exporter "
             "costs.", refresh="30s")  # fmt: skip
    d.with_variable(cluster()).with_variable(instance(many=True))

    d.with_panel(
        number(
            "Nodes that answer",
            "Targets that could be scraped.",
            Query(f'count(up{{job="overlap-exporter",{_N}}} == 1)'),
            Look(steps=((None, GREEN),)),
            (4, 4),
        )
    )
    d.with_panel(
        number(
            "Nodes that do not",
            "Targets that could not be scraped.",
            Query(f'count(up{{job="overlap-exporter",{_N}}} == 0) or vector(0)'),
            ANY,
            (4, 4),
        )
    )
    d.with_panel(
        number(
            "Sources down",
            "Kinds of readings that answered before and do not now.",
            Query(
                f"count(overlap_source_up{{{_N}}} == 0 and on (cluster, instance, source) "
                f"overlap_source_last_success_timestamp_seconds{{{_N}}}) or vector(0)"
            ),
            ANY,
            (4, 4),
        )
    )
    d.with_panel(
        number(
            "Devices in quarantine",
            "Devices left alone after a call that hung or crashed a reader.",
            Query(f"count(overlap_device_quarantined{{{_N}}}) or vector(0)"),
            ANY,
            (4, 4),
        )
    )
    d.with_panel(
        number(
            "Restarts of readers",
            "Readers replaced in the time shown.",
            Query(f"sum(max by (cluster, instance, source) (increase(overlap_source_restarts_total{{{_N}}}[$__range])))"),
            Look("short", 0, decimals=0, steps=((None, GREEN), (1, YELLOW), (10, RED))),
            (4, 4),
        )
    )
    d.with_panel(
        number(
            "Configurations refused",
            "Nodes whose configuration file was refused at its last reading; they go on with the old settings.",
            Query(f"count(overlap_config_last_reload_successful{{{_N}}} == 0) or vector(0)"),
            ANY,
            (4, 4),
        )
    )

    d.with_panel(grid(
        "Sources",
        "Each kind of reading of each node: does it answer, how old is its last good reading, how often is it read and how "
        "often not, and how often was its reader replaced.",
        [Query(f"max by ({_BY}) (overlap_source_up{{{_N}}})", ref="A"),
         Query(f"max by ({_BY}) (timestamp(overlap_source_last_success_timestamp_seconds{{{_N}}}) "
               f"- overlap_source_last_success_timestamp_seconds{{{_N}}})", ref="B"),
         Query(f"max by ({_BY}) (overlap_source_interval_seconds{{{_N}}})", ref="C"),
         Query(f"sum by ({_BY}) (rate(overlap_source_reads_total{{{_N}}}[$__rate_interval]))", ref="D"),
         Query(_MISSED, ref="E"),
         Query(f"sum by ({_BY}) (increase(overlap_source_errors_total{{{_N}}}[$__range]))", ref="F"),
         Query(f"max by ({_BY}) (overlap_source_restarts_total{{{_N}}})", ref="G")],
        [Column("instance", "Node", TEXT, url=_NODE_URL), Column("source", "Source", TEXT, width=90),
         Column("Value #A", "State", UP, "color", 80), Column("Value #B", "Age", AGE, "colortext", 90),
         Column("Value #C", "Interval", Look("s"), width=90),
         Column("Value #D", "Reads a second", Look("short", decimals=1), width=130),
         Column("Value #E", "Missed", LATE, "gauge", 220), Column("Value #F", "Errors", Look("short", decimals=0), width=90),
         Column("Value #G", "Restarts", Look("short", decimals=0), width=90)],
        (24, 10), ("Node", False)))  # fmt: skip

    d.with_panel(
        lines(
            "Missed reads",
            "Share of the reads that were due and left out: the node is short of CPU time, or a device is slow. Above a "
            "tenth an alert fires.",
            [Query(f"max by (source) ({_MISSED})", "{{source}}")],
            replace(LATE, most=None, at_least=0.1),
        )
    )
    d.with_panel(
        lines(
            "Errors",
            "Reads that failed, by source; beside them the reasons that occur.",
            [
                Query(f"sum by (source) (rate(overlap_source_errors_total{{{_N}}}[$__rate_interval]))", "{{source}}"),
                Query(
                    f"sum by (source, reason) (rate(overlap_source_errors_total{{{_N}}}[$__rate_interval])) > 0",
                    "{{source}} {{reason}}",
                    "B",
                ),
            ],
            Look("cps", 0),
        )
    )
    d.with_panel(
        lines(
            "Refresh of sensors",
            "How often a sensor really takes a new value, the slowest of each kind: what no reading rate can beat.",
            [Query(f"max by (kind, quantity) (overlap_sensor_refresh_seconds{{{_N}}})", "{{kind}} {{quantity}}")],
            Look("s", 0),
        )
    )
    d.with_panel(
        lines(
            "Time of a read",
            "99 % of the reads of a device are faster than this.",
            [
                Query(
                    "histogram_quantile(0.99, sum by (source, le) "
                    f"(rate(overlap_source_read_duration_seconds_bucket{{{_N}}}[$__rate_interval])))",
                    "{{source}}",
                )
            ],
            Look("s", 0),
        )
    )
    d.with_panel(
        lines(
            "CPU of the exporter",
            "CPU time of each process of the exporter, as a share of one core: median and worst node.",
            [
                Query(
                    f"quantile by (process) (0.5, rate(overlap_process_cpu_seconds_total{{{_N}}}[$__rate_interval]))",
                    "{{process}}, median",
                ),
                Query(
                    f"max by (process) (rate(overlap_process_cpu_seconds_total{{{_N}}}[$__rate_interval]))",
                    "{{process}}, worst",
                    "B",
                ),
            ],
            Look("percentunit", 0),
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Memory of the exporter",
            "Proportional set size of each process, worst node.",
            [Query(f"max by (process) (overlap_process_memory_bytes{{{_N}}})", "{{process}}")],
            Look("bytes", 0),
            (8, 8),
        )
    )
    d.with_panel(
        lines(
            "Time of an analysis",
            "99 % of the analyses of all GPUs of a node take less than this; one runs each second.",
            [
                Query(
                    "histogram_quantile(0.99, sum by (le) "
                    f"(rate(overlap_analysis_duration_seconds_bucket{{{_N}}}[$__rate_interval])))",
                    "99 %",
                ),
                Query(
                    f"sum(rate(overlap_analysis_duration_seconds_sum{{{_N}}}[$__rate_interval]))\n"
                    f"/ sum(rate(overlap_analysis_duration_seconds_count{{{_N}}}[$__rate_interval]))",
                    "mean",
                    "B",
                ),
            ],
            Look("s", 0),
            (8, 8),
        )
    )
    d.with_panel(
        grid(
            "Quarantine",
            "Devices that are left alone, and why.",
            [Query(f"overlap_device_quarantined{{{_N}}}")],
            [
                Column("instance", "Node", TEXT, url=_NODE_URL),
                Column("kind", "Kind", TEXT),
                Column("id", "Device", TEXT),
                Column("reason", "Why", TEXT),
            ],
            (12, 7),
        )
    )
    d.with_panel(
        grid(
            "Versions",
            "What runs where. Mode demo is a simulation, replay a recording: neither reads a device.",
            [Query(f"count by (version, mode) (overlap_build_info{{{_N}}})")],
            [Column("version", "Version", TEXT), Column("mode", "Mode", TEXT), Column("Value", "Nodes", Look("short"))],
            (12, 7),
        )
    )
    return d
