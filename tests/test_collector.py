from __future__ import annotations

import gzip
import shutil
import subprocess
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.collector import OPENMETRICS_TYPE, TEXT_TYPE, Exposition, SnapshotCollector, negotiate
from exporter.metrics import FAMILIES
from tests import snapshots

PROMTOOL = shutil.which("promtool")


def samples(families) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


@pytest.mark.parametrize("make", [snapshots.snapshot, snapshots.fullest, snapshots.mixed])
def test_promtool_finds_nothing_to_complain_of(make) -> None:
    assert PROMTOOL is not None, "promtool belongs to the test tools: install Debian's package prometheus"
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=Exposition.render(make()).text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_strict_parser_of_openmetrics_takes_the_openmetrics_form() -> None:
    families = list(parse_openmetrics(Exposition.render(snapshots.fullest()).openmetrics.decode()))
    ours = {f.name for f in families if f.name.startswith("overlap_")}
    assert ours == {f.name.removesuffix("_total") for f in FAMILIES}
    units = {f.name: f.unit for f in families}
    assert units["overlap_gpu_energy_joules"] == "joules"
    assert units["overlap_rdma_port_rate_bytes_per_second"] == "bytes_per_second"


def test_both_forms_hold_the_same_series_and_values() -> None:
    exposition = Exposition.render(snapshots.fullest())
    text, openmetrics = (
        samples(parse_text(exposition.text.decode())),
        samples(parse_openmetrics(exposition.openmetrics.decode())),
    )
    ours = {k: v for k, v in text.items() if not k[0].startswith("process_")}
    assert ours == {k: v for k, v in openmetrics.items() if not k[0].startswith("process_")}
    assert len(ours) > 900


@pytest.mark.parametrize(("content_type", "generate"), [(TEXT_TYPE, generate_latest), (OPENMETRICS_TYPE, generate_openmetrics)])
def test_what_is_kept_from_the_snapshot_before_changes_no_byte(content_type: str, generate) -> None:
    snapshot = snapshots.fullest()
    for t_s in (snapshot.t_s, snapshot.t_s + 1.0):
        now = replace(snapshot, t_s=t_s, wall_s=snapshot.wall_s + t_s, transport="tcp" if t_s > snapshot.t_s else "rdma")
        whole = generate(SnapshotCollector(now))
        ours = Exposition.render(now).body(content_type)
        assert [line for line in ours.splitlines() if not line.startswith(b"process_")] == [
            line for line in whole.splitlines() if not line.startswith(b"process_")
        ]


def test_no_series_of_creation_times_is_made() -> None:
    exposition = Exposition.render(snapshots.fullest())
    assert b"_created" not in exposition.text + exposition.openmetrics


def test_a_scrape_of_the_full_node_holds_at_most_1200_series() -> None:
    lines = [line for line in Exposition.render(snapshots.fullest()).text.splitlines() if not line.startswith(b"#")]
    assert len(lines) <= 1200
    assert len({line.rsplit(b" ", 1)[0] for line in lines}) == len(lines)


def test_histograms_are_cumulative_and_end_with_infinity() -> None:
    text = samples(parse_text(Exposition.render(snapshots.snapshot()).text.decode()))
    name = "overlap_analysis_duration_seconds"
    assert text[f"{name}_bucket", (("le", "0.01"),)] == 10.0
    assert text[f"{name}_bucket", (("le", "0.05"),)] == 400.0
    assert text[f"{name}_bucket", (("le", "+Inf"),)] == text[f"{name}_count", ()] == 400.0
    assert text[f"{name}_sum", ()] == 5.9


def test_the_main_process_speaks_of_itself() -> None:
    text = samples(parse_text(Exposition.render(snapshots.snapshot()).text.decode()))
    assert text["process_resident_memory_bytes", ()] > 1e6
    assert text["process_cpu_seconds_total", ()] > 0.0
    assert text["process_start_time_seconds", ()] > 1e9


def test_families_without_samples_are_not_even_named() -> None:
    bare = replace(snapshots.snapshot(), findings=(), pci_gpus=None, nvml_gpus=None)
    names = {family.name for family, _ in SnapshotCollector(bare).families}
    assert "overlap_state" in names
    assert not names & {"overlap_finding", "overlap_gpus", "overlap_gpu_xid_errors_total"}


def test_a_second_scrape_of_a_snapshot_gets_the_very_bytes_of_the_first() -> None:
    exposition = Exposition.render(snapshots.snapshot())
    assert exposition.text is exposition.text
    assert exposition.body(TEXT_TYPE, gzipped=True) is exposition.body(TEXT_TYPE, gzipped=True)
    assert gzip.decompress(exposition.body(TEXT_TYPE, gzipped=True)) == exposition.text
    assert gzip.decompress(exposition.body(OPENMETRICS_TYPE, gzipped=True)) == exposition.openmetrics


def test_scrapes_at_the_same_time_render_once() -> None:
    exposition = Exposition.render(snapshots.fullest())
    bodies: list[bytes] = []
    threads = [threading.Thread(target=lambda: bodies.append(exposition.text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(body) for body in bodies}) == 1


@given(st.text(max_size=40), st.text(max_size=40))
def test_names_of_any_kind_survive_both_forms(name: str, firmware: str) -> None:
    there = snapshots.inventory(gpus=1, ports=1, nics=1)
    gpu, port, *others = there.devices
    there = replace(there, devices=(replace(gpu, name=name), replace(port, info={"firmware": firmware}), *others))
    exposition = Exposition.render(replace(snapshots.snapshot(gpus=1, ports=1, nics=1), inventory=there))
    for families in (parse_text(exposition.text.decode()), parse_openmetrics(exposition.openmetrics.decode())):
        labels = [
            dict(labels) for (sample, labels) in samples(families) if sample in ("overlap_gpu_info", "overlap_rdma_port_info")
        ]
        assert labels[0]["name"] == name
        assert labels[1]["firmware"] == firmware


@pytest.mark.parametrize(("accept", "content_type"), [
    ("", TEXT_TYPE),
    ("*/*", TEXT_TYPE),
    ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", TEXT_TYPE),
    ("text/plain;version=0.0.4", TEXT_TYPE),
    ("application/openmetrics-text", OPENMETRICS_TYPE),
    ("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPENMETRICS_TYPE),
    ("application/openmetrics-text;q=0.2, text/plain;q=0.9", TEXT_TYPE),
    ("application/openmetrics-text;q=0, */*", TEXT_TYPE),
    ("application/openmetrics-text;q=much", TEXT_TYPE),
    ("Application/OpenMetrics-Text; Version=1.0.0", OPENMETRICS_TYPE),
])  # fmt: skip
def test_the_form_is_the_one_that_is_asked_for(accept: str, content_type: str) -> None:
    assert negotiate(accept) == content_type
