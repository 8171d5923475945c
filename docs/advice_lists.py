"""Writes meanings and advice from the catalogue into docs/what-the-states-mean.md: `python -m docs.advice_lists`.

The page holds blocks between `<!-- words NAME -->` and `<!-- end -->`, NAME a state or a finding; all around them is
written by hand. A test compares the blocks with the catalogue.
"""

from __future__ import annotations

import re
from pathlib import Path

from exporter.advice import ADVICE
from exporter.meanings import FINDINGS, STATES
from exporter.rules import RULES

PAGE = Path(__file__).parent / "what-the-states-mean.md"
BLOCK = re.compile(r"(<!-- words (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def words(name: str) -> str:
    """What a state or finding means; of a finding also what to do, with costs and keys, least effort first."""
    if name in STATES:
        return f"{STATES[name].en}\n"
    (rule,) = (rule for rule in RULES if rule.finding == name)
    steps = [f"{n}. {ADVICE[key].action.en} *Cost:* {ADVICE[key].cost.en} (`{key}`)" for n, key in enumerate(rule.advice, 1)]
    lines = [FINDINGS[name].meaning.en, "", "**What to do**, least effort first:", "", *steps]
    return "".join(_plain(line) + "\n" for line in lines)


def _plain(line: str) -> str:
    """What is typed as it is typed: no tag and no emphasis comes of it."""
    return line.replace("<", "&lt;").replace("uverbs*", "uverbs\\*").replace("._", ".\\_")


def filled(page: str) -> str:
    """The page with its blocks as the catalogue has them."""
    return BLOCK.sub(lambda found: f"{found[1]}{words(found[2])}{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE}: {len(BLOCK.findall(PAGE.read_text(encoding='utf-8')))} blocks")
