"""Which way the job's traffic goes: rdma, tcp, mixed, none, or unknown, for the node as a whole.

Called once per whole second with the readings of the node. In tcp and mixed the verdict names the interfaces that carry
the job, so that the analysis can count their bytes. Never concludes tcp from the absence of RDMA bytes alone, and never
from a counter that is not there.

NCCL chooses its transport when a communicator starts and keeps it, so a verdict is in no hurry: three windows in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from exporter.carriers import FLOOR_SHARE, UNDECIDED, WINDOW_S, byte_rate, carries, echoes
from exporter.channels import latest
from exporter.model import Device, Inventory, Link, Series, TransportVerdict

# A claim needs three windows in a row: the one that shows it first, and two more. RDMA where there was nothing needs
# one: bytes that move are proof, their absence is not.
CONFIRM_S = 2 * WINDOW_S
_PORT_RATE = 50e9  # bytes/s, where the line rate is not known
# Headers make IPoIB bytes a few percent larger on the port than on its interface: such a rest is not RDMA.
_HEADER_SHARE = 0.1
# Share of TCP in all bytes of the job. Below the first a rendezvous store or a metrics push, above the second a rest.
_RDMA_BELOW, _TCP_ABOVE = 0.1, 0.8
_STATE_AGE_S = 30.0  # port and interface states are read each fifth second
_SOFTWARE_DRIVERS = frozenset(("rxe", "rdma_rxe", "siw"))  # bytes of an ordinary interface, counted there

REASONS = (
    "rdma_moves", "nic_carries", "ipoib_carries", "no_rdma_ports", "both_move", "quiet", "gpus_idle", "bytes_missing",
    "ipoib_unread", "activity_unknown", "no_interfaces", "settling",
)


class Transport:
    """The verdict over time: what `observe` sees, held until three windows contradict it."""

    def __init__(self) -> None:
        self._verdict = TransportVerdict("unknown", "settling")
        self._candidate: tuple[str, float] | None = None  # transport that contradicts the verdict, since when
        self._quiet_since_s: float | None = None
        self._carriers: dict[str, tuple[float, str]] = {}  # NIC -> last seen carrying, and why it was taken

    def step(self, series: Series, inventory: Inventory, t_s: float, busy: bool | None) -> TransportVerdict:
        """The verdict at t_s. busy: at least half of the GPUs work (a waiting kernel is work); None: not known."""
        seen, carriers = observe(series, inventory, t_s, busy)
        self._carriers.update({nic: (t_s, why) for nic, why in carriers.items()})
        present = {d.id for d in inventory.of_kind("nic")}
        self._carriers = {n: c for n, c in self._carriers.items() if n in present and t_s - c[0] <= CONFIRM_S}
        # What is unknown is unknown at once: a verdict must not outlive the bytes that it stands on.
        if seen.transport in ("unknown", self._verdict.transport) or self._convinced(seen.transport, t_s):
            self._candidate = self._quiet_since_s = None
            self._verdict = seen
        elif self._verdict.transport == "unknown":
            self._verdict = TransportVerdict("unknown", "settling")
        if self._verdict.transport in ("tcp", "mixed"):
            links = _links(inventory, {nic: why for nic, (_, why) in self._carriers.items()})
            self._verdict = replace(self._verdict, links=links)
        return self._verdict

    def _convinced(self, transport: str, t_s: float) -> bool:
        """Whether what is seen now has been seen long enough to replace the verdict.

        Silence neither supports nor contradicts a transport that is about to be confirmed: steps may be far apart.
        """
        before = self._verdict.transport
        if transport == "none":
            self._quiet_since_s = t_s if self._quiet_since_s is None else self._quiet_since_s
            return (self._candidate is None and before == "unknown") or t_s - self._quiet_since_s >= CONFIRM_S
        self._quiet_since_s = None
        if self._candidate is None or self._candidate[0] != transport:
            self._candidate = (transport, t_s)
        at_once = transport == "rdma" and before in ("unknown", "none")
        return at_once or t_s - self._candidate[1] >= CONFIRM_S


@dataclass(slots=True)
class _Rdma:
    """What the ports of the job say: RDMA bytes per second, and what stands in the way of knowing them."""

    ports: int
    rate: float
    missing: tuple[str, ...]  # ports without fresh bytes
    unread: tuple[str, ...]  # InfiniBand ports that move, but whose IPoIB interface is not read
    ipoib: frozenset[str]  # IPoIB interfaces of these ports
    doubled: frozenset[str]  # interfaces that count RDMA bytes again


def observe(
    series: Series, inventory: Inventory, t_s: float, busy: bool | None
) -> tuple[TransportVerdict, Mapping[str, str]]:
    """What the last ten seconds say by themselves, and the interfaces that carry the job (NIC -> why).

    `unknown` wherever a counter that could decide is not there.
    """
    if busy is False:
        return TransportVerdict("none", "gpus_idle"), {}
    nics = _interfaces(series, inventory, t_s)
    rates = {n.id: byte_rate(series, n.id, t_s) for n in nics}
    rdma = _rdma(series, _ports(series, inventory, t_s), rates, t_s)
    carriers = {
        n.id: why for n in nics
        if rates[n.id] is not None and n.id not in rdma.doubled and (why := carries(series, inventory, n, t_s))
    }
    early = tuple(n for n, why in carriers.items() if why == UNDECIDED)
    carriers = {n: why for n, why in carriers.items() if why != UNDECIDED}
    tcp = sum(rates[n] or 0.0 for n in carriers)
    if early and tcp + rdma.rate == 0:
        return TransportVerdict("unknown", "settling", early), {}
    transport, reason, devices = _decide(rdma, tcp, rates, carriers, busy)
    known = not (rdma.missing or rdma.unread)
    share = tcp / (tcp + rdma.rate) if known and tcp + rdma.rate > 0 else None
    return TransportVerdict(transport, reason, tuple(devices), (), rdma.rate if known else None, tcp, share), carriers


def _decide(
    rdma: _Rdma, tcp: float, rates: Mapping[str, float | None], carriers: Mapping[str, str], busy: bool | None
) -> tuple[str, str, Iterable[str]]:
    """Transport, reason, and whom the reason speaks of; first match."""
    total = tcp + rdma.rate
    unread_nics = tuple(n for n, rate in rates.items() if rate is None)
    if rdma.unread:
        return "unknown", "ipoib_unread", rdma.unread
    if total == 0 and (rdma.missing or unread_nics):
        return "unknown", "bytes_missing", rdma.missing + unread_nics
    if total == 0:
        return ("none", "quiet", ()) if rates else ("unknown", "no_interfaces", ())
    if tcp <= _RDMA_BELOW * total:
        return "rdma", "rdma_moves", ()
    if busy is None:
        return "unknown", "activity_unknown", carriers
    if tcp < _TCP_ABOVE * total:
        return "mixed", "both_move", carriers
    if rdma.missing:
        return "unknown", "bytes_missing", rdma.missing
    if not rdma.ports:
        return "tcp", "no_rdma_ports", carriers
    return "tcp", "ipoib_carries" if rdma.ipoib & carriers.keys() else "nic_carries", carriers


def _rdma(series: Series, ports: list[Device], nic_rates: Mapping[str, float | None], t_s: float) -> _Rdma:
    """RDMA bytes of the ports. On InfiniBand those of the IPoIB interface are inside the port's, and come off."""
    total, missing, unread, ipoib = 0.0, [], [], set()
    doubled: set[str] = set()
    for port in ports:
        if (rate := byte_rate(series, port.id, t_s)) is None:
            missing.append(port.id)
            continue
        floor = FLOOR_SHARE * (port.rate_bytes_per_s or _PORT_RATE)
        netdev = port.info.get("netdev", "")
        over_ip = nic_rates.get(netdev)
        if netdev and port.info.get("link_layer") == "InfiniBand":
            ipoib.add(netdev)
            if over_ip is None:
                unread += [port.id] if rate > floor else []
                continue
            rate = max(0.0, rate - over_ip)
            floor = max(floor, _HEADER_SHARE * over_ip)
        elif rate > floor and echoes(series, port.id, links := tuple(n for n in _links_of(port) if nic_rates.get(n)), t_s):
            doubled.update(links)
        total += rate if rate > floor else 0.0
    return _Rdma(len(ports), total, tuple(missing), tuple(unread), frozenset(ipoib), frozenset(doubled))


def _links_of(port: Device) -> list[str]:
    """The interfaces that a port sends through: its own, or those below its bond."""
    return (port.info.get("bond_links") or port.info.get("netdev", "")).split()


def _ports(series: Series, inventory: Inventory, t_s: float) -> list[Device]:
    """The ports that may carry the job; a software device counts nothing of its own, a dead port carries nothing."""
    ports = [p for p in inventory.compute_ports() if p.driver not in _SOFTWARE_DRIVERS]
    return [p for p in ports if latest(series, f"{p.id}/up_ratio", t_s, _STATE_AGE_S) != 0]


def _interfaces(series: Series, inventory: Inventory, t_s: float) -> list[Device]:
    """The interfaces that may carry the job; a bond repeats the bytes of those below it, a dead one carries none."""
    nics = [d for d in inventory.of_kind("nic") if d.info.get("kind") != "bond"]
    return [n for n in nics if latest(series, f"{n.id}/up_ratio", t_s, _STATE_AGE_S) != 0]


def _links(inventory: Inventory, carriers: Mapping[str, str]) -> tuple[Link, ...]:
    """Every GPU of the node shares every carrying interface; pairs that the inventory holds already are left out."""
    gpus = inventory.of_kind("gpu")
    held = {(link.gpu_id, link.device_id) for link in inventory.links}
    return tuple(
        Link(gpu.id, nic, "tcp", why, 1.0 / len(gpus))
        for nic, why in carriers.items() for gpu in gpus if (gpu.id, nic) not in held
    )
