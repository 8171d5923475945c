"""NVML: opens the GPUs and hands out their lanes.

`reader.py` calls open_gpu and close_gpu, always from one thread; `doctor.py` may too. The library is loaded when GPUs are
opened and not before: a host without driver or library is told apart by a reason, never by an exception.
The library is initialised once and again only after it said that it must be (repeated cycles have ended in hangs,
NVIDIA/go-nvml#152); handles of an earlier initialisation are thrown away, never used.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from exporter.clock import Clock, SystemClock
from exporter.model import Device, SourceStatus
from exporter.sources import (
    QUARANTINE,
    REOPEN,
    RESTART,
    Announce,
    GpuSettings,
    Lane,
    LaneError,
    Opened,
    unannounced,
)
from exporter.sources.gpm import GpmLane, gpm_supported
from exporter.sources.nvml_binding import Library, LoadError
from exporter.sources.nvml_calls import OK, PERMANENT, ask, ask_u32, meaning, probe_fields
from exporter.sources.nvml_events import XidLane, XidWatch
from exporter.sources.nvml_lanes import open_fast_lane, open_slow_lane
from exporter.sources.nvml_mig import mig_enabled, mig_uuids
from exporter.sources.nvml_pci import count_pci_gpus, locate, sysfs_bus_id
from exporter.sources.nvml_power import (
    POWER_CURRENT_LIMIT,
    SCOPE_MODULE,
    Board,
    PowerGate,
    PowerSource,
    choose_power,
)

ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell",
    13: "Rubin",
}
_UNKNOWN_ARCHITECTURE = 0xFFFFFFFF
SLOW_INTERVAL_S = 1.0
_TEXT_BYTES = 96
_INIT_NO_FLAGS = 0


@dataclass(slots=True)
class _Gpu:
    """One GPU while it is being opened."""

    index: int
    handle: ctypes.c_void_p
    device: Device


class Session:
    """One initialisation of the library and what hangs on it. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._library: Library | None = None
        self._initialized = False
        self._watch: XidWatch | None = None
        self._xids: dict[str, dict[int, int]] = {}  # kept over initialisations: counters of the process
        self._driver_version = ""

    def open(self, settings: GpuSettings, announce: Announce) -> Opened:
        """All GPUs that the settings ask for. Raises LaneError with RESTART, and with REOPEN where `only` is set."""
        pci_gpus = count_pci_gpus(Path(settings.sysfs_root))
        extra: dict[str, Any] = {"nvml_gpus": None, "pci_gpus": pci_gpus}
        try:
            self._initialize(settings, announce)
            return self._enumerate(settings, announce, extra)
        except LoadError as error:
            return Opened(statuses=(_down(error.reason),), extra={**extra, "detail": error.detail})
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
            self._driver_version = self._text("nvmlSystemGetDriverVersion")
            self._watch = XidWatch(self._library, self._xids)

    def _enumerate(self, settings: GpuSettings, announce: Announce, extra: dict[str, Any]) -> Opened:
        library, watch = self._library, self._watch
        assert library is not None
        assert watch is not None
        count = ctypes.c_uint()
        code = ask(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        if code != OK:
            raise LaneError(meaning(code).name, REOPEN)
        extra["nvml_gpus"] = count.value
        devices: list[Device] = []
        lanes: list[Lane] = []
        lost: dict[str, str] = {}
        refused = None
        for index in range(count.value):
            device_id = f"GPU-{index}"
            if device_id in settings.skip or (settings.only and device_id not in settings.only):
                continue
            if not wanted(replace(settings, include=()), index, device_id, ""):
                continue
            announce("gpu", device_id)
            known = Device("gpu", device_id, index=index, uuid="")
            try:
                handle = ctypes.c_void_p()
                code = ask(library, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
                if code in PERMANENT:  # a GPU that this process may not open counts, but is not ours
                    refused = meaning(code).name
                    continue
                _require(code)
                known = replace(known, uuid=self._text("nvmlDeviceGetUUID", handle))
                if not wanted(settings, index, device_id, known.uuid or ""):
                    continue
                device, opened = self._open_gpu(settings, _Gpu(index, handle, known), watch)
                devices.append(device)
                lanes.extend(opened)
            except LaneError as error:
                if error.then in (REOPEN, RESTART):
                    for lane in lanes:
                        lane.close()
                    raise
                if wanted(settings, index, device_id, known.uuid or ""):
                    devices.append(known)
                    lost[device_id] = error.reason
        watch.start()
        if not devices and not settings.only and not settings.skip:
            return Opened(statuses=(_down(refused or "no_gpus"),), extra=extra)
        return Opened(tuple(devices), tuple(lanes), (), extra, lost)

    def _open_gpu(self, settings: GpuSettings, gpu: _Gpu, watch: XidWatch) -> tuple[Device, list[Lane]]:
        library = self._library
        assert library is not None
        handle, device_id = gpu.handle, gpu.device.id
        board = self._board(handle)
        mig = mig_enabled(library, handle)
        power = choose_power(library, handle, board)
        limit_milliwatts = ask_u32(library, "nvmlDeviceGetEnforcedPowerLimit", handle)
        limit_watts = limit_milliwatts * 1e-3 if limit_milliwatts else None
        gate = PowerGate(limit_watts)
        slow_gate = gate
        if power is not None and power.rung == "module":  # the module may use far more than the GPU
            (module_limit,) = probe_fields(library, handle, ((POWER_CURRENT_LIMIT, SCOPE_MODULE),))
            gate, slow_gate = PowerGate(module_limit * 1e-3 if module_limit else None), PowerGate(None)
        interval_s = 1.0 / settings.gpu_hertz
        lanes: list[Lane] = [
            open_fast_lane(
                library, handle, device_id, interval_s=interval_s, clock=self._clock, power=power, gate=gate, mig=mig
            ),
            open_slow_lane(library, handle, device_id, interval_s=SLOW_INTERVAL_S, gate=slow_gate),
        ]
        lanes = [lane for lane in lanes if lane.source.channels]
        if not mig and gpm_supported(library, handle):
            lanes.append(GpmLane(library, handle, device_id, interval_s=interval_s, clock=self._clock))
        uuid = gpu.device.uuid or device_id
        if watch.register(handle, uuid):
            lanes.append(XidLane(watch, self._xids[uuid], device_id))
        return self._describe(settings, gpu, board, power, limit_watts, mig=mig), lanes

    def _describe(
        self, settings: GpuSettings, gpu: _Gpu, board: Board, power: PowerSource | None, limit_watts: float | None, *, mig: bool
    ) -> Device:
        """The device with all that is known of it."""
        bus_id, pci_path, numa_node = self._pci(gpu.handle, Path(settings.sysfs_root))
        info = {
            "architecture": _architecture_name(board.architecture),
            "driver_version": self._driver_version,
            "power_source": power.rung if power is not None else "none",
            "pci_bus_id": bus_id,
            "mig": "1" if mig else "0",
        }
        if mig and self._library is not None:
            info["mig_uuids"] = ",".join(mig_uuids(self._library, gpu.handle))
        return replace(
            gpu.device,
            name=self._text("nvmlDeviceGetName", gpu.handle) or None,
            power_limit_watts=limit_watts,
            power_source=power.rung if power is not None else None,
            power_window_s=power.window_s if power is not None else None,
            power_refresh_s=power.refresh_s if power is not None else None,
            pci_path=pci_path,
            numa_node=numa_node,
            info=info,
        )

    def _board(self, handle: ctypes.c_void_p) -> Board:
        assert self._library is not None
        architecture = ask_u32(self._library, "nvmlDeviceGetArchitecture", handle)
        major, minor = ctypes.c_int(), ctypes.c_int()
        code = ask(self._library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        capability = (major.value, minor.value) if code == OK else None
        return Board(None if architecture == _UNKNOWN_ARCHITECTURE else architecture, capability)

    def _pci(self, handle: ctypes.c_void_p, sysfs: Path) -> tuple[str, str | None, int | None]:
        """Bus id as sysfs writes it, the real path below the root, and the NUMA node; what is unknown is "" or None."""
        assert self._library is not None
        memory = ctypes.create_string_buffer(68)  # nvmlPciInfo_t; the bus id stands in its last 32 bytes
        if ask(self._library, "nvmlDeviceGetPciInfo_v3", handle, memory) != OK:
            return "", None, None
        bus_id = sysfs_bus_id(memory.raw[36:].split(b"\0", 1)[0].decode(errors="replace"))
        return (bus_id, *locate(sysfs, bus_id))

    def _text(self, name: str, *handle: ctypes.c_void_p) -> str:
        """A short text by a call of the form f([device,] char *, unsigned); "" where it is not answered."""
        assert self._library is not None
        memory = ctypes.create_string_buffer(_TEXT_BYTES)
        code = ask(self._library, name, *handle, memory, _TEXT_BYTES)
        if code != OK and code not in PERMANENT:
            _require(code)
        return memory.value.decode(errors="replace").strip() if code == OK else ""

    def close(self) -> None:
        """End the initialisation: events first, then the library. What is open hangs on it and is dead afterwards."""
        idle = self._watch is None or self._watch.stop()
        self._watch = None
        if idle and self._initialized and self._library is not None:  # never under a thread that is still inside
            ask(self._library, "nvmlShutdown")
        self._initialized = False


def _require(code: int) -> None:
    """Raise LaneError unless success, for a call on a GPU that is being opened: what it cannot answer now, it is lost for."""
    if code != OK:
        then = meaning(code).then
        raise LaneError(meaning(code).name, then if then in (REOPEN, RESTART) else QUARANTINE)


def _down(reason: str) -> SourceStatus:
    return SourceStatus("nvml", 0.0, up=False, reason=reason)


def _architecture_name(code: int | None) -> str:
    return "unknown" if code is None else ARCHITECTURES.get(code, f"architecture {code}")


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
