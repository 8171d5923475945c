"""Faults from the field, each as one run of the real daemon on a fake machine; they run side by side, a few at a time."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.observed import BACK_WITHIN_S, GONE_WITHIN_S, Act, Case, Observation, Scrape, observe
from tests.end_to_end.processes import Daemon
from tests.machines import Machine, Running, antiphase, bare
from tests.nvml_library import ALL_CALLS, DRIVER_NOT_LOADED, GPU_IS_LOST, UNINITIALIZED, UNKNOWN, Board, Wave
from tests.promtool import run as run_promtool
from tests.sysfs_tree import Moving, Node, Waveform, moving

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(280)]
AT_ONCE = 5
SHORT_WINDOWS = {"analysis": {"windows_seconds": [15, 60], "verdict_window_seconds": 15}}
RDMA = {"rdma/mlx5_0": 0.0, "rdma/mlx5_1": 0.0}
WAVE = Wave(compute_watts=640.0, communication_watts=240.0, compute_s=0.6, communication_s=0.4)
NOISY = Board(wave=WAVE, noise=3.0)


def edit(index: int, **changes: Any) -> Callable[[Running, Daemon], None]:
    def act(running: Running, _: Daemon) -> None:
        assert running.nvml is not None
        running.nvml.edit(index, **changes)

    return act


def library(**changes: Any) -> Callable[[Running, Daemon], None]:
    def act(running: Running, _: Daemon) -> None:
        assert running.nvml is not None
        running.nvml.set(**changes)

    return act


def counter(running: Running, port: int, name: str) -> Path:
    return running.tree.root / running.node.port_counter(port, name)


def fifo(running: Running, _: Daemon) -> None:
    """A file that no read ever returns from, in place of a counter."""
    file = counter(running, 1, "port_rcv_data")
    file.unlink()
    os.mkfifo(file)


def silent_client(_: Running, ran: Daemon) -> None:
    host, port = ran.url.removeprefix("http://").split(":")
    CLIENTS.append(socket.create_connection((host, int(port))))


CLIENTS: list[socket.socket] = []


def has_power(gpu: str) -> Callable[[Scrape], bool]:
    return lambda scrape: scrape.value("overlap_gpu_power_watts", gpu=gpu) is not None


def has_no_power(gpu: str) -> Callable[[Scrape], bool]:
    return lambda scrape: scrape.values("overlap_gpu_power_watts", gpu=gpu) == []


def reason_of(kind: str, device: str = "") -> Callable[[Scrape], str | None]:
    def found(scrape: Scrape) -> str | None:
        alone = scrape.snapshot["quarantined"]
        return next((q["reason"] for q in alone if q["kind"] == kind and q["id"].startswith(device)), None)

    return found


def state_of(scrape: Scrape, gpu: str) -> str:
    return next(
        dict(labels)["state"] for (name, labels), value in scrape.samples.items()
        if name == "overlap_state" and value == 1.0 and ("gpu", gpu) in labels
    )  # fmt: skip


# --- the trees of the cases ------------------------------------------------------------------------------------------


def lost_at_the_start(running: Running, stack: ExitStack, folder: Path) -> None:
    assert running.nvml is not None
    running.nvml.edit(1, open_error=GPU_IS_LOST)


def no_devices(running: Running, stack: ExitStack, folder: Path) -> None:
    """Entries of the classes lead to a /sys/devices that is not mounted."""
    (running.tree.root / "sys/devices").rename(running.tree.root / "sys/elsewhere")


def bad_files(running: Running, stack: ExitStack, folder: Path) -> None:
    """Counters of mlx5_0 that are not its bytes, each broken in another way."""
    base = f"sys/{running.node.port(0).path}/infiniband/mlx5_0/ports/1"
    running.tree.write(f"{base}/counters/symbol_error", "N/A (no PMA)")
    running.tree.write(f"{base}/counters/link_downed", "")
    running.tree.fail(f"{base}/counters/port_xmit_discards", "EINVAL")
    running.tree.fail(f"{base}/counters/link_error_recovery", "EIO")
    directory = running.tree.root / f"{base}/hw_counters/out_of_sequence"
    directory.unlink()
    directory.mkdir()
    running.tree.fail(f"{base}/hw_counters/packet_seq_err", "ENOENT")


def bad_transmit(running: Running, stack: ExitStack, folder: Path) -> None:
    """The byte file itself has no number, at the start and for ever; the writer moves another inode."""
    file = counter(running, 0, "port_xmit_data")
    file.unlink()
    file.write_text("N/A (no PMA)\n")


def odd_devices(running: Running, stack: ExitStack, folder: Path) -> None:
    tree = running.tree
    odd = "sys/class/infiniband"
    tree.write(f"{odd}/irdma0/ports/1/link_layer", "Ethernet")
    tree.write(f"{odd}/mana_0/ports/1/link_layer", "Ethernet")
    tree.fail(f"{odd}/mana_0/ports/1/rate", "EINVAL")
    tree.write(f"{odd}/hfi1_0/ports/1/link_layer", "InfiniBand")
    tree.write(f"{odd}/hfi1_0/ports/1/hw_counters/Rx Pkts, total", "12")
    (tree.root / f"{odd}/empty_0/ports").mkdir(parents=True)
    tree.write(f"{odd}/letters_0/ports/abc/state", "4: ACTIVE")


FLOW = 500e6
UNITS = {  # device -> driver, vendor, transmit files, receive files
    "rdmap0s6": ("efa", "0x1d0f", ("hw_counters/tx_bytes",), ("hw_counters/rx_bytes",)),
    "bnxt_re0": ("bnxt_en", "0x14e4", ("hw_counters/tx_bytes",), ("hw_counters/rx_bytes",)),
    "ionic_0": ("ionic", "0x1dd8", ("hw_counters/tx_rdma_ucast_bytes", "hw_counters/tx_rdma_mcast_bytes"),
                ("hw_counters/rx_rdma_ucast_bytes", "hw_counters/rx_rdma_mcast_bytes")),
}  # fmt: skip


def many_drivers(running: Running, stack: ExitStack, folder: Path) -> None:
    """One device per driver, each with 500 MB/s in the files and units of its driver."""
    tree, plan = running.tree, []
    for k, (name, (driver, vendor, transmit, receive)) in enumerate(UNITS.items()):
        place = f"sys/devices/pci0000:{0xA0 + k:02x}/0000:{0xA0 + k:02x}:00.0"
        tree.write(f"{place}/vendor", vendor)
        tree.link(f"{place}/driver", f"/sys/bus/pci/drivers/{driver}")
        device = f"{place}/infiniband/{name}"
        tree.link(f"{device}/device", f"/{place}")
        tree.link(f"sys/class/infiniband/{name}", f"../../{device.removeprefix('sys/')}")
        tree.write(f"{device}/ports/1/link_layer", "Ethernet")
        if driver == "bnxt_en":
            tree.fail(f"{device}/ports/1/counters/port_xmit_data", "EINVAL")
            tree.fail(f"{device}/ports/1/counters/port_rcv_data", "EINVAL")
        for files in (transmit, receive):
            for file in files:
                path = tree.write(f"{device}/ports/1/{file}", "0")
                plan.append(Moving(str(path), Waveform(0.0, 1.0, FLOW / len(files))))
    stack.enter_context(moving(plan, folder / "drivers.json"))


def stacked(running: Running, stack: ExitStack, folder: Path) -> None:
    """eth0 and eth1 in a bond, a VLAN on one of them, a veth: every packet is counted on all layers."""
    tree = running.tree
    for name, files in {
        "bond0": ("bonding/slaves",), "eth0.100": ("lower_eth0/ifindex",), "veth0": (), "docker0": ("bridge/bridge_id",),
    }.items():  # fmt: skip
        place = f"sys/devices/virtual/net/{name}"
        for file in (*files, "statistics/tx_bytes", "statistics/rx_bytes"):
            tree.write(f"{place}/{file}", "123456789")
        tree.write(f"{place}/type", "1")
        tree.link(f"sys/class/net/{name}", f"../../devices/virtual/net/{name}")
    for k in range(2):
        tree.link(f"sys/{running.node.nic(k).path}/net/eth{k}/master", "/sys/devices/virtual/net/bond0")


def sentinels() -> tuple[Act, ...]:
    """What GPU-1 says instead of its power, a fifth of a second each, and what it says of its utilisation."""
    bad = (("u32", "0"), ("i64", "-1"), ("u32", "4294967295"), ("u64", "9223372036854775794"), ("f64", "nan"),
           ("u32", "5000000"))
    acts = [Act(1.0, edit(1, util_raw=250)), Act(2.5, edit(1, util_raw=-1))]
    for k, raw in enumerate(bad):
        acts += [Act(3.0 + 2 * k, edit(1, power_raw=raw)), Act(3.2 + 2 * k, edit(1, power_raw=None))]
    return tuple(acts)


def sensor(refresh_s: float) -> Board:
    return replace(NOISY, instant=(0.025, refresh_s, 0.0))


def without(*calls: str) -> tuple[str, ...]:
    return tuple(c for c in ALL_CALLS if c not in calls)


F0 = antiphase(2)
LADDER = Machine("ladder", (
    NOISY,
    replace(NOISY, supports=without("instant", "energy", "gpm")),
    replace(NOISY, supports=(*without("instant", "energy", "gpm"), "module"), module_limit=1000.0, module_extra=120.0),
), Node(3, 3, 1))  # fmt: skip
REFRESHES = Machine("refreshes", (sensor(0.1), sensor(0.5)), Node(2, 2, 1))

CASES = (
    Case("hung call, hung read, hung client", F0, 24.0, (
        Act(1.0, silent_client), Act(5.0, edit(1, hang=60.0, fault_calls=("nvmlDeviceGetFieldValues",))), Act(10.0, fifo)),
         config=SHORT_WINDOWS),
    Case("crash in the library", F0, 20.0, (Act(5.0, edit(1, crash=1)),)),
    Case("lost at the start", F0, 8.0, prepare=lost_at_the_start),
    Case("lost later", F0, 14.0, (Act(5.0, edit(1, error=GPU_IS_LOST)),)),
    Case("driver reload", F0, 26.0, (
        Act(5.0, library(error=UNINITIALIZED, init_error=DRIVER_NOT_LOADED)), Act(15.0, library(error=0, init_error=0)))),
    Case("unknown errors", F0, 22.0, (
        Act(5.0, library(error=UNKNOWN, init_error=UNKNOWN)), Act(11.0, library(error=0, init_error=0)))),
    Case("nothing to read", bare(), 5.0),
    Case("devices not mounted", F0, 5.0, prepare=no_devices),
    Case("sentinels", Machine("sentinels", (NOISY, NOISY), Node(2, 2, 1)), 26.0, sentinels(), config=SHORT_WINDOWS),
    Case("ladder of power", LADDER, 26.0, config=SHORT_WINDOWS),
    Case("refresh at 10 Hz", REFRESHES, 26.0, config=SHORT_WINDOWS),
    Case("refresh at 50 Hz", REFRESHES, 26.0, config={**SHORT_WINDOWS, "sampling": {"gpu_hertz": 50}}),
    Case("bad counter files", F0, 8.0, prepare=bad_files),
    Case("no transmit counter", Machine("no NVLink", (replace(NOISY, supports=without("nvlink")),) * 2, Node(2, 2, 1)), 20.0,
         prepare=bad_transmit, config=SHORT_WINDOWS),
    Case("odd devices", F0, 8.0, prepare=odd_devices),
    Case("units of drivers", Machine("units", (), Node(0, 1, 1), flat_bytes_per_s=FLOW), 14.0, prepare=many_drivers),
    Case("stacked interfaces", Machine("stacked", (), Node(0, 1, 2)), 6.0, prepare=stacked),
)  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Observation]]:
    """The observation of a case by its name; all run in the background from the first question on."""
    folder = tmp_path_factory.mktemp("cases")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs: dict[str, Future[Observation]] = {}
        for number, case in enumerate(sorted(CASES, key=lambda case: -case.seconds)):
            runs[case.name] = pool.submit(observe, case, folder / str(number))
        yield lambda name: runs[name].result()
    for client in CLIENTS:
        client.close()


def test_a_hung_call_a_hung_read_and_a_hung_client_cost_one_gpu_and_one_port(seen: Callable[[str], Observation]) -> None:
    run = seen("hung call, hung read, hung client")
    run.check({"nvml/GPU-0": BACK_WITHIN_S, "rdma/mlx5_0": 0.0})
    assert run.first(5.0, has_no_power("1")) < GONE_WITHIN_S
    assert reason_of("gpu")(run.end) == "hang"
    assert run.end.value("overlap_gpu_up", gpu="1") == 0.0
    assert run.end.value("overlap_gpu_up", gpu="0") == 1.0
    assert run.end.value("overlap_device_quarantined", kind="gpu", reason="hang") == 1.0
    assert state_of(run.end, "1") in ("unobservable", "no_data")
    gone = run.first(10.0, lambda s: s.value("overlap_rdma_receive_bytes_total", device="mlx5_1") is None)
    assert gone < GONE_WITHIN_S
    assert run.end.value("overlap_device_quarantined", kind="rdma_port", reason="hang") == 1.0
    assert run.end.value("overlap_rdma_receive_bytes_total", device="mlx5_0") is not None
    # One call in flight per device; what cannot be tried meanwhile is counted.
    assert run.nvml_events.count("hang 1 nvmlDeviceGetFieldValues") == 1
    missed = [run.at(t).value("overlap_source_missed_ticks_total", source="rdma") or 0.0 for t in (14.0, 18.0)]
    assert missed[1] - missed[0] > 50
    assert run.ended_with == 0
    assert run.ended_after_s < 5.0


def test_a_crash_in_the_library_restarts_at_once_and_the_third_leaves_the_gpu_out(seen: Callable[[str], Observation]) -> None:
    run = seen("crash in the library")
    run.check({"nvml/GPU-0": 3 * BACK_WITHIN_S, **RDMA})
    assert run.first(5.0, has_no_power("1")) < GONE_WITHIN_S
    assert run.first(5.0, lambda s: reason_of("gpu")(s) == "crash") < 3 * BACK_WITHIN_S
    assert len([e for e in run.nvml_events if e.startswith("crash 1")]) == 3
    assert run.end.value("overlap_source_restarts_total", source="nvml") == 3.0
    assert run.end.value("overlap_source_restarts_total", source="rdma") == 0.0
    assert run.end.value("overlap_gpu_up", gpu="1") == 0.0
    assert has_power("0")(run.end)


@pytest.mark.parametrize("name", ["lost at the start", "lost later"])
def test_a_lost_gpu_is_down_with_its_reason_and_the_other_is_complete(name: str, seen: Callable[[str], Observation]) -> None:
    run = seen(name)
    run.check({"nvml/GPU-0": 0.0, **RDMA})
    if name == "lost later":
        assert run.first(5.0, has_no_power("1")) < GONE_WITHIN_S
        assert sum(run.end.values("overlap_source_errors_total", reason="gpu_lost")) >= 1.0
    assert run.end.value("overlap_gpu_up", gpu="1") == 0.0
    assert run.end.values("overlap_gpu_power_watts", gpu="1") == []
    assert run.end.value("overlap_device_quarantined", kind="gpu", reason="gpu_lost") == 1.0
    assert run.end.value("overlap_source_restarts_total", source="nvml") == 0.0
    assert run.end.value("overlap_gpus", origin="nvml") == 2.0


def test_the_alert_on_a_missing_gpu_fires_on_what_was_scraped(seen: Callable[[str], Observation], tmp_path: Path) -> None:
    lines = [line for line in seen("lost later").end.body.splitlines() if line.startswith("overlap_gpu_up{")]
    series = {
        line.rsplit(" ", 1)[0].replace("{", '{instance="node-1",'): f"{float(line.rsplit(' ', 1)[1]):g}x10" for line in lines
    }
    expected = {"expr": "count by (instance) (overlap_gpu_up == 0)", "eval_time": "5m",
                "exp_samples": [{"labels": '{instance="node-1"}', "value": 1}]}  # fmt: skip
    assert run_promtool(tmp_path, series, samples=[expected]) == ""


def test_a_driver_that_goes_and_comes_back_is_read_again_without_a_new_process(seen: Callable[[str], Observation]) -> None:
    run = seen("driver reload")
    run.check(RDMA)
    for gpu in ("0", "1"):
        assert run.first(5.0, has_no_power(gpu)) < GONE_WITHIN_S
        assert run.first(15.0, has_power(gpu)) < 8.0 + GONE_WITHIN_S  # 1, 2, 4, 8 s between attempts
    down = run.at(9.0)
    assert down.value("overlap_source_up", source="nvml") == 0.0
    assert "driver_not_loaded" in [s["reason"] for s in down.snapshot["sources"]]
    assert run.end.value("overlap_source_up", source="nvml") == 1.0
    assert run.end.value("overlap_source_restarts_total", source="nvml") == 0.0
    assert 2 <= run.nvml_events.count(f"init {DRIVER_NOT_LOADED}") <= 5
    assert not [e for e in run.nvml_events if e.startswith("stale")]
    limits = [s.value("overlap_gpu_power_watts", gpu="0") for s in run.scrapes]
    assert all(0.0 < watts < 1050.0 for watts in limits if watts is not None)


def test_unknown_errors_of_all_calls_are_taken_for_the_library_and_pass(seen: Callable[[str], Observation]) -> None:
    run = seen("unknown errors")
    run.check(RDMA)
    assert run.first(5.0, has_no_power("0")) < GONE_WITHIN_S
    assert run.at(9.0).value("overlap_source_up", source="nvml") == 0.0
    assert "unknown_error" in [s["reason"] for s in run.at(9.0).snapshot["sources"]]
    assert run.first(11.0, has_power("0")) < 4.0 + GONE_WITHIN_S
    assert run.end.value("overlap_source_up", source="nvml") == 1.0
    assert run.end.snapshot["quarantined"] == []


def test_a_node_with_nothing_to_read_is_served_and_each_reason_is_its_own(seen: Callable[[str], Observation]) -> None:
    nothing, hidden = seen("nothing to read"), seen("devices not mounted")
    for run in (nothing, hidden):
        run.check()
    reasons = {s["source"]: s["reason"] for s in nothing.end.snapshot["sources"]}
    assert (reasons["nvml"], reasons["rdma"]) == ("library_not_found", "no_rdma_devices")
    reasons = {s["source"]: s["reason"] for s in hidden.end.snapshot["sources"]}
    assert reasons["rdma"] == "counters_not_visible"
    assert "/sys/devices" in hidden.log or "sys/devices" in hidden.log
    assert hidden.log.count("mount the whole") == 1


def test_readings_that_cannot_be_are_dropped_counted_and_bend_no_verdict(seen: Callable[[str], Observation]) -> None:
    run = seen("sentinels")
    run.check({"nvml/GPU-0": 0.0, "nvml/GPU-1": 0.0, **RDMA})
    for scrape in run.scrapes:
        assert all(0.0 < w <= 1050.0 for w in scrape.values("overlap_gpu_power_watts"))
        assert all(0.0 <= u <= 1.0 for u in scrape.values("overlap_gpu_utilization_ratio"))
    assert (run.end.value("overlap_source_errors_total", source="nvml", reason="implausible_power") or 0.0) >= 5.0
    assert (run.end.value("overlap_source_errors_total", source="nvml", reason="implausible_utilization") or 0.0) >= 5.0
    clean, dirty = (run.at(17.0).value("overlap_exposed_ratio", gpu=g, window="15s") for g in ("0", "1"))
    assert clean is not None
    assert dirty == pytest.approx(clean, abs=0.05)
    assert run.end.values("overlap_device_quarantined") == []


def test_the_momentary_reading_is_chosen_and_a_mean_never_passes_for_overlap(seen: Callable[[str], Observation]) -> None:
    run = seen("ladder of power")
    run.check({f"nvml/GPU-{k}": 0.0 for k in range(3)})
    sources = [g["power_source"] for g in run.end.snapshot["gpus"]]
    assert sources == ["instant", "average", "module"]
    assert state_of(run.end, "0") in ("serialized", "partial")
    assert state_of(run.end, "2") in ("serialized", "partial")  # only the shape counts
    for scrape in run.scrapes:
        assert state_of(scrape, "1") in ("unobservable", "no_data")
        assert scrape.values("overlap_health_ratio", gpu="1") == []


@pytest.mark.parametrize("name", ["refresh at 10 Hz", "refresh at 50 Hz"])
def test_a_sensor_is_measured_and_one_that_is_too_slow_gives_no_verdict(name: str, seen: Callable[[str], Observation]) -> None:
    run = seen(name)
    run.check()
    quick, slow = (
        run.end.values("overlap_sensor_refresh_seconds", kind="gpu", quantity="power", id=g["uuid"])
        for g in run.end.snapshot["gpus"]
    )
    assert quick == [pytest.approx(0.1, rel=0.2)]
    assert slow == [pytest.approx(0.5, rel=0.2)]
    assert state_of(run.end, "0") in ("serialized", "partial")
    assert state_of(run.end, "1") in ("unobservable", "no_data")


def test_bad_counter_files_cost_their_own_counters_alone(seen: Callable[[str], Observation]) -> None:
    run = seen("bad counter files")
    run.check({"nvml/GPU-0": 0.0, **RDMA})
    events = {dict(labels)["counter"] for (n, labels) in run.end.samples if n == "overlap_rdma_events_total"
              and ("device", "mlx5_0") in labels}  # fmt: skip
    others = {dict(labels)["counter"] for (n, labels) in run.end.samples if n == "overlap_rdma_events_total"
              and ("device", "mlx5_1") in labels}  # fmt: skip
    # The other names are sums: what one of their files never gave is left out of them.
    assert others - events == {"link_down", "drops", "out_of_order_rx"}
    for device in ("mlx5_0", "mlx5_1"):
        assert (run.end.value("overlap_rdma_transmit_bytes_total", device=device) or 0.0) > 0.0
    counted = sum(run.end.values("overlap_source_errors_total", source="rdma"))
    assert 4 <= counted <= 8  # one per file and cause, not one per read
    assert counted == sum(run.at(5.0).values("overlap_source_errors_total", source="rdma"))


def test_an_unreadable_byte_counter_is_absent_and_its_gpu_is_not_judged(seen: Callable[[str], Observation]) -> None:
    run = seen("no transmit counter")
    run.check({"nvml/GPU-0": 0.0})
    for scrape in run.scrapes:
        assert scrape.values("overlap_rdma_transmit_bytes_total", device="mlx5_0") == []
    assert (run.end.value("overlap_rdma_receive_bytes_total", device="mlx5_0") or 0.0) > 0.0
    assert state_of(run.end, "0") == "unobservable"
    told = next(a["reason"] for a in run.end.snapshot["gpus"][0]["analyses"] if a["window_s"] == 15.0)
    assert "mlx5_0" in (told or "")
    assert state_of(run.end, "1") in ("serialized", "partial")


def test_unusual_devices_cost_the_usual_ones_nothing(seen: Callable[[str], Observation]) -> None:
    run = seen("odd devices")
    run.check({"nvml/GPU-0": 0.0, "nvml/GPU-1": 0.0, **RDMA})
    plain = seen("bad counter files").end
    for name in ("overlap_rdma_transmit_bytes_total", "overlap_rdma_receive_bytes_total", "overlap_rdma_port_up"):
        labels = {labels for (n, labels) in run.end.samples if n == name and ("device", "mlx5_1") in labels}
        assert labels == {labels for (n, labels) in plain.samples if n == name and ("device", "mlx5_1") in labels} != set()
    listed = {dict(labels)["device"] for (n, labels) in run.end.samples if n == "overlap_rdma_port_info"}
    assert {"mlx5_0", "mlx5_1", "irdma0", "mana_0", "hfi1_0"} <= listed
    assert "letters_0" not in listed
    assert run.end.value("overlap_source_up", source="rdma") == 1.0
    assert run.end.values("overlap_rdma_transmit_bytes_total", device="irdma0") == []


def test_every_driver_shows_the_true_flow_in_bytes(seen: Callable[[str], Observation]) -> None:
    run = seen("units of drivers")
    run.check()
    first, last = run.at(2.0), run.end
    for device in (*UNITS, "mlx5_0"):
        for way in ("transmit", "receive"):
            name = f"overlap_rdma_{way}_bytes_total"
            before, after = first.value(name, device=device), last.value(name, device=device)
            assert before is not None, device
            assert after is not None
            # The snapshot is a second old at most, and EFA is asked four times a second.
            seconds = last.snapshot["t_s"] - first.snapshot["t_s"]
            assert (after - before) / seconds == pytest.approx(FLOW, rel=0.06), (device, way)
    sources = {
        dict(labels)["device"]: dict(labels)["byte_source"] for (n, labels) in last.samples if n == "overlap_rdma_port_info"
    }
    assert sources == {
        "mlx5_0": "counters/port_xmit_data", "rdmap0s6": "hw_counters/tx_bytes", "bnxt_re0": "hw_counters/tx_bytes",
        "ionic_0": "hw_counters/tx_rdma_ucast_bytes",
    }  # fmt: skip


def test_stacked_interfaces_are_counted_once(seen: Callable[[str], Observation]) -> None:
    run = seen("stacked interfaces")
    run.check()
    counted = {dict(labels)["device"] for (n, labels) in run.end.samples if n == "overlap_nic_transmit_bytes_total"}
    assert counted == {"eth0", "eth1", "ib0"}
    kinds = {dict(labels)["device"]: dict(labels)["kind"] for (n, labels) in run.end.samples if n == "overlap_nic_info"}
    assert kinds["bond0"] == "bond"
    assert not {"veth0", "eth0.100", "docker0", "lo"} & set(kinds)


