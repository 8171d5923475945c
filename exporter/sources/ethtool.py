"""Counters that a network driver shows through ethtool alone: which there are, and a few of them as one attribute.

`rdma_ports.py` asks for the names, `rdma.py` makes lanes of them. Only for an interface that is in the network namespace
of this process: sysfs may show another one's, where the same name is another interface or none. The driver fills all of
its counters at each call (mlx5: some hundred, with firmware commands, under the lock of all interfaces): never at rate.
Kernel interface: include/uapi/linux/ethtool.h (ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS, ETHTOOL_GSTATS).
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections.abc import Sequence
from ctypes import addressof, c_char
from fnmatch import fnmatchcase

from exporter.sources.files import Attribute
from exporter.sources.sysfs import parse_count, read_text

_SIOCETHTOOL, _SIOCGIFHWADDR = 0x8946, 0x8927
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SS_STATS = 1
_NAME_BYTES = 32
_MOST = 20_000  # counters of one interface: beyond is no answer that makes sense
PREFIX = "ethtool:"

ioctl = fcntl.ioctl


def names_of(root: str, netdev: str) -> tuple[str, ...]:
    """Names of an interface's counters in the order of their values; none where it is not an interface of ours."""
    try:
        with _socket() as sock:
            if not _is_ours(sock, root, netdev):
                return ()
            return _names(sock, netdev)
    except OSError:
        return ()


class DriverCounters(Attribute):
    """The sum of the counters of an interface whose names match a pattern, read again and again."""

    def __init__(self, netdev: str, names: Sequence[str], pattern: str, interval_s: float, errors: dict[str, int]) -> None:
        super().__init__(f"{PREFIX}{netdev}/{pattern}", parse_count, interval_s, errors)
        self._netdev = netdev
        self._names = tuple(names)
        self._places = [k for k, name in enumerate(names) if fnmatchcase(name, pattern)]
        self._memory = bytearray(8 + 8 * len(names))
        self._socket: socket.socket | None = None

    def _fetch(self) -> bytes:
        if self._socket is None:
            self._socket = _socket()
            if _names(self._socket, self._netdev) != self._names:  # another interface of that name, or another driver
                raise OSError(errno.ENODEV, self._netdev)
        struct.pack_into("=II", self._memory, 0, _GSTATS, len(self._names))
        _call(self._socket, self._netdev, self._memory)
        if struct.unpack_from("=I", self._memory, 4)[0] != len(self._names):
            raise OSError(errno.ENODEV, self._netdev)
        return b"%d" % sum(struct.unpack_from("=Q", self._memory, 8 + 8 * k)[0] for k in self._places)

    def close(self) -> None:
        """Give the socket back; the next read opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _is_ours(sock: socket.socket, root: str, netdev: str) -> bool:
    """Whether the interface that sysfs shows is the one that calls by this name would reach: number and address agree."""
    number, address = (read_text(f"{root}/class/net/{netdev}/{file}") for file in ("ifindex", "address"))
    if not number or not address or number != str(socket.if_nametoindex(netdev)):
        return False
    request = ioctl(sock, _SIOCGIFHWADDR, struct.pack("16s24x", netdev.encode()))
    return address.startswith(request[18:24].hex(":"))


def _names(sock: socket.socket, netdev: str) -> tuple[str, ...]:
    asked = bytearray(struct.pack("=IIQI4x", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
    _call(sock, netdev, asked)
    _, _, mask, count = struct.unpack_from("=IIQI", asked)
    if not mask or not 0 < count <= _MOST:
        return ()
    texts = bytearray(struct.pack("=III", _GSTRINGS, _SS_STATS, count) + bytes(_NAME_BYTES * count))
    _call(sock, netdev, texts)
    each = (texts[12 + _NAME_BYTES * k : 12 + _NAME_BYTES * (k + 1)] for k in range(count))
    return tuple(bytes(name).split(b"\0", 1)[0].decode("ascii", "replace") for name in each)


def _call(sock: socket.socket, netdev: str, data: bytearray) -> None:
    """One ioctl that reads and writes `data` in place."""
    pointer = (c_char * len(data)).from_buffer(data)
    ioctl(sock, _SIOCETHTOOL, struct.pack("16sP16x", netdev.encode(), addressof(pointer)))
