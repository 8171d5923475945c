"""Vital product data of PCI functions: which ConnectX-7 of a node are bridges to its NVSwitches, and no ports of a job.

`rdma.py` asks for each InfiniBand device of mlx5. On HGX B200 and later the NVSwitches are managed by way of four such
functions, which look like active ports; SW_MNG in their product data is how NVIDIA's fabric manager finds them
(nvidia-fabricmanager-start.sh, siderolabs/extensions#893). Kernel interface: Documentation/ABI/testing/sysfs-bus-pci. Only
root may read it; elsewhere `rdma_ports.py` goes by what such a function looks like.
"""

from __future__ import annotations

import os

_MARK = b"SW_MNG"
_LONGEST_BYTES = 4096  # real ones have some three hundred

_KNOWN: dict[tuple[str, int], bool | None] = {}  # of the process: a read costs an access to the device per four bytes


def manages_nvswitch(directory: str) -> bool | None:
    """Whether the PCI function at `directory` belongs to the management of NVSwitches; None where it does not tell.

    Each function is asked once, and again only after it was removed and found anew. Never raises.
    """
    try:
        key = directory, os.stat(directory).st_ino  # noqa: PTH116
    except OSError:
        return None
    if key not in _KNOWN:
        data = read_product_data(f"{directory}/vpd")
        _KNOWN[key] = None if data is None else _MARK in data
    return _KNOWN[key]


def read_product_data(path: str) -> bytes | None:
    """The first bytes of a `vpd` file; None where there is none or it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(fd, _LONGEST_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return None
