"""Field machines as the daemon sees them: its own feed, with reader processes, on the compiled library and the tree.

    machine = LiveMachine(machine("aws_p5"), tmp_path)
    listen_to([machine])
    machine.told.text(...)

The machine stands still at played.START_S, so that what its sensors show is known to the last digit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from exporter.clock import SystemClock
from exporter.config import Config
from exporter.live import LiveFeed
from exporter.model import Inventory, Quarantine, Record, Source, SourceStatus
from tests.field_parts import FieldMachine
from tests.played import NETWORK_HERTZ, START_S, build, count_at, fake_library
from tests.told import Told

_PATIENCE_S = 60.0
_KINDS = ("nvml", "rdma", "nic", "host")
_OF_CHANCE = ("too_close",)  # a tick that came late


class LiveMachine:
    """One machine whose readers run. To be used from the main thread, as the feed is."""

    def __init__(self, machine: FieldMachine, folder: Path) -> None:
        self.machine = machine
        self.tree = build(machine, folder / "root")
        self.nvml = fake_library(machine, folder / "nvml")
        count_at(machine, self.tree, START_S)
        environment = {}
        library = str(folder / "no-such-library.so.1")
        if self.nvml is not None:
            self.nvml.set(time=START_S)
            environment, library = self.nvml.environment, str(self.nvml.library)
        topology = next((str(path) for path in self.tree.root.glob("opt/microsoft/*/topo.xml")), None)
        config = Config(
            path_sysfs=self.tree.sys, path_procfs=self.tree.proc, nvml_library=library, pairing_topology_file=topology,
            sampling_network_hertz=NETWORK_HERTZ,
        )  # fmt: skip
        self.told = Told(machine.about, Inventory(machine.name, 0.0))
        self._values: dict[str, list[float]] = {}
        self._errors: dict[str, dict[str, int]] = {}
        self._kinds: dict[str, SourceStatus] = {}
        self._lost: dict[str, str] = {}
        with _environment(environment):
            self.feed = LiveFeed(config, SystemClock(), machine.name)

    def listen(self) -> bool:
        """Take what has come; True once every source has been read."""
        for event in self.feed.poll(self.feed.now_s()):
            if isinstance(event, Record):
                self._values.setdefault(event.source, list(event.values))
            elif isinstance(event, SourceStatus) and "/" not in event.source:
                self._kinds[event.source] = event
            elif isinstance(event, SourceStatus):
                self._errors[event.source] = {r: n for r, n in event.errors.items() if r not in _OF_CHANCE}
            elif isinstance(event, Quarantine) and event.reason is not None:
                self._lost[event.id] = event.reason
        if self.feed.starting() is not None:
            return False
        inventory, extra = self.feed.inventory(), self.feed.told()
        down = [self._kinds[kind] for kind in _KINDS if kind in self._kinds and not self._kinds[kind].up]
        self.told = Told(self.machine.about, inventory, down, extra, self._lost, self._values, self._errors)
        return not self.missing()

    def missing(self) -> list[Source]:
        """The sources that have not been read yet."""
        return [s for s in self.told.inventory.sources if s.name not in self._values or s.name not in self._errors]


def listen_to(machines: Sequence[LiveMachine]) -> None:
    """Listen until each machine has told everything; then end all readers."""
    clock = SystemClock()
    until_s, waiting = clock.mono_s() + _PATIENCE_S, list(machines)
    try:
        while waiting := [machine for machine in waiting if not machine.listen()]:
            silent = {m.machine.name: [s.name for s in m.missing()] for m in waiting}
            assert clock.mono_s() < until_s, f"not within {_PATIENCE_S:g} s: {silent}"
            clock.sleep_until(clock.mono_s() + 0.05)
    finally:
        for machine in machines:
            machine.feed.stop()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
