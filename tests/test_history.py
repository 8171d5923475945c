"""The memory of a session: what was read comes out as it went in, stale values do not come out at all."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.history import History
from exporter.model import Device, Inventory, Quarantine, ReaderRestarted, Record, Source, SourceStatus

GPU0, GPU1 = "GPU-0/power_watts", "GPU-1/power_watts"


def history(*sources: Source, horizon_s: float = 60.0) -> History:
    h = History(horizon_s)
    h.apply(Inventory("node", 0.0, (Device("gpu", "GPU-0", 0), Device("gpu", "GPU-1", 1)), (), sources))
    return h


NVML0, NVML1 = Source("nvml/GPU-0", (GPU0,), 0.1), Source("nvml/GPU-1", (GPU1,), 0.1)


def test_a_slice_holds_what_came_after_its_start_up_to_its_end() -> None:
    h = history(NVML0)
    for k in range(100):
        h.apply(Record("nvml/GPU-0", k * 0.1, (float(k),)))
    t, v = h.series(GPU0, 1.0, 2.0)
    assert v.tolist() == [float(k) for k in range(11, 21)]
    assert (t[0], t[-1]) == (pytest.approx(1.1), pytest.approx(2.0))


@given(st.integers(1, 4000), st.floats(5, 50))
def test_the_ring_keeps_its_horizon_and_forgets_what_is_older(n: int, horizon_s: float) -> None:
    h = history(NVML0, horizon_s=horizon_s)
    for k in range(n):
        h.apply(Record("nvml/GPU-0", k * 0.1, (float(k),)))
    end_s = (n - 1) * 0.1
    _, v = h.series(GPU0, end_s - horizon_s, end_s)
    assert v.tolist() == [k for k in range(n) if end_s - horizon_s < k * 0.1 <= end_s]
    everything, _ = h.series(GPU0, -1.0, end_s)
    assert len(everything) <= max(1024, 4 * horizon_s / 0.1)


def test_a_slice_that_was_taken_never_changes() -> None:
    h = history(NVML0, horizon_s=10.0)
    for k in range(300):
        h.apply(Record("nvml/GPU-0", k * 0.1, (float(k),)))
    t, v = h.series(GPU0, 20.0, 29.9)
    before = (t.copy(), v.copy())
    for k in range(300, 5000):
        h.apply(Record("nvml/GPU-0", k * 0.1, (float(k),)))
    assert np.array_equal(t, before[0])
    assert np.array_equal(v, before[1])


def test_a_reading_that_is_not_newer_is_refused() -> None:
    h = history(NVML0)
    h.apply(Record("nvml/GPU-0", 1.0, (1.0,)))
    h.apply(Record("nvml/GPU-0", 1.0, (2.0,)))
    h.apply(Record("nvml/GPU-0", 0.5, (3.0,)))
    assert h.series(GPU0, 0.0, 9.0)[1].tolist() == [1.0]
    assert h.health()[0].reads == 1


def test_stale_and_quarantined_values_are_absent() -> None:
    h = history(NVML0, NVML1)
    h.apply(Record("nvml/GPU-0", 1.0, (500.0,)))
    h.apply(Record("nvml/GPU-1", 3.0, (600.0,)))
    assert h.latest(3.1) == {GPU0: (500.0, 1.0), GPU1: (600.0, 3.0)}
    assert h.latest(3.9) == {GPU1: (600.0, 3.0)}
    h.apply(Quarantine("gpu", "GPU-1", 3.9, "hang"))
    assert h.latest(3.9) == {}
    assert [q.reason for q in h.quarantined()] == ["hang"]
    h.apply(Quarantine("gpu", "GPU-1", 4.0, None))
    assert h.latest(4.0) == {GPU1: (600.0, 3.0)}


def test_a_value_that_was_not_read_keeps_the_one_before_until_that_is_stale() -> None:
    h = history(NVML0)
    h.apply(Record("nvml/GPU-0", 1.0, (500.0,)))
    h.apply(Record("nvml/GPU-0", 1.1, (math.nan,)))
    assert h.latest(1.2) == {GPU0: (500.0, 1.0)}
    assert h.latest(3.6) == {}
    assert h.health()[0].last_success_s == 1.0


def test_a_new_inventory_keeps_the_rings_whose_channels_stay() -> None:
    h = history(NVML0, NVML1)
    h.apply(Record("nvml/GPU-0", 1.0, (500.0,)))
    h.apply(Record("nvml/GPU-1", 1.0, (600.0,)))
    h.apply(Inventory("node", 0.0, (Device("gpu", "GPU-0", 0),), (), (NVML0,)))
    assert h.series(GPU0, 0.0, 2.0)[1].tolist() == [500.0]
    assert h.series(GPU1, 0.0, 2.0)[1].tolist() == []
    assert h.latest(1.0) == {GPU0: (500.0, 1.0)}


def test_counts_of_a_reader_go_on_through_its_restart() -> None:
    h = history(NVML0)
    h.apply(SourceStatus("nvml/GPU-0", 1.0, 4, 0.1, {"timeout": 3}))
    h.apply(ReaderRestarted(("nvml/GPU-0",), 2.0))
    h.apply(SourceStatus("nvml/GPU-0", 3.0, 1, 0.1, {"timeout": 1}))
    health = h.health()[0]
    assert (health.missed_ticks, dict(health.errors), health.restarts) == (5, {"timeout": 4}, 1)


def test_a_source_that_only_speaks_of_itself_is_shown() -> None:
    h = history()
    h.apply(SourceStatus("nvml", 0.1, up=False, reason="library_not_found"))
    assert [(s.source, s.up, s.reason) for s in h.health()] == [("nvml", False, "library_not_found")]


def test_another_board_under_the_same_index_inherits_no_reading() -> None:
    history = History()
    source = Source("nvml/GPU-0", ("GPU-0/power_watts",), 0.1)
    for uuid in ("GPU-a", "GPU-b"):
        history.apply(Inventory("node", 0.0, (Device("gpu", "GPU-0", index=0, uuid=uuid),), (), (source,)))
        assert len(history.series("GPU-0/power_watts", 0.0, 100.0)[0]) == 0
        assert dict(history.latest(10.0)) == {}
        history.apply(Record("nvml/GPU-0", 10.0, [500.0]))
    history.apply(history.inventory)
    assert len(history.series("GPU-0/power_watts", 0.0, 100.0)[0]) == 1


@pytest.mark.parametrize(("device", "channel", "other"), [
    (Device("gpu", "GPU-0", uuid="a", power_source="instant"), "GPU-0/power_watts", {"power_source": "module"}),
    (Device("rdma_port", "mlx5_0/1", info={"byte_source": "hw_counters/tx_roce_only_bytes"}), "mlx5_0/1/transmit_bytes_total",
     {"info": {"byte_source": "hw_counters/tx_bytes"}}),
])  # fmt: skip
def test_readings_of_two_sensors_never_stand_in_one_window(device: Device, channel: str, other: dict[str, Any]) -> None:
    history = History()
    source = Source("one", (channel,), 0.1)
    history.apply(Inventory("node", 0.0, (device,), (), (source,)))
    history.apply(Record("one", 10.0, [500.0]))
    history.apply(Inventory("node", 0.0, (replace(device, numa_node=1),), (), (source,)))
    assert len(history.series(channel, 0.0, 100.0)[0]) == 1
    history.apply(Inventory("node", 0.0, (replace(device, **other),), (), (source,)))
    assert len(history.series(channel, 0.0, 100.0)[0]) == 0
    assert channel not in history.latest(10.0)


def test_totals_of_a_kind_outlive_any_number_of_devices_and_the_memory_of_them_does_not() -> None:
    history = History()
    for k in range(1000):
        source = Source(f"nic/eth{k}", (f"eth{k}/transmit_bytes_total",), 0.02)
        history.apply(Inventory("node", 0.0, (Device("nic", f"eth{k}"),), (), (source,)))
        history.apply(Record(source.name, float(k), [1.0], duration_s=1e-4))
        history.apply(SourceStatus(source.name, float(k), missed_ticks=2, errors={"vanished": 1}, up=False, reason="vanished"))
    history.apply(Inventory("node", 0.0))
    health = history.health()
    assert len(health) <= 65
    assert sum(h.reads for h in health) == 1000
    assert sum(h.missed_ticks for h in health) == 2000
    assert sum(h.errors["vanished"] for h in health) == 1000
    assert sum(sum(h.read_duration_buckets) for h in health) == 1000
    # An interface that is not there any more is not down.
    assert all(h.up and h.reason is None for h in health)


def test_a_gone_source_stays_down_while_its_device_is_left_alone() -> None:
    history = History()
    source = Source("nvml/GPU-1", ("GPU-1/power_watts",), 0.1)
    gpus = (Device("gpu", "GPU-1", index=1, uuid="GPU-b"),)
    history.apply(Inventory("node", 0.0, gpus, (), (source,)))
    history.apply(SourceStatus("nvml/GPU-1", 1.0, up=False, reason="gpu_lost"))
    history.apply(Quarantine("gpu", "GPU-1", 1.0, "gpu_lost"))
    history.apply(Inventory("node", 0.0, gpus))
    assert [(h.up, h.reason) for h in history.health()] == [(False, "gpu_lost")]
    history.apply(Quarantine("gpu", "GPU-1", 2.0, None))
    assert [(h.up, h.reason) for h in history.health()] == [(True, None)]
