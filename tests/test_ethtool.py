"""Counters by ethtool: on a stand-in for the kernel's call, and that an interface of another namespace is left alone."""

from __future__ import annotations

import ctypes
import errno
import math
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exporter.sources import LaneError, NetSettings
from exporter.sources import ethtool as ethtool_module
from exporter.sources.ethtool import DriverCounters, names_of
from exporter.sources.rdma import open_rdma
from exporter.sources.sysfs import names_in, no_errors
from tests.sysfs_tree import Node, Tree

ADDRESS = "0c:42:a1:00:11:22"


@dataclass
class Kernel:
    """What the kernel would answer for one interface of this namespace."""

    counters: dict[str, int]
    address: str = ADDRESS
    error: int = 0
    calls: list[int] = field(default_factory=list)

    def ioctl(self, _sock: Any, request: int, argument: bytes) -> bytes:
        if self.error:
            raise OSError(self.error, "as asked")
        if request == 0x8927:
            return struct.pack("16sH6s16x", argument[:16], 1, bytes.fromhex(self.address.replace(":", "")))
        (pointer,) = struct.unpack_from("P", argument, 16)
        (command,) = struct.unpack_from("=I", ctypes.string_at(pointer, 4))
        self.calls.append(command)
        count, names = len(self.counters), b"".join(name.encode().ljust(32, b"\0") for name in self.counters)
        answer = {
            0x37: struct.pack("=IIQI", command, 0, 2, count),
            0x1B: struct.pack("=III", command, 1, count) + names,
            0x1D: struct.pack(f"=II{count}Q", command, count, *self.counters.values()),
        }[command]
        ctypes.memmove(pointer, answer, len(answer))
        return argument


@pytest.fixture(name="kernel")
def _kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel({
        "rx_packets": 9, "rx_prio0_pause": 1, "rx_prio3_pause": 40, "rx_prio3_pause_duration": 7777, "tx_prio3_pause": 5,
    })
    monkeypatch.setattr(ethtool_module, "ioctl", kernel.ioctl)
    monkeypatch.setattr(socket, "if_nametoindex", lambda name: {"rail0": 7}[name])
    return kernel


def roce(tmp_path: Path, index: str = "7", address: str = ADDRESS) -> Tree:
    tree = Node(gpus=1, ports=1, link_layer="Ethernet").build(tmp_path)
    tree.write("sys/class/net/rail0/ifindex", index)
    tree.write("sys/class/net/rail0/address", address)
    return tree


def test_pause_frames_of_all_priorities_are_added_each_fifth_second(kernel: Kernel, tmp_path: Path) -> None:
    opened = open_rdma(NetSettings(sysfs_root=roce(tmp_path).sys))
    lane = next(lane for lane in opened.lanes if lane.source.name == "rdma/mlx5_0/state")
    assert lane.source.interval_s == 5.0
    at = lane.source.channels.index("mlx5_0/1/events/pfc_pause")
    seen = []
    for count in (40, 45, 2):
        kernel.counters["rx_prio3_pause"] = count
        read = lane.read()
        assert read is not None
        seen.append(read[at])
    assert seen == [41, 46, 3]
    assert lane.errors["counter_reset"] == 1
    lane.close()


@pytest.mark.parametrize("other", [{"index": "8"}, {"address": "0c:42:a1:00:11:23"}, {"index": ""}])
def test_an_interface_of_another_namespace_is_never_asked(other: dict[str, str], kernel: Kernel, tmp_path: Path) -> None:
    opened = open_rdma(NetSettings(sysfs_root=roce(tmp_path, **other).sys))
    assert not [c for lane in opened.lanes for c in lane.source.channels if c.endswith("pfc_pause")]
    assert kernel.calls == []


def test_a_driver_without_such_counters_or_without_answer_has_no_channel(kernel: Kernel, tmp_path: Path) -> None:
    tree = roce(tmp_path)
    kernel.counters = {"rx_packets": 9}
    assert not [c for lane in open_rdma(NetSettings(sysfs_root=tree.sys)).lanes for c in lane.source.channels if "pause" in c]
    kernel.error = errno.EOPNOTSUPP
    assert names_of(tree.sys, "rail0") == ()


def test_a_failing_call_is_absent_and_another_interface_of_that_name_is_noticed(kernel: Kernel) -> None:
    errors = no_errors()
    counter = DriverCounters("rail0", tuple(kernel.counters), "rx_prio*_pause", 5.0, errors)
    assert counter.read() == 41
    kernel.error = errno.EBUSY
    assert math.isnan(counter.read())
    assert errors["io_error"] == 1
    kernel.error = 0
    kernel.counters = {"other": 1}
    assert math.isnan(counter.read())
    assert counter.reason == "vanished"
    counter.close()


def test_the_kernel_itself_is_asked_in_a_form_that_it_understands() -> None:
    for netdev in names_in("/sys/class/net"):
        names = names_of("/sys", netdev)
        assert all(name.isprintable() for name in names)
        if names:
            errors = no_errors()
            counter = DriverCounters(netdev, names, "*", 5.0, errors)
            assert counter.read() >= 0
            assert not any(errors.values())
            counter.close()
    assert names_of("/sys", "lo") == ()


def test_a_lane_with_an_interface_that_went_asks_for_a_new_look(kernel: Kernel, tmp_path: Path) -> None:
    opened = open_rdma(NetSettings(sysfs_root=roce(tmp_path).sys))
    lane = next(lane for lane in opened.lanes if lane.source.name == "rdma/mlx5_0/state")
    lane.read()
    kernel.error = errno.ENODEV
    with pytest.raises(LaneError, match="vanished"):
        lane.read()
    lane.close()
