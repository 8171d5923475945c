"""What several test modules use: golden files, and the option that rewrites them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        raise pytest.UsageError("--update-golden is refused where CI is set: golden files change by hand and are reviewed")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden("rdma/efa.txt", text): the text equals that file below tests/golden, or replaces it with --update-golden."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        assert file.exists(), f"{file} is missing: run with --update-golden and read what it wrote"
        assert text == file.read_text(encoding="utf-8"), f"differs from {file}; --update-golden rewrites it"

    return compare
