"""GPUs and ports: by switch, by topology file, by NUMA node, by configuration, and honestly when nothing tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Device, Link
from exporter.pairing import level_of, nccl_selector, pair, pci_address
from exporter.sources import NetSettings
from exporter.sources.rdma import open_rdma
from exporter.sources.sysfs import names_in, numa_node, pci_path, read_text
from tests.sysfs_tree import Node, load


def gpus_of(root: str) -> list[Device]:
    """The GPUs of a tree, in the order of their PCI addresses, as NVML would name them."""
    found = []
    for bdf in sorted(names_in(f"{root}/bus/pci/devices")):
        directory = f"{root}/bus/pci/devices/{bdf}"
        if read_text(f"{directory}/class") == "0x030200":
            k = len(found)
            found.append(
                Device("gpu", f"GPU-{k}", index=k, uuid=f"uuid-{k}", pci_path=pci_path(root, directory),
                       numa_node=numa_node(directory), info={"pci_bus_id": f"0000{bdf}".upper()})
            )  # fmt: skip
    return found


def told(links: Sequence[Link]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for link in links:
        found.setdefault(link.gpu_id, []).append((link.device_id, link.reason))
    return found


def port(name: str, path: str | None = None, numa: int | None = None, rate: float = 50e9, **info: str) -> Device:
    return Device("rdma_port", f"{name}/1", driver="mlx5_core", rate_bytes_per_s=rate, pci_path=path, numa_node=numa,
                  info={"link_layer": "InfiniBand", "state": "active", **info})  # fmt: skip


def gpu(k: int, path: str | None = None, numa: int | None = None) -> Device:
    return Device("gpu", f"GPU-{k}", index=k, uuid=f"uuid-{k}", pci_path=path, numa_node=numa)


def test_on_a_dgx_h100_each_gpu_has_the_port_below_its_switch_and_storage_ports_belong_to_none(tmp_path: Path) -> None:
    tree = load("dgx_h100_topology", tmp_path)
    ports = open_rdma(NetSettings(sysfs_root=tree.sys)).devices
    links = pair(gpus_of(tree.sys), ports)
    expected = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
    assert told(links) == {f"GPU-{k}": [(f"{name}/1", "PIX")] for k, name in enumerate(expected)}
    assert {(link.path, link.weight) for link in links} == {("rdma", 1.0)}


AZURE_TOPOLOGY = """<system version="1">
<cpu numaid="{numa}" affinity="0000ffff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
{switches}
</cpu></system>"""


def azure(tmp_path: Path) -> tuple[list[Device], list[Device]]:
    """Six GPUs and six ports of a machine whose sysfs shows no common switch."""
    tree = load("azure_flat_topology", tmp_path)
    root = tree.sys
    ports = [
        port(f"mlx5_{k}", pci_path(root, f"{root}/bus/pci/devices/{bdf}"), numa_node(f"{root}/bus/pci/devices/{bdf}"))
        for k, bdf in enumerate(b for b in sorted(names_in(f"{root}/bus/pci/devices")) if b.startswith("01"))
    ]
    return gpus_of(root), ports


def test_on_flat_azure_machines_the_topology_file_decides(tmp_path: Path) -> None:
    gpus, ports = azure(tmp_path)
    switches = "\n".join(
        f'<pci busid="ffff:ff:0{k}.0" class="0x060400" link_speed="16 GT/s" link_width="16">'
        + "".join(f'<pci busid="{bdf}" class="0x030200"/>' for bdf in group)
        + "</pci>"
        for k, group in enumerate((
            ("0001:00:00.0", "0002:00:00.0", "0101:00:00.0", "0102:00:00.0"),
            ("0003:00:00.0", "0004:00:00.0", "0103:00:00.0", "0104:00:00.0"),
            ("000b:00:00.0", "000c:00:00.0", "0105:00:00.0", "0106:00:00.0"),
        ))
    )  # fmt: skip
    links = pair(gpus, ports, topology=AZURE_TOPOLOGY.format(numa=0, switches=switches))
    assert told(links)["GPU-0"] == [("mlx5_0/1", "topology"), ("mlx5_1/1", "topology")]
    assert told(links)["GPU-5"] == [("mlx5_4/1", "topology"), ("mlx5_5/1", "topology")]
    assert {link.weight for link in links} == {0.5}


def test_on_flat_azure_machines_without_a_file_order_within_the_numa_node_is_called_a_guess(tmp_path: Path) -> None:
    gpus, ports = azure(tmp_path)
    assert told(pair(gpus, ports)) == {f"GPU-{k}": [(f"mlx5_{k}/1", "guess")] for k in range(6)}


def test_the_node_of_the_tests_pairs_by_its_switches(tmp_path: Path) -> None:
    node = Node()
    tree = node.build(tmp_path)
    ports = open_rdma(NetSettings(sysfs_root=tree.sys)).devices
    assert told(pair(gpus_of(tree.sys), ports)) == {f"GPU-{k}": [(f"mlx5_{k}/1", "PIX")] for k in range(8)}


BASE = "pci0000:15/0000:15:01.0/0000:16:00.0"


@pytest.mark.parametrize(
    ("ours", "theirs", "level"),
    [
        (f"devices/{BASE}/0000:17:02.0/0000:1b:00.0", f"devices/{BASE}/0000:17:00.0/0000:18:00.0", "PIX"),
        (f"{BASE}/0000:17:02.0/0000:1b:00.0", f"{BASE}/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0", "PXB"),
        ("pci0000:15/0000:15:01.0/0000:16:00.0", "pci0000:15/0000:15:01.0/0000:16:00.1", "PIX"),
        (f"{BASE}/0000:17:02.0/0000:1b:00.0", "pci0000:15/0000:15:02.0/0000:20:00.0", "PHB"),
        (f"{BASE}/0000:17:02.0/0000:1b:00.0", "pci0000:20/0000:20:02.0/0000:21:00.0", "NODE"),
    ],
)
def test_levels_follow_the_bridges_that_two_paths_share(ours: str, theirs: str, level: str) -> None:
    assert level_of(gpu(0, ours, 0), port("mlx5_0", theirs, 0)) == level
    assert level_of(gpu(0, ours, 0), port("mlx5_0", theirs, 1)) == ("SYS" if level == "NODE" else level)


def below_switch(root: int, device: int) -> str:
    bridges = f"pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{root + 1:02x}:00.0/0000:{root + 2:02x}:{device:02x}.0"
    return f"{bridges}/0000:{device:02x}:00.0"


def test_all_ports_at_the_same_distance_are_kept_and_shared_ports_weigh_less() -> None:
    gpus = [gpu(0, below_switch(0x10, 0)), gpu(1, below_switch(0x10, 1))]
    ports = [port(f"rdmap{k}", below_switch(0x10, 8 + k)) for k in range(4)]
    links = pair(gpus, ports)
    assert [link.device_id for link in links if link.gpu_id == "GPU-1"] == [p.id for p in ports]
    assert {(link.reason, link.weight) for link in links} == {("PIX", 0.5)}


def test_inactive_and_software_ports_are_passed_over_while_others_are_active() -> None:
    node_gpu = gpu(0, below_switch(0x10, 0), 0)
    near = port("mlx5_0", below_switch(0x10, 8), 0, state="inactive")
    far = port("mlx5_1", below_switch(0x20, 8), 0)
    soft = replace(port("rxe0"), driver="rxe", info={"link_layer": "Ethernet", "state": "active", "software": "true"})
    assert told(pair([node_gpu], [near, far, soft])) == {"GPU-0": [("mlx5_1/1", "NODE")]}
    assert told(pair([node_gpu], [near, soft])) == {"GPU-0": [("mlx5_0/1", "PIX")]}
    assert pair([node_gpu], [soft]) == ()


def test_without_any_place_every_gpu_is_given_all_ports_of_the_node() -> None:
    links = pair([gpu(0), gpu(1)], [port("mlx5_0"), port("mlx5_1")])
    assert told(links) == {f"GPU-{k}": [("mlx5_0/1", "node"), ("mlx5_1/1", "node")] for k in range(2)}
    assert {link.weight for link in links} == {0.5}


def test_one_gpu_and_one_port_below_one_root_complex_need_no_guess() -> None:
    ours, theirs = gpu(0, "pci0000:00/0000:00:01.0/0000:01:00.0"), port("mlx5_0", "pci0000:00/0000:00:02.0/0000:02:00.0")
    assert told(pair([ours], [theirs])) == {"GPU-0": [("mlx5_0/1", "PHB")]}


def test_storage_ports_are_told_by_bond_default_route_and_number_where_no_switch_tells() -> None:
    gpus = [gpu(k, f"pci{k + 1:04x}:00/{k + 1:04x}:00:00.0", k // 2) for k in range(4)]
    compute = [port(f"mlx5_{k}", f"pci{k + 0x101:04x}:00/{k + 0x101:04x}:00:00.0", k // 2) for k in range(4)]
    storage = [
        port("mlx5_bond_0", "pci0900:00/0900:00:00.0", 0, bond="bond0"),
        port("mlx5_8", "pci0901:00/0901:00:00.0", 0, netdev="eth0"),
        port("mlx5_9", "pci0902:00/0902:00:00.0", 1, rate=12.5e9),
        port("mlx5_10", "pci0903:00/0903:00:00.0", 1, rate=12.5e9),
        port("mlx5_11", "pci0904:00/0904:00:00.0", 1, rate=12.5e9),
    ]
    links = pair(gpus, [*storage, *compute], management_netdevs={"eth0"})
    assert told(links) == {f"GPU-{k}": [(f"mlx5_{k}/1", "guess")] for k in range(4)}


def test_numbers_that_do_not_divide_give_the_whole_numa_node() -> None:
    gpus = [gpu(k, f"pci{k + 1:04x}:00/{k + 1:04x}:00:00.0", 0) for k in range(3)]
    ports = [port(f"mlx5_{k}", f"pci{k + 0x101:04x}:00/{k + 0x101:04x}:00:00.0", 0) for k in range(2)]
    assert {link.reason for link in pair(gpus, ports)} == {"NODE"}
    assert len(pair(gpus, ports)) == 6


@pytest.mark.parametrize("name", ["GPU-0", "uuid-0", "0"])
def test_configuration_wins_for_its_gpu_by_id_uuid_or_index(name: str) -> None:
    gpus = [gpu(0, below_switch(0x10, 0)), gpu(1, below_switch(0x20, 0))]
    ports = [port("mlx5_0", below_switch(0x10, 8)), port("mlx5_1", below_switch(0x20, 8))]
    links = pair(gpus, ports, overrides={name: ("mlx5_1", "eth*")}, nics=[Device("nic", "eth4")])
    assert told(links) == {"GPU-0": [("mlx5_1/1", "config"), ("eth4", "config")], "GPU-1": [("mlx5_1/1", "PIX")]}
    assert {(link.device_id, link.path, link.weight) for link in links} == {("mlx5_1/1", "rdma", 0.5), ("eth4", "tcp", 1.0)}


SELECTIONS: tuple[tuple[str, list[str]], ...] = (
    ("mlx5_1", ["mlx5_1/1", "mlx5_10/1"]),
    ("=mlx5_1", ["mlx5_1/1"]),
    ("=mlx5_0:2,mlx5_1:1", ["mlx5_0/2", "mlx5_1/1"]),
    ("^mlx5_1", ["mlx5_0/1", "mlx5_0/2"]),
    ("^=mlx5_1", ["mlx5_0/1", "mlx5_0/2", "mlx5_10/1"]),
    ("mlx5_0:1:0:0", ["mlx5_0/1"]),
    ("mlx", ["mlx5_0/1", "mlx5_0/2", "mlx5_1/1", "mlx5_10/1"]),
    (" mlx5_0 , mlx5_10 ", ["mlx5_0/1", "mlx5_0/2", "mlx5_10/1"]),
)


@pytest.mark.parametrize(("text", "chosen"), SELECTIONS)
def test_compute_ports_are_chosen_in_the_syntax_of_nccl(text: str, chosen: list[str]) -> None:
    selects = nccl_selector(text)
    assert [p for p in ("mlx5_0/1", "mlx5_0/2", "mlx5_1/1", "mlx5_10/1") if selects(p)] == chosen


def test_ports_that_are_not_chosen_carry_nothing() -> None:
    ports = [port("mlx5_0", below_switch(0x10, 8)), port("mlx5_1", below_switch(0x20, 8))]
    assert told(pair([gpu(0, below_switch(0x10, 0), 0)], ports, compute_ports="=mlx5_1")) == {"GPU-0": [("mlx5_1/1", "SYS")]}
    assert pair([gpu(0, below_switch(0x10, 0))], ports, compute_ports="=none") == ()


def test_gpus_with_nvlink_counters_are_linked_to_themselves() -> None:
    links = pair([gpu(0), gpu(1)], [], nvlink_gpus={"GPU-1"})
    assert links == (Link("GPU-1", "GPU-1", "nvlink", "nvlink", 1.0),)


@pytest.mark.parametrize("text", ["", "<", "<system/>", "<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>", "<pci busid='x'/>", "\0"])
def test_a_topology_file_that_says_nothing_leaves_pairing_to_the_tree(text: str, tmp_path: Path) -> None:
    gpus, ports = azure(tmp_path)
    assert pair(gpus, ports, topology=text) == pair(gpus, ports)


ADDRESSES = st.sampled_from(["0000:01:00.0", "0000:02:00.0", "ffff:ff:01.0", "0000:03:00.0", "x", ""])
PATHS = st.lists(ADDRESSES, max_size=5).map(lambda parts: "/".join(["devices", "pci0000:00", *parts]))


@given(
    st.lists(st.tuples(st.one_of(st.none(), PATHS, st.text()), st.one_of(st.none(), st.integers(-1, 2))), max_size=4),
    st.lists(st.tuples(st.one_of(st.none(), PATHS, st.text()), st.one_of(st.none(), st.integers(-1, 2))), max_size=4),
    st.one_of(st.none(), st.text(), st.from_regex(r"(<pci busid=\"0000:0[123]:00.0\">)*(</pci>)*", fullmatch=True)),
    st.one_of(st.none(), st.text(st.sampled_from("mlx5_0123=^,: "))),
)
def test_no_tree_and_no_text_makes_pairing_raise_and_shares_add_up_to_one(
    gpu_places: list[tuple[str | None, int | None]],
    port_places: list[tuple[str | None, int | None]],
    topology: str | None,
    compute_ports: str | None,
) -> None:
    gpus = [gpu(k, *place) for k, place in enumerate(gpu_places)]
    ports = [port(f"mlx5_{k}", *place) for k, place in enumerate(port_places)]
    links = pair(gpus, ports, topology=topology, compute_ports=compute_ports)
    shares: dict[str, float] = {}
    for link in links:
        shares[link.device_id] = shares.get(link.device_id, 0.0) + link.weight
    assert all(total == pytest.approx(1.0) for total in shares.values())
    assert len(links) == len({(link.gpu_id, link.device_id) for link in links})
    if gpus and ports and not compute_ports and topology is None:
        assert {link.gpu_id for link in links} == {g.id for g in gpus}


@given(st.text())
def test_no_text_makes_a_pci_address_raise(text: str) -> None:
    answer = pci_address(text)
    assert answer is None or answer == pci_address(answer)


def test_overrides_are_a_mapping_that_may_name_gpus_that_do_not_exist() -> None:
    overrides: Mapping[str, Sequence[str]] = {"GPU-7": ("mlx5_0",)}
    assert told(pair([gpu(0)], [port("mlx5_0")], overrides=overrides)) == {"GPU-0": [("mlx5_0/1", "node")]}
