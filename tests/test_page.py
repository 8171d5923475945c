"""The live page in a real browser, over a real server; what it says, not how it is built."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from exporter import endpoints
from exporter.advice import ADVICE
from exporter.meanings import FINDINGS
from exporter.model import Inventory, Snapshot
from tests import snapshots

if TYPE_CHECKING:
    from tests.page_visits import Visit

pytest_plugins = ["tests.page_visits"]

PAGE = Path(endpoints.__file__).parent / "page"
UPLOT_HOME = "https://github.com/leeoniya/uPlot"  # in the first line of the library

pytestmark = pytest.mark.end_to_end


def card(page: Any, gpu: int) -> Any:
    return page.locator(f'article[data-gpu="GPU-{gpu}"]')


def test_every_gpu_has_a_card_with_state_and_numbers(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    page.wait_for_selector("article:nth-of-type(8)")
    for index, verdict in enumerate(snapshots.VERDICTS):
        assert card(page, index).get_attribute("data-state") == verdict["state"]
    words = card(page, 2).inner_text()
    assert "GPU 2" in words
    assert "Serialized" in words
    assert re.search(r"Health\s+3 %", words)
    assert re.search(r"Exposed\s+43 %\s*38 – 47 %", words)
    assert "Communication is not hidden" in words
    assert f"→ {ADVICE['ddp_bucket_cap'].action.en}" in words, "what to do stands on the card"


def test_a_gpu_that_cannot_be_judged_says_why_and_shows_no_number(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    words = card(page, 5).inner_text()
    assert "Unobservable" in words
    assert "power sensor averages over 1 s: rhythms below 8 s cannot be seen" in words
    assert re.search(r"Health\s+–", words)
    assert re.search(r"Exposed\s+–\s*2 – 40 %", words)
    assert "left alone: does not answer" in card(page, 7).inner_text()


def test_a_card_shows_its_last_seconds_at_a_glance(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    page.wait_for_selector('article[data-gpu="GPU-2"] canvas[aria-label*=" W"]')
    label = card(page, 2).locator("canvas").get_attribute("aria-label")
    assert re.fullmatch(r"Power \d{3} W, RDMA [\d.]+ GB/s", label)
    colours = """(gpu) => {
        const canvas = document.querySelector(`article[data-gpu="GPU-${gpu}"] canvas`);
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let power = 0, traffic = 0;
        for (let i = 0; i < data.length; i += 4) {
            if (data[i + 3] < 90) continue;
            if (data[i] > 200 && data[i + 2] < 90) power += 1;
            if (data[i + 2] > 200 && data[i] < 120) traffic += 1;
        }
        return [power, traffic];
    }"""
    power, traffic = page.evaluate(colours, 2)
    assert power > 100
    assert traffic > 300
    assert page.evaluate(colours, 7) == [0, 0]  # in quarantine: nothing to draw


def test_a_finding_opens_to_its_evidence_and_advice_in_the_language_of_the_page(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    card(page, 2).locator("button.chip").first.click()
    words = page.locator("dialog[open]").inner_text()
    assert re.match(r"GPU 2\s+Communication is not hidden", words)
    assert re.search(r"exposed communication\s+43 %\s+threshold 10 %", words)
    assert ADVICE["ddp_bucket_cap"].action.en in words
    assert ADVICE["fsdp_prefetch"].cost.en in words
    page.locator("dialog button").click()
    assert page.locator("dialog[open]").count() == 0
    page.click("#language")
    page.locator("#notices button.chip").click()
    assert FINDINGS["congestion"].meaning.zh in page.locator("dialog[open]").inner_text()


def test_a_simulated_node_says_so_in_the_header_and_a_real_one_does_not(visit: Visit) -> None:
    page, daemon = visit(snapshots.mixed())
    page.wait_for_selector("#mode:not([hidden])")
    assert page.locator("#mode").inner_text() == "SIMULATED"
    assert "nothing here was measured" in page.locator("#notices").inner_text()
    daemon.show(snapshots.snapshot(t_s=401.0))
    page.wait_for_selector("#mode", state="hidden")
    assert "measured" not in page.locator("#notices").inner_text()


def test_what_is_missing_is_named_with_its_reason(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    page.wait_for_selector("article")
    notices = page.locator("#notices").inner_text()
    assert "Missing – GPU sensors (NVML): does not answer (GPU-7)" in notices
    assert "Missing – GPU activity (GPM): not supported here" in notices
    assert "The network is congested" in notices


def test_a_node_without_gpus_says_so(visit: Visit) -> None:
    down = snapshots.health("nvml", up=False, reason="library_not_found")
    page, _ = visit(Snapshot(1.0, 1.8e9, Inventory("cpu-node", 1.8e9), "serve", {}, (), {}, sources=(down,)))
    assert "No GPU can be read on this node." in page.locator("#empty").inner_text()
    assert "the NVIDIA library was not found" in page.locator("#notices").inner_text()
    assert page.locator("h1").inner_text() == "cpu-node"


def test_old_news_are_called_old_and_fresh_ones_lift_it(visit: Visit) -> None:
    page, daemon = visit(snapshots.mixed())
    page.wait_for_selector('#pulse[data-live="live"]')
    page.wait_for_selector('#pulse[data-live="stale"]')
    page.wait_for_timeout(3000)  # through a heartbeat of the stream
    assert page.locator('#pulse[data-live="stale"]').count() == 1
    assert "What you see is old" in page.locator("#notices").inner_text()
    assert "no news for" in page.locator("#pulse").inner_text()
    daemon.show(snapshots.mixed(t_s=401.0))
    page.wait_for_selector('#pulse[data-live="live"]')
    assert "old" not in page.locator("#notices").inner_text()


def test_an_exporter_that_is_gone_is_called_gone(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    page.wait_for_selector('#pulse[data-live="live"]')
    page.stop_server()
    page.wait_for_selector('#pulse[data-live="lost"]')
    assert "The exporter does not answer" in page.locator("#notices").inner_text()


def test_the_language_follows_the_browser_and_a_button_changes_it_for_good(visit: Visit) -> None:
    page, daemon = visit(snapshots.mixed(), locale="zh-CN")
    page.wait_for_selector("article")
    assert "串行" in card(page, 2).inner_text()
    assert "功耗传感器按 1 秒取平均" in card(page, 5).inner_text()
    page.click("#language")
    assert "Serialized" in card(page, 2).inner_text()
    page.reload()
    daemon.show(snapshots.mixed())
    page.wait_for_selector("article")
    assert "Serialized" in card(page, 2).inner_text()
    assert page.locator("html").get_attribute("lang") == "en"


def test_colours_follow_the_system_until_a_button_says_otherwise(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed(), scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    dark = page.evaluate(background)
    assert light != dark
    page.click("#theme")
    assert page.evaluate(background) == light


def test_names_from_devices_never_become_markup(visit: Visit) -> None:
    evil = "<img src=x onerror=\"document.title='broken'\">"
    full = snapshots.mixed()
    devices = tuple(replace(d, name=evil) if d.kind == "gpu" else d for d in full.inventory.devices)
    page, _ = visit(replace(full, inventory=replace(full.inventory, devices=devices, host=evil), quarantined=()))
    page.wait_for_selector("article")
    assert page.locator("h1").inner_text() == evil
    assert page.locator("article img").count() == 0
    assert "broken" not in page.title().replace(evil, "")


@pytest.mark.parametrize("width", [500, 360, 1400])
def test_nothing_sticks_out_of_the_window(width: int, visit: Visit) -> None:
    page, _ = visit(snapshots.mixed(), width=width)
    page.wait_for_selector("article")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_eight_gpus_and_the_scope_fit_on_one_screen(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    page.wait_for_selector("#scope canvas")
    assert page.evaluate("document.getElementById('scope').getBoundingClientRect().bottom") <= 900


def test_both_languages_have_every_word(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    keys = page.evaluate("""async () => {
        const { TEXT } = await import('/page/text.js');
        const names = (table, above = '') => Object.entries(table).flatMap(([key, value]) =>
            value.constructor === Object ? names(value, above + key + '.') : [above + key]);
        return [names(TEXT.en), names(TEXT.zh)];
    }""")
    assert sorted(keys[0]) == sorted(keys[1])
    from exporter.model import STATES, TRANSPORTS

    assert {f"states.{s}" for s in STATES} | {f"transports.{t}" for t in TRANSPORTS} <= set(keys[0])


def test_the_page_names_no_other_host_and_has_no_inline_code() -> None:
    assert (PAGE / "vendor" / "uPlot.LICENSE").read_text(encoding="utf-8").startswith("The MIT License")
    for file in [*PAGE.glob("*.*"), *(PAGE / "vendor").glob("*.js"), *(PAGE / "vendor").glob("*.css")]:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "").replace(UPLOT_HOME, "")
        assert "http://" not in text, file.name
        assert "https://" not in text, file.name
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", html)
