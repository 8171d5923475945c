"""Handmade nodes for the tests of what the exporter shows: a full one with 8 GPUs, 8 ports and 9 NICs, and its history."""

from __future__ import annotations

import math
from dataclasses import replace

from exporter.history import History
from exporter.model import (
    ANALYSIS_DURATION_BOUNDS_S,
    READ_DURATION_BOUNDS_S,
    Device,
    Evidence,
    Finding,
    GpuJob,
    GpuPod,
    Inventory,
    Link,
    OverlapAnalysis,
    ProcessCost,
    Quarantine,
    Record,
    SensorRefresh,
    Snapshot,
    Source,
    SourceHealth,
)

NOW_S = 400.0
STARTED_UNIX_S = 1_767_225_600.0
GPUS = 8

# Quantities with a value per GPU, as a board with GPM and NVLink gives them.
GPU_VALUES = {
    "power_watts": 612.5,
    "power_limit_watts": 700.0,
    "energy_joules_total": 1.25e9,
    "utilization_ratio": 1.0,
    "kernel_busy_ratio": 0.97,
    "sm_utilization_ratio": 0.81,
    "tensor_utilization_ratio": 0.44,
    "temperature_celsius": 61.0,
    "sm_clock_hertz": 1.98e9,
    "nvlink_transmit_bytes_total": 4.1e15,
    "nvlink_receive_bytes_total": 4.0e15,
    "throttled_seconds_total/power_cap": 12.5,
    "throttled_seconds_total/sw_thermal": 0.0,
    "throttled_seconds_total/hw_thermal": 0.0,
    "throttled_seconds_total/power_brake": 0.0,
    "throttled_seconds_total/sync_boost": 0.0,
}
EVENTS = (
    "ecn_marked_rx",
    "cnp_tx",
    "cnp_rx",
    "out_of_order_rx",
    "seq_nak_rx",
    "ack_timeout",
    "retransmit",
    "rnr",
    "rate_limited",
    "peer_dead",
    "credit_stall",
    "drops",
    "link_error",
    "link_down",
    "pfc_pause",
)
PORT_VALUES = {
    "transmit_bytes_total": 4.2e13,
    "receive_bytes_total": 3.9e13,
    "up_ratio": 1.0,
    "rate_bytes_per_second": 50e9,
    **{f"events/{e}": float(i) for i, e in enumerate(EVENTS)},
}
NIC_VALUES = {"transmit_bytes_total": 9.1e11, "receive_bytes_total": 8.8e11, "up_ratio": 1.0, "rate_bytes_per_second": 3.125e9}
DISK_VALUES = {
    "read_bytes_total": 7.1e12,
    "written_bytes_total": 5.5e12,
    "network_filesystem_read_bytes_total": 1.4e13,
    "cpu_iowait_seconds_total": 812.0,
}

# One state per GPU: everything the page must be able to show.
VERDICTS: tuple[dict[str, object], ...] = (
    {
        "state": "overlapped",
        "health": 0.97,
        "exposed": 0.01,
        "exposed_low": 0.0,
        "exposed_high": 0.03,
        "communication": 0.45,
        "stall": 0.0,
        "wait": 0.01,
        "correlation": 0.12,
        "anticorrelation": 0.0,
        "observability": 0.93,
        "step_period_s": 0.412,
    },
    {
        "state": "partial",
        "health": 0.61,
        "exposed": 0.17,
        "exposed_low": 0.13,
        "exposed_high": 0.21,
        "communication": 0.44,
        "stall": 0.01,
        "wait": 0.02,
        "correlation": -0.31,
        "anticorrelation": 0.18,
        "observability": 0.88,
        "step_period_s": 0.412,
    },
    {
        "state": "serialized",
        "health": 0.03,
        "exposed": 0.43,
        "exposed_low": 0.38,
        "exposed_high": 0.47,
        "communication": 0.44,
        "stall": 0.0,
        "wait": 0.01,
        "correlation": -0.94,
        "anticorrelation": 0.71,
        "observability": 0.85,
        "step_period_s": 0.8,
    },
    {
        "state": "compute_only",
        "health": None,
        "exposed": 0.0,
        "communication": 0.0,
        "stall": 0.0,
        "wait": 0.0,
        "observability": 0.9,
    },
    {
        "state": "stalled",
        "health": 0.9,
        "exposed": 0.02,
        "communication": 0.12,
        "stall": 0.58,
        "wait": 0.03,
        "correlation": 0.2,
        "anticorrelation": 0.0,
        "observability": 0.9,
        "step_period_s": 2.4,
    },
    {
        "state": "unobservable",
        "reason": "power sensor averages over 1 s: rhythms below 8 s cannot be seen",
        "exposed_low": 0.02,
        "exposed_high": 0.4,
        "communication": 0.4,
        "observability": 0.31,
        "step_period_s": 0.05,
    },
    {"state": "idle", "reason": "no job is running on this GPU"},
    {"state": "no_data", "reason": "no power readings in this window"},
)


def gpu(index: int) -> Device:
    """One board of the full node."""
    return Device(
        "gpu",
        f"GPU-{index}",
        index,
        f"GPU-5f2ac1de-{index:04d}-4a11-9c3e-0123456789ab",
        "NVIDIA H100 80GB HBM3",
        700.0,
        "instant",
        0.025,
        0.1,
        pci_path=f"pci0000:{index:02x}",
        numa_node=index // 4,
        info={
            "architecture": "hopper",
            "driver_version": "570.86.15",
            "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
            "mig": "disabled",
        },
    )


def port(index: int) -> Device:
    """One RDMA port of the full node."""
    return Device(
        "rdma_port",
        f"mlx5_{index}/1",
        driver="mlx5_core",
        rate_bytes_per_s=50e9,
        info={
            "link_layer": "InfiniBand",
            "firmware": "28.39.3004",
            "netdev": f"ib{index}",
            "byte_source": "counters/port_xmit_data",
        },
    )


def nic(index: int) -> Device:
    """One network interface of the full node."""
    return Device("nic", f"eth{index}", driver="mlx5_core", rate_bytes_per_s=3.125e9, info={"kind": "ethernet"})


def inventory(gpus: int = GPUS, ports: int = 8, nics: int = 9) -> Inventory:
    """What the full node has; the sources are those of the daemon: one per device."""
    devices = (*map(gpu, range(gpus)), *map(port, range(ports)), *map(nic, range(nics)), Device("disk", "all"))
    values = {
        "gpu": ("nvml", GPU_VALUES),
        "rdma_port": ("rdma", PORT_VALUES),
        "nic": ("nic", NIC_VALUES),
        "disk": ("host", DISK_VALUES),
    }
    sources = []
    for device in devices:
        kind, quantities = values[device.kind]
        name = device.id.split("/")[0] if device.kind == "rdma_port" else device.id
        sources.append(Source(f"{kind}/{name}", tuple(f"{device.id}/{q}" for q in quantities), 0.1))
        if device.kind == "gpu":
            sources.append(Source(f"gpm/{device.id}", (), 1.0))
            sources.append(Source(f"xid/{device.id}", (f"{device.id}/xid_errors_total/48",), 1.0))
    links = tuple(
        link
        for i in range(gpus)
        for link in (
            Link(f"GPU-{i}", f"mlx5_{i % max(1, ports)}/1", "rdma", "PIX"),
            Link(f"GPU-{i}", f"GPU-{i}", "nvlink", "node"),
        )
        if ports or link.path == "nvlink"
    )
    return Inventory("node-1", STARTED_UNIX_S, devices, links, tuple(sources))


def analysis(index: int, window_s: float = 60.0, **changes: object) -> OverlapAnalysis:
    """The verdict of VERDICTS on one GPU, with the fields that go with it."""
    verdict = dict(VERDICTS[index % len(VERDICTS)])
    if verdict["state"] not in ("no_data", "idle"):
        verdict = {
            "exposed_or_wait": 0.2,
            "running": 0.99,
            "resolution_s": 0.2,
            "power_low_watts": 210.0,
            "power_median_watts": 580.0,
            "power_high_watts": 690.0,
            "traffic_low_bytes_per_s": 0.0,
            "traffic_median_bytes_per_s": 2.1e10,
            "traffic_high_bytes_per_s": 4.6e10,
            **verdict,
        }
    return OverlapAnalysis(f"GPU-{index}", NOW_S, window_s, **{**verdict, **changes})  # type: ignore[arg-type]


def full_analysis(index: int, window_s: float) -> OverlapAnalysis:
    """A verdict with every field there is: the largest number of series."""
    return replace(analysis(1, window_s), gpu_id=f"GPU-{index}")


def health(source: str, **changes: object) -> SourceHealth:
    """A source that does well."""
    counts = tuple([0, 40, 900, 200, 20, 3, 0, 0, 0, 0][: len(READ_DURATION_BOUNDS_S) + 1])
    base = SourceHealth(source, True, None, 4000, {}, 2, 0, 0.1, NOW_S - 0.1, counts, 0.71)
    return replace(base, **changes)  # type: ignore[arg-type]


def snapshot(gpus: int = GPUS, ports: int = 8, nics: int = 9, **changes: object) -> Snapshot:
    """The full node at NOW_S; fields may be replaced by name."""
    there = inventory(gpus, ports, nics)
    latest = {f"GPU-{i}/{q}": (v, NOW_S) for i in range(gpus) for q, v in GPU_VALUES.items()}
    latest |= {f"mlx5_{i}/1/{q}": (v, NOW_S) for i in range(ports) for q, v in PORT_VALUES.items()}
    latest |= {f"eth{i}/{q}": (v, NOW_S) for i in range(nics) for q, v in NIC_VALUES.items()}
    latest |= {f"all/{q}": (v, NOW_S) for q, v in DISK_VALUES.items()}
    base = Snapshot(
        NOW_S,
        STARTED_UNIX_S + NOW_S,
        there,
        "serve",
        latest,
        tuple(analysis(i, w) for i in range(gpus) for w in (15.0, 60.0, 300.0)),
        {f"GPU-{i}": {"overlapped": 200.0, "exposed": 100.5, "unknown": 83.5} for i in range(gpus)},
        findings=(
            Finding("exposed_communication", "GPU-2", 300.0, (Evidence("exposed", 0.43, "ratio", 0.1),), ("ddp_bucket_cap",)),
        )
        if gpus > 2
        else (),
        transport="rdma" if ports else "unknown",
        sources=tuple(health(s.name) for s in there.sources),
        refresh=(
            *(SensorRefresh("gpu", f"GPU-{i}", "power", 0.1, 0.025) for i in range(gpus)),
            *(SensorRefresh("rdma_port", f"mlx5_{i}/1", "bytes", 0.02) for i in range(ports)),
        ),
        processes=(
            ProcessCost("exporter", 12.5, 71e6),
            ProcessCost("reader_gpu", 30.25, 24e6),
            ProcessCost("reader_net", 9.0, None),
        ),
        analysis_duration_buckets=tuple([0, 0, 10, 350, 40, 0, 0, 0, 0][: len(ANALYSIS_DURATION_BOUNDS_S) + 1]),
        analysis_duration_sum_s=5.9,
        pci_gpus=gpus,
        nvml_gpus=gpus,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def fullest() -> Snapshot:
    """The full node with every series that can exist there at once."""
    full = snapshot()
    findings = ("exposed_communication", "input_stall", "straggler_wait", "power_capped")
    return replace(
        full,
        latest={**full.latest, **{f"GPU-{i}/xid_errors_total/{x}": (1.0, NOW_S) for i in range(GPUS) for x in (13, 31)}},
        analyses=tuple(full_analysis(i, w) for i in range(GPUS) for w in (15.0, 60.0, 300.0)),
        findings=tuple(Finding(f, f"GPU-{i}", 300.0) for f in findings for i in range(GPUS)),
        quarantined=(Quarantine("gpu", "GPU-7", 390.0, "hang"),),
        sources=tuple(
            health(f"{kind}/{i}") for kind in ("nvml", "gpm", "rdma", "nic", "host", "xid", "pods", "jobs") for i in range(3)
        ),
        refresh=(*full.refresh, *(SensorRefresh("gpu", f"GPU-{i}", "bytes", 0.1) for i in range(GPUS))),
        gone=(Device("gpu", "GPU-8", 8, ""),),
        pods=tuple(GpuPod(f"GPU-{i}", "research", "llama-0", "train") for i in range(GPUS)),
        jobs=tuple(GpuJob(f"GPU-{i}", "slurm", "4711") for i in range(GPUS)),
    )


def mixed(**changes: object) -> Snapshot:
    """The full node on a bad day: every state, a GPU in quarantine, a source that is missing."""
    full = snapshot()
    findings = (
        Finding(
            "exposed_communication",
            "GPU-2",
            300.0,
            (Evidence("exposed", 0.43, "ratio", 0.1),),
            ("ddp_bucket_cap", "fsdp_prefetch"),
        ),
        Finding("small_buckets", "GPU-2", 320.0),
        Finding("input_stall", "GPU-4", 310.0),
        Finding("congestion", None, 390.0, (Evidence("mlx5_3/1 pfc_pause", 1.2e7, "bytes_per_second"),)),
    )
    sources = tuple(
        replace(s, up=False, reason="hang") if s.source == "nvml/GPU-7" else s
        for s in full.sources
        if not s.source.startswith("gpm")
    )
    return replace(
        full,
        mode="demo",
        findings=findings,
        quarantined=(Quarantine("gpu", "GPU-7", 395.0, "hang"),),
        latest={c: v for c, v in full.latest.items() if not c.startswith("GPU-7/")},
        sources=(*sources, health("gpm", up=False, reason="unsupported", reads=0, last_success_s=None)),
        **changes,  # type: ignore[arg-type]
    )


def history(seconds: float = 40.0, step_s: float = 0.05, period_s: float = 1.2) -> History:
    """Waveforms that look like the states of VERDICTS, up to NOW_S, in the sources of the full node."""
    there = inventory()
    kept = History()
    kept.apply(there)
    bytes_sent = [4.2e13] * GPUS
    for k in range(int(seconds / step_s) + 1):
        t_s = NOW_S - seconds + k * step_s
        for i in range(GPUS - 1):
            phase = (t_s + 0.07 * i) % period_s / period_s
            busy, sends = _SHAPES[str(VERDICTS[i]["state"])](phase)
            ripple = 1.0 + 0.02 * math.sin(37.0 * t_s + i) + 0.01 * math.sin(91.0 * t_s)
            bytes_sent[i] += sends * 44e9 * step_s * ripple
            power_watts = (120.0 + 550.0 * busy) * ripple
            values = {
                **GPU_VALUES,
                "power_watts": power_watts,
                "nvlink_transmit_bytes_total": 4.1e15 + 3 * bytes_sent[i],
                "nvlink_receive_bytes_total": 4.0e15 + 3 * bytes_sent[i],
            }
            kept.apply(Record(f"nvml/GPU-{i}", t_s, list(values.values()), 0.0008))
            port_values = {**PORT_VALUES, "transmit_bytes_total": bytes_sent[i], "receive_bytes_total": bytes_sent[i] * 0.98}
            kept.apply(Record(f"rdma/mlx5_{i}", t_s, list(port_values.values()), 0.0002))
    return kept


# Phase of a step (0 to 1) -> how busy the GPU is, and how much of the line rate is sent.
_SHAPES = {
    "overlapped": lambda p: (1.0, 0.9 if 0.3 < p < 0.9 else 0.1),
    "partial": lambda p: (0.35 if 0.8 < p < 0.97 else 1.0, 0.85 if 0.45 < p < 0.97 else 0.0),
    "serialized": lambda p: (1.0, 0.0) if p < 0.55 else (0.25, 0.92),
    "compute_only": lambda p: (0.96 if p < 0.9 else 0.8, 0.0),
    "stalled": lambda p: (0.95, 0.5 if p > 0.3 else 0.0) if p < 0.42 else (0.06, 0.0),
    "unobservable": lambda p: (0.6 + 0.1 * math.sin(60 * p), 0.5 + 0.2 * math.sin(80 * p)),
    "idle": lambda _: (0.0, 0.0),
}
