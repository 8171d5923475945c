"""What the files of sysfs say: texts to numbers, failures to words, links to canonical paths and PCI paths.

The sources that read sysfs build on this module and on `files`. The root of the tree is always an argument. Nothing here
keeps a file open or decides what to read, and no content of a file ever raises: a text that says nothing is None, a
failed read a reason out of REASONS.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

# Why a file gave no number, or one that cannot be held against the one before. The closed list of the kinds rdma, nic, host.
REASONS = (
    "not_available", "io_error", "permission_denied", "missing", "not_a_number", "vanished", "counter_reset", "saturated",
)

_REASON_OF_ERRNO: Mapping[int, str] = MappingProxyType({
    errno.EINVAL: "not_available",  # counters of bnxt_re, of VFs and of NVSwitch management functions; speed of a down link
    errno.EOPNOTSUPP: "not_available",
    errno.ENOSYS: "not_available",
    errno.EIO: "io_error",  # these four come from the driver's command path and pass
    errno.ETIMEDOUT: "io_error",
    errno.EAGAIN: "io_error",
    errno.EBUSY: "io_error",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.EISDIR: "missing",  # a directory of that name: no such file
    errno.ELOOP: "missing",
    errno.ENODEV: "vanished",
    errno.ENXIO: "vanished",
})
# A driver without performance agent answers with text on old kernels; ionic prints what it cannot decode as all ones.
_NOT_AVAILABLE_TEXTS = ("N/A", str((1 << 64) - 1))
_LARGEST_COUNT = (1 << 64) - 1
BUFFER_BYTES = 256  # a short buffer truncates silently
_RATE = re.compile(r"(\d{1,6})(\.\d)? Gb/sec \((\d{1,2})X(?: (\w+))?\)", re.ASCII)
_STATE = re.compile(r"(\d{1,2}):", re.ASCII)
_SPEED = re.compile(r"-?\d{1,9}", re.ASCII)
_PCI_ROOT = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")

Parse = Callable[[str], float | None]


def parse_count(text: str) -> int | None:
    """A counter of at most 64 bits; None for any other text.

    >>> parse_count("18126345378"), parse_count("-1"), parse_count("")
    (18126345378, None, None)
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    value = int(text)
    return value if value <= _LARGEST_COUNT else None


def parse_state(text: str) -> float | None:
    """1.0 where a port's `state` is ACTIVE (number 4), else 0.0; the word after the number is not looked at.

    >>> parse_state("4: ACTIVE"), parse_state("1: DOWN"), parse_state("ACTIVE")
    (1.0, 0.0, None)
    """
    match = _STATE.match(text)
    return None if match is None else float(int(match[1]) == 4)


def parse_rate(text: str) -> float | None:
    """Line rate of a port in bytes per second from its `rate`, NaN for SDR, None for any other text.

    Links that are down, and speeds that the kernel does not know yet, print as SDR: it says nothing.

    >>> parse_rate("400 Gb/sec (4X NDR)"), parse_rate("10 Gb/sec (4X SDR)")
    (50000000000.0, nan)
    """
    match = _RATE.fullmatch(text)
    if match is None:
        return None
    whole, fraction, _, speed = match.groups()
    if speed in (None, "SDR"):  # old kernels leave the word out
        return math.nan
    return float(whole + (fraction or "")) * 1e9 / 8


def parse_speed(text: str) -> float | None:
    """Line rate of an interface in bytes per second from its `speed` (Mbit/s); NaN where it says unknown.

    >>> parse_speed("25000"), parse_speed("-1")
    (3125000000.0, nan)
    """
    if _SPEED.fullmatch(text) is None:
        return None
    return int(text) * 1e6 / 8 if int(text) > 0 else math.nan


def parse_operstate(text: str) -> float | None:
    """1.0 where an interface's `operstate` (RFC 2863) is up, 0.0 for its other words, None for unknown and other text."""
    if text in ("notpresent", "down", "lowerlayerdown", "testing", "dormant"):
        return 0.0
    return 1.0 if text == "up" else None


def parse_carrier(text: str) -> float | None:
    """1.0 or 0.0 from an interface's `carrier`."""
    return {"0": 0.0, "1": 1.0}.get(text)


def reason_of(error: OSError) -> str:
    """The word out of REASONS for a failed open or read."""
    return _REASON_OF_ERRNO.get(error.errno or 0, "io_error")


def read_text(path: str) -> str | None:
    """The text of a small file without the white space around it; None where it cannot be read.

    For discovery only. Does not wait where something other than an attribute stands there (a pipe reads as empty).
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.pread(fd, BUFFER_BYTES, 0).decode("utf-8", "replace").strip()
        finally:
            os.close(fd)
    except OSError:
        return None


def probe(path: str, parse: Parse) -> tuple[float | None, str | None]:
    """(value, None) or (None, reason) of one read at discovery, without waiting."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            text = os.pread(fd, BUFFER_BYTES, 0).decode("utf-8", "replace").strip()
        finally:
            os.close(fd)
    except OSError as error:
        return None, reason_of(error)
    return judge(text, parse)


def judge(text: str, parse: Parse) -> tuple[float | None, str | None]:
    """(value, None) or (None, reason) for the text of a file."""
    if text.startswith(_NOT_AVAILABLE_TEXTS):
        return None, "not_available"
    value = parse(text)
    return (value, None) if value is not None else (None, "not_a_number")


def names_in(path: str) -> list[str]:
    """The names in a directory, numbers within them in numerical order; empty where it cannot be listed."""
    try:
        return sorted(os.listdir(path), key=natural_key)  # noqa: PTH208 (names, and no objects around them)
    except OSError:
        return []


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorting key under which mlx5_2 stands before mlx5_10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(p[:18]), p) if p[0] in "0123456789" else (1, 0, p) for p in parts)


def canonical(root: str, path: str) -> str:
    """`path` with every link resolved, below the root ("devices/pci0000:15/..."); the root itself may be a link."""
    real_root = os.path.realpath(root)
    real = os.path.realpath(path)
    return real[len(real_root) :].lstrip("/") if real.startswith(real_root + "/") else real.lstrip("/")


def pci_path(root: str, device_path: str) -> str | None:
    """The canonical path of a device on a PCI bus, below the root; None where it hangs on no PCI bus."""
    path = canonical(root, device_path)
    return path if any(_PCI_ROOT.fullmatch(part) for part in path.split("/")) else None


def numa_node(device_path: str) -> int | None:
    """`numa_node` of a device; None where the kernel says -1 or nothing."""
    count = parse_count(read_text(f"{device_path}/numa_node") or "")
    return count if count is None or count < 1 << 16 else None


def link_name(path: str) -> str | None:
    """The last part of where a link points, whether that exists or not; None where there is no link."""
    try:
        return os.path.basename(os.readlink(path).rstrip("/")) or None  # noqa: PTH115, PTH119
    except OSError:
        return None


def wanted(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether glob patterns let a name through; no pattern in `include` lets all through.

    >>> wanted("mlx5_0", ["mlx5_*"], ["mlx5_0"]), wanted("eth0", [], ["ib*"])
    (False, True)
    """
    if any(fnmatchcase(name, pattern) for pattern in exclude):
        return False
    return not include or any(fnmatchcase(name, pattern) for pattern in include)


def no_errors() -> dict[str, int]:
    """A count for each reason of this module, at zero."""
    return dict.fromkeys(REASONS, 0)
