"""NVML: opens the GPUs and hands out their lanes.

`reader.py` calls open_gpu and close_gpu, always from one thread; `doctor.py` may too. The library is loaded when GPUs are
opened and not before: a host without driver or library is told apart by a reason, never by an exception.
The library is initialised once and again only after it said that it must be (repeated cycles have ended in hangs,
NVIDIA/go-nvml#152); handles of an earlier initialisation are thrown away, never used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from exporter.clock import Clock, SystemClock
from exporter.model import Device, SourceStatus
from exporter.sources import REOPEN, RESTART, Announce, GpuSettings, Lane, LaneError, Opened, unannounced
from exporter.sources.nvml_binding import Library, LoadError
from exporter.sources.nvml_boards import ask_text, require
from exporter.sources.nvml_calls import OK, PERMANENT, ask, meaning
from exporter.sources.nvml_events import XidWatch
from exporter.sources.nvml_gpu import Gpu, GpuOpener
from exporter.sources.nvml_lanes import Counted
from exporter.sources.nvml_names import BoardNames
from exporter.sources.nvml_pci import count_pci_gpus

_INIT_NO_FLAGS = 0
_MOST_BOARDS = 64  # of one node, for ids that are not to be given away


class Session:
    """One initialisation of the library and what hangs on it. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._library: Library | None = None
        self._initialized = False
        self._watch: XidWatch | None = None
        self._opener: GpuOpener | None = None
        # Kept over initialisations: counters of the process, those of the boards, and their names, by UUID.
        self._xids: dict[str, dict[int, int]] = {}
        self._counted: dict[str, Counted] = {}
        self._names = BoardNames()

    def open(self, settings: GpuSettings, announce: Announce) -> Opened:
        """All GPUs that the settings ask for. Raises LaneError with RESTART, and with REOPEN where `only` is set."""
        pci_gpus = count_pci_gpus(Path(settings.sysfs_root))
        extra: dict[str, Any] = {"nvml_gpus": None, "pci_gpus": pci_gpus}
        try:
            self._initialize(settings, announce)
            return self._enumerate(settings, announce, extra)
        except LoadError as error:
            told = {"detail": error.detail, **({"nvml_hint": error.hint} if error.hint else {})}
            return Opened(statuses=(_down(error.reason),), extra={**extra, **told})
        except LaneError as error:
            if error.then == RESTART or settings.only:  # lanes of other GPUs are open: the reader closes them first
                raise
            self.close()
            return Opened(statuses=(_down(error.reason),), extra=extra)

    def _initialize(self, settings: GpuSettings, announce: Announce) -> None:
        announce("gpu", "")
        if self._library is None:
            self._library = Library(settings.nvml_library)
        if not self._initialized:
            code = ask(self._library, "nvmlInitWithFlags", _INIT_NO_FLAGS)
            if code != OK:
                raise LaneError(meaning(code).name, RESTART if meaning(code).then == RESTART else REOPEN)
            self._initialized = True
            self._watch = XidWatch(self._library, self._xids)
            driver_version = ask_text(self._library, "nvmlSystemGetDriverVersion")
            self._opener = GpuOpener(self._library, self._watch, driver_version, self._counted, self._clock)

    def _enumerate(self, settings: GpuSettings, announce: Announce, extra: dict[str, Any]) -> Opened:
        library, watch, opener = self._library, self._watch, self._opener
        assert library is not None
        assert watch is not None
        assert opener is not None
        count = ctypes.c_uint()
        code = ask(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        if code != OK:
            raise LaneError(meaning(code).name, REOPEN)
        extra["nvml_gpus"] = count.value
        self._names.learn(settings.known)
        gpus, refused = self._look(library, settings, announce, count.value)
        lanes: list[Lane] = []
        try:
            for gpu in gpus:
                if gpu.lost is None:
                    announce("gpu", gpu.device.id)
                    _open(opener, settings, gpu, lanes)
        except LaneError:
            for lane in lanes:
                lane.close()
            raise
        watch.start()
        if not gpus and not settings.only and not settings.skip:
            return Opened(statuses=(_down(refused or "no_gpus"),), extra=extra)
        lost = {gpu.device.id: gpu.lost for gpu in gpus if gpu.lost is not None}
        return Opened(tuple(gpu.device for gpu in gpus), tuple(lanes), (), extra, lost)

    def _look(
        self, library: Library, settings: GpuSettings, announce: Announce, count: int
    ) -> tuple[list[Gpu], str | None]:
        """The GPUs that the settings ask for, in NVML's order, each under its own id; and why one may not be opened."""
        found: list[Gpu] = []
        refused = None
        for index in range(count):
            device_id = self._names.expected(index)
            if not _asked_for(settings, device_id) or not wanted(replace(settings, include=()), index, device_id, ""):
                continue
            announce("gpu", device_id)
            gpu = Gpu(Device("gpu", device_id, index=index, uuid=""), ctypes.c_void_p())
            code = ask(library, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(gpu.handle))
            if code in PERMANENT:  # a GPU that this process may not open counts, but is not ours
                refused = meaning(code).name
                continue
            try:
                require(code)
                gpu.device = replace(gpu.device, uuid=ask_text(library, "nvmlDeviceGetUUID", gpu.handle))
            except LaneError as error:
                if error.then in (REOPEN, RESTART):
                    raise
                gpu.lost = error.reason
            found.append(gpu)
        self._name(found, settings)
        return [g for g in found if _asked_for(settings, g.device.id) and self._is_wanted(settings, g.device)], refused

    def _name(self, found: Sequence[Gpu], settings: GpuSettings) -> None:
        others = set(settings.skip)
        if settings.only:
            others |= {self._names.expected(k) for k in range(_MOST_BOARDS)} - set(settings.only)
        ids = self._names.settle({g.device.index or 0: g.device.uuid or "" for g in found}, others)
        for gpu in found:
            gpu.device = replace(gpu.device, id=ids[gpu.device.index or 0])

    @staticmethod
    def _is_wanted(settings: GpuSettings, device: Device) -> bool:
        return wanted(settings, device.index or 0, device.id, device.uuid or "")

    def close(self) -> None:
        """End the initialisation: events first, then the library. What is open hangs on it and is dead afterwards."""
        idle = self._watch is None or self._watch.stop()
        self._watch = self._opener = None
        if idle and self._initialized and self._library is not None:  # never under a thread that is still inside
            ask(self._library, "nvmlShutdown")
        self._initialized = False


def _open(opener: GpuOpener, settings: GpuSettings, gpu: Gpu, lanes: list[Lane]) -> None:
    """Open one GPU and add its lanes; one that fails is lost, unless the failure is the library's."""
    try:
        opened = opener.open(settings, gpu)
    except LaneError as error:
        if error.then in (REOPEN, RESTART):
            raise
        gpu.lost = error.reason
    else:
        lanes.extend(opened)


def _asked_for(settings: GpuSettings, device_id: str) -> bool:
    return device_id not in settings.skip and (not settings.only or device_id in settings.only)


def _down(reason: str) -> SourceStatus:
    return SourceStatus("nvml", 0.0, up=False, reason=reason)


def wanted(settings: GpuSettings, index: int, device_id: str, uuid: str) -> bool:
    """Whether the filters let this GPU through; patterns are held against index, id and UUID.

    >>> wanted(GpuSettings(exclude=("1",)), 1, "GPU-1", "GPU-6a0e")
    False
    """
    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns for name in (str(index), device_id, uuid))

    return (not settings.include or matches(settings.include)) and not matches(settings.exclude)


_SESSION = Session(SystemClock())


def open_gpu(settings: GpuSettings, announce: Announce = unannounced) -> Opened:
    """Open the GPUs that the settings ask for, initialising the library if it is not. One thread, the one that reads.

    Raises nothing but LaneError: RESTART when only a new process can load the driver's library, and with `only` REOPEN.
    """
    return _SESSION.open(settings, announce)


def close_gpu() -> None:
    """Shut the library down. All lanes must have been closed before."""
    _SESSION.close()
