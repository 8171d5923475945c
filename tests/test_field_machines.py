"""Every machine that people have, through the real sources: what they find and read is golden, what is judged is known."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.model import Device, Inventory, OverlapAnalysis, Record
from exporter.quantities import quantity_of, split_channel
from exporter.sources import GpuSettings, Lane, NetSettings, settings_to_json
from exporter.wire import Decoder
from tests.field_machines import FIELD_MACHINES, FieldMachine
from tests.field_machines import machine as field_machine
from tests.played import Played, played

NAMES = [m.name for m in FIELD_MACHINES]
JUDGED = [m for m in FIELD_MACHINES if m.state is not None]


def told(device: Device) -> str:
    values = {
        "uuid": device.uuid, "index": device.index, "name": device.name, "driver": device.driver,
        "power_limit_watts": device.power_limit_watts, "power_source": device.power_source,
        "power_window_s": device.power_window_s, "power_refresh_s": device.power_refresh_s,
        "rate_bytes_per_s": device.rate_bytes_per_s, "pci_path": device.pci_path, "numa_node": device.numa_node, **device.info,
    }  # fmt: skip
    return f"{device.kind} {device.id}: " + ", ".join(f"{k} {v}" for k, v in values.items() if v is not None)


def lane_lines(lane: Lane, play: Played) -> list[str]:
    if lane.source.name.startswith("rdma/"):
        play.count(lane.source.name.split("/")[1])
    first = lane.read()
    if lane.source.name.startswith("gpm/"):  # a mean needs two samples
        play.move_to(play.clock.mono_s() + 1.0)
        first = lane.read()
        play.move_to(play.clock.mono_s())
    assert first is not None
    lines = [f"lane {lane.source.name} each {lane.source.interval_s:g} s"]
    prefix = f"{lane.device_id}/"
    lines += [f"  {c.removeprefix(prefix)} {value:.10g}" for c, value in zip(lane.source.channels, first, strict=True)]
    return lines + [f"  error {reason} {count}" for reason, count in lane.errors.items() if count]


def shape(lane: Lane) -> tuple[str, ...]:
    """Kind, quantities and rate of a lane: what those of equal devices have in common."""
    kind, *name = lane.source.name.split("/")
    prefix = f"{lane.device_id}/"
    channels = tuple(c.removeprefix(prefix) for c in lane.source.channels)
    return (kind, *name[1:], f"{lane.source.interval_s:g}", *channels)


def described(play: Played) -> str:
    """What was found, how it was paired, and one reading of each lane of the first and the last device of a kind."""
    inventory = play.open()
    lines = [f"# {play.machine.about}"]
    lines += [told(device) for device in inventory.devices]
    for opened in play.opened:
        lines += [f"status {s.source} {'up' if s.up else 'down'}: {s.reason}" for s in opened.statuses]
        extra: Mapping[str, Any] = {k: v for k, v in opened.extra.items() if k not in ("topology", "detail")}
        lines += [f"extra {key}: {value}" for key, value in extra.items()]
        lines += [f"lost {device}: {reason}" for device, reason in opened.lost.items()]
    lines += [f"link {k.gpu_id} {k.path} {k.device_id}: {k.reason}, weight {k.weight:g}" for k in inventory.links]
    alike: dict[tuple[str, ...], list[Lane]] = {}
    for lane in play.lanes:
        alike.setdefault(shape(lane), []).append(lane)
    for first, *rest in alike.values():
        lines += lane_lines(first, play)
        lines += [f"{len(rest) - 1} lanes alike"] if len(rest) > 1 else []
        lines += lane_lines(rest[-1], play) if rest else []
    return "\n".join(lines).replace(str(play.tree.root), "ROOT") + "\n"


@pytest.mark.parametrize("machine", FIELD_MACHINES, ids=NAMES)
def test_what_the_sources_find_and_read_is_what_its_golden_file_says(
    machine: FieldMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    with played(machine, tmp_path, monkeypatch) as play:
        golden(f"machines/{machine.name}.txt", described(play))
        kinds = {device.id: device.kind for opened in play.opened for device in opened.devices}
        for channel in (channel for lane in play.lanes for channel in lane.source.channels):
            parts = split_channel(channel, set(kinds))
            assert parts is not None
            assert quantity_of(kinds[parts[0]], parts[1]) is not None, channel


def verdicts_after(play: Played, seconds: float, network_hertz: float = 20.0) -> list[OverlapAnalysis]:
    play.open(network_hertz=network_hertz)
    play.run(seconds)
    assert play.lost == []
    return [a for a in play.session.verdicts.analyses if a.window_s == 15.0]


@pytest.mark.parametrize("machine", JUDGED, ids=[m.name for m in JUDGED])
def test_each_machine_is_judged_as_its_job_is_or_says_why_it_cannot(
    machine: FieldMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(machine, tmp_path, monkeypatch) as play:
        verdicts = verdicts_after(play, 26.0)
    assert [a.gpu_id for a in verdicts] == [f"GPU-{k}" for k in range(len(machine.boards))]
    for analysis in verdicts:
        assert analysis.state == machine.state or (machine.within > 0.05 and analysis.state == "partial"), analysis
        if machine.state == "serialized":
            assert analysis.exposed == pytest.approx(0.4, abs=machine.within)
        elif machine.state == "unobservable":
            assert analysis.exposed is None
            assert analysis.health is None
        assert machine.why in (analysis.reason or ""), analysis.reason
        assert not any(math.isnan(v) for v in (analysis.health, analysis.exposed, analysis.correlation) if v is not None)


def told_by_reader(kind: str, settings: GpuSettings | NetSettings) -> tuple[Inventory, dict[str, Any], list[str]]:
    """What a reader process sends until it is quiet: its inventory, what it says beside, and the sources it read."""
    reader = subprocess.Popen(
        [sys.executable, "-m", "exporter.reader", kind, settings_to_json(settings)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stdin is not None
    decoder, inventory, read = Decoder(0.0, "", 1.8e9), None, dict[str, None]()
    try:
        until_s = time.monotonic() + 20.0
        while inventory is None or len(read) < len(inventory.sources):
            assert time.monotonic() < until_s, (kind, inventory, list(read))
            for event in decoder.feed(os.read(reader.stdout.fileno(), 1 << 16)):
                if isinstance(event, Inventory):
                    inventory = event
                elif isinstance(event, Record):
                    read[event.source] = None
        return inventory, dict(decoder.extra), sorted(read)
    finally:
        reader.stdin.close()
        reader.wait(10)
        reader.stdout.close()


THROUGH_READERS = ("h100_infiniband", "aws_p5", "gb200", "v100_shared", "a100_mig", "vgpu", "bnxt_old", "nothing")


@pytest.mark.parametrize("name", THROUGH_READERS)
def test_a_reader_process_tells_of_a_machine_what_its_sources_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(field_machine(name), tmp_path, monkeypatch) as play:
        expected = play.open(network_hertz=10.0)
        library = str(play.nvml.library) if play.nvml is not None else str(tmp_path / "none.so.1")
        net = NetSettings(play.tree.sys, play.tree.proc, machine_root=str(play.tree.root), network_hertz=10.0)
        gpu = GpuSettings(library, play.tree.sys)
        (gpus, gpu_extra, gpu_read), (ports, net_extra, net_read) = told_by_reader("gpu", gpu), told_by_reader("net", net)
    assert (*gpus.devices, *ports.devices) == expected.devices
    assert (*gpus.sources, *ports.sources) == expected.sources
    assert [*gpu_read, *net_read] == sorted(s.name for s in gpus.sources) + sorted(s.name for s in ports.sources)
    assert net_extra == play.net.extra
    assert {k: v for k, v in gpu_extra.items() if k != "detail"} == {k: v for k, v in play.gpus.extra.items() if k != "detail"}


def test_a_byte_counter_that_is_too_slow_for_the_job_is_named_with_its_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(field_machine("bnxt_old"), tmp_path, monkeypatch) as play:
        play.open(network_hertz=10.0)
        play.run(100.0)
        verdict = next(a for a in play.session.verdicts.analyses if a.window_s == 60.0)
        findings = {(f.finding, f.gpu_id) for f in play.session.verdicts.findings}
        measured = {r.id: r.refresh_s for r in play.session.analyzer.refresh if r.quantity == "bytes"}
    assert verdict.reason == "byte counter of bnxt_re0/1 takes a new value each 1 s: rhythms below 4 s cannot be seen"
    assert verdict.resolution_s == pytest.approx(4.0)
    assert (verdict.exposed_low, verdict.exposed) == (0.0, None)
    assert verdict.exposed_high is not None
    assert verdict.exposed_high >= 0.4
    assert {("sensor_too_slow", f"GPU-{k}") for k in range(2)} <= findings
    assert measured == {f"bnxt_re{k}/1": pytest.approx(1.0, rel=0.2) for k in range(2)}


@pytest.mark.parametrize(("name", "period_s", "state"), [
    ("a10_average", 2.0, "unobservable"), ("a10_average", 3.0, "unobservable"), ("a10_average", 8.0, "serialized"),
    ("bnxt_old", 2.0, "unobservable"), ("bnxt_old", 8.0, "serialized"), ("bnxt_old", 20.0, "serialized"),
])  # fmt: skip
def test_below_four_of_its_windows_a_slow_sensor_gives_no_verdict_and_above_a_true_one(
    name: str, period_s: float, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = field_machine(name)
    wave = {"compute_s": 0.6 * period_s, "communication_s": 0.4 * period_s}
    slower = tuple(replace(b, wave=replace(b.wave, **wave)) for b in machine.boards)
    with played(replace(machine, boards=slower), tmp_path, monkeypatch) as play:
        play.open(network_hertz=10.0)
        play.run(66.0)
        verdicts = [a for a in play.session.verdicts.analyses if a.window_s == 60.0]
    for verdict in verdicts:
        assert verdict.state == state or (state == "serialized" and verdict.state == "partial"), verdict
        assert (verdict.exposed is None) == (state == "unobservable")
        assert verdict.exposed is None or verdict.exposed == pytest.approx(0.4, abs=0.06)
