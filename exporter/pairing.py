"""Which port carries the traffic of which GPU, and why: by the PCI tree, a topology file, NUMA nodes, or configuration.

`app` calls `pair` when the inventory changes, `doctor` shows the reasons. A pure function of devices and texts: nothing
here reads the machine. Pairing is an approximation (NCCL may carry the traffic of one GPU over the port of another), so
every link says how it was found, and a guess is called one. Indices are never compared: on real boxes a storage port
stands in the middle of the numbering (NVIDIA/nccl#1264).

Reasons, best first: config (told so), PIX (same PCIe switch), PXB (several switches), topology (same switch in an NCCL
topology file), PHB (same root complex), NODE (same NUMA node), guess (order within the NUMA node), SYS (across NUMA
nodes), node (nothing known: every GPU is given all ports).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from xml.etree import ElementTree

from exporter.model import Device, Link

_LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_SWITCHED = ("PIX", "PXB")
_NESTED_SWITCH = 3  # components below the common switch that mean one more switch: downstream, upstream, downstream port
_PCI_ROOT = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")
_PCI_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_LARGEST_TOPOLOGY_CHARS = 1 << 20
_NO_OVERRIDES: Mapping[str, Sequence[str]] = MappingProxyType({})

Pairs = list[tuple[Device, Device, str]]


def pair(
    gpus: Sequence[Device],
    ports: Sequence[Device],
    *,
    overrides: Mapping[str, Sequence[str]] = _NO_OVERRIDES,
    compute_ports: str | None = None,
    topology: str | None = None,
    nics: Sequence[Device] = (),
    management_netdevs: Collection[str] = (),
    nvlink_gpus: Collection[str] = (),
) -> tuple[Link, ...]:
    """Every GPU with the devices that carry its traffic.

    overrides: GPU (id, UUID or index) -> devices (glob patterns on ports, RDMA devices or interfaces); wins for that GPU.
    compute_ports: in the syntax of NCCL_IB_HCA, the ports that carry a job's traffic; without it they are told apart from
    storage and management ports by their place, else by kind and number. topology: text of an NCCL topology file.
    management_netdevs: interfaces with the default route. nvlink_gpus: ids of GPUs whose NVLink bytes are counted.

    A weight is 1 / number of GPUs that share the device. Ports that are not active are passed over while others are.
    """
    pairs: Pairs = []
    rest: list[Device] = []
    for gpu in gpus:
        patterns = next((overrides[name] for name in _names(gpu) if name in overrides), None)
        if patterns is None:
            rest.append(gpu)
        else:
            pairs += [(gpu, device, "config") for device in (*ports, *nics) if _is_named(device, patterns)]
    pairs += _by_place(rest, _candidates(ports, compute_ports), topology, management_netdevs, chosen=bool(compute_ports))
    shares = Counter(device.id for _, device, _ in pairs)
    links = [
        Link(gpu.id, device.id, "tcp" if device.kind == "nic" else "rdma", reason, 1.0 / shares[device.id])
        for gpu, device, reason in pairs
    ]
    order = {gpu.id: place for place, gpu in enumerate(gpus)}
    links += [Link(gpu.id, gpu.id, "nvlink", "nvlink") for gpu in gpus if gpu.id in nvlink_gpus]
    return tuple(sorted(links, key=lambda link: order[link.gpu_id]))


def _names(gpu: Device) -> list[str]:
    return [name for name in (gpu.id, gpu.uuid, str(gpu.index) if gpu.index is not None else None) if name is not None]


def _is_named(device: Device, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in (device.id, device.id.split("/", 1)[0]))


def _candidates(ports: Sequence[Device], compute_ports: str | None) -> list[Device]:
    """The ports that could carry a job's traffic; inactive ones only where none is active.

    Bytes of a driver that nobody checked prove nothing, unless its port is asked for by name; a device without ports has
    no traffic.
    """
    usable = [port for port in ports if "/" in port.id and "software" not in port.info and _has_fabric(port)]
    if compute_ports:
        selects = nccl_selector(compute_ports)
        usable = [port for port in usable if selects(port.id)]
    else:
        usable = [port for port in usable if "unchecked" not in port.info]
    return [port for port in usable if port.info.get("state") != "inactive"] or usable


def _has_fabric(port: Device) -> bool:
    """NCCL passes over a link layer that is neither InfiniBand nor Ethernet; EFA says Unknown and is used all the same."""
    return port.info.get("link_layer") != "Unknown" or port.driver == "efa"


def nccl_selector(text: str) -> Callable[[str], bool]:
    """A test on port ids in the syntax of NCCL_IB_HCA: "mlx5" (prefix), "=mlx5_0,mlx5_1:1" (exact), "^mlx5_2" (all but).

    Parts after a second colon (rail, plane) are not looked at.

    >>> [port for port in ("mlx5_1/1", "mlx5_10/1", "mlx4_0/2") if nccl_selector("=mlx5_1")(port)]
    ['mlx5_1/1']
    >>> [port for port in ("mlx5_1/1", "mlx5_10/1", "mlx4_0/2") if nccl_selector("mlx5_1,mlx4_0:1")(port)]
    ['mlx5_1/1', 'mlx5_10/1']
    """
    text = text.strip()
    exclude = text.startswith("^")
    text = text.removeprefix("^")
    exact = text.startswith("=")
    items = [item.strip().split(":") for item in text.removeprefix("=").split(",") if item.strip()]

    def names(port_id: str) -> bool:
        device, _, number = port_id.partition("/")
        return any(
            (device == item[0] if exact else device.startswith(item[0])) and (len(item) < 2 or item[1] in ("", number))
            for item in items
        )

    return lambda port_id: names(port_id) != exclude


def _by_place(
    gpus: Sequence[Device], ports: Sequence[Device], topology: str | None, management: Collection[str], *, chosen: bool
) -> Pairs:
    if not gpus or not ports:
        return []
    level = {(gpu.id, port.id): level_of(gpu, port) for gpu in gpus for port in ports}
    switched = [p for p in ports if any(level[gpu.id, p.id] in _SWITCHED for gpu in gpus)]
    if switched:
        return [(gpu, port, level[gpu.id, port.id]) for gpu in gpus for port in _nearest(gpu, switched, level)]
    if topology is not None and (found := _by_topology(gpus, ports, topology)):
        return found
    ports = ports if chosen else _compute_class(ports, len(gpus), management)
    if not any(d.pci_path for d in gpus) or not any(d.pci_path for d in ports):
        return [(gpu, port, "node") for gpu in gpus for port in ports]
    return _by_root(gpus, ports) or _by_numa(gpus, ports, level)


def _nearest(gpu: Device, ports: Sequence[Device], level: Mapping[tuple[str, str], str]) -> list[Device]:
    """The ports of the best level, those on the GPU's NUMA node before others; all ties are kept."""

    def distance(port: Device) -> tuple[int, bool]:
        return _LEVELS.index(level[gpu.id, port.id]), gpu.numa_node != port.numa_node

    best = min(map(distance, ports))
    return [port for port in ports if distance(port) == best]


def level_of(gpu: Device, port: Device) -> str:
    """How far apart two devices are, from their canonical paths in sysfs: PIX, PXB, PHB, NODE or SYS.

    >>> gpu = Device("gpu", "GPU-0", pci_path="pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0")
    >>> port = Device("rdma_port", "mlx5_0/1", pci_path="pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0")
    >>> level_of(gpu, port)
    'PIX'
    """
    of_port, of_physfn = _level(gpu, port, port.pci_path), _level(gpu, port, port.info.get("physfn"))
    return min(of_port, of_physfn, key=_LEVELS.index)


def _level(gpu: Device, port: Device, path: str | None) -> str:
    ours, theirs = _bridges(gpu.pci_path), _bridges(path)
    if ours is not None and theirs is not None and ours[0] == theirs[0]:
        common = 0
        for a, b in zip(ours[1], theirs[1], strict=False):
            if a != b:
                break
            common += 1
        if common == 0:
            return "PHB"
        nested = max(len(ours[1]), len(theirs[1])) - common >= _NESTED_SWITCH
        return "PXB" if nested else "PIX"
    same_node = gpu.numa_node is not None and gpu.numa_node == port.numa_node
    return "NODE" if same_node else "SYS"


def _bridges(pci_path: str | None) -> tuple[str, list[str]] | None:
    """Root complex and the bridges below it, without the device itself."""
    parts = (pci_path or "").split("/")
    for place, part in enumerate(parts):
        if _PCI_ROOT.fullmatch(part):
            below = [p for p in parts[place + 1 :] if _PCI_ADDRESS.fullmatch(p.lower())]
            return "/".join(parts[: place + 1]), below[:-1]
    return None


def _compute_class(ports: Sequence[Device], gpu_count: int, management: Collection[str]) -> list[Device]:
    """Without a switch that tells: the largest group of ports alike whose number fits that of the GPUs."""

    def manages(port: Device) -> bool:
        return "bond" in port.info or port.info.get("netdev") in management

    kept = [port for port in ports if not manages(port)] or list(ports)
    groups: dict[tuple[object, ...], list[Device]] = {}
    for port in kept:
        groups.setdefault((port.driver, port.info.get("link_layer"), port.rate_bytes_per_s), []).append(port)
    fitting = [g for g in groups.values() if len(g) % gpu_count == 0 or gpu_count % len(g) == 0]
    return max(fitting, key=lambda g: (len(g), g[0].rate_bytes_per_s or 0.0)) if fitting else kept


def _by_root(gpus: Sequence[Device], ports: Sequence[Device]) -> Pairs:
    """Root complexes, where each GPU has ports on its own and none is shared in a way that leaves a choice."""
    roots = {device.id: found[0] if (found := _bridges(device.pci_path)) else None for device in (*gpus, *ports)}
    pairs: Pairs = []
    for gpu in gpus:
        near = [port for port in ports if roots[gpu.id] is not None and roots[port.id] == roots[gpu.id]]
        beside = sum(roots[other.id] == roots[gpu.id] for other in gpus)
        if not near or (beside > 1 and len(near) > 1):
            return []
        pairs += [(gpu, port, "PHB") for port in near]
    return pairs


def _by_numa(gpus: Sequence[Device], ports: Sequence[Device], level: Mapping[tuple[str, str], str]) -> Pairs:
    """NUMA nodes; within one, by order of PCI address where the numbers divide, which is a guess and says so."""
    if all(device.numa_node is None for device in (*gpus, *ports)):  # a machine of one node
        gpus, ports = ([replace(device, numa_node=0) for device in devices] for devices in (gpus, ports))
    pairs: Pairs = []
    for node in dict.fromkeys(gpu.numa_node for gpu in gpus):
        ours = sorted((g for g in gpus if g.numa_node == node), key=_address_of)
        theirs = sorted((p for p in ports if p.numa_node == node and node is not None), key=_address_of)
        if not theirs:
            pairs += [(gpu, port, level[gpu.id, port.id]) for gpu in ours for port in _nearest(gpu, ports, level)]
        elif len(ours) == 1 or len(theirs) == 1:
            pairs += [(gpu, port, "NODE") for gpu in ours for port in theirs]
        elif len(theirs) % len(ours) == 0:
            each = len(theirs) // len(ours)
            pairs += [(gpu, port, "guess") for k, gpu in enumerate(ours) for port in theirs[k * each : (k + 1) * each]]
        elif len(ours) % len(theirs) == 0:
            each = len(ours) // len(theirs)
            pairs += [(gpu, theirs[k // each], "guess") for k, gpu in enumerate(ours)]
        else:
            pairs += [(gpu, port, "NODE") for gpu in ours for port in theirs]
    return pairs


def _by_topology(gpus: Sequence[Device], ports: Sequence[Device], text: str) -> Pairs:
    """Ports below the same `<pci>` as the GPU in an NCCL topology file, deepest first; empty where it tells nothing."""
    above = _switches_above(text)
    pairs: Pairs = []
    for gpu in gpus:
        ours = above.get(_address_of(gpu), ())
        depth = {}
        for port in ports:
            theirs = above.get(_address_of(port), ())
            depth[port.id] = sum(a == b for a, b in zip(ours, theirs, strict=False))
        deepest = max(depth.values())
        if deepest > 0:
            pairs += [(gpu, port, "topology") for port in ports if depth[port.id] == deepest]
    return pairs


def _switches_above(text: str) -> dict[str, tuple[str, ...]]:
    """PCI address of a device -> addresses of the `<pci>` elements around it, outermost first; empty for other text."""
    if len(text) > _LARGEST_TOPOLOGY_CHARS or "<!" in text.replace("<!--", ""):  # comments, but no entities
        return {}
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return {}
    found: dict[str, tuple[str, ...]] = {}
    below: list[tuple[ElementTree.Element, tuple[str, ...]]] = [(root, ())]
    while below:
        element, path = below.pop()
        if element.tag == "pci" and (address := pci_address(element.get("busid", ""))) is not None:
            found[address] = path
            path = (*path, address)
        below += [(child, path) for child in element]
    return found


def pci_address(text: str) -> str | None:
    """A PCI address as sysfs writes it, from NVML's or NCCL's writing; None for other text.

    >>> pci_address("00000000:1B:00.0"), pci_address("eth0")
    ('0000:1b:00.0', None)
    """
    match = _PCI_ADDRESS.fullmatch(text.strip().lower())
    if match is None:
        return None
    domain, bus, slot, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{slot}.{function}"


def _address_of(device: Device) -> str:
    last = (device.pci_path or "").rsplit("/", 1)[-1]
    return pci_address(last) or pci_address(device.info.get("pci_bus_id", "")) or ""
