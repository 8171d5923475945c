"""Who the GPUs work for: pods and batch jobs, asked every few seconds, each source in a thread of its own.

`live.py` owns it. No device is touched, and nothing here can hold up the daemon: a kubelet that does not answer and a
directory that hangs cost only their own thread. What was last heard stays in force while a source is silent, for
KEPT_S; its age is on the source's health, and no other metric depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from exporter.clock import Clock
from exporter.model import Device, Event, GpuJob, GpuPod, Record, Source, SourceError, SourceStatus

if TYPE_CHECKING:
    from exporter.jobs import JobFiles
    from exporter.pods import Allocation

KEPT_S = 900.0  # a restart of the kubelet takes seconds; after a quarter of an hour a wrong owner is worse than none
_ANSWER_WITHIN_S = 5.0
_STOP_S = 0.5  # a thread that hangs in a file system is left behind: it ends with the process

T = TypeVar("T")
Errors = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """What to ask, None: not at all; and how often."""

    pods_socket: str | None = None
    pods_interval_s: float = 10.0
    jobs_directory: str | None = None
    jobs_scheduler: str = "slurm"
    jobs_interval_s: float = 10.0


class Asking(Protocol):
    """What all inquiries have in common, whatever they ask for."""

    source: Source

    def events(self) -> list[Event]:
        """What happened since the last call."""
        ...

    def stop(self) -> None:
        """End the thread."""
        ...


class Inquiry(Generic[T]):
    """One source, asked every `interval_s`. `ask` gives an answer with the parts that were left out, or raises SourceError."""

    def __init__(self, name: str, interval_s: float, ask: Callable[[], tuple[T, Errors]], clock: Clock, started_mono_s: float):
        self.source = Source(name, (), interval_s)
        self._ask = ask
        self._clock = clock
        self._started_mono_s = started_mono_s
        self._errors: dict[str, int] = {}
        self._newest: tuple[float, T] | None = None
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ask {name}", daemon=True)

    def start(self) -> None:
        """Begin to ask, at once."""
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.ask_once()
            self._ended.wait(self.source.interval_s)

    def ask_once(self) -> None:
        """One question: the answer is kept, and its events wait to be fetched."""
        began_s = self._clock.mono_s()
        try:
            answer, errors = self._ask()
        except SourceError as error:
            self._count({error.reason: 1})
            self._tell(error.reason)
            return
        now_s = self._clock.mono_s()
        self._count(errors)
        self._newest = (now_s, answer)
        at_s = (began_s + now_s) / 2 - self._started_mono_s
        self._events.put(Record(self.source.name, at_s, (), now_s - began_s))
        self._tell(None)

    def _count(self, errors: Errors) -> None:
        for reason, count in errors.items():
            self._errors[reason] = self._errors.get(reason, 0) + count

    def _tell(self, reason: str | None) -> None:
        now_s = self._clock.mono_s() - self._started_mono_s
        self._events.put(SourceStatus(self.source.name, now_s, interval_s=self.source.interval_s, errors=dict(self._errors),
                                      up=reason is None, reason=reason))  # fmt: skip

    def events(self) -> list[Event]:
        """What happened since the last call."""
        found: list[Event] = []
        while True:
            try:
                found.append(self._events.get_nowait())
            except Empty:
                return found

    def answer(self) -> T | None:
        """The newest answer, while it is not older than KEPT_S."""
        newest = self._newest
        return None if newest is None or self._clock.mono_s() - newest[0] > KEPT_S else newest[1]

    def stop(self) -> None:
        """End the thread, waiting a moment for it."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)


class Workloads:
    """Pods and jobs of this node, for the GPUs and ports that the caller knows."""

    def __init__(self, settings: WorkloadSettings, clock: Clock, started_mono_s: float) -> None:
        # Each client is loaded only where it is asked for: that of the kubelet costs 5 MiB.
        self._pods: Inquiry[tuple[Allocation, ...]] | None = None
        self._jobs: Inquiry[JobFiles] | None = None
        self._scheduler = settings.jobs_scheduler
        if settings.pods_socket is not None:
            from exporter.pods import list_allocations

            list_pods = partial(list_allocations, settings.pods_socket, clock.mono_s, _ANSWER_WITHIN_S)
            self._pods = Inquiry("pods", settings.pods_interval_s, lambda: (list_pods(), {}), clock, started_mono_s)
        if settings.jobs_directory is not None:
            from exporter.jobs import read_job_files

            directory = settings.jobs_directory

            def read() -> tuple[JobFiles, Errors]:
                files = read_job_files(directory)
                return files, files.errors

            self._jobs = Inquiry("jobs", settings.jobs_interval_s, read, clock, started_mono_s)

    def _all(self) -> tuple[Asking, ...]:
        return tuple(inquiry for inquiry in (self._pods, self._jobs) if inquiry is not None)

    def start(self) -> None:
        """Begin to ask."""
        for inquiry in (self._pods, self._jobs):
            if inquiry is not None:
                inquiry.start()

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that are asked; they have no channels."""
        return tuple(inquiry.source for inquiry in self._all())

    def events(self) -> list[Event]:
        """What the sources said of themselves since the last call."""
        return [event for inquiry in self._all() for event in inquiry.events()]

    def pods(self, gpus: Sequence[Device]) -> tuple[GpuPod, ...]:
        """Containers and the GPUs that they hold."""
        if self._pods is None or (allocations := self._pods.answer()) is None:
            return ()
        from exporter.pods import owners

        return owners(allocations, gpus)

    def jobs(self, gpus: Sequence[Device]) -> tuple[GpuJob, ...]:
        """Batch jobs and the GPUs that they run on."""
        if self._jobs is None or (files := self._jobs.answer()) is None:
            return ()
        from exporter.jobs import owners

        return owners(files, gpus, self._scheduler)

    def ports_of_pods(self, ports: Sequence[Device]) -> Mapping[str, frozenset[str]]:
        """Pod ("namespace/name") -> RDMA ports that it holds for itself."""
        if self._pods is None or (allocations := self._pods.answer()) is None:
            return {}
        from exporter.pods import ports_of_pods

        return ports_of_pods(allocations, ports)

    def stop(self) -> None:
        """End the threads."""
        for inquiry in self._all():
            inquiry.stop()


def jobs_of_gpus(pods: Sequence[GpuPod], jobs: Sequence[GpuJob]) -> dict[str, str]:
    """GPU id -> what it works for, as the analysis needs it: the batch job where one is told, else the pod; several that
    share a GPU are one name together.

    >>> jobs_of_gpus([GpuPod("GPU-0", "ml", "a", "main"), GpuPod("GPU-1", "ml", "b", "main")], [GpuJob("GPU-1", "slurm", "7")])
    {'GPU-0': 'ml/a', 'GPU-1': '7'}
    """
    found: dict[str, set[str]] = {}
    for pod in pods:
        found.setdefault(pod.gpu_id, set()).add(pod.job)
    batch: dict[str, set[str]] = {}
    for job in jobs:
        batch.setdefault(job.gpu_id, set()).add(job.job_id)
    return {gpu: ", ".join(sorted(names)) for gpu, names in {**found, **batch}.items()}
