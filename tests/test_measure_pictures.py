"""The page on how overlap is measured: its plots are there and say what is said today, its limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from docs import measure_pictures
from exporter import routes, rules

PAGE = (Path(__file__).parent.parent / "docs" / "how-overlap-is-measured.md").read_text(encoding="utf-8")


def told(path: Path) -> list[str]:
    """The texts of a plot, which are drawn as outlines and named in comments."""
    return re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))


def test_every_plot_is_there_and_small_and_shown_once_with_words_for_those_who_do_not_see_it() -> None:
    shown = re.findall(r"!\[(.*)\]\(pictures/measure/(\w+)\.svg\)", PAGE)
    assert sorted(name for _, name in shown) == sorted(measure_pictures.PLOTS)
    assert all(len(words) > 20 for words, _ in shown)
    assert {path.stem for path in measure_pictures.HERE.iterdir()} == measure_pictures.PLOTS.keys()
    for path in measure_pictures.HERE.iterdir():
        assert path.stat().st_size < 90_000, path


def test_twins_drawn_anew_are_refused_with_the_same_bounds(tmp_path: Path) -> None:
    texts = told(measure_pictures.HERE / "twins.svg")
    assert texts.count("said of both: unobservable,") == 3
    assert told(measure_pictures.draw("twins", tmp_path)) == texts, "run: make pictures"


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    x = r"([\d.]+)"
    said = rf"narrower than {x}, and narrower than {x} \(.*?\), {x}\s\(pairs\) or {x} \(GPM\).*? {x} times 4"
    limits = re.search(said, PAGE, re.DOTALL)
    assert limits is not None
    widths = (routes.OPEN_WIDTH, routes.POWER_WIDTH, routes.PAIRED_WIDTH, routes.GAP_WIDTH, routes.MIDDLE)
    assert tuple(map(float, limits.groups())) == widths
    least = re.search(r"exceeds it by ([\d.]+) \(eight GPUs; ([\d.]+) for four, ([\d.]+) for two\)", PAGE)
    assert least is not None
    assert [float(x) for x in least.groups()] == [rules.lateness(0.0, [1.0] * others)[1] for others in (7, 3, 1)]
