from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.api import find_gpu, snapshot_json, texts_json, waveform_json
from exporter.history import History
from exporter.model import Device, Inventory, Link, Record, Source
from exporter.waveform import counter_rate
from tests import snapshots


def test_a_snapshot_is_plain_json_and_holds_what_people_look_at() -> None:
    told = json.loads(json.dumps(snapshot_json(snapshots.mixed()), allow_nan=False))
    assert (told["host"], told["mode"], told["transport"], told["verdict_window_s"]) == ("node-1", "demo", "rdma", 60.0)
    gpu = told["gpus"][2]
    assert gpu["uuid"].startswith("GPU-5f2ac1de-0002")
    assert gpu["readings"]["power_watts"] == 612.5
    assert [a["state"] for a in gpu["analyses"]] == ["serialized"] * 3
    assert [f["finding"] for f in gpu["findings"]] == ["exposed_communication", "small_buckets"]
    assert [f["finding"] for f in told["node_findings"]] == ["congestion"]
    assert told["gpus"][7]["quarantined"] == "hang"
    assert told["gpus"][7]["readings"] == {}


def test_an_analysis_carries_the_fields_of_analyze_json() -> None:
    analysis = snapshot_json(snapshots.snapshot())["gpus"][5]["analyses"][1]
    assert {"gpu", "at_s", "window_s", "state", "health", "exposed", "exposed_low", "exposed_high", "communication", "stall",
            "wait", "exposed_or_wait", "correlation", "observability", "step_period_s", "reason"} <= set(analysis)  # fmt: skip
    assert analysis["gpu"] == "GPU-5"
    assert analysis["health"] is None
    assert "sensor" in analysis["reason"]


def test_numbers_that_json_cannot_hold_become_null() -> None:
    full = snapshots.snapshot()
    odd = replace(full, latest={**full.latest, "GPU-0/power_watts": (math.inf, 400.0)},
                  analyses=(replace(full.analyses[0], health=math.nan),))  # fmt: skip
    gpu = snapshot_json(odd)["gpus"][0]
    assert "power_watts" not in gpu["readings"]
    assert gpu["analyses"][0]["health"] is None


def test_a_gone_gpu_is_listed_as_gone_without_readings() -> None:
    gone = snapshot_json(replace(snapshots.snapshot(gpus=2), gone=(snapshots.gpu(2),)))["gpus"][2]
    assert (gone["id"], gone["gone"], gone["readings"], gone["analyses"]) == ("GPU-2", True, {}, [])


def test_a_source_says_how_long_it_has_been_silent() -> None:
    sources = (snapshots.health("nvml/GPU-0", last_success_s=390.0), snapshots.health("gpm", last_success_s=None))
    told = snapshot_json(replace(snapshots.snapshot(), sources=sources))["sources"]
    assert [(s["kind"], s["silent_s"]) for s in told] == [("nvml", 10.0), ("gpm", None)]


@pytest.mark.parametrize("wanted", ["3", "GPU-3", "GPU-5f2ac1de-0003-4a11-9c3e-0123456789ab"])
def test_a_gpu_is_found_by_index_id_and_uuid(wanted: str) -> None:
    found = find_gpu(snapshots.inventory(), wanted)
    assert found is not None
    assert found.id == "GPU-3"


@pytest.mark.parametrize("wanted", ["", "8", "GPU", "None", "mlx5_0/1"])
def test_nothing_else_is_taken_for_a_gpu(wanted: str) -> None:
    assert find_gpu(snapshots.inventory(), wanted) is None


@given(
    st.lists(st.floats(0.05, 0.9), min_size=2, max_size=60),
    st.lists(st.integers(0, 10**12), min_size=60, max_size=60),
    st.floats(0.03, 0.7),
)
def test_no_byte_is_lost_or_counted_twice_on_any_grid(gaps: list[float], sent: list[int], step: float) -> None:
    t = np.cumsum(gaps)
    total = np.cumsum(np.array(sent[: len(t)], dtype=np.float64))
    grid = np.arange(t[0], t[-1], step)
    if len(grid) < 2:
        return
    rate = counter_rate(t, total, grid)
    assert rate is not None
    moved = np.interp(grid[-1], t, total) - total[0]
    assert np.sum(rate * np.diff(grid)) == pytest.approx(moved, rel=1e-9, abs=1e-2)


def test_a_restart_of_a_counter_is_a_gap_and_never_a_spike() -> None:
    t = np.arange(0.0, 6.0, 0.5)
    total = np.where(t < 3.0, 1e15 + 100.0 * t, 100.0 * (t - 3.0))
    rate = counter_rate(t, total, np.arange(0.0, 5.5, 0.5))
    assert rate is not None
    assert np.isnan(rate[5])
    assert np.delete(rate, 5) == pytest.approx(100.0)


def test_a_counter_that_was_not_read_for_a_second_is_a_gap() -> None:
    t = np.array([0.0, 0.5, 1.0, 4.0, 4.5, 5.0])
    rate = counter_rate(t, 10.0 * t, np.arange(0.0, 5.5, 0.5))
    assert rate is not None
    assert np.isnan(rate[2:8]).all()
    assert rate[[0, 1, 8, 9]] == pytest.approx(10.0)


def test_nothing_is_said_beyond_the_readings() -> None:
    t = np.array([1.0, 1.5, 2.0])
    rate = counter_rate(t, 10.0 * t, np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5]))
    assert rate is not None
    assert np.isnan(rate[[0, 1, 4]]).all()
    assert rate[2:4] == pytest.approx(10.0)


def test_a_counter_with_one_reading_has_no_rate() -> None:
    assert counter_rate(np.array([1.0]), np.array([5.0]), np.array([0.0, 1.0])) is None


def test_a_waveform_holds_power_as_read_and_traffic_by_path() -> None:
    there = snapshots.inventory()
    wave = waveform_json(snapshots.history(), there, there.of_kind("gpu")[2], snapshots.NOW_S, 30.0)
    assert json.dumps(wave, allow_nan=False)
    assert (wave["gpu"], wave["index"], wave["start_s"], wave["end_s"]) == ("GPU-2", 2, 370.0, 400.0)
    assert len(wave["power"]["t_s"]) == len(wave["power"]["watts"]) == 600
    assert set(wave["traffic"]) == {"t_s", "rdma", "nvlink"}
    rdma = wave["traffic"]["rdma"]
    assert len(rdma) == len(wave["traffic"]["t_s"]) == 600
    assert max(rdma) == pytest.approx(0.92 * 44e9 * 1.03, rel=0.01)  # the busier direction, not the sum of both
    assert min(rdma) == 0.0


def test_power_and_traffic_of_a_serialized_job_alternate_in_the_waveform() -> None:
    there = snapshots.inventory()
    wave = waveform_json(snapshots.history(), there, there.of_kind("gpu")[2], snapshots.NOW_S, 30.0)
    power = np.interp(wave["traffic"]["t_s"], wave["power"]["t_s"], wave["power"]["watts"])
    assert np.corrcoef(power, np.array(wave["traffic"]["rdma"]))[0, 1] < -0.9


def test_a_long_waveform_has_at_most_600_points_of_traffic() -> None:
    there = snapshots.inventory()
    wave = waveform_json(snapshots.history(), there, there.of_kind("gpu")[0], snapshots.NOW_S, 600.0)
    assert len(wave["traffic"]["t_s"]) == 600
    assert wave["traffic"]["rdma"][0] is None


def test_gpus_that_share_a_port_get_their_share_of_its_traffic() -> None:
    devices = (Device("gpu", "GPU-0", 0), Device("rdma_port", "mlx5_0/1"))
    channels = ("mlx5_0/1/transmit_bytes_total", "mlx5_0/1/receive_bytes_total")
    there = Inventory("h", 0.0, devices, (Link("GPU-0", "mlx5_0/1", "rdma", "PIX", 0.25),), (Source("rdma", channels),))
    history = History()
    history.apply(there)
    for k in range(40):
        history.apply(Record("rdma", 0.1 * k, [4e8 * k, 2e8 * k]))
    wave = waveform_json(history, there, devices[0], 3.9, 2.0)
    assert wave["traffic"]["rdma"] == pytest.approx([1e9] * 40)
    assert wave["power"] == {"t_s": [], "watts": []}


def test_a_gpu_without_any_reading_has_an_empty_waveform() -> None:
    there = snapshots.inventory()
    wave = waveform_json(snapshots.history(), there, there.of_kind("gpu")[7], snapshots.NOW_S, 30.0)
    assert wave["power"] == {"t_s": [], "watts": []}
    assert set(wave["traffic"]) == {"t_s"}


def test_findings_carry_their_words_in_both_languages() -> None:
    told = snapshot_json(snapshots.mixed())
    (finding,) = told["node_findings"]
    assert finding["title"]["zh"] == "网络拥塞"
    assert finding["gpu"] is None
    exposed = told["gpus"][2]["findings"][0]
    assert exposed["gpu"] == "GPU-2"
    assert exposed["advice"][0]["key"] == "ddp_bucket_cap"
    assert "bucket_cap_mb" in exposed["advice"][0]["en"]["action"]
    assert set(exposed["advice"][0]) == {"key", "en", "zh"}


def test_a_snapshot_without_words_has_the_keys_of_its_advice_alone() -> None:
    """As the page takes it each second; it looks the words up itself."""
    full, brief = (snapshot_json(snapshots.mixed(), words=words)["gpus"][2]["findings"][0] for words in (True, False))
    assert {k: brief[k] for k in ("finding", "gpu", "since_s", "evidence")} == {k: full[k] for k in brief if k != "advice"}
    assert brief["advice"] == [advice["key"] for advice in full["advice"]]
    assert set(brief["advice"]) <= texts_json()["advice"].keys()
