"""What a GPU says of itself when it is opened: its texts, its kind, its place on the PCI bus, how it is virtualised.

`nvml_gpu.py` asks once per GPU. What is not answered is "" or None, never an error; only a code that speaks of the device or
the library as a whole is raised.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from exporter.sources import QUARANTINE, REOPEN, RESTART, LaneError
from exporter.sources.nvml_calls import OK, PERMANENT, Calls, ask, ask_u32, meaning
from exporter.sources.nvml_pci import locate, sysfs_bus_id
from exporter.sources.nvml_power import Board

ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell",
    13: "Rubin",
}
_UNKNOWN_ARCHITECTURE = 0xFFFFFFFF
_TEXT_BYTES = 96
_VIRTUALIZATION = {1: "passthrough", 2: "vgpu"}  # nvmlGpuVirtualizationMode_t; the others are those of a host


def require(code: int) -> None:
    """Raise LaneError unless success, for a call on a GPU that is being opened: what it cannot answer now, it is lost for."""
    if code != OK:
        then = meaning(code).then
        raise LaneError(meaning(code).name, then if then in (REOPEN, RESTART) else QUARANTINE)


def ask_text(calls: Calls, name: str, *handle: ctypes.c_void_p) -> str:
    """A short text by a call of the form f([device,] char *, unsigned); "" where it is not answered."""
    memory = ctypes.create_string_buffer(_TEXT_BYTES)
    code = ask(calls, name, *handle, memory, _TEXT_BYTES)
    if code != OK and code not in PERMANENT:
        require(code)
    return memory.value.decode(errors="replace").strip() if code == OK else ""


def find_board(calls: Calls, handle: ctypes.c_void_p) -> Board:
    """Architecture and compute capability: what decides about the power sensor."""
    architecture = ask_u32(calls, "nvmlDeviceGetArchitecture", handle)
    major, minor = ctypes.c_int(), ctypes.c_int()
    code = ask(calls, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    capability = (major.value, minor.value) if code == OK else None
    return Board(None if architecture == _UNKNOWN_ARCHITECTURE else architecture, capability)


def architecture_name(code: int | None) -> str:
    """The word for nvmlDeviceArchitecture_t on the info series."""
    return "unknown" if code is None else ARCHITECTURES.get(code, f"architecture {code}")


def find_virtualization(calls: Calls, handle: ctypes.c_void_p) -> str | None:
    """passthrough or vgpu in a virtual machine that has the GPU, or a part of it; None elsewhere."""
    return _VIRTUALIZATION.get(ask_u32(calls, "nvmlDeviceGetVirtualizationMode", handle) or 0)


def find_pci(calls: Calls, handle: ctypes.c_void_p, sysfs: Path) -> tuple[str, str | None, int | None]:
    """Bus id as sysfs writes it, the real path below the root, and the NUMA node; what is unknown is "" or None."""
    memory = ctypes.create_string_buffer(68)  # nvmlPciInfo_t; the bus id stands in its last 32 bytes
    if ask(calls, "nvmlDeviceGetPciInfo_v3", handle, memory) != OK:
        return "", None, None
    bus_id = sysfs_bus_id(memory.raw[36:].split(b"\0", 1)[0].decode(errors="replace"))
    return (bus_id, *locate(sysfs, bus_id))
