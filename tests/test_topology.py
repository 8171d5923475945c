"""NCCL topology files: where they are looked for, which one speaks of this machine, and texts that speak of nothing."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Device
from exporter.pairing import pair
from exporter.sources import NetSettings
from exporter.sources.net import open_net
from exporter.sources.topology import LARGEST_BYTES, candidates, configured, count_here, open_topology
from tests.sysfs_tree import Tree, load

AZURE = """<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0001:00:00.0" class="0x030200"/> <pci busid="0101:00:00.0" class="0x020700"/>
      <pci busid="0002:00:00.0" class="0x030200"/> <pci busid="0102:00:00.0" class="0x020700"/>
    </pci>
  </cpu>
</system>
"""
OTHER = AZURE.replace("0001:00", "0007:00").replace("0101:00", "0107:00").replace("0002:00", "0008:00")


def settings(tree: Tree, **more: str) -> NetSettings:
    return NetSettings(sysfs_root=tree.sys, procfs_root=tree.proc, machine_root=str(tree.root), **more)  # type: ignore[arg-type]


def test_the_file_that_names_most_of_this_machine_is_taken(tmp_path: Path) -> None:
    tree = load("azure_flat_topology", tmp_path)
    assert open_topology(settings(tree)).extra == {}
    tree.write("opt/microsoft/ncv4/topo.xml", OTHER)
    tree.write("opt/microsoft/ndv4/topo.xml", AZURE)
    found = open_net(settings(tree)).extra
    assert found["topology_file"] == f"{tmp_path}/opt/microsoft/ndv4/topo.xml"
    gpus = [Device("gpu", f"GPU-{k}", index=k, info={"pci_bus_id": f"000{k + 1}:00:00.0"}) for k in range(2)]
    ports = [Device("rdma_port", f"mlx5_{k}/1", pci_path=f"devices/x/pci010{k + 1}:00/010{k + 1}:00:00.0") for k in range(2)]
    links = pair(gpus, ports, topology=found["topology"])
    assert {(link.gpu_id, link.device_id, link.reason, link.weight) for link in links} == {
        (f"GPU-{g}", f"mlx5_{p}/1", "topology", 0.5) for g in range(2) for p in range(2)}  # fmt: skip


def test_what_nccl_is_told_comes_first_and_the_virtual_topology_next(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("etc/nccl.conf", "NCCL_DEBUG=WARN\nNCCL_TOPO_FILE = /data/my.xml")
    tree.write("var/run/nvidia-topologyd/virtualTopology.xml", AZURE)
    tree.write("opt/amazon/ofi-nccl/share/aws-ofi-nccl/xml/p4d-24xl-topo.xml", OTHER)
    assert [path.removeprefix(str(tmp_path)) for path in candidates(str(tmp_path))] == [
        "/data/my.xml", "/var/run/nvidia-topologyd/virtualTopology.xml",
        "/opt/amazon/ofi-nccl/share/aws-ofi-nccl/xml/p4d-24xl-topo.xml",
    ]  # fmt: skip


def test_a_file_of_the_settings_is_taken_as_it_is_and_its_absence_told(tmp_path: Path) -> None:
    tree = load("azure_flat_topology", tmp_path)
    mine = tree.write("mine.xml", OTHER)
    assert open_topology(settings(tree, topology_file=str(mine))).extra["topology"].startswith("<system")
    missing = open_topology(settings(tree, topology_file="/nowhere.xml")).extra
    assert set(missing) == {"topology_hint"}
    assert "/nowhere.xml" in missing["topology_hint"]


def test_a_file_that_is_too_large_a_directory_or_a_pipe_is_no_topology(tmp_path: Path) -> None:
    import os

    tree = Tree(tmp_path)
    tree.write("opt/microsoft/large/topo.xml", AZURE + " " * LARGEST_BYTES)
    (tmp_path / "opt/microsoft/folder/topo.xml").mkdir(parents=True)
    (tmp_path / "opt/microsoft/pipe").mkdir(parents=True)
    os.mkfifo(tmp_path / "opt/microsoft/pipe/topo.xml")
    assert open_topology(settings(tree)).extra == {}


@given(st.text(max_size=200) | st.text(alphabet='<pci busid="0123:af.>/', max_size=200))
def test_no_text_makes_a_topology_raise(text: str) -> None:
    assert count_here(text, "/nowhere") == 0
    path = configured(text)
    assert path is None or path.startswith("/")
    gpu, port = Device("gpu", "GPU-0", pci_path="pci0001:00/0001:00:00.0"), Device("rdma_port", "x/1")
    assert len(pair([gpu], [port], topology=text)) == 1
