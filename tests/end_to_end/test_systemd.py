"""The systemd unit: systemd itself reads it without complaint, rates its hardening, and its command line is one of ours."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import require

pytestmark = pytest.mark.end_to_end
FOLDER = Path(__file__).parent.parent.parent / "deploy" / "systemd"
UNIT = (FOLDER / "overlap-exporter.service").read_text(encoding="utf-8")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a command that exists on this machine."""
    path = tmp_path / "overlap-exporter.service"
    path.write_text(UNIT.replace("/usr/local/bin/overlap-exporter", "/bin/true"))
    return path


def test_systemd_understands_every_line(unit: Path) -> None:
    done = subprocess.run([require("systemd-analyze"), "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_systemd_finds_a_line_that_is_wrong(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=very"))
    done = subprocess.run([require("systemd-analyze"), "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert "Failed to parse protect system value" in done.stderr


def test_what_the_unit_may_do_is_rated_as_little(unit: Path) -> None:
    done = subprocess.run([require("systemd-analyze"), "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout[-300:]
    assert re.search(r"Overall exposure level for overlap-exporter.service: [01]\.\d OK", done.stdout)


def test_the_options_of_the_environment_file_are_flags_of_serve() -> None:
    told = re.findall(r"^#?OVERLAP_EXPORTER_OPTIONS=(.*)$", (FOLDER / "overlap-exporter.default").read_text(), re.MULTILINE)
    assert "" in told
    flags = [flag.partition("=")[0] for line in told for flag in shlex.split(line)]
    assert flags
    help_ = subprocess.run([sys.executable, "-m", "exporter", "serve", "--help"], capture_output=True, text=True, check=True)
    assert all(flag in help_.stdout for flag in flags)
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    assert command.split() == ["/usr/local/bin/overlap-exporter", "serve", "$OVERLAP_EXPORTER_OPTIONS"]
