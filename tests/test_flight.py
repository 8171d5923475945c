"""The flight recorder: what comes out is what was read, also of devices that have gone, within its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.flight import cut, encode, name_of
from exporter.history import History
from exporter.incidents import Incidents, make_room
from exporter.model import Device, Event, Finding, Inventory, Quarantine, Record, Source
from exporter.session import Session
from exporter.sources.simulator import simulate
from exporter.trace import read_trace
from tests.test_server import until


def written(history: History, seconds: float, now_s: float, path: Path) -> list[Event]:
    path.write_bytes(b"".join(encode(cut(history, seconds, now_s))))
    reader = read_trace(path)
    events = list(reader)
    assert reader.cut is None
    return events


def fed(events: object, until_s: float = 1e9) -> Session:
    session = Session()
    for event in events:  # type: ignore[attr-defined]
        t_s = getattr(event, "t_s", 0.0)
        if t_s > until_s:
            break
        session.advance(t_s)
        session.take(event)
    return session


def test_a_recording_is_judged_as_the_daemon_judged(tmp_path: Path) -> None:
    session = fed(simulate("fsdp_no_prefetch", 95.0, 3, gpus=2))
    session.advance(95.25)
    again = fed(written(session.history, 80.0, 95.0, tmp_path / "t.jsonl.gz"))
    again.advance(80.25)
    for live, kept in zip(session.evaluate(95.0, (60.0,)), again.evaluate(80.0, (60.0,)), strict=True):
        assert (kept.state, kept.gpu_id) == (live.state, live.gpu_id)
        assert kept.exposed == pytest.approx(live.exposed, abs=0.01)
        assert kept.health == pytest.approx(live.health, abs=0.02)


def test_every_reading_comes_out_once_in_the_order_of_time_and_rebased(tmp_path: Path) -> None:
    there = Inventory("n", 1000.0, (Device("gpu", "GPU-0", 0), Device("rdma_port", "mlx5_0/1")), (), (
        Source("nvml/GPU-0", ("GPU-0/power_watts",), 0.1), Source("rdma/mlx5_0", ("mlx5_0/1/transmit_bytes_total",), 0.02),
    ))  # fmt: skip
    history = History()
    history.apply(there)
    for k in range(6000):
        if k % 5 == 0:
            history.apply(Record("nvml/GPU-0", 0.02 * k + 0.001, (float(k),)))
        history.apply(Record("rdma/mlx5_0", 0.02 * k, (1e15 + k,)))
    first, *records = written(history, 50.0, 119.98, tmp_path / "t.jsonl.gz")
    assert isinstance(first, Inventory)
    assert first.started_unix_s == 1000.0 + 69.0  # the cut begins at a whole second
    times = [r.t_s for r in records if isinstance(r, Record)]
    assert times == sorted(times)
    counted = [r.values[0] for r in records if isinstance(r, Record) and r.source == "rdma/mlx5_0"]
    assert counted == [1e15 + k for k in range(3451, 6000)]
    assert len(times) == len(counted) + 510


def test_a_gpu_that_has_gone_is_in_the_recording_up_to_its_end(tmp_path: Path) -> None:
    gpus = tuple(Device("gpu", f"GPU-{i}", i) for i in range(2))
    sources = tuple(Source(f"nvml/GPU-{i}", (f"GPU-{i}/power_watts",), 0.1) for i in range(2))
    history = History()
    history.apply(Inventory("n", 0.0, gpus, (), sources))
    for k in range(300):
        for i in range(2):
            history.apply(Record(f"nvml/GPU-{i}", 0.1 * k, (400.0 + i,)))
    history.apply(Quarantine("gpu", "GPU-1", 29.95, "gpu_lost"))
    history.apply(Inventory("n", 0.0, gpus[:1], (), sources[:1]))
    for k in range(300, 400):
        history.apply(Record("nvml/GPU-0", 0.1 * k, (400.0,)))
    events = written(history, 600.0, 39.95, tmp_path / "t.jsonl.gz")
    inventories = [len(e.of_kind("gpu")) for e in events if isinstance(e, Inventory)]
    assert inventories == [2, 1]
    lost = [e.t_s for e in events if isinstance(e, Record) and e.source == "nvml/GPU-1"]
    assert (len(lost), max(lost)) == (299, pytest.approx(29.9))
    assert len([e for e in events if isinstance(e, Record) and e.source == "nvml/GPU-0"]) == 399


def test_ten_minutes_of_a_large_node_take_at_most_sixteen_megabytes() -> None:
    """8 GPUs at 10 Hz and 17 network devices at 50 Hz; one device of each kind is fed, and counted as often as it is there."""
    kinds = (("nvml", 3, 0.1, 8), ("rdma", 2, 0.02, 17), ("slow", 9, 1.0, 8), ("events", 15, 1.0, 8), ("xid", 4, 1.0, 8))
    total = 0
    for name, channels, every_s, count in kinds:
        history = History(Session().history._horizon_s)
        history.apply(Inventory("n", 0.0, (), (), (Source(name, tuple(f"d/{c}" for c in range(channels)), every_s),)))
        biggest = 0
        for k in range(int(700 / every_s)):
            history.apply(Record(name, k * every_s, [float(k)] * channels))
            if k % 100 == 0:
                biggest = max(biggest, history.nbytes)
        total += count * biggest
        t, _ = history.series("d/0", 0.0, 1e9)
        assert t[-1] - t[0] >= 600.0
    assert total <= 16e6


def test_names_of_files_hold_nothing_of_a_path() -> None:
    name = name_of(Inventory("../../etc/passwd; rm", 0.0), 5.0, "congestion")
    assert name == "overlap-etc-passwd--rm-19700101T000005Z-congestion.jsonl.gz"
    assert name_of(Inventory("", 0.0), 0.0) == "overlap-node-19700101T000000Z.jsonl.gz"


def finding(name: str, gpu: str | None = None) -> Finding:
    return Finding(name, gpu, 0.0)


def recordings(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl.gz"))


@pytest.fixture
def session() -> Session:
    return fed(simulate("serialized", 30.0, 1, gpus=1))


def test_a_finding_that_starts_is_kept_with_what_followed(tmp_path: Path, session: Session) -> None:
    incidents = Incidents(tmp_path / "kept", 1e8, session.history)
    incidents.note(5.0, ())
    incidents.note(8.0, [finding("small_buckets", "GPU-0")])
    for at_s in range(9, 28):
        incidents.note(float(at_s), [finding("small_buckets", "GPU-0")])
    assert not (tmp_path / "kept").exists(), "twenty seconds of what follows are kept as well"
    incidents.note(28.0, [finding("small_buckets", "GPU-0")])
    until(lambda: len(recordings(tmp_path / "kept")) == 1)
    incidents.stop()
    (file,) = recordings(tmp_path / "kept")
    assert file.name.endswith("-small_buckets.jsonl.gz")
    times = [e.t_s for e in read_trace(file) if isinstance(e, Record)]
    assert max(times) == pytest.approx(28.0, abs=0.1)
    incidents.note(200.0, [finding("small_buckets", "GPU-0")])
    assert incidents._due is None, "a finding that goes on is not kept again"


def test_findings_that_start_together_share_a_file(tmp_path: Path, session: Session) -> None:
    incidents = Incidents(tmp_path, 1e8, session.history)
    for at_s, names in ((1.0, ("a",)), (2.0, ("a", "b")), (21.0, ("a", "b")), (22.0, ("a", "b", "c")), (45.0, ("a", "b", "c"))):
        incidents.note(at_s, [finding(n) for n in names])
        if incidents._thread:
            incidents._thread.join()
    assert len(recordings(tmp_path)) == 1
    incidents.note(150.0, [finding(n) for n in "abc"])  # two minutes after the first
    incidents.stop()
    assert len(recordings(tmp_path)) == 1, "stopped: what was begun is given up"


def test_the_oldest_recordings_make_room_and_nothing_else_is_touched(tmp_path: Path) -> None:
    import os

    for k in range(5):
        (tmp_path / f"overlap-n-{k}.jsonl.gz").write_bytes(b"x" * 100)
        os.utime(tmp_path / f"overlap-n-{k}.jsonl.gz", (k, k))
    (tmp_path / "overlap-n-9.jsonl.gz.part").write_bytes(b"x")
    (tmp_path / "mine.jsonl.gz").write_bytes(b"x" * 1000)
    assert make_room(tmp_path, 250.0) == 3
    assert [p.name for p in recordings(tmp_path)] == ["mine.jsonl.gz", "overlap-n-3.jsonl.gz", "overlap-n-4.jsonl.gz"]
    assert not list(tmp_path.glob("*.part"))
    assert make_room(tmp_path, 1.0) == 1, "the newest stays, whatever the quota"


def test_a_directory_that_cannot_be_written_is_said_once(tmp_path: Path, session: Session,
                                                        caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    (tmp_path / "file").write_text("in the way")
    incidents = Incidents(tmp_path / "file", 1e8, session.history)
    for at_s, names in ((1.0, "a"), (22.0, "a"), (23.0, "ab"), (200.0, "ab")):
        incidents.note(at_s, [finding(n) for n in names])
        if incidents._thread:
            incidents._thread.join()
    assert [r.message for r in caplog.records] == [f"recorder.directory: {tmp_path / 'file'} cannot be written: File exists"]


def test_a_quota_below_one_file_leaves_none(tmp_path: Path, session: Session, caplog: pytest.LogCaptureFixture) -> None:
    incidents = Incidents(tmp_path, 1000.0, session.history)
    incidents.note(1.0, [finding("a")])
    incidents.note(22.0, [finding("a")])
    until(lambda: bool(caplog.records))
    incidents.stop()
    assert list(tmp_path.iterdir()) == []
    assert "recorder.quota_bytes: 1000 is less than one file takes" in caplog.text
