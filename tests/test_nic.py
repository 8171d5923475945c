"""Network interfaces: which are hardware, what they count, what their state says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from exporter.sources import Lane, LaneError, NetSettings, Opened
from exporter.sources.nic import open_nics
from tests.sysfs_tree import Node, Tree


def interface(tree: Tree, name: str, *, device: bool = True, **files: str) -> None:
    for file in ("rx_bytes", "tx_bytes"):
        tree.write(f"sys/class/net/{name}/statistics/{file}", files.pop(file, "100"))
    if device:
        tree.write(f"sys/class/net/{name}/device/vendor", "0x8086")
    for file, value in files.items():
        tree.write(f"sys/class/net/{name}/{file}", value)


def opened(tree: Tree, **more: tuple[str, ...]) -> Opened:
    return open_nics(NetSettings(sysfs_root=tree.sys, **more))  # type: ignore[arg-type]


def kinds(found: Opened) -> dict[str, str]:
    return {device.id: device.info["kind"] for device in found.devices}


def read(found: Opened) -> dict[str, float]:
    values: dict[str, float] = {}
    for lane in found.lanes:
        got = lane.read()
        assert got is not None
        values |= zip(lane.source.channels, got, strict=True)
    return values


def read_often(lane: Lane) -> None:
    for _ in range(100):
        lane.read()


def test_stacked_interfaces_count_each_packet_once(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    interface(tree, "eth2", tx_bytes="300")
    interface(tree, "eth3", tx_bytes="400")
    for name in ("eth2", "eth3"):
        tree.link(f"sys/class/net/{name}/master", "../bond0")
    interface(tree, "bond0", device=False, tx_bytes="700")
    tree.write("sys/class/net/bond0/bonding/slaves", "eth2 eth3")
    tree.write("sys/class/net/bonding_masters", "bond0")
    interface(tree, "eth2.100", device=False, tx_bytes="300")
    tree.link("sys/class/net/eth2.100/lower_eth2", "../eth2")
    interface(tree, "veth0", device=False)
    interface(tree, "br-lan", device=False)
    interface(tree, "lo", device=False, type="772")
    found = opened(tree)
    assert kinds(found) == {"bond0": "bond", "eth2": "physical", "eth3": "physical"}
    sent = {channel: value for channel, value in read(found).items() if channel.endswith("transmit_bytes_total")}
    assert sent == {"eth2/transmit_bytes_total": 300, "eth3/transmit_bytes_total": 400}


def test_the_place_below_devices_decides_where_there_is_no_device_link(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for name, place in (("eth0", "devices/platform/soc/net/eth0"), ("weird7", "devices/virtual/net/weird7")):
        tree.write(f"sys/{place}/statistics/tx_bytes", "1")
        tree.link(f"sys/class/net/{name}", f"../../{place}")
    assert kinds(opened(tree)) == {"eth0": "physical"}


def test_a_function_whose_master_is_hardware_is_counted_by_the_master(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    interface(tree, "eth0")
    interface(tree, "enP1s0")
    tree.link("sys/class/net/enP1s0/master", "../eth0")
    assert kinds(opened(tree)) == {"eth0": "physical"}


def test_ipoib_uplinks_and_representors_are_told_apart(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    interface(tree, "ib0", type="32")
    interface(tree, "p0", phys_port_name="p0", phys_switch_id="0c42a1")
    interface(tree, "pf0vf3", phys_port_name="pf0vf3", phys_switch_id="0c42a1")
    interface(tree, "eth9", type="1", phys_port_name="p0")
    tree.fail("sys/class/net/eth9/phys_switch_id", "EINVAL")
    assert kinds(opened(tree)) == {"eth9": "physical", "ib0": "ipoib", "p0": "uplink"}


@pytest.mark.parametrize(
    ("files", "up", "rate"),
    [
        ({"operstate": "up", "speed": "25000"}, 1, 3.125e9),
        ({"operstate": "down", "speed": "!EINVAL"}, 0, math.nan),
        ({"operstate": "lowerlayerdown", "speed": "-1"}, 0, math.nan),
        ({"operstate": "unknown", "carrier": "1", "speed": "100"}, 1, 12.5e6),
        ({"operstate": "unknown", "carrier": "!EINVAL", "speed": "!EINVAL"}, 0, math.nan),
    ],
)
def test_state_and_speed_are_read_without_counting_a_link_that_is_down_as_an_error(
    files: dict[str, str], up: float, rate: float, tmp_path: Path
) -> None:
    tree = Tree(tmp_path)
    interface(tree, "eth0")
    for file, value in files.items():
        if value.startswith("!"):
            tree.fail(f"sys/class/net/eth0/{file}", value[1:])
        else:
            tree.write(f"sys/class/net/eth0/{file}", value)
    found = opened(tree)
    for _ in range(3):
        values = read(found)
        assert values["eth0/up_ratio"] == up
        assert values["eth0/rate_bytes_per_second"] == pytest.approx(rate, nan_ok=True)
    assert sum(sum(lane.errors.values()) for lane in found.lanes) == 0
    assert found.devices[0].rate_bytes_per_s == (None if math.isnan(rate) else rate)


def test_filters_and_quarantine_take_interfaces_away(tmp_path: Path) -> None:
    tree = Node(gpus=0, ports=0, nics=3).build(tmp_path)
    assert list(kinds(opened(tree))) == ["eth0", "eth1", "eth2"]
    assert list(kinds(opened(tree, nic_include=("eth[01]",), nic_exclude=("eth0",)))) == ["eth1"]
    assert list(kinds(opened(tree, skip=("eth1",)))) == ["eth0", "eth2"]


def test_a_renamed_interface_has_vanished_and_is_found_under_its_new_name(tmp_path: Path) -> None:
    tree = Node(gpus=0, ports=0).build(tmp_path)
    found = opened(tree)
    lane = found.lanes[0]
    assert lane.read() == [0, 0]
    (tmp_path / "sys/class/net/eth0").rename(tmp_path / "sys/class/net/lan0")
    with pytest.raises(LaneError, match="vanished"):
        read_often(lane)
    assert list(kinds(opened(tree))) == ["lan0"]


def test_a_node_without_hardware_interfaces_says_so(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    interface(tree, "lo", device=False, type="772")
    assert [(s.source, s.reason) for s in opened(tree).statuses] == [("nic", "no_interfaces")]


def test_driver_place_and_numa_node_stand_on_the_device(tmp_path: Path) -> None:
    node = Node(gpus=0, ports=0)
    (device,) = opened(node.build(tmp_path)).devices
    assert (device.driver, device.pci_path, device.numa_node) == ("bnxt_en", node.nic(0).path, 0)
