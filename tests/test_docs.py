"""The documents agree with the program: settings, metrics, states, findings, advice, links, pictures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs import advice_lists, metrics_table, pictures
from exporter import app, cli
from exporter.advice import ADVICE
from exporter.config import SETTINGS, Config, load
from exporter.model import STATES
from exporter.rules import RULES, Rule
from exporter.sources.simulator import simulate

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLE = ROOT / "deploy" / "overlap-exporter.example.yml"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# Links


def anchors(page: Path) -> set[str]:
    """What can be linked to on a page, as GitHub makes it: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(text(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        assert linked.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(linked), target


# Configuration


def rows(page: Path, heads: str) -> list[list[str]]:
    """The cells of the rows of all tables whose head starts so, without marks."""
    found, inside = [], False
    for line in text(page).splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith(f"| {heads} |"):
            inside = True
        elif not cells:
            inside = False
        elif inside and set(line) - set("|-"):
            found.append(cells)
    return found


def code(cell: str) -> str:
    return cell.removeprefix("`").removesuffix("`")


SETTING_ROWS = {code(cells[0]): cells for cells in rows(DOCS / "configuration.md", "key")}
FLAGS = {flag.field: flag.names[0] for command in cli._COMMANDS for flag in command.flags if flag.field}


def test_every_setting_has_a_row_and_no_row_is_without_a_setting() -> None:
    assert list(SETTING_ROWS) == [setting.key for setting in SETTINGS]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_row_holds_the_real_default_flag_and_what_is_allowed(setting: object) -> None:
    assert isinstance(setting, type(SETTINGS[0]))
    _, default, allowed, flag, example, meaning = SETTING_ROWS[setting.key]
    assert allowed == setting.allowed
    assert setting.parse(yaml.safe_load(code(default))) == getattr(Config(), setting.field)
    assert code(flag) == FLAGS.get(setting.field, "–")
    other = setting.parse(yaml.safe_load(code(example)))  # is allowed
    assert other != getattr(Config(), setting.field)
    assert ("restart" in meaning) == (setting.field in app._NEEDS_RESTART)


def test_check_config_accepts_the_example_and_it_holds_every_key_with_its_default() -> None:
    done = subprocess.run([sys.executable, "-m", "exporter", "check-config", str(EXAMPLE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{EXAMPLE}: good\n")
    assert load(str(EXAMPLE), {}) == Config()
    for setting in SETTINGS:
        value = yaml.safe_load(text(EXAMPLE))
        for part in setting.key.split("."):
            assert part in value, setting.key
            value = value[part]


# Metrics


def test_the_page_of_metrics_is_what_the_catalogue_gives() -> None:
    assert text(metrics_table.PAGE) == metrics_table.page(), "run: python -m docs.metrics_table"


def test_the_page_of_metrics_has_each_family_once_with_an_origin() -> None:
    found = rows(metrics_table.PAGE, "name")
    assert sorted(code(cells[0]) for cells in found) == sorted(family.name for family in metrics_table.FAMILIES)
    assert all(len(cells) == 5 and all(cells) for cells in found)


# States and findings

STATES_PAGE = advice_lists.PAGE
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text(STATES_PAGE), re.MULTILINE | re.DOTALL))


def test_every_state_and_finding_has_a_section_in_the_order_of_the_model() -> None:
    assert list(SECTIONS) == [*STATES, *(rule.finding for rule in RULES)]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_its_picture_with_words_for_those_who_do_not_see_it(name: str) -> None:
    ((alternative, picture),) = re.findall(r"!\[(.*)\]\((.*)\)", SECTIONS[name])
    assert picture == f"pictures/{'state_' if name in STATES else ''}{name}.svg"
    assert len(alternative) > 15
    assert (DOCS / picture).exists()


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_says_how_to_confirm_it_with_three_tools(name: str) -> None:
    for tool in ("Nsight Systems", "PyTorch profiler", "HTA"):
        assert re.search(rf"^- \*{tool}:\* \S", SECTIONS[name], re.MULTILINE), tool


def test_meanings_and_advice_on_the_page_are_those_of_the_catalogue() -> None:
    assert text(STATES_PAGE) == advice_lists.filled(text(STATES_PAGE)), "run: python -m docs.advice_lists"
    assert [name for _, name, _ in advice_lists.BLOCK.findall(text(STATES_PAGE))] == list(SECTIONS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.finding)
def test_the_advice_of_a_finding_stands_there_in_its_order_with_costs(rule: Rule) -> None:
    steps = re.findall(r"^(\d+)\. (.*) \*Cost:\* (.*) \(`(\w+)`\)$", SECTIONS[rule.finding], re.MULTILINE)
    assert [key for *_, key in steps] == list(rule.advice)
    assert [int(number) for number, *_ in steps] == list(range(1, len(steps) + 1))
    assert all(cost.replace("\\", "") == ADVICE[key].cost.en for _, _, cost, key in steps)


# Pictures

PICTURES = {picture.name: picture for picture in pictures.PICTURES}


def told(svg: str) -> list[str]:
    """The texts of a picture, which are drawn as outlines and named in comments."""
    return re.findall(r"<!-- (.*?) -->", svg)


def test_every_picture_is_there_and_small_and_none_is_left_over() -> None:
    assert {path.stem for path in pictures.HERE.glob("*.svg")} == PICTURES.keys()
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    for path in pictures.HERE.glob("*.png"):  # photographs of the page and the dashboards
        assert path.stat().st_size < 300_000, path
        assert any(path.name in page for page in pages), f"{path.name} is shown nowhere"
    for name in PICTURES:
        assert (pictures.HERE / f"{name}.svg").stat().st_size < 80_000, name


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_the_state_that_its_name_and_its_scenario_say(name: str) -> None:
    picture = PICTURES[name]
    simulation = simulate(picture.scenario, picture.length_s, seed=1, gpus=pictures.GPUS)
    window = simulation.truth_between(picture.length_s - pictures.WINDOW_S, picture.length_s)
    state = window["gpus"][f"GPU-{picture.gpus[0]}"]["state"]
    if name == "state_no_data":
        state = "no_data"  # it left in the middle of the window: true for the half that was seen
    (verdict,) = [line for line in told(text(pictures.HERE / f"{name}.svg")) if line.startswith("state ")]
    assert re.match(rf"state {state}\b", verdict)
    assert name.removeprefix("state_") in (state, *(rule.finding for rule in RULES), "perfect_overlap")
    assert ("finding" not in verdict) or verdict.endswith(f"finding {name}")
    assert picture.title in told(text(pictures.HERE / f"{name}.svg"))


def test_a_picture_drawn_anew_says_the_same_and_is_the_same_each_time(tmp_path: Path) -> None:
    picture = PICTURES["perfect_overlap"]
    once = text(pictures.draw(picture, tmp_path))
    assert told(once) == told(text(pictures.HERE / "perfect_overlap.svg")), "run: make pictures"
    assert text(pictures.draw(picture, tmp_path)) == once


def test_a_picture_of_a_finding_that_is_not_there_is_refused(tmp_path: Path) -> None:
    wrong = pictures.Picture("congestion", "idle", "Nothing at all")
    with pytest.raises(ValueError, match="congestion: the scenario idle does not show this finding"):
        pictures.draw(wrong, tmp_path)
