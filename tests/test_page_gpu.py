"""The chosen GPU on the live page: scope, scatter, folded step, trend, causes, pairing, sources; by what they say."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from exporter.advice import ADVICE
from exporter.history import History
from exporter.model import Record, Snapshot
from tests import snapshots
from tests.test_server import until

if TYPE_CHECKING:
    from tests.page_visits import Visit

pytest_plugins = ["tests.page_visits"]
pytestmark = pytest.mark.end_to_end


def text(page: Any, selector: str) -> str:
    return str(page.locator(selector).inner_text())


def opened(visit: Visit, gpu: int, snapshot: Snapshot | None = None, **more: Any) -> Any:
    page, _ = visit(snapshot or snapshots.mixed(), hash_=f"#gpu={gpu}", **more)
    page.wait_for_selector("#scope canvas")
    return page


def span_s(page: Any) -> float:
    return float(page.locator("#scope").get_attribute("data-span"))


def test_the_gpu_that_loses_most_is_looked_at_first(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed())
    page.wait_for_selector("#scope canvas")
    assert text(page, "#scope-box h2") == "GPU 2 · scope"
    assert page.locator('article[data-gpu="GPU-2"].chosen').count() == 1


def test_the_scope_holds_every_reading_and_colours_their_phases(visit: Visit) -> None:
    page = opened(visit, 2)
    # 10 s: 200 readings of power, and 100 intervals of traffic at the rate of the sources.
    until(lambda: int(page.locator("#scope").get_attribute("data-points")) > 290)
    assert int(page.locator("#scope").get_attribute("data-points")) == pytest.approx(312, abs=15)
    legend = text(page, "#phase-legend")
    assert re.search(r"compute 5\d %", legend)
    assert re.search(r"exposed 4\d %", legend)
    assert "overlapped" not in legend or re.search(r"overlapped (<1|\d) %", legend)


def colours(page: Any, canvas: str) -> dict[str, int]:
    return page.evaluate(
        """(selector) => {
            const canvas = document.querySelector(selector), found = {red: 0, green: 0, orange: 0, blue: 0};
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            for (let i = 0; i < data.length; i += 4) {
                const [r, g, b, a] = data.slice(i, i + 4);
                if (a < 90) continue;
                if (r > 200 && g > 70 && g < 130 && b > 70 && b < 130) found.red += 1;
                if (r < 110 && g > 170 && b > 90 && b < 180) found.green += 1;
                if (r > 220 && g > 130 && g < 190 && b < 90) found.orange += 1;
                if (b > 220 && r < 120) found.blue += 1;
            }
            return found;
        }""",
        canvas,
    )


def eventually(page: Any, drawn: Callable[[], bool]) -> None:
    """Wait until the canvas shows it: words are there a frame before the plot."""
    for _ in range(100):
        if drawn():
            return
        page.wait_for_timeout(100)
    raise AssertionError("not drawn within 10 s")


def test_phases_of_a_serialized_job_are_red_and_orange_and_those_of_a_hidden_one_green(visit: Visit) -> None:
    page = opened(visit, 2)
    page.wait_for_selector("#phase-legend .phase")
    eventually(page, lambda: min(colours(page, "#scope canvas")[name] for name in ("red", "orange")) > 1000)
    serialized = colours(page, "#scope canvas")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector('#phase-legend .phase[data-phase="overlapped"]')
    page.wait_for_selector('#chosen:text-is("GPU 0")')
    eventually(page, lambda: colours(page, "#scope canvas")["green"] > 2 * serialized["green"])


def test_the_crosshair_tells_the_values_under_it(visit: Visit) -> None:
    page = opened(visit, 2)
    page.wait_for_selector("#phase-legend .phase")
    assert "Move over the plot" in text(page, "#readout")
    box = page.locator("#scope .u-over").bounding_box()
    seen = set()
    for share in (0.3, 0.33, 0.36, 0.39, 0.42):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 50)
        words = text(page, "#readout")
        gap, rate = r"\s+·\s+", r"[\d.]+ .?B/s"
        assert re.match(rf"−\d+(\.\d)? s{gap}Power \d+ W{gap}RDMA {rate}{gap}NVLink {rate}{gap}\w+", words), words
        seen.add(words.split()[-1])
    assert {"compute", "exposed"} <= seen


def test_dragging_zooms_and_escape_goes_back_to_the_present(visit: Visit) -> None:
    page = opened(visit, 2)
    page.wait_for_selector("#phase-legend .phase")
    assert span_s(page) == 10.0
    box = page.locator("#scope .u-over").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    assert span_s(page) == pytest.approx(1.0, abs=0.05)
    assert re.fullmatch(r"zoomed to (1\.0\d s|99\d ms)", text(page, "#zoomed"))
    page.mouse.wheel(0, 200)
    until(lambda: span_s(page) > 1.1)
    page.keyboard.press("Escape")
    assert span_s(page) == 10.0
    assert text(page, "#zoomed") == ""


def test_everything_can_be_done_by_keyboard(visit: Visit) -> None:
    page = opened(visit, 2)
    page.keyboard.press("3")
    assert span_s(page) == 60.0
    assert page.locator('#spans [aria-pressed="true"]').inner_text() == "1 min"
    page.keyboard.press("1")
    page.keyboard.press("+")
    assert span_s(page) == 5.0
    page.keyboard.press("[")
    page.keyboard.press("-")
    assert span_s(page) == 10.0
    page.keyboard.press("Escape")
    page.keyboard.press(" ")
    assert text(page, "#zoomed") == "paused"
    assert text(page, "#pause") == "Go on"
    page.keyboard.press("p")
    assert text(page, "#pause") == "Pause"
    page.keyboard.press("ArrowRight")
    assert text(page, "#chosen") == "GPU 3"
    page.keyboard.press("l")
    assert text(page, "#pause") == "暂停"
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.locator('article[data-gpu="GPU-4"] .pick').focus()
    page.keyboard.press("Enter")
    assert text(page, "#chosen") == "GPU 4"
    assert page.url.endswith("#gpu=4")


def test_a_card_chooses_its_gpu_and_its_causes_open_beside_that(visit: Visit) -> None:
    page = opened(visit, 2)
    page.locator('article[data-gpu="GPU-4"] canvas').click()
    assert text(page, "#chosen") == "GPU 4"
    page.locator('article[data-gpu="GPU-2"] button.chip').first.click()
    assert page.locator("dialog[open]").count() == 1
    assert text(page, "#chosen") == "GPU 4", "a chip only opens its finding"


def test_the_scatter_has_four_quadrants(visit: Visit) -> None:
    page = opened(visit, 2)
    page.wait_for_selector('#scatter[aria-label*="%"]')
    label = page.locator("#scatter").get_attribute("aria-label")
    both, compute, traffic, neither = (int(n.replace("<1", "0")) for n in re.findall(r"(<?\d+) %", label))
    assert both + compute + traffic + neither == pytest.approx(100, abs=2)
    assert compute > 40
    assert traffic > 35
    assert both < 15
    assert re.fullmatch(r"both \S+ %, compute only \S+ %, traffic only \S+ %, neither \S+ %", label)
    dots = colours(page, "#scatter")
    assert dots["red"] > 50
    assert dots["orange"] > 50


def test_the_folded_step_is_the_mean_of_many(visit: Visit) -> None:
    full = snapshots.mixed()
    rhythm = tuple(replace(a, step_period_s=1.2) if a.gpu_id == "GPU-2" else a for a in full.analyses)
    page = opened(visit, 2, replace(full, analyses=rhythm))
    page.wait_for_selector("#fold canvas")
    assert re.fullmatch(r"mean of 3\d steps of 1\.20 s", text(page, "#fold-readout"))
    page.locator("#fold").scroll_into_view_if_needed()
    box = page.locator("#fold .u-over").bounding_box()
    found = []
    for share in (0.25, 0.85):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
        found.append(re.search(r"Power (\d+) W\s+·\s+RDMA ([\d.]+) (.?B/s)", text(page, "#fold-readout")).groups())
    (computing, *_), (sending, rate, unit) = found
    assert int(computing) > 500
    assert int(sending) < 400
    assert (float(rate) > 30, unit) == (True, "GB/s")


def test_without_a_rhythm_the_fold_says_why(visit: Visit) -> None:
    for gpu, why in ((6, "No job is running"), (5, "no verdict on this job")):
        page = opened(visit, gpu)
        page.wait_for_selector("#fold .nothing")
        assert why in text(page, "#fold")


def test_the_last_hour_is_a_trend_with_states(visit: Visit) -> None:
    page = opened(visit, 2)
    page.wait_for_selector("#trend canvas")
    assert text(page, "#trend-keys").split() == ["Health", "Exposed", "Correlation"]
    page.locator("#trend").scroll_into_view_if_needed()
    box = page.locator("#trend .u-over").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40)
    said = re.split(r"\s+·\s+", text(page, "#trend-readout"))
    assert re.fullmatch(r"\d\d:\d\d:\d\d", said[0])
    assert said[1:] == ["Serialized", "Health 3 %", "Exposed 43 %", "r −0.94"]
    assert colours(page, "#trend canvas")["red"] > 500


def test_causes_stand_in_full_with_evidence_and_advice(visit: Visit) -> None:
    page = opened(visit, 2)
    causes = text(page, "#findings")
    assert re.search(r"Communication is not hidden\s+GPU 2 · for 100 s", causes)
    assert re.search(r"exposed communication\s+43 %\s+threshold 10 %", causes)
    assert ADVICE["ddp_bucket_cap"].action.en in causes
    assert "The network is congested" in causes, "what is wrong with the node concerns each of its GPUs"
    page.keyboard.press("l")
    assert ADVICE["ddp_bucket_cap"].action.zh in text(page, "#findings")


def test_the_verdict_is_told_in_words_and_numbers(visit: Visit) -> None:
    page = opened(visit, 2)
    words = text(page, "#verdict")
    for name, value in (("Health", "3 %"), ("Exposed", "43 %"), ("Comm.", "44 %"), ("Step", "800 ms"), ("Correlation", "−0.94"),
                        ("Observability", "85 %")):  # fmt: skip
        assert re.search(rf"{re.escape(name)}\s+{re.escape(value)}", words), name
    assert "power sensor averages over 1 s" in text(opened(visit, 5), "#verdict")


def test_pairing_tells_why(visit: Visit) -> None:
    words = text(opened(visit, 3), "#pairing")
    assert re.search(r"mlx5_3/1\s+RDMA\s+PIX below the same PCIe switch\s+50 GB/s · mlx5_core · up", words)
    assert re.search(r"NVLink\s+NVLink", words)


def test_sources_show_age_refresh_and_trouble(visit: Visit) -> None:
    full = snapshots.mixed()
    ill = {"last_success_s": 390.0, "errors": {"timeout": 3}}
    late = tuple(replace(s, **ill) if s.source == "rdma/mlx5_6" else s for s in full.sources)
    page = opened(visit, 3, replace(full, sources=late))
    page.wait_for_selector('tr[data-source="nvml/GPU-3"]')
    row = page.locator('tr[data-source="nvml/GPU-3"]').inner_text()
    assert re.search(r"nvml/GPU-3\s+up\s+100 ms\s+100 ms\s+100 ms\s+2 late reads left out", row)
    assert page.locator('tr[data-source="rdma/mlx5_3"]').count() == 1
    other = page.locator('tr.bad[data-source="rdma/mlx5_6"]').inner_text()  # of another GPU, but not well
    assert re.search(r"10 s .*timeout 3", other.replace("\t", " "))
    assert page.locator('tr[data-source="rdma/mlx5_5"]').count() == 0
    page.click("#all-sources")
    assert page.locator('tr[data-source="rdma/mlx5_5"]').count() == 1


def test_readings_come_in_as_they_are_read(visit: Visit) -> None:
    history = snapshots.history(20.0)
    page, _ = visit(snapshots.mixed(), hash_="#gpu=2", of=history)
    page.wait_for_selector("#phase-legend .phase")
    page.wait_for_timeout(300)
    for k in range(1, 31):
        t_s = 400.0 + 0.05 * k
        values = list({**snapshots.GPU_VALUES, "power_watts": 333.0}.values())
        history.apply(Record("nvml/GPU-2", t_s, values))
        history.apply(Record("rdma/mlx5_2", t_s, [9e13 + 1.5e9 * k, 3.9e13, *list(snapshots.PORT_VALUES.values())[2:]]))
        page.wait_for_timeout(20)
    page.wait_for_timeout(400)
    box = page.locator("#scope .u-over").bounding_box()
    page.mouse.move(box["x"] + 0.97 * box["width"], box["y"] + 50)
    assert re.search(r"−0\.\d s\s+·\s+Power 333 W\s+·\s+RDMA 30 GB/s", text(page, "#readout"))
    page.keyboard.press("p")
    assert "paused" in text(page, "#zoomed")


def test_a_gpu_whose_power_is_not_read_any_more_says_so_over_its_scope(visit: Visit) -> None:
    page, daemon = visit(snapshots.mixed(), hash_="#gpu=2")
    page.wait_for_selector("#phase-legend .phase")
    assert page.locator("#scope-old").is_hidden()
    daemon.show(snapshots.mixed(t_s=407.0))
    page.wait_for_selector("#scope-old:not([hidden])")
    assert re.fullmatch(r"No power readings for 7\.0\d s", text(page, "#scope-old"))


def test_a_gpu_in_quarantine_has_no_readings_and_says_so(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed(), hash_="#gpu=7")
    page.wait_for_selector("#scope-old:not([hidden])")
    assert "left alone" in text(page, "#scope-old")


@pytest.mark.parametrize("width", [1000, 500])
def test_nothing_of_the_chosen_gpu_sticks_out_of_the_window(width: int, visit: Visit) -> None:
    page = opened(visit, 2, width=width)
    page.wait_for_selector("#trend canvas")
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    right = "[...document.querySelectorAll('.panel, .u-wrap')].map((e) => e.getBoundingClientRect().right)"
    assert page.evaluate(f"Math.max(...{right})") <= width


def test_the_trace_of_the_last_minutes_can_be_downloaded(visit: Visit) -> None:
    page = opened(visit, 2)
    with page.expect_download() as waiting:
        page.click("#download")
    assert re.fullmatch(r"overlap-node-1-\d{8}T\d{6}Z\.jsonl\.gz", waiting.value.suggested_filename)


def test_an_empty_history_draws_nothing_and_breaks_nothing(visit: Visit) -> None:
    page, _ = visit(snapshots.mixed(), hash_="#gpu=2", of=History())
    page.wait_for_selector("#fold .nothing")
    assert "Nothing repeats" in text(page, "#fold")
    assert page.locator("#scatter").is_visible()
    assert text(page, "#phase-legend") == ""
