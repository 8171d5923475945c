"""Network interfaces that are hardware, with two lanes each: bytes at the full rate ("nic/eth0"), state and speed every 5 s.

`net.py` calls `open_nics`. Each packet is to count once: bonds, VLANs, bridges, veth pairs and the loopback carry what a
hardware interface carries as well, so their traffic is not read; interfaces enslaved to a bond are, each for itself. A
bond is still listed (kind "bond"), so that the selection can be seen. Kernel interface: Documentation/ABI/testing/
sysfs-class-net and sysfs-class-net-statistics.

What an interface counts is not always the same: RDMA is outside the counters of a RoCE interface in normal mode and
inside those of a switchdev uplink (kind "uplink"); IPoIB (kind "ipoib") is inside the counters of its RDMA port as well.
"""

from __future__ import annotations

import math
import os
import re

from exporter.model import Device, SourceStatus
from exporter.sources import PAIRED, SLOW, Announce, Lane, NetSettings, Opened, Plan, unannounced
from exporter.sources.files import Attribute, Channels, FileLane
from exporter.sources.sysfs import (
    canonical,
    link_name,
    names_in,
    no_errors,
    numa_node,
    parse_carrier,
    parse_count,
    parse_operstate,
    parse_speed,
    pci_path,
    probe,
    read_text,
    wanted,
)

STATE_INTERVAL_S = 5.0
_STATE = Plan(1.0 / STATE_INTERVAL_S)
_LOOPBACK_TYPE = "772"  # ARPHRD_LOOPBACK
_IPOIB_TYPE = "32"  # ARPHRD_INFINIBAND
# A representor of a virtual or scalable function repeats the traffic of that function (phys_port_name "pf0vf3").
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
# Byte counters that a device writes into memory now and then, by driver (bnxt: 1 s unless ethtool says otherwise, 250 ms at
# least), and by kind: the counters of an uplink are fetched in the background, so that a read gives what the one before
# has asked for.
_SLOW_DRIVERS, _SLOW_KINDS = ("bnxt_en",), ("uplink",)
# Files and directories that only stacked or virtual interfaces have.
_STACKED = ("bonding", "bridge", "tun_flags")
# Names of virtual interfaces, for trees that show neither a device nor the place of the interface below devices/.
_VIRTUAL_NAME = re.compile(r"(lo|veth|docker|virbr|br-|cni|cali|flannel|vxlan|tun|tap|dummy|ifb|wg)\w*|.*[.@].*")


def open_nics(settings: NetSettings, announce: Announce = unannounced) -> Opened:
    """Every hardware interface that the settings let through, with its two lanes; bonds without lanes."""
    directory = f"{settings.sysfs_root}/class/net"
    devices: list[Device] = []
    lanes: list[Lane] = []
    announce("nic", "")
    for name in names_in(directory):
        if name in settings.skip or not wanted(name, settings.nic_include, settings.nic_exclude):
            continue
        announce("nic", name)
        path = f"{directory}/{name}"
        # Beside the interfaces stands a file, bonding_masters.
        kind = kind_of(settings.sysfs_root, name) if os.path.isdir(path) else None  # noqa: PTH112
        if kind is None:
            continue
        rate, _ = probe(f"{path}/speed", parse_speed)
        devices.append(Device(
            "nic",
            name,
            driver=link_name(f"{path}/device/driver"),
            rate_bytes_per_s=rate if rate is not None and math.isfinite(rate) else None,
            pci_path=pci_path(settings.sysfs_root, f"{path}/device"),
            numa_node=numa_node(f"{path}/device"),
            info={"kind": kind},
        ))  # fmt: skip
        if kind != "bond":
            lanes.extend(_lanes(name, path, settings.plan(_plan_of(kind, devices[-1].driver))))
    reason = None if lanes else "no_interfaces"
    statuses = (SourceStatus("nic", 0.0, up=False, reason=reason),) if reason else ()
    return Opened(tuple(devices), tuple(lanes), statuses)


def kind_of(root: str, name: str) -> str | None:
    """physical, ipoib, uplink (of an eSwitch) or bond; None for an interface whose traffic others carry."""
    path = f"{root}/class/net/{name}"
    names = names_in(path)
    if "bonding" in names:
        return "bond"
    if not _is_hardware(root, path, name, names) or _is_counted_by_master(root, path):
        return None
    if "type" in names and read_text(f"{path}/type") == _IPOIB_TYPE:
        return "ipoib"
    if _REPRESENTOR.fullmatch(read_text(f"{path}/phys_port_name") or ""):
        return None
    # Only ports of a switch answer here; the others give EOPNOTSUPP.
    return "uplink" if read_text(f"{path}/phys_switch_id") else "physical"


def _is_hardware(root: str, path: str, name: str, names: list[str]) -> bool:
    if "device" in names:
        return True
    place = canonical(root, path)
    if place.startswith("devices/"):
        return not place.startswith("devices/virtual/")
    # Neither a device nor a place: not a sysfs as the kernel makes it. What the interface is must show in itself.
    if any(n in _STACKED or n.startswith("lower_") for n in names):
        return False
    return read_text(f"{path}/type") != _LOOPBACK_TYPE and _VIRTUAL_NAME.fullmatch(name) is None


def _is_counted_by_master(root: str, path: str) -> bool:
    """Whether a master that is hardware itself counts this interface's traffic as its own.

    So do hv_netvsc (Azure: the virtual function of accelerated networking is enslaved to eth0) and net_failover.
    """
    master = link_name(f"{path}/master")
    if master is None:
        return False
    names = names_in(f"{root}/class/net/{master}")
    return "device" in names and "bonding" not in names


def _plan_of(kind: str, driver: str | None) -> Plan:
    return SLOW if driver in _SLOW_DRIVERS or kind in _SLOW_KINDS else PAIRED


def _lanes(name: str, path: str, fast: Plan) -> list[Lane]:
    made: list[Lane] = []
    for lane, plan, channels_of in (("", fast, _bytes_of), ("/state", _STATE, _state_of)):
        errors = no_errors()
        channels = channels_of(name, path, 1.0 / plan.reads_per_s, errors)
        if channels:
            made.append(FileLane(f"nic/{name}{lane}", plan.interval_s, "nic", name, channels, errors=errors, plan=plan))
    return made


def _bytes_of(name: str, path: str, interval_s: float, errors: dict[str, int]) -> Channels:
    return {
        f"{name}/{quantity}": Attribute(f"{path}/statistics/{file}", parse_count, interval_s, errors)
        for quantity, file in (("transmit_bytes_total", "tx_bytes"), ("receive_bytes_total", "rx_bytes"))
        if os.path.lexists(f"{path}/statistics/{file}")
    }


def _state_of(name: str, path: str, interval_s: float, errors: dict[str, int]) -> Channels:
    found: dict[str, Attribute] = {}
    # Drivers that do not follow RFC 2863 say "unknown" in operstate; carrier gives EINVAL while the interface is down.
    if probe(f"{path}/operstate", parse_operstate)[0] is not None:
        found["up_ratio"] = Attribute(f"{path}/operstate", parse_operstate, interval_s, errors)
    elif os.path.lexists(f"{path}/carrier"):
        found["up_ratio"] = Attribute(f"{path}/carrier", parse_carrier, interval_s, errors, {"not_available": 0.0})
    if os.path.lexists(f"{path}/speed"):  # EINVAL while the link is down
        normal = {"not_available": math.nan}
        found["rate_bytes_per_second"] = Attribute(f"{path}/speed", parse_speed, interval_s, errors, normal)
    return {f"{name}/{quantity}": attribute for quantity, attribute in found.items()}
