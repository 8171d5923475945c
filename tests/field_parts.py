"""What field machines are made of: boards, ports, interfaces, their places, what drivers answer. The table of machines is in
`tests/field_machines.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.nvml_library import ALL_CALLS, Board, Wave

ROCE_EVENTS = {
    "hw_counters/np_ecn_marked_roce_packets": "7", "hw_counters/np_cnp_sent": "5", "hw_counters/rp_cnp_handled": "3",
    "hw_counters/out_of_sequence": "2", "hw_counters/local_ack_timeout_err": "1", "hw_counters/out_of_buffer": "0",
    "hw_counters/lifespan": "10",
}  # fmt: skip
PMA_ERRORS = dict.fromkeys((
    "counters/symbol_error", "counters/link_error_recovery", "counters/link_downed", "counters/port_rcv_errors",
    "counters/port_xmit_discards", "counters/port_xmit_wait"), "0")  # fmt: skip


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device. `counted`: file below the port -> bytes per unit, for each of the two directions.

    refresh_s: how often these files take a new value (0: at each read). sysfs_driver None: the tree does not show it.
    """

    device: str
    driver: str | None
    path: str
    counted: Mapping[str, int]
    numa: int = 0
    link_layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    netdev: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    refresh_s: float = 0.0
    bytes_per_s: float | None = None  # while the job communicates; None: that of the machine
    physfn: str | None = None
    vpd: bytes | None = None


@dataclass(frozen=True)
class Interface:
    """A network interface that is no port's."""

    name: str
    driver: str
    path: str
    speed_mbit: int = 25_000
    bytes_per_s: float = 1e6
    default_route: bool = True


@dataclass(frozen=True)
class FieldMachine:
    """One node. Board k does the job of its wave; port k carries the traffic of board k * boards // ports."""

    name: str
    about: str
    boards: tuple[Board, ...] = ()
    gpu_paths: tuple[str, ...] = ()
    gpu_numa: tuple[int, ...] = ()
    ports: tuple[Port, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    driver: str = "580.95.05"
    port_bytes_per_s: float = 20e9
    topology: str | None = None
    state: str | None = None  # what each GPU is to be judged as after half a minute; None: it has no board
    why: str = ""  # words in the reason beside that state
    within: float = 0.05  # how close the exposed share comes to the truth of 0.4


def switch(bus: int, slot: int) -> str:
    """A function below one PCIe switch; functions of equal bus share it."""
    return (f"devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0/0000:{bus + 2:02x}:{slot:02x}.0/"
            f"0000:{bus + 3 + slot:02x}:00.0")  # fmt: skip


def root(domain: int, bus: int = 0) -> str:
    """A function that hangs on a root port of its own."""
    return f"devices/pci{domain:04x}:{bus:02x}/{domain:04x}:{bus:02x}:00.0/{domain:04x}:{bus + 1:02x}:00.0"


def without(*calls: str) -> tuple[str, ...]:
    """What a board answers; XID events only where a test waits for them."""
    return tuple(c for c in ALL_CALLS if c not in ("xid", *calls))


def job(k: int, compute: float, communication: float, compute_s: float = 0.6, communication_s: float = 0.4) -> Wave:
    """Compute and communication in turns, GPU k a little later than the one before."""
    return Wave(compute, communication, compute_s, communication_s, phase_s=0.013 * k, idle_watts=0.15 * compute)


SWITCHES = tuple(0x10 + 8 * k for k in range(8))
GPU_PATHS = tuple(switch(bus, 2) for bus in SWITCHES)
NUMA = (0, 0, 0, 0, 1, 1, 1, 1)
ETH0 = Interface("eth0", "ixgbe", root(0, 0xE0))
WORDS = {"counters/port_xmit_data": 4, "counters/port_rcv_data": 4}
PLAIN = {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1}

H100 = Board(supports=without())
A100 = Board("NVIDIA A100-SXM4-80GB", arch=7, cc="8.0", limit=400.0, links=12, supports=without("average", "gpm"))
A100_PCIE = Board("NVIDIA A100-PCIE-40GB", arch=7, cc="8.0", limit=250.0, links=0, supports=without("average", "gpm", "nvlink"))


def boards(of: Board, count: int, compute: float, communication: float, **changes: object) -> tuple[Board, ...]:
    """So many boards of a kind, in the phases of one job."""
    return tuple(replace(of, wave=job(k, compute, communication), **changes) for k in range(count))  # type: ignore[arg-type]


def mlx5(k: int, path: str, numa: int, link_layer: str, netdev: str | None, rate: str) -> Port:
    return Port(f"mlx5_{k}", "mlx5_core", path, WORDS, numa, link_layer, rate, netdev, {**PMA_ERRORS, **ROCE_EVENTS})


def nvswitch_bridge(k: int, path: str) -> Port:
    """A function that manages NVSwitches: it looks like an active port, its counters fail, its product data says what it is."""
    counters = ("counters/port_xmit_data", "counters/port_rcv_data", "counters/symbol_error", "counters/VL15_dropped")
    return Port(f"mlx5_{k}", "mlx5_core", path, {}, 0, files=dict.fromkeys(counters, "!EINVAL"), vpd=b"V0\x0bSMDL=SW_MNG")


def one_port(name: str, driver: str, counted: Mapping[str, int], files: Mapping[str, str], **more: object) -> tuple[Port, ...]:
    """One port below the switch of each of two GPUs."""
    return tuple(
        Port(f"{name}{k}", driver, switch(SWITCHES[k], 0), counted, 0, files=dict(files), **more)  # type: ignore[arg-type]
        for k in range(2)
    )


def pair_of_gpus(name: str, about: str, ports: tuple[Port, ...], state: str = "serialized", why: str = "") -> FieldMachine:
    """Two A100 on PCIe, without NVLink: only what the ports count can be judged."""
    return FieldMachine(name, about, boards(A100_PCIE, 2, 230.0, 110.0), GPU_PATHS[:2], (0, 0), ports, (ETH0,), "550.127.08",
                        port_bytes_per_s=10e9, state=state, why=why)  # fmt: skip
