"""The offline report: what it says, in both languages, in one file that needs nothing else; in a browser and without."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import main
from exporter.report_plots import round_up
from exporter.sources.simulator import simulate
from exporter.trace import TraceWriter

pytest_plugins = ["tests.page_visits"]
WORDS = re.compile(r"<[^>]+>")


def trace(folder: Path, name: str, seconds: float = 75.0, gpus: int = 2) -> Path:
    path = folder / f"{name}.jsonl.gz"
    with TraceWriter(path) as writer:
        for event in simulate(name, seconds, 1, gpus=gpus):
            writer.write(event)
    return path


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert main(["analyze", str(trace(folder, "serialized")), "--html", str(folder / "out.html"), "--language", "en"]) == 0
    return folder / "out.html"


def test_a_report_is_one_file_that_names_no_address(reported: Path) -> None:
    text = reported.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|https?://""", text)
    assert text.count("<!doctype html>") == 1
    assert len(text) < 400_000


def test_the_verdict_is_in_words_with_causes_advice_windows_and_sensors(reported: Path) -> None:
    english = re.sub(r'<(span|tspan) lang="zh">.*?</\1>', "", reported.read_text(encoding="utf-8"))
    words = " ".join(WORDS.sub(" ", english).split())
    assert "Simulated (serialized): nothing here was measured." in words
    assert re.search(r"Serialized 2 of 2 GPUs : Compute and communication take turns: hardly any of it is hidden\. 4\d % of "
                     r"the running time is lost to exposed communication\.", words)  # fmt: skip
    assert "Communication is not hidden" in words
    assert re.search(r"GPU-1 exposed communication 4\d % \(threshold 5 %\); health", words)
    assert "DDP: raise bucket_cap_mb" in words
    for window in ("15 s", "60 s", "300 s"):
        assert f"GPU-0 75.0 s {window}" in words
    assert "power was read for 75 s of 300 s only" in words
    assert re.search(r"GPU-0 instant 0\.025 s 0\.1 s 0\.1\d* s 0\.\d+ s mlx5_0/1 \(rdma, trace, 0\.02 s\)", words)


def test_a_report_says_what_it_says_in_chinese_as_well(reported: Path) -> None:
    text = reported.read_text(encoding="utf-8")
    pairs = re.findall(r'<span lang="en">(.*?)</span><span lang="zh">(.*?)</span>', text)
    assert len(pairs) > 60
    assert all(zh for _, zh in pairs)
    assert ("Causes and what to do", "原因与对策") in pairs


@pytest.mark.parametrize("name", ["idle", "perfect_overlap", "gpu_lost", "two_jobs"])
def test_every_kind_of_trace_gives_a_report(name: str, tmp_path: Path) -> None:
    path = trace(tmp_path, name, 65.0, 4)
    assert main(["analyze", str(path), "--html", str(tmp_path / "out.html"), "--window", "15"]) == 0
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "nan" not in WORDS.sub(" ", text).lower().split()
    assert not re.search(r'="[^"]*\bnan\b', text)


def test_a_report_at_an_instant_is_of_that_instant(tmp_path: Path) -> None:
    path = trace(tmp_path, "serialized")
    assert main(["analyze", str(path), "--at", "70", "--html", str(tmp_path / "out.html")]) == 0
    assert "judged at 70 s" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_a_file_that_exists_is_not_overwritten_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.html").write_text("mine")
    path = trace(tmp_path, "idle", 20.0)
    arguments = ["analyze", str(path), "--html", str(tmp_path / "out.html")]
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.err == f"overlap-exporter: {tmp_path / 'out.html'}: exists already and is not overwritten; --force does\n"
    assert said.out == "", "refused before any work"
    assert (tmp_path / "out.html").read_text() == "mine"
    assert main([*arguments, "--force"]) == 0
    assert (tmp_path / "out.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["analyze", str(path), "--html", str(tmp_path / "no" / "out.html")]) == 1
    assert "its directory does not exist" in capsys.readouterr().err


def test_names_from_a_trace_never_become_markup(tmp_path: Path) -> None:
    from dataclasses import replace

    simulation = simulate("serialized", 30.0, 1, gpus=1)
    evil = "<script>alert(1)</script>"
    path = tmp_path / "evil.jsonl.gz"
    with TraceWriter(path) as writer:
        for event in simulation:
            if event is simulation.inventory:
                devices = tuple(replace(d, name=evil, power_source=evil) for d in event.devices)
                event = replace(event, devices=devices, host=evil, truth={"scenario": evil})  # noqa: PLW2901
            writer.write(event)
    assert main(["analyze", str(path), "--html", str(tmp_path / "out.html")]) == 0
    assert "<script>alert" not in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_piped_there_is_no_bar_and_no_colour(tmp_path: Path) -> None:
    path = trace(tmp_path, "serialized", 60.0)
    command = [sys.executable, "-m", "exporter", "analyze", str(path), "--html", str(tmp_path / "o.html")]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stderr.startswith(str(tmp_path / "o.html").encode())


@pytest.mark.end_to_end
def test_in_a_terminal_a_long_trace_has_a_bar(tmp_path: Path) -> None:
    import os
    import pty

    path = trace(tmp_path, "serialized", 90.0, 2)
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "exporter", "analyze", str(path)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=follower, env=environment)
    os.close(follower)
    seen = b""
    while True:
        try:
            if not (more := os.read(leader, 65536)):
                break
            seen += more
        except OSError:
            break
    os.close(leader)
    assert process.wait(10) == 0
    assert "judging" in seen.decode(errors="replace")
    assert "s of the trace" in seen.decode(errors="replace")


@pytest.mark.end_to_end
def test_in_a_browser_the_plots_are_there_and_a_button_changes_the_language(reported: Path, visit: Any) -> None:
    page = visit.url(reported.as_uri(), width=1280)
    assert page.locator("details[open]").count() == 1
    opened = page.locator("details[open]")
    assert opened.locator("svg").count() == 4
    assert opened.locator("svg .phase.exposed").count() > 10
    assert opened.locator("svg circle.dot").count() > 300
    box = opened.locator("svg").first.bounding_box()
    assert box["width"] > 900
    assert "traffic only" in opened.locator("svg").nth(1).text_content()
    assert page.locator("h2").first.inner_text() == "Verdict"
    page.click("#language")
    assert page.locator("h2").first.inner_text() == "判断"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.locator("details:not([open])").first.locator("summary").click()
    assert page.locator("details[open]").count() == 2


def test_axes_end_on_round_numbers() -> None:
    assert [round_up(v) for v in (0.0, 0.9, 383.0, 401.0, 7.3e9)] == [1.0, 1.0, 400.0, 500.0, 8e9]
