"""The trace format: what is written comes back exactly; what is cut, damaged or foreign is told apart in one line."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Device, Event, Inventory, Link, Quarantine, Record, Source, SourceStatus
from exporter.trace import TraceError, TraceWriter, header, read_trace

NODE = Inventory(
    host="node-1",
    started_unix_s=1767225600.0,
    devices=(
        Device("gpu", "GPU-0", index=0, uuid="GPU-aa", name="NVIDIA H100", power_limit_watts=700.0, power_source="instant",
               power_window_s=0.025, power_refresh_s=0.1, info=MappingProxyType({"architecture": "hopper"})),
        Device("gpu", "GPU-1", index=1),
        Device("rdma_port", "mlx5_0/1", driver="mlx5_core", rate_bytes_per_s=50e9),
        Device("nic", "eth0", rate_bytes_per_s=3.125e9),
        Device("disk", "all"),
    ),
    links=(Link("GPU-0", "mlx5_0/1", "rdma", "trace", 0.5), Link("GPU-0", "eth0", "tcp", "trace"),
           Link("GPU-1", "mlx5_0/1", "rdma", "trace", 0.5)),
    sources=(
        Source("nvml/GPU-0", ("GPU-0/power_watts", "GPU-0/utilization_ratio"), 0.1),
        Source("nvml/GPU-1", ("GPU-1/power_watts",)),
        Source("rdma/mlx5_0", ("mlx5_0/1/transmit_bytes_total", "mlx5_0/1/receive_bytes_total", "mlx5_0/1/events/cnp_rx")),
        Source("host/all", ("all/read_bytes_total",)),
    ),
    jobs=MappingProxyType({"GPU-0": "a", "GPU-1": "b"}),
    truth=MappingProxyType({"exposed": 0.25, "step_period_s": None, "gpus": {"GPU-0": {"state": "partial"}}}),
)
RECORDS = [
    Record("nvml/GPU-0", 0.1039, [612.4, 1.0]),
    Record("rdma/mlx5_0", 0.1041, [41469409110496.0, 37322495804706.0, 3.0]),
    Record("nvml/GPU-1", 0.11, [71.123456789]),
    Record("nvml/GPU-0", 0.2039, [math.nan, 0.07]),
    Record("host/all", 1.0, [0.0]),
]


def written(events: list[Event]) -> bytes:
    file = io.BytesIO()
    with TraceWriter(file) as writer:
        for event in events:
            writer.write(event)
    return file.getvalue()


def lines_of(data: bytes) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def trace_of(path: Path, *lines: object) -> Path:
    path.write_bytes(gzip.compress("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines).encode()))
    return path


def same(a: Record, b: Record) -> bool:
    pairs = zip(a.values, b.values, strict=True)
    return (a.source, a.t_s) == (b.source, b.t_s) and all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in pairs)


HEADER: dict[str, Any] = header(NODE)


def test_what_was_written_comes_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with TraceWriter(path) as writer:
        for event in (NODE, *RECORDS):
            writer.write(event)
    trace = read_trace(path)
    inventory, *records = trace
    assert inventory == NODE
    assert trace.inventory == NODE
    assert all(same(a, b) for a, b in zip(records, RECORDS, strict=True))
    assert trace.cut is None


def test_a_trace_can_be_read_any_number_of_times(tmp_path: Path) -> None:
    trace = read_trace(trace_of(tmp_path / "a", HEADER, [0.1, "nvml/GPU-1", [70.0]]))
    assert list(trace) == list(trace)


def test_counters_stand_as_whole_numbers_and_missing_values_as_null() -> None:
    _, nvml, rdma, _, gap, _ = lines_of(written([NODE, *RECORDS]))
    assert rdma == [0.1041, "rdma/mlx5_0", [41469409110496, 37322495804706, 3]]
    assert all(isinstance(value, int) for value in rdma[2])
    assert nvml[2][0] == 612.4
    assert gap[2] == [None, 0.07]


def test_infinite_values_count_as_not_read() -> None:
    assert lines_of(written([NODE, Record("nvml/GPU-0", 0.1, [math.inf, -math.inf])]))[1][2] == [None, None]


def test_times_are_rounded_to_a_tenth_of_a_millisecond() -> None:
    assert lines_of(written([NODE, Record("nvml/GPU-1", 0.12344999, [70.5])]))[1][0] == 0.1234


def test_the_header_says_what_the_format_asks_for() -> None:
    assert HEADER["format"] == "overlap-trace"
    assert HEADER["version"] == 1
    assert HEADER["links"] == {"GPU-0": ["mlx5_0/1", "eth0"], "GPU-1": ["mlx5_0/1"]}
    gpu = HEADER["devices"][0]
    assert (gpu["power_window_seconds"], gpu["power_refresh_seconds"], gpu["power_limit_watts"]) == (0.025, 0.1, 700.0)
    assert HEADER["devices"][2]["rate_bytes_per_second"] == 50e9
    assert HEADER["jobs"] == {"GPU-0": "a", "GPU-1": "b"}
    assert HEADER["truth"]["step_period_s"] is None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.lists(st.one_of(st.floats(-1e300, 1e300), st.integers(0, 2**53),
                                                                st.just(math.nan)), min_size=3, max_size=3))))
def test_any_values_survive_the_round_trip(reads: list[tuple[float, list[float]]]) -> None:
    records = [Record("rdma/mlx5_0", round(t_s, 4), [float(v) for v in values]) for t_s, values in reads]
    lines = lines_of(written([NODE, *records]))[1:]
    assert len(lines) == len(records)
    for line, record in zip(lines, records, strict=True):
        assert same(Record(line[1], line[0], [math.nan if v is None else float(v) for v in line[2]]), record)


def test_a_trace_cut_at_any_byte_yields_a_prefix_and_says_where_it_ended(tmp_path: Path) -> None:
    data, path = written([NODE, *RECORDS]), tmp_path / "cut.jsonl.gz"
    counts = set()
    flushed = written([NODE])[:-10]  # what follows is the end of the stream
    sizes = range(len(flushed), len(data) + 1)
    for size in range(len(flushed) - 8):  # of the last bytes, the first few may end the line already
        path.write_bytes(data[:size])
        with pytest.raises(TraceError, match=r"empty|cut off before its header ended"):
            read_trace(path)
    for size in sizes:
        path.write_bytes(data[:size])
        trace = read_trace(path)
        inventory, *records = trace
        assert inventory == NODE
        assert all(same(a, b) for a, b in zip(records, RECORDS, strict=False))
        counts.add(len(records))
        if size == len(data):
            assert trace.cut is None
            assert len(records) == len(RECORDS)
        else:
            assert trace.cut is not None
            assert trace.cut.startswith(f"cut off after line {1 + len(records)}")
    assert counts >= {0, len(RECORDS)}


def test_half_a_line_at_the_end_of_a_whole_gzip_stream_is_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(HEADER) + '\n[0.5, "nvml/GPU-1", [70]]\n[0.6, "nvml/GP').encode()))
    trace = read_trace(path)
    assert [r.t_s for r in trace if isinstance(r, Record)] == [0.5]
    assert trace.cut == "cut off after line 2, 0.5 s"


def test_a_last_line_without_newline_counts_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(HEADER) + '\n[0.5, "nvml/GPU-1", [70]]').encode()))
    trace = read_trace(path)
    assert len(list(trace)) == 2
    assert trace.cut is None


def test_damage_in_the_stream_keeps_what_came_before(tmp_path: Path) -> None:
    good = written([NODE, RECORDS[0]])[:-10]  # without the end of the stream: a block boundary
    path = tmp_path / "damaged.jsonl.gz"
    path.write_bytes(good + b"\xff" * 64)
    trace = read_trace(path)
    assert list(trace) == [NODE, RECORDS[0]]
    assert trace.cut == "damaged after line 2, 0.1 s"


def test_concatenated_gzip_files_are_one_trace(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl.gz"
    path.write_bytes(written([NODE, *RECORDS]) + written([NODE, *RECORDS]) + b"\0" * 512)
    trace = read_trace(path)
    assert len(list(trace)) == 2 * (1 + len(RECORDS))
    assert trace.cut is None


def packed(data: bytes) -> bytes:
    """Gzip that is the same at any time: it names tests."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(("content", "message"), [
    (b"", "empty, not a trace"),
    (b"hello\n", "not gzip, so not a trace"),
    (packed(b""), "empty, not a trace"),
    (packed(b"hello\n"), "not a trace, its first line is not JSON"),
    (packed(b"\xff\xfe\n"), "not a trace, its first line is not JSON"),
    (packed(b"[" * 200_000 + b"\n"), "not a trace, its first line is not JSON"),
    (packed(b'[0.1, "nvml", [1]]\n'), "not a trace, its first line is not a header"),
    (packed(b'{"a": 1}\n'), "not a trace: format is None, not 'overlap-trace'"),
    (packed(b'{"format": "overlap-trace", "version": 2}\n'), "version 2; this program reads version 1"),
    (packed(b'{"format": "overlap-trace", "version": "x"}\n'), "version x; this program reads version 1"),
    (packed(b'{"format": "overlap-trace", "version": 1}\n'), "header: devices is None, not a list of objects"),
    (packed(b'{"format": "overlap-trace", "version": 1, "devices": [], "sources": 3}\n'), "header: sources is 3"),
    (packed(b'{"format": "overlap-trace", "version": 1, "devices": [{"kind": "gpu"}], "sources": []}\n'), "has no id"),
])
def test_what_is_no_trace_is_refused_in_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "nowhere/a.jsonl.gz"])
def test_what_cannot_be_opened_is_refused_in_one_clear_line(tmp_path: Path, path: str) -> None:
    with pytest.raises(TraceError, match=r"directory"):
        read_trace(tmp_path / path)


@pytest.mark.parametrize(("line", "message"), [
    ("garbage", "line 4 is not JSON"),
    ("17", "line 4: neither a header nor a read"),
    ([0.2, "nvml/GPU-1"], "line 4: neither a header nor a read"),
    ([None, "nvml/GPU-1", [1]], "line 4: the time is None"),
    ([0.2, 5, [1]], "line 4: not a read"),
    ([0.2, "nvml/GPU-1", [1, 2]], "line 4: 2 values of nvml/GPU-1, which has 1 channels"),
    ([0.2, "nvml/GPU-1", ["x"]], "line 4: a value of nvml/GPU-1 is not a number"),
    ({"format": "overlap-trace", "version": 9}, "line 4: version 9"),
])
def test_a_garbage_line_is_named_by_its_number(tmp_path: Path, line: object, message: str) -> None:
    path = trace_of(tmp_path / "a", HEADER, [0.1, "nvml/GPU-1", [70]], "", line, [0.3, "nvml/GPU-1", [71]])
    trace = read_trace(path)
    seen: list[Event] = []
    with pytest.raises(TraceError) as caught:
        seen.extend(trace)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("entry", [
    {"kind": "gpu", "id": "GPU-0", "index": "zero"},
    {"kind": "gpu", "id": "GPU-0", "power_window_seconds": "fast"},
    {"kind": "gpu", "id": "GPU-0", "power_limit_watts": True},
    {"kind": "gpu", "id": 0},
])
def test_a_header_value_of_the_wrong_kind_is_named(tmp_path: Path, entry: dict[str, object]) -> None:
    with pytest.raises(TraceError, match=r"header: \w+ is .*, not a"):
        read_trace(trace_of(tmp_path / "a", {**HEADER, "devices": [entry]}))


def test_unknown_keys_kinds_sources_and_channels_are_ignored(tmp_path: Path) -> None:
    head = {
        "format": "overlap-trace", "version": 1, "host": "n", "started_unix_s": 5, "colour": "blue",
        "devices": [{"kind": "gpu", "id": "GPU-0", "fans": 3}, {"kind": "dpu", "id": "d0"}],
        "links": {"GPU-0": ["d0", "nowhere"], "GPU-9": ["GPU-0"]},
        "sources": [
            {"name": "nvml", "channels": ["GPU-0/fan_ratio", "GPU-0/power_watts", "GPU-7/power_watts"], "mood": 1},
            {"name": "dpu", "channels": ["d0/power_watts"]},
        ],
    }
    path = trace_of(tmp_path / "a", head, [0.1, "nvml", [0.5, 612.4, 9]], [0.2, "dpu", [1]], [0.3, "later", [1, 2]])
    inventory, *records = read_trace(path)
    assert isinstance(inventory, Inventory)
    assert inventory.devices == (Device("gpu", "GPU-0"),)
    assert inventory.sources == (Source("nvml", ("GPU-0/power_watts",)),)
    assert inventory.links == ()
    assert records == [Record("nvml", 0.1, [612.4])]


def test_a_number_beyond_floats_is_taken_as_not_read(tmp_path: Path) -> None:
    _, record = read_trace(trace_of(tmp_path / "a", HEADER, '[0.1, "nvml/GPU-0", [NaN, 1e999]]'))
    assert isinstance(record, Record)
    assert all(math.isnan(value) for value in record.values)


def test_a_gpu_with_nvlink_channels_is_linked_to_itself_and_shared_ports_are_weighed(tmp_path: Path) -> None:
    head = {**HEADER, "sources": [{"name": "nvml", "channels": ["GPU-1/nvlink_transmit_bytes_total"]}]}
    inventory = read_trace(trace_of(tmp_path / "a", head)).inventory
    assert [(k.gpu_id, k.device_id, k.path, k.weight) for k in inventory.links] == [
        ("GPU-0", "mlx5_0/1", "rdma", 0.5), ("GPU-0", "eth0", "tcp", 1.0),
        ("GPU-1", "mlx5_0/1", "rdma", 0.5), ("GPU-1", "GPU-1", "nvlink", 1.0),
    ]
    assert header(inventory)["links"] == HEADER["links"]


def test_a_later_header_replaces_devices_links_and_sources(tmp_path: Path) -> None:
    second = Inventory("node-1", 1767225600.0, NODE.devices[1:2], (), NODE.sources[1:2])
    path = tmp_path / "a.jsonl.gz"
    with TraceWriter(path) as writer:
        for event in (NODE, RECORDS[0], second, Record("nvml/GPU-1", 5.0, [80.0]), Record("nvml/GPU-0", 5.0, [1.0, 1.0])):
            writer.write(event)
    events = list(read_trace(path))
    assert events == [NODE, RECORDS[0], second, Record("nvml/GPU-1", 5.0, [80.0])]


def test_a_device_in_quarantine_leaves_the_header_until_it_is_lifted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with TraceWriter(path) as writer:
        for event in (
            NODE, Quarantine("gpu", "GPU-0", 2.0, "gpu_lost"), RECORDS[0], RECORDS[2],
            Quarantine("gpu", "GPU-0", 3.0, "gpu_lost"), Quarantine("gpu", "GPU-0", 9.0, None), RECORDS[0],
        ):
            writer.write(event)
    first, without, record, again, back = read_trace(path)
    assert first == again == NODE
    assert isinstance(without, Inventory)
    assert [d.id for d in without.devices] == ["GPU-1", "mlx5_0/1", "eth0", "all"]
    assert {k.gpu_id for k in without.links} == {"GPU-1"}
    assert without.jobs == {"GPU-1": "b"}
    assert record == RECORDS[2]
    assert back == RECORDS[0]


def test_a_quarantined_rdma_device_takes_its_ports_along() -> None:
    lines = lines_of(written([NODE, Quarantine("rdma", "mlx5_0", 2.0, "hang")]))
    assert "mlx5_0/1" not in [d["id"] for d in lines[1]["devices"]]
    assert lines[1]["links"] == {"GPU-0": ["eth0"]}


def test_statuses_and_reads_that_no_header_names_leave_no_trace() -> None:
    lines = lines_of(written([RECORDS[0], NODE, SourceStatus("nvml/GPU-0", 1.0), Record("other", 1.0, [1.0]),
                              Record("nvml/GPU-1", 1.0, [1.0, 2.0])]))
    assert len(lines) == 1


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"mine")
    with pytest.raises(TraceError, match="exists already"):
        TraceWriter(path)
    assert path.read_bytes() == b"mine"
    with TraceWriter(path, force=True) as writer:
        writer.write(NODE)
    assert list(read_trace(path)) == [NODE]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file or directory"):
        TraceWriter(tmp_path / "nowhere" / "a.jsonl.gz")


def test_a_writer_that_is_never_closed_loses_at_most_a_second(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    writer = TraceWriter(path)
    writer.write(NODE)
    assert list(read_trace(path)) == [NODE]
    for k in range(100):
        writer.write(Record("nvml/GPU-1", 0.1 * k, [70.5 + k]))
        records = [e for e in read_trace(path) if isinstance(e, Record)]
        assert 0.1 * k - records[-1].t_s < 1.0
    writer.close()
    writer.close()


def _write_all(writer: TraceWriter, events: Iterable[Event]) -> None:
    for event in events:
        writer.write(event)


class _SmallDisk(io.RawIOBase):
    """Takes so many bytes, some of them in part, and then none."""

    def __init__(self, room: int) -> None:
        self.room, self.data = room, bytearray()

    def write(self, data: Any) -> int:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        taken = min(self.room, len(data), 100)
        self.room -= taken
        self.data += bytes(data[:taken])
        return taken


def test_a_full_disk_is_told_and_what_was_written_before_stays_readable(tmp_path: Path) -> None:
    disk = _SmallDisk(3000)
    writer = TraceWriter(disk)  # type: ignore[arg-type]
    writer.write(NODE)
    records = [Record("nvml/GPU-1", float(k), [70.123 * k]) for k in range(1000)]
    with pytest.raises(TraceError, match="No space left on device"):
        _write_all(writer, records)
    writer.close()  # harmless
    with pytest.raises(TraceError, match="closed"):
        writer.write(records[0])
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(disk.data)
    kept = [e for e in read_trace(path) if isinstance(e, Record)]
    assert len(kept) > 20
    assert kept == records[: len(kept)]


def test_a_device_file_may_be_written_to_without_force() -> None:
    with pytest.raises(TraceError, match="No space left on device"), TraceWriter("/dev/full") as writer:
        writer.write(NODE)


def test_an_absurdly_long_line_is_refused_instead_of_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    deflate = zlib.compressobj(1, zlib.DEFLATED, 31)
    path.write_bytes(b"".join(deflate.compress(b" " * (1 << 20)) for _ in range(18)) + deflate.flush())
    with pytest.raises(TraceError, match="a line is longer than 16 MiB"):
        read_trace(path)
