"""The host's witnesses: disks, network file systems, CPU time waiting."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sources import LaneError, NetSettings, Opened
from exporter.sources.host import open_host, parse_diskstats, parse_iowait, parse_llite_stats, parse_mountstats
from tests.sysfs_tree import Tree

DISKSTATS = """\
   7       0 loop0 5 0 500 0 0 0 0 0 0 0 0
   8       0 sda 100 0 2000 10 200 0 4000 20 0 30 30
   8       1 sda1 90 0 1900 9 0 0 3900 0 0 0 0
 259       0 nvme0n1 100 0 10 10 200 0 20 20 0 30 30
 253       0 dm-0 100 0 2000 10 200 0 4000 20 0 30 30
   9       0 md0 100 0 2000 10 200 0 4000 20 0 30 30
"""
MOUNTSTATS = """\
device proc mounted on /proc with fstype proc
device nas:/data mounted on /data with fstype nfs4 statvers=1.1
\tage:\t100
\tbytes:\t10 20 30 40 5000 60 7 8
device nas:/data mounted on /srv/data with fstype nfs4 statvers=1.1
\tbytes:\t10 20 30 40 5000 60 7 8
device nas:/home mounted on /home with fstype nfs statvers=1.1
\tbytes:\t1 2 3 4 700 6 7 8
device /dev/vda mounted on / with fstype ext4
"""


def opened(tree: Tree) -> Opened:
    return open_host(NetSettings(sysfs_root=tree.sys, procfs_root=tree.proc))


def values(found: Opened) -> dict[str, float]:
    (lane,) = found.lanes
    read = lane.read()
    assert read is not None
    return dict(zip(lane.source.channels, read, strict=True))


def full(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.write("proc/diskstats", DISKSTATS.rstrip())
    tree.write("proc/stat", "cpu  4293 164 2358 170931 300 0 38 8 0 0\ncpu0 1 2 3 4 5 6 7")
    tree.write("proc/1/mountstats", MOUNTSTATS.rstrip())
    return tree


def test_all_witnesses_are_read_in_base_units(tmp_path: Path) -> None:
    found = opened(full(tmp_path))
    assert [(device.kind, device.id) for device in found.devices] == [("disk", "all")]
    assert found.lanes[0].source.name == "host/all"
    assert values(found) == {
        "all/read_bytes_total": 2010 * 512,
        "all/written_bytes_total": 4020 * 512,
        "all/network_filesystem_read_bytes_total": 5700,
        "all/cpu_iowait_seconds_total": 300 / os.sysconf("SC_CLK_TCK"),
    }


def test_disks_are_those_with_a_device_where_the_kernel_lists_block_devices(tmp_path: Path) -> None:
    tree = full(tmp_path)
    tree.write("sys/block/nvme0n1/device/model", "disk")
    tree.write("sys/block/loop0/size", "1")
    tree.write("sys/block/dm-0/size", "1")
    assert values(opened(tree))["all/read_bytes_total"] == 10 * 512


def test_lustre_adds_to_the_network_file_systems(tmp_path: Path) -> None:
    tree = full(tmp_path)
    tree.write("proc/fs/lustre/llite/scratch-ffff/stats", "snapshot_time 1.0\nread_bytes 3 samples [bytes] 1 9 1000")
    assert values(opened(tree))["all/network_filesystem_read_bytes_total"] == 6700


def test_what_is_not_there_is_absent_and_no_error(tmp_path: Path) -> None:
    tree = full(tmp_path)
    (tmp_path / "proc/1/mountstats").unlink()
    (tmp_path / "proc/diskstats").unlink()
    found = opened(tree)
    assert found.lanes[0].source.channels == ("all/cpu_iowait_seconds_total",)
    assert sum(found.lanes[0].errors.values()) == 0


def test_without_procfs_there_is_no_lane_but_a_reason(tmp_path: Path) -> None:
    found = opened(Tree(tmp_path))
    assert found.lanes == ()
    assert [(s.source, s.up, s.reason) for s in found.statuses] == [("host", False, "no_procfs")]


def test_a_witness_that_fails_later_is_nan_and_counted_once(tmp_path: Path) -> None:
    tree = full(tmp_path)
    found = opened(tree)
    (tmp_path / "proc/diskstats").unlink()
    for _ in range(3):
        read = values(found)
    assert math.isnan(read["all/read_bytes_total"])
    assert read["all/network_filesystem_read_bytes_total"] == 5700
    assert found.lanes[0].errors["missing"] == 1
    for name in ("stat", "1/mountstats"):
        (tmp_path / "proc" / name).unlink()
    with pytest.raises(LaneError, match="missing"):
        found.lanes[0].read()


def test_the_machine_that_runs_the_tests_can_be_read() -> None:
    (lane,) = open_host(NetSettings()).lanes
    read = lane.read()
    assert read is not None
    assert all(value >= 0 for value in read)


@given(st.text(st.sampled_from("0123456789 \n\tcpudevicbytesnfrawt_[]:-.x\0٣")))
def test_no_text_makes_a_parser_of_procfs_raise(text: str) -> None:
    for answer in (
        parse_iowait(text, 100), parse_iowait("cpu " + text, 100), parse_mountstats(text),
        parse_mountstats("device a mounted on b with fstype nfs\nbytes: " + text), parse_llite_stats("read_bytes " + text),
        *(parse_diskstats(text, lambda name: True) or ()), *(parse_diskstats("8 0 sda " + text, lambda name: True) or ()),
    ):  # fmt: skip
        assert answer is None or (answer >= 0 and math.isfinite(answer))
