"""The page over real daemons: a job on a fake machine whose GPU hangs while it is watched, a replay, the demo; and Prometheus
beside it over TLS and basic authentication."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from exporter.cli import main
from tests.end_to_end.processes import daemon, eventually
from tests.machines import antiphase
from tests.monitoring import end
from tests.test_web_config import certificate
from tests.tools import require

pytest_plugins = ["tests.page_visits"]
pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(200)]
SHORT = "analysis: {windows_seconds: [15], verdict_window_seconds: 15}\n"


def text(page: Any, selector: str) -> str:
    return str(page.locator(selector).inner_text())


def test_a_gpu_that_hangs_while_it_is_watched_is_called_so_and_the_rest_goes_on(tmp_path: Path, visit: Any) -> None:
    require("gcc")
    (tmp_path / "settings.yml").write_text(SHORT)
    with antiphase(2).running(tmp_path / "machine") as running, daemon(
        tmp_path / "log", ["--config.file", str(tmp_path / "settings.yml"), *running.arguments], running.environment
    ) as exporter:  # fmt: skip
        exporter.ready()
        page = visit.url(f"{exporter.url}/#gpu=1")
        page.set_default_timeout(30_000)
        page.wait_for_selector('article[data-gpu="GPU-1"][data-state="serialized"]')
        page.wait_for_selector('#phase-legend .phase[data-phase="exposed"]')
        assert page.locator("#mode").is_hidden(), "what is measured is not called simulated"
        before = int(page.locator("#scope").get_attribute("data-points"))
        assert before > 300
        assert running.nvml is not None
        running.nvml.edit(1, hang=60.0)
        page.wait_for_selector("#scope-old:not([hidden])")
        page.wait_for_selector('#notices:has-text("does not answer")')
        page.wait_for_selector('article[data-gpu="GPU-1"] .why:has-text("left alone")')
        page.wait_for_selector('tr.bad[data-source^="nvml/GPU-1"]')
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector('#phase-legend .phase[data-phase="exposed"]')
        assert page.locator("#scope-old").is_hidden()
        assert page.locator('article[data-gpu="GPU-0"]').get_attribute("data-state") == "serialized"
        page.wait_for_selector('#pulse[data-live="live"]')


def test_a_daemon_that_dies_while_it_is_watched_is_missed_and_found_again(tmp_path: Path, visit: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{probe.getsockname()[1]}"
    with daemon(tmp_path / "a", ["--speed", "4", "--web.listen-address", at], command="demo") as first:
        page = visit.url(first.url)
        page.set_default_timeout(30_000)
        page.wait_for_selector('#pulse[data-live="live"]')
        assert text(page, "#mode") == "SIMULATED"
        page.wait_for_selector("#phase-legend .phase")
        first.process.kill()
        page.wait_for_selector('#pulse[data-live="lost"]')
        assert "does not answer" in text(page, "#notices")
    with daemon(tmp_path / "b", ["--speed", "4", "--web.listen-address", at], command="demo"):
        page.wait_for_selector('#pulse[data-live="live"]')
        page.wait_for_selector('#notices:not(:has-text("does not answer"))')


def test_a_replay_shows_what_was_recorded_and_says_that_it_is_one(tmp_path: Path, visit: Any) -> None:
    trace = tmp_path / "t.jsonl.gz"
    assert main(["simulate", "input_stall", str(trace), "--seconds", "120"]) == 0
    (tmp_path / "settings.yml").write_text(SHORT)
    with daemon(tmp_path / "log", [str(trace), "--speed", "4", "--config.file", str(tmp_path / "settings.yml")],
                command="replay") as exporter:  # fmt: skip
        page = visit.url(exporter.url)
        page.set_default_timeout(40_000)
        page.wait_for_selector('article[data-gpu="GPU-0"][data-state="stalled"]')
        assert text(page, "#mode") == "REPLAY"
        page.wait_for_selector('#phase-legend .phase[data-phase="stall"]')
        page.wait_for_selector("#fold canvas")
        assert re.search(r"mean of \d+ steps of 9\d\d ms", text(page, "#fold-readout"))
        status, body = exporter.get("/api/v1/trace?seconds=30", timeout_s=30)
        assert status == 200
        (tmp_path / "kept.jsonl.gz").write_bytes(body)
    assert main(["analyze", str(tmp_path / "kept.jsonl.gz"), "--window", "15", "--json"]) == 0


def test_a_finding_leaves_a_trace_in_the_directory_of_the_recorder(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl.gz"
    assert main(["simulate", "ddp_no_overlap", str(trace), "--seconds", "160"]) == 0
    (tmp_path / "settings.yml").write_text(f"{SHORT}recorder: {{directory: {tmp_path / 'kept'}}}\n")
    arguments = [str(trace), "--speed", "4", "--config.file", str(tmp_path / "settings.yml")]
    with daemon(tmp_path / "log", arguments, command="replay") as exporter:
        eventually(lambda: list((tmp_path / "kept").glob("*.jsonl.gz")), 60, "a trace is kept")
        assert "began: the last" in exporter.log()
    (kept,) = (tmp_path / "kept").glob("*.jsonl.gz")
    assert re.fullmatch(r"overlap-node-1-\d{8}T\d{6}Z-[a-z_]+\.jsonl\.gz", kept.name)
    assert main(["analyze", str(kept), "--json"]) == 0


def test_prometheus_scrapes_over_tls_with_a_password_while_the_page_is_refused_without(tmp_path: Path) -> None:
    require("prometheus")
    certificate(tmp_path, "server")
    hashed = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(10)).decode()
    (tmp_path / "web.yml").write_text(
        f"tls_server_config: {{cert_file: server.crt, key_file: server.key}}\nbasic_auth_users: {{scraper: '{hashed}'}}\n"
    )
    with daemon(tmp_path / "log", ["--web.config.file", str(tmp_path / "web.yml")], command="demo") as exporter:
        port = exporter.url.rpartition(":")[2]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            own = probe.getsockname()[1]
        job = (f"    scheme: https\n    tls_config: {{ca_file: {tmp_path / 'server.crt'}, server_name: localhost}}\n"
               f"    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n")  # fmt: skip
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
            f"  - job_name: good\n    basic_auth: {{username: scraper, password: s3cret}}\n{job}"
            f"  - job_name: wrong\n    basic_auth: {{username: scraper, password: guess}}\n{job}"
            f"  - job_name: nobody\n{job}"
        )
        from tests.end_to_end.test_prometheus import Prometheus

        with (tmp_path / "prometheus.log").open("wb") as log:
            server = subprocess.Popen(
                ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
                 f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log)  # fmt: skip
        try:
            asked = Prometheus(f"http://127.0.0.1:{own}")

            def up() -> dict[str, float]:
                try:
                    return {r["metric"]["job"]: float(r["value"][1]) for r in asked.query("max_over_time(up[1m])")}
                except OSError:
                    return {}

            eventually(lambda: up().get("good") == 1.0, 40, "Prometheus gets its metrics")
            eventually(lambda: len(up()) == 3, 20, "the others have tried")
            assert up() == {"good": 1.0, "wrong": 0.0, "nobody": 0.0}
            assert asked.value('overlap_build_info{job="good",mode="demo"}') == 1.0
        finally:
            end(server)
