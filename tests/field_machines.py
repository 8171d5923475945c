"""The machines that people have, as values: boards, ports, interfaces, places, driver answers, and the job they do.

`tests/played.py` plays one on a clock of its own, `tests/live_machines.py` runs the daemon's readers on it; what both find and
read stands in tests/golden/machines, and docs/machines.md is printed from it. Addresses are invented, shapes are those of
the platforms named; see docs/drivers.md for what was seen of which driver.
"""

from __future__ import annotations

from tests.field_parts import (
    A100,
    ETH0,
    GPU_PATHS,
    H100,
    NUMA,
    PLAIN,
    PMA_ERRORS,
    SWITCHES,
    WORDS,
    FieldMachine,
    Interface,
    Port,
    boards,
    job,
    mlx5,
    nvswitch_bridge,
    one_port,
    pair_of_gpus,
    root,
    switch,
    without,
)
from tests.nvml_library import Board

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
        boards(H100, 8, 640.0, 240.0), GPU_PATHS, NUMA,
        (*(mlx5(k, switch(bus, 0), NUMA[k], "InfiniBand", f"ib{k}", "400 Gb/sec (4X NDR)") for k, bus in enumerate(SWITCHES)),
         mlx5(8, root(0, 0xF0), 0, "InfiniBand", "ib8", "200 Gb/sec (4X HDR)")),
        (ETH0,), state="serialized",
    ),
    FieldMachine(
        "a100_roce", "8 x A100 SXM, ConnectX-6 RoCE below the switch of each GPU",
        boards(A100, 8, 380.0, 170.0), GPU_PATHS, NUMA,
        tuple(mlx5(k, switch(bus, 0), NUMA[k], "Ethernet", f"rail{k}", "200 Gb/sec (4X HDR)")
              for k, bus in enumerate(SWITCHES)),
        (ETH0,), "535.183.01", state="serialized",
    ),
    FieldMachine(
        "aws_p5", "8 x H100 SXM, four EFA below the switch of each GPU, ENA beside them",
        boards(H100, 8, 640.0, 240.0), GPU_PATHS, NUMA,
        tuple(
            Port(f"rdmap{bus + 3 + n}s0", "efa", switch(bus, n), PLAIN, NUMA[k], "Unknown",
                 "100 Gb/sec (4X EDR)", files={"hw_counters/retrans_pkts": "4", "hw_counters/rx_drops": "0",
                                               "hw_counters/lifespan": "12"}, bytes_per_s=10e9)
            for k, bus in enumerate(SWITCHES) for n in (0, 1, 3, 4)  # the GPU is at 2
        ),
        (Interface("ens32", "ena", root(0, 0xE0), 100_000),), state="serialized", within=0.15,  # EFA is asked each 0.25 s
    ),
    FieldMachine(
        "gb200", "4 x GB200 whose power is read for the module, ConnectX-7 on the root of the CPU",
        boards(Board("NVIDIA GB200", arch=10, cc="10.0", limit=1200.0, module_limit=2700.0, module_extra=120.0,
                     energy_extra=120.0, supports=(*without("instant", "average", "nvlink"), "module", "nvlink5")),
               4, 1100.0, 450.0),
        tuple(root(8 + k) for k in range(4)), (0, 0, 1, 1),
        tuple(mlx5(k, root(k), k // 2, "InfiniBand", f"ib{k}", "400 Gb/sec (4X NDR)") for k in range(4)),
        (Interface("enP5p3s0", "ixgbe", root(5, 2)),), "570.172.08", state="serialized",
    ),
    FieldMachine(
        "gh200", "1 x GH200 of an old driver: energy of the GPU alone stands before power of the module",
        boards(Board("NVIDIA GH200 480GB", limit=900.0, module_limit=1000.0, module_extra=120.0, links=0,
                     supports=(*without("instant", "nvlink"), "module")), 1, 640.0, 240.0),
        (root(9),), (0,), (mlx5(0, root(0), 0, "InfiniBand", "ib0", "400 Gb/sec (4X NDR)"),),
        (Interface("enP5p3s0", "ixgbe", root(5, 2)),), "535.183.01", state="serialized", within=0.1,
    ),
    FieldMachine(
        "hgx_b200", "8 x B200, ConnectX-7 below the switch of each GPU, four more that manage the NVSwitches",
        boards(Board("NVIDIA B200", arch=10, cc="10.0", limit=1000.0, instant=(0.005, 0.1, 0.0),
                     supports=(*without("nvlink"), "nvlink5")), 8, 960.0, 380.0),
        GPU_PATHS, NUMA,
        (*(mlx5(k, switch(bus, 0), NUMA[k], "InfiniBand", f"ib{k}", "400 Gb/sec (4X NDR)") for k, bus in enumerate(SWITCHES)),
         *(nvswitch_bridge(k, root(0, 0xA0 + 4 * k)) for k in range(8, 12))),
        (ETH0,), state="serialized",
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
        GPU_PATHS[:2], (0, 0),
        tuple(mlx5(k, switch(SWITCHES[k], 0), 0, "Ethernet", f"rail{k}", "100 Gb/sec (4X EDR)") for k in range(2)), (ETH0,),
        "470.256.02", port_bytes_per_s=8e9, state="unobservable", why="averages over 1 s",
    ),
    FieldMachine(
        "a40_energy", "2 x A40 whose driver has no momentary power, but counts energy; RoCE",
        boards(Board("NVIDIA A40", arch=7, cc="8.6", limit=300.0, links=0,
                     supports=("usage", "energy", "utilization", "clocks")), 2, 290.0, 130.0),
        GPU_PATHS[:2], (0, 0),
        tuple(mlx5(k, switch(SWITCHES[k], 0), 0, "Ethernet", f"rail{k}", "100 Gb/sec (4X EDR)") for k in range(2)), (ETH0,),
        "510.108.03", port_bytes_per_s=8e9, state="serialized", within=0.1,
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
        tuple(switch(SWITCHES[k // 2], 1 + k % 2) for k in range(4)), (0, 0, 1, 1),
        tuple(mlx5(k, switch(SWITCHES[k], 0), k, "InfiniBand", f"ib{k}", "100 Gb/sec (4X EDR)") for k in range(2)), (ETH0,),
        "450.248.02", port_bytes_per_s=10e9, state="serialized",
    ),
    FieldMachine(
        "a100_mig", "1 x A100 cut into two instances: power for the board, no utilisation",
        boards(A100, 1, 380.0, 170.0, mig=1, mig_uuids=("MIG-1111", "MIG-2222")), GPU_PATHS[:1], (0,),
        (mlx5(0, switch(SWITCHES[0], 0), 0, "InfiniBand", "ib0", "200 Gb/sec (4X HDR)"),), (ETH0,), "535.183.01",
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
    FieldMachine(
        "jetson_orin", "a board whose driver starts and answers nothing",
        (Board("Orin (nvgpu)", arch=7, cc="8.7", limit=0.0, links=0, supports=()),),
        (), (), (), (Interface("eth0", "r8169", root(0, 6), 1_000),), "540.4.0", state="no_data", why="no power readings",
    ),
    FieldMachine(
        "wsl", "a GPU under Windows: no PCI function, no utilisation, an interface of the hypervisor",
        (Board("NVIDIA GeForce RTX 4090", arch=8, cc="8.9", limit=450.0, links=0, instant=(0.1, 0.1, 0.0),
               supports=("instant", "average", "usage", "clocks"), wave=job(0, 430.0, 430.0)),),
        (), (), (), (Interface("eth0", "hv_netvsc", "devices/LNXSYSTM:00/VMBUS:00/0001", 10_000),), "566.36",
        state="unobservable", why="no traffic source",
    ),
    pair_of_gpus(
        "bnxt_old", "Broadcom, old driver: counters fail, bytes come from memory that is filled once a second",
        one_port("bnxt_re", "bnxt_en", PLAIN, {"counters/port_xmit_data": "!EINVAL", "counters/port_rcv_data": "!EINVAL",
                                                "hw_counters/tx_cnp_pkts": "4", "hw_counters/rx_roce_discards": "0"},
                 link_layer="Ethernet", rate="200 Gb/sec (4X HDR)", refresh_s=1.0),
        state="unobservable",
    ),
    pair_of_gpus(
        "bnxt_new", "Broadcom, new driver: counters by firmware command, renamed events",
        one_port("bnxt_re", "bnxt_en", {"hw_counters/tx_roce_only_bytes": 1, "hw_counters/rx_roce_good_bytes": 1, **PLAIN,
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
        tuple(mlx5(k, root(0x101 + k), 0, "InfiniBand", f"ib{k}", "200 Gb/sec (4X HDR)") for k in (1, 0)), (ETH0,),
        "535.183.01", topology=_AZURE_TOPOLOGY.replace(":00:00.0", ":01:00.0"), state="serialized",
    ),
    FieldMachine(
        "virtual_functions", "1 x H100 passed through, a virtual function beside a root of its own that shows its physical one",
        boards(H100, 1, 640.0, 240.0, virtualization=1), GPU_PATHS[:1], (0,),
        (Port("mlx5_0", "mlx5_core", root(0, 0x70), WORDS, 0, "InfiniBand", files=PMA_ERRORS, physfn=switch(SWITCHES[0], 0)),
         Port("mlx5_1", "mlx5_core", root(0, 0x80), WORDS, 0, "InfiniBand", files=PMA_ERRORS, physfn=switch(SWITCHES[1], 0))),
        (ETH0,), state="serialized",
    ),
    FieldMachine(
        "nvlink_only", "4 x H100 of one node: all traffic is NVLink",
        boards(H100, 4, 640.0, 240.0), GPU_PATHS[:4], (0,) * 4, (), (ETH0,), state="serialized",
    ),
    FieldMachine("nothing", "no GPU, no RDMA, no library: an interface and a disk", interfaces=(ETH0,)),
)  # fmt: skip


def machine(name: str) -> FieldMachine:
    """The machine of that name."""
    return next(m for m in FIELD_MACHINES if m.name == name)
