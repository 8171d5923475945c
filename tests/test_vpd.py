"""Functions that manage NVSwitches, told by their product data where it may be read, and by their looks elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from exporter.sources import NetSettings
from exporter.sources.rdma import open_rdma
from exporter.sources.vpd import manages_nvswitch, read_product_data
from tests.field_parts import mlx5, switch
from tests.played import build_port
from tests.sysfs_tree import Tree

# The layout of the PCI standard: a name, read-only keywords with their lengths, an end.
BRIDGE = (b"\x82\x1c\0NVIDIA ConnectX-7 for bridges\x90\x2c\0PN\x0d900-9X000-0000SN\x08AB12CD34"
          b"V0\x0fMDL:SMDL=SW_MNGRV\x01\x55\x78")  # fmt: skip
ADAPTER = BRIDGE.replace(b"SW_MNG", b"C7-NDR")


def node(folder: Path, **vpd: bytes | None) -> Tree:
    """Two InfiniBand ports with interfaces and counters that answer, and their product data."""
    tree = Tree(folder)
    for k in range(2):
        path = switch(0x10 + 8 * k, 0)
        build_port(tree, mlx5(k, path, 0, "InfiniBand", f"ib{k}", "400 Gb/sec (4X NDR)"))
        if (data := vpd.get(f"mlx5_{k}")) is not None:
            (tree.root / "sys" / path / "vpd").write_bytes(data)
    return tree


def found(tree: Tree) -> tuple[list[str], list[str]]:
    opened = open_rdma(NetSettings(tree.sys, tree.proc))
    return [device.id for device in opened.devices], opened.extra.get("rdma_left_out", [])


def test_a_function_that_says_so_is_left_out_although_it_looks_like_a_port(tmp_path: Path) -> None:
    assert found(node(tmp_path, mlx5_0=ADAPTER, mlx5_1=BRIDGE)) == (["mlx5_0/1"], ["mlx5_1"])


def test_a_function_that_does_not_tell_is_a_port(tmp_path: Path) -> None:
    both = ["mlx5_0/1", "mlx5_1/1"]
    assert found(node(tmp_path / "none")) == (both, [])
    assert found(node(tmp_path / "empty", mlx5_1=b"")) == (both, [])
    tree = node(tmp_path / "hidden", mlx5_1=BRIDGE)
    (tree.root / "sys" / switch(0x18, 0) / "vpd").unlink()
    os.mkfifo(tree.root / "sys" / switch(0x18, 0) / "vpd")  # nothing waits for it
    assert found(tree) == (both, [])


def test_an_ethernet_port_is_never_asked(tmp_path: Path) -> None:
    tree = node(tmp_path, mlx5_1=BRIDGE)
    tree.write(f"sys/{switch(0x18, 0)}/infiniband/mlx5_1/ports/1/link_layer", "Ethernet")
    assert found(tree)[0] == ["mlx5_0/1", "mlx5_1/1"]


def test_product_data_is_read_once_for_each_life_of_a_function(tmp_path: Path) -> None:
    place = tmp_path / "0000:18:00.0"
    place.mkdir()
    (place / "vpd").write_bytes(BRIDGE)
    assert manages_nvswitch(str(place)) is True
    (place / "vpd").write_bytes(ADAPTER)
    assert manages_nvswitch(str(place)) is True
    place.rename(tmp_path / "gone")
    assert manages_nvswitch(str(place)) is None
    place.mkdir()
    (place / "vpd").write_bytes(ADAPTER)
    assert manages_nvswitch(str(place)) is False


def test_product_data_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "vpd").symlink_to("/proc/self/mem")  # opens, and fails when it is read
    assert read_product_data(str(tmp_path / "vpd")) is None
    (tmp_path / "folder/vpd").mkdir(parents=True)
    assert read_product_data(str(tmp_path / "folder/vpd")) is None
    assert manages_nvswitch(str(tmp_path)) is None


@given(st.binary(max_size=300))
def test_no_product_data_is_taken_for_what_it_is_not(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vpd").write_bytes(data)
        assert manages_nvswitch(folder) is (b"SW_MNG" in data)
