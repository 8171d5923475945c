"""XID errors: a thread that waits for them, and the lane that tells how many of each code there were.

`nvml.py` makes one watch per initialisation of the library; the reader ticks the lanes, which touch no device. Waiting is the
one NVML call that may run beside the others (nvml.h: nvmlEventSetWait_v2). Events from before the start are not told.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

from exporter.model import Source
from exporter.sources.nvml_calls import OK, TIMEOUT, Calls, Tally, ask

REASONS = ("transient",)
ALWAYS_TOLD = (48, 79, 94, 95)  # double-bit ECC, off the bus, contained and uncontained ECC: start at 0
INTERVAL_S = 1.0
_XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError
_WAIT_MS = 500
_PAUSE_S = 1.0  # after a wait that failed
_HIGHEST_XID = 1023  # anything above is no code


class _EventData(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p), ("event_type", ctypes.c_ulonglong), ("event_data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint),
    )


class XidWatch:
    """Counts XID events by device and code in a thread of its own. `counts` outlive the session that they came from."""

    def __init__(self, calls: Calls, counts: dict[str, dict[int, int]]) -> None:
        self._calls = calls
        self._counts = counts  # UUID of a GPU -> code -> events
        self._set = ctypes.c_void_p()
        self._devices: dict[int, str] = {}  # handle -> UUID
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.failed_waits = 0

    def register(self, handle: ctypes.c_void_p, uuid: str) -> bool:
        """Watch one more device; False where it cannot be watched, which is no fault of the device."""
        if handle.value in self._devices:
            return True
        if not self._set.value and ask(self._calls, "nvmlEventSetCreate", ctypes.byref(self._set)) != OK:
            return False
        types = ctypes.c_ulonglong()
        code = ask(self._calls, "nvmlDeviceGetSupportedEventTypes", handle, ctypes.byref(types))
        if code != OK or not types.value & _XID_CRITICAL_ERROR:
            return False
        wanted = ctypes.c_ulonglong(_XID_CRITICAL_ERROR)
        if ask(self._calls, "nvmlDeviceRegisterEvents", handle, wanted, self._set) != OK:
            return False
        self._devices[handle.value or 0] = uuid
        self._counts.setdefault(uuid, dict.fromkeys(ALWAYS_TOLD, 0))
        return True

    def counts(self, uuid: str) -> dict[int, int]:
        """Events by code of a device that was registered; goes on counting."""
        return self._counts[uuid]

    def start(self) -> None:
        """Begin to wait, once there is a device to wait for."""
        if self._thread is None and self._devices:
            self._thread = threading.Thread(target=self._run, name="xid", daemon=True)
            self._thread.start()

    def stop(self) -> bool:
        """End the thread and free the event set; False where the wait does not come back and keeps both."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(3 * _WAIT_MS / 1000)
            if self._thread.is_alive():
                return False
        if self._set.value:
            ask(self._calls, "nvmlEventSetFree", self._set)
        return True

    def _run(self) -> None:
        wait = self._calls.function("nvmlEventSetWait_v2")
        event = _EventData()
        while wait is not None and not self._ending.is_set():
            code = wait(self._set, ctypes.byref(event), _WAIT_MS)
            if code == OK:
                self._take(event)
            elif code != TIMEOUT:
                self.failed_waits += 1
                self._ending.wait(_PAUSE_S)

    def _take(self, event: _EventData) -> None:
        uuid = self._devices.get(event.device or 0)
        xid = int(event.event_data)
        if uuid is not None and event.event_type == _XID_CRITICAL_ERROR and 0 < xid <= _HIGHEST_XID:
            counts = self._counts[uuid]
            counts[xid] = counts.get(xid, 0) + 1


class XidLane:
    """How many XID events of each code one GPU had. Grows a channel when a code comes up for the first time."""

    device_kind = "gpu"

    def __init__(self, watch: XidWatch, uuid: str, device_id: str) -> None:
        self._watch = watch
        self._counts = watch.counts(uuid)
        self.device_id = device_id
        self._tally = Tally(REASONS)
        self._codes: tuple[int, ...] = ()
        self.source = Source(f"xid/{device_id}", (), INTERVAL_S)
        self._name_codes(tuple(self._counts))

    def _name_codes(self, codes: tuple[int, ...]) -> None:
        self._codes = codes
        channels = tuple(f"{self.device_id}/xid_errors_total/{code}" for code in codes)
        self.source = Source(self.source.name, channels, INTERVAL_S)

    @property
    def errors(self) -> Tally:
        """Waits that failed; they concern all GPUs alike."""
        self._tally["transient"] = self._watch.failed_waits
        return self._tally

    def read(self) -> Sequence[float]:
        """A count per code, in the order in which the codes came up."""
        counts = self._counts.copy()
        if len(counts) != len(self._codes):
            self._name_codes(tuple(counts))
        return [float(counts[code]) for code in self._codes]

    def close(self) -> None:
        """The watch belongs to the session."""
