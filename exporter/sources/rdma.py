"""RDMA devices: which ports there are, where they count their bytes, and three lanes per device.

Bytes at the full rate ("rdma/mlx5_0"), events each second ("rdma/mlx5_0/events"), state and rate each fifth second
("rdma/mlx5_0/state"). `net.py` calls `open_rdma`. What a driver counts where stands in `rdma_drivers.py`; this module
finds the files and never guesses a unit.

Filters act on names before anything below a device is listed. Values are passed on as read: a counter that was reset or
wrapped goes back, and whoever takes the difference drops that step (counters of 32 bit wrap too; on the few devices that
have them the steps across the wrap are lost). Kernel interface: Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from exporter.model import Device, SourceStatus
from exporter.sources import Announce, Lane, NetSettings, Opened, unannounced
from exporter.sources.files import Attribute, Channels, FileLane, Total
from exporter.sources.rdma_drivers import EVENTS
from exporter.sources.rdma_ports import Board, Port, look_at, open_port
from exporter.sources.sysfs import names_in, no_errors, parse_count, parse_rate, parse_state, read_text, wanted

EVENTS_INTERVAL_S = 1.0
STATE_INTERVAL_S = 5.0


def open_rdma(settings: NetSettings, announce: Announce = unannounced) -> Opened:
    """Every RDMA port that the settings let through, with its lanes.

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
        if "switch" in (read_text(f"{board.directory}/node_type") or "").lower():
            left_out.append(name)
            continue
        ports = [open_port(root, board, number) for number in _port_numbers(board, settings)]
        counters_seen = counters_seen or any(port.counts for port in ports)
        if any(port.manages_nvswitch for port in ports):
            left_out.append(name)
            continue
        devices.extend(port.device for port in ports)
        lanes.extend(_lanes(name, ports, settings))
    extra: dict[str, object] = {"rdma_left_out": left_out} if left_out else {}
    reason = None
    if dangling or (devices and not counters_seen):
        reason = "counters_not_visible" if not counters_seen else None
        extra["rdma_hint"] = _hint(root, dangling)
    elif not devices:
        reason = "no_rdma_devices"
    statuses = (SourceStatus("rdma", 0.0, up=False, reason=reason),) if reason else ()
    return Opened(tuple(devices), tuple(lanes), statuses, extra)


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


def _lanes(name: str, ports: Sequence[Port], settings: NetSettings) -> list[Lane]:
    # A device of one port is known by the id of that port, so that a fault of it is a fault of the port.
    device_id = ports[0].device.id if len(ports) == 1 else name
    fast_s = max([1.0 / settings.network_hertz, *(port.row.shortest_interval_s for port in ports)])
    made: list[Lane] = []
    for lane, interval_s, channels_of in (
        ("", fast_s, _bytes_of),
        ("/events", EVENTS_INTERVAL_S, _events_of),
        ("/state", STATE_INTERVAL_S, _state_of),
    ):
        errors = no_errors()
        channels = {key: value for port in ports for key, value in channels_of(port, interval_s, errors).items()}
        if channels:
            made.append(FileLane(f"rdma/{name}{lane}", interval_s, "rdma_port", device_id, channels, errors=errors))
    return made


def _bytes_of(port: Port, interval_s: float, errors: dict[str, int]) -> Channels:
    source = port.byte_source
    if source is None:
        return {}
    return {
        f"{port.device.id}/{quantity}": Total([Attribute(path, parse_count, interval_s, errors) for path in paths], factor)
        for quantity, files, factor in (
            ("transmit_bytes_total", source.transmit, source.factor),
            ("receive_bytes_total", source.receive, source.factor),
        )
        if (paths := port.places.find_all(files))
    }


def _events_of(port: Port, interval_s: float, errors: dict[str, int]) -> Channels:
    return {
        f"{port.device.id}/events/{event}": Total([Attribute(path, parse_count, interval_s, errors) for path in paths])
        for event in EVENTS
        if (paths := port.places.find_all(port.row.events.get(event, ())))
    }


def _state_of(port: Port, interval_s: float, errors: dict[str, int]) -> Channels:
    names = names_in(port.directory)
    return {
        f"{port.device.id}/{quantity}": Attribute(f"{port.directory}/{file}", parse, interval_s, errors)
        for quantity, file, parse in (("up_ratio", "state", parse_state), ("rate_bytes_per_second", "rate", parse_rate))
        if file in names
    }
