"""Trees that look like sysfs and procfs: from manifests of real machines, from a description of a node, and moving ones.

A manifest (tests/fixtures/rdma) is loaded with `load`; `Node` builds a whole GPU node as a value; `moving` keeps a
process writing byte counters that follow a Waveform, for tests that run the real readers. No test writes below /sys.

    python -m tests.sysfs_tree PLAN.json        the writing process; ends with its standard input
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures" / "rdma"
REPOSITORY = Path(__file__).parent.parent
_EINVAL_FILE = "/sys/class/net/lo/speed"  # reading it fails with EINVAL
_EIO_FILE = "/proc/self/mem"  # nothing is mapped at offset 0
_AT_OPEN = (errno.EACCES, errno.EPERM)
_WIDTH = 20  # digits of 2**64 - 1


@dataclass(frozen=True)
class Tree:
    """A tree below a temporary directory. `faults` maps real paths to the errno that reading them is to give."""

    root: Path
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def sys(self) -> str:
        return str(self.root / "sys")

    @property
    def proc(self) -> str:
        return str(self.root / "proc")

    def write(self, path: str, value: str) -> Path:
        """Write `value` and a newline into a file below the root, in place."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n")
        return file

    def link(self, path: str, target: str) -> None:
        """A symbolic link below the root; absolute targets stay below the root, too."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        if target.startswith("/"):
            target = os.path.relpath(self.root / target.lstrip("/"), file.parent.resolve())
        file.symlink_to(target)

    def fail(self, path: str, error: str) -> None:
        """Make reading a file fail with an errno: by a file of this machine that does, else by injection."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink() or file.exists():
            file.unlink()
        if error == "ENOENT":
            file.symlink_to("gone")
        elif error == "EINVAL" and _errno_of(_EINVAL_FILE) == errno.EINVAL:
            file.symlink_to(_EINVAL_FILE)
        elif error == "EIO" and _errno_of(_EIO_FILE) == errno.EIO:
            file.symlink_to(_EIO_FILE)
        else:
            file.write_text("0\n")
            self.faults[os.path.realpath(file)] = getattr(errno, error)


def _errno_of(path: str) -> int | None:
    try:
        with Path(path).open("rb", buffering=0) as file:
            file.read(64)
    except OSError as error:
        return error.errno
    return None


class FaultyOs:
    """Stands in for the module `os`: opening or reading the paths in `faults` fails, the rest is the real thing."""

    def __init__(self, faults: Mapping[str, int]) -> None:
        self._faults = faults
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int) -> int:
        real = os.path.realpath(path)
        if (code := self._faults.get(real)) in _AT_OPEN:
            raise OSError(code, os.strerror(code or 0), path)
        fd = os.open(path, flags)
        self._paths[fd] = real
        return fd

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        if (code := self._faults.get(self._paths.get(fd, ""))) is not None:
            raise OSError(code, os.strerror(code))
        return os.pread(fd, length, offset)


def load(name: str, root: Path) -> Tree:
    """Build the tree of a manifest below `root`."""
    tree = Tree(root)
    facts: list[tuple[str, str]] = []
    for line in (FIXTURES / f"{name}.tsv").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            path, _, value = line.partition("\t")
            facts.append((path, value))
    links = [(path, value[3:]) for path, value in facts if value.startswith("-> ")]
    # Buses first, then from the top down: links lead through links.
    for path, target in sorted(links, key=lambda fact: (not fact[0].startswith("/sys/bus/"), fact[0].count("/"))):
        tree.link(path, target)
        if path.rsplit("/", 1)[-1] not in ("driver", "master"):
            (root / path.lstrip("/")).resolve().mkdir(parents=True, exist_ok=True)
    for path, value in facts:
        if value.startswith("-> "):
            continue
        if value == "{dir}":
            (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif value.startswith("!"):
            tree.fail(path, value[1:])
        else:
            tree.write(path, value)
    return tree


@dataclass(frozen=True)
class Place:
    """Where a function sits: its address as sysfs writes it, its directory below the root, its NUMA node."""

    bdf: str
    path: str  # "devices/pci0000:10/..."
    numa_node: int


@dataclass(frozen=True)
class Node:
    """A GPU node as a value. GPU k and RDMA port k sit below one switch; the NICs hang on root ports of their own."""

    gpus: int = 8
    ports: int = 8
    nics: int = 1
    link_layer: str = "InfiniBand"
    driver: str = "mlx5_core"
    netdevs: bool = True  # an IPoIB or Ethernet interface beside each port
    rate: str = "400 Gb/sec (4X NDR)"
    nic_speed_mbit: int = 25_000

    def gpu(self, k: int) -> Place:
        bus = 0x10 + 8 * k
        path = f"devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0/0000:{bus + 2:02x}:02.0"
        bdf = f"0000:{bus + 4:02x}:00.0"
        return Place(bdf, f"{path}/{bdf}", 2 * k // max(1, self.gpus))

    def port(self, k: int) -> Place:
        bus = 0x10 + 8 * k
        path = f"devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0/0000:{bus + 2:02x}:00.0"
        bdf = f"0000:{bus + 3:02x}:00.0"
        return Place(bdf, f"{path}/{bdf}", 2 * k // max(1, self.ports))

    def nic(self, k: int) -> Place:
        bus = 0xE0 + 4 * k
        bdf = f"0000:{bus + 1:02x}:00.0"
        return Place(bdf, f"devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/{bdf}", 0)

    def port_counter(self, k: int, name: str) -> str:
        """Path of a file in `counters` of port k, below the root."""
        return f"sys/{self.port(k).path}/infiniband/mlx5_{k}/ports/1/counters/{name}"

    def nic_counter(self, k: int, name: str) -> str:
        """Path of a file in `statistics` of NIC k, below the root."""
        return f"sys/{self.nic(k).path}/net/eth{k}/statistics/{name}"

    def build(self, root: Path) -> Tree:
        tree = Tree(root)
        for k in range(self.gpus):
            self._function(tree, self.gpu(k), "0x030200", "0x10de", "nvidia")
        for k in range(self.ports):
            self._build_port(tree, k)
        for k in range(self.nics):
            place = self.nic(k)
            self._function(tree, place, "0x020000", "0x14e4", "bnxt_en")
            self._interface(tree, place, f"eth{k}", "1", self.nic_speed_mbit)
        tree.write("sys/devices/virtual/net/lo/type", "772")
        tree.link("sys/class/net/lo", "../../devices/virtual/net/lo")
        tree.write("sys/block/sda/size", "1000")
        tree.write("sys/block/sda/device/model", "disk")
        tree.write("proc/diskstats", "8 0 sda 100 0 2000 10 200 0 4000 20 0 30 30\n8 1 sda1 90 0 1900 9 0 0 0 0 0 0 0")
        tree.write("proc/stat", "cpu  4293 164 2358 170931 239 0 38 8 0 0\ncpu0 4293 164 2358 170931 239 0 38 8 0 0")
        return tree

    def _function(self, tree: Tree, place: Place, pci_class: str, vendor: str, driver: str) -> None:
        directory = f"sys/{place.path}"
        for name, value in (("class", pci_class), ("vendor", vendor), ("numa_node", str(place.numa_node))):
            tree.write(f"{directory}/{name}", value)
        tree.link(f"{directory}/driver", f"/sys/bus/pci/drivers/{driver}")
        tree.link(f"sys/bus/pci/devices/{place.bdf}", f"../../../{place.path}")

    def _build_port(self, tree: Tree, k: int) -> None:
        place, name = self.port(k), f"mlx5_{k}"
        self._function(tree, place, "0x020700", "0x15b3", self.driver)
        device = f"sys/{place.path}/infiniband/{name}"
        for file, value in (("fw_ver", "28.39.1002"), ("node_type", "1: CA"), ("board_id", "MT_0000000838")):
            tree.write(f"{device}/{file}", value)
        tree.link(f"{device}/device", f"/sys/{place.path}")
        tree.link(f"sys/class/infiniband/{name}", f"../../{place.path}/infiniband/{name}")
        port = f"{device}/ports/1"
        values = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": self.rate, "link_layer": self.link_layer}
        for file, value in values.items():
            tree.write(f"{port}/{file}", value)
        for file in (
            "port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait", "port_xmit_discards",
            "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "VL15_dropped",
        ):
            tree.write(f"{port}/counters/{file}", "0")
        for file in (
            "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored", "out_of_sequence",
            "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "roce_adp_retrans", "rnr_nak_retry_err",
            "out_of_buffer", "req_cqe_error", "req_cqe_flush_error",
        ):
            tree.write(f"{port}/hw_counters/{file}", "0")
        tree.write(f"{port}/hw_counters/lifespan", "10")
        if self.netdevs:
            infiniband = self.link_layer == "InfiniBand"
            interface = f"{'ib' if infiniband else 'rail'}{k}"
            self._interface(tree, place, interface, "32" if infiniband else "1", 400_000)

    @staticmethod
    def _interface(tree: Tree, place: Place, name: str, kind: str, speed_mbit: int) -> None:
        directory = f"sys/{place.path}/net/{name}"
        for file, value in (("type", kind), ("speed", str(speed_mbit)), ("operstate", "up"), ("carrier", "1")):
            tree.write(f"{directory}/{file}", value)
        for file in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets"):
            tree.write(f"{directory}/statistics/{file}", "0")
        tree.link(f"{directory}/device", f"/sys/{place.path}")
        tree.link(f"sys/class/net/{name}", f"../../{place.path}/net/{name}")


@dataclass(frozen=True)
class Waveform:
    """Traffic that is there in part of each period, on CLOCK_MONOTONIC with the phase counted from its zero.

    At time t the wave is in its place u = (t + phase_s - shift_s) mod period: compute for u < compute_s, then
    communication for communication_s with rate_bytes_per_s, then idle_s of nothing. compute_s and idle_s zero: flat.
    """

    compute_s: float
    communication_s: float
    rate_bytes_per_s: float
    phase_s: float = 0.0
    shift_s: float = 0.0
    idle_s: float = 0.0

    def bytes_until(self, mono_s: float) -> float:
        """Bytes sent from the zero of the clock until mono_s: the integral of the wave, exact for any time.

        >>> Waveform(0.1, 0.08, 1000.0).bytes_until(0.36)
        160.0
        """
        period_s = self.compute_s + self.communication_s + self.idle_s
        periods, u = divmod(mono_s + self.phase_s - self.shift_s, period_s)
        sent_s = min(max(u - self.compute_s, 0.0), self.communication_s)
        return self.rate_bytes_per_s * (periods * self.communication_s + sent_s)


@dataclass(frozen=True)
class Moving:
    """A counter file that follows a wave: base plus the bytes since the writer began, divided by the unit of the file."""

    path: str
    wave: Waveform
    unit_bytes: int = 1
    base: int = 0


def fixed_width(count: int) -> bytes:
    """A counter as the writer writes it: always of one length, so that rewriting it in place is one pwrite."""
    return f"{count:<{_WIDTH}d}\n".encode()


def write_forever(plan: Sequence[Moving], interval_s: float) -> None:
    """Rewrite the files of a plan every interval_s, computed from the absolute time; end with the standard input.

    A reader with a kept descriptor never sees a file that is empty or half written: they are rewritten in place, each by
    one pwrite of constant length.
    """
    start_s = time.monotonic()
    since = [moving.wave.bytes_until(start_s) for moving in plan]
    fds = []
    for moving in plan:
        fds.append(os.open(moving.path, os.O_WRONLY))
        os.pwrite(fds[-1], fixed_width(moving.base), 0)
    print("writing", flush=True)
    deadline_s = start_s
    while True:
        now_s = time.monotonic()
        for fd, moving, before in zip(fds, plan, since, strict=True):
            sent = math.floor((moving.wave.bytes_until(now_s) - before) / moving.unit_bytes)
            os.pwrite(fd, fixed_width(moving.base + max(0, sent)), 0)
        deadline_s = max(deadline_s + interval_s, now_s)
        readable, _, _ = select.select([sys.stdin], [], [], max(0.0, deadline_s - time.monotonic()))
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


@contextlib.contextmanager
def moving(plan: Sequence[Moving], plan_file: Path, interval_s: float = 0.005) -> Iterator[subprocess.Popen[bytes]]:
    """A process that moves the files of a plan; it has written each of them once when the block begins."""
    body = {"interval_s": interval_s, "files": [asdict(item) for item in plan]}
    plan_file.write_text(json.dumps(body))
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.sysfs_tree", str(plan_file)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"writing\n", "the writer did not start"
        yield writer
    finally:
        writer.stdin.close()
        try:
            writer.wait(5)
        except subprocess.TimeoutExpired:
            writer.kill()
            writer.wait(5)
        writer.stdout.close()


def move_ports(tree: Tree, node: Node, waves: Sequence[Waveform]) -> list[Moving]:
    """The plan in which port k of a node sends and receives by waves[k], in words of 4 bytes."""
    return [
        Moving(str(tree.root / node.port_counter(k, name)), wave, unit_bytes=4)
        for k, wave in enumerate(waves)
        for name in ("port_xmit_data", "port_rcv_data")
    ]


def move_nic(tree: Tree, node: Node, k: int, wave: Waveform) -> list[Moving]:
    """The plan in which NIC k of a node sends and receives by a wave."""
    return [Moving(str(tree.root / node.nic_counter(k, name)), wave) for name in ("tx_bytes", "rx_bytes")]


if __name__ == "__main__":
    described = json.loads(Path(sys.argv[1]).read_text())
    write_forever(
        [Moving(**{**item, "wave": Waveform(**item["wave"])}) for item in described["files"]], described["interval_s"]
    )
