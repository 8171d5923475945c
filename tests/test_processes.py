"""The account of what the exporter costs: real processes, counted from outside."""

from __future__ import annotations

import os
import subprocess
import sys

from exporter.processes import Processes

SPIN = "import time\nwhile time.process_time() < .3: pass\nprint(1, flush=True)\ninput()"


def test_time_and_memory_of_a_living_process_are_told() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as spin:
        assert spin.stdout is not None
        spin.stdout.readline()
        costs = Processes().measure({"exporter": (os.getpid(),), "reader_gpu": (spin.pid,)}, {"reader_gpu": 5.0}, 0.0)
        spin.communicate(b"\n")
    own, other = costs
    assert (own.process, other.process) == ("exporter", "reader_gpu")
    assert 5.25 <= other.cpu_s < 7.0  # with the time of the ended ones; the kernel counts in hundredths
    assert own.memory_bytes is not None
    assert own.memory_bytes > 1e6


def test_a_role_without_a_process_keeps_the_time_of_the_ended_and_has_no_memory() -> None:
    (gone,) = Processes().measure({"reader_net": ()}, {"reader_net": 2.5}, 0.0)
    assert (gone.cpu_s, gone.memory_bytes) == (2.5, None)
