"""Whatever stands in a trace or a configuration file: it is read, or refused in one line, and nothing else happens."""

from __future__ import annotations

import gzip
import io
import json
import math
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.config import ConfigError, load
from exporter.model import Event, Record
from exporter.session import Session
from exporter.sources.simulator import simulate
from exporter.trace import TraceError, TraceWriter, read_trace

SLACK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def short_trace() -> bytes:
    out = io.BytesIO()
    writer = TraceWriter(out)
    for event in simulate("serialized", 3.0, 0):
        writer.write(event)
    writer.close()
    return out.getvalue()


TRACE = short_trace()
LINES = gzip.decompress(TRACE).split(b"\n")
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12,
)  # fmt: skip


def take_in(path: Path, data: bytes) -> None:
    """Read it as `replay` and `analyze` do; TraceError is the only way to fail, and it says so in one line."""
    path.write_bytes(data)
    session = Session((15.0,), 15.0)
    events: list[Event] = []
    refused = ""
    try:
        events.extend(read_trace(str(path)))
    except TraceError as error:
        refused = str(error)
    assert "\n" not in refused
    for event in events:
        session.take(event)
        assert not isinstance(event, Record) or math.isfinite(event.t_s)
    session.finish(3.0)


@SLACK
@given(st.lists(st.tuples(st.integers(0, len(TRACE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_bytes_that_were_changed_on_the_way(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(TRACE)
    for at, byte in changes:
        data[at] = byte
    take_in(tmp_path / "trace.jsonl.gz", bytes(data))


@SLACK
@given(st.integers(0, len(LINES) - 1), st.binary(max_size=40))
def test_a_line_that_is_anything_at_all(tmp_path: Path, at: int, line: bytes) -> None:
    take_in(tmp_path / "trace.jsonl.gz", gzip.compress(b"\n".join([*LINES[:at], line, *LINES[at:]]), 1))


@SLACK
@given(st.sampled_from(("devices", "links", "sources", "jobs", "host", "started_unix_s", "truth", "version", "format")), JSON)
def test_a_header_in_which_anything_stands_for_a_key(tmp_path: Path, key: str, value: object) -> None:
    header = json.loads(LINES[0]) | {key: value}
    take_in(tmp_path / "trace.jsonl.gz", gzip.compress(b"\n".join([json.dumps(header).encode(), *LINES[1:]]), 1))


@SLACK
@given(JSON, st.sampled_from(("nvml/GPU-0", "rdma/mlx5_0", "nobody")), JSON)
def test_a_read_in_which_anything_stands_for_time_and_values(tmp_path: Path, t_s: object, source: str, values: object) -> None:
    line = json.dumps([t_s, source, values]).encode()
    take_in(tmp_path / "trace.jsonl.gz", gzip.compress(b"\n".join([*LINES[:5], line, *LINES[5:]]), 1))


@SLACK
@given(st.text(max_size=60) | JSON.map(json.dumps))
def test_a_configuration_file_that_says_anything_at_all(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    problems: tuple[str, ...] = ()
    try:
        load(str(file), {})
    except ConfigError as error:
        problems = error.problems
    assert all(problem.startswith(str(file)) for problem in problems)
