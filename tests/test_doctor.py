"""doctor: what it says of whole machines, by the real command, and of surroundings that are written down here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from exporter import doctor_look
from exporter.config import Config
from exporter.doctor import answer, judge
from exporter.doctor_checks import CHECKS
from exporter.doctor_look import Cost, Seen, Sensor, Surroundings, look_around
from exporter.doctor_verdict import Facts
from exporter.model import Device, Inventory, Link, Quarantine, Source, SourceHealth, TransportVerdict
from tests.end_to_end.processes import EXPORTER
from tests.machines import Machine
from tests.nvml_library import Board, Wave
from tests.sysfs_tree import Node

SECONDS = 5.0
PASSWORD_HASH = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
NODE = Machine(
    "node",
    tuple(Board(noise=3.0, wave=Wave(compute_s=0.61, communication_s=0.4, phase_s=0.1 * k)) for k in range(2)),
    Node(2, 2, 1),
)


@dataclass
class Told:
    """What the command said, and how it ended."""

    status: int
    out: str
    err: str
    took_s: float

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    def rows(self, check: str) -> list[tuple[str, str]]:
        return [(row["status"], row["saw"]) for row in self.json["checks"] if row["check"] == check]


def run(arguments: list[str], environment: Mapping[str, str] | None = None) -> Told:
    began = time.monotonic()
    done = subprocess.run(
        [*EXPORTER, "doctor", "--seconds", str(SECONDS), "--web.listen-address", "127.0.0.1:0", *arguments],
        capture_output=True, text=True, timeout=60, env={**os.environ, "OVERLAP_TEST_SECRET": "hunter2", **(environment or {})},
    )
    return Told(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Told]]]:
    """The command on several machines at once: healthy (as JSON and as tables), bare, one GPU that hangs, bad settings."""
    folder = tmp_path_factory.mktemp("doctor")
    web = folder / "web.yml"
    web.write_text(f"basic_auth_users:\n  prometheus: {PASSWORD_HASH}\n")
    bad_web = folder / "bad_web.yml"
    bad_web.write_text(f"basic_auth_users: {PASSWORD_HASH}\n")
    bad = folder / "bad.yml"
    bad.write_text("sampling: {gpu_hertz: 9000}\n")
    with ExitStack() as stack, ThreadPoolExecutor(5) as pool, socket.create_server(("127.0.0.1", 0)) as taken:
        healthy = stack.enter_context(NODE.running(folder / "healthy"))
        hanging = stack.enter_context(NODE.running(folder / "hanging"))
        bare = stack.enter_context(Machine("bare", (), Node(0, 0, 1)).running(folder / "bare"))
        assert hanging.nvml is not None
        hanging.nvml.edit(1, hang=120.0)
        runs = {
            "healthy": pool.submit(run, ["--json", "--web.config.file", str(web), *healthy.arguments], healthy.environment),
            "tables": pool.submit(run, healthy.arguments, healthy.environment),
            "bare": pool.submit(run, ["--json", "--require", "gpu,rdma", *bare.arguments]),
            "hanging": pool.submit(run, ["--json", *hanging.arguments], hanging.environment),
            "bad": pool.submit(run, ["--json", "--config.file", str(bad), "--web.config.file", str(bad_web),
                                     "--web.listen-address", f"127.0.0.1:{taken.getsockname()[1]}", *healthy.arguments],
                               healthy.environment),
        }  # fmt: skip
        yield runs
        hanging.nvml.edit(1, hang=0.0)


@pytest.mark.end_to_end
def test_a_healthy_node_lacks_nothing(told: dict[str, Future[Told]]) -> None:
    node = told["healthy"].result()
    assert node.status == 0, node.out
    assert node.json["ok"]
    assert {row["status"] for row in node.json["checks"]} == {"ok"}, node.out
    assert node.err == ""
    assert [d["power_source"] for d in node.json["devices"] if d["kind"] == "gpu"] == ["instant", "instant"]
    sensors = {(s["id"], s["quantity"]): s["refresh_s"] for s in node.json["sensors"]}
    assert sensors["GPU-0", "power"] == pytest.approx(0.1, rel=0.2)
    assert 0.004 <= (sensors["mlx5_0/1", "bytes"] or 0.0) < 0.02  # written each 5 ms, which reads in pairs show
    pairs = {(p["gpu"], p["device"]): p["reason"] for p in node.json["pairing"] if p["path"] == "rdma"}
    assert pairs == {("GPU-0", "mlx5_0/1"): "PIX", ("GPU-1", "mlx5_1/1"): "PIX"}
    sources = {s["source"]: s for s in node.json["sources"]}
    assert sources["nvml/GPU-0"]["reads"] > 5 * SECONDS
    assert 0 < sources["nvml/GPU-0"]["read_s"]["median_s"] <= sources["nvml/GPU-0"]["read_s"]["longest_s"]
    assert node.json["system"]["packages"]["nvidia-ml-py"]


@pytest.mark.end_to_end
def test_the_tables_say_the_same_in_words(told: dict[str, Future[Told]]) -> None:
    tables = told["tables"].result()
    assert tables.status == 0, tables.out
    assert all(check.name in tables.out for check in CHECKS if check.name != "required")
    assert "nothing that is needed is missing" in tables.out
    assert "\x1b" not in tables.out
    assert "nan" not in tables.out.lower()


@pytest.mark.end_to_end
def test_a_node_without_anything_is_told_what_to_do_and_ends_with_status_1(told: dict[str, Future[Told]]) -> None:
    bare = told["bare"].result()
    assert bare.status == 1
    assert not bare.json["ok"]
    assert bare.rows("nvml")[0][0] == "fail"
    assert "library_not_found" in bare.rows("nvml")[0][1]
    assert bare.rows("rdma") == [("warn", "no RDMA port: no_rdma_devices")]
    assert [status for status, _ in bare.rows("required")] == ["fail", "fail"]
    assert all(row["do"] for row in bare.json["checks"] if row["status"] == "fail")


@pytest.mark.end_to_end
def test_a_gpu_that_hangs_is_named_and_does_not_take_doctor_with_it(told: dict[str, Future[Told]]) -> None:
    hanging = told["hanging"].result()
    assert hanging.status == 1
    assert hanging.took_s < 4 * SECONDS + 10
    # It hung before anything was known of it, its name included.
    assert ("fail", "GPU-1 is left alone: hang") in hanging.rows("gpu")
    assert [status for status, _ in hanging.rows("gpu")] == ["ok", "fail"]
    assert {"kind": "gpu", "id": "GPU-1", "reason": "hang"} in hanging.json["quarantined"]
    assert ("ok", "2 on the PCI bus, 2 in NVML") in hanging.rows("gpu count")


@pytest.mark.end_to_end
def test_bad_settings_are_named_and_the_rest_is_looked_at_all_the_same(told: dict[str, Future[Told]]) -> None:
    bad = told["bad"].result()
    assert bad.status == 1
    assert [status for status, _ in bad.rows("configuration")] == ["fail", "fail"]
    assert "sampling.gpu_hertz" in bad.rows("configuration")[0][1]
    assert bad.rows("address")[0][0] == "warn"
    assert bad.rows("nvml")[0][0] == "ok"


@pytest.mark.end_to_end
def test_no_answer_holds_a_secret(told: dict[str, Future[Told]]) -> None:
    for future in told.values():
        said = future.result().out + future.result().err
        assert PASSWORD_HASH not in said
        assert "hunter2" not in said
        assert socket.gethostname() not in said or len(socket.gethostname()) < 6


# --- judging --------------------------------------------------------------------------------------------------------

AROUND = Surroundings(
    "Linux 6.8 x86_64", "3.11.7", {"nvidia-ml-py": "13.615.71"}, 1000, None, {}, "580.95.05", {"nvidiactl": True},
    {"--path.sysfs": ("/sys", None), "--path.procfs": ("/proc", None)}, None, None,
)  # fmt: skip
GPU = Device("gpu", "GPU-0", index=0, uuid="GPU-a", name="NVIDIA H100", power_source="instant", power_refresh_s=0.1)
PORT = Device("rdma_port", "mlx5_0/1", driver="mlx5_core", info={"byte_source": "counters/port_xmit_data"})
LANE = Source("nvml/GPU-0", ("GPU-0/power_watts",), 0.1)
HEALTH = SourceHealth("nvml/GPU-0", True, None, 100, {}, 0, 0, 0.1, 10.0, (), 0.0)
SEEN = Seen(
    10.0, 0.5, None, Inventory("node", 0.0, (GPU, PORT), (Link("GPU-0", "mlx5_0/1", "rdma", "PIX"),), (LANE,)), (HEALTH,),
    {"nvml/GPU-0": Cost(1e-4, 2e-4, 0.001)}, (), (Sensor("gpu", "GPU-0", "power", 0.1),),
    TransportVerdict("rdma", "rdma_moves"), {"pci_gpus": 1, "nvml_gpus": 1},
)  # fmt: skip


def verdicts(check: str, around: Surroundings = AROUND, seen: Seen = SEEN, **settings: Any) -> list[tuple[str, str, str]]:
    facts = Facts(replace(Config(), **settings), (), around, seen)
    return [(v.status, v.saw, v.do) for name, v in judge(facts) if name == check]


def statuses(check: str, around: Surroundings = AROUND, seen: Seen = SEEN, **settings: Any) -> list[str]:
    return [status for status, _, _ in verdicts(check, around, seen, **settings)]


def with_devices(*devices: Device, **changes: Any) -> Seen:
    return replace(SEEN, inventory=replace(SEEN.inventory, devices=devices), **changes)


def down(source: str, reason: str, **told: Any) -> Seen:
    status = replace(HEALTH, source=source, up=False, reason=reason, reads=0)
    return replace(SEEN, inventory=Inventory("node", 0.0), sources=(status,), told={**SEEN.told, **told})


@pytest.mark.parametrize(("counted", "status"), [("all ports", "ok"), ("unchecked", "ok"), ("one port of several", "warn")])
def test_a_port_over_a_bond_says_whose_bytes_it_counts(counted: str, status: str) -> None:
    bonded = replace(PORT, info={**PORT.info, "bond": "bond0", "bond_links": "eth2 eth3", "bond_bytes": counted})
    ((found, saw, do),) = verdicts("rdma", seen=with_devices(GPU, bonded))
    assert found == status
    assert f"eth2 eth3 ({counted})" in saw
    assert bool(do) == (status == "warn")


def test_every_complaint_says_what_to_do() -> None:
    bad = replace(
        AROUND, container="Kubernetes", variables={"NVIDIA_VISIBLE_DEVICES": "void"}, device_files={"nvidia0": False},
        mounts={"--path.sysfs": ("/host/sys", "is not there")}, listening="port 80 is forbidden", web_config="web.yml: tls",
    )  # fmt: skip
    for seen in (SEEN, down("nvml", "driver_not_loaded"), down("rdma", "no_rdma_devices")):
        for _, status, _, do in ((n, *v) for n in (c.name for c in CHECKS) for v in verdicts(n, bad, seen, require=("rdma",))):
            assert status == "ok" or do or status == "warn"
            assert status != "fail" or do


@pytest.mark.parametrize(("variables", "status"), [
    ({}, "ok"), ({"NVIDIA_VISIBLE_DEVICES": "all"}, "ok"), ({"NVIDIA_VISIBLE_DEVICES": "void"}, "fail"),
    ({"NVIDIA_DRIVER_CAPABILITIES": "compute"}, "fail"), ({"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}, "ok"),
    ({"NVIDIA_DRIVER_CAPABILITIES": "all"}, "ok"),
])  # fmt: skip
def test_a_container_that_is_shown_no_gpu_or_no_nvml_is_told_so(variables: dict[str, str], status: str) -> None:
    assert statuses("container", replace(AROUND, container="/.dockerenv", variables=variables)) == [status]
    assert statuses("container", replace(AROUND, variables=variables)) == ["ok"]


def test_device_files_that_may_not_be_opened_are_named_where_nvml_gives_nothing() -> None:
    closed = replace(AROUND, device_files={"nvidiactl": False, "nvidia0": True})
    rows = verdicts("nvml", closed, down("nvml", "no_permission"))
    assert [status for status, _, _ in rows] == ["fail", "warn", "fail"]
    assert "user 1000 may not open nvidiactl" in rows[2][1]
    assert statuses("nvml", closed) == ["ok"]  # NVML could: what access(2) says is beside the point


def test_a_foreign_pynvml_is_named() -> None:
    rows = verdicts("packages", seen=down("nvml", "foreign_pynvml_package", detail="/usr/lib/pynvml/__init__.py"))
    assert rows[0][0] == "fail"
    assert "/usr/lib/pynvml" in rows[0][1]


@pytest.mark.parametrize(("source", "status"), [("instant", "ok"), ("energy", "ok"), ("average", "warn"), ("module", "warn"),
                                                (None, "fail")])  # fmt: skip
def test_where_power_comes_from_decides_how_good_a_gpu_is(source: str | None, status: str) -> None:
    assert statuses("gpu", seen=with_devices(replace(GPU, power_source=source))) == [status]


def test_power_that_is_never_read_and_a_gpu_left_alone_fail() -> None:
    assert statuses("gpu", seen=replace(SEEN, silent=("GPU-0/power_watts",))) == ["fail"]
    lost = replace(SEEN, quarantined=(Quarantine("gpu", "GPU-0", 1.0, "gpu_lost"),))
    assert "XID 79" in verdicts("gpu", seen=lost)[0][2]


def test_ports_without_bytes_are_told_apart_from_ports_that_are_down_and_from_hidden_ones() -> None:
    assert statuses("rdma") == ["ok"]
    assert statuses("rdma", seen=with_devices(GPU, replace(PORT, info={}))) == ["warn"]
    assert statuses("rdma", seen=with_devices(GPU, replace(PORT, info={**PORT.info, "state": "inactive"}))) == ["warn"]
    mute = replace(SEEN, silent=("mlx5_0/1/transmit_bytes_total",))
    assert statuses("rdma", seen=mute) == ["warn"]
    assert statuses("rdma", seen=down("rdma", "counters_not_visible", rdma_hint="mount the host's /sys")) == ["fail"]
    assert statuses("rdma", seen=replace(SEEN, quarantined=(Quarantine("rdma_port", "mlx5_0", 1.0, "hang"),))) == ["fail"]


def test_devices_that_are_no_ports_of_a_job_are_named() -> None:
    left_out = replace(SEEN, told={**SEEN.told, "rdma_left_out": ["mlx5_8", "mlx5_9"]})
    assert statuses("rdma", seen=left_out) == ["ok", "ok"]
    assert "mlx5_8, mlx5_9" in verdicts("rdma", seen=left_out)[1][1]


def test_slow_reads_and_missed_ticks_are_different_complaints() -> None:
    backed_off = replace(SEEN, sources=(replace(HEALTH, interval_s=0.4),), costs={"nvml/GPU-0": Cost(0.02, 0.05, 0.1)})
    starved = replace(SEEN, sources=(replace(HEALTH, missed_ticks=50),))
    assert statuses("cost") == ["ok"]
    assert "read less often" in verdicts("cost", seen=backed_off)[0][2]
    assert "CPU" in verdicts("cost", seen=starved)[0][2]


def test_a_guessed_pair_a_missing_one_and_a_slow_sensor_are_warned_of() -> None:
    guessed = replace(SEEN, inventory=replace(SEEN.inventory, links=(Link("GPU-0", "mlx5_0/1", "rdma", "guess"),)))
    assert statuses("pairing") == ["ok"]
    assert statuses("pairing", seen=guessed) == ["warn"]
    assert statuses("pairing", seen=replace(SEEN, inventory=replace(SEEN.inventory, links=()))) == ["warn"]
    slow = replace(SEEN, sensors=(Sensor("gpu", "GPU-0", "power", 0.5), Sensor("nic", "eth0", "bytes", None)))
    assert statuses("refresh", seen=slow) == ["warn", "ok"]


def test_counts_transport_readers_mounts_and_address_each_have_their_complaint() -> None:
    assert statuses("gpu count", seen=replace(SEEN, told={"pci_gpus": 8, "nvml_gpus": 7})) == ["warn"]
    assert statuses("transport", seen=replace(SEEN, transport=TransportVerdict("tcp", "nic_carries"))) == ["warn"]
    assert statuses("readers", seen=replace(SEEN, first_s=None, missing="reader gpu")) == ["fail"]
    assert statuses("readers", seen=replace(SEEN, first_s=7.0)) == ["warn"]
    assert statuses("mounts", replace(AROUND, mounts={"--path.sysfs": ("/host/sys", "is not there")})) == ["fail"]
    assert statuses("address", replace(AROUND, listening="port 9777 is taken: stop what uses it")) == ["warn"]
    assert statuses("address", replace(AROUND, listening="port 80 may not be opened by this user")) == ["fail"]


def test_the_driver_and_the_device_files_are_read_without_touching_a_device(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12\n"
    )
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / "dev" / name).touch()
    config = replace(Config(), path_procfs=str(tmp_path / "proc"), path_sysfs=str(tmp_path / "none"))
    around = look_around(config, tmp_path / "dev", {"NVIDIA_VISIBLE_DEVICES": "all", "AWS_SECRET_ACCESS_KEY": "hunter2"})
    assert around.driver == "580.95.05"
    assert around.device_files == {"nvidia0": True, "nvidiactl": True}
    assert around.variables == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert around.mounts["--path.sysfs"][1] == "is not there"
    assert "holds no stat" in (around.mounts["--path.procfs"][1] or "")


def test_an_answer_is_json_of_plain_values() -> None:
    facts = Facts(Config(), (), AROUND, SEEN)
    rows = judge(facts)
    told = json.loads(json.dumps(answer(facts, rows, good=True), allow_nan=False))
    assert [c["check"] for c in told["checks"]] == [name for name, _ in rows]
    assert told["sources"][0]["read_s"] == {"median_s": 1e-4, "longest_s": 2e-4, "share": 0.001}


def test_the_packages_looked_at_are_those_that_are_needed() -> None:
    assert "nvidia-ml-py" in doctor_look.needed_packages()
    assert "pytest" not in doctor_look.needed_packages()
