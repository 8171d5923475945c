"""How NVML is called and how it fails: the table of its error codes, batches of field values, counts of errors.

The NVML lanes import this; the binding itself is handed in as `Calls`, so that `nvml.py` stays its only door. Functions
are called through raw pointers with buffers made once: the binding's own wrappers allocate at every call and format error
texts inside the library, which may hang. Layouts: nvml.h of the driver, x86-64 and arm64 alike.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from exporter.sources import KEEP, QUARANTINE, REOPEN, RESTART, LaneError

NAN = float("nan")
OK, INVALID_ARGUMENT, NOT_SUPPORTED, TIMEOUT, FUNCTION_NOT_FOUND, INVALID_STATE, UNKNOWN = 0, 2, 3, 10, 13, 29, 999


class Calls(Protocol):
    """The loaded library."""

    def function(self, name: str) -> Callable[..., int] | None:
        """The pointer to a function; None where this library has none of that name."""
        ...


class Code(NamedTuple):
    """What an NVML error code means to us: its name, the reason it is counted under ("": no error), what the reader does."""

    name: str
    counted: str
    then: str


# nvmlReturn_t of nvml.h. "library": handles are dead, everything is opened anew. "gpu_lost": this device only, the others
# go on. "unsupported": this entry on this device, for good. "transient": the next tick tries again.
CODES: Mapping[int, Code] = {
    1: Code("uninitialized", "library", REOPEN),
    2: Code("invalid_argument", "library", REOPEN),  # on a handle that worked before; on a first probe: unsupported
    3: Code("not_supported", "unsupported", KEEP),
    4: Code("no_permission", "no_permission", KEEP),
    6: Code("not_found", "", KEEP),  # no new sample
    8: Code("insufficient_power", "gpu_lost", QUARANTINE),  # its power cables are missing: only people can help
    9: Code("driver_not_loaded", "library", REOPEN),
    10: Code("timeout", "transient", KEEP),
    11: Code("irq_issue", "transient", KEEP),
    12: Code("library_not_found", "library", REOPEN),
    13: Code("function_not_found", "unsupported", KEEP),
    15: Code("gpu_lost", "gpu_lost", QUARANTINE),
    16: Code("reset_required", "gpu_lost", QUARANTINE),
    17: Code("operating_system", "transient", KEEP),
    18: Code("library_driver_mismatch", "library", RESTART),  # the old library stays mapped: only a new process helps
    19: Code("in_use", "transient", KEEP),
    20: Code("memory", "transient", KEEP),
    21: Code("no_data", "", KEEP),
    25: Code("argument_version_mismatch", "unsupported", KEEP),
    26: Code("deprecated", "unsupported", KEEP),
    27: Code("not_ready", "transient", KEEP),
    28: Code("gpu_not_found", "library", REOPEN),
    29: Code("invalid_state", "transient", KEEP),
    999: Code("unknown_error", "transient", KEEP),
}
# What is transient by itself and no longer is when a device answers nothing else: how often in a row, and what is done then.
IN_A_ROW = 5
PERSISTENT: Mapping[int, str] = {INVALID_STATE: REOPEN, UNKNOWN: QUARANTINE}
PERMANENT = frozenset((2, 3, 4, 13, 25, 26))  # answers to a first probe after which an entry is not asked for again


def meaning(code: int) -> Code:
    """What a code means; one that is not in the table is transient."""
    return CODES.get(code) or Code(f"nvml_error_{code}", "transient", KEEP)


class Tally(dict[str, int]):
    """Running totals by reason; every reason is there from the start, so that its series starts at 0."""

    def __init__(self, reasons: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(reasons, 0))

    def add(self, reason: str) -> None:
        """Count one."""
        self[reason] += 1


class Failures:
    """Turns the codes of one device into errors: counts them, and loses patience with those that persist."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._in_a_row = 0

    def check(self, code: int) -> None:
        """Raise LaneError unless `code` is success. For the code of a call as a whole."""
        if code == OK:
            self._in_a_row = 0
            return
        name, counted, then = meaning(code)
        if counted:
            self._tally.add(counted)
        if code in PERSISTENT:
            self._in_a_row += 1
            if self._in_a_row >= IN_A_ROW:
                then = PERSISTENT[code]
        raise LaneError(name, then)

    def entry(self, code: int) -> None:
        """Count a failed entry of a call that succeeded; raise only where the device itself is gone."""
        _, counted, then = meaning(code)
        if then == QUARANTINE:
            self.check(code)
        if counted:
            self._tally.add("unsupported" if code == INVALID_ARGUMENT else counted)


# nvmlFieldValue_t, 40 bytes: fieldId, scopeId, timestamp us, latencyUsec, valueType, nvmlReturn, value.
FIELD_LAYOUT = struct.Struct("=IIqqiiQ")
_ID_LAYOUT = struct.Struct("=II")
_DOUBLE, _U32, _ULONG, _ULL, _SLL, _INT, _U16 = range(7)  # nvmlValueType_t


def _as_double(raw: int) -> float:
    return float(struct.unpack("<d", raw.to_bytes(8, "little"))[0])


_DECODERS: tuple[Callable[[int], float], ...] = (
    _as_double,
    lambda raw: float(raw & 0xFFFFFFFF),
    float,
    float,
    lambda raw: float(raw - (1 << 64) if raw >> 63 else raw),
    lambda raw: float((raw & 0xFFFFFFFF) - (1 << 32) if raw & 0x80000000 else raw & 0xFFFFFFFF),
    lambda raw: float(raw & 0xFFFF),
)


def decode_value(value_type: int, raw: int) -> float:
    """The number in an nvmlValue_t, by its type; NaN for a type that nvml.h does not have.

    >>> decode_value(1, 0xFFFFFFFF), decode_value(4, 0xFFFFFFFFFFFFFFFF)
    (4294967295.0, -1.0)
    """
    return _DECODERS[value_type](raw) if 0 <= value_type < len(_DECODERS) else NAN


class FieldBatch:
    """One nvmlDeviceGetFieldValues call over a fixed list of (field id, scope id), into memory made once.

    Each entry has a return code of its own: the call may succeed while entries fail. Ids up to 250 mean the same in every
    driver branch; higher ones were renumbered and are not used.
    """

    def __init__(self, calls: Calls, entries: Sequence[tuple[int, int]]) -> None:
        self._call = calls.function("nvmlDeviceGetFieldValues")
        self._memory = bytearray(FIELD_LAYOUT.size * len(entries))
        for i, entry in enumerate(entries):
            _ID_LAYOUT.pack_into(self._memory, i * FIELD_LAYOUT.size, *entry)
        self._count = len(entries)
        self._pointer = (ctypes.c_char * max(1, len(self._memory))).from_buffer(self._memory) if entries else None
        self.codes: list[int] = [NOT_SUPPORTED] * len(entries)
        self.values: list[float] = [NAN] * len(entries)

    def read(self, handle: ctypes.c_void_p) -> int:
        """Read all entries into `codes` and `values` (NaN where the code is not 0); returns the code of the call."""
        if self._call is None or self._pointer is None:
            return FUNCTION_NOT_FOUND if self._count else OK
        outer = self._call(handle, self._count, self._pointer)
        if outer != OK:
            return outer
        codes, values = self.codes, self.values
        for i, (_, _, _, _, value_type, code, raw) in enumerate(FIELD_LAYOUT.iter_unpack(self._memory)):
            codes[i] = code
            values[i] = decode_value(value_type, raw) if code == OK else NAN
        return OK


def probe_fields(calls: Calls, handle: ctypes.c_void_p, entries: Sequence[tuple[int, int]]) -> list[float | None]:
    """Values of some fields, asked once; None where the entry is not answered. Raises LaneError for the device."""
    batch = FieldBatch(calls, entries)
    code = batch.read(handle)
    if code in PERMANENT:
        return [None] * len(entries)
    Failures(Tally(("library", "gpu_lost", "transient"))).check(code)
    return [v if c == OK else None for c, v in zip(batch.codes, batch.values, strict=True)]


def ask(calls: Calls, name: str, *arguments: Any) -> int:
    """Call a function by name; FUNCTION_NOT_FOUND where the library lacks it."""
    function = calls.function(name)
    return FUNCTION_NOT_FOUND if function is None else function(*arguments)


def ask_u32(calls: Calls, name: str, handle: ctypes.c_void_p, *arguments: Any) -> int | None:
    """One unsigned number by a call of the form f(device, ..., unsigned *); None where it is not answered.

    Raises LaneError where the code says more than that about the device or the library.
    """
    out = ctypes.c_uint()
    code = ask(calls, name, handle, *arguments, ctypes.byref(out))
    if code == OK:
        return out.value
    if code not in PERMANENT and meaning(code).then != KEEP:
        raise LaneError(meaning(code).name, meaning(code).then)
    return None
