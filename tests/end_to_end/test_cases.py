"""Faults from the field, each as one run of the real daemon on a fake machine; they run side by side, a few at a time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.model import Record
from exporter.trace import read_trace
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


def counters_at_0(running: Running, _: Daemon) -> None:
    """Energy and NVLink of all GPUs begin anew."""
    assert running.nvml is not None
    for k in range(len(running.nvml.boards)):
        running.nvml.edit(k, counted_from=time.monotonic())


def back_with_counters_at_0(running: Running, ran: Daemon) -> None:
    """The driver is loaded again."""
    counters_at_0(running, ran)
    library(error=0, init_error=0)(running, ran)


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
    (running.tree.root / f"{base}/hw_counters/local_ack_timeout_err").chmod(0)  # EACCES: see Case.rights


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
    """eth0 and eth1 in a bond, a VLAN on one of them, a veth: each packet counts on all layers. A port bound to the bond."""
    tree, plan = running.tree, []
    each = STACKED.nic_traffic(0)
    both = replace(each, rate_bytes_per_s=2 * each.rate_bytes_per_s)
    for name, files, wave in (
        ("bond0", ("bonding/slaves",), both), ("eth0.100", ("lower_eth0/ifindex",), each), ("veth0", (), both),
        ("docker0", ("bridge/bridge_id",), both),
    ):  # fmt: skip
        place = f"sys/devices/virtual/net/{name}"
        for file in files:
            tree.write(f"{place}/{file}", "1")
        plan += [Moving(str(tree.write(f"{place}/statistics/{way}_bytes", "0")), wave) for way in ("tx", "rx")]
        tree.write(f"{place}/type", "1")
        tree.link(f"sys/class/net/{name}", f"../../devices/virtual/net/{name}")
    for k in range(2):
        tree.link(f"sys/{running.node.nic(k).path}/net/eth{k}/master", "/sys/devices/virtual/net/bond0")
    device = f"sys/{running.node.nic(0).path}/infiniband/mlx5_bond_0"
    tree.link("sys/class/infiniband/mlx5_bond_0", f"../../{device.removeprefix('sys/')}")
    tree.link(f"{device}/device", f"/sys/{running.node.nic(0).path}")
    for file, text in (("link_layer", "Ethernet"), ("state", "4: ACTIVE"), ("rate", "25 Gb/sec (1X EDR)"),
                       ("gid_attrs/ndevs/0", "bond0"), ("hw_counters/np_cnp_sent", "0"), ("hw_counters/out_of_buffer", "0"),
                       ("counters/port_xmit_data", "0"), ("counters/port_rcv_data", "0")):  # fmt: skip
        tree.write(f"{device}/ports/1/{file}", text)
    stack.enter_context(moving(plan, folder / "stacked.json"))


BAD_POWER: tuple[tuple[str, str], ...] = (
    ("u32", "0"), ("i64", "-1"), ("u32", "4294967295"), ("u64", "9223372036854775794"), ("f64", "nan"), ("u32", "5000000"),
)  # fmt: skip
SENTINELS_S = 66.0


def sentinels() -> tuple[Act, ...]:
    """What GPU-1 says instead of its power, in turn, a fifth of a second each, and what it says of its utilisation.

    The library answers in typed numbers: "no value" is the code of an entry, here "no data", and a text cannot be said.
    """
    bad: list[dict[str, Any]] = [{"power_raw": raw} for raw in BAD_POWER] + [{"entry_error": 6}]
    acts = [Act(1.0, edit(1, util_raw=250)), Act(2.5, edit(1, util_raw=-1))]
    for k in range(int((SENTINELS_S - 6.0) / 2.0)):
        acts += [Act(3.0 + 2.0 * k, edit(1, **bad[k % len(bad)])), Act(3.2 + 2.0 * k, edit(1, power_raw=None, entry_error=0))]
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

# A job over TCP on two interfaces, 1 GB/s on each in the communication part of its steps.
STACKED = Machine("stacked", (replace(NOISY, supports=without("nvlink")),), Node(1, 0, 2), nic_bytes_per_s=1e9, nics_work=True)
# GPU-1 tells its power by the energy counter alone.
RELOADED = Machine("reloaded", (NOISY, replace(NOISY, supports=without("instant", "average", "usage", "gpm"))), Node(2, 2, 1))

CASES = (
    Case("hung call, hung read, hung client", F0, 24.0, (
        Act(1.0, silent_client), Act(5.0, edit(1, hang=60.0, fault_calls=("nvmlDeviceGetFieldValues",))), Act(10.0, fifo)),
         config=SHORT_WINDOWS),
    Case("crash in the library", F0, 20.0, (Act(5.0, edit(1, crash=1)),)),
    Case("lost at the start", F0, 8.0, prepare=lost_at_the_start),
    Case("lost later", F0, 14.0, (Act(5.0, edit(1, error=GPU_IS_LOST)),)),
    Case("driver reload", RELOADED, 46.0, (
        Act(5.0, library(error=UNINITIALIZED, init_error=DRIVER_NOT_LOADED)), Act(25.0, back_with_counters_at_0),
        Act(41.0, counters_at_0)), config=SHORT_WINDOWS),
    Case("unknown errors", F0, 22.0, (
        Act(5.0, library(error=UNKNOWN, init_error=UNKNOWN)), Act(11.0, library(error=0, init_error=0)))),
    Case("nothing to read", bare(), 5.0),
    Case("no library", Machine("no library", (), Node(0, 2, 1)), 8.0),
    Case("no RDMA", Machine("no RDMA", F0.boards, Node(2, 0, 1)), 8.0),
    Case("devices not mounted", F0, 5.0, prepare=no_devices),
    Case("sentinels", Machine("sentinels", (NOISY, NOISY), Node(2, 2, 1)), SENTINELS_S, sentinels()),
    Case("ladder of power", LADDER, 26.0, config=SHORT_WINDOWS),
    Case("refresh at 10 Hz", REFRESHES, 26.0, config=SHORT_WINDOWS),
    Case("refresh at 50 Hz", REFRESHES, 26.0, config={**SHORT_WINDOWS, "sampling": {"gpu_hertz": 50}}),
    Case("bad counter files", F0, 8.0, prepare=bad_files, rights=False),
    Case("no transmit counter", Machine("no NVLink", (replace(NOISY, supports=without("nvlink")),) * 2, Node(2, 2, 1)), 20.0,
         prepare=bad_transmit, config=SHORT_WINDOWS),
    Case("odd devices", F0, 8.0, prepare=odd_devices),
    Case("units of drivers", Machine("units", (), Node(0, 1, 1), flat_bytes_per_s=FLOW), 14.0, prepare=many_drivers,
         last=lambda running, ran: ran.get("/api/v1/trace?seconds=30")),
    Case("stacked interfaces", STACKED, 50.0, prepare=stacked, config=SHORT_WINDOWS),
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
    assert sum(run.end.values("overlap_source_errors_total", reason="gpu_lost")) == 1.0
    assert run.end.value("overlap_source_up", source="nvml") == 0.0
    lost_s = next(q["since_s"] for q in run.end.snapshot["quarantined"] if q["kind"] == "gpu")
    assert lost_s > 0.0
    if name == "lost later":
        assert run.first(5.0, has_no_power("1")) < GONE_WITHIN_S
        assert run.at(4.0).snapshot["t_s"] < lost_s < run.at(8.0).snapshot["t_s"]
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
        assert run.first(25.0, has_power(gpu)) < 16.0  # attempts after 1, 2, 4, 8, 16 s: the step that had begun
    down = run.at(9.0)
    assert down.value("overlap_source_up", source="nvml") == 0.0
    assert "driver_not_loaded" in [s["reason"] for s in down.snapshot["sources"]]
    assert run.end.value("overlap_source_up", source="nvml") == 1.0
    assert run.end.value("overlap_source_restarts_total", source="nvml") == 0.0
    assert 2 <= run.nvml_events.count(f"init {DRIVER_NOT_LOADED}") <= 5
    assert not [e for e in run.nvml_events if e.startswith("stale")]


def test_counters_that_begin_anew_make_no_spike(seen: Callable[[str], Observation]) -> None:
    run = seen("driver reload")
    before, end = run.at(4.0), run.end
    assert [gpu["power_source"] for gpu in end.snapshot["gpus"]] == ["instant", "energy"]
    for gpu in ("0", "1"):
        joules = [s.value("overlap_gpu_energy_joules_total", gpu=gpu) for s in (before, run.at(40.0), end)]
        assert None not in joules
        assert (joules[0] or 0.0) > 1e6 > (joules[1] or 0.0) > (joules[2] or 0.0)  # anew with the driver, and once more
        watts = [w for s in run.scrapes for w in s.values("overlap_gpu_power_watts", gpu=gpu)]
        highest = [w for s in run.scrapes for w in s.values("overlap_gpu_power_high_watts", gpu=gpu)]
        flow = [b for s in run.scrapes for b in s.values("overlap_traffic_high_bytes_per_second", gpu=gpu)]
        room = 1.1 if gpu == "0" else 1.5  # watts from energy scatter with the times of the reads
        assert max(watts) < room * WAVE.compute_watts
        assert max(highest) < room * WAVE.compute_watts
        assert 0.0 < max(flow) < 1.3 * (100e9 + 22.5e9)  # NVLink and the port, both in communication alone
    assert end.value("overlap_source_errors_total", source="nvml", reason="implausible_power") == 0.0  # nor was one dropped


def test_unknown_errors_of_all_calls_are_taken_for_the_library_and_pass(seen: Callable[[str], Observation]) -> None:
    run = seen("unknown errors")
    run.check(RDMA)
    assert run.first(5.0, has_no_power("0")) < GONE_WITHIN_S
    assert run.at(9.0).value("overlap_source_up", source="nvml") == 0.0
    assert "unknown_error" in [s["reason"] for s in run.at(9.0).snapshot["sources"]]
    assert run.first(11.0, has_power("0")) < 4.0 + GONE_WITHIN_S
    assert run.end.value("overlap_source_up", source="nvml") == 1.0
    assert run.end.snapshot["quarantined"] == []


def reasons(scrape: Scrape) -> dict[str, str]:
    return {s["source"]: s["reason"] for s in scrape.snapshot["sources"] if not s["up"]}


@pytest.mark.parametrize(("name", "told"), [
    ("nothing to read", {"nvml": "library_not_found", "rdma": "no_rdma_devices"}),
    ("no library", {"nvml": "library_not_found"}),
    ("no RDMA", {"rdma": "no_rdma_devices"}),
    ("devices not mounted", {"rdma": "counters_not_visible", "nic": "no_interfaces"}),
])  # fmt: skip
def test_what_is_not_there_is_told_apart_in_one_line_each_and_the_rest_is_served(
    name: str, told: dict[str, str], seen: Callable[[str], Observation]
) -> None:
    """That only --require makes it an error is held by tests/end_to_end/test_life_and_death.py."""
    run = seen(name)
    run.check({"nvml/GPU-0": 0.0} if name == "no RDMA" else RDMA if name == "no library" else {})
    assert reasons(run.end) == told
    for source, reason in told.items():
        assert run.log.count(f"{source} is not available: {reason}") == 1
    if name == "devices not mounted":
        assert run.log.count("mount the whole") == 1
        assert "/sys/devices of the host is missing" in run.log
    assert run.ended_with == 0


def test_readings_that_cannot_be_are_dropped_counted_and_bend_no_verdict(seen: Callable[[str], Observation]) -> None:
    run = seen("sentinels")
    run.check({"nvml/GPU-0": 0.0, "nvml/GPU-1": 0.0, **RDMA})
    for scrape in run.scrapes:
        assert all(0.0 < w <= 1050.0 for w in scrape.values("overlap_gpu_power_watts"))
        assert all(0.0 <= u <= 1.0 for u in scrape.values("overlap_gpu_utilization_ratio"))
    assert (run.end.value("overlap_source_errors_total", source="nvml", reason="implausible_power") or 0.0) >= 5.0
    assert (run.end.value("overlap_source_errors_total", source="nvml", reason="implausible_utilization") or 0.0) >= 5.0
    for score in ("overlap_exposed_ratio", "overlap_health_ratio"):  # both GPUs do the same job
        clean, dirty = (run.end.value(score, gpu=g, window="60s") for g in ("0", "1"))
        assert clean is not None
        assert dirty == pytest.approx(clean, abs=0.02), score
    assert {d["uuid"] for d in run.end.snapshot["gpus"]} == {dict(labels)["uuid"] for (n, labels) in run.end.samples
                                                             if n == "overlap_gpu_info"}  # fmt: skip
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
    assert others - events == {"link_down", "drops", "out_of_order_rx", "ack_timeout"}
    for device in ("mlx5_0", "mlx5_1"):
        assert (run.end.value("overlap_rdma_transmit_bytes_total", device=device) or 0.0) > 0.0
    for scrape in (run.at(6.0), run.end):  # one per file and cause, not one per read
        counted = {dict(labels)["reason"]: value for (n, labels), value in scrape.samples.items()
                   if n == "overlap_source_errors_total" and ("source", "rdma") in labels and value}  # fmt: skip
        assert counted == {"not_available": 2, "not_a_number": 1, "io_error": 1, "permission_denied": 1, "missing": 2}


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
    odd, plain = (
        {key for key in scrape.samples if dict(key[1]).get("device", "").startswith("mlx5_")}
        for scrape in (run.end, seen("unknown errors").at(4.5))
    )
    assert odd == plain != set()
    listed = {dict(labels)["device"] for (n, labels) in run.end.samples if n == "overlap_rdma_port_info"}
    assert {"mlx5_0", "mlx5_1", "irdma0", "mana_0", "hfi1_0"} <= listed
    assert "letters_0" not in listed
    assert run.end.value("overlap_source_up", source="rdma") == 1.0
    assert run.end.values("overlap_rdma_transmit_bytes_total", device="irdma0") == []


def test_every_driver_shows_the_true_flow_in_bytes(seen: Callable[[str], Observation], tmp_path: Path) -> None:
    """1 %: a scrape does not say when its numbers were read, so the times are those of the flight recorder, which does."""
    run = seen("units of drivers")
    run.check()
    last = run.end
    status, trace = run.last
    assert status == 200
    (tmp_path / "trace.jsonl.gz").write_bytes(trace)
    reader = read_trace(tmp_path / "trace.jsonl.gz")
    columns = {c: (s.name, k) for s in reader.inventory.sources for k, c in enumerate(s.channels)}
    records = [event for event in reader if isinstance(event, Record)]
    for device in (*UNITS, "mlx5_0"):
        for way in ("transmit", "receive"):
            source, k = columns[f"{device}/1/{way}_bytes_total"]
            t_s, count = zip(*((r.t_s, r.values[k]) for r in records if r.source == source), strict=True)
            assert t_s[-1] - t_s[0] > 10.0
            assert np.polyfit(t_s, count, 1)[0] == pytest.approx(FLOW, rel=0.01), (device, way)
            assert last.value(f"overlap_rdma_{way}_bytes_total", device=device) in count, (device, way)
    sources = {
        dict(labels)["device"]: dict(labels)["byte_source"] for (n, labels) in last.samples if n == "overlap_rdma_port_info"
    }
    assert sources == {
        "mlx5_0": "counters/port_xmit_data", "rdmap0s6": "hw_counters/tx_bytes", "bnxt_re0": "hw_counters/tx_bytes",
        "ionic_0": "hw_counters/tx_rdma_ucast_bytes",
    }  # fmt: skip


def test_stacked_interfaces_are_counted_once(seen: Callable[[str], Observation]) -> None:
    run = seen("stacked interfaces")
    run.check({"nic/eth0": 0.0, "nic/eth1": 0.0, "rdma/mlx5_bond_0": 0.0})
    counted = {dict(labels)["device"] for (n, labels) in run.end.samples if n == "overlap_nic_transmit_bytes_total"}
    assert counted == {"eth0", "eth1"}
    kinds = {dict(labels)["device"]: dict(labels)["kind"] for (n, labels) in run.end.samples if n == "overlap_nic_info"}
    assert kinds == {"eth0": "physical", "eth1": "physical", "bond0": "bond"}
    assert run.end.value("overlap_rdma_port_info", device="mlx5_bond_0", netdev="bond0") == 1.0
    assert run.end.value("overlap_rdma_transmit_bytes_total", device="mlx5_bond_0") == 0.0
    # What the verdict stands on: the interfaces that carry the job, each once.
    assert run.end.value("overlap_transport_state", transport="tcp") == 1.0
    links = {dict(labels)["device"] for (n, labels) in run.end.samples
             if n == "overlap_gpu_link_info" and ("path", "tcp") in labels}  # fmt: skip
    assert links == {"eth0", "eth1"}
    assert run.end.value("overlap_traffic_high_bytes_per_second", gpu="0") == pytest.approx(2e9, rel=0.2)
