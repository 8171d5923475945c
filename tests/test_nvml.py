"""NVML as the reader sees it, on a compiled fake library: values, the choice of the power reading, nonsense, failures."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.clock import ManualClock, SystemClock
from exporter.model import Device
from exporter.sources import (
    KEEP,
    QUARANTINE,
    REDISCOVER,
    REOPEN,
    RESTART,
    GpuSettings,
    Lane,
    LaneError,
    Opened,
    nvml_binding,
    unannounced,
)
from exporter.sources.nvml import Session
from exporter.sources.nvml_calls import decode_value
from exporter.sources.nvml_pci import count_pci_gpus
from exporter.sources.nvml_power import EnergyMeter
from tests.nvml_library import (
    ALL_CALLS,
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    LIB_RM_VERSION_MISMATCH,
    SOURCE,
    UNINITIALIZED,
    UNKNOWN,
    Board,
    FakeNvml,
    Wave,
)
from tests.sysfs_tree import Waveform

CLOCK = SystemClock()
STEADY = Wave(500.0, 500.0)


class Node:
    """A fake node opened in this process."""

    def __init__(self, machine: FakeNvml) -> None:
        self.machine = machine
        self.session = Session(CLOCK)
        self.opened = Opened()

    def open(self, **settings: object) -> Opened:
        self.close_lanes()
        CLOCK.sleep_until(CLOCK.mono_s() + 0.01)  # the fake looks at its file every 5 ms
        settings = {"nvml_library": str(self.machine.library), **settings}
        self.opened = self.session.open(GpuSettings(**settings), unannounced)  # type: ignore[arg-type]
        return self.opened

    def edit(self, index: int = 0, **changes: object) -> None:
        self.machine.edit(index, **changes)
        CLOCK.sleep_until(CLOCK.mono_s() + 0.01)

    def lane(self, name: str) -> Lane:
        return next(lane for lane in self.opened.lanes if lane.source.name == name)

    def device(self, device_id: str = "GPU-0") -> Device:
        return next(d for d in self.opened.devices if d.id == device_id)

    def read(self, name: str = "nvml/GPU-0") -> dict[str, float]:
        lane = self.lane(name)
        values = lane.read()
        assert values is not None
        prefix = lane.device_id + "/"
        return {c.removeprefix(prefix): v for c, v in zip(lane.source.channels, values, strict=True)}

    def close_lanes(self) -> None:
        for lane in self.opened.lanes:
            lane.close()
        self.opened = Opened()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    quiet = tuple(c for c in ALL_CALLS if c != "xid")  # a thread that waits for events takes its time to end
    machine = FakeNvml(tmp_path / "fake", [Board(supports=quiet), Board(supports=quiet)])
    for key, value in machine.environment.items():
        monkeypatch.setenv(key, value)
    fresh = Node(machine)
    yield fresh
    fresh.close_lanes()
    fresh.session.close()


def test_power_is_what_the_sensor_shows_in_the_phase_of_the_job(node: Node) -> None:
    wave = Wave(640.0, 240.0, 0.25, 0.15)
    node.machine.edit(0, wave=wave, instant=(0.025, 0.1, 0.0))
    node.open()
    seen = set()
    for _ in range(40):
        before = CLOCK.mono_s()
        watts = node.read()["power_watts"]
        refreshed = [k / 10 for k in range(math.floor(before * 10), math.floor(CLOCK.mono_s() * 10) + 1)]
        possible = [wave.mean_watts(t - 0.025, t) for t in refreshed]
        assert any(abs(watts - p) < 0.01 for p in possible)
        seen.add(round(watts))
        CLOCK.sleep_until(before + 0.02)
    assert {640, 240} <= seen


def test_one_batch_gives_energy_utilization_and_nvlink_in_base_units(node: Node) -> None:
    wave = Wave(500.0, 300.0, 0.05, 0.05)
    node.machine.edit(0, wave=wave, nvlink=(50e9, 0.0))
    node.open()
    start_s, first = CLOCK.mono_s(), node.read()
    CLOCK.sleep_until(start_s + 1.0)
    second, end_s = node.read(), CLOCK.mono_s()
    joules = second["energy_joules_total"] - first["energy_joules_total"]
    assert joules == pytest.approx(400.0 * (end_s - start_s), abs=400.0 * 0.12)
    sent = second["nvlink_transmit_bytes_total"] - first["nvlink_transmit_bytes_total"]
    assert sent == pytest.approx(25e9 * (end_s - start_s), rel=0.1)
    assert second["nvlink_receive_bytes_total"] == pytest.approx(second["nvlink_transmit_bytes_total"], rel=1e-3)
    assert second["utilization_ratio"] == 1.0


def test_nvlink_of_the_fifth_generation_is_summed_over_its_links_in_bytes(node: Node) -> None:
    node.machine.edit(0, supports=("instant", "nvlink5"), arch=10, cc="10.0", links=18)
    node.machine.edit(1, supports=("instant", "nvlink"), arch=10, cc="10.0")
    node.open()
    per_link = node.read("nvml/GPU-0")["nvlink_transmit_bytes_total"]
    in_one = node.read("nvml/GPU-1")["nvlink_transmit_bytes_total"]
    assert per_link == pytest.approx(in_one, rel=1e-3)
    assert per_link > 1e12


LADDER = (
    ("H100", Board(), "instant", 0.025, 0.1),
    ("A100", Board(arch=7, cc="8.0"), "instant", 0.025, 0.1),
    ("L40S", Board(arch=8, cc="8.9"), "instant", 0.1, 0.1),
    ("V100 of an old driver", Board(arch=5, cc="7.0", supports=("usage", "energy")), "usage", 0.01, 0.02),
    ("A100 of an old driver", Board(arch=7, cc="8.0", supports=("usage", "energy")), "usage", 0.025, 0.1),
    ("A10 of an old driver", Board(arch=7, cc="8.6", supports=("usage", "energy")), "energy", 0.1, 0.1),
    ("H100 with the mean alone", Board(supports=("usage", "average")), "average", 1.0, 0.1),
    ("A10 with the call alone", Board(arch=7, cc="8.6", supports=("usage",)), "average", 1.0, 0.1),
    ("GH200 with the module and an energy that has the CPU in it",
     Board(supports=("module", "usage", "energy"), module_limit=1000.0, module_extra=120.0, energy_extra=120.0),
     "module", 0.025, 0.1),
    ("GH200 with the module and a mean of the GPU",
     Board(supports=("module", "average", "usage"), module_limit=1000.0, module_extra=120.0), "module", 0.025, 0.1),
    ("GH200 with the module and energy and a mean of the GPU",
     Board(supports=("module", "average", "energy"), module_limit=1000.0, module_extra=120.0), "energy", 0.1, 0.1),
    ("GB300 whose GPU scope is the module", Board(supports=("instant", "module", "energy"), limit=1400.0, module_limit=2900.0),
     "module", 0.025, 0.1),
    ("B200", Board(arch=10, cc="10.0"), "instant", 0.005, 0.1),
)  # fmt: skip


class Playing:
    """A clock of the session and of the boards that the test moves on."""

    def __init__(self, node: Node) -> None:
        self.clock = ManualClock(1000.003)
        self._machine = node.machine
        node.session = Session(self.clock)
        self.move_on(0.0)

    def move_on(self, seconds: float) -> None:
        self.clock.set(self.clock.mono_s() + seconds)
        self._machine.play(self.clock.mono_s())


@pytest.fixture
def playing(node: Node) -> Iterator[Playing]:
    yield Playing(node)
    node.machine.play(-1.0)


@pytest.mark.parametrize(("board", "rung", "window_s", "refresh_s"), [r[1:] for r in LADDER], ids=[r[0] for r in LADDER])
def test_the_power_reading_is_chosen_by_asking_the_board(
    node: Node, playing: Playing, board: Board, rung: str, window_s: float, refresh_s: float
) -> None:
    node.machine.boards[0] = board
    node.machine.edit(0, wave=STEADY)
    node.open()
    device = node.device()
    assert (device.power_source, device.power_window_s, device.power_refresh_s) == (rung, window_s, refresh_s)
    assert device.info["power_source"] == rung
    watts = node.read()["power_watts"]
    for _ in range(6 if rung == "energy" else 0):  # a derivative needs two steps of its counter
        playing.move_on(0.05)
        watts = node.read()["power_watts"]
    assert watts == pytest.approx(500.0 + (board.module_extra if rung == "module" else 0.0), rel=1e-3)


def test_watts_from_an_energy_counter_follow_the_job_within_a_few_percent(node: Node, playing: Playing) -> None:
    wave = Wave(600.0, 200.0, 1.0, 1.0)
    node.machine.edit(0, wave=wave, supports=("usage", "energy"), energy=(0.0, 0.1, 0.03))
    node.open(gpu_hertz=10.0)
    lane = node.lane("nvml/GPU-0")
    assert lane.source.interval_s == 0.05  # half the refresh of the counter, whatever the rate of the rest
    seen = []
    for tick in range(60):
        playing.move_on(0.05 + (0.004 if tick % 2 else -0.004))  # ticks are never quite regular
        seen.append((playing.clock.mono_s(), node.read()["power_watts"]))
    late = [(w, wave.watts(t - 0.1)) for t, w in seen[12:] if wave.watts(t) == wave.watts(t - 0.3)]  # away from the edges
    assert len(late) > 15
    assert all(w == pytest.approx(truth, rel=0.05) for w, truth in late)


def test_the_energy_meter_takes_a_counter_that_began_anew_for_no_power() -> None:
    meter = EnergyMeter()
    readings = [meter.watts(0.1 * k, 1000.0 + 50.0 * k) for k in range(10)]
    assert readings[-1] == pytest.approx(500.0)
    assert math.isnan(meter.watts(1.0, 3.0))
    assert math.isnan(meter.watts(1.1, 53.0))  # the time since the reset is not known
    assert meter.watts(1.2, 103.0) == pytest.approx(500.0)


def test_counters_that_begin_anew_are_counted_once_each_and_never_jump_up(node: Node) -> None:
    node.machine.edit(0, wave=STEADY, supports=("instant", "energy", "nvlink5", "throttle"), arch=10, cc="10.0", links=18)
    node.open()
    fast, slow = node.lane("nvml/GPU-0"), node.lane("nvml/GPU-0/slow")
    before = {**node.read(), **node.read("nvml/GPU-0/slow")}
    assert fast.errors["counter_reset"] == slow.errors["counter_reset"] == 0
    node.edit(counted_from=CLOCK.mono_s())
    after = {**node.read(), **node.read("nvml/GPU-0/slow")}
    assert fast.errors["counter_reset"] == 3  # energy, and each direction of NVLink however many links there are
    assert slow.errors["counter_reset"] == 3  # of the four reasons that this driver gives as time, one stood at 0
    assert all(after[key] <= before[key] for key in before if "total" in key)
    node.read()
    node.read("nvml/GPU-0/slow")
    assert (fast.errors["counter_reset"], slow.errors["counter_reset"]) == (3, 3)


def test_a_driver_that_was_loaded_anew_is_seen_to_count_from_the_start(node: Node) -> None:
    node.machine.edit(0, wave=STEADY, supports=("instant", "energy"))
    node.open()
    assert node.read()["energy_joules_total"] > 1e6
    node.edit(error=DRIVER_NOT_LOADED)
    with pytest.raises(LaneError):
        node.read()
    node.close_lanes()
    node.session.close()  # as the reader does: every handle is thrown away
    node.edit(error=0, counted_from=CLOCK.mono_s() - 1.0)
    node.open()
    assert node.read()["energy_joules_total"] < 1e6
    assert node.lane("nvml/GPU-0").errors["counter_reset"] == 1
    node.machine.edit(0, uuid="GPU-another", counted_from=CLOCK.mono_s())
    node.open()
    node.read()
    assert node.lane("nvml/GPU-0").errors["counter_reset"] == 0  # another board's counter is no reset of this one's


NONSENSE = (("u32", "0"), ("i64", "-1"), ("u32", "4294967295"), ("u64", "9223372036854775794"), ("f64", "nan"),
            ("f64", "inf"), ("u32", "5000000"), ("u32", "1050001"))  # fmt: skip


@pytest.mark.parametrize("raw", NONSENSE, ids=" ".join)
def test_power_that_no_board_can_have_is_dropped_and_counted(node: Node, raw: tuple[str, str]) -> None:
    node.open()
    assert node.read()["power_watts"] > 0
    node.edit(power_raw=raw)
    values = node.read()
    assert math.isnan(values["power_watts"])
    assert values["energy_joules_total"] > 0  # the rest of the batch is untouched
    assert node.lane("nvml/GPU-0").errors["implausible_power"] == 1
    node.edit(power_raw=("u32", "1049999"))  # one and a half times the limit of 700 W is still believed
    assert node.read()["power_watts"] == pytest.approx(1049.999)
    node.edit(power_raw=("u64", "612000"))  # another type of the same quantity
    assert node.read()["power_watts"] == 612.0


def test_a_utilization_beyond_all_is_dropped_and_counted(node: Node) -> None:
    node.open()
    node.edit(util_raw=250)
    assert math.isnan(node.read()["utilization_ratio"])
    assert node.lane("nvml/GPU-0").errors["implausible_utilization"] == 1
    node.edit(util_raw=100)
    assert node.read()["utilization_ratio"] == 1.0


@pytest.mark.parametrize(("kind", "raw", "value"), [
    (0, 0x4059000000000000, 100.0), (1, 0xDEADBEEF00000007, 7.0), (2, 1 << 40, float(1 << 40)), (3, 1 << 62, float(1 << 62)),
    (4, (1 << 64) - 5, -5.0), (5, 0xFFFFFFFE, -2.0), (6, 0x1FFFF, 65535.0)])  # fmt: skip
def test_a_value_is_decoded_by_the_type_that_the_driver_gives(kind: int, raw: int, value: float) -> None:
    assert decode_value(kind, raw) == value
    assert math.isnan(decode_value(99, raw))


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, (1 << 64) - 1))
def test_no_type_and_no_value_of_a_driver_makes_decoding_raise(kind: int, raw: int) -> None:
    assert isinstance(decode_value(kind, raw), float)


def test_texts_of_a_driver_that_are_no_texts_are_taken_as_far_as_they_go(node: Node) -> None:
    node.machine.edit(0, name="NVIDIA \udcff\udcfe H100", bdf="nowhere", uuid="GPU-\udc80")
    node.machine.set(driver="\udcc3")
    node.open()
    device = node.device()
    assert (device.name, device.uuid) == ("NVIDIA \ufffd\ufffd H100", "GPU-\ufffd")
    assert device.pci_path is None
    assert node.read()["power_watts"] > 0


def test_the_slow_lane_gives_limit_temperature_clock_and_throttled_time(node: Node) -> None:
    node.open()
    assert node.read("nvml/GPU-0/slow") == {
        "power_limit_watts": 700.0, "temperature_celsius": 61.0, "sm_clock_hertz": 1.755e9,
        "throttled_seconds_total/power_cap": 2.5, "throttled_seconds_total/sw_thermal": 0.0,
        "throttled_seconds_total/hw_thermal": 1.25, "throttled_seconds_total/power_brake": 0.5,
    }
    node.edit(limit=400.0, power_raw=("u32", "650000"))
    node.read("nvml/GPU-0/slow")
    assert math.isnan(node.read()["power_watts"])  # the gate goes by the limit in force


HARDWARE = {"hw_thermal", "power_brake"}


@pytest.mark.parametrize(("driver", "smoothing", "throttle"), [
    ("535.183.01", None, set()), ("570.172.08", "on", set()), ("575.57.08", None, set()), ("580.65.06", None, set()),
    ("580.95.05", "on", HARDWARE), ("590.44.01", "on", HARDWARE), ("odd", None, set()),
])  # fmt: skip
def test_fields_that_moved_are_asked_only_where_the_numbers_of_the_driver_are_known(
    node: Node, driver: str, smoothing: str | None, throttle: set[str]
) -> None:
    node.machine.set(driver=driver)
    node.machine.edit(0, arch=10, cc="10.0", smoothing=1)
    node.open()
    assert node.device().info.get("power_smoothing") == smoothing
    told = {key.split("/")[1] for key in node.read("nvml/GPU-0/slow") if key.startswith("throttled")}
    assert told - {"power_cap", "sw_thermal"} == throttle


def test_a_board_that_comes_to_smooth_its_power_is_opened_anew(node: Node) -> None:
    node.machine.edit(0, arch=10, cc="10.0", smoothing=0)
    node.open()
    assert node.device().info["power_smoothing"] == "off"
    assert node.read("nvml/GPU-0/slow")["power_limit_watts"] == 700.0
    node.edit(smoothing=-1)  # not answered for once
    assert node.read("nvml/GPU-0/slow")["power_limit_watts"] == 700.0
    node.edit(smoothing=1)
    with pytest.raises(LaneError, match="power_smoothing_changed") as caught:
        node.read("nvml/GPU-0/slow")
    assert caught.value.then == REDISCOVER
    node.open()
    assert node.device().info["power_smoothing"] == "on"
    assert node.read("nvml/GPU-0/slow")["power_limit_watts"] == 700.0


def test_a_board_that_answers_power_with_zero_has_no_power(node: Node) -> None:
    quiet = ("instant", "usage", "energy", "utilization", "clocks")
    node.machine.edit(0, supports=quiet, zeros=("instant", "usage", "energy"), virtualization=2, links=0)
    node.machine.edit(1, supports=quiet, zeros=("instant", "usage", "energy", "utilization"), links=0)
    node.open()
    assert [device.power_source for device in node.opened.devices] == [None, None]
    assert node.device().info["virtualization"] == "vgpu"
    assert set(node.read()) == {"utilization_ratio"}  # a part of a GPU tells its utilisation, and 0 is a pause of it
    assert not [lane for lane in node.opened.lanes if lane.source.name == "nvml/GPU-1"]  # 0 for ever is no answer


def test_sums_over_all_nvlinks_that_stand_at_zero_give_way_to_links_that_have_counted(node: Node) -> None:
    node.machine.edit(0, supports=("instant", "nvlink", "nvlink5"), zeros=("nvlink",), arch=10, cc="10.0")
    node.machine.edit(1, supports=("instant", "nvlink"), zeros=("nvlink",))
    node.open()
    assert node.read("nvml/GPU-0")["nvlink_transmit_bytes_total"] > 1e12
    assert node.read("nvml/GPU-1")["nvlink_transmit_bytes_total"] == 0


def test_a_board_keeps_its_id_when_the_driver_numbers_boards_anew(node: Node) -> None:
    node.machine.edit(0, uuid="GPU-aaaa", wave=Wave(300.0, 300.0))
    node.machine.edit(1, uuid="GPU-bbbb", wave=STEADY)
    node.open()
    node.close_lanes()
    node.session.close()
    node.machine.boards.reverse()
    node.machine.write()
    node.open()
    assert [(d.id, d.index, d.uuid) for d in node.opened.devices] == [("GPU-1", 0, "GPU-bbbb"), ("GPU-0", 1, "GPU-aaaa")]
    assert node.read("nvml/GPU-0")["power_watts"] == pytest.approx(300.0)
    assert [(d.id, d.index) for d in node.open(skip=("GPU-0",)).devices] == [("GPU-1", 0)]
    assert [(d.id, d.index) for d in node.open(only=("GPU-0",)).devices] == [("GPU-0", 1)]
    node.close_lanes()
    node.session.close()
    node.session = Session(CLOCK)  # a new process, which is told
    node.open(known=("GPU-aaaa=GPU-0", "GPU-bbbb=GPU-1"))
    assert [(d.id, d.index) for d in node.opened.devices] == [("GPU-1", 0), ("GPU-0", 1)]
    node.close_lanes()
    node.machine.edit(0, uuid="GPU-cccc")  # another board in place of one that went: its id is free
    node.open()
    assert [(d.id, d.uuid) for d in node.opened.devices] == [("GPU-1", "GPU-cccc"), ("GPU-0", "GPU-aaaa")]


def test_what_a_board_does_not_answer_has_no_channel(node: Node) -> None:
    node.machine.edit(0, supports=("instant",), limit=0.0, arch=8)
    node.open()
    assert [c for lane in node.opened.lanes if lane.device_id == "GPU-0" for c in lane.source.channels] == ["GPU-0/power_watts"]
    assert node.device().power_limit_watts is None


def test_a_gpu_in_mig_mode_has_power_but_neither_utilization_nor_gpm(node: Node) -> None:
    node.machine.edit(0, mig=1)
    node.open()
    channels = {c for lane in node.opened.lanes if lane.device_id == "GPU-0" for c in lane.source.channels}
    assert "GPU-0/power_watts" in channels
    assert not any("utilization" in c or "kernel_busy" in c for c in channels)
    assert node.device().info["mig"] == "1"


def test_gpm_gives_means_of_the_time_since_the_read_before(node: Node) -> None:
    wave = Wave(600.0, 200.0, 0.5, 0.5)
    node.machine.edit(0, wave=wave)
    node.open()
    lane = node.lane("gpm/GPU-0")
    assert lane.read() is None  # one sample is no interval
    before_s = CLOCK.mono_s()
    CLOCK.sleep_until(before_s + 0.3)
    values = node.read("gpm/GPU-0")
    share = (wave.mean_watts(before_s, CLOCK.mono_s()) - 200.0) / 400.0
    assert values["kernel_busy_ratio"] == pytest.approx(1.0)
    assert values["tensor_utilization_ratio"] == pytest.approx(0.6 * share, abs=0.06)
    assert values["sm_utilization_ratio"] == pytest.approx(0.12 + 0.78 * share, abs=0.06)


def test_gpm_pairs_that_are_too_close_together_are_never_formed(node: Node) -> None:
    node.open()
    lane = node.lane("gpm/GPU-0")
    lane.read()
    assert lane.read() is None
    assert lane.errors["too_close"] == 1
    CLOCK.sleep_until(CLOCK.mono_s() + 0.11)
    assert lane.read() is not None
    assert not [line for line in node.machine.events() if line.startswith("gpm pair")]


def test_a_gpm_pair_is_too_close_also_where_the_first_call_was_slow(node: Node) -> None:
    node.open()
    lane = node.lane("gpm/GPU-0")
    node.edit(latency_ms=150.0)  # before the sample is taken
    lane.read()
    node.edit(latency_ms=0.0)
    assert lane.read() is None
    assert lane.errors["too_close"] == 1
    CLOCK.sleep_until(CLOCK.mono_s() + 0.11)
    assert lane.read() is not None
    assert not [line for line in node.machine.events() if line.startswith("gpm pair")]


def test_gpm_is_not_there_before_hopper(node: Node) -> None:
    node.machine.edit(0, arch=8, cc="8.9")
    node.open()
    assert not any(lane.source.name == "gpm/GPU-0" for lane in node.opened.lanes)
    assert any(lane.source.name == "gpm/GPU-1" for lane in node.opened.lanes)


def test_xid_events_are_counted_by_code_and_a_new_code_adds_a_channel(node: Node) -> None:
    node.machine.edit(0, supports=ALL_CALLS)
    node.machine.edit(1, supports=ALL_CALLS)
    node.open()
    assert node.read("xid/GPU-0") == dict.fromkeys([f"xid_errors_total/{code}" for code in (48, 79, 94, 95)], 0.0)
    node.machine.edit(0, xids=((79, 2), (31, 1)))
    until_s = CLOCK.mono_s() + 5.0
    values: dict[str, float] = {}
    while values.get("xid_errors_total/31") != 1.0 or values["xid_errors_total/79"] != 2.0:
        assert CLOCK.mono_s() < until_s
        CLOCK.sleep_until(CLOCK.mono_s() + 0.05)
        lane = node.lane("xid/GPU-0")
        got = lane.read()
        assert got is not None
        values = dict(zip((c.removeprefix("GPU-0/") for c in lane.source.channels), got, strict=True))
    assert sum(node.read("xid/GPU-1").values()) == 0.0


def test_filters_take_index_id_and_uuid(node: Node) -> None:
    assert [d.id for d in node.open(exclude=("0",)).devices] == ["GPU-1"]
    assert [d.id for d in node.open(include=("GPU-00000001-*",)).devices] == ["GPU-1"]
    assert [d.id for d in node.open(skip=("GPU-1",)).devices] == ["GPU-0"]
    assert [d.id for d in node.open(only=("GPU-1",)).devices] == ["GPU-1"]
    assert node.opened.extra["nvml_gpus"] == 2


def test_a_gpu_that_is_lost_at_the_start_costs_no_other(node: Node) -> None:
    node.machine.edit(1, open_error=GPU_IS_LOST)
    opened = node.open()
    assert opened.lost == {"GPU-1": "gpu_lost"}
    assert node.device("GPU-1").uuid == ""
    assert {lane.device_id for lane in opened.lanes} == {"GPU-0"}
    assert node.read()["power_watts"] > 0


def test_a_gpu_that_this_process_may_not_open_is_counted_but_not_ours(node: Node) -> None:
    node.machine.edit(1, open_error=4)
    opened = node.open()
    assert [d.id for d in opened.devices] == ["GPU-0"]
    assert opened.lost == {}
    assert opened.extra["nvml_gpus"] == 2


CODES = (
    (GPU_IS_LOST, "gpu_lost", QUARANTINE, "gpu_lost"), (16, "reset_required", QUARANTINE, "gpu_lost"),
    (UNINITIALIZED, "uninitialized", REOPEN, "library"), (DRIVER_NOT_LOADED, "driver_not_loaded", REOPEN, "library"),
    (INVALID_ARGUMENT, "invalid_argument", REOPEN, "library"),
    (LIB_RM_VERSION_MISMATCH, "library_driver_mismatch", RESTART, "library"),
    (8, "insufficient_power", QUARANTINE, "gpu_lost"), (28, "gpu_not_found", REOPEN, "library"),
    (11, "irq_issue", KEEP, "transient"), (17, "operating_system", KEEP, "transient"), (19, "in_use", KEEP, "transient"),
    (20, "memory", KEEP, "transient"), (27, "not_ready", KEEP, "transient"), (777, "nvml_error_777", KEEP, "transient"),
)  # fmt: skip


@pytest.mark.parametrize(("code", "reason", "then", "counted"), CODES)
def test_an_error_code_says_what_is_to_be_done(node: Node, code: int, reason: str, then: str, counted: str) -> None:
    node.open()
    node.edit(error=code)
    with pytest.raises(LaneError) as caught:
        node.read()
    assert (caught.value.reason, caught.value.then) == (reason, then)
    assert node.lane("nvml/GPU-0").errors[counted] == 1
    assert node.read("nvml/GPU-1")["power_watts"] > 0


@pytest.mark.parametrize(("code", "then"), [(UNKNOWN, QUARANTINE), (29, REOPEN)])
def test_an_error_that_may_pass_is_borne_until_the_fifth_in_a_row(node: Node, code: int, then: str) -> None:
    node.open()
    verdicts = []
    for error in (code, 0, code, code, code, code, code):
        node.edit(error=error)
        if not error:
            node.read()
            continue
        with pytest.raises(LaneError) as caught:
            node.read()
        verdicts.append(caught.value.then)
    assert verdicts == [KEEP] * 5 + [then]


@pytest.mark.parametrize("code", [6, 21])
def test_no_new_sample_is_absent_and_no_error(node: Node, code: int) -> None:
    node.open()
    node.edit(entry_error=code)
    assert math.isnan(node.read()["power_watts"])
    assert set(node.lane("nvml/GPU-0").errors.values()) == {0}


def test_fields_that_fail_one_by_one_are_absent_and_counted(node: Node) -> None:
    node.open()
    node.edit(entry_error=3)
    values = node.read()
    assert math.isnan(values["power_watts"])
    assert math.isnan(values["energy_joules_total"])
    assert values["utilization_ratio"] == 1.0
    assert node.lane("nvml/GPU-0").errors["unsupported"] == 4
    node.edit(entry_error=GPU_IS_LOST)
    with pytest.raises(LaneError) as caught:
        node.read()
    assert caught.value.then == QUARANTINE


def test_an_old_driver_without_field_values_falls_back_to_the_call(node: Node) -> None:
    node.machine.set(missing="nvmlDeviceGetFieldValues,nvmlGpmQueryDeviceSupport,nvmlEventSetWait_v2,nvmlDeviceGetMigMode")
    node.machine.edit(0, arch=5, cc="7.0", wave=STEADY)
    node.open()
    assert node.device().power_source == "usage"
    assert node.read()["power_watts"] == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(DRIVER_NOT_LOADED, "driver_not_loaded"), (4, "no_permission"), (UNKNOWN, "unknown_error"), (555, "nvml_error_555")],
)
def test_a_library_that_does_not_start_is_a_status_with_its_reason(node: Node, code: int, reason: str) -> None:
    node.machine.set(init_error=code)
    (status,) = node.open().statuses
    assert (status.source, status.up, status.reason) == ("nvml", False, reason)
    node.machine.set(init_error=0)
    assert len(node.open().devices) == 2


def test_a_driver_replaced_under_the_library_asks_for_a_new_process(node: Node) -> None:
    node.machine.set(init_error=LIB_RM_VERSION_MISMATCH)
    with pytest.raises(LaneError) as caught:
        node.open()
    assert caught.value.then == RESTART


def test_handles_of_an_earlier_initialisation_are_never_used_again(node: Node) -> None:
    node.open()
    node.close_lanes()
    node.session.close()
    node.open()
    assert node.read()["power_watts"] > 0
    assert not [line for line in node.machine.events() if line.startswith("stale")]
    assert node.machine.events().count("init 0") == 2


def test_an_older_package_of_the_same_name_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    intruder = types.ModuleType("pynvml")
    intruder.__file__ = "/opt/old/pynvml/__init__.py"
    monkeypatch.setitem(sys.modules, "pynvml", intruder)
    opened = node.open()
    assert [s.reason for s in opened.statuses] == ["foreign_pynvml_package"]
    assert opened.extra["detail"] == "/opt/old/pynvml/__init__.py"
    assert "/opt/old/pynvml/__init__.py" in opened.extra["nvml_hint"]
    assert "nvidia-ml-py" in opened.extra["nvml_hint"]


def test_an_older_package_beside_the_binding_is_named_where_it_is_what_python_finds(tmp_path: Path) -> None:
    old = tmp_path / "pynvml"  # laid out as pynvml 11.5: a package that hands on public names only
    old.mkdir()
    (old / "__init__.py").write_text("from .nvml import *\n")
    (old / "nvml.py").write_text("nvmlLib = None\ndef nvmlInit(): pass\ndef _nvmlGetFunctionPointer(name): pass\n")
    code = ("from exporter.sources.nvml import open_gpu; from exporter.sources import GpuSettings;"
            "opened = open_gpu(GpuSettings()); print(opened.statuses[0].reason, opened.extra['detail'])")  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}."},
                          cwd=SOURCE.parent.parent, capture_output=True, text=True, check=True)  # fmt: skip
    assert told.stdout.split() == ["foreign_pynvml_package", str(old / "__init__.py")]


def test_a_host_without_the_library_is_told_apart_by_its_reason(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    opened = node.open(nvml_library=str(tmp_path / "nothing.so"))
    assert [s.reason for s in opened.statuses] == ["library_not_found"]
    assert opened.extra["nvml_gpus"] is None
    assert opened.devices == ()


def test_a_library_where_the_loader_does_not_look_is_found_in_the_known_places(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlLib", None)

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", absent)
    monkeypatch.setattr(nvml_binding, "KNOWN_PLACES", ("/nowhere/libnvidia-ml.so.1", str(node.machine.library)))
    node.session = Session(CLOCK)
    assert len(node.open(nvml_library=None).devices) == 2


def test_the_library_is_the_one_that_the_binding_would_load() -> None:
    import pynvml

    assert ctypes.sizeof(pynvml.c_nvmlFieldValue_t) == 40
    assert hasattr(pynvml, "_nvmlGetFunctionPointer")


def test_a_gpu_knows_its_place_on_the_pci_bus(node: Node, tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    for bdf, vendor, pci_class in (("0000:3b:00.0", "0x10de", "0x030200"), ("0000:3b:00.1", "0x10de", "0x040300"),
                                   ("0000:5e:00.0", "0x10de", "0x030000"), ("0000:07:00.0", "0x10de", "0x068000"),
                                   ("0000:17:00.0", "0x15b3", "0x020700")):  # fmt: skip
        function = sysfs / "devices/pci0000:3a/0000:3a:00.0" / bdf
        function.mkdir(parents=True)
        (function / "vendor").write_text(vendor + "\n")
        (function / "class").write_text(pci_class + "\n")
        (function / "numa_node").write_text("1\n" if bdf.endswith("3b:00.0") else "-1\n")
        (sysfs / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (sysfs / "bus/pci/devices" / bdf).symlink_to(function)
    node.machine.edit(0, bdf="00000000:3B:00.0")
    opened = node.open(sysfs_root=str(sysfs))
    first, second = opened.devices
    assert (first.pci_path, first.numa_node) == ("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", 1)
    assert first.info["pci_bus_id"] == "0000:3b:00.0"
    assert (second.pci_path, second.numa_node) == (None, None)
    assert opened.extra["pci_gpus"] == 2
    assert count_pci_gpus(tmp_path / "nowhere") is None


@pytest.mark.parametrize("shift_s", [0.0, 0.05])
def test_the_traffic_of_the_fake_boards_is_that_of_the_fake_ports(shift_s: float) -> None:
    wave = Wave(650.0, 250.0, 0.1, 0.08, phase_s=0.013, idle_s=0.02)
    port = Waveform(0.1, 0.08, 1e9, phase_s=0.013, shift_s=shift_s, idle_s=0.02)
    for k in range(200):
        t = 100.0 + 0.0137 * k
        assert wave.traffic_bytes(t, 1e9, shift_s) == pytest.approx(port.bytes_until(t), abs=2)


def test_parts_of_a_gpu_in_mig_mode_are_known_by_their_uuids(node: Node) -> None:
    parts = ("MIG-11111111-2222-3333-4444-555555555555", "MIG-66666666-7777-8888-9999-aaaaaaaaaaaa")
    node.open()
    assert "mig_uuids" not in node.device().info
    node.machine.edit(0, mig=1, mig_uuids=parts)
    node.open()
    assert node.device().info["mig_uuids"] == ",".join(parts)
    node.machine.set(missing="nvmlDeviceGetMaxMigDeviceCount")
    node.open()
    assert node.device().info["mig_uuids"] == ""
