"""GPUs as PCI functions: where one stands in sysfs, and how many the bus has whatever the driver says.

`nvml.py` asks when it opens the GPUs. Kernel interface: Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

from pathlib import Path

_NVIDIA, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")  # VGA and 3D controllers; 0x0680 are NVSwitches


def sysfs_bus_id(nvml_bus_id: str) -> str:
    """NVML writes an eight-digit domain and capitals, sysfs four digits and small letters.

    >>> sysfs_bus_id("00000000:3B:00.0")
    '0000:3b:00.0'
    """
    domain, _, rest = nvml_bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if domain[:-4].strip("0") == "" else f"{domain.lstrip('0')}:{rest}"


def locate(sysfs: Path, bus_id: str) -> tuple[str | None, int | None]:
    """The real path of a function below the root, and its NUMA node; None for what sysfs does not tell."""
    link = sysfs / "bus/pci/devices" / bus_id
    try:
        pci_path = str(link.resolve(strict=True).relative_to(sysfs.resolve()))
    except (OSError, ValueError, RuntimeError):
        return None, None
    return pci_path, _numa_node(link / "numa_node")


def count_pci_gpus(sysfs: Path) -> int | None:
    """NVIDIA's display and 3D functions on the PCI bus, loaded driver or not; None where sysfs does not show the bus."""
    try:
        functions = list((sysfs / "bus/pci/devices").iterdir())
    except OSError:
        return None
    return sum(
        _read(function / "vendor") == _NVIDIA and _read(function / "class").startswith(_DISPLAY_CLASSES)
        for function in functions
    )


def _read(path: Path) -> str:
    """The text of a small file; "" where it cannot be read, as of a function that was just removed."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _numa_node(path: Path) -> int | None:
    try:
        node = int(_read(path))
    except ValueError:
        return None
    return node if node >= 0 else None  # the kernel writes -1 where the firmware does not say
