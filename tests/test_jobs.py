"""Job files: what a prolog wrote becomes rows; what is no such file is left out, counted, and never waited for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from exporter.jobs import JobFiles, owners, read_job_files
from exporter.model import Device, GpuJob, SourceError

GPUS = (
    Device("gpu", "GPU-0", index=0, uuid="GPU-6a", info={"mig_uuids": "MIG-1,MIG-2"}),
    Device("gpu", "GPU-1", index=1, uuid="GPU-6b"),
)
SLURM = Path(__file__).parent.parent / "deploy" / "slurm"


def rows(directory: Path) -> list[tuple[str, str]]:
    return [(row.gpu_id, row.job_id) for row in owners(read_job_files(str(directory)), GPUS, "slurm")]


def test_files_are_named_by_index_by_uuid_or_by_the_uuid_of_a_mig_device(tmp_path: Path) -> None:
    for name, text in (("1", "4711\n"), ("GPU-6a", "4712"), ("MIG-2", "4713 20001\n"), ("7", "4714")):
        (tmp_path / name).write_text(text)
    assert rows(tmp_path) == [("GPU-0", "4712"), ("GPU-0", "4713"), ("GPU-1", "4711")]


def test_several_jobs_of_one_gpu_are_lines_and_stand_once_each(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("4711\n\n4712\n4711\n")
    assert rows(tmp_path) == [("GPU-0", "4711"), ("GPU-0", "4712")]


def test_an_empty_file_and_an_empty_directory_are_no_job_and_no_error(tmp_path: Path) -> None:
    assert read_job_files(str(tmp_path)) == JobFiles({}, {})
    (tmp_path / "0").write_text("")
    (tmp_path / ".0.half").write_text("written and not yet in place")
    assert rows(tmp_path) == []
    assert read_job_files(str(tmp_path)).errors == {}


def test_the_scheduler_stands_in_the_row() -> None:
    assert owners(JobFiles({"0": ("a",)}), GPUS, "pbs") == (GpuJob("GPU-0", "pbs", "a"),)


def test_what_is_no_list_of_jobs_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("4711")
    (tmp_path / "1").write_bytes(b"\xff\xfe\0")
    (tmp_path / "2").write_text("x" * 5000)
    (tmp_path / "3").write_text("\n".join(map(str, range(17))))
    (tmp_path / "4").write_text("a\x1bb")
    (tmp_path / "5").mkdir()
    os.mkfifo(tmp_path / "6")  # nobody will ever write into it
    (tmp_path / "8").symlink_to(tmp_path / "gone")
    found = read_job_files(str(tmp_path))
    assert found.jobs == {"0": ("4711",)}
    assert found.errors == {"not_understood": 6}


def test_a_missing_directory_and_one_that_is_a_file_have_their_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(SourceError) as error:
            read_job_files(str(path))
        assert error.value.reason == "missing"


def test_a_directory_that_may_not_be_read_has_its_reason(tmp_path: Path) -> None:
    tmp_path.chmod(0o700 if os.geteuid() == 0 else 0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(10001)
    try:
        with pytest.raises(SourceError) as error:
            read_job_files(str(tmp_path))
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
    assert error.value.reason == "permission_denied"


def run(script: str, directory: Path, **environment: str) -> None:
    subprocess.run(["sh", str(SLURM / script)], check=True, timeout=10,
                   env={"PATH": os.environ["PATH"], "OVERLAP_JOBS_DIRECTORY": str(directory), **environment})  # fmt: skip


@pytest.mark.parametrize("variable", ["SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"])
def test_the_prolog_writes_what_is_read_and_the_epilog_takes_it_away(variable: str, tmp_path: Path) -> None:
    jobs = tmp_path / "run" / "jobs"
    run("prolog.sh", jobs, SLURM_JOB_ID="4711", **{variable: "0,1"})
    assert rows(jobs) == [("GPU-0", "4711"), ("GPU-1", "4711")]
    assert jobs.stat().st_mode & 0o777 == 0o755
    run("epilog.sh", jobs, SLURM_JOB_ID="4711", **{variable: "0,1"})
    assert list(jobs.iterdir()) == []


def test_jobs_that_share_a_gpu_come_and_go_without_harm_to_each_other(tmp_path: Path) -> None:
    run("prolog.sh", tmp_path, SLURM_JOB_ID="1", SLURM_JOB_GPUS="0")
    run("prolog.sh", tmp_path, SLURM_JOB_ID="2", SLURM_JOB_GPUS="0,1")
    run("prolog.sh", tmp_path, SLURM_JOB_ID="2", SLURM_JOB_GPUS="0,1")  # requeued
    assert rows(tmp_path) == [("GPU-0", "1"), ("GPU-0", "2"), ("GPU-1", "2")]
    run("epilog.sh", tmp_path, SLURM_JOB_ID="2")  # an epilog need not know the GPUs
    assert rows(tmp_path) == [("GPU-0", "1")]


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_a_job_without_gpus_and_a_directory_that_cannot_be_made_do_not_fail_the_job(script: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run(script, tmp_path / "jobs", SLURM_JOB_ID="4711")
    run(script, tmp_path / "file" / "jobs", SLURM_JOB_ID="4711", SLURM_JOB_GPUS="0")  # a failing prolog drains the node
