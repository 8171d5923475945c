"""Writes docs/drivers.md from the table of RDMA drivers: `python -m docs.drivers_table`. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from exporter.sources.rdma_drivers import DRIVERS, EVENTS, UNKNOWN, ByteSource, Driver

PAGE = Path(__file__).parent / "drivers.md"

_INTRODUCTION = """\
# RDMA drivers

Generated from the table in `exporter/sources/rdma_drivers.py` by `python -m docs.drivers_table`; do not edit by hand.

The row is chosen by the driver that the device is bound to (`/sys/class/infiniband/<device>/device/driver`), never by the
name of the device. Files stand below `/sys/class/infiniband/<device>/ports/<n>/`; of several byte sources the best that
answers is read, the others never beside it. Which file it is stands in the label `byte_source` of `overlap_rdma_port_info`.

- **Bytes**: files sent / received, joined by + where they are added; `|` stands between spellings of one counter.
- **Unit**: bytes that one count stands for.
- **Width**: bits of the files. "32?" may be 32: a wrap is then told from a reset. A reset is counted in
  `overlap_source_errors_total{reason="counter_reset"}`, and the bytes across it are left out.
- **New value**: how often the files change, as far as the driver is known to be slow. What the exporter measures stands in
  `overlap_sensor_refresh_seconds`; on counters that are too slow for a job's rhythm its GPUs are `unobservable`, with the
  reason and the finding `sensor_too_slow`.
- **Asked**: how often the byte files are read: at `sampling.network_hertz` (50 Hz unless configured otherwise, less where
  reads take more than 2 % of a device's time), or at most so often.
- **Judged**: whether the bytes count for the verdict on a GPU. What is not judged is listed all the same.
- **Tested with**: *captured*, values that somebody published from a machine; *published*, names read in the driver's
  source or its documentation, values made up; *constructed*, from descriptions only.
"""


def _files(files: tuple[str, ...]) -> str:
    return " + ".join(f"`{file}`".replace("|", r"\|") for file in files)


def _bytes(source: ByteSource) -> str:
    return f"{_files(source.transmit)} / {_files(source.receive)}"


def _cells(row: Driver, source: ByteSource | None, rank: int) -> list[str]:
    names = ", ".join(f"`{name}`" for name in (row.name, *row.also)) if rank == 0 else ""
    if row is UNKNOWN:
        names = "any other" if rank == 0 else ""
    asked = f"each {row.shortest_interval_s:g} s" if row.shortest_interval_s else "full rate"
    if source is None:
        judged = "as its interface" if row.software else "no"
        return [names, "none of its own", "–", "–", "–", "–", judged, row.provenance]
    fresh = "at each read" if source.refresh_s is None else f"each {source.refresh_s:g} s"
    fresh += ", may freeze: the next source goes on" if source.freezes else ""
    judged = "only where chosen by name" if row is UNKNOWN else "yes"
    width = "32?" if source.bits < 64 else str(source.bits)
    return [names, _bytes(source), str(source.factor), width, fresh, asked, judged, row.provenance if rank == 0 else ""]


_COLUMNS = ("driver", "bytes", "unit", "width", "new value", "asked", "judged", "tested with")


def _table() -> str:
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for row in (*DRIVERS, UNKNOWN):
        for rank, source in enumerate(row.byte_sources or (None,)):
            lines.append("| " + " | ".join(_cells(row, source, rank)) + " |")
    return "\n".join(lines)


def _events() -> str:
    """Which events a driver counts: columns are drivers with events of their own."""
    rows = [row for row in DRIVERS if row.events]
    lines = ["| event | " + " | ".join(f"`{row.name}`" for row in rows) + " |", "|---|" + "---|" * len(rows)]
    for event in EVENTS:
        cells = (", ".join(f"`{_short(f)}`" for f in row.events.get(event, ())) or "–" for row in rows)
        lines.append(f"| `{event}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _short(file: str) -> str:
    """The names of a counter without their places, which are hw_counters unless told otherwise."""
    return r" \| ".join(spelling.removeprefix("hw_counters/") for spelling in file.split("|"))


def page() -> str:
    """The whole page."""
    notes = "\n".join(f"- `{row.name}`: {row.note}" for row in DRIVERS if row.note)
    return (
        f"{_INTRODUCTION}\n{_table()}\n\n## Notes\n\n{notes}\n\n## Events\n\n"
        "The label `counter` of `overlap_rdma_events_total` and the files behind it. Names without a place stand in\n"
        "`hw_counters` and are read each second; those in `counters`, of the interface (`netdev`) and of `ethtool` each fifth\n"
        "second. Counters of `ethtool` need the host's network namespace.\n\n"
        f"{_events()}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(DRIVERS)} drivers")
