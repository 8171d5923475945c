"""Multi-Instance GPU: whether a board is partitioned, and what its parts are called. `nvml_gpu.py` asks when it opens a GPU.

The parts have no power of their own, so they are never judged; their UUIDs are what a pod or a job is given. Parts that
are made later are known after the GPU was opened again.
"""

from __future__ import annotations

import ctypes

from exporter.sources.nvml_binding import Library
from exporter.sources.nvml_calls import OK, ask, ask_u32

_UUID_BYTES = 96
_LARGEST_COUNT = 16  # of one board; there are at most seven today


def mig_enabled(library: Library, handle: ctypes.c_void_p) -> bool:
    """Power of a GPU in MIG mode exists for the whole board only, utilisation not at all (nvmlDeviceGetMigMode)."""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    code = ask(library, "nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    return code == OK and current.value == 1


def mig_uuids(library: Library, handle: ctypes.c_void_p) -> tuple[str, ...]:
    """UUIDs of the MIG devices of a board (nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetUUID); empty without any."""
    uuids: list[str] = []
    for index in range(min(ask_u32(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0, _LARGEST_COUNT)):
        part, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        if ask(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index, ctypes.byref(part)) != OK:
            continue  # numbers of parts need not be without gaps
        if ask(library, "nvmlDeviceGetUUID", part, text, _UUID_BYTES) == OK and text.value:
            uuids.append(text.value.decode(errors="replace"))
    return tuple(uuids)
