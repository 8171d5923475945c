"""Measures and prints tables; asserts no times: `make bench`, or python -m benchmarks [--seconds N]."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from benchmarks import viewers
from benchmarks.cost import NETWORK_HERTZ, Cost, Target, measure, percentile

# What the project promises itself; printed beside what was measured.
TARGETS = {"cpu": "5 %", "memory": "150 MB", "p99": "20 ms", "viewers": "25 %"}


def main() -> None:
    """Print what the daemon costs, beside a peer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch (default 60)")
    parser.add_argument("--network-hertz", type=float, default=NETWORK_HERTZ,
                        help=f"reads of byte counters a second (default {NETWORK_HERTZ:g}); 0: by the plan of each driver")
    parser.add_argument("--viewers", action="store_true", help="only what fifty open pages cost")
    given = parser.parse_args()
    if not given.viewers:
        show(measure(given.seconds, given.network_hertz or None), given.network_hertz)
    show_viewers(viewers.measure(min(given.seconds, 20.0)))


def show_viewers(cost: viewers.Cost) -> None:
    """The table of `viewers.measure`."""
    console = Console(width=120, highlight=False)
    console.print(f"{cost.viewers} open pages, each with a GPU of its choice: {cost.live_per_s:.1f} events of readings a "
                  f"second, {cost.bytes_per_s / 1e3:.0f} kB/s each, {cost.late_ms:.0f} ms apart in 95 %")
    table = Table(box=None, pad_edge=False)
    for name in ("exporter without readers", "CPU, % of a core"):
        table.add_column(name, justify="right" if "CPU" in name else "left")
    table.add_row("nobody looks on", f"{cost.alone:.1f}")
    table.add_row(f"{cost.viewers} look on", f"{cost.watched:.1f}")
    table.add_row("the pages alone", f"{cost.watched - cost.alone:.1f}")
    table.add_row("target", TARGETS["viewers"], style="dim")
    table.add_row(f"{cost.viewers} that never read", f"{cost.dead:.1f}")
    console.print(table)


def show(cost: Cost, network_hertz: float) -> None:
    """The tables of `measure`."""
    console = Console(width=120, highlight=False)
    rate = f"at {network_hertz:g} Hz" if network_hertz else "in pairs, by the plan of their drivers"
    console.print(f"8 GPUs at 10 Hz, 8 RDMA ports and 9 NICs {rate}, windows of 15, 60 and 300 s, {cost.series} series, "
                  f"scraped each second for {cost.seconds:.0f} s")
    table = Table(box=None, pad_edge=False)
    for name in ("", "CPU, % of a core", "by its own account", "memory, MB (proportional)"):
        table.add_column(name, justify="left" if not name else "right")
    for target in cost.targets:
        _add_target(table, target, cost)
    table.add_row("target", TARGETS["cpu"], "", TARGETS["memory"], style="dim")
    console.print(table)
    scrapes = Table(box=None, pad_edge=False)
    for name in ("scrape", "p50, ms", "p99, ms", "longest, ms", "answer, kB"):
        scrapes.add_column(name, justify="left" if name == "scrape" else "right")
    for target in cost.targets:
        times = [f"{percentile(target.scrapes_ms, share):.1f}" for share in (0.5, 0.99, 1.0)]
        scrapes.add_row(target.name, *times, f"{target.body_bytes / 1e3:.1f}")
    scrapes.add_row("target", "", TARGETS["p99"], "", "", style="dim")
    console.print(scrapes)
    console.print(f"analysis: {cost.analysis_ms:.1f} ms a second, longer than 20 ms in {100 * cost.analysis_over_20_ms:.0f} %")
    for name, per_second in cost.reads_per_s.items():
        console.print(f"reads of {name}: {per_second:.1f} a second, {cost.missed_ticks[name]:.0f} missed")


def _add_target(table: Table, target: Target, cost: Cost) -> None:
    roles = target.cpu_after_s
    shares = {role: 100 * (target.cpu_after_s[role] - target.cpu_before_s[role]) / cost.seconds for role in roles}
    for role in roles:
        own = cost.own_cpu_s.get(role)
        table.add_row(f"  {role}" if len(roles) > 1 else role, f"{shares[role]:.2f}", "" if own is None else f"{100 * own:.2f}",
                      f"{target.memory_bytes[role] / 1e6:.1f}")
    if len(roles) > 1:
        table.add_row(f"{target.name}, together", f"{sum(shares.values()):.2f}", f"{100 * sum(cost.own_cpu_s.values()):.2f}",
                      f"{sum(target.memory_bytes.values()) / 1e6:.1f}")


if __name__ == "__main__":
    main()
