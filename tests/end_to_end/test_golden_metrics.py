"""What `/metrics` looks like on five machines, as golden files: the diff of one is how a change of the catalogue is read.

Values that move are a `#`; those that describe the machine stand as they are. Labels, order, types and help are kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import pytest

from exporter import __version__
from tests.end_to_end.processes import daemon
from tests.machines import Machine, bare
from tests.nvml_library import Board, Wave
from tests.sysfs_tree import Node

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(240)]
SETTLED_S = 30.0  # all windows that fit have answers, every sensor is known

_AMPERE = ("usage", "energy", "utilization", "nvlink", "throttle", "xid", "clocks")
_OLD = ("usage", "energy", "utilization", "throttle", "xid", "clocks")


_A100 = Board(name="NVIDIA A100-SXM4-80GB", arch=7, cc="8.0", limit=400.0, links=12, supports=_AMPERE)
_V100 = Board(name="Tesla V100-PCIE-32GB", arch=5, cc="7.0", limit=250.0, links=0, supports=_OLD)


def _boards(count: int, board: Board, high_watts: float, low_watts: float) -> tuple[Board, ...]:
    waves = (Wave(high_watts, low_watts, 0.6, 0.4, 0.013 * k) for k in range(count))
    return tuple(replace(board, noise=2.0, wave=wave) for wave in waves)


MACHINES = (
    Machine("8x_h100_infiniband", _boards(8, Board(), 640.0, 240.0), Node(8, 8, 1)),
    Machine(
        "8x_a100_roce",
        _boards(8, _A100, 370.0, 150.0),
        Node(8, 8, 1, link_layer="Ethernet", rate="200 Gb/sec (4X HDR)"), port_bytes_per_s=20e9,
    ),
    Machine("1x_v100", _boards(1, _V100, 230.0, 230.0), Node(1, 0, 1)),
    Machine("2_gpus_without_driver", (), Node(2, 2, 1)),
    bare(),
)  # fmt: skip

# Families whose values describe the machine and its settings.
_KEPT = re.compile(
    r".*_info|overlap_(gpu|nic|source|rdma_port)_up|overlap_gpus|overlap_config_last_reload_successful|overlap_gpu_power_limit_watts"
    r"|overlap_rdma_port_rate_bytes_per_second|overlap_nic_speed_bytes_per_second|overlap_source_interval_seconds"
)
# There or not there by how long the machine has run and by chance: tests of the diagnosis hold them.
_LEFT_OUT = re.compile(r"overlap_(finding|step_period_seconds)")


def masked(text: str) -> str:
    """An exposition without what moves: values become `#`, the version of this program becomes VERSION."""
    lines = []
    for line in text.splitlines():
        name = re.split(r"[ {]", line.removeprefix("# HELP ").removeprefix("# TYPE "), maxsplit=1)[0]
        if _LEFT_OUT.fullmatch(name):
            continue
        moves = not line.startswith("#") and not _KEPT.fullmatch(name)
        shown = line.rpartition(" ")[0] + " #" if moves else line
        lines.append(shown.replace(f'version="{__version__}"', 'version="VERSION"'))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """One scrape of every machine, all of them running at the same time."""
    folder = tmp_path_factory.mktemp("golden")
    with ExitStack() as stack:
        daemons = {}
        for machine in MACHINES:
            there = stack.enter_context(machine.running(folder / machine.name))
            daemons[machine.name] = stack.enter_context(daemon(folder / machine.name, there.arguments, there.environment))
        for running in daemons.values():
            running.ready(30.0)
        time.sleep(SETTLED_S)
        yield {name: running.get("/metrics")[1].decode() for name, running in daemons.items()}


@pytest.mark.parametrize("name", [machine.name for machine in MACHINES])
def test_a_scrape_is_what_its_golden_file_says(
    name: str, scrapes: Mapping[str, str], golden: Callable[[str, str], None]
) -> None:
    golden(f"metrics/{name}.txt", masked(scrapes[name]))


@pytest.mark.parametrize("name", [machine.name for machine in MACHINES])
def test_a_scrape_stays_below_1200_series(name: str, scrapes: Mapping[str, str]) -> None:
    series = [line for line in scrapes[name].splitlines() if line.startswith("overlap_")]
    assert 20 < len(series) <= 1200
