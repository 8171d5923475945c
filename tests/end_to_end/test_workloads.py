"""The real daemon asks a kubelet and reads job files: join series, shared ports, and a kubelet that goes away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.processes import Daemon, daemon, eventually
from tests.fake_kubelet import Claimed, FakeKubelet, Pod
from tests.machines import flat
from tests.nvml_library import Board
from tests.tools import require

pytestmark = pytest.mark.end_to_end
MIG = "MIG-11111111-2222-3333-4444-555555555555"


def rows(running: Daemon, name: str) -> set[tuple[tuple[str, str], ...]]:
    return {tuple(sorted((k, v) for k, v in labels if k != "uuid")) for (n, labels) in running.metrics() if n == name}


def test_pods_and_jobs_stand_on_join_series_and_outlive_a_kubelet_that_is_away(tmp_path: Path) -> None:
    require("gcc")
    machine = replace(flat(2), boards=(*flat(2).boards, Board(mig=1, mig_uuids=("MIG-other", MIG))))
    kubelet = FakeKubelet(tmp_path / "kubelet.sock")
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "1").write_text("4711\n")
    with machine.running(tmp_path / "machine") as running:
        uuids = [f"GPU-{k:08x}-0000-4000-8000-{k:012x}" for k in range(3)]
        kubelet.pods = [
            Pod("ml", "train-0", {"main": {"nvidia.com/gpu": (uuids[0],), "nvidia.com/mig-1g.10gb": (MIG,)}}),
            Pod("ml", "notebook", {"main": {"nvidia.com/gpu": (uuids[0] + "::1",)}}),
        ]
        settings = tmp_path / "settings.yml"
        settings.write_text(
            f"pods: {{socket: {kubelet.path}, interval_seconds: 1}}\njobs: {{directory: {jobs}, interval_seconds: 1}}\n"
        )
        with kubelet, daemon(tmp_path / "log", ["--config.file", str(settings), *running.arguments],
                             running.environment) as exporter:  # fmt: skip
            exporter.ready()
            eventually(lambda: len(rows(exporter, "overlap_gpu_pod_info")) == 3, 10, "all pods are shown")
            common = (("workload_container", "main"), ("workload_namespace", "ml"))
            assert rows(exporter, "overlap_gpu_pod_info") == {
                (("gpu", "0"), ("mig_uuid", ""), *common, ("workload_pod", "train-0")),
                (("gpu", "0"), ("mig_uuid", ""), *common, ("workload_pod", "notebook")),
                (("gpu", "2"), ("mig_uuid", MIG), *common, ("workload_pod", "train-0")),
            }
            assert rows(exporter, "overlap_gpu_job_info") == {(("gpu", "1"), ("job_id", "4711"), ("scheduler", "slurm"))}
            for source in ("pods", "jobs"):
                assert exporter.value("overlap_source_up", source=source) == 1
                assert exporter.value("overlap_source_interval_seconds", source=source) == 1
            names = {labels for (name, labels) in exporter.metrics() if "pod" not in name and "job" not in name}
            assert not any("train-0" in value for labels in names for _, value in labels), "pods are on join series alone"

            kubelet.stop()
            eventually(lambda: exporter.value("overlap_source_up", source="pods") == 0, 10, "the socket is missed")
            last = "overlap_source_last_success_timestamp_seconds"
            before = exporter.value(last, source="pods")
            eventually(lambda: (exporter.value("overlap_source_errors_total", source="pods", reason="missing") or 0) >= 2, 10)
            assert exporter.value(last, source="pods") == pytest.approx(before, abs=0.1), "its age is shown"
            assert len(rows(exporter, "overlap_gpu_pod_info")) == 3
            assert exporter.value("overlap_source_up", source="nvml") == 1
            assert exporter.get("/-/ready")[0] == 200

            kubelet.pods = [Pod("ml", "next", {"main": {"nvidia.com/gpu": (uuids[1],)}})]
            (jobs / "1").unlink()
            kubelet.start()
            eventually(lambda: len(rows(exporter, "overlap_gpu_pod_info")) == 1, 10, "the new pods are shown")
            eventually(lambda: not rows(exporter, "overlap_gpu_job_info"), 10, "the job has ended")
            assert exporter.value("overlap_source_up", source="pods") == 1

            def ports(gpu: str) -> set[str]:
                return {dict(r)["device"] for r in rows(exporter, "overlap_gpu_link_info")
                        if dict(r)["gpu"] == gpu and dict(r)["path"] == "rdma"}  # fmt: skip

            assert ports("0") == {"mlx5_0"}
            kubelet.pods = [Pod("ml", "crossed", {"main": {"nvidia.com/gpu": (uuids[0],), "example.com/efa": ("mlx5_1",)}})]
            eventually(lambda: ports("0") == {"mlx5_1"}, 10, "a pod uses the port that it was given")
            assert "mlx5_1" not in ports("1") | ports("2"), "and nobody else does"
            assert exporter.stop() == 0


def test_gpus_that_were_given_out_as_claims_stand_beside_their_pods(tmp_path: Path) -> None:
    """The real library answers with minor numbers, which are not the indices: claims go by the former."""
    require("gcc")
    node = flat(2)
    machine = replace(node, boards=tuple(replace(board, minor=1 - k) for k, board in enumerate(node.boards)))
    kubelet = FakeKubelet(tmp_path / "kubelet.sock")
    kubelet.pods = [Pod("ml", f"train-{k}", {"main": {}}, {"main": (Claimed("gpu.nvidia.com", f"gpu-{k}"),)}) for k in range(2)]
    settings = tmp_path / "settings.yml"
    settings.write_text(f"pods: {{socket: {kubelet.path}, interval_seconds: 1}}\n")
    with machine.running(tmp_path / "machine") as running, kubelet, daemon(
        tmp_path / "log", ["--config.file", str(settings), *running.arguments], running.environment
    ) as exporter:  # fmt: skip
        exporter.ready()
        eventually(lambda: len(rows(exporter, "overlap_gpu_pod_info")) == 2, 10, "both pods are shown")
        pods = {dict(row)["gpu"]: dict(row)["workload_pod"] for row in rows(exporter, "overlap_gpu_pod_info")}
        assert pods == {"0": "train-1", "1": "train-0"}
        assert exporter.stop() == 0


def test_two_pods_that_share_ports_are_found_to_share_the_node(tmp_path: Path) -> None:
    require("gcc")
    machine = flat(2)
    machine = replace(machine, node=replace(machine.node, ports=1), flat_bytes_per_s=22.5e9)
    kubelet = FakeKubelet(tmp_path / "kubelet.sock")
    kubelet.pods = [
        Pod("ml", f"job-{k}", {"main": {"nvidia.com/gpu": (f"GPU-{k:08x}-0000-4000-8000-{k:012x}",)}}) for k in range(2)
    ]
    settings = tmp_path / "settings.yml"
    settings.write_text(
        f"pods: {{socket: {kubelet.path}, interval_seconds: 1}}\n"
        "analysis: {windows_seconds: [5], verdict_window_seconds: 5}\n"
    )
    with machine.running(tmp_path / "machine") as running, kubelet, daemon(
        tmp_path / "log", ["--config.file", str(settings), *running.arguments], running.environment
    ) as exporter:  # fmt: skip
        exporter.ready()
        eventually(lambda: exporter.value("overlap_finding", finding="shared_node") == 1, 90, "the ports carry two jobs")
