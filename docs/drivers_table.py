"""Writes docs/drivers.md from the table of RDMA drivers: `python -m docs.drivers_table`. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from exporter.sources.rdma_drivers import DRIVERS, EVENTS, UNKNOWN, ByteSource, Driver

CACHED_S = 0.01  # `lifespan` of hw_counters, where nobody changed it
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
- **Asked**: the plan by which the byte files are read: so often a second, and each so many-th time once more a few
  milliseconds later. Two such reads show the rate inside a burst, which reads further apart blur. Less where reads take more
  than 2 % of a device's time; at one steady rate where `sampling.network_hertz` gives one.
- **Judged**: whether the bytes count for the verdict on a GPU. What is not judged is listed all the same.
- **Tested with**: *captured*, values that somebody published from a machine; *published*, names read in the driver's
  source or its documentation, values made up; *constructed*, from descriptions only.
"""


def _files(files: tuple[str, ...]) -> str:
    return " + ".join(f"`{file}`".replace("|", r"\|") for file in files)


def _bytes(source: ByteSource) -> str:
    return f"{_files(source.transmit)} / {_files(source.receive)}"


def _asked(source: ByteSource) -> str:
    """The plan, as it is for files that are answered from memory for the usual 10 ms."""
    cached = source.transmit[0].startswith("hw_counters/")
    plan = source.plan.beyond(CACHED_S) if cached else source.plan
    if not plan.pair_s:
        return f"{plan.hertz:g} Hz"
    return f"{plan.hertz:g} Hz, each {plan.every}th again after {1e3 * plan.pair_s:g} ms"


def _cells(row: Driver, source: ByteSource | None, rank: int) -> list[str]:
    names = ", ".join(f"`{name}`" for name in (row.name, *row.also)) if rank == 0 else ""
    if row is UNKNOWN:
        names = "any other" if rank == 0 else ""
    if source is None:
        judged = "as its interface" if row.software else "no"
        return [names, "none of its own", "–", "–", "–", "–", judged, row.provenance]
    asked = f"each {row.shortest_interval_s:g} s" if row.shortest_interval_s else _asked(source)
    fresh = "at each read" if source.refresh_s is None else f"each {source.refresh_s:g} s"
    fresh += ", may freeze: the next source goes on" if source.freezes else ""
    judged = "only where chosen by name" if row is UNKNOWN else "yes"
    width = "32?" if source.bits < 64 else str(source.bits)
    return [names, _bytes(source), str(source.factor), width, fresh, asked, judged, row.provenance if rank == 0 else ""]


_PLANS = """\
## Plans

Chosen by figures, which `python -m benchmarks.polling` prints for the analysis as it is. Here 36 draws each of jobs whose
communication is finer than the sensors, read with GPM beside power, and of alternations of .1 to .5 s with power alone:

| counter | plan | reads/s | health error | misleading | answered | duty error | alternations: health error | period right |
|---|---|---|---|---|---|---|---|---|
| new at each read | 10 Hz | 10 | .056 | .03 | .83 | .078 | .127 | .31 |
|  | 25 Hz | 25 | .066 | .08 | .92 | .139 | .109 | .75 |
|  | 50 Hz | 50 | .071 | .08 | .94 | .143 | .110 | .89 |
|  | 200 Hz | 200 | .028 | .00 | .94 | .009 | .106 | .89 |
|  | 10 Hz, each a pair of 5 ms | 20 | .037 | .00 | .94 | .009 | .127 | .31 |
|  | 20 Hz, each 4th a pair of 5 ms | 25 | .031 | .00 | .94 | .009 | .099 | .61 |
|  | **25 Hz, each 5th a pair of 5 ms** | 30 | .032 | .00 | .94 | .009 | .104 | .75 |
|  | 40 Hz, each 8th a pair of 5 ms | 45 | .031 | .00 | .94 | .007 | .101 | .89 |
| answered from memory for 10 ms | 50 Hz | 50 | .071 | .08 | .94 | .145 | .111 | .89 |
|  | 25 Hz, each 5th a pair of 5 ms | 30 | .067 | .08 | .92 | .139 | .107 | .75 |
|  | **25 Hz, each 5th a pair of 15 ms** | 30 | .035 | .00 | .94 | .047 | .107 | .75 |

- Pairs tell for what share of the time traffic flows, which polls up to 50 Hz blur; five pairs a second tell as much as ten.
- Reads at 25 Hz between them hold power against traffic, and find the period of steps of .16 s and more. Shorter steps need 50
  reads a second: `sampling.network_hertz: 50` has them, at the price of the duty. Power alone gives the same order (health
  error .121 by the plan, .134 at 50 Hz).
- Files in `hw_counters` are answered from memory for as long as `lifespan` beside them says; the second read waits for that.
- About each quarter of a minute 24 reads follow each other closely: a volley shows how often the counter really takes a new
  value. The pairs of one that stands still between its two reads are not believed, and it is read at 50 Hz from then on:
  counters that tick each 50 ms have the truth inside the bounds in .89 of the alternations then, in .72 at 25 Hz.
- Where a device takes a new value each quarter of a second or more slowly, more than 10 reads a second show nothing more.
- The real reader takes a third less CPU time than at 50 Hz: 1.4 % of a core for 8 ports
  and 9 interfaces of Broadcom in place of 2.1 %.

Network interfaces are read as if they were new at each read; those of `bnxt_en`, and uplinks in switchdev mode, at 10 Hz.
A port over a bond (`mlx5_bond_0`) has the line rate and the events of all its links. Whether its byte files hold the bytes
of all links is measured against the driver's own counters (`ethtool -S`, in the host's network namespace), and `doctor` says
what came out.
"""

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
        f"{_INTRODUCTION}\n{_table()}\n\n{_PLANS}\n## Notes\n\n{notes}\n\n## Events\n\n"
        "The label `counter` of `overlap_rdma_events_total` and the files behind it. Names without a place stand in\n"
        "`hw_counters` and are read each second; those in `counters`, of the interface (`netdev`) and of `ethtool` each fifth\n"
        "second. Counters of `ethtool` need the host's network namespace.\n\n"
        f"{_events()}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(DRIVERS)} drivers")
