"""NCCL topology files: where they lie, and which of them speaks of this machine.

`net.py` calls `open_topology`; the exporter's side pairs by the text. Virtual machines hide the PCI tree, so their vendors
ship the tree in a file, and NCCL is told its path. Reads whole files, once per look for devices; judges none of them.
"""

from __future__ import annotations

import glob
import os
import re

from exporter.sources import Announce, NetSettings, Opened, unannounced

# What NCCL itself loads (its environment variables page), what it is told by the node's own configuration, and where
# images of clouds keep theirs: Azure (Azure/azhpc-images), AWS (the share directory of aws-ofi-nccl).
CONFIGURATION = "etc/nccl.conf"
PLACES = (
    "var/run/nvidia-topologyd/virtualTopology.xml",
    "opt/microsoft/*/topo.xml",
    "opt/microsoft/*topo*.xml",
    "opt/amazon/ofi-nccl/share/aws-ofi-nccl/xml/*topo*.xml",
    "opt/aws-ofi-nccl/share/aws-ofi-nccl/xml/*topo*.xml",
    "usr/share/aws-ofi-nccl/xml/*topo*.xml",
)
LARGEST_BYTES = 1 << 18  # that of eight GPUs has some ten thousand
_BUS_ID = re.compile(r'busid="([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"')


def open_topology(settings: NetSettings, announce: Announce = unannounced) -> Opened:
    """extra: topology_file and topology (its text), where there is one. A file that was asked for and is not there is told.

    Without a path in the settings the file is taken that names most of this machine's PCI functions.
    """
    announce("rdma_port", "")
    if settings.topology_file is not None:
        text = read_file(settings.topology_file)
        if text is None:
            hint = f"pairing.topology_file: {settings.topology_file} cannot be read; GPUs and ports are paired without it"
            return Opened(extra={"topology_hint": hint})
        return Opened(extra={"topology_file": settings.topology_file, "topology": text})
    best: tuple[int, str, str] | None = None
    for path in candidates(settings.machine_root):
        text = read_file(path)
        named = 0 if text is None else count_here(text, settings.sysfs_root)
        if text is not None and named > (best[0] if best else 0):
            best = (named, path, text)
    return Opened(extra={"topology_file": best[1], "topology": best[2]} if best else {})


def candidates(machine_root: str) -> list[str]:
    """The files that NCCL would load here, then those that images bring along; each path once."""
    found = [path for line in (read_file(f"{machine_root}/{CONFIGURATION}") or "").splitlines()
             if (path := configured(line)) is not None]  # fmt: skip
    paths = [f"{machine_root}/{path.lstrip('/')}" for path in found]
    for place in PLACES:
        paths += sorted(glob.glob(f"{glob.escape(machine_root)}/{place}"))  # noqa: PTH207
    return list(dict.fromkeys(paths))


def configured(line: str) -> str | None:
    """The path in a line of nccl.conf that sets NCCL_TOPO_FILE; None for any other line.

    >>> configured("NCCL_TOPO_FILE=/etc/topo.xml"), configured("# NCCL_TOPO_FILE=/x"), configured("NCCL_DEBUG=WARN")
    ('/etc/topo.xml', None, None)
    """
    name, equals, path = line.partition("=")
    path = path.strip()
    return path if name.strip() == "NCCL_TOPO_FILE" and equals and path.startswith("/") and "\0" not in path else None


def count_here(text: str, sysfs_root: str) -> int:
    """How many PCI functions of this machine a topology names."""
    addresses = {f"{int(domain, 16):04x}:{rest}" for domain, _, rest in
                 (found.lower().partition(":") for found in _BUS_ID.findall(text))}  # fmt: skip
    return sum(os.path.lexists(f"{sysfs_root}/bus/pci/devices/{address}") for address in addresses)


def read_file(path: str) -> str | None:
    """The text of a file of at most a quarter of a megabyte; None where it is larger, unreadable or no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            pieces, left = [], LARGEST_BYTES + 1
            while left > 0 and (piece := os.read(fd, left)):
                pieces.append(piece)
                left -= len(piece)
        finally:
            os.close(fd)
    except OSError:
        return None
    return b"".join(pieces).decode("utf-8", "replace") if left > 0 else None
