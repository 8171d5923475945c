"""The pinned requirements of the image: everything the program needs, on every Python, with hashes and without a registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.end_to_end.image import requirements

ROOT = Path(__file__).parent.parent
PINNED = ROOT / "deploy" / "image" / "requirements.txt"
BUILD = ROOT / "deploy" / "image" / "requirements-build.txt"
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def listed(key: str) -> list[Requirement]:
    """A list of requirements in pyproject.toml (tomllib is not on Python 3.10)."""
    found = re.search(rf"^{key} = \[(.*?)\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert found
    return [Requirement(text) for text in re.findall(r'"([^"]+)"', found[1])]


@pytest.mark.parametrize("python", ["3.10.0", "3.11.2", "3.12.1", "3.13.0"])
@pytest.mark.parametrize(("path", "key"), [(PINNED, "dependencies"), (BUILD, "requires")])
def test_every_python_gets_one_version_of_each_requirement_that_the_project_allows(path: Path, key: str, python: str) -> None:
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    pins: dict[str, str] = {}
    for requirement, _ in requirements(path.read_text(encoding="utf-8")):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.name not in pins
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            pins[requirement.name] = pin.version
    wanted = listed(key)
    assert wanted
    for requirement in wanted:
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement


@pytest.mark.parametrize("path", [PINNED, BUILD])
def test_every_file_of_every_version_has_its_hash_and_no_registry_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    for requirement, hashes in requirements(text):
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", h) for h in hashes)


def test_the_version_stands_in_one_place() -> None:
    from exporter import __version__

    assert re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc|\.dev)\d+)?", __version__)
    assert 'dynamic = ["version"]' in PROJECT
