"""The heap: what is freed stays, so that the next arrays cost no new pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys
import numpy as np
from exporter.heap import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
def turn():
    arrays = [np.zeros(60_000) + 1.0 for _ in range(40)]  # 480 kB each, all of them there at once
turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("the C library has no mallopt")
    assert not done.returncode, done.stderr
    return int(done.stdout)


def test_freed_arrays_are_used_again_without_new_pages() -> None:
    kept, given_back = faults("keep"), faults("leave")
    assert kept < 0.1 * given_back, (kept, given_back)
