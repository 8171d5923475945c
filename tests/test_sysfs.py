"""Files of sysfs: what their texts mean, how failures are named, kept descriptors, and the moving tree of the tests."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sources import files as files_module
from exporter.sources import sysfs
from exporter.sources.files import Attribute, Total
from exporter.sources.sysfs import (
    REASONS,
    canonical,
    names_in,
    natural_key,
    no_errors,
    numa_node,
    parse_carrier,
    parse_count,
    parse_operstate,
    parse_rate,
    parse_speed,
    parse_state,
    pci_path,
    probe,
)
from tests.sysfs_tree import FaultyOs, Moving, Node, Tree, Waveform, fixed_width, move_nic, move_ports, moving

PARSERS: tuple[Callable[[str], float | None], ...] = (
    parse_count, parse_state, parse_rate, parse_speed, parse_operstate, parse_carrier,
)  # fmt: skip


def attribute(path: Path, interval_s: float = 1.0) -> tuple[Attribute, dict[str, int]]:
    errors = no_errors()
    return Attribute(str(path), parse_count, interval_s, errors), errors


# What texts mean.


@pytest.mark.parametrize(
    ("text", "gbit_per_s"),
    [
        ("25 Gb/sec (1X EDR)", 25), ("100 Gb/sec (2X HDR)", 100), ("56 Gb/sec (4X FDR)", 56), ("400 Gb/sec (4X NDR)", 400),
        ("800 Gb/sec (4X XDR)", 800), ("400 Gb/sec (8X HDR)", 400), ("40 Gb/sec (4X FDR10)", 40),
        ("12.5 Gb/sec (1X HDR)", 12.5),
        ("10 Gb/sec (4X SDR)", math.nan), ("2.5 Gb/sec (1X SDR)", math.nan), ("10 Gb/sec (4X)", math.nan),
        ("", None), ("400", None), ("400 Gb/sec", None), ("nan Gb/sec (4X NDR)", None), ("-1 Gb/sec (4X NDR)", None),
    ],
)  # fmt: skip
def test_rates_are_bytes_per_second_and_sdr_says_nothing(text: str, gbit_per_s: float | None) -> None:
    expected = None if gbit_per_s is None else gbit_per_s * 1e9 / 8
    answer = parse_rate(text)
    assert (answer is None) == (expected is None)
    if answer is not None and expected is not None:
        assert answer == pytest.approx(expected, nan_ok=True)


def test_the_number_of_a_state_decides_and_not_its_word() -> None:
    assert parse_state("4: ACTIVE") == 1
    assert parse_state("4: whatever") == 1
    assert parse_state("5: ACTIVE_DEFER") == 0
    assert parse_state("1: DOWN") == 0
    assert parse_state("ACTIVE") is None


@given(st.one_of(st.text(), st.from_regex(r"-?\d{0,25}(\.\d)?( Gb/sec \(\d+X( \w+)?\)|: \w+)?")))
def test_no_text_makes_a_parser_raise_or_answer_anything_but_a_number_that_is_not_negative(text: str) -> None:
    for parse in PARSERS:
        answer = parse(text)
        assert answer is None or math.isnan(answer) or (answer >= 0 and math.isfinite(answer)), parse


@given(st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_every_64_bit_counter_is_read_exactly(count: int) -> None:
    assert parse_count(str(count)) == count


@given(st.binary(max_size=300))
def test_no_content_of_a_file_makes_an_attribute_raise(content: bytes) -> None:
    path = Path("/tmp") / f"attribute-{os.getpid()}-{threading.get_ident()}"
    path.write_bytes(content)
    try:
        for parse in PARSERS:
            errors = no_errors()
            value = Attribute(str(path), parse, 1.0, errors).read()
            assert math.isnan(value) or value >= 0
            assert set(errors) == set(REASONS)
    finally:
        path.unlink()


@given(st.lists(st.text(min_size=1)))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural_key, reverse=True), key=natural_key) == sorted(names, key=natural_key)


def test_numbers_in_names_are_sorted_as_numbers(tmp_path: Path) -> None:
    for name in ("mlx5_10", "mlx5_2", "mlx4_0"):
        (tmp_path / name).touch()
    assert names_in(str(tmp_path)) == ["mlx4_0", "mlx5_2", "mlx5_10"]
    assert names_in(str(tmp_path / "gone")) == []


# How reading fails: the results that the kernel is known to give.

FAULTS = (
    ("EINVAL", "not_available"), ("EOPNOTSUPP", "not_available"), ("ENOSYS", "not_available"), ("EIO", "io_error"),
    ("ETIMEDOUT", "io_error"), ("EBUSY", "io_error"), ("EACCES", "permission_denied"), ("EPERM", "permission_denied"),
    ("ENOENT", "missing"), ("ENODEV", "vanished"), ("EMFILE", "io_error"),
)  # fmt: skip
TEXTS = (
    ("N/A (no PMA)", "not_available"), ("18446744073709551615", "not_available"), ("", "not_a_number"),
    ("garbage", "not_a_number"),
    ("-1", "not_a_number"), ("1e6", "not_a_number"), ("99999999999999999999", "not_a_number"),
)  # fmt: skip


@pytest.mark.parametrize(("error", "reason"), FAULTS)
def test_every_failure_of_the_kernel_has_a_word(
    error: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    tree.fail("file", error)
    for module in (sysfs, files_module):
        monkeypatch.setattr(module, "os", FaultyOs(tree.faults))
    file, errors = attribute(tmp_path / "file")
    assert math.isnan(file.read())
    assert (file.reason, errors[reason], sum(errors.values())) == (reason, 1, 1)
    assert probe(str(tmp_path / "file"), parse_count) == (None, reason)
    assert reason in REASONS


@pytest.mark.parametrize(("text", "reason"), TEXTS)
def test_a_text_that_is_no_number_is_no_sample(text: str, reason: str, tmp_path: Path) -> None:
    file, errors = attribute(Tree(tmp_path).write("file", text))
    assert math.isnan(file.read())
    assert errors[reason] == 1


def test_a_directory_in_the_place_of_a_file_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    file, errors = attribute(tmp_path / "file")
    assert math.isnan(file.read())
    assert errors["missing"] == 1


def test_a_fault_that_passes_costs_one_reading_first_and_then_pauses_that_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    path = str(tree.write("file", "1").resolve())
    monkeypatch.setattr(files_module, "os", FaultyOs(tree.faults))
    file, errors = attribute(Path(path))
    assert file.read() == 1
    tree.faults[path] = errno.ETIMEDOUT
    tried = []
    for tick in range(200):
        before = file._failures
        file.read()
        if file._failures != before:
            tried.append(tick)
    assert tried == [0, 1, 3, 6, 11, 20, 37, 70, 131, 192]
    assert errors["io_error"] == 1
    del tree.faults[path]
    assert any(file.read() == 1 for _ in range(61))


def test_a_descriptor_is_kept_between_readings_and_given_back(tmp_path: Path) -> None:
    path = Tree(tmp_path).write("file", "1")
    file, _ = attribute(path)
    values = []
    for count in (5, 77, 6):
        path.write_text(f"{count}\n")
        values.append(file.read())
    assert values == [5, 77, 6]
    file.close()
    assert file.read() == 6


def test_sums_apply_their_factor_once() -> None:
    class Fixed(Attribute):
        def __init__(self, value: int) -> None:
            super().__init__("", parse_count, 1.0, no_errors())
            self.value = value
            self.ever_good = True

        def read(self) -> float:
            return self.value

    assert Total([Fixed(3), Fixed(4)], 4).read() == 28
    assert Total([Fixed(1 << 62)], 4).read() == float(1 << 64)


# Where devices sit.


def test_paths_are_told_below_the_root_even_where_the_root_is_a_link(tmp_path: Path) -> None:
    node = Node(gpus=1, ports=1)
    node.build(tmp_path / "real")
    (tmp_path / "host").symlink_to(tmp_path / "real")
    root = str(tmp_path / "host" / "sys")
    place = node.port(0)
    assert canonical(root, f"{root}/class/infiniband/mlx5_0/device") == place.path
    assert pci_path(root, f"{root}/bus/pci/devices/{place.bdf}") == place.path
    assert pci_path(root, f"{root}/class/net/lo") is None
    assert numa_node(f"{root}/bus/pci/devices/{node.gpu(0).bdf}") == 0


def test_numa_node_minus_one_is_unknown(tmp_path: Path) -> None:
    Tree(tmp_path).write("numa_node", "-1")
    assert numa_node(str(tmp_path)) is None


# The moving tree: other tests trust it.


@given(
    st.floats(0, 0.5), st.floats(0.01, 0.5), st.floats(0, 0.5), st.floats(0, 2), st.floats(0, 1e6), st.floats(0.001, 3)
)
def test_a_wave_is_the_integral_of_traffic_that_is_there_in_the_last_part_of_each_period(
    compute_s: float, communication_s: float, shift_s: float, phase_s: float, start_s: float, length_s: float
) -> None:
    wave = Waveform(compute_s, communication_s, 1000.0, phase_s=phase_s, shift_s=shift_s)
    steps = 2000
    period_s = compute_s + communication_s
    times = [start_s + length_s * (k + 0.5) / steps for k in range(steps)]
    slow = sum((t + phase_s - shift_s) % period_s >= compute_s for t in times) * 1000.0 * length_s / steps
    fast = wave.bytes_until(start_s + length_s) - wave.bytes_until(start_s)
    edges = 2 * (length_s / period_s + 1)
    assert fast == pytest.approx(slow, abs=1000.0 * length_s / steps * edges + 1e-3)


def test_a_flat_wave_never_pauses() -> None:
    wave = Waveform(0.0, 0.1, 500.0)
    assert wave.bytes_until(12.34) - wave.bytes_until(2.34) == pytest.approx(5000)


def test_the_writer_moves_counters_by_the_wave_and_no_reader_sees_them_torn(tmp_path: Path) -> None:
    node = Node(gpus=1, ports=2)
    tree = node.build(tmp_path / "tree")
    flat, pulsed = Waveform(0.0, 1.0, 50e9), Waveform(0.1, 0.08, 50e9)
    plan = [*move_ports(tree, node, [flat, pulsed]), *move_nic(tree, node, 0, Waveform(0.0, 1.0, 1e9))]
    paths = [item.path for item in plan]
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    with moving(plan, tmp_path / "plan.json", 0.002):
        counts: list[list[int]] = [[] for _ in fds]
        start_s = time.monotonic()
        while time.monotonic() < start_s + 0.6:
            for fd, seen in zip(fds, counts, strict=True):
                raw = os.pread(fd, 64, 0)
                assert len(raw) == len(fixed_width(0))
                count = parse_count(raw.decode().strip())
                assert count is not None
                seen.append(int(count))
    for fd in fds:
        os.close(fd)
    for seen in counts:
        assert seen == sorted(seen)
        assert seen[-1] > 0
    words, nic_bytes = counts[0][-1], counts[4][-1]
    assert words * 4 / 50e9 == pytest.approx(nic_bytes / 1e9, rel=0.2)  # both have run for the same time
    assert counts[2][-1] < words


def test_a_plan_starts_at_its_base() -> None:
    assert Moving("x", Waveform(0, 1, 1)).base == 0
    assert fixed_width((1 << 64) - 1).strip() == b"18446744073709551615"
