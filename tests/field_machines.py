"""The machines that people have, as values: boards, ports, interfaces, places, driver answers, and the job they do.

`tests/played.py` builds one and plays it on a clock of its own; what the real readers say of each stands in
tests/golden/machines. Addresses are invented, shapes are those of the platforms named; see docs/drivers.md for what was
seen of which driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


_SWITCHES = tuple(0x10 + 8 * k for k in range(8))
_GPU_PATHS = tuple(switch(bus, 2) for bus in _SWITCHES)
_NUMA = (0, 0, 0, 0, 1, 1, 1, 1)
_ETH0 = Interface("eth0", "ixgbe", root(0, 0xE0))
_WORDS = {"counters/port_xmit_data": 4, "counters/port_rcv_data": 4}
_PLAIN = {"hw_counters/tx_bytes": 1, "hw_counters/rx_bytes": 1}

H100 = Board(supports=without())
A100 = Board("NVIDIA A100-SXM4-80GB", arch=7, cc="8.0", limit=400.0, links=12, supports=without("average", "gpm"))
A100_PCIE = Board("NVIDIA A100-PCIE-40GB", arch=7, cc="8.0", limit=250.0, links=0, supports=without("average", "gpm", "nvlink"))


def boards(of: Board, count: int, compute: float, communication: float, **changes: object) -> tuple[Board, ...]:
    """So many boards of a kind, in the phases of one job."""
    from dataclasses import replace

    return tuple(replace(of, wave=job(k, compute, communication), **changes) for k in range(count))  # type: ignore[arg-type]


def mlx5(k: int, path: str, numa: int, link_layer: str, netdev: str | None, rate: str) -> Port:
    return Port(f"mlx5_{k}", "mlx5_core", path, _WORDS, numa, link_layer, rate, netdev, {**PMA_ERRORS, **ROCE_EVENTS})


def one_port(name: str, driver: str, counted: Mapping[str, int], files: Mapping[str, str], **more: object) -> tuple[Port, ...]:
    """One port below the switch of each of two GPUs."""
    return tuple(
        Port(f"{name}{k}", driver, switch(_SWITCHES[k], 0), counted, 0, files=dict(files), **more)  # type: ignore[arg-type]
        for k in range(2)
    )


def pair_of_gpus(name: str, about: str, ports: tuple[Port, ...], state: str = "serialized", why: str = "") -> FieldMachine:
    """Two A100 on PCIe, without NVLink: only what the ports count can be judged."""
    return FieldMachine(name, about, boards(A100_PCIE, 2, 230.0, 110.0), _GPU_PATHS[:2], (0, 0), ports, (_ETH0,), "550.127.08",
                        port_bytes_per_s=10e9, state=state, why=why)  # fmt: skip


_AZURE_TOPOLOGY = """<system version="1">
  <cpu numaid="0">
    <pci busid="ffff:ff:01.0"><pci busid="0001:00:00.0"/><pci busid="0101:00:00.0"/></pci>
    <pci busid="ffff:ff:02.0"><pci busid="0002:00:00.0"/><pci busid="0102:00:00.0"/></pci>
  </cpu>
</system>
"""

FIELD_MACHINES: tuple[FieldMachine, ...] = (
    FieldMachine(
        "h100_infiniband", "8 x H100 SXM, ConnectX-7 InfiniBand below the switch of each GPU, storage on a root port",
        boards(H100, 8, 640.0, 240.0), _GPU_PATHS, _NUMA,
        (*(mlx5(k, switch(bus, 0), _NUMA[k], "InfiniBand", f"ib{k}", "400 Gb/sec (4X NDR)") for k, bus in enumerate(_SWITCHES)),
         mlx5(8, root(0, 0xF0), 0, "InfiniBand", "ib8", "200 Gb/sec (4X HDR)")),
        (_ETH0,), state="serialized",
    ),
    FieldMachine(
        "a100_roce", "8 x A100 SXM, ConnectX-6 RoCE below the switch of each GPU",
        boards(A100, 8, 380.0, 170.0), _GPU_PATHS, _NUMA,
        tuple(mlx5(k, switch(bus, 0), _NUMA[k], "Ethernet", f"rail{k}", "200 Gb/sec (4X HDR)")
              for k, bus in enumerate(_SWITCHES)),
        (_ETH0,), "535.183.01", state="serialized",
    ),
    FieldMachine(
        "aws_p5", "8 x H100 SXM, four EFA below the switch of each GPU, ENA beside them",
        boards(H100, 8, 640.0, 240.0), _GPU_PATHS, _NUMA,
        tuple(
            Port(f"rdmap{bus + 3 + n}s0", "efa", switch(bus, n), _PLAIN, _NUMA[k], "Unknown",
                 "100 Gb/sec (4X EDR)", files={"hw_counters/retrans_pkts": "4", "hw_counters/rx_drops": "0",
                                               "hw_counters/lifespan": "12"}, bytes_per_s=10e9)
            for k, bus in enumerate(_SWITCHES) for n in (0, 1, 3, 4)  # the GPU is at 2
        ),
        (Interface("ens32", "ena", root(0, 0xE0), 100_000),), state="serialized", within=0.15,  # EFA is asked each 0.25 s
    ),
    FieldMachine(
        "gb200", "4 x GB200 whose power is read for the module, ConnectX-7 on the root of the CPU",
        boards(Board("NVIDIA GB200", arch=10, cc="10.0", limit=1200.0, module_limit=2700.0, module_extra=120.0,
                     supports=(*without("instant", "nvlink"), "module", "nvlink5")), 4, 1100.0, 450.0),
        tuple(root(8 + k) for k in range(4)), (0, 0, 1, 1),
        tuple(mlx5(k, root(k), k // 2, "InfiniBand", f"ib{k}", "400 Gb/sec (4X NDR)") for k in range(4)),
        (Interface("enP5p3s0", "ixgbe", root(5, 2)),), "570.172.08", state="serialized",
    ),
    FieldMachine(
        "gb300_smoothed", "2 x GB300 with power smoothing on: power never says that the job communicates",
        boards(Board("NVIDIA GB300", arch=10, cc="10.3", limit=1400.0, smoothing=1,
                     supports=(*without("nvlink"), "nvlink5")), 2, 1250.0, 1150.0),
        tuple(root(8 + k) for k in range(2)), (0, 0),
        tuple(mlx5(k, root(k), 0, "InfiniBand", f"ib{k}", "800 Gb/sec (4X XDR)") for k in range(2)),
        (Interface("enP5p3s0", "ixgbe", root(5, 2)),), state="unobservable", why="power smoothing",
    ),
    FieldMachine(
        "a10_average", "2 x A10 whose driver tells only the mean of the last second, RoCE",
        boards(Board("NVIDIA A10", arch=7, cc="8.6", limit=150.0, links=0, supports=("usage", "utilization", "clocks")), 2,
               148.0, 70.0),
        _GPU_PATHS[:2], (0, 0),
        tuple(mlx5(k, switch(_SWITCHES[k], 0), 0, "Ethernet", f"rail{k}", "100 Gb/sec (4X EDR)") for k in range(2)), (_ETH0,),
        "470.256.02", port_bytes_per_s=8e9, state="unobservable", why="averages over 1 s",
    ),
    FieldMachine(
        "t4_ethernet", "1 x T4 of a cloud with nothing but an interface",
        boards(Board("Tesla T4", arch=6, cc="7.5", limit=70.0, links=0, instant=(0.1, 0.1, 0.0),
                     supports=without("average", "gpm", "nvlink")), 1, 68.0, 35.0),
        (root(0, 0x1E),), (0,), (), (Interface("ens5", "ena", root(0, 5), 25_000),), "535.183.01",
    ),
    FieldMachine(
        "v100_shared", "4 x V100 SXM2 of an old driver, two to a switch with one ConnectX-5 for both",
        boards(Board("Tesla V100-SXM2-32GB", arch=5, cc="7.0", limit=300.0, links=6, usage=(0.01, 0.02, 0.0),
                     supports=("usage", "energy", "utilization", "nvlink", "clocks")), 4, 290.0, 130.0),
        tuple(switch(_SWITCHES[k // 2], 1 + k % 2) for k in range(4)), (0, 0, 1, 1),
        tuple(mlx5(k, switch(_SWITCHES[k], 0), k, "InfiniBand", f"ib{k}", "100 Gb/sec (4X EDR)") for k in range(2)), (_ETH0,),
        "450.248.02", port_bytes_per_s=10e9, state="serialized",
    ),
    FieldMachine(
        "a100_mig", "1 x A100 cut into two instances: power for the board, no utilisation",
        boards(A100, 1, 380.0, 170.0, mig=1, mig_uuids=("MIG-1111", "MIG-2222")), _GPU_PATHS[:1], (0,),
        (mlx5(0, switch(_SWITCHES[0], 0), 0, "InfiniBand", "ib0", "200 Gb/sec (4X HDR)"),), (_ETH0,), "535.183.01",
        state="serialized",
    ),
    FieldMachine(
        "vgpu", "a virtual machine with a part of an A40: no power, an energy counter that stands at 0",
        boards(Board("NVIDIA A40-12Q", arch=7, cc="8.6", limit=0.0, links=0, supports=("energy", "utilization"),
                     zeros=("energy",), virtualization=2), 1, 200.0, 100.0),
        (root(0, 2),), (0,), (), (Interface("ens3", "virtio_net", root(0, 6), 10_000),), "550.127.08",
        state="no_data", why="no power readings",
    ),
    FieldMachine(
        "jetson_thor", "a board whose driver answers utilisation with 0 for ever and nothing else",
        (Board("NVIDIA Thor", arch=10, cc="11.0", limit=0.0, links=0, supports=("utilization",), zeros=("utilization",)),),
        (), (), (), (Interface("eth0", "r8169", root(0, 6), 1_000),), state="no_data", why="no power readings",
    ),
    pair_of_gpus(
        "bnxt_old", "Broadcom, old driver: counters fail, bytes come from memory that is filled once a second",
        one_port("bnxt_re", "bnxt_en", _PLAIN, {"counters/port_xmit_data": "!EINVAL", "counters/port_rcv_data": "!EINVAL",
                                                "hw_counters/tx_cnp_pkts": "4", "hw_counters/rx_roce_discards": "0"},
                 link_layer="Ethernet", rate="200 Gb/sec (4X HDR)", refresh_s=1.0),
        state="unobservable",
    ),
    pair_of_gpus(
        "bnxt_new", "Broadcom, new driver: counters by firmware command, renamed events",
        one_port("bnxt_re", "bnxt_en", {"hw_counters/tx_roce_only_bytes": 1, "hw_counters/rx_roce_good_bytes": 1, **_PLAIN,
                                        "counters/port_xmit_data": 4, "counters/port_rcv_data": 4},
                 {"hw_counters/np_cnp_pkts": "4", "hw_counters/out_of_sequence": "1", "counters/link_downed": "2"},
                 link_layer="Ethernet", rate="200 Gb/sec (4X HDR)"),
    ),
    pair_of_gpus(
        "irdma", "Intel E810: octets of IP in hw_counters, no counters",
        one_port("irdma", "ice", {"hw_counters/ip4OutOctets": 1, "hw_counters/ip4InOctets": 1},
                 {"hw_counters/ip6OutOctets": "0", "hw_counters/ip6InOctets": "0", "hw_counters/cnpSent": "6"},
                 link_layer="Ethernet", rate="100 Gb/sec (4X EDR)"),
    ),
    pair_of_gpus(
        "hfi1", "Omni-Path: flits of 8 bytes in the files where InfiniBand has words of 4",
        one_port("hfi1_", "hfi1", {"counters/port_xmit_data": 8, "counters/port_rcv_data": 8},
                 {**PMA_ERRORS, "hw_counters/RcSeqNak": "2", "hw_counters/SwLinkUp,32": "1", "hw_counters/Rcv Ctx": "1"},
                 rate="100 Gb/sec (4X EDR)"),
    ),
    FieldMachine(
        "azure_topology", "2 x A100 of a virtual machine that hides the PCI tree; a topology file shows it",
        boards(A100, 2, 380.0, 170.0), (root(1), root(2)), (0, 0),
        tuple(mlx5(k, root(0x101 + k), 0, "InfiniBand", f"ib{k}", "200 Gb/sec (4X HDR)") for k in (1, 0)), (_ETH0,),
        "535.183.01", topology=_AZURE_TOPOLOGY.replace(":00:00.0", ":01:00.0"), state="serialized",
    ),
    FieldMachine(
        "virtual_functions", "1 x H100 passed through, a virtual function beside a root of its own that shows its physical one",
        boards(H100, 1, 640.0, 240.0, virtualization=1), _GPU_PATHS[:1], (0,),
        (Port("mlx5_0", "mlx5_core", root(0, 0x70), _WORDS, 0, "InfiniBand", files=PMA_ERRORS, physfn=switch(_SWITCHES[0], 0)),
         Port("mlx5_1", "mlx5_core", root(0, 0x80), _WORDS, 0, "InfiniBand", files=PMA_ERRORS, physfn=switch(_SWITCHES[1], 0))),
        (_ETH0,), state="serialized",
    ),
    FieldMachine(
        "nvlink_only", "4 x H100 of one node: all traffic is NVLink",
        boards(H100, 4, 640.0, 240.0), _GPU_PATHS[:4], (0,) * 4, (), (_ETH0,), state="serialized",
    ),
    FieldMachine("nothing", "no GPU, no RDMA, no library: an interface and a disk", interfaces=(_ETH0,)),
)  # fmt: skip


def machine(name: str) -> FieldMachine:
    """The machine of that name."""
    return next(m for m in FIELD_MACHINES if m.name == name)
