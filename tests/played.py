"""Plays a field machine on a clock of its own: the real sources read it at their deadlines, a Session judges what they read.

    with played(machine("aws_p5"), tmp_path, monkeypatch) as play:
        play.run(30.0)
        play.session.verdicts

A minute takes a second or two. Nothing runs beside the test: library and counter files are at the time of the clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.clock import ManualClock
from exporter.model import Inventory, Record, SourceStatus
from exporter.pairing import pair
from exporter.session import Session
from exporter.sources import GpuSettings, Lane, LaneError, NetSettings, Opened, unannounced
from exporter.sources import files as files_module
from exporter.sources import sysfs as sysfs_module
from exporter.sources.net import open_net
from exporter.sources.nvml import Session as NvmlSession
from tests.field_parts import FieldMachine, Port
from tests.nvml_library import FakeNvml
from tests.sysfs_tree import FaultyOs, Tree, Waveform
from tests.told import Told
from tests.tools import require

START_S = 1000.037  # between two refreshes of all sensors
NETWORK_HERTZ = 50.0  # of what is told: the rates of the drivers' own plans are held elsewhere
_BASE_BYTES = 1_000_000_000_000


class Played:
    """One machine, opened. `opened` is what the GPU sources and the network sources found."""

    def __init__(self, machine: FieldMachine, folder: Path, nvml: FakeNvml | None) -> None:
        self.machine = machine
        self.nvml = nvml
        self.clock = ManualClock(START_S)
        self.tree = build(machine, folder / "root")
        self.session = Session()
        self.gpu_session = NvmlSession(self.clock)
        self.lost: list[str] = []

    # ---- the machine at a time -------------------------------------------------------------------------------------

    def move_to(self, mono_s: float) -> None:
        """Clock and boards."""
        self.clock.set(mono_s)
        if self.nvml is not None:
            self.nvml.play(mono_s)

    def count(self, device: str | None = None) -> None:
        """The byte files of a device (of all) as they are now."""
        count_at(self.machine, self.tree, self.clock.mono_s(), device)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def open(self, **network: Any) -> Inventory:
        """Open everything as the readers do, and pair as the exporter does."""
        self.move_to(self.clock.mono_s())
        self.count()
        library = str(self.nvml.library) if self.nvml is not None else str(self.tree.root / "no-such-library.so.1")
        self.gpus = self.gpu_session.open(GpuSettings(library, self.tree.sys), unannounced)
        settings = NetSettings(self.tree.sys, self.tree.proc, machine_root=str(self.tree.root), **network)
        self.net = open_net(settings)
        self.lanes: list[Lane] = [*self.gpus.lanes, *self.net.lanes]
        devices = (*self.gpus.devices, *self.net.devices)
        inventory = Inventory(self.machine.name, 1.8e9, devices, (), tuple(lane.source for lane in self.lanes))
        channels = {channel for lane in self.lanes for channel in lane.source.channels}
        links = pair(
            inventory.of_kind("gpu"), inventory.of_kind("rdma_port"), nics=inventory.of_kind("nic"),
            topology=self.net.extra.get("topology"), management_netdevs=self.net.extra.get("default_route_netdevs", ()),
            nvlink_gpus={g.id for g in inventory.of_kind("gpu") if f"{g.id}/nvlink_transmit_bytes_total" in channels},
        )
        inventory = replace(inventory, links=links)
        self.session.take(inventory)
        for status in (*self.gpus.statuses, *self.net.statuses):
            self.session.take(status)
        return inventory

    @property
    def opened(self) -> tuple[Opened, Opened]:
        return self.gpus, self.net

    def told(self) -> Told:
        """Everything that is found, and one reading of each lane, all at the same time.

        Means of GPM need two samples, here a second apart: a whole step of every job.
        """
        inventory = self.open(network_hertz=NETWORK_HERTZ)
        values = {lane: lane.read() for lane in self.lanes}
        self.move_to(self.clock.mono_s() + 1.0)
        values |= {lane: lane.read() for lane, given in values.items() if given is None}
        both = self.opened
        return Told(
            self.machine.about, inventory,
            [status for opened in both for status in opened.statuses],
            {key: value for opened in both for key, value in opened.extra.items()},
            {device: reason for opened in both for device, reason in opened.lost.items()},
            {lane.source.name: list(given or ()) for lane, given in values.items()},
            {lane.source.name: dict(lane.errors) for lane in self.lanes},
        )  # fmt: skip

    def run(self, seconds: float) -> None:
        """Read every lane at its deadlines for so long; each second is judged."""
        begin_s, order = self.clock.mono_s(), itertools.count()
        due = [(begin_s, next(order), lane) for lane in self.lanes]
        heapq.heapify(due)
        while due[0][0] <= begin_s + seconds:
            at_s, _, lane = heapq.heappop(due)
            self.move_to(at_s)
            self.session.advance(at_s - START_S)
            if lane.source.name.startswith("rdma/"):
                self.count(lane.source.name.split("/")[1])
            self._read(lane, at_s - START_S)
            interval_s = lane.source.interval_s or 1.0
            heapq.heappush(due, (at_s + interval_s, next(order), lane))
        self.session.finish(begin_s + seconds - START_S)

    def _read(self, lane: Lane, t_s: float) -> None:
        try:
            values = lane.read()
        except LaneError as error:
            self.lost.append(f"{lane.source.name}: {error.reason}")
            return
        if values is not None:
            self.session.take(Record(lane.source.name, t_s, list(values)))
        if any(lane.errors.values()):
            self.session.take(SourceStatus(lane.source.name, t_s, errors=dict(lane.errors)))

    def close(self) -> None:
        """Give everything back."""
        for lane in getattr(self, "lanes", ()):
            lane.close()
        self.gpu_session.close()


@contextmanager
def played(machine: FieldMachine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """A machine that was built; the test opens and runs it."""
    nvml = fake_library(machine, folder / "nvml")
    for key, value in (nvml.environment if nvml is not None else {}).items():
        monkeypatch.setenv(key, value)
    play = Played(machine, folder, nvml)
    for module in (sysfs_module, files_module):
        if play.tree.faults:
            monkeypatch.setattr(module, "os", FaultyOs(play.tree.faults))
    play.clock.sleep_until(START_S)
    if nvml is None:
        import pynvml

        monkeypatch.setattr(pynvml, "nvmlLib", None)
    else:
        import time

        time.sleep(0.01)  # the library looks at its file every 5 ms
    try:
        yield play
    finally:
        play.close()
        if nvml is not None:
            nvml.play(-1.0)


# ---- library and tree ----------------------------------------------------------------------------------------------


def fake_library(machine: FieldMachine, folder: Path) -> FakeNvml | None:
    """The compiled library with the boards of a machine at their places on the bus; None without boards."""
    if not machine.boards:
        return None
    require("gcc")
    addresses = [path.rsplit("/", 1)[-1] for path in machine.gpu_paths]
    placed = [replace(b, bdf=f"0000{addresses[k]}" if k < len(addresses) else b.bdf) for k, b in enumerate(machine.boards)]
    return FakeNvml(folder, placed, machine.driver)


def count_at(machine: FieldMachine, tree: Tree, mono_s: float, device: str | None = None) -> None:
    """Write the byte files of a device (of all) as they are at a time; port k carries the traffic of its board."""
    counting = [port for port in machine.ports if port.counted]
    for k, port in enumerate(counting):
        if device in (None, port.device):
            wave = machine.boards[k * len(machine.boards) // len(counting)].wave
            rate = port.bytes_per_s or machine.port_bytes_per_s
            traffic = Waveform(wave.compute_s, wave.communication_s, rate, wave.phase_s, idle_s=wave.idle_s)
            at_s = math.floor(mono_s / port.refresh_s) * port.refresh_s if port.refresh_s else mono_s
            sent = int(traffic.bytes_until(at_s) - traffic.bytes_until(START_S - 10.0))
            for file, unit in port.counted.items():
                directory = tree.root / f"sys/{port.path}/infiniband/{port.device}/ports/1"
                overwrite(str(directory / file), (_BASE_BYTES + sent) // unit)


def build(machine: FieldMachine, folder: Path) -> Tree:
    """Sysfs and procfs of a machine."""
    tree = Tree(folder)
    for k, path in enumerate(machine.gpu_paths):
        function(tree, path, "0x030200", "0x10de", "nvidia", machine.gpu_numa[k])
    for port in machine.ports:
        build_port(tree, port)
    for interface in machine.interfaces:
        function(tree, interface.path, "0x020000", "0x8086", interface.driver, 0)
        build_interface(tree, interface.path, interface.name, "1", interface.speed_mbit)
    tree.write("sys/devices/virtual/net/lo/type", "772")
    tree.link("sys/class/net/lo", "../../devices/virtual/net/lo")
    tree.write("sys/block/sda/device/model", "disk")
    tree.write("proc/diskstats", "8 0 sda 100 0 2000 10 200 0 4000 20 0 30 30")
    tree.write("proc/stat", "cpu  4293 164 2358 170931 239 0 38 8 0 0")
    routes = [i.name for i in machine.interfaces if i.default_route]
    tree.write("proc/1/net/route", "\n".join(["Iface Destination", *(f"{name}\t00000000\t0100000A" for name in routes)]))
    if machine.topology is not None:
        tree.write("opt/microsoft/ndv4/topo.xml", machine.topology)
    return tree


def function(tree: Tree, path: str, pci_class: str, vendor: str, driver: str | None, numa: int) -> None:
    """A device on the PCI bus, or on another where its path names none."""
    if driver is not None:
        tree.link(f"sys/{path}/driver", f"/sys/bus/pci/drivers/{driver}")
    if "/pci" not in path:
        return
    for name, value in (("class", pci_class), ("vendor", vendor), ("numa_node", str(numa))):
        tree.write(f"sys/{path}/{name}", value)
    tree.link(f"sys/bus/pci/devices/{path.rsplit('/', 1)[-1]}", f"../../../{path}")


def build_port(tree: Tree, port: Port) -> None:
    function(tree, port.path, "0x020700", "0x15b3", port.driver, port.numa)
    device = f"sys/{port.path}/infiniband/{port.device}"
    tree.write(f"{device}/fw_ver", "28.39.1002")
    tree.write(f"{device}/node_type", "7: unspecified" if port.driver == "efa" else "1: CA")
    tree.link(f"{device}/device", f"/sys/{port.path}")
    tree.link(f"sys/class/infiniband/{port.device}", f"../../{port.path}/infiniband/{port.device}")
    state = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": port.rate, "link_layer": port.link_layer}
    for file, value in {**state, **dict.fromkeys(port.counted, "0"), **port.files}.items():
        if value.startswith("!"):
            tree.fail(f"{device}/ports/1/{file}", value[1:])
        else:
            tree.write(f"{device}/ports/1/{file}", value)
    if port.physfn is not None:
        function(tree, port.physfn, "0x020700", "0x15b3", port.driver, port.numa)
        tree.link(f"sys/{port.path}/physfn", f"/sys/{port.physfn}")
    if port.vpd is not None:
        (tree.root / f"sys/{port.path}/vpd").write_bytes(port.vpd)
    if port.netdev is not None:
        build_interface(tree, port.path, port.netdev, "32" if port.link_layer == "InfiniBand" else "1", 400_000)


def build_interface(tree: Tree, path: str, name: str, kind: str, speed_mbit: int) -> None:
    directory = f"sys/{path}/net/{name}"
    for file, value in (("type", kind), ("speed", str(speed_mbit)), ("operstate", "up"), ("carrier", "1")):
        tree.write(f"{directory}/{file}", value)
    for file in ("rx_bytes", "tx_bytes"):
        tree.write(f"{directory}/statistics/{file}", "0")
    tree.link(f"{directory}/device", f"/sys/{path}")
    tree.link(f"sys/class/net/{name}", f"../../{path}/net/{name}")


def overwrite(path: str, count: int) -> None:
    """A counter file in place, so that a kept descriptor sees it."""
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"%-20d\n" % count, 0)
    os.close(fd)


