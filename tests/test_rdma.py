"""RDMA ports: every manifest against its golden file, units by driver, bad files, odd devices, filters, vanishing."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.model import Device, Inventory
from exporter.pairing import pair
from exporter.quantities import quantity_of, split_channel
from exporter.sources import PAIRED, SLOW, Lane, LaneError, NetSettings, Opened, Plan, PlannedLane
from exporter.sources import files as files_module
from exporter.sources import sysfs as sysfs_module
from exporter.sources.net import open_net
from exporter.sources.rdma import open_rdma
from exporter.sources.rdma_drivers import DRIVERS, EVENTS, UNKNOWN, driver_row
from exporter.sources.rdma_reserve import Frozen
from tests.sysfs_tree import FIXTURES, FaultyOs, Node, Tree, load

MANIFESTS = sorted(path.stem for path in FIXTURES.glob("*.tsv"))
PORT = "sys/class/infiniband/{}/ports/1"


@pytest.fixture(name="loaded")
def _loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Tree]:
    def build(name: str) -> Tree:
        tree = load(name, tmp_path)
        return inject(tree, monkeypatch)

    return build


def inject(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Make the faults of a tree come true that no file of this machine can give."""
    for module in (sysfs_module, files_module):
        monkeypatch.setattr(module, "os", FaultyOs(tree.faults))
    return tree


def settings(tree: Tree, **more: Any) -> NetSettings:
    return NetSettings(sysfs_root=tree.sys, procfs_root=tree.proc, **more)


def lane_of(opened: Opened, name: str) -> Lane:
    return next(lane for lane in opened.lanes if lane.source.name == name)


def values(opened: Opened, name: str) -> dict[str, float]:
    """One reading of a lane, channel by channel."""
    lane = lane_of(opened, name)
    read = lane.read()
    assert read is not None
    return dict(zip(lane.source.channels, read, strict=True))


def read_often(lane: Lane) -> None:
    """Two seconds at the full rate."""
    for _ in range(100):
        lane.read()


def described(opened: Opened, root: str) -> str:
    """All that was found and one reading of each lane, as text."""
    lines = []
    for device in opened.devices:
        told = {
            "driver": device.driver, "rate_bytes_per_s": device.rate_bytes_per_s, "pci_path": device.pci_path,
            "numa_node": device.numa_node, **device.info,
        }
        lines.append(f"{device.kind} {device.id} " + " ".join(f"{k}={v}" for k, v in told.items() if v is not None))
    lines += [f"status {status.source} {'up' if status.up else 'down'} {status.reason}" for status in opened.statuses]
    lines += [f"extra {key}: {value}" for key, value in opened.extra.items()]
    for lane in opened.lanes:
        pairs = ""
        if isinstance(lane, PlannedLane) and lane.plan.pair_s:
            pairs = f", 1 in {lane.plan.every} again after {lane.plan.pair_s:g} s"
        every = f"{lane.source.interval_s:g} s{pairs}"
        lines.append(f"lane {lane.source.name} every {every}, of {lane.device_kind} {lane.device_id}")
        try:
            read = lane.read()
        except LaneError as error:
            lines.append(f"  fails: {error.reason}, then {error.then}")
        else:
            assert read is not None
            lines += [f"  {channel} {value:.17g}" for channel, value in zip(lane.source.channels, read, strict=True)]
        lines += [f"  error {reason} {count}" for reason, count in lane.errors.items() if count]
        lane.close()
    return "\n".join(lines).replace(root, "ROOT") + "\n"


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_every_manifest_reads_as_its_golden_file_says(
    manifest: str, loaded: Callable[[str], Tree], golden: Callable[[str, str], None]
) -> None:
    tree = loaded(manifest)
    golden(f"rdma/{manifest}.txt", described(open_net(settings(tree)), str(tree.root)))


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_every_channel_has_a_row_in_the_table_of_quantities(manifest: str, loaded: Callable[[str], Tree]) -> None:
    opened = open_net(settings(loaded(manifest)))
    kinds = {device.id: device.kind for device in opened.devices}
    channels = [channel for lane in opened.lanes for channel in lane.source.channels]
    assert len(channels) == len(set(channels))
    for channel in channels:
        parts = split_channel(channel, set(kinds))
        assert parts is not None
        assert quantity_of(kinds[parts[0]], parts[1]) is not None, channel


# Units (BC-16): the files that stand for one and the same flow, and what a reading must give.
FLOWS = (
    ("mlx5_core", {"counters/port_xmit_data": 12_500_000, "counters/port_rcv_data": 12_500_000}, 50e6),
    ("hfi1", {"counters/port_xmit_data": 6_250_000, "counters/port_rcv_data": 6_250_000}, 50e6),
    ("efa", {"hw_counters/tx_bytes": 50_000_000, "hw_counters/rx_bytes": 50_000_000,
             "hw_counters/send_bytes": 50_000_000}, 50e6),
    ("bnxt_en", {"counters/port_xmit_data": "!EINVAL", "counters/port_rcv_data": "!EINVAL",
                 "hw_counters/tx_bytes": 50_000_000, "hw_counters/rx_bytes": 50_000_000}, 50e6),
    ("ionic", {"hw_counters/tx_rdma_ucast_bytes": 49_000_000, "hw_counters/tx_rdma_mcast_bytes": 1_000_000,
               "hw_counters/rx_rdma_ucast_bytes": 50_000_000, "hw_counters/rx_rdma_mcast_bytes": 0}, 50e6),
    ("ice", {"hw_counters/ip4OutOctets": 30_000_000, "hw_counters/ip6OutOctets": 20_000_000,
             "hw_counters/ip4InOctets": 50_000_000, "hw_counters/ip6InOctets": 0}, 50e6),
    ("erdma", {"hw_counters/hw_tx_bytes_cnt": 50_000_000, "hw_counters/rx_bytes_cnt": 50_000_000}, 50e6),
    ("brand_new", {"counters/port_xmit_data": 12_500_000, "counters/port_rcv_data": 12_500_000,
                   "hw_counters/tx_bytes": 50_000_000, "hw_counters/rx_bytes": 50_000_000}, 50e6),
)  # fmt: skip


def build_port(tree: Tree, name: str, driver: str | None, counters: dict[str, Any], link_layer: str = "Ethernet") -> None:
    port = PORT.format(name)
    tree.write(f"{port}/state", "4: ACTIVE")
    tree.write(f"{port}/rate", "400 Gb/sec (4X NDR)")
    tree.write(f"{port}/link_layer", link_layer)
    if driver is not None:
        tree.link(f"sys/class/infiniband/{name}/device/driver", f"/sys/bus/pci/drivers/{driver}")
    for file, value in counters.items():
        if isinstance(value, str) and value.startswith("!"):
            tree.fail(f"{port}/{file}", value[1:])
        else:
            tree.write(f"{port}/{file}", str(value))


@pytest.mark.parametrize(("driver", "counters", "expected_bytes"), FLOWS, ids=[flow[0] for flow in FLOWS])
def test_one_flow_gives_the_same_bytes_on_every_driver(
    driver: str, counters: dict[str, Any], expected_bytes: float, tmp_path: Path
) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "rdma_x", driver, counters)
    opened = open_rdma(settings(tree))
    assert values(opened, "rdma/rdma_x") == {
        "rdma_x/1/transmit_bytes_total": expected_bytes,
        "rdma_x/1/receive_bytes_total": expected_bytes,
    }
    assert opened.devices[0].driver == driver
    assert opened.devices[0].info["byte_source"] in counters


def test_the_driver_link_decides_and_not_the_name_of_the_device(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "mlx5_0", "hfi1", {"counters/port_xmit_data": 10, "counters/port_rcv_data": 20})
    assert values(open_rdma(settings(tree)), "rdma/mlx5_0")["mlx5_0/1/transmit_bytes_total"] == 80


def test_efa_is_asked_four_times_a_second_at_most_and_is_known_by_its_vendor_too(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "rdmap0s6", None, {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 2}, "Unknown")
    tree.write("sys/class/infiniband/rdmap0s6/device/vendor", "0x1d0f")
    opened = open_rdma(settings(tree, network_hertz=50.0))
    assert opened.devices[0].driver == "efa"
    assert lane_of(opened, "rdma/rdmap0s6").source.interval_s == 0.25


def test_a_byte_source_that_stands_at_zero_gives_way_to_one_that_has_counted(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "bnxt_re0", "bnxt_en", {
        "hw_counters/tx_roce_only_bytes": 0, "hw_counters/rx_roce_good_bytes": 0,
        "hw_counters/tx_bytes": 70, "hw_counters/rx_bytes": 80,
    })  # fmt: skip
    opened = open_rdma(settings(tree))
    assert opened.devices[0].info["byte_source"] == "hw_counters/tx_bytes"
    assert list(values(opened, "rdma/bnxt_re0").values()) == [70, 80]


# Bad files (BC-13).


def f0(tmp_path: Path, **more: Any) -> Tree:
    return Node(gpus=2, ports=2, **more).build(tmp_path)


def counters_of(name: str) -> str:
    return f"{PORT.format(name)}/counters"


def test_bad_files_cost_their_own_events_once_each_and_leave_bytes_and_the_other_device_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = f0(tmp_path)
    healthy = values(open_rdma(settings(tree)), "rdma/mlx5_1/events")
    bad = {
        "counters/port_xmit_wait": "N/A (no PMA)", "counters/port_xmit_discards": "", "counters/link_downed": "!EINVAL",
        "hw_counters/np_cnp_sent": "!EIO", "hw_counters/out_of_sequence": "!EACCES",
        "hw_counters/local_ack_timeout_err": "{dir}",
    }  # fmt: skip
    for file, value in bad.items():
        path = f"{PORT.format('mlx5_0')}/{file}"
        (tmp_path / path).unlink()
        if value == "{dir}":
            (tmp_path / path).mkdir()
        elif value.startswith("!"):
            tree.fail(path, value[1:])
        else:
            tree.write(path, value)
    inject(tree, monkeypatch)
    opened = open_rdma(settings(tree))
    for _ in range(20):
        read = {**values(opened, "rdma/mlx5_0/events"), **values(opened, "rdma/mlx5_0/state")}
    absent = {channel.split("events/")[1] for channel, value in read.items() if math.isnan(value)}
    assert absent == {"credit_stall", "drops", "link_down", "cnp_tx", "out_of_order_rx", "ack_timeout"}
    counted = Counter[str]()
    for name in ("events", "state"):
        counted += Counter(lane_of(opened, f"rdma/mlx5_0/{name}").errors)
    assert counted == {"not_available": 2, "not_a_number": 1, "io_error": 1, "permission_denied": 1, "missing": 1}
    assert list(values(opened, "rdma/mlx5_0").values()) == [0, 0]
    assert values(opened, "rdma/mlx5_1/events") == healthy


def test_one_unreadable_byte_file_leaves_the_other_direction_and_is_never_zero(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    tree.write(f"{counters_of('mlx5_0')}/port_xmit_data", "N/A (no PMA)")
    tree.write(f"{counters_of('mlx5_0')}/port_rcv_data", "25")
    opened = open_rdma(settings(tree))
    read = values(opened, "rdma/mlx5_0")
    assert math.isnan(read["mlx5_0/1/transmit_bytes_total"])
    assert read["mlx5_0/1/receive_bytes_total"] == 100
    assert list(values(opened, "rdma/mlx5_1").values()) == [0, 0]


def test_a_bad_file_is_looked_at_again_after_five_minutes_and_heals(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    file = tree.write(f"{counters_of('mlx5_0')}/port_xmit_data", "N/A (no PMA)")
    lane = lane_of(open_rdma(settings(tree, network_hertz=1.0)), "rdma/mlx5_0")
    lane.read()
    file.write_text("7\n")
    sent = [read[0] for _ in range(302) if (read := lane.read()) is not None]
    assert all(math.isnan(value) for value in sent[:300])
    assert sent[-1] == 28
    assert lane.errors["not_available"] == 1


def test_a_file_that_is_half_written_costs_one_reading(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    file = tree.write(f"{counters_of('mlx5_0')}/port_xmit_data", "5")
    lane = lane_of(open_rdma(settings(tree)), "rdma/mlx5_0")
    seen = []
    for text in ("5\n", "", "6\n"):
        file.write_text(text)
        read = lane.read()
        assert read is not None
        seen.append(read[0])
    assert seen[0] == 20
    assert math.isnan(seen[1])
    assert seen[2] == 24


def test_a_sum_is_absent_while_a_file_of_it_fails_and_does_not_jump(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    tree.write(f"{PORT.format('mlx5_0')}/hw_counters/packet_seq_err", "100")
    file = tree.write(f"{PORT.format('mlx5_0')}/hw_counters/implied_nak_seq_err", "11")
    opened = open_rdma(settings(tree))
    channel = "mlx5_0/1/events/seq_nak_rx"
    assert values(opened, "rdma/mlx5_0/events")[channel] == 111
    file.write_text("")
    assert math.isnan(values(opened, "rdma/mlx5_0/events")[channel])
    file.write_text("12\n")
    assert values(opened, "rdma/mlx5_0/events")[channel] == 112


# Odd devices (BC-14) and devices that are no ports of the job.


def test_odd_devices_beside_good_ones_change_nothing_for_these(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    before = described(open_rdma(settings(tree)), str(tmp_path))
    base = "sys/class/infiniband"
    tree.write(f"{base}/irdma0/ports/1/hw_counters/ip4OutOctets", "5")
    tree.fail(f"{base}/mana_0/ports/1/rate", "EINVAL")
    tree.write(f"{base}/mana_0/ports/1/state", "4: ACTIVE")
    tree.write(f"{base}/hfi1_0/ports/1/hw_counters/SwLinkUp,32", "1")
    tree.write(f"{base}/hfi1_0/ports/1/hw_counters/Rcv Ctx", "1")
    tree.write(f"{base}/hfi1_0/ports/1/hw_counters/RcSeqNak", "3")
    (tmp_path / f"{base}/empty0/ports").mkdir(parents=True)
    tree.write(f"{base}/mlx5_1/ports/abc/state", "4: ACTIVE")
    tree.write(f"{base}/strange0", "a file")
    opened = open_rdma(settings(tree))
    after = described(opened, str(tmp_path)).splitlines()
    assert set(before.splitlines()) <= set(after)
    ids = {device.id for device in opened.devices}
    assert ids == {"mlx5_0/1", "mlx5_1/1", "irdma0/1", "mana_0/1", "hfi1_0/1", "empty0"}
    assert opened.statuses == ()
    for lane in opened.lanes:
        lane.read()
    assert all(len(channel.split("/")) in (3, 4) and "," not in channel and " " not in channel
               for lane in opened.lanes for channel in lane.source.channels)  # fmt: skip
    mana = next(device for device in opened.devices if device.id == "mana_0/1")
    assert mana.rate_bytes_per_s is None


def test_two_ports_of_one_device_are_read_together_and_kept_apart(loaded: Callable[[str], Tree]) -> None:
    opened = open_rdma(settings(loaded("mlx4_ib")))
    read = values(opened, "rdma/mlx4_0")
    assert read["mlx4_0/1/receive_bytes_total"] == 4 * 2221223609
    assert read["mlx4_0/2/receive_bytes_total"] == 4 * 2460436784
    assert lane_of(opened, "rdma/mlx4_0").device_id == "mlx4_0"


def test_nvswitch_management_functions_are_left_out_and_named(loaded: Callable[[str], Tree]) -> None:
    tree = loaded("hgx_b200_lpf")
    build_port(tree, "mlx5_0", "mlx5_core", {"counters/port_xmit_data": 1, "counters/port_rcv_data": 1}, "InfiniBand")
    opened = open_rdma(settings(tree))
    assert [device.id for device in opened.devices] == ["mlx5_0/1"]
    assert opened.extra["rdma_left_out"] == ["mlx5_8", "mlx5_9", "mlx5_10", "mlx5_11"]


def test_switches_are_no_ports_of_the_node(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    tree.write("sys/class/infiniband/mlx5_0/node_type", "2: switch")
    assert [device.id for device in open_rdma(settings(tree)).devices] == ["mlx5_1/1"]


def test_software_devices_are_marked_and_have_no_bytes_of_their_own(loaded: Callable[[str], Tree]) -> None:
    opened = open_rdma(settings(loaded("rxe")))
    (device,) = opened.devices
    assert (device.driver, device.info["software"], device.info["netdev"]) == ("rxe", "true", "eth0")
    assert "rdma/rxe0" not in {lane.source.name for lane in opened.lanes}


# Nothing to read (BC-06).


def test_a_node_without_rdma_is_told_from_one_whose_counters_cannot_be_seen(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    (tmp_path / "sys").mkdir()
    assert [s.reason for s in open_rdma(settings(tree)).statuses] == ["no_rdma_devices"]
    tree.link("sys/class/infiniband/mlx5_0", "../../devices/pci0000:15/0000:15:01.0/infiniband/mlx5_0")
    opened = open_rdma(settings(tree))
    assert [(s.source, s.up, s.reason) for s in opened.statuses] == [("rdma", False, "counters_not_visible")]
    assert f"{tree.sys}/devices" in opened.extra["rdma_hint"]
    assert opened.devices == ()


def test_a_pod_without_the_hosts_sysfs_lists_its_ports_and_says_what_to_mount(loaded: Callable[[str], Tree]) -> None:
    opened = open_rdma(settings(loaded("pod_shared_netns")))
    assert [s.reason for s in opened.statuses] == ["counters_not_visible"]
    assert "mount the host's /sys" in opened.extra["rdma_hint"]
    assert values(opened, "rdma/mlx5_0/state")["mlx5_0/1/up_ratio"] == 1
    assert "rdma/mlx5_0" not in {lane.source.name for lane in opened.lanes}


# What is opened, and what is not.

_watching: list[set[str]] = []


def _record_open(event: str, args: tuple[Any, ...]) -> None:
    if _watching and event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], str):
        _watching[-1].add(args[0])


sys.addaudithook(_record_open)  # hooks cannot be taken off again: this one does nothing between tests


@pytest.fixture(name="touched")
def _touched() -> Iterator[set[str]]:
    _watching.append(set())
    yield _watching[-1]
    _watching.pop()


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"rdma_exclude": ("mlx5_0",)}, {"mlx5_1"}),
        ({"rdma_include": ("mlx5_1",)}, {"mlx5_1"}),
        ({"rdma_include": ("mlx5_1/1",)}, {"mlx5_1"}),
        ({"skip": ("mlx5_0",)}, {"mlx5_1"}),
        ({"rdma_exclude": ("mlx5_*",)}, set()),
    ],
)
def test_filters_act_before_anything_below_a_device_is_touched(
    filters: dict[str, Any], kept: set[str], tmp_path: Path, touched: set[str]
) -> None:
    tree = Node(gpus=2, ports=2, netdevs=False).build(tmp_path)
    touched.clear()
    opened = open_net(settings(tree, **filters))
    for lane in opened.lanes:
        lane.read()
    assert {device.id.split("/")[0] for device in opened.devices if device.kind == "rdma_port"} == kept
    assert {name for path in touched for name in ("mlx5_0", "mlx5_1") if name in path.split("/")} == kept
    for lane in opened.lanes:
        lane.close()


def test_a_port_is_skipped_and_filtered_by_itself(loaded: Callable[[str], Tree]) -> None:
    tree = loaded("mlx4_ib")
    for filters in ({"rdma_exclude": ("mlx4_0/2",)}, {"rdma_include": ("mlx4_0/1",)}, {"skip": ("mlx4_0/2",)}):
        assert [device.id for device in open_rdma(settings(tree, **filters)).devices] == ["mlx4_0/1"]


def test_counters_of_a_device_are_left_unread_where_its_ports_show_none(tmp_path: Path, touched: set[str]) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "mana_0", "mana", {})
    tree.write("sys/class/infiniband/mana_0/hw_counters/sent_cnps", "2")
    touched.clear()
    opened = open_rdma(settings(tree))
    for lane in opened.lanes:
        lane.read()
    assert not any("hw_counters/" in path or path.endswith("mana_0/hw_counters") for path in touched)
    build_port(tree, "mana_1", "mana", {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1})
    tree.write("sys/class/infiniband/mana_1/hw_counters/sent_cnps", "2")
    assert values(open_rdma(settings(tree)), "rdma/mana_1/events") == {"mana_1/1/events/cnp_tx": 2}


def test_opening_announces_each_device_before_it_is_touched(tmp_path: Path, touched: set[str]) -> None:
    tree = f0(tmp_path)
    seen: list[tuple[str, str, bool]] = []

    def announce(kind: str, device_id: str) -> None:
        before = any(device_id in path.split("/") for path in touched) if device_id else False
        seen.append((kind, device_id, before))

    touched.clear()
    open_rdma(settings(tree), announce)
    assert seen == [("rdma_port", "", False), ("rdma_port", "mlx5_0", False), ("rdma_port", "mlx5_1", False)]


def test_nothing_is_opened_for_reading_before_the_first_read(tmp_path: Path) -> None:
    fds = Path("/proc/self/fd")
    tree = Node().build(tmp_path)
    before = len(list(fds.iterdir()))
    opened = open_net(settings(tree))
    assert len(list(fds.iterdir())) == before
    for lane in opened.lanes:
        lane.read()
    assert len(list(fds.iterdir())) > before
    for lane in opened.lanes:
        lane.close()
    assert len(list(fds.iterdir())) == before


# Devices that go and come.


def test_enodev_of_a_kept_descriptor_means_the_device_has_vanished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = inject(f0(tmp_path), monkeypatch)
    opened = open_rdma(settings(tree))
    lane = lane_of(opened, "rdma/mlx5_0")
    lane.read()
    tree.faults[str((tmp_path / counters_of("mlx5_0") / "port_xmit_data").resolve())] = 19  # ENODEV
    with pytest.raises(LaneError, match="vanished") as caught:
        lane.read()
    assert caught.value.then == "rediscover"
    assert lane.errors["vanished"] == 1
    assert lane_of(opened, "rdma/mlx5_1").read() == [0, 0]


def test_a_device_whose_directory_went_has_vanished_and_comes_back_anew(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    opened = open_rdma(settings(tree))
    lane = lane_of(opened, "rdma/mlx5_0")
    lane.read()
    directory = (tmp_path / "sys/class/infiniband/mlx5_0").resolve()
    directory.rename(tmp_path / "away")
    with pytest.raises(LaneError, match="vanished"):
        read_often(lane)
    lane.close()
    again = open_rdma(settings(tree))
    assert [device.id for device in again.devices] == ["mlx5_1/1"]
    (tmp_path / "away").rename(directory)
    assert [device.id for device in open_rdma(settings(tree)).devices] == ["mlx5_0/1", "mlx5_1/1"]


def test_a_counter_file_put_in_place_of_another_is_followed(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    file = tmp_path / counters_of("mlx5_0") / "port_xmit_data"
    lane = lane_of(open_rdma(settings(tree)), "rdma/mlx5_0")
    for count in range(1, 80):
        fresh = file.with_name("fresh")
        fresh.write_text(f"{count}\n")
        fresh.replace(file)
        assert lane.read() == [4 * count, 0]


# Counters that go back, wrap or stick.


def test_a_counter_of_64_bits_that_went_back_was_reset_which_is_counted(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    file = tree.write(f"{counters_of('mlx5_0')}/port_xmit_data", str((1 << 32) - 2))
    lane = lane_of(open_rdma(settings(tree)), "rdma/mlx5_0")
    assert lane.read() == [4 * ((1 << 32) - 2), 0]
    for count, resets in ((3, 1), (4, 1), (1, 2)):
        file.write_text(f"{count}\n")
        assert lane.read() == [4 * count, 0]
        assert lane.errors["counter_reset"] == resets


def test_a_counter_of_32_bits_goes_on_across_a_wrap_and_is_known_from_one_that_was_reset(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "mlx4_0", "mlx4_core", {"counters/port_xmit_data": 0, "counters/port_rcv_data": 0}, "InfiniBand")
    file = tmp_path / f"{counters_of('mlx4_0')}/port_xmit_data"
    lane = lane_of(open_rdma(settings(tree)), "rdma/mlx4_0")
    read = []
    for count in ((1 << 32) - 100, 50, 1 << 31, (1 << 32) - 10, 5, 3):
        file.write_text(f"{count}\n")
        sent = lane.read()
        assert sent is not None
        read.append(sent[0] / 4)
    assert read == [(1 << 32) - 100, (1 << 32) + 50, 3 << 31, (2 << 32) - 10, (2 << 32) + 5, 3]
    assert lane.errors["counter_reset"] == 1  # the last step: from 5 to 3 no counter wraps


def test_a_counter_that_once_went_beyond_32_bits_is_no_counter_of_32_bits(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "mlx4_0", "mlx4_core", {"counters/port_xmit_data": 5 << 32, "counters/port_rcv_data": 0}, "InfiniBand")
    lane = lane_of(open_rdma(settings(tree)), "rdma/mlx4_0")
    lane.read()
    (tmp_path / f"{counters_of('mlx4_0')}/port_xmit_data").write_text("7\n")
    assert lane.read() == [28, 0]
    assert lane.errors["counter_reset"] == 1


def test_a_counter_that_sticks_at_its_highest_value_says_nothing_until_it_is_cleared(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    files = {name: tree.write(f"{counters_of('mlx5_0')}/{name}", value) for name, value in
             (("port_xmit_discards", "65534"), ("port_xmit_wait", str((1 << 32) - 1)), ("link_downed", "255"))}  # fmt: skip
    tree.write(f"{PORT.format('mlx5_0')}/hw_counters/out_of_sequence", "65535")  # a wider one
    opened = open_rdma(settings(tree))
    lane = lane_of(opened, "rdma/mlx5_0/state")
    drops, stall, down = ("mlx5_0/1/events/" + name for name in ("drops", "credit_stall", "link_down"))
    read = values(opened, "rdma/mlx5_0/state")
    assert read[drops] == 65534
    assert math.isnan(read[stall])
    assert math.isnan(read[down])
    assert values(opened, "rdma/mlx5_0/events")["mlx5_0/1/events/out_of_order_rx"] == 65535
    files["port_xmit_discards"].write_text("65535\n")
    assert math.isnan(values(opened, "rdma/mlx5_0/state")[drops])
    assert lane.errors["saturated"] == 3
    files["port_xmit_discards"].write_text("2\n")
    assert values(opened, "rdma/mlx5_0/state")[drops] == 2
    assert lane.errors["counter_reset"] == 1


def test_broadcom_cuts_its_error_counters_off_instead_of_letting_them_stick(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "bnxt_re0", "bnxt_en", {"counters/link_downed": 255, "hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1})
    opened = open_rdma(settings(tree))
    assert values(opened, "rdma/bnxt_re0/state")["bnxt_re0/1/events/link_down"] == 255
    tree.write(f"{PORT.format('bnxt_re0')}/counters/link_downed", "1")
    assert values(opened, "rdma/bnxt_re0/state")["bnxt_re0/1/events/link_down"] == 257


# Counters that stop without an error.


def test_broadcoms_frozen_counters_give_way_to_those_in_memory_which_carry_on_from_there(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    better = {"hw_counters/tx_roce_only_bytes": 5_000_000, "hw_counters/rx_roce_good_bytes": 4_000_000}
    build_port(tree, "bnxt_re0", "bnxt_en", {**better, "hw_counters/tx_bytes": 9_000_000, "hw_counters/rx_bytes": 8_000_000})
    frozen = Frozen()
    opened = open_rdma(settings(tree, network_hertz=10.0), frozen=frozen)
    assert opened.devices[0].info["byte_source"] == "hw_counters/tx_roce_only_bytes"
    lane = lane_of(opened, "rdma/bnxt_re0")

    def write(**files: int) -> None:
        for name, value in files.items():
            tree.write(f"{PORT.format('bnxt_re0')}/hw_counters/{name}", str(value))

    for k in range(100):  # all goes well
        write(tx_roce_only_bytes=5_000_000 + 1000 * k, tx_bytes=9_000_000 + 1_000_000 * k)
        lane.read()
    for _ in range(100):  # nothing moves: a pause
        assert lane.read() == [5_099_000, 4_000_000]
    write(tx_bytes=110_000_000)
    with pytest.raises(LaneError, match="frozen") as caught:
        read_often(lane)
    assert caught.value.then == "rediscover"
    write(tx_bytes=120_000_000, rx_bytes=8_000_001)
    again = open_rdma(settings(tree, network_hertz=10.0), frozen=frozen)
    assert again.devices[0].info["byte_source"] == "hw_counters/tx_bytes"
    carried_on = lane_of(again, "rdma/bnxt_re0")
    assert carried_on.read() == [5_099_000, 4_000_000]
    write(tx_bytes=121_000_000, rx_bytes=8_000_011)
    assert carried_on.read() == [6_099_000, 4_000_010]
    (tmp_path / "sys/class/infiniband/bnxt_re0").rename(tmp_path / "away")  # the driver is loaded anew
    build_port(tree, "bnxt_re0", "bnxt_en", {**better, "hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1})
    fresh = open_rdma(settings(tree), frozen=frozen)
    assert fresh.devices[0].info["byte_source"] == "hw_counters/tx_roce_only_bytes"


# What is listed without being judged.


def test_bytes_of_a_driver_that_nobody_checked_are_shown_and_not_judged(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for name, driver in (("new_0", "brand_new"), ("mlx5_0", "mlx5_core"), ("bare_0", None)):
        build_port(tree, name, driver, {"counters/port_xmit_data": 10, "counters/port_rcv_data": 10}, "InfiniBand")
    opened = open_rdma(settings(tree))
    assert {device.id: device.info.get("unchecked") for device in opened.devices} == {
        "bare_0/1": None, "mlx5_0/1": None, "new_0/1": "true"}  # fmt: skip
    assert values(opened, "rdma/new_0")["new_0/1/transmit_bytes_total"] == 40
    gpu = Device("gpu", "GPU-0", index=0)
    assert [[link.device_id for link in pair([gpu], [port])] for port in opened.devices] == [["bare_0/1"], ["mlx5_0/1"], []]
    assert {link.device_id for link in pair([gpu], opened.devices, compute_ports="new_0")} == {"new_0/1"}


def test_a_device_without_ports_is_listed_and_paired_with_nobody(tmp_path: Path) -> None:
    tree = f0(tmp_path)
    (tmp_path / "sys/class/infiniband/empty0/ports").mkdir(parents=True)
    opened = open_rdma(settings(tree))
    (empty,) = [device for device in opened.devices if device.id == "empty0"]
    assert empty.info == {"state": "absent"}
    assert not [lane for lane in opened.lanes if lane.device_id == "empty0"]
    assert "empty0" not in {link.device_id for link in pair([Device("gpu", "GPU-0", index=0)], opened.devices)}
    assert "empty0" not in {port.id for port in Inventory("", 0.0, opened.devices).compute_ports()}


def test_errors_in_counters_are_asked_for_each_fifth_second_and_hw_counters_each_second(tmp_path: Path) -> None:
    opened = open_rdma(settings(f0(tmp_path), network_hertz=50.0))
    at = {c.split("/", 2)[2]: lane.source.interval_s for lane in opened.lanes if lane.device_id == "mlx5_0/1"
          for c in lane.source.channels}  # fmt: skip
    assert {key for key, interval_s in at.items() if interval_s == 0.02} == {"transmit_bytes_total", "receive_bytes_total"}
    assert {key for key, interval_s in at.items() if interval_s == 5.0} == {
        "up_ratio", "rate_bytes_per_second", "events/credit_stall", "events/drops", "events/link_error", "events/link_down"}
    assert {"events/cnp_tx", "events/out_of_order_rx", "events/ack_timeout"} <= {k for k, s in at.items() if s == 1.0}


# How often bytes are read.


def plan_of(opened: Opened, name: str) -> Plan:
    lane = lane_of(opened, f"rdma/{name}")
    assert isinstance(lane, PlannedLane)
    assert lane.source.interval_s == pytest.approx(lane.plan.interval_s)
    return lane.plan


@pytest.mark.parametrize(
    ("driver", "counters", "plan"),
    [
        ("mlx5_core", {"counters/port_xmit_data": 1, "counters/port_rcv_data": 1}, PAIRED),
        ("hfi1", {"counters/port_xmit_data": 1, "counters/port_rcv_data": 1}, PAIRED),
        ("mana", {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1}, PAIRED.beyond(0.010)),
        ("mana", {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1, "hw_counters/lifespan": 12}, PAIRED.beyond(0.012)),
        ("mana", {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1, "hw_counters/lifespan": 0}, PAIRED),
        ("mana", {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1, "hw_counters/lifespan": 500}, Plan(25.0, 0.0, 5)),
        ("efa", {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1}, Plan(4.0)),
        ("bnxt_en", {"counters/port_xmit_data": "!EINVAL", "counters/port_rcv_data": "!EINVAL",
                     "hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1}, SLOW),
    ],
)  # fmt: skip
def test_a_port_is_read_by_the_plan_of_its_counters_and_at_one_rate_where_that_is_set(
    driver: str, counters: dict[str, Any], plan: Plan, tmp_path: Path
) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "x_0", driver, counters)
    assert plan_of(open_rdma(settings(tree)), "x_0") == plan
    steady = plan_of(open_rdma(settings(tree, network_hertz=50.0)), "x_0")
    assert steady == (Plan(4.0) if driver == "efa" else Plan(50.0))


def test_a_device_of_two_ports_is_read_as_its_slower_one(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    build_port(tree, "bnxt_re0", "bnxt_en", {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1})
    second = "sys/class/infiniband/bnxt_re0/ports/2"
    for file in ("hw_counters/tx_roce_only_bytes", "hw_counters/rx_roce_only_bytes"):
        tree.write(f"{second}/{file}", "7")
    tree.write(f"{second}/state", "4: ACTIVE")
    assert plan_of(open_rdma(settings(tree)), "bnxt_re0") == SLOW


# The table.


def test_every_event_of_the_table_is_on_the_list_of_names() -> None:
    assert len(EVENTS) == len(set(EVENTS)) == 15
    for row in (*DRIVERS, UNKNOWN):
        assert set(row.events) <= set(EVENTS), row.name
        for file in (f for files in row.events.values() for spelling in files for f in spelling.split("|")):
            assert file.split("/")[0] in ("counters", "hw_counters", "device", "netdev", "ethtool"), file


def test_every_row_says_where_its_names_come_from_and_can_be_found() -> None:
    names = [name for row in DRIVERS for name in (row.name, *row.also)]
    assert len(names) == len(set(names))
    for row in DRIVERS:
        assert row.provenance in ("captured", "published", "constructed")
        assert all(driver_row(name) is row for name in (row.name, *row.also))
        assert not (row.software and row.byte_sources)
        for file in row.signature:
            assert driver_row(None, None, frozenset({file.split("|")[-1]})) is row


@pytest.mark.parametrize(
    ("manifest", "event", "expected"),
    [
        ("mlx5_ib", "mlx5_0/1/events/ack_timeout", 131),
        ("mlx5_ib", "mlx5_0/1/events/retransmit", 103),
        ("mlx5_roce", "mlx5_0/1/events/rnr", 3),
        ("bnxt_re_new", "bnxt_re0/1/events/cnp_tx", 4),
        ("irdma", "irdma0/1/events/cnp_rx", 9),
        ("mana", "mana_0/1/events/cnp_tx", 2),
        ("mana", "mana_0/1/events/ecn_marked_rx", 4),
        ("ionic", "ionic_0/1/events/retransmit", 2),
        ("hfi1", "hfi1_0/1/events/drops", 134),
        ("mlx4_ib", "mlx4_0/2/events/credit_stall", 3846),
    ],
)
def test_files_of_many_spellings_feed_one_list_of_event_names(
    manifest: str, event: str, expected: float, loaded: Callable[[str], Tree]
) -> None:
    opened = open_rdma(settings(loaded(manifest)))
    device = event.split("/", maxsplit=1)[0]
    lanes = [lane.source.name for lane in opened.lanes if lane.source.name.startswith(f"rdma/{device}/")]
    assert {channel: value for lane in lanes for channel, value in values(opened, lane).items()}[event] == expected
