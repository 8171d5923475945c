"""The documents agree with the program: settings, metrics, states, findings, advice, links, pictures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs import metrics_table
from exporter import app, cli
from exporter.config import SETTINGS, Config, load

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
