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

Chosen by figures: `python -m benchmarks.polling` prints them, for the analysis as it is now. In short, on jobs whose
communication is finer than the sensors, with GPM (36 draws), and on alternations of .1 to .5 s:

| counter | plan | reads/s | health error | answered | duty error | step period right, .1 to .5 s |
|---|---|---|---|---|---|---|
| new at each read | 10 Hz | 10 | .048 | .61 | .109 | .25 |
|  | 25 Hz | 25 | .128 | .92 | .200 | .78 |
|  | 50 Hz | 50 | .037 | .78 | .064 | 1.00 |
|  | 10 Hz, each a pair of 5 ms | 20 | .044 | .89 | .019 | .22 |
|  | **25 Hz, each 5th a pair of 5 ms** | 30 | .049 | .94 | .019 | .78 |
| answered from memory for 10 ms | 50 Hz | 50 | .040 | .83 | .064 | 1.00 |
|  | 25 Hz, each 5th a pair of 5 ms | 30 | .143 | .90 | .186 | .77 |
|  | **25 Hz, each 5th a pair of 15 ms** | 30 | .042 | .80 | .037 | .77 |
| new each 10 ms | **50 Hz** | 50 | .038 | .83 | .066 | 1.00 |
|  | 25 Hz, each 5th a pair of 5 ms | 30 | .140 | .87 | .186 | .77 |

Pairs tell the duty of traffic best, and for three fifths of the reads; 50 Hz finds the period of rhythms below .16 s, which
25 Hz does not: where that matters more, `sampling.network_hertz: 50` has it. Files in `hw_counters` are answered from memory
for as long as `lifespan` beside them says, so that the second read of a pair waits for that. Now and then 24 reads follow each
other closely: they show how often a counter really takes a new value, and one that stands still between the two reads of a pair
is read at 50 Hz from then on.
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
