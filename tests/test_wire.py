"""Frames come out of the pipe as they went in, however the stream is cut."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Device, Inventory, Quarantine, Record, Source, SourceStatus
from exporter.wire import Decoder, inventory_frame, quarantine_frame, record_frame, status_frame

GPU = Device("gpu", "GPU-0", 0, uuid="GPU-aa", power_limit_watts=700.0, info={"mig": "0"})
SOURCE = Source("nvml/GPU-0", ("GPU-0/power_watts", "GPU-0/utilization_ratio"), 0.1)
STREAM = (
    inventory_frame((GPU,), (SOURCE,), 100.0, {"nvml_gpus": 1})
    + record_frame(0, 101.5, 0.002, (612.5, math.nan))
    + status_frame(SourceStatus("nvml/GPU-0", 0.0, 3, 0.2, {"timeout": 2}), 102.0)
    + quarantine_frame("gpu", "GPU-1", "hang", 103.0)
)


@given(st.lists(st.integers(1, 80), min_size=1, max_size=200))
def test_any_cut_of_the_stream_gives_the_same_events(sizes: list[int]) -> None:
    decoder = Decoder(100.0, "node", 5.0)
    events, at = [], 0
    for size in [*sizes, len(STREAM)]:
        events += decoder.feed(STREAM[at : at + size])
        at += size
    inventory, record, status, quarantine = events
    assert inventory == Inventory("node", 5.0, (GPU,), (), (SOURCE,))
    assert isinstance(record, Record)
    assert (record.source, record.t_s, record.duration_s) == ("nvml/GPU-0", 1.5, pytest.approx(0.002))
    assert record.values[0] == 612.5
    assert math.isnan(record.values[1])
    assert status == SourceStatus("nvml/GPU-0", 2.0, 3, 0.2, {"timeout": 2})
    assert quarantine == Quarantine("gpu", "GPU-1", 3.0, "hang")
    assert decoder.extra == {"nvml_gpus": 1}


@pytest.mark.parametrize(
    "data",
    [record_frame(0, 1.0, 0.0, (1.0,)), b"\xff" * 64, b"\x00\x00\x00\x00\x09" + b"\x00" * 20],
    ids=["a record before any inventory", "noise", "an unknown type"],
)
def test_a_stream_that_makes_no_sense_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"frame|record|Expecting"):
        list(Decoder(0.0, "node", 0.0).feed(data))
