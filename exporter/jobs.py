"""Which job of a batch scheduler runs on which GPU: files that its prolog writes and its epilog removes.

One file per GPU in one directory, named by the GPU's index, its UUID or the UUID of a MIG device; one job id a line, the
convention of dcgm-exporter's job mapping (what follows a job id on its line is passed over, as some sites add the user).
`workloads.py` reads them in a thread of its own: the directory may lie on a file system that hangs. Files that are not of
this form are left out and counted; nothing here writes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exporter.model import EMPTY, Device, GpuJob, SourceError

_LARGEST_FILE_BYTES = 4096
_LARGEST_JOBS = 16  # of one GPU
_LONGEST_ID = 128
_LARGEST_FILES = 256


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What the directory says: name of a file -> job ids; errors: reason -> files that were left out."""

    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: EMPTY)
    errors: Mapping[str, int] = field(default_factory=lambda: EMPTY)


def read_job_files(directory: str) -> JobFiles:
    """All files of the directory; SourceError with missing, permission_denied or io_error where it cannot be listed."""
    try:
        paths = sorted(path for path in Path(directory).iterdir() if not path.name.startswith("."))[:_LARGEST_FILES]
    except OSError as error:
        raise SourceError(_reason(error), f"{directory}: {error.strerror or error}") from None
    jobs: dict[str, tuple[str, ...]] = {}
    errors: dict[str, int] = {}
    for path in paths:
        try:
            jobs[path.name] = _job_ids(path)
        except FileNotFoundError:
            continue  # the epilog was quicker
        except (OSError, ValueError) as error:
            reason = _reason(error) if isinstance(error, OSError) else "not_understood"
            errors[reason] = errors.get(reason, 0) + 1
    return JobFiles(jobs, errors)


def _reason(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "permission_denied"
    return "missing" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "io_error"


def _job_ids(path: Path) -> tuple[str, ...]:
    """The job ids of one file; ValueError where it holds something else. A pipe in its place must not block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        data = os.read(descriptor, _LARGEST_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    ids = tuple(dict.fromkeys(line.split()[0] for line in data.decode().splitlines() if line.split()))
    if len(data) > _LARGEST_FILE_BYTES or len(ids) > _LARGEST_JOBS:
        raise ValueError("too much for a list of jobs")
    if not all(len(i) <= _LONGEST_ID and i.isprintable() for i in ids):
        raise ValueError("not a job id")
    return ids


def owners(files: JobFiles, gpus: Sequence[Device], scheduler: str) -> tuple[GpuJob, ...]:
    """A row per GPU and job; files that are named after no GPU seen here give none.

    >>> owners(JobFiles({"0": ("4711",), "7": ("4712",)}), [Device("gpu", "GPU-0", index=0, uuid="GPU-6a")], "slurm")
    (GpuJob(gpu_id='GPU-0', scheduler='slurm', job_id='4711'),)
    """
    known: dict[str, str] = {}
    for gpu in gpus:
        names = (gpu.uuid or "", "" if gpu.index is None else str(gpu.index), *gpu.info.get("mig_uuids", "").split(","))
        known.update((name, gpu.id) for name in names if name)
    rows = dict.fromkeys(
        GpuJob(known[name], scheduler, job) for name, ids in files.jobs.items() if name in known for job in ids
    )
    return tuple(sorted(rows, key=lambda row: [g.id for g in gpus].index(row.gpu_id)))
