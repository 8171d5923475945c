"""No text from outside makes the exporter raise: files of sysfs, patterns, names, topology, in whole trees and one by one."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.model import Device
from exporter.pairing import level_of, nccl_selector, pair, pci_address
from exporter.quantities import quantity_of, split_channel
from exporter.sources import GpuSettings, NetSettings
from exporter.sources.host import default_route_netdevs, parse_diskstats, parse_iowait, parse_llite_stats, parse_mountstats
from exporter.sources.net import open_net
from exporter.sources.nvml import wanted as gpu_wanted
from exporter.sources.nvml_fields import renumbered_fields
from exporter.sources.nvml_names import BoardNames
from exporter.sources.nvml_pci import sysfs_bus_id
from exporter.sources.sysfs import wanted
from tests.sysfs_tree import Tree

# What files of sysfs hold, and what they never should.
TEXTS = st.one_of(
    st.sampled_from([
        "4: ACTIVE", "1: DOWN", "InfiniBand", "Ethernet", "Unknown", "400 Gb/sec (4X NDR)", "10 Gb/sec (4X SDR)", "1: CA",
        "2: switch", "N/A (no PMA)", "", "-1", "0", "7", str((1 << 64) - 1), str((1 << 32) - 1), "1e9", "eth0", "..", "a/b",
        "x" * 300, "\0", "0x1d0f", "mlx5_core", "772", "32", "1",
    ]),
    st.text(max_size=40),
    st.integers(min_value=-5, max_value=1 << 70).map(str),
)  # fmt: skip
FILES = (
    "class/infiniband/dev_0/node_type", "class/infiniband/dev_0/fw_ver", "class/infiniband/dev_0/device/vendor",
    "class/infiniband/dev_0/device/uevent", "class/infiniband/dev_0/device/numa_node", "class/infiniband/dev_0/parent",
    "class/infiniband/dev_0/ports/1/state", "class/infiniband/dev_0/ports/1/rate", "class/infiniband/dev_0/ports/1/link_layer",
    "class/infiniband/dev_0/ports/1/gid_attrs/ndevs/0", "class/infiniband/dev_0/ports/1/counters/port_xmit_data",
    "class/infiniband/dev_0/ports/1/counters/port_rcv_data", "class/infiniband/dev_0/ports/1/counters/symbol_error",
    "class/infiniband/dev_0/ports/1/hw_counters/tx_bytes", "class/infiniband/dev_0/ports/1/hw_counters/rx_bytes",
    "class/infiniband/dev_0/ports/1/hw_counters/lifespan", "class/infiniband/dev_0/device/net/eth0/dev_port",
    "class/net/eth0/type", "class/net/eth0/speed", "class/net/eth0/operstate", "class/net/eth0/carrier",
    "class/net/eth0/ifindex", "class/net/eth0/address", "class/net/eth0/phys_switch_id", "class/net/eth0/phys_port_name",
    "class/net/eth0/statistics/tx_bytes", "class/net/eth0/statistics/rx_bytes",
)  # fmt: skip


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode("utf-8", "surrogateescape"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(FILES), TEXTS, min_size=1), st.dictionaries(st.sampled_from(FILES), TEXTS),
    st.sampled_from([None, "mlx5_core", "bnxt_en", "efa", "hfi1", "brand_new"]), TEXTS, TEXTS,
)  # fmt: skip
def test_no_tree_makes_the_sources_raise_and_all_that_they_say_has_its_place(
    first: dict[str, str], later: dict[str, str], driver: str | None, topology: str, routes: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        if driver is not None:
            tree.link("sys/class/infiniband/dev_0/device/driver", f"/sys/bus/pci/drivers/{driver}")
        for file, text in first.items():
            write(tree.root / "sys" / file, text)
        write(tree.root / "opt/microsoft/x/topo.xml", topology)
        write(tree.root / "proc/1/net/route", routes)
        write(tree.root / "etc/nccl.conf", topology)
        opened = open_net(NetSettings(tree.sys, tree.proc, machine_root=str(tree.root)))
        kinds = {device.id: device.kind for device in opened.devices}
        for turn in range(3):
            for lane in opened.lanes:
                values = lane.read()
                assert values is not None
                assert len(values) == len(lane.source.channels)
                assert all(math.isnan(v) or (v >= 0 and math.isfinite(v)) for v in values)
            for file, text in later.items() if turn == 0 else ():
                if (tree.root / "sys" / file).exists():
                    write(tree.root / "sys" / file, text)
        for channel in (c for lane in opened.lanes for c in lane.source.channels):
            parts = split_channel(channel, set(kinds))
            assert parts is not None
            assert quantity_of(kinds[parts[0]], parts[1]) is not None
        for lane in opened.lanes:
            lane.close()
        ports = [device for device in opened.devices if device.kind == "rdma_port"]
        pair([Device("gpu", "GPU-0", index=0, pci_path=topology)], ports, topology=opened.extra.get("topology"))


@given(st.lists(st.text(max_size=12), max_size=3), st.lists(st.text(max_size=12), max_size=3), st.text(max_size=12))
def test_no_pattern_makes_a_filter_raise(include: Sequence[str], exclude: Sequence[str], name: str) -> None:
    assert wanted(name, include, exclude) in (True, False)
    assert gpu_wanted(GpuSettings(include=tuple(include), exclude=tuple(exclude)), 0, "GPU-0", name) in (True, False)
    assert not wanted(name, (), [name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")])


@given(st.text(max_size=60), st.text(max_size=12))
def test_no_text_in_the_place_of_nccl_ib_hca_makes_a_selection_raise(text: str, port: str) -> None:
    assert nccl_selector(text)(port) in (True, False)
    assert nccl_selector(text)("mlx5_0/1") in (True, False)


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_path_on_the_bus_makes_pairing_raise(gpu_path: str, port_path: str) -> None:
    gpu = Device("gpu", "GPU-0", pci_path=gpu_path)
    port = Device("rdma_port", "x/1", pci_path=port_path, info={"physfn": gpu_path})
    assert level_of(gpu, port) in ("PIX", "PXB", "PHB", "NODE", "SYS")
    assert pci_address(gpu_path) is None or ":" in gpu_path
    assert isinstance(sysfs_bus_id(gpu_path), str)


@given(st.text(max_size=40))
def test_no_driver_version_is_taken_for_one_that_it_is_not(text: str) -> None:
    ids = renumbered_fields(text)
    assert not ids or text.strip()[:3].isdigit()


ROUNDS = st.lists(st.dictionaries(st.integers(0, 7), st.sampled_from(["", *"abcdef"]), max_size=8), max_size=6)


@given(ROUNDS, st.text(max_size=9))
def test_boards_never_share_an_id_and_known_ones_never_change_theirs(rounds: list[dict[int, str]], known: str) -> None:
    names = BoardNames()
    names.learn([known])
    of_uuid: dict[str, str] = {}
    for found in rounds:
        unique = {i: u for i, u in found.items() if not u or [*found.values()].count(u) == 1}
        ids = names.settle(unique)
        assert len(set(ids.values())) == len(unique)
        for index, uuid in unique.items():
            if uuid and uuid in of_uuid and of_uuid[uuid] not in [ids[i] for i in unique if unique[i] not in of_uuid]:
                assert ids[index] == of_uuid[uuid]
        of_uuid = {u: i for u, i in of_uuid.items() if i not in ids.values()} | {unique[i]: ids[i] for i in unique if unique[i]}


@given(st.text(max_size=300))
def test_no_text_of_procfs_makes_a_witness_raise(text: str) -> None:
    for answer in (parse_iowait(text, 100), parse_mountstats(text), parse_llite_stats(text)):
        assert answer is None or answer >= 0
    disks = parse_diskstats(text, lambda _: True)
    assert disks is None or min(disks) >= 0
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "1/net/route", text)
        assert isinstance(default_route_netdevs(folder), list)
