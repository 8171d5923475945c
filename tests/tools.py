"""Real tools that tests run: a missing one skips its test with one line, or fails it where CI=true."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NoReturn

import pytest


def forgo(why: str) -> NoReturn:
    """Skip the test with one line, or fail it under CI."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(f"{why}, and CI=true forgives no missing tool")
    pytest.skip(why)


def require(command: str) -> str:
    """Path of a command; skips the test where it is missing, and fails it under CI."""
    path = shutil.which(command)
    if path is None:
        forgo(f"{command} is not installed; 'sh .ci/tools' installs it where it may")
    return path


def require_root() -> None:
    """Skips the test for other users, and fails it under CI: containers are built and run by root here."""
    if os.geteuid() != 0:
        forgo("building and running a container takes root here")


def own_pid_namespace() -> list[str]:
    """The words that start a command as process 1 of a PID namespace of its own; skips where the kernel lets nobody."""
    unshare = require("unshare")
    for rights in ([], ["--user", "--map-root-user"]):
        words = [unshare, *rights, "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
            return words
    pytest.skip("neither root nor user namespaces here, so no process can be number 1")
