"""RDMA over a bond: line rate and events of all links, and whether the port's byte files hold the bytes of all of them."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.model import Device
from exporter.sources import Lane, NetSettings, Opened
from exporter.sources import ethtool as ethtool_module
from exporter.sources.rdma import open_rdma
from exporter.sources.rdma_bonds import ALL, PART, UNCHECKED, BondLane, Verdicts, slaves_of
from tests.sysfs_tree import Tree, load

PORT, LINKS = "mlx5_bond_0/1", ("ens1f0np0", "ens1f1np1")
COUNTERS = "sys/class/infiniband/mlx5_bond_0/ports/1/counters"
TENTH = 100_000_000  # bytes: enough for a look


class Functions:
    """What the kernel would answer for the two links, which are interfaces of this namespace."""

    def __init__(self) -> None:
        self.counters = {link: {"rx_packets": 9, "tx_vport_rdma_unicast_bytes": 10, "rx_vport_rdma_unicast_bytes": 20,
                                "tx_vport_rdma_multicast_bytes": 0, "rx_vport_rdma_multicast_bytes": 0,
                                "tx_vport_unicast_bytes": 10**15} for link in LINKS}  # fmt: skip

    def ioctl(self, _sock: Any, request: int, argument: bytes) -> bytes:
        link = argument[:16].rstrip(b"\0").decode()
        if request == 0x8927:
            return struct.pack("16sH6s16x", argument[:16], 1, bytes(5) + bytes([LINKS.index(link)]))
        (pointer,) = struct.unpack_from("P", argument, 16)
        (command,) = struct.unpack_from("=I", ctypes.string_at(pointer, 4))
        counters = self.counters[link]
        count, names = len(counters), b"".join(name.encode().ljust(32, b"\0") for name in counters)
        answer = {
            0x37: struct.pack("=IIQI", command, 0, 2, count),
            0x1B: struct.pack("=III", command, 1, count) + names,
            0x1D: struct.pack(f"=II{count}Q", command, count, *counters.values()),
        }[command]
        ctypes.memmove(pointer, answer, len(answer))
        return argument

    def send(self, share: float) -> None:
        """A tenth of a gigabyte goes out and comes in, so much of it over the first link."""
        for link, part in zip(LINKS, (share, 1 - share), strict=True):
            for key in ("tx_vport_rdma_unicast_bytes", "rx_vport_rdma_unicast_bytes"):
                self.counters[link][key] += round(part * TENTH)


@pytest.fixture(name="bonded")
def _bonded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tree, Functions]:
    tree, functions = load("mlx5_lag", tmp_path), Functions()
    tree.link("sys/devices/pci0000:29/0000:29:01.0/0000:2a:00.0/driver", "/sys/bus/pci/drivers/mlx5_core")
    for k, link in enumerate(LINKS):
        tree.write(f"sys/class/net/{link}/ifindex", str(k + 7))
        tree.write(f"sys/class/net/{link}/address", f"00:00:00:00:00:{k:02x}")
        tree.write(f"sys/class/net/{link}/carrier_down_count", str(k + 2))
    monkeypatch.setattr(ethtool_module, "ioctl", functions.ioctl)
    monkeypatch.setattr(socket, "if_nametoindex", lambda name: LINKS.index(name) + 7)
    return tree, functions


def opened(tree: Tree, verdicts: Verdicts) -> tuple[Device, Lane]:
    found: Opened = open_rdma(NetSettings(tree.sys, tree.proc), bonds=verdicts)
    (port,) = found.devices
    return port, next(lane for lane in found.lanes if lane.source.name == "rdma/mlx5_bond_0/state")


def read(lane: Lane) -> dict[str, float]:
    values = lane.read()
    assert values is not None
    return {channel.removeprefix(f"{PORT}/"): value for channel, value in zip(lane.source.channels, values, strict=True)}


def run(bonded: tuple[Tree, Functions], verdicts: Verdicts, counted: Callable[[float], float], looks: int = 5) -> None:
    """Send over both links, a look after each; counted: how much of what the first link has is in the port's files."""
    tree, functions = bonded
    _, lane = opened(tree, verdicts)
    total = 0.0
    for k in range(looks):
        for file in ("port_xmit_data", "port_rcv_data"):
            tree.write(f"{COUNTERS}/{file}", str(round(1e6 + total / 4)))
        lane.read()
        share = (0.2, 0.6, 0.5, 0.45, 0.7)[k % 5]
        functions.send(share)
        total += counted(share) * TENTH
    lane.close()


def test_the_line_of_a_bonded_port_is_that_of_all_links_and_events_are_those_of_all_links(
    bonded: tuple[Tree, Functions]
) -> None:
    tree, _ = bonded
    port, lane = opened(tree, Verdicts())
    assert port.rate_bytes_per_s == 25e9  # the port itself says 100 Gbit/s
    assert (port.info["bond"], port.info["bond_links"], port.info["bond_bytes"]) == ("bond0", " ".join(LINKS), UNCHECKED)
    values = read(lane)
    assert values["rate_bytes_per_second"] == 25e9
    assert values["events/link_down"] == 2 + 3
    tree.write("sys/class/net/bond0/speed", "100000")  # one link is down
    assert read(lane)["rate_bytes_per_second"] == 12.5e9
    lane.close()


@pytest.mark.parametrize(
    ("name", "counted", "verdict", "rate"),
    [
        ("both links", lambda share: 1.0, ALL, 25e9),
        ("the first link", lambda share: share, PART, 12.5e9),
        ("nothing", lambda share: 0.0, PART, 12.5e9),
    ],
)
def test_what_the_functions_count_tells_whose_bytes_the_port_counts(
    name: str, counted: Callable[[float], float], verdict: str, rate: float, bonded: tuple[Tree, Functions]
) -> None:
    verdicts = Verdicts()
    run(bonded, verdicts, counted)
    port, lane = opened(bonded[0], verdicts)
    assert port.info["bond_bytes"] == verdict, name
    assert port.rate_bytes_per_s == rate
    assert read(lane)["rate_bytes_per_second"] == rate
    lane.close()


def test_a_look_takes_traffic_and_three_of_them(bonded: tuple[Tree, Functions]) -> None:
    verdicts = Verdicts()
    run(bonded, verdicts, lambda share: 1.0, looks=3)  # two differences
    assert opened(bonded[0], verdicts)[0].info["bond_bytes"] == UNCHECKED
    _, lane = opened(bonded[0], verdicts)
    for _ in range(8):  # nothing flows
        lane.read()
    lane.close()
    assert opened(bonded[0], verdicts)[0].info["bond_bytes"] == UNCHECKED


def test_another_bond_of_that_name_is_looked_at_anew(bonded: tuple[Tree, Functions]) -> None:
    verdicts = Verdicts()
    run(bonded, verdicts, lambda share: 1.0)
    bonded[0].write("sys/class/net/bond0/bonding/slaves", LINKS[0])
    assert opened(bonded[0], verdicts)[0].info["bond_bytes"] == UNCHECKED


def test_where_the_driver_cannot_be_asked_it_stays_open_and_nothing_more_is_read(tmp_path: Path) -> None:
    tree = load("mlx5_lag", tmp_path)
    port, lane = opened(tree, Verdicts())
    assert port.info["bond_bytes"] == UNCHECKED
    assert not isinstance(lane, BondLane)
    assert slaves_of(tree.sys, "bond0") == LINKS
    assert slaves_of(tree.sys, "ens1f0np0") == slaves_of(tree.sys, None) == ()
