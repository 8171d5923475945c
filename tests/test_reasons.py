"""Reasons: what the analysis says is known again, in both languages, and nothing is said that is not in the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter import resolution, verdict
from exporter.advice import Text
from exporter.reasons import SENTENCES, SHARED_NODE, because, fields, in_both, pattern


@pytest.mark.parametrize("key", SENTENCES)
def test_a_reason_that_was_said_is_known_again_in_both_languages(key: str) -> None:
    given = {name: f"{name} 1.5, x/1" for name in fields(key)}
    said = key if key == SHARED_NODE else because(key, **given)
    assert in_both(said) == Text(SENTENCES[key].en.format(**given), SENTENCES[key].zh.format(**given))
    assert [other for other in SENTENCES if re.fullmatch(pattern(other), said)] == [key]
    for value in given.values():
        assert value in in_both(said).zh


def test_every_sentence_that_the_analysis_can_say_is_a_row() -> None:
    """Held by the source: reasons come from `because` alone, and every row is said somewhere."""
    source = "".join(Path(module.__file__ or "").read_text() for module in (verdict, resolution))
    said = set(re.findall(r'because\(\s*"(\w+)"', source))
    assert said | {SHARED_NODE} == set(SENTENCES)
