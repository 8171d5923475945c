"""Draws the plots of docs/how-overlap-is-measured.md: jobs with known truth, judged by the very analysis that the daemon runs.

`make pictures` runs it after the others; the SVG files under docs/pictures/measure/ are committed. Everything shown is drawn
anew from seeds: jobs from tests/draws*.py, answers from the analysis, simpler estimators from benchmarks/estimators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from benchmarks import estimators, stragglers
from benchmarks.estimators import ESTIMATORS, MISLEADING, Case
from docs.pictures import GRID, INK, POWERS, STYLE, TRAFFIC, save
from exporter.analysis import Analyzer
from exporter.model import Inventory, OverlapAnalysis
from exporter.rules import lateness
from tests import draws, draws_twins

mpl.use("svg")
import matplotlib.pyplot as plt  # the backend comes first
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Array = NDArray[np.float64]
HERE = Path(__file__).parent / "pictures" / "measure"
POWER, FAINT, BAD = POWERS[0], "#9aa0a6", "#d93025"
_DRAWS, _SEED = 80, 11
_SETS = {"power100_nic10": "power 100 ms, bytes 10 Hz", "power25_nic10": "power 25 ms, bytes 10 Hz",
         "power25_paired": "power 25 ms, bytes in pairs", "gpm_paired": "GPM, bytes in pairs"}  # fmt: skip


@cache
def cases() -> tuple[Case, ...]:
    """Fresh draws, each through four sets of readings, with their truth."""
    return tuple(estimators.timelines(_DRAWS, np.random.default_rng(_SEED)))


def of_set(readings: str) -> list[Case]:
    return [case for case in cases() if case.kind == f"fresh, {readings}"]


def judged(node: draws.Node, inventory: Inventory) -> OverlapAnalysis:
    """The verdict on the minute up to 74 s of a job that has run for 75."""
    analyzer = Analyzer((15.0, 60.0), 60.0)
    for second in (15.0, 30.0, 45.0, 60.0, 70.0, 73.0):
        analyzer.step(node, inventory, second)
    return analyzer.evaluate(node, inventory, 74.0, (60.0,))[0]


def mixture() -> Figure:
    """Half a second of a job, and what its sensors say of it."""
    rng = np.random.default_rng(4)
    compute, traffic = draws.alternation(2.0, 0.019, 0.013, 0.15, rng)
    watts, shown_s = np.where(compute > 0, 600.0, 230.0), 0.6
    figure, (above, below) = plt.subplots(2, 1, figsize=(9.6, 4.4), sharex=True, height_ratios=(3, 2))
    above.fill_between(*_steps(watts, draws.GRAIN_S, shown_s), step="post", color=FAINT, alpha=0.35, linewidth=0,
                       label="power of the board")  # fmt: skip
    ends = np.arange(0.135, shown_s, 0.1)
    total = np.concatenate(([0.0], np.cumsum(watts)))
    seen = np.array([(total[round(e / draws.GRAIN_S)] - total[round((e - 0.025) / draws.GRAIN_S)]) / 25 for e in ends])
    above.hlines(seen, ends - 0.025, ends, color=POWER, linewidth=4, label="mean over 25 ms, ten times a second")
    above.axhline(seen.max(), color=POWER, linewidth=0.8, linestyle=(0, (4, 3)))
    above.text(0.002, seen.max() + 12, "the highest reading misses the level of compute", fontsize=9, color=POWER)
    above.set_ylim(0, 720)
    above.set_ylabel("W", color=POWER)
    below.fill_between(*_steps(25 * traffic, draws.GRAIN_S, shown_s), step="post", color=FAINT, alpha=0.35, linewidth=0,
                       label="traffic")  # fmt: skip
    flowed = np.concatenate(([0.0], np.cumsum(25 * traffic)))
    polls = np.arange(0.0, shown_s + 0.15, 0.1)
    rate = np.diff(np.interp(polls, np.arange(len(flowed)) * draws.GRAIN_S, flowed)) / 100
    below.step(polls, np.append(rate, rate[-1]), where="post", color=TRAFFIC, linewidth=1.8, label="by polls 100 ms apart")
    pairs = np.array([flowed[round((p + 0.005) / draws.GRAIN_S)] - flowed[round(p / draws.GRAIN_S)] for p in polls[:-1]]) / 5
    below.plot(polls[:-1] + 0.0025, pairs, "o", color=TRAFFIC, markersize=5, label="by two reads 5 ms apart")
    below.set_ylim(0, 34)
    below.set_ylabel("GB/s", color=TRAFFIC)
    below.set_xlabel("seconds")
    below.set_xlim(0, shown_s)
    for axes in (above, below):
        _legend(axes, columns=3)
    return figure


def rhythm() -> Figure:
    """A job that hides nothing, at rhythms around the window of the sensor: what is answered."""
    figure, plots = plt.subplots(1, 3, figsize=(9.6, 3.4), sharey=True)
    ways: tuple[tuple[str, float, float], ...] = (
        ("power 25 ms, bytes 10 Hz", 0.025, 10.0), ("power 100 ms, bytes 10 Hz", 0.1, 10.0),
        ("power 100 ms, bytes 50 Hz", 0.1, 50.0),
    )  # fmt: skip
    for axes, (title, window_s, byte_hz) in zip(plots, ways, strict=True):
        for number, period_s in enumerate(np.geomspace(0.02, 4.0, 22)):
            rng = np.random.default_rng([_SEED, number])
            compute, traffic = draws.alternation(75.0, 0.7 * period_s, 0.3 * period_s, 0.03, rng)
            said = judged(*draws.node(compute, traffic, rng, window_s=window_s, byte_hz=byte_hz, high=560.0, transfer=210.0))
            low, high = said.exposed_low or 0.0, said.exposed_high or 0.0
            refused = said.exposed is None
            axes.plot([period_s, period_s], [low, high], color=FAINT if refused else POWER, linewidth=2.5, alpha=0.6)
            if not refused:
                axes.plot(period_s, said.exposed, "o", color=POWER, markersize=4.5)
        axes.axhline(0.3, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.axvline(4 * window_s, color=TRAFFIC, linewidth=0.9)
        axes.text(4 * window_s * 1.1, 0.93, "4 windows", fontsize=9, color=TRAFFIC)
        axes.set(xscale="log", ylim=(0, 1), xlabel="period, s", title=title)
        axes.title.set(fontsize=10, color=INK)
    plots[0].set_ylabel("exposed share, truth 0.3")
    return figure


def identity() -> Figure:
    """Exposed communication and waits together, against the truth."""
    figure, plots = plt.subplots(1, 2, figsize=(9.6, 4.2), sharey=True)
    for axes, readings in zip(plots, ("gpm_paired", "power25_paired"), strict=True):
        found = [(c.exposed + c.wait, c.said.exposed_or_wait) for c in of_set(readings) if c.said.exposed_or_wait is not None]
        truth, said = np.array(found).T
        axes.plot([0, 0.8], [0, 0.8], color=INK, linewidth=0.8)
        axes.plot(truth, said, "o", color=POWER, markersize=4, alpha=0.7)
        axes.set(xlim=(0, 0.8), ylim=(0, 0.8), xlabel="true exposed communication and waits, share of time",
                 title=f"{_SETS[readings]}: mean error {np.abs(truth - said).mean():.3f}")  # fmt: skip
        axes.title.set(fontsize=10, color=INK)
    plots[0].set_ylabel("kernel-busy less compute-busy, as read")
    return figure


def bounds() -> Figure:
    """Every draw as a bar from its lower to its upper bound, in the order of its truth."""
    figure, plots = plt.subplots(3, 1, figsize=(9.6, 6.6), sharex=True)
    for axes, readings in zip(plots, ("power25_nic10", "power25_paired", "gpm_paired"), strict=True):
        found = sorted((c for c in of_set(readings)), key=lambda c: c.exposed)
        for refused, color in ((True, FAINT), (False, POWER)):
            bars = [(n, c.said) for n, c in enumerate(found) if (c.said.health is None) == refused]
            ends = [x for _, said in bars for x in (said.exposed_low or 0.0, said.exposed_high or 0.0, np.nan)]
            axes.plot(np.repeat([n for n, _ in bars], 3), ends, color=color, linewidth=3, alpha=0.55, solid_capstyle="butt")
        ticks = np.arange(len(found))[:, None] + (-0.4, 0.4, np.nan)
        axes.plot(ticks.ravel(), np.repeat([c.exposed for c in found], 3), color=INK, linewidth=1.2)
        answered = [c for c in found if c.said.health is not None]
        inside = fmean(c.holds for c in answered)
        axes.set_title(f"{_SETS[readings]}: answered {len(answered) / len(found):.0%}, truth inside in {inside:.0%} of them",
                       fontsize=10, color=INK, loc="left")  # fmt: skip
        axes.set(ylim=(0, 1), ylabel="exposed")
    plots[-1].set_xlabel("draws by their true exposed share (black); orange: answered, grey: refused")
    return figure


def estimates() -> Figure:
    """Mean error of health and misleading answers of each estimator."""
    figure, plots = plt.subplots(1, 2, figsize=(9.6, 3.6), sharey=True)
    names = list(ESTIMATORS)
    for k, (readings, color) in enumerate((("power25_nic10", POWER), ("gpm_paired", TRAFFIC))):
        found = of_set(readings)
        for n, name in enumerate(names):
            said = [(c.health, ESTIMATORS[name](c)) for c in found]
            errors = [abs(truth - h) for truth, h in said if h is not None and h == h]
            for axes, value in zip(plots, (fmean(errors), sum(e > MISLEADING for e in errors) / len(found)), strict=True):
                axes.barh(n + 0.38 * k, value, height=0.36, color=color, label=_SETS[readings] if n == 0 else None)
                axes.text(value + 0.005, n + 0.38 * k, f"{value:.2f}", va="center", fontsize=8, color=INK)
    plots[0].set_yticks([n + 0.19 for n in range(len(names))], names)
    plots[0].invert_yaxis()
    for axes, title in zip(plots, ("mean error of health, where answered", "share wrong by more than 0.3"), strict=True):
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlim(0, 0.62)
    _legend(plots[1], columns=1, loc="lower right")
    return figure


def twins() -> Figure:
    """Pairs of jobs that read the same: what runs, and what is said of both."""
    figure, plots = plt.subplots(2, 3, figsize=(9.6, 4.2))
    for pair, column in zip(draws_twins.TWINS, plots.T, strict=True):
        shown_s = 3 * max(job.period_s for job in pair.jobs)
        for which, axes in enumerate(column):
            watts, rate, _ = draws_twins.waveforms(pair.jobs[which])
            axes.step(*_steps(watts, draws_twins.GRAIN_S, shown_s), where="post", color=POWER, linewidth=1.5)
            axes.fill_between(*_steps(10 * rate / 1e9, draws_twins.GRAIN_S, shown_s), step="post", color=TRAFFIC, alpha=0.25,
                              linewidth=0)  # fmt: skip
            axes.set(ylim=(0, 640), xlim=(0, shown_s), yticks=(0, 300, 600), xticks=(0, shown_s / 3, 2 * shown_s / 3, shown_s))
            axes.text(0.01, 1.03, f"true health {pair.jobs[which].health:.0f}", transform=axes.transAxes, fontsize=9, color=INK)
        said = judged(*draws_twins.read(pair, 1))
        column[0].set_title(f"{pair.title}\n", fontsize=10, color=INK, loc="left")
        words = f"said of both: {said.state},\nexposed {said.exposed_low:.2f} to {said.exposed_high:.2f} of the time"
        column[1].set_xlabel(f"seconds\n{words}", fontsize=9)
    return figure


def straggler() -> Figure:
    """How much more the others lose than the GPU that is late, against its lag, and how little equal GPUs differ."""
    figure, axes = plt.subplots(figsize=(9.6, 3.4))
    for lag in stragglers.LAGS:
        lost = stragglers.outcome(lag, seed=1).lost
        for g, own in enumerate(lost):
            late, least = lateness(own, [x for other, x in enumerate(lost) if other != g])
            slow = g == stragglers.SLOW
            axes.plot(100 * lag, late, "o", color=BAD if slow and lag > 0 else FAINT, markersize=6 if slow and lag > 0 else 3.5)
            if slow:
                axes.plot(100 * lag, least, "_", color=INK, markersize=12)
    axes.set(xlabel="lag of the slow GPU, % of its compute time", ylabel="lost by the others beyond this one")
    words = "red: the slow GPU, grey: the other seven, line: what is needed to be named"
    axes.text(0.01, 0.93, words, transform=axes.transAxes, fontsize=9, color=INK)
    return figure


def _steps(values: Array, grain_s: float, shown_s: float) -> tuple[Array, Array]:
    """Times and values of the changes alone, so that the file stays small."""
    values = values[: round(shown_s / grain_s) + 1]
    kept = np.flatnonzero(np.concatenate(([True], np.diff(values) != 0)))
    return np.append(kept, len(values) - 1) * grain_s, np.append(values[kept], values[-1])


def _legend(axes: Axes, columns: int, loc: str = "upper right") -> None:
    axes.legend(loc=loc, ncols=columns, fontsize=8, frameon=False, handlelength=1.4)


PLOTS: Mapping[str, Callable[[], Figure]] = {
    f.__name__: f for f in (mixture, rhythm, identity, bounds, estimates, twins, straggler)
}


def draw(name: str, folder: Path = HERE) -> Path:
    """One plot as an SVG file."""
    with mpl.rc_context(dict(STYLE)):
        figure = PLOTS[name]()
        for axes in figure.axes:
            axes.grid(color=GRID, linewidth=0.6)
            axes.set_axisbelow(True)
            axes.tick_params(length=0, labelsize=9)
        return save(figure, folder / f"{name}.svg", without=("top", "right"))


def main() -> None:
    """Draw all of them."""
    HERE.mkdir(exist_ok=True, parents=True)
    for name in PLOTS:
        path = draw(name)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
