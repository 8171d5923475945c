"""One RDMA device and its ports: what sysfs says of them, which files count their bytes, which of them are safe to read.

`rdma.py` makes lanes of what is found here. Reads each file at most once and keeps none open.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from exporter.model import Device
from exporter.sources import ethtool
from exporter.sources.rdma_bonds import PART, Verdicts, slaves_of
from exporter.sources.rdma_drivers import UNKNOWN, ByteSource, Driver, driver_row
from exporter.sources.sysfs import (
    canonical,
    link_name,
    names_in,
    numa_node,
    parse_count,
    parse_rate,
    parse_speed,
    parse_state,
    pci_path,
    probe,
    read_text,
)

_LONGEST_INTERFACE_NAME = 15
_LIFESPAN_MS = 10


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of counter files of one port, with the names in each; a place that is not there has no names.

    A port over a bond has the interface of each link: "netdev", "netdev+1" and so on, ethtool alike. Their counters are added.
    """

    directories: Mapping[str, tuple[str, Collection[str]]]

    def find(self, file: str) -> str | None:
        """The path of "place/name", or of the first spelling that exists in "place/name|place/other"."""
        for spelling in file.split("|"):
            place, _, name = spelling.partition("/")
            # Drivers keep hw_counters below the port, below the device, or both.
            for where in (place, "device") if place == "hw_counters" else (place,):
                directory, names = self.directories.get(where, ("", ()))
                if name in names or (where.startswith("ethtool") and any(fnmatchcase(n, name) for n in names)):
                    return f"{directory}/{name}"
        return None

    def place_of(self, path: str) -> str:
        """The place in whose directory a path of `find` lies."""
        of_path = path.rpartition("/")[0]
        return next(place for place, (directory, _) in self.directories.items() if of_path == directory).partition("+")[0]

    def names_beside(self, path: str) -> Collection[str]:
        """All names in the directory of a path of `find`."""
        return next(names for directory, names in self.directories.values() if path.rpartition("/")[0] == directory)

    def find_all(self, files: Sequence[str]) -> list[str]:
        """The paths of the files that exist, on every link."""
        found = []
        for file in files:
            if (path := self.find(file)) is not None:
                place, name = self.place_of(path), path.rpartition("/")[2]
                others = (self.find(f"{other}/{name}") for other in self.directories if other.startswith(f"{place}+"))
                found += [path, *(other for other in others if other is not None)]
        return found


@dataclass(frozen=True, slots=True)
class Port:
    """What is known of one port when its device is opened."""

    device: Device
    row: Driver
    directory: str
    places: Places
    byte_source: ByteSource | None
    reserve: ByteSource | None  # what goes on counting should the byte source freeze
    lifespan_s: float  # for how long the kernel repeats an answer of the byte source; 0: never
    slaves: tuple[str, ...]  # the interfaces below it, where it stands for a bond
    bond_speed: str | None  # the file with the speed of all of them together, where their bytes may all be counted
    counts: bool  # whether any of its counters are to be seen
    manages_nvswitch: bool


@dataclass(frozen=True, slots=True)
class Board:
    """One RDMA device: its directory in class/infiniband, the device behind it, its driver."""

    name: str
    directory: str
    behind: str | None
    driver_name: str | None
    vendor: str | None
    above: str | None = None  # the interface that a software device rides on


def look_at(root: str, name: str) -> Board:
    """The device behind an entry of class/infiniband, and its driver."""
    directory = f"{root}/class/infiniband/{name}"
    behind: str | None = f"{directory}/device"
    real = canonical(root, directory)
    if real.startswith("devices/virtual/"):
        # Only rxe names the interface below it in an attribute of its own (drivers/infiniband/sw/rxe/rxe_verbs.c).
        rides_on = _interface(read_text(f"{directory}/parent"))
        return Board(name, directory, None, "rxe" if rides_on else "siw", None, rides_on)
    if not os.path.isdir(f"{directory}/device"):  # noqa: PTH112
        above, _, _ = real.rpartition("/infiniband/")
        behind = f"{root}/{above}" if above.startswith("devices/") else None
    if behind is None:
        return Board(name, directory, None, None, None)
    driver = link_name(f"{behind}/driver")
    if driver is None:
        lines = (read_text(f"{behind}/uevent") or "").splitlines()
        driver = next((line[7:] for line in lines if line.startswith("DRIVER=")), None)
    if driver is not None:
        driver = driver.split(".", 1)[0]  # a subfunction is bound to mlx5_core.sf
    return Board(name, directory, behind, driver, read_text(f"{behind}/vendor"))


def open_port(root: str, board: Board, number: str, frozen: Collection[str], bonds: Verdicts) -> Port:
    """All that is known of one port; costs a probe of its byte files. frozen: ports whose best byte source has stopped."""
    directory = f"{board.directory}/ports/{number}"
    link_layer = read_text(f"{directory}/link_layer")
    netdev = board.above or _netdev(board, directory, number)
    slaves = slaves_of(root, netdev)
    beside = slaves or ((netdev,) if netdev is not None else ())
    places = _places(root, board, directory, beside if link_layer == "Ethernet" else ())
    files = frozenset(
        f"{place}/{name}"
        for place, (_, names) in places.directories.items() if not place.startswith(("netdev", "ethtool")) for name in names
    )
    row = driver_row(board.driver_name, board.vendor, files)
    sources = [s for s in row.byte_sources if not (s.freezes and f"{board.name}/{number}" in frozen)]
    byte_source, failing = _choose(sources, places)
    # Told by its files, a family of drivers has no one name.
    driver = board.driver_name or (row.name if row is not UNKNOWN and not row.also else None)
    rate, _ = probe(f"{directory}/rate", parse_rate)
    verdict = bonds.of(root, f"{board.name}/{number}", slaves)
    bond_speed = f"{root}/class/net/{netdev}/speed" if slaves and verdict != PART else None
    of_bond = probe(bond_speed, parse_speed)[0] if bond_speed is not None else None
    rate = max((r for r in (rate, of_bond) if r is not None and math.isfinite(r)), default=None)
    state, _ = probe(f"{directory}/state", parse_state)
    info = {
        "link_layer": link_layer,
        "firmware": read_text(f"{board.directory}/fw_ver"),
        "netdev": netdev,
        "byte_source": _label(byte_source, places) if byte_source is not None else None,
        "byte_refresh_seconds": f"{byte_source.refresh_s:g}" if byte_source is not None and byte_source.refresh_s else None,
        "state": None if state is None else "active" if state else "inactive",
        "bond": netdev if slaves or (netdev and os.path.isdir(f"{root}/class/net/{netdev}/bonding")) else None,  # noqa: PTH112
        "bond_links": " ".join(slaves),
        "bond_bytes": verdict if slaves and byte_source is not None else None,
        "software": "true" if row.software else None,
        "unchecked": "true" if row is UNKNOWN and board.driver_name is not None else None,
        # A virtual function may stand on a bus of its own: the physical one then shows its place.
        "physfn": _physical_function(root, board),
    }
    return Port(
        device=Device(
            "rdma_port",
            f"{board.name}/{number}",
            driver=driver,
            rate_bytes_per_s=rate,
            pci_path=pci_path(root, board.behind) if board.behind is not None else None,
            numa_node=numa_node(board.behind) if board.behind is not None else None,
            info={key: value for key, value in info.items() if value},
        ),
        row=row,
        directory=directory,
        places=places,
        byte_source=byte_source,
        reserve=_reserve(sources, byte_source, places),
        lifespan_s=_lifespan_s(byte_source, places),
        slaves=slaves,
        bond_speed=bond_speed,
        counts=bool(files) or row.software,
        manages_nvswitch=failing and link_layer == "InfiniBand" and netdev is None,
    )


def _lifespan_s(source: ByteSource | None, places: Places) -> float:
    """`lifespan` beside what stands in hw_counters, milliseconds (drivers/infiniband/core/sysfs.c): 10 unless changed."""
    path = None if source is None else places.find(source.transmit[0]) or places.find(source.receive[0])
    if path is None or places.place_of(path) not in ("hw_counters", "device"):
        return 0.0
    milliseconds = parse_count(read_text(f"{path.rpartition('/')[0]}/lifespan") or "")
    return 1e-3 * (_LIFESPAN_MS if milliseconds is None else milliseconds)


def _physical_function(root: str, board: Board) -> str | None:
    if board.behind is None or link_name(f"{board.behind}/physfn") is None:
        return None
    return pci_path(root, f"{board.behind}/physfn")


def _label(source: ByteSource, places: Places) -> str | None:
    """The file that counts what is sent (else what is received), as it is called on this machine."""
    path = places.find(source.transmit[0]) or places.find(source.receive[0])
    return "/".join(path.split("/")[-2:]) if path is not None else None


def _netdev(board: Board, directory: str, number: str) -> str | None:
    """The network interface of a port: as its first address names it (a bond, too), else the one beside it."""
    named = _interface(read_text(f"{directory}/gid_attrs/ndevs/0"))
    if named is not None:
        return named
    beside = names_in(f"{board.behind}/net") if board.behind is not None else []
    for name in beside:
        dev_port = parse_count(read_text(f"{board.behind}/net/{name}/dev_port") or "")
        if dev_port is not None and dev_port + 1 == int(number):  # dev_port counts from 0, ports from 1
            return name
    return beside[0] if len(beside) == 1 else None


def _interface(text: str | None) -> str | None:
    """A text as the name of an interface (Linux: at most 15 bytes, no slash, no blank); None for any other."""
    plain = text is not None and text.isascii() and text.isprintable() and not {"/", " "} & set(text)
    return text if plain and text not in ("", ".", "..") and len(text or "") <= _LONGEST_INTERFACE_NAME else None


def _places(root: str, board: Board, directory: str, netdevs: Sequence[str]) -> Places:
    found: dict[str, tuple[str, Collection[str]]] = {
        place: (path, frozenset(names_in(path)))
        for place, path in (
            ("counters", f"{directory}/counters"),
            ("counters_ext", f"{directory}/counters_ext"),
            ("hw_counters", f"{directory}/hw_counters"),
        )
    }
    # Kernels from 2021 to 2025 follow a null pointer when hw_counters of a device are read from a namespace that does
    # not own the device. There the port shows no counters at all, so these prove that reading is safe.
    if any(names for _, names in found.values()) and directory.endswith("/ports/1"):
        path = f"{board.directory}/hw_counters"
        found["device"] = (path, frozenset(names_in(path)))
    for k, netdev in enumerate(netdevs):
        path, more = f"{root}/class/net/{netdev}", f"+{k}" if k else ""
        found[f"netdev{more}"] = (path, frozenset(names_in(path)))
        found[f"ethtool{more}"] = (f"{ethtool.PREFIX}{netdev}", ethtool.names_of(root, netdev))
    return Places(found)


def _reserve(sources: Sequence[ByteSource], chosen: ByteSource | None, places: Places) -> ByteSource | None:
    """A lesser source of the row that does not freeze, for one that may."""
    if chosen is None or not chosen.freezes:
        return None
    return next((s for s in sources if not s.freezes and places.find(s.transmit[0]) and places.find(s.receive[0])), None)


def _choose(sources: Sequence[ByteSource], places: Places) -> tuple[ByteSource | None, bool]:
    """The byte source to use, and whether there are byte files of which every one fails for good (then there is none).

    The best source that answers; one that stands at zero gives way to a lesser one that has counted. A fault that passes
    (io_error, a half-written file) does not make a source worse.
    """
    standing: list[tuple[ByteSource, list[float], set[str | None]]] = []
    for source in sources:
        paths = [path for files in (source.transmit, source.receive) if (path := places.find(files[0])) is not None]
        if paths:
            answers = [probe(path, parse_count) for path in paths]
            standing.append((source, [v for v, _ in answers if v is not None], {reason for _, reason in answers}))
    if not standing:
        return None, False
    answering = [(source, values) for source, values, reasons in standing if values or reasons & {"io_error", "not_a_number"}]
    if not answering:
        failing = all(reasons == {"not_available"} for _, _, reasons in standing)
        return (None if failing else standing[0][0]), failing
    first, values = answering[0]
    if values and not any(values):
        return next((source for source, counted in answering if any(counted)), first), False
    return first, False
