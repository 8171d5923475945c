"""Recorded series against handmade ones: jobs, shared GPUs, target labels that get in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from deploy.prometheus.recording import PORTS
from deploy.prometheus.rule import groups_yaml
from tests.promtool import Series, run

# What a PodMonitor attaches to every series of a target: names that the job's own labels must not be confused with.
POD_MONITOR = 'job="overlap-exporter",namespace="monitoring",pod="overlap-exporter-{node}",container="exporter",endpoint="http"'


def phases(node: str, uuid: str, shares: Mapping[str, float], extra: str = "", minutes: int = 20) -> Iterator[tuple[str, str]]:
    for phase in ("overlapped", "exposed", "compute", "stall", "wait", "idle", "unknown"):
        labels = f'instance="{node}",gpu="0",uuid="{uuid}",phase="{phase}"{extra}'
        yield f"overlap_phase_seconds_total{{{labels}}}", f"0+{60 * shares.get(phase, 0.0):g}x{minutes}"


def gpu(node: str, uuid: str, extra: str = "", **shares: float) -> dict[str, str]:
    """A GPU that spends its seconds like this."""
    up = f'overlap_gpu_up{{instance="{node}",gpu="0",uuid="{uuid}"{extra}}}'
    return {up: "1x20", **dict(phases(node, uuid, shares, extra))}


def pod(node: str, uuid: str, namespace: str, name: str, extra: str = "") -> dict[str, str]:
    labels = f'instance="{node}",gpu="0",uuid="{uuid}",mig_uuid="",workload_namespace="{namespace}",workload_pod="{name}"'
    return {f'overlap_gpu_pod_info{{{labels},workload_container="main"{extra}}}': "1x20"}


def slurm(node: str, uuid: str, job: str) -> dict[str, str]:
    return {f'overlap_gpu_job_info{{instance="{node}",gpu="0",uuid="{uuid}",scheduler="slurm",job_id="{job}"}}': "1x20"}


def expect(folder: Path, series: Series, expected: Mapping[str, Mapping[str, float]]) -> None:
    """expected: expression -> labels of a sample -> value to the fourth place, all at minute 12."""
    tests = []
    for expr, found in expected.items():
        exact = [
            {"labels": "{" + labels.partition("{")[2].rstrip("}") + "}", "value": round(value, 4)}
            for labels, value in found.items()
        ]
        tests.append({"expr": f"round({expr}, 0.0001)", "eval_time": "12m", "exp_samples": exact})
    assert run(folder, series, samples=tests) == ""


def test_a_node_that_knows_of_no_job_is_its_own(tmp_path: Path) -> None:
    series = gpu("n1", "A", overlapped=0.6, exposed=0.2, compute=0.2) | gpu("n1", "B", overlapped=0.2, exposed=0.4, idle=0.4)
    expect(tmp_path, series, {
        "workload:overlap_exposed:ratio_rate5m": {'workload:overlap_exposed:ratio_rate5m{workload="node/n1"}': 0.6 / 1.6},
        "workload:overlap_health:ratio_rate5m": {'workload:overlap_health:ratio_rate5m{workload="node/n1"}': 0.8 / 1.4},
        "workload:overlap_gpus:count": {'workload:overlap_gpus:count{workload="node/n1"}': 2},
        "workload:overlap_place:info": {'workload:overlap_place:info{instance="n1",workload="node/n1"}': 1},
    })  # fmt: skip


def test_shares_weigh_by_running_time_and_leave_out_what_could_not_be_judged(tmp_path: Path) -> None:
    series = gpu("n1", "A", exposed=0.1, idle=0.9) | gpu("n1", "B", overlapped=0.9, unknown=0.1)
    expect(tmp_path, series, {
        "instance:overlap_running:rate5m": {'instance:overlap_running:rate5m{instance="n1"}': 1.0},
        "instance:overlap_exposed:ratio_rate5m": {'instance:overlap_exposed:ratio_rate5m{instance="n1"}': 0.1},
        "cluster:overlap_health:ratio_rate5m": {"cluster:overlap_health:ratio_rate5m": 0.9},
    })  # fmt: skip


def test_a_ratio_without_running_time_is_absent(tmp_path: Path) -> None:
    expect(tmp_path, gpu("n1", "A", idle=1.0) | gpu("n2", "B", unknown=1.0), {
        "workload:overlap_exposed:ratio_rate5m": {},
        "cluster:overlap_exposed:ratio_rate5m": {},
        "cluster:overlap_health:ratio_rate5m": {},
        'sum(cluster:overlap_phase_seconds:rate5m{phase="unknown"})': {"{}": 1.0},
    })  # fmt: skip


def test_two_pods_on_one_gpu_each_have_its_shares_and_the_cluster_counts_it_once(tmp_path: Path) -> None:
    series = gpu("n1", "A", exposed=0.4, overlapped=0.6)
    series |= pod("n1", "A", "llm", "train-worker-0") | pod("n1", "A", "eval", "judge")
    expect(tmp_path, series, {
        "workload:overlap_exposed:ratio_rate5m": {
            'workload:overlap_exposed:ratio_rate5m{workload="llm/train",workload_namespace="llm"}': 0.4,
            'workload:overlap_exposed:ratio_rate5m{workload="eval/judge",workload_namespace="eval"}': 0.4,
        },
        'cluster:overlap_phase_seconds:rate5m{phase="exposed"}': {'cluster:overlap_phase_seconds:rate5m{phase="exposed"}': 0.4},
        "sum(workload:overlap_gpus:count)": {"{}": 2},
    })  # fmt: skip


def test_two_pods_of_one_job_on_one_gpu_count_once(tmp_path: Path) -> None:
    series = gpu("n1", "A", exposed=0.4, overlapped=0.6) | pod("n1", "A", "llm", "train-0") | pod("n1", "A", "llm", "train-1")
    series |= {name.replace('mig_uuid=""', 'mig_uuid="MIG-1"'): v for name, v in pod("n1", "A", "llm", "train-1").items()}
    expect(tmp_path, series, {
        'workload:overlap_phase_seconds:rate5m{phase="exposed"}': {
            'workload:overlap_phase_seconds:rate5m{workload="llm/train",workload_namespace="llm",phase="exposed"}': 0.4},
        "sum(workload:overlap_gpus:count)": {"{}": 1},
        "count(gpu:overlap_workload:info)": {"{}": 2},
    })  # fmt: skip


@pytest.mark.parametrize("changed", [False, True])
def test_target_labels_of_a_pod_monitor_neither_split_nor_break_a_job(tmp_path: Path, changed: bool) -> None:
    series: dict[str, str] = {}
    for node, uuid in (("n1", "A"), ("n2", "B")):
        targets = [f",{POD_MONITOR.format(node=node)}"]
        if changed:  # the exporter's pod was replaced, and for some minutes both are stored
            targets.append(targets[0].replace("overlap-exporter-n", "overlap-exporter-new-n"))
        for target in targets:
            series |= gpu(node, uuid, target, exposed=0.5, compute=0.5) | pod(node, uuid, "llm", f"train-worker-{uuid}", target)
    series = {name.replace("worker-A", "worker-0").replace("worker-B", "worker-1"): v for name, v in series.items()}
    job = 'workload="llm/train",workload_namespace="llm"'
    expect(tmp_path, series, {
        "workload:overlap_exposed:ratio_rate5m": {f"workload:overlap_exposed:ratio_rate5m{{{job}}}": 0.5},
        "workload:overlap_gpus:count": {f"workload:overlap_gpus:count{{{job}}}": 2},
        "workload:overlap_nodes:count": {f"workload:overlap_nodes:count{{{job}}}": 2},
        "workload:overlap_place:info": {f"workload:overlap_place:info{{{job}}}": 1},
        "sum(cluster:overlap_phase_seconds:rate5m)": {"{}": 2.0},
    })  # fmt: skip


def test_a_slurm_job_is_named_by_its_number_and_beats_the_pod(tmp_path: Path) -> None:
    series = gpu("n1", "A", exposed=1.0) | slurm("n1", "A", "4711") | pod("n1", "A", "slurm-bridge", "node-1-0")
    expect(tmp_path, series, {
        "count by (workload) (gpu:overlap_workload:info)": {'{workload="slurm/4711"}': 1},
    })  # fmt: skip


def test_a_gpu_without_a_pod_beside_one_with_a_pod_belongs_to_no_job(tmp_path: Path) -> None:
    series = gpu("n1", "A", exposed=1.0) | gpu("n1", "B", idle=1.0) | pod("n1", "A", "llm", "train-0")
    expect(tmp_path, series, {"count by (workload) (gpu:overlap_workload:info)": {'{workload="llm/train"}': 1}})


@pytest.mark.parametrize(("name", "group"), [
    ("train-worker-3", "train"), ("train-master-0", "train"), ("train-0", "train"), ("train-0-x7k2p", "train"),
    ("train-workers-0-3-x7k2p", "train"), ("llama-70b", "llama-70b"), ("llama-70b-worker-12", "llama-70b"), ("gpt2x", "gpt2x"),
    ("run-abcde", "run-abcde"),
])  # fmt: skip
def test_pods_of_one_job_share_a_name(tmp_path: Path, name: str, group: str) -> None:
    series = gpu("n1", "A", exposed=1.0) | pod("n1", "A", "llm", name)
    expect(tmp_path, series, {"count by (workload) (gpu:overlap_workload:info)": {f'{{workload="llm/{group}"}}': 1}})


def test_clusters_with_equal_names_of_nodes_stay_apart(tmp_path: Path) -> None:
    series = gpu("n1", "A", ',cluster="east"', exposed=0.1, compute=0.9)
    series |= gpu("n1", "A", ',cluster="west"', exposed=0.3, compute=0.7)
    expect(tmp_path, series, {
        "workload:overlap_exposed:ratio_rate5m": {
            'workload:overlap_exposed:ratio_rate5m{cluster="east",workload="node/n1"}': 0.1,
            'workload:overlap_exposed:ratio_rate5m{cluster="west",workload="node/n1"}': 0.3,
        },
    })  # fmt: skip


def steps(node: str, uuid: str, period_s: float) -> dict[str, str]:
    return {f'overlap_step_period_seconds{{instance="{node}",gpu="0",uuid="{uuid}",window="60s"}}': f"{period_s}x20"}


def test_the_spread_of_the_step_period_is_that_of_the_nodes_medians(tmp_path: Path) -> None:
    series: dict[str, str] = {}
    for node, period_s in (("n1", 1.0), ("n2", 1.0), ("n3", 1.5)):
        series |= gpu(node, node, compute=1.0) | pod(node, node, "llm", f"train-{node[1]}") | steps(node, node, period_s)
    job = 'workload="llm/train",workload_namespace="llm"'
    name = "workload:overlap_step_period_seconds:spread_ratio"
    expect(tmp_path, series, {name: {f"{name}{{{job}}}": 0.5}})


STRAGGLER = "instance_workload:overlap_straggler_wait:ratio_rate5m"


def job_of(waits: Mapping[str, float]) -> dict[str, str]:
    series: dict[str, str] = {}
    for number, (node, wait) in enumerate(waits.items()):
        series |= gpu(node, node, wait=wait, compute=1.0 - wait) | pod(node, node, "llm", f"train-{number}")
    return series


def test_the_node_that_waits_least_is_the_straggler(tmp_path: Path) -> None:
    labels = 'instance="n2",workload="llm/train",workload_namespace="llm"'
    expect(tmp_path, job_of({"n1": 0.3, "n2": 0.02, "n3": 0.3, "n4": 0.32}), {STRAGGLER: {f"{STRAGGLER}{{{labels}}}": 0.28}})


def test_nodes_that_wait_alike_or_hardly_have_no_straggler(tmp_path: Path) -> None:
    expect(tmp_path, job_of({"n1": 0.3, "n2": 0.25, "n3": 0.3}), {STRAGGLER: {}})
    expect(tmp_path, job_of({"n1": 0.06, "n2": 0.0, "n3": 0.07}), {STRAGGLER: {}})


def test_one_slow_gpu_names_its_node_although_its_neighbours_wait(tmp_path: Path) -> None:
    series = job_of({"n1": 0.3, "n2": 0.3, "n3": 0.3}) | gpu("n2", "slow", compute=1.0) | pod("n2", "slow", "llm", "train-1")
    labels = 'instance="n2",workload="llm/train",workload_namespace="llm"'
    expect(tmp_path, series, {STRAGGLER: {f"{STRAGGLER}{{{labels}}}": 0.3}})


def test_a_straggler_that_the_exporter_found_counts_in_a_job_of_one_node(tmp_path: Path) -> None:
    series = gpu("n1", "A", wait=0.3, compute=0.7) | gpu("n1", "B", compute=1.0)
    series |= {'overlap_finding{instance="n1",finding="straggler_wait",gpu="1",uuid="B"}': "1x20"}
    expect(tmp_path, series, {STRAGGLER: {f'{STRAGGLER}{{instance="n1",workload="node/n1"}}': 0.15}})


def test_the_worst_state_of_a_node_is_a_number(tmp_path: Path) -> None:
    states = {"overlapped": 1, "serialized": 0, "stalled": 1, "idle": 0}
    series = {f'overlap_state{{instance="n1",gpu="{k}",uuid="{k}",window="60s",state="{state}"}}': f"{value}x20"
              for k, (state, value) in enumerate(states.items())}  # fmt: skip
    expect(tmp_path, series, {"instance:overlap_state:worst": {'instance:overlap_state:worst{instance="n1"}': 6}})


def test_a_port_is_remembered_for_a_day_after_it_was_last_up(tmp_path: Path) -> None:
    name = "port:overlap_rdma_active:timestamp_seconds"
    port = 'instance="n1",device="mlx5_0",port="1"'
    series = {f"overlap_rdma_port_up{{{port}}}": "1x10 0x1500",
              'overlap_rdma_port_up{instance="n1",device="dead",port="1"}': "0x1500"}  # fmt: skip
    samples = [
        {"expr": name, "eval_time": at, "exp_samples": [{"labels": f"{name}{{{port}}}", "value": 630}] if there else []}
        for at, there in (("11m", True), ("23h", True), ("24h9m", True), ("24h16m", False))
    ]
    assert run(tmp_path, series, samples=samples, rules={"ports.yml": groups_yaml((PORTS,), "")}) == ""
