"""Fake machines as values: boards behind the compiled NVML library, ports and NICs in a sysfs tree, both of one job.

    with Machine(boards=(Board(),), node=Node(1, 1), waves=(Wave(...),)).running(tmp_path) as arguments: ...

The real readers are pointed at it by --nvml.library, --path.sysfs and --path.procfs; both halves follow CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.nvml_library import Board, FakeNvml, Wave
from tests.sysfs_tree import Moving, Node, Tree, Waveform, move_nic, move_ports, moving
from tests.tools import require


@dataclass
class Running:
    """A machine that runs: what to hand to the exporter, and what to break."""

    nvml: FakeNvml | None
    tree: Tree
    node: Node
    arguments: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Machine:
    """One node. Board k and port k do the same job: waves[k] gives the power, traffic flows in its communication part.

    flat_bytes_per_s: traffic that never stops, in place of that of the waves. nics_work: what NIC k carries is the job's, too,
    instead of a steady murmur. No boards: a node without NVML.
    refresh_s: how often the counters of ports and NICs take a new value.
    """

    name: str
    boards: tuple[Board, ...] = ()
    node: Node = field(default_factory=lambda: Node(0, 0))
    port_bytes_per_s: float = 22.5e9
    flat_bytes_per_s: float | None = None
    nic_bytes_per_s: float = 1e6
    nics_work: bool = False
    refresh_s: float = 0.005

    @contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        """Build the tree, start the writer of its counters, and compile the library."""
        folder.mkdir(parents=True, exist_ok=True)
        tree = self.node.build(folder / "root")
        arguments = ["--path.sysfs", tree.sys, "--path.procfs", tree.proc]
        nvml = None
        environment: dict[str, str] = {}
        if self.boards:
            require("gcc")
            slots = [f"0000{self.node.gpu(k).bdf}" for k in range(self.node.gpus)]
            placed = [replace(b, bdf=slots[k]) if k < len(slots) else b for k, b in enumerate(self.boards)]
            nvml = FakeNvml(folder / "nvml", placed)
            arguments += ["--nvml.library", str(nvml.library)]
            environment |= nvml.environment
        else:
            arguments += ["--nvml.library", str(folder / "no-such-library.so.1")]
        with ExitStack() as stack:
            if plan := self._plan(tree):
                stack.enter_context(moving(plan, folder / "plan.json", self.refresh_s))
            yield Running(nvml, tree, self.node, arguments, environment)

    def _plan(self, tree: Tree) -> list[Moving]:
        plan = move_ports(tree, self.node, [self.traffic(k) for k in range(self.node.ports)])
        for k in range(self.node.nics):
            plan += move_nic(tree, self.node, k, self.nic_traffic(k))
        return plan

    def nic_traffic(self, k: int) -> Waveform:
        """What NIC k carries."""
        if self.nics_work:
            return replace(self.traffic(k), rate_bytes_per_s=self.nic_bytes_per_s)
        return Waveform(0.0, 1.0, self.nic_bytes_per_s)

    def traffic(self, k: int) -> Waveform:
        """What port k carries."""
        if self.flat_bytes_per_s is not None:
            return Waveform(0.0, 1.0, self.flat_bytes_per_s)
        wave = self.boards[k].wave if k < len(self.boards) else Wave()
        return Waveform(wave.compute_s, wave.communication_s, self.port_bytes_per_s, wave.phase_s, idle_s=wave.idle_s)


def antiphase(gpus: int = 2) -> Machine:
    """Compute and communication take turns: .6 s and .4 s of each second, phases shifted a little from GPU to GPU."""
    boards = tuple(
        Board(wave=Wave(compute_watts=640.0, communication_watts=240.0, compute_s=0.6, communication_s=0.4, phase_s=0.013 * k))
        for k in range(gpus)
    )
    return Machine("antiphase", boards, Node(gpus, gpus, 1))


def flat(gpus: int = 2) -> Machine:
    """Power stays at 405 W on boards limited to 410 W, traffic at 180 Gbit/s."""
    wave = Wave(compute_watts=405.0, communication_watts=405.0, compute_s=1.0, communication_s=0.0)
    boards = tuple(Board(wave=wave, limit=410.0, noise=2.0) for _ in range(gpus))
    return Machine("flat", boards, Node(gpus, gpus, 1), flat_bytes_per_s=22.5e9)


def bare() -> Machine:
    """No NVML, no RDMA: a NIC and a disk."""
    return Machine("bare", (), Node(0, 0, 1))
