"""RDMA devices: which ports there are, where they count their bytes, and three lanes per device.

Bytes by the plan of the driver ("rdma/mlx5_0"); what hw_counters holds each second ("rdma/mlx5_0/events": one refresh
serves all of its files); state, rate and the errors in counters each fifth second ("rdma/mlx5_0/state": a firmware command
for each file). `net.py` calls `open_rdma`. What a driver counts where stands in `rdma_drivers.py`; this module finds the
files and never guesses a unit.

Filters act on names before anything below a device is listed. A counter that was reset goes back, which is counted, and
whoever takes the difference drops that step; one that wrapped goes on. Nothing is ever written, `lifespan` least of all.
Kernel interface: Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from exporter.model import Device, SourceStatus
from exporter.sources import SLOW, Announce, Lane, NetSettings, Opened, Plan, unannounced
from exporter.sources.ethtool import PREFIX, DriverCounters
from exporter.sources.files import EITHER, STICKS, WRAPS, Attribute, Channels, FileLane, Total
from exporter.sources.rdma_bonds import BondLane, Look, Verdicts, rate_of_bond
from exporter.sources.rdma_drivers import EVENTS, ByteSource, width
from exporter.sources.rdma_ports import Board, Port, look_at, open_port
from exporter.sources.rdma_reserve import Frozen, WatchedLane
from exporter.sources.sysfs import names_in, no_errors, parse_count, parse_rate, parse_state, read_text, wanted
from exporter.sources.vpd import manages_nvswitch

EVENTS_INTERVAL_S = 1.0
STATE_INTERVAL_S = 5.0
_AT_LEISURE = ("counters", "counters_ext", "netdev", "ethtool")  # places that cost a command per file, or hardly ever change
_FULL_BITS = 64
_FROZEN = Frozen()  # of the process: a look for devices must not take a stopped source up again
_BONDS = Verdicts()  # as well


def open_rdma(
    settings: NetSettings, announce: Announce = unannounced, frozen: Frozen = _FROZEN, bonds: Verdicts = _BONDS
) -> Opened:
    """Every RDMA port that the settings let through, with its lanes; a device without ports as itself, without lanes.

    extra: rdma_left_out (devices that are no ports of this node's job: switches, NVSwitch management functions), and
    rdma_hint (what to change) where devices are to be seen but not their counters.
    """
    root = settings.sysfs_root
    directory = f"{root}/class/infiniband"
    devices: list[Device] = []
    lanes: list[Lane] = []
    left_out: list[str] = []
    dangling: list[str] = []
    counters_seen = False
    announce("rdma_port", "")
    for name in names_in(directory):
        if name in settings.skip or not _device_wanted(name, settings):
            continue
        announce("rdma_port", name)
        if not os.path.isdir(f"{directory}/{name}"):  # noqa: PTH112
            dangling.append(name)
            continue
        board = look_at(root, name)
        if "switch" in (read_text(f"{board.directory}/node_type") or "").lower() or _is_bridge(board):
            left_out.append(name)
            continue
        ports = [
            open_port(root, board, number, frozen.here(root, [f"{name}/{number}"]), bonds)
            for number in _port_numbers(board, settings)
        ]
        counters_seen = counters_seen or any(port.counts for port in ports)
        if any(port.manages_nvswitch for port in ports):
            left_out.append(name)
            continue
        devices.extend(port.device for port in ports)
        if not names_in(f"{board.directory}/ports"):
            devices.append(Device("rdma_port", name, driver=board.driver_name, info={"state": "absent"}))
        lanes.extend(_lanes(name, ports, settings, frozen, bonds))
    extra: dict[str, object] = {"rdma_left_out": left_out} if left_out else {}
    reason = None
    if dangling or (any("/" in device.id for device in devices) and not counters_seen):
        reason = "counters_not_visible" if not counters_seen else None
        extra["rdma_hint"] = _hint(root, dangling)
    elif not devices:
        reason = "no_rdma_devices"
    statuses = (SourceStatus("rdma", 0.0, up=False, reason=reason),) if reason else ()
    return Opened(tuple(devices), tuple(lanes), statuses, extra)


def _is_bridge(board: Board) -> bool:
    """Whether a device says that it manages NVSwitches, so that its counters, which fail, need not be tried."""
    suspect = board.driver_name == "mlx5_core" and read_text(f"{board.directory}/ports/1/link_layer") == "InfiniBand"
    return suspect and board.behind is not None and manages_nvswitch(board.behind) is True


def _hint(root: str, dangling: Sequence[str]) -> str:
    if dangling:
        return (
            f"{root}/class/infiniband lists {', '.join(dangling)}, but the links lead nowhere because {root}/devices of the "
            f"host is missing: mount the whole of the host's /sys, not only class/infiniband"
        )
    return (
        f"the ports below {root}/class/infiniband show neither counters nor hw_counters, as in a container with a sysfs of "
        f"its own: mount the host's /sys read-only and point --path.sysfs at it"
    )


def _device_wanted(name: str, settings: NetSettings) -> bool:
    """Whether a device may be looked into; a pattern with a slash ("mlx4_0/2") speaks of a port of it."""
    include = [pattern.split("/", 1)[0] for pattern in settings.rdma_include]
    return wanted(name, include, settings.rdma_exclude)


def _port_numbers(board: Board, settings: NetSettings) -> list[str]:
    numbers = [n for n in names_in(f"{board.directory}/ports") if parse_count(n) is not None]

    def chosen(number: str) -> bool:
        port = f"{board.name}/{number}"
        named = wanted(board.name, settings.rdma_include, ()) or wanted(port, settings.rdma_include, ())
        return named and port not in settings.skip and wanted(port, (), settings.rdma_exclude)

    return [number for number in numbers if chosen(number)]


def _lanes(name: str, ports: Sequence[Port], settings: NetSettings, frozen: Frozen, bonds: Verdicts) -> list[Lane]:
    # A device of one port is known by the id of that port, so that a fault of it is a fault of the port.
    device_id = ports[0].device.id if len(ports) == 1 else name
    made: list[Lane] = []
    for lane, interval_s, channels_of in (
        ("/events", EVENTS_INTERVAL_S, _events_of),
        ("/state", STATE_INTERVAL_S, _state_of),
    ):
        errors = no_errors()
        channels = {key: value for port in ports for key, value in channels_of(port, interval_s, errors).items()}
        looks = _looks(ports, settings.sysfs_root, bonds) if lane == "/state" else []
        if channels and looks:
            made.append(BondLane(f"rdma/{name}{lane}", interval_s, device_id, channels, errors=errors, looks=looks))
        elif channels:
            made.append(FileLane(f"rdma/{name}{lane}", interval_s, "rdma_port", device_id, channels, errors=errors))
    fast = _byte_lane(name, device_id, ports, settings, frozen)
    return made if fast is None else [fast, *made]


def _looks(ports: Sequence[Port], root: str, bonds: Verdicts) -> list[Look]:
    """How the bytes of bonded ports are counted, where that can be measured."""
    looks = []
    for port in ports:
        if port.slaves and port.byte_source is not None:
            own = _bytes_of(port, port.byte_source, STATE_INTERVAL_S, no_errors(), {})
            looks.append(Look(root, port.device.id, port.slaves, list(own.values()), bonds, STATE_INTERVAL_S))
    return [look for look in looks if look.possible]


def _plan_of(ports: Sequence[Port], settings: NetSettings) -> Plan:
    """How the bytes of a device are read: as its slowest port is."""
    plans = [
        settings.plan(port.byte_source.plan).beyond(port.lifespan_s).at_most(1.0 / (port.row.shortest_interval_s or 1e-9))
        for port in ports if port.byte_source is not None
    ]
    return min(plans, key=lambda plan: plan.reads_per_s, default=settings.plan(SLOW))


def _byte_lane(
    name: str, device_id: str, ports: Sequence[Port], settings: NetSettings, frozen: Frozen
) -> FileLane | None:
    plan, root = _plan_of(ports, settings), settings.sysfs_root
    interval_s, read_s = plan.interval_s, 1.0 / plan.reads_per_s
    errors = no_errors()
    channels: dict[str, Total] = {}
    reserves: dict[str, Total] = {}
    for port in ports:
        if port.byte_source is not None:
            begin = frozen.begin(root, port.device.id)
            channels |= _bytes_of(port, port.byte_source, read_s, errors, begin)
        if port.reserve is not None:
            reserves |= _bytes_of(port, port.reserve, read_s, no_errors(), {})
    if not channels:
        return None
    if not reserves:
        return FileLane(f"rdma/{name}", interval_s, "rdma_port", device_id, channels, errors=errors, plan=plan)
    return WatchedLane(
        f"rdma/{name}", interval_s, "rdma_port", device_id, channels, errors=errors, plan=plan, reserves=reserves,
        on_frozen=lambda port_id, values: frozen.add(root, port_id, values),
    )


def _bytes_of(
    port: Port, source: ByteSource, interval_s: float, errors: dict[str, int], begin: Mapping[str, float]
) -> dict[str, Total]:
    found = {}
    at_end = EITHER if source.bits < _FULL_BITS else WRAPS
    for quantity, files in (("transmit_bytes_total", source.transmit), ("receive_bytes_total", source.receive)):
        channel = f"{port.device.id}/{quantity}"
        attributes = [
            Attribute(path, parse_count, interval_s, errors, bits=source.bits, at_end=at_end)
            for path in port.places.find_all(files)
        ]
        if attributes:
            found[channel] = Total(attributes, source.factor, begin.get(channel))
    return found


def _events_of(port: Port, interval_s: float, errors: dict[str, int], at_leisure: bool = False) -> Channels:
    found = {}
    for event in EVENTS:
        paths = port.places.find_all(port.row.events.get(event, ()))
        if paths and all(port.places.place_of(path) in _AT_LEISURE for path in paths) == at_leisure:
            found[f"{port.device.id}/events/{event}"] = Total([_counter(port, path, interval_s, errors) for path in paths])
    return found


def _counter(port: Port, path: str, interval_s: float, errors: dict[str, int]) -> Attribute:
    place, name = port.places.place_of(path), path.rpartition("/")[2]
    if place == "ethtool":
        netdev = path.rpartition("/")[0].removeprefix(PREFIX)
        return DriverCounters(netdev, tuple(port.places.names_beside(path)), name, interval_s, errors)
    bits, sticks = width(port.row, place, name)
    return Attribute(path, parse_count, interval_s, errors, bits=bits, at_end=STICKS if sticks else WRAPS)


def _state_of(port: Port, interval_s: float, errors: dict[str, int]) -> Channels:
    names = names_in(port.directory)
    state: dict[str, Attribute | Total] = {
        f"{port.device.id}/{quantity}": Attribute(f"{port.directory}/{file}", parse, interval_s, errors)
        for quantity, file, parse in (("up_ratio", "state", parse_state), ("rate_bytes_per_second", "rate", parse_rate))
        if file in names
    }
    if port.bond_speed is not None and "rate" in names:
        rate = rate_of_bond(f"{port.directory}/rate", port.bond_speed, interval_s, errors)
        state[f"{port.device.id}/rate_bytes_per_second"] = rate
    return {**state, **_events_of(port, interval_s, errors, at_leisure=True)}
