"""Real tools that tests run: a missing one skips its test with one line, or fails it where CI=true."""

from __future__ import annotations

import os
import shutil

import pytest


def require(command: str) -> str:
    """Path of a command; skips the test where it is missing, and fails it under CI."""
    path = shutil.which(command)
    if path is None:
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail(f"{command} is not installed, and CI=true forgives no missing tool")
        pytest.skip(f"{command} is not installed; 'sh .ci/tools' installs it where it may")
    return path
