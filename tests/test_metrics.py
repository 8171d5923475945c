from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from exporter import __version__
from exporter.family import Buckets
from exporter.metrics import ERROR_REASONS, FAMILIES, Labelled
from exporter.model import (
    PHASES,
    SOURCE_KINDS,
    STATES,
    TRANSPORTS,
    Device,
    Finding,
    Inventory,
    Link,
    Quarantine,
    Snapshot,
    Source,
)
from exporter.quantities import QUANTITIES
from tests import snapshots

BY_NAME = {family.name: family for family in FAMILIES}
UUID = "GPU-5f2ac1de-{:04d}-4a11-9c3e-0123456789ab"

# Names without the prefix overlap_. The join series of pods and jobs are not among them.
CONTRACT = re.findall(
    r"\w+",
    """
health_ratio exposed_ratio communication_ratio stall_ratio wait_ratio exposed_or_wait_ratio
power_traffic_correlation anticorrelation_ratio observability_ratio exposed_low_ratio exposed_high_ratio
step_period_seconds state gpu_power_low_watts gpu_power_median_watts gpu_power_high_watts
traffic_low_bytes_per_second traffic_median_bytes_per_second traffic_high_bytes_per_second phase_seconds_total
resolution_seconds gpu_power_watts gpu_power_limit_watts gpu_energy_joules_total gpu_utilization_ratio
gpu_kernel_busy_ratio gpu_sm_utilization_ratio gpu_tensor_utilization_ratio gpu_temperature_celsius
gpu_sm_clock_hertz gpu_nvlink_transmit_bytes_total gpu_nvlink_receive_bytes_total gpu_up gpu_info
gpu_throttled_seconds_total gpu_xid_errors_total gpus rdma_transmit_bytes_total rdma_receive_bytes_total
rdma_port_up rdma_port_rate_bytes_per_second rdma_port_info nic_info rdma_events_total nic_transmit_bytes_total
nic_receive_bytes_total nic_up nic_speed_bytes_per_second gpu_link_info host_disk_read_bytes_total
host_disk_written_bytes_total host_network_filesystem_read_bytes_total host_cpu_iowait_seconds_total transport_state
finding build_info source_up source_reads_total source_errors_total source_read_duration_seconds
source_last_success_timestamp_seconds source_missed_ticks_total source_restarts_total source_interval_seconds
sensor_refresh_seconds device_quarantined analysis_duration_seconds config_last_reload_successful
process_cpu_seconds_total process_memory_bytes
    """,
)


def values(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """Labels -> value of one family."""
    rows = list(BY_NAME[name].rows(Labelled(snapshot)))
    assert len({labels for labels, _ in rows}) == len(rows)
    return {labels: value for labels, value in rows if not isinstance(value, Buckets)}


def series(snapshot: Snapshot) -> int:
    """How many series a scrape of the catalogue gives."""
    x = Labelled(snapshot)
    return sum(len(v.counts) + 2 if isinstance(v, Buckets) else 1 for f in FAMILIES for _, v in f.rows(x))


@pytest.mark.parametrize("name", CONTRACT)
def test_every_family_of_the_contract_is_in_the_catalogue_and_has_samples_on_a_full_node(name: str) -> None:
    snapshot = snapshots.fullest()
    assert list(BY_NAME[f"overlap_{name}"].rows(Labelled(snapshot)))


def test_the_catalogue_holds_no_name_twice_and_explains_each() -> None:
    assert len(BY_NAME) == len(FAMILIES)
    assert all(f.help.endswith(".") and len(f.help) > 12 for f in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_names_follow_the_rules_of_prometheus(family) -> None:
    assert family.kind in ("gauge", "counter", "histogram")
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert not family.unit or family.name.removesuffix("_total").endswith("_" + family.unit)
    assert "window" not in family.labels or "uuid" in family.labels


def test_every_quantity_becomes_a_family_with_its_kind_help_and_origin() -> None:
    for q in QUANTITIES:
        family = BY_NAME[q.metric]
        assert (family.kind, family.help, family.origin) == (q.kind, q.help, q.origin)


def test_a_full_node_stays_below_1200_series() -> None:
    assert 900 < series(snapshots.fullest()) <= 1200


def test_a_node_with_32_efa_ports_stays_below_1600_series() -> None:
    full = snapshots.fullest()
    efa_events = ("retransmit", "ack_timeout", "rate_limited", "peer_dead", "drops", "rnr")
    wide = snapshots.snapshot(ports=32)
    latest = {c: v for c, v in wide.latest.items() if "/events/" not in c or c.rsplit("/", 1)[1] in efa_events}
    wide = replace(full, inventory=wide.inventory, latest={**full.latest, **latest})
    wide = replace(
        wide,
        latest={c: v for c, v in wide.latest.items() if c in latest or not c.startswith("mlx5")},
        refresh=(*full.refresh, *(replace(full.refresh[8], id=f"mlx5_{i}/1") for i in range(8, 32))),
    )
    assert 1100 < series(wide) <= 1600


def test_an_empty_node_shows_only_what_is_known_of_the_exporter_itself() -> None:
    empty = Snapshot(1.0, 1.8e9, Inventory("node-1", 1.8e9), "serve", {}, (), {})
    shown = {f.name for f in FAMILIES if list(f.rows(Labelled(empty)))}
    assert shown == {"overlap_transport_state", "overlap_config_last_reload_successful", "overlap_build_info"}


def test_gpu_series_carry_index_and_uuid() -> None:
    assert values(snapshots.snapshot(), "overlap_gpu_power_watts")["3", UUID.format(3)] == 612.5


def test_the_id_stands_for_a_uuid_that_a_trace_does_not_give() -> None:
    trace = Inventory("h", 0.0, (Device("gpu", "GPU-0", 0),))
    snapshot = Snapshot(1.0, 1.0, trace, "replay", {"GPU-0/power_watts": (300.0, 1.0)}, (), {})
    assert values(snapshot, "overlap_gpu_power_watts") == {("0", "GPU-0"): 300.0}


def test_port_series_carry_device_and_port_and_nic_series_the_device() -> None:
    full = snapshots.snapshot()
    assert values(full, "overlap_rdma_transmit_bytes_total")["mlx5_2", "1"] == 4.2e13
    assert values(full, "overlap_rdma_events_total")["mlx5_2", "1", "cnp_rx"] == 2.0
    assert values(full, "overlap_nic_up")["eth8",] == 1.0
    assert values(full, "overlap_host_disk_read_bytes_total") == {(): 7.1e12}


def test_a_channel_that_is_not_fresh_has_no_series() -> None:
    full = snapshots.snapshot()
    stale = replace(full, latest={c: v for c, v in full.latest.items() if c != "GPU-1/power_watts"})
    assert len(values(stale, "overlap_gpu_power_watts")) == 7


def test_nan_and_infinity_are_never_shown() -> None:
    full = snapshots.snapshot()
    broken = replace(
        full, latest={**full.latest, "GPU-1/power_watts": (math.nan, 400.0), "GPU-2/power_watts": (math.inf, 400.0)}
    )
    assert {labels[0] for labels in values(broken, "overlap_gpu_power_watts")} == {"0", "3", "4", "5", "6", "7"}


def test_unknown_channels_and_events_of_a_foreign_trace_make_no_series() -> None:
    full = snapshots.snapshot()
    foreign = {
        "GPU-0/colour": 1.0,
        "nobody/power_watts": 2.0,
        "mlx5_0/1/events/roce_slow_restart": 3.0,
        "GPU-0/throttled_seconds_total/boredom": 4.0,
    }
    assert series(replace(full, latest={**full.latest, **{c: (v, 400.0) for c, v in foreign.items()}})) == series(full)


def test_windows_are_named_in_seconds_and_verdict_fields_exist_for_the_verdict_window_only() -> None:
    full = snapshots.snapshot()
    assert {labels[2] for labels in values(full, "overlap_exposed_ratio")} == {"15s", "60s", "300s"}
    assert {labels[2] for labels in values(full, "overlap_exposed_low_ratio")} == {"60s"}
    assert values(full, "overlap_exposed_ratio")["2", UUID.format(2), "60s"] == 0.43


def test_a_ratio_without_an_answer_is_absent_and_its_bounds_are_still_there() -> None:
    full = snapshots.snapshot()
    unobservable = ("5", UUID.format(5), "60s")
    assert unobservable not in values(full, "overlap_health_ratio")
    assert unobservable not in values(full, "overlap_exposed_ratio")
    assert values(full, "overlap_exposed_high_ratio")[unobservable] == 0.4


def test_a_ratio_of_zero_is_an_answer() -> None:
    assert values(snapshots.snapshot(), "overlap_exposed_ratio")["3", UUID.format(3), "60s"] == 0.0


def test_exactly_one_state_of_each_gpu_is_1() -> None:
    states = values(snapshots.snapshot(), "overlap_state")
    for index, verdict in enumerate(snapshots.VERDICTS):
        mine = {labels[3]: value for labels, value in states.items() if labels[0] == str(index)}
        assert mine == {state: float(state == verdict["state"]) for state in STATES}


def test_exactly_one_transport_is_1() -> None:
    transports = values(replace(snapshots.snapshot(), transport="mixed"), "overlap_transport_state")
    assert transports == {(t,): float(t == "mixed") for t in TRANSPORTS}


def test_every_phase_is_there_from_the_start() -> None:
    phases = values(snapshots.snapshot(), "overlap_phase_seconds_total")
    mine = {labels[2]: value for labels, value in phases.items() if labels[0] == "4"}
    assert mine == dict.fromkeys(PHASES, 0.0) | {"overlapped": 200.0, "exposed": 100.5, "unknown": 83.5}


def test_a_gone_gpu_keeps_up_0_and_its_info_and_nothing_else() -> None:
    full = snapshots.snapshot(gpus=7)
    gone = replace(
        full,
        gone=(snapshots.gpu(7),),
        analyses=(*full.analyses, snapshots.analysis(7)),
        phases={**full.phases, "GPU-7": {"idle": 9.0}},
        findings=(Finding("input_stall", "GPU-7", 1.0),),
    )
    x = Labelled(gone)
    shown = {f.name for f in FAMILIES for labels, _ in f.rows(x) if UUID.format(7) in labels}
    assert shown == {"overlap_gpu_up", "overlap_gpu_info"}
    assert values(gone, "overlap_gpu_up")["7", UUID.format(7)] == 0.0


def test_a_gpu_that_came_back_is_shown_once() -> None:
    full = replace(snapshots.snapshot(), gone=(snapshots.gpu(7),))
    assert values(full, "overlap_gpu_up")["7", UUID.format(7)] == 1.0


def test_a_gpu_lost_before_its_uuid_was_read_has_an_empty_uuid() -> None:
    lost = replace(snapshots.snapshot(), gone=(Device("gpu", "GPU-8", 8, ""),))
    assert values(lost, "overlap_gpu_up")["8", ""] == 0.0


def test_a_gpu_whose_sensors_are_silent_is_down_even_if_xid_counts_are_told() -> None:
    full = snapshots.snapshot()
    latest = {c: v for c, v in full.latest.items() if not c.startswith("GPU-1/")} | {"GPU-1/xid_errors_total/79": (1.0, 400.0)}
    silent = replace(full, latest=latest)
    assert values(silent, "overlap_gpu_up")["1", UUID.format(1)] == 0.0
    assert values(silent, "overlap_gpu_xid_errors_total") == {("1", UUID.format(1), "79"): 1.0}


def test_info_series_name_what_is_known_and_leave_the_rest_empty() -> None:
    full = snapshots.snapshot()
    labels = next(k for k in values(full, "overlap_gpu_info") if k[0] == "2")
    assert dict(zip(BY_NAME["overlap_gpu_info"].labels, labels, strict=True)) == {
        "gpu": "2",
        "uuid": UUID.format(2),
        "name": "NVIDIA H100 80GB HBM3",
        "architecture": "hopper",
        "driver_version": "570.86.15",
        "power_source": "instant",
        "pci_bus_id": "00000000:03:00.0",
        "mig": "disabled",
    }
    bare = Snapshot(1.0, 1.0, Inventory("h", 0.0, (Device("nic", "eth0"),)), "serve", {}, (), {})
    assert list(values(bare, "overlap_nic_info")) == [("eth0", "", "")]


def test_links_name_the_port_the_nic_or_nothing_for_nvlink() -> None:
    full = snapshots.snapshot()
    there = replace(
        full.inventory,
        links=(
            Link("GPU-0", "mlx5_0/1", "rdma", "PIX"),
            Link("GPU-0", "eth1", "tcp", "NODE", 0.125),
            Link("GPU-0", "GPU-0", "nvlink", "node"),
        ),
    )
    gpu = ("0", UUID.format(0))
    assert list(values(replace(full, inventory=there), "overlap_gpu_link_info")) == [
        (*gpu, "mlx5_0", "1", "rdma", "PIX"),
        (*gpu, "eth1", "", "tcp", "NODE"),
        (*gpu, "", "", "nvlink", "node"),
    ]


def test_findings_are_there_only_while_active_and_node_findings_name_no_gpu() -> None:
    full = snapshots.snapshot()
    both = replace(full, findings=(Finding("congestion", None, 1.0), Finding("power_capped", "GPU-1", 1.0)))
    assert values(both, "overlap_finding") == {("congestion", "", ""): 1.0, ("power_capped", "1", UUID.format(1)): 1.0}
    assert values(replace(full, findings=()), "overlap_finding") == {}


def test_gpus_are_counted_by_origin_where_the_origin_answers() -> None:
    one_blind = replace(snapshots.snapshot(), pci_gpus=8, nvml_gpus=None)
    assert values(one_blind, "overlap_gpus") == {("pci",): 8.0}


def test_quarantine_and_refresh_name_a_gpu_by_uuid_and_a_port_by_device_and_port() -> None:
    full = replace(
        snapshots.snapshot(), quarantined=(Quarantine("gpu", "GPU-7", 1.0, "hang"), Quarantine("nic", "eth0", 1.0, "hang"))
    )
    assert set(values(full, "overlap_device_quarantined")) == {("gpu", UUID.format(7), "hang"), ("nic", "eth0", "hang")}
    assert values(full, "overlap_sensor_refresh_seconds")["rdma_port", "mlx5_0/1", "bytes"] == 0.02
    assert values(full, "overlap_sensor_window_seconds") == {("gpu", UUID.format(i), "power"): 0.025 for i in range(8)}


def sourced(*sources, quarantined=(), planned=None) -> Snapshot:
    names = [s.source for s in sources] if planned is None else planned
    there = Inventory("h", 1.8e9, sources=tuple(Source(n, ()) for n in names))
    return Snapshot(100.0, 1.8e9 + 100.0, there, "serve", {}, (), {}, sources=sources, quarantined=quarantined)


def test_a_source_is_named_by_its_kind_and_is_as_bad_as_its_worst_device() -> None:
    node = sourced(
        snapshots.health("nvml/GPU-0"),
        snapshots.health("nvml/GPU-1", up=False, interval_s=0.4),
        snapshots.health("rdma/mlx5_0"),
    )
    assert values(node, "overlap_source_up") == {("nvml",): 0.0, ("rdma",): 1.0}
    assert values(node, "overlap_source_interval_seconds") == {("nvml",): 0.4, ("rdma",): 0.1}


def test_counts_of_a_source_are_summed_and_a_restart_of_its_reader_counts_once() -> None:
    node = sourced(snapshots.health("nvml/GPU-0", restarts=1), snapshots.health("nvml/GPU-1", restarts=1, missed_ticks=5))
    assert values(node, "overlap_source_reads_total") == {("nvml",): 8000.0}
    assert values(node, "overlap_source_missed_ticks_total") == {("nvml",): 7.0}
    assert values(node, "overlap_source_restarts_total") == {("nvml",): 1.0}


def test_the_last_success_is_that_of_the_device_silent_longest_without_those_in_quarantine() -> None:
    node = [
        snapshots.health("rdma/mlx5_0", last_success_s=99.0),
        snapshots.health("rdma/mlx5_1", last_success_s=40.0),
        snapshots.health("rdma/mlx5_2", last_success_s=70.0),
    ]
    name = "overlap_source_last_success_timestamp_seconds"
    assert values(sourced(*node), name) == {("rdma",): 1.8e9 + 40.0}
    left_alone = (Quarantine("rdma_port", "mlx5_1/1", 50.0, "hang"),)
    assert values(sourced(*node, quarantined=left_alone), name) == {("rdma",): 1.8e9 + 70.0}


def test_a_quarantined_gpu_does_not_hide_another_whose_name_begins_alike() -> None:
    node = [snapshots.health("nvml/GPU-1", last_success_s=10.0), snapshots.health("nvml/GPU-10", last_success_s=50.0)]
    left_alone = (Quarantine("gpu", "GPU-1", 50.0, "hang"),)
    assert values(sourced(*node, quarantined=left_alone), "overlap_source_last_success_timestamp_seconds") == {
        ("nvml",): 1.8e9 + 50.0
    }


def test_a_device_that_was_taken_out_does_not_hold_the_last_success_back() -> None:
    node = [snapshots.health("nic/eth0", last_success_s=99.0), snapshots.health("nic/eth5", last_success_s=3.0)]
    assert values(sourced(*node, planned=["nic/eth0"]), "overlap_source_last_success_timestamp_seconds") == {
        ("nic",): 1.8e9 + 99.0
    }


def test_a_source_that_never_answered_has_no_last_success() -> None:
    down = snapshots.health("nvml", up=False, reason="library_not_found", last_success_s=None, interval_s=None)
    assert values(sourced(down), "overlap_source_last_success_timestamp_seconds") == {}
    assert values(sourced(down), "overlap_source_up") == {("nvml",): 0.0}
    assert values(sourced(down), "overlap_source_interval_seconds") == {}


def test_a_port_that_several_gpus_share_is_marked() -> None:
    full = snapshots.snapshot()
    first, second = full.inventory.of_kind("gpu")[:2]
    links = (Link(first.id, "mlx5_0/1", "rdma", "PIX", 0.5), Link(second.id, "mlx5_0/1", "rdma", "PIX", 0.5),
             Link(second.id, "mlx5_1/1", "rdma", "PIX"))  # fmt: skip
    found = values(replace(full, inventory=replace(full.inventory, links=links)), "overlap_gpu_link_info")
    assert [labels[2:] for labels in found] == [
        ("mlx5_0", "1", "rdma", "PIX shared"), ("mlx5_0", "1", "rdma", "PIX shared"), ("mlx5_1", "1", "rdma", "PIX"),
    ]  # fmt: skip


def test_every_reason_of_an_error_starts_at_0_and_what_is_not_declared_is_other() -> None:
    node = sourced(
        snapshots.health("gpm/GPU-0", errors={"too_close": 2, "sunspots": 3}),
        snapshots.health("gpm/GPU-1", errors={"too_close": 1}),
    )
    errors = values(node, "overlap_source_errors_total")
    assert errors == {("gpm", r): {"too_close": 3.0, "other": 3.0}.get(r, 0.0) for r in ERROR_REASONS["gpm"]}


def test_lists_of_reasons_are_short_and_cover_what_the_sources_count() -> None:
    from exporter.sources import gpm, nvml_events, nvml_lanes, sysfs

    assert set(SOURCE_KINDS) <= set(ERROR_REASONS)
    assert all(len(reasons) == len(set(reasons)) <= 8 for reasons in ERROR_REASONS.values())
    for kinds, counted in (
        (("rdma", "nic", "host"), sysfs.REASONS),
        (("gpm",), gpm.REASONS),
        (("xid",), nvml_events.REASONS),
        (("nvml",), nvml_lanes.REASONS),
    ):
        assert all(set(counted) <= set(ERROR_REASONS[kind]) for kind in kinds)


def test_durations_of_all_devices_of_a_source_share_one_histogram_of_at_most_12_buckets() -> None:
    x = Labelled(sourced(snapshots.health("nvml/GPU-0"), snapshots.health("nvml/GPU-1")))
    ((labels, buckets),) = BY_NAME["overlap_source_read_duration_seconds"].rows(x)
    assert labels == ("nvml",)
    assert isinstance(buckets, Buckets)
    assert buckets.counts == (0, 80, 1800, 400, 40, 6, 0, 0, 0, 0)
    assert buckets.total == pytest.approx(1.42)
    for family in FAMILIES:
        for _, value in family.rows(Labelled(snapshots.fullest())):
            assert not isinstance(value, Buckets) or len(value.counts) == len(value.bounds) + 1 <= 12


def test_build_info_says_version_and_mode() -> None:
    demo = replace(snapshots.snapshot(), mode="demo")
    assert values(demo, "overlap_build_info") == {(__version__, "demo"): 1.0}


def test_memory_that_was_not_read_is_absent_and_cpu_time_is_there() -> None:
    full = snapshots.snapshot()
    assert values(full, "overlap_process_memory_bytes") == {("exporter",): 71e6, ("reader_gpu",): 24e6}
    assert values(full, "overlap_process_cpu_seconds_total")["reader_net",] == 9.0


def test_a_refused_configuration_shows_as_0() -> None:
    assert values(replace(snapshots.snapshot(), config_reload_ok=False), "overlap_config_last_reload_successful") == {(): 0.0}
