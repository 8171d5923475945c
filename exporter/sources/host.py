"""The node's own witnesses of a storage stall: bytes of its disks and network file systems, CPU time waiting for them.

`net.py` calls `open_host`; one lane, "host/all". Each witness that cannot be read is absent, and a file system or disk
that goes makes its sum step back once. Reads procfs by itself, below the root it is given: psutil knows one root per
process and caches. Runs no command and touches no device.

Kernel interface: Documentation/admin-guide/iostats.rst (/proc/diskstats), Documentation/filesystems/proc.rst (/proc/stat,
/proc/<pid>/mountstats), Lustre's llite statistics.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from exporter.model import Device, Source, SourceStatus
from exporter.sources import Announce, Lane, LaneError, NetSettings, Opened, unannounced
from exporter.sources.sysfs import no_errors, parse_count, reason_of

_Parsed = TypeVar("_Parsed")
_SECTOR_BYTES = 512  # of diskstats, whatever the disk's own sectors are
_LARGEST_FILE_BYTES = 4 << 20  # a node with thousands of mounts
# Whole disks, where /sys/block does not tell (no partitions, no loop, RAM, mapped or multi-disk devices).
_DISK_NAME = re.compile(r"(sd|vd|xvd|hd)[a-z]+|nvme\d+n\d+|mmcblk\d+|pmem\d+", re.ASCII)
_IOWAIT_COLUMN = 5  # "cpu user nice system idle iowait ..."
_NFS_SERVER_READ_COLUMN = 4  # "bytes: normalread normalwrite directread directwrite serverread ..."


def parse_diskstats(text: str, is_disk: Callable[[str], bool]) -> tuple[float, float] | None:
    """Bytes read and written by the disks that `is_disk` names; None where there is none.

    >>> parse_diskstats("254 0 vda 38284 10182 3481722 10564 8315 19299 3538256 6099", lambda name: name == "vda")
    (1782641664.0, 1811587072.0)
    """
    read = written = 0
    seen = False
    for line in text.splitlines():
        columns = line.split()
        if len(columns) < 10 or not is_disk(columns[2]):
            continue
        sectors = parse_count(columns[5]), parse_count(columns[9])
        if sectors[0] is not None and sectors[1] is not None:
            read, written, seen = read + int(sectors[0]), written + int(sectors[1]), True
    return (float(read * _SECTOR_BYTES), float(written * _SECTOR_BYTES)) if seen else None


def parse_iowait(text: str, ticks_per_s: int) -> float | None:
    """Seconds of all CPUs spent waiting for input or output, from /proc/stat.

    >>> parse_iowait("cpu  4293 164 2358 170931 239 0 38 8 0 0", 100)
    2.39
    """
    for line in text.splitlines():
        columns = line.split()
        if columns and columns[0] == "cpu" and len(columns) > _IOWAIT_COLUMN:
            ticks = parse_count(columns[_IOWAIT_COLUMN])
            return None if ticks is None else ticks / ticks_per_s
    return None


def parse_mountstats(text: str) -> float | None:
    """Bytes read from NFS servers, from /proc/<pid>/mountstats; None without an NFS mount.

    Several mounts of one export share their counters (one superblock): equal lines of one device count once.

    >>> parse_mountstats("device nas:/data mounted on /data with fstype nfs4 statvers=1.1\\n\\tbytes:\\t1 2 3 4 500 6 7 8")
    500.0
    """
    seen: dict[tuple[str, str], int] = {}
    device: str | None = None
    for line in text.splitlines():
        columns = line.split()
        if columns[:1] == ["device"]:
            is_nfs = "fstype" in columns and columns[columns.index("fstype") + 1 :][:1] in (["nfs"], ["nfs4"])
            device = columns[1] if is_nfs else None
        elif device is not None and columns[:1] == ["bytes:"] and len(columns) > _NFS_SERVER_READ_COLUMN + 1:
            count = parse_count(columns[1 + _NFS_SERVER_READ_COLUMN])
            if count is not None:
                seen[device, line] = int(count)
    return float(sum(seen.values())) if seen else None


def parse_llite_stats(text: str) -> float | None:
    """Bytes read from one Lustre file system, from its client's `stats`: the sum of the read_bytes line.

    >>> parse_llite_stats("snapshot_time 1.0 secs.usecs\\nread_bytes 12 samples [bytes] 4096 1048576 9437184")
    9437184.0
    """
    for line in text.splitlines():
        columns = line.split()
        if columns[:1] == ["read_bytes"] and len(columns) > 6:
            count = parse_count(columns[6])
            return None if count is None else float(count)
    return None


def read_whole(path: str) -> str:
    """The text of a file of procfs, which comes in pieces."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        left = _LARGEST_FILE_BYTES
        while left > 0 and (piece := os.read(fd, min(left, 1 << 16))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(fd)
    return b"".join(pieces).decode("utf-8", "replace")


class HostLane:
    """All witnesses in one reading. A witness that fails is NaN for that reading and counted once per change of cause."""

    device_kind = "disk"
    device_id = "all"

    def __init__(self, settings: NetSettings) -> None:
        self._proc = settings.procfs_root
        self._sys = settings.sysfs_root
        self._errors = no_errors()
        self._failing: dict[str, str] = {}
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        values = self._values()
        self._errors.update(no_errors())  # what is not there from the start is no fault
        self._failing.clear()
        self._keys = tuple(key for key, value in values.items() if value is not None)
        self.source = Source("host/all", tuple(f"all/{key}" for key in self._keys), 1.0 / settings.host_hertz)

    @property
    def errors(self) -> Mapping[str, int]:
        """Running totals by reason."""
        return self._errors

    def read(self) -> Sequence[float]:
        """One value per channel, NaN where not read; LaneError where nothing at all could be read."""
        values = self._values()
        found = [value if (value := values[key]) is not None else math.nan for key in self._keys]
        if all(math.isnan(value) for value in found):
            raise LaneError(next(iter(self._failing.values()), "missing"))
        return found

    def close(self) -> None:
        """Nothing is kept open."""

    def _values(self) -> dict[str, float | None]:
        disks = self._read(f"{self._proc}/diskstats", lambda text: parse_diskstats(text, self._is_disk))
        return {
            "read_bytes_total": disks[0] if disks is not None else None,
            "written_bytes_total": disks[1] if disks is not None else None,
            "network_filesystem_read_bytes_total": self._network_filesystems(),
            "cpu_iowait_seconds_total": self._read(
                f"{self._proc}/stat", lambda text: parse_iowait(text, self._ticks_per_s)
            ),
        }

    def _read(self, path: str, parse: Callable[[str], _Parsed | None]) -> _Parsed | None:
        try:
            parsed = parse(read_whole(path))
        except OSError as error:
            reason = reason_of(error)
            if self._failing.get(path) != reason:
                self._failing[path] = reason
                self._errors[reason] += 1
            return None
        self._failing.pop(path, None)
        return parsed

    def _is_disk(self, name: str) -> bool:
        block = f"{self._sys}/block"
        if os.path.isdir(block):  # noqa: PTH112
            return os.path.lexists(f"{block}/{name}/device")  # partitions are not listed there, made-up disks have no device
        return _DISK_NAME.fullmatch(name) is not None

    def _network_filesystems(self) -> float | None:
        """NFS as process 1 mounts it (the node, seen from a container with the node's procfs), and Lustre clients."""
        parts = [self._read(f"{self._proc}/1/mountstats", parse_mountstats)]
        if parts == [None]:
            parts = [self._read(f"{self._proc}/self/mountstats", parse_mountstats)]
        for pattern in (f"{self._proc}/fs/lustre/llite/*/stats", f"{self._sys}/kernel/debug/lustre/llite/*/stats"):
            parts.extend(self._read(path, parse_llite_stats) for path in glob.glob(pattern))  # noqa: PTH207
        known = [part for part in parts if part is not None]
        return sum(known) if known else None


def default_route_netdevs(procfs_root: str) -> list[str]:
    """Interfaces with an IPv4 default route, as process 1 sees them (the node, also from a container); sorted."""
    for path in (f"{procfs_root}/1/net/route", f"{procfs_root}/net/route"):
        try:
            rows = [line.split() for line in read_whole(path).splitlines()[1:]]
        except OSError:
            continue
        return sorted({row[0] for row in rows if len(row) > 1 and row[1] == "00000000"})
    return []


def open_host(settings: NetSettings, announce: Announce = unannounced) -> Opened:
    """The host's lane, with the witnesses that can be read here."""
    announce("disk", "all")
    if "all" in settings.skip:
        return Opened()
    extra = {"default_route_netdevs": default_route_netdevs(settings.procfs_root)}
    lane = HostLane(settings)
    if not lane.source.channels:
        return Opened((), (), (SourceStatus("host", 0.0, up=False, reason="no_procfs"),), extra)
    lanes: tuple[Lane, ...] = (lane,)
    return Opened((Device("disk", "all"),), lanes, (), extra)
