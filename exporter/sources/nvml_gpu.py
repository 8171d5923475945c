"""One GPU of NVML: what it says of itself when it is opened, and the lanes that read it.

`nvml.py` makes a GpuOpener for each initialisation of the library. What the board does not answer is not there: no value
stands for it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.clock import Clock
from exporter.model import Device
from exporter.sources import GpuSettings, Lane
from exporter.sources.gpm import GpmLane, gpm_supported
from exporter.sources.nvml_binding import Library
from exporter.sources.nvml_boards import architecture_name, ask_text, find_board, find_pci, find_virtualization
from exporter.sources.nvml_calls import ask_u32, probe_fields
from exporter.sources.nvml_events import XidLane, XidWatch
from exporter.sources.nvml_fields import renumbered_fields
from exporter.sources.nvml_lanes import Counted, open_fast_lane
from exporter.sources.nvml_mig import mig_enabled, mig_uuids
from exporter.sources.nvml_power import POWER_CURRENT_LIMIT, SCOPE_MODULE, Board, PowerGate, PowerSource, choose_power
from exporter.sources.nvml_slow import open_slow_lane

SLOW_INTERVAL_S = 1.0


@dataclass(slots=True)
class Gpu:
    """One GPU while it is being opened."""

    device: Device
    handle: ctypes.c_void_p
    lost: str | None = None  # why it cannot be opened


class GpuOpener:
    """Opens GPUs of one initialisation of the library. Used by the thread that reads."""

    def __init__(
        self, library: Library, watch: XidWatch, driver_version: str, counted: dict[str, Counted], clock: Clock
    ) -> None:
        """counted: what the counters of each board stood at last, by UUID; kept by the caller."""
        self._library = library
        self._watch = watch
        self._driver_version = driver_version
        self._renumbered = renumbered_fields(driver_version)
        self._counted = counted
        self._clock = clock

    def open(self, settings: GpuSettings, gpu: Gpu) -> list[Lane]:
        """The lanes of one GPU, whose `device` then holds all that is known of it. Raises LaneError."""
        library, handle, device_id = self._library, gpu.handle, gpu.device.id
        uuid = gpu.device.uuid or device_id
        board = find_board(library, handle)
        mig = mig_enabled(library, handle)
        power = choose_power(library, handle, board)
        limit_milliwatts = ask_u32(library, "nvmlDeviceGetEnforcedPowerLimit", handle)
        limit_watts = limit_milliwatts * 1e-3 if limit_milliwatts else None
        gate, slow_gate = self._gates(handle, power, limit_watts)
        gpu.device = self._describe(settings, gpu, board, power, limit_watts, mig=mig)
        interval_s = 1.0 / settings.gpu_hertz
        counted = self._counted.setdefault(uuid, {})
        lanes: list[Lane] = [
            open_fast_lane(
                library, handle, device_id, interval_s=interval_s, clock=self._clock, counted=counted, power=power, gate=gate,
                mig=mig, virtual=find_virtualization(library, handle) == "vgpu",
            ),
            open_slow_lane(
                library, handle, device_id, interval_s=SLOW_INTERVAL_S, counted=counted, gate=slow_gate,
                renumbered=self._renumbered,
            ),
        ]  # fmt: skip
        lanes = [lane for lane in lanes if lane.source.channels]
        if not mig and gpm_supported(library, handle):
            lanes.append(GpmLane(library, handle, device_id, interval_s=interval_s, clock=self._clock))
        if self._watch.register(handle, uuid):
            lanes.append(XidLane(self._watch, uuid, device_id))
        return lanes

    def _gates(
        self, handle: ctypes.c_void_p, power: PowerSource | None, limit_watts: float | None
    ) -> tuple[PowerGate, PowerGate]:
        """What bounds power, and what the slow lane moves as the limit changes. A module may use far more than its GPU."""
        if power is None or power.rung != "module":
            gate = PowerGate(limit_watts)
            return gate, gate
        (module_limit,) = probe_fields(self._library, handle, ((POWER_CURRENT_LIMIT, SCOPE_MODULE),))
        return PowerGate(module_limit * 1e-3 if module_limit else None), PowerGate(None)

    def _describe(
        self, settings: GpuSettings, gpu: Gpu, board: Board, power: PowerSource | None, limit_watts: float | None, *, mig: bool
    ) -> Device:
        """The device with all that is known of it."""
        library = self._library
        bus_id, pci_path, numa_node = find_pci(library, gpu.handle, Path(settings.sysfs_root))
        info = {
            "architecture": architecture_name(board.architecture),
            "driver_version": self._driver_version,
            "power_source": power.rung if power is not None else "none",
            "pci_bus_id": bus_id,
            "mig": "1" if mig else "0",
        }
        if (virtual := find_virtualization(library, gpu.handle)) is not None:
            info["virtualization"] = virtual
        if (minor := ask_u32(library, "nvmlDeviceGetMinorNumber", gpu.handle)) is not None:
            info["minor"] = str(minor)  # the N of /dev/nvidiaN, by which claims of Kubernetes name it (pods.py)
        if (smoothing := self._power_smoothing(gpu.handle)) is not None:
            info["power_smoothing"] = smoothing
        if mig:
            info["mig_uuids"] = ",".join(mig_uuids(library, gpu.handle))
        return replace(
            gpu.device,
            name=ask_text(library, "nvmlDeviceGetName", gpu.handle) or None,
            power_limit_watts=limit_watts,
            power_source=power.rung if power is not None else None,
            power_window_s=power.window_s if power is not None else None,
            power_refresh_s=power.refresh_s if power is not None else None,
            pci_path=pci_path,
            numa_node=numa_node,
            info=info,
        )

    def _power_smoothing(self, handle: ctypes.c_void_p) -> str | None:
        """on or off; None where the driver is not known to number that field as we do, or the board does not answer."""
        field = self._renumbered.get("power_smoothing")
        if field is None:
            return None
        (enabled,) = probe_fields(self._library, handle, ((field, 0),))
        return None if enabled is None else "on" if enabled else "off"
