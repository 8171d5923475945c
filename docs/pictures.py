"""Draws the pictures of the documents from simulated traces, judged by the very analysis that the daemon runs.

`make pictures` runs it; the SVG files under docs/pictures/ are committed. Each picture shows some seconds of one or two
GPUs: power as the sensor gives it, traffic at the rate at which counters are polled, and above both the verdict on the
minute that ends with the trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from exporter.api import waveform_json
from exporter.meanings import FINDINGS
from exporter.model import OverlapAnalysis
from exporter.session import Session
from exporter.sources.simulator import simulate

mpl.use("svg")
import matplotlib.pyplot as plt  # the backend comes first
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent / "pictures"
POWERS, TRAFFIC, INK, GRID = ("#e8710a", "#9334e6"), "#1a73e8", "#202124", "#dadce0"
WINDOW_S = 60.0
_GIGABIT = 8e-9
_MOST_POINTS = 220
_LEAST_SHARE = .05
STYLE: Mapping[str, Any] = {
    "svg.hashsalt": "overlap-exporter", "font.family": "DejaVu Sans", "svg.fonttype": "path", "path.simplify": False,
    "figure.facecolor": "white",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Picture:
    """One file: a scenario that is judged at the end of `length_s`, of which `shown_s` up to `until_s` are drawn.

    gpus: whose power is drawn; the traffic is that of the first. limit: the power limit is drawn as well.
    """

    name: str
    scenario: str
    title: str
    shown_s: float = 3.0
    length_s: float = 75.0
    until_s: float | None = None
    gpus: tuple[int, ...] = (0,)
    limit: bool = False
    labels: tuple[str, ...] = ()  # of the GPUs, where they differ

    @property
    def end_s(self) -> float:
        """Where what is shown ends."""
        return self.length_s if self.until_s is None else self.until_s


PICTURES: tuple[Picture, ...] = (
    # The README
    Picture("perfect_overlap", "perfect_overlap", "Perfect overlap: two flat lines"),
    Picture("serialized", "serialized", "Failed overlap: compute and communication take turns"),
    # States
    Picture("state_overlapped", "ddp_bucketed", "Overlapped: buckets leave while the backward still computes"),
    Picture("state_partial", "fsdp_no_prefetch", "Partial: every gather is waited for, most scatters are hidden", 8.0),
    Picture("state_serialized", "ddp_no_overlap", "Serialized: all gradients are reduced after the backward"),
    Picture("state_compute_only", "compute_only", "Compute only: nothing is exchanged"),
    Picture("state_stalled", "storage_checkpoint", "Stalled: nothing computes while a checkpoint is written", 50.0, 90.0),
    Picture("state_idle", "idle", "Idle: no job is running"),
    Picture("state_unobservable", "two_jobs", "Unobservable: the bytes of this port belong to two jobs"),
    Picture("state_no_data", "gpu_lost", "No data: the GPU fell off the bus", 60.0, gpus=(3,)),
    # Findings
    Picture("exposed_communication", "zero3", "The wire is the bottleneck: compute waits for weights", 5.0),
    Picture("tcp_fallback", "tcp_fallback", "Traffic on the Ethernet interface, RDMA ports silent"),
    Picture("input_stall", "input_stall", "No kernel and no traffic at the start of each step: the loader is late"),
    Picture("straggler_wait", "straggler", "GPU 3 computes on while the others wait in the collective", gpus=(0, 3),
            labels=("GPU 0", "GPU 3")),
    Picture("small_buckets", "ddp_small_buckets", "1,400 small transfers: long, thin traffic that outlasts the backward"),
    Picture("link_degraded", "link_degraded", "After two seconds one port falls to half its rate", 5.0, 105.0, 38.0),
    Picture("congestion", "congestion", "A fabric that marks and pauses: slow traffic outlasts the backward"),
    Picture("power_capped", "power_capped", "Power lies on its limit and never dips", limit=True),
    Picture("sensor_too_slow", "slow_sensor", "Bytes alternate, and power is a mean over a second"),
    Picture("shared_node", "two_jobs", "Two jobs with different rhythms send over one port", gpus=(0, 2),
            labels=("GPU 0, job a", "GPU 2, job b")),
)  # fmt: skip
GPUS = 4


def judged(picture: Picture) -> tuple[Session, OverlapAnalysis]:
    """The scenario fed through a session, and the verdict on the first GPU that is drawn."""
    session = Session()
    for event in simulate(picture.scenario, picture.length_s, seed=1, gpus=GPUS):
        session.advance(getattr(event, "t_s", 0.0))
        session.take(event)
    session.finish(picture.length_s)
    wanted = f"GPU-{picture.gpus[0]}"
    verdicts = session.evaluate(picture.length_s, (WINDOW_S,))
    return session, next(a for a in verdicts if a.gpu_id == wanted)


def words(picture: Picture, session: Session, verdict: OverlapAnalysis) -> str:
    """The verdict as one line: state, numbers, and the finding that the picture is of. ValueError where it is not active."""
    parts = [f"state {verdict.state}"]
    if verdict.health is not None and verdict.exposed is not None:
        parts.append(f"health {verdict.health:.2f}, exposed {verdict.exposed:.0%} of the time")
    for name, share in (("stall", verdict.stall), ("wait", verdict.wait)):
        parts += [f"{name} {share:.0%}"] if share is not None and share >= _LEAST_SHARE else []
    if verdict.health is not None:
        flat = "no correlation (flat)"
        parts.append(flat if verdict.correlation is None else f"correlation {verdict.correlation:+.2f}")
    if verdict.health is None and verdict.reason and verdict.state != "compute_only":
        parts.append(verdict.reason.replace("_", " "))
    if picture.name in FINDINGS:
        if picture.name not in {f.finding for f in session.verdicts.findings}:
            raise ValueError(f"{picture.name}: the scenario {picture.scenario} does not show this finding")
        parts.append(f"finding {picture.name}")
    return ",  ".join(parts)


def draw(picture: Picture, folder: Path = HERE) -> Path:
    """One picture: power and traffic on one time axis."""
    with mpl.rc_context(dict(STYLE)):
        session, verdict = judged(picture)
        figure, axes = plt.subplots(figsize=(9.6, 3.4))
        _power(axes, session, picture)
        _traffic(axes.twinx(), session, picture)
        axes.set_xlim(0, picture.shown_s)
        axes.set_xlabel("seconds")
        axes.set_title(picture.title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=22)
        axes.text(0, 1.03, words(picture, session, verdict), transform=axes.transAxes, fontsize=10, color=INK)
        axes.grid(color=GRID, linewidth=.6)
        for frame in figure.axes:
            frame.tick_params(length=0)
        return save(figure, folder / f"{picture.name}.svg", without=("top", "left", "right"))


def save(figure: Figure, path: Path, without: Sequence[str]) -> Path:
    """The figure as an SVG file that is the same each time, `without` these sides of its frames. It is closed."""
    for frame in figure.axes:
        for side in without:
            frame.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    path.write_text(rounded(path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def rounded(svg: str) -> str:
    """Coordinates of lines to a hundredth of a point: nobody sees the rest, and the files are half as large."""
    return re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)


def _power(axes: Axes, session: Session, picture: Picture) -> None:
    """Power of each GPU as the sensor gives it, a step per reading."""
    top = 0.0
    for gpu, color in zip(picture.gpus, POWERS, strict=False):
        power = _waveform(session, picture, gpu)["power"]
        watts = np.array(power["watts"])[:: _stride(power["watts"])]
        t_s = np.array(power["t_s"])[:: _stride(power["watts"])] - picture.end_s + picture.shown_s
        axes.step(t_s, watts, where="post", color=color, linewidth=1.8)
        top = max(top, float(watts.max(initial=0.0)))
    if picture.limit:
        limit = session.inventory.of_kind("gpu")[0].power_limit_watts
        axes.axhline(limit, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.text(picture.shown_s * .995, limit * 1.02, f"power limit {limit:.0f} W", ha="right", fontsize=9, color=INK)
    for n, (label, color) in enumerate(zip(picture.labels, POWERS, strict=False)):
        axes.text(.995, 1.03 + .09 * n, label, transform=axes.transAxes, ha="right", fontsize=10, color=color)
    axes.set_ylabel("GPU power, W", color=POWERS[0] if len(picture.gpus) == 1 else INK)
    axes.set_ylim(0, 100 * ceil(1.15 * top / 100))


def _traffic(axes: Axes, session: Session, picture: Picture) -> None:
    """Traffic of the first GPU on the path that carries its job, filled."""
    waveform = _waveform(session, picture, picture.gpus[0])
    traffic = waveform["traffic"]
    path = max((p for p in ("rdma", "tcp") if p in traffic), key=lambda p: _mean(traffic[p]))
    every = _stride(traffic["t_s"])
    gigabits = np.array([np.nan if v is None else v * _GIGABIT for v in traffic[path]])
    gigabits = gigabits[: len(gigabits) // every * every].reshape(-1, every).mean(axis=1)  # no byte is left out
    t_s = np.array(traffic["t_s"])[every - 1 :: every][: len(gigabits)] - picture.end_s + picture.shown_s
    axes.fill_between(t_s, gigabits, step="pre", color=TRAFFIC, alpha=.18, linewidth=0)
    axes.step(t_s, gigabits, where="pre", color=TRAFFIC, linewidth=1.3)
    axes.set_ylabel(f"{'RDMA' if path == 'rdma' else 'TCP'} traffic, Gbit/s", color=TRAFFIC)
    top = float(np.nan_to_num(gigabits).max(initial=0.0))
    nice = 50 if top > 50 else 10
    axes.set_ylim(0, nice * ceil(1.3 * top / nice) if top > 1 else 250)


def _waveform(session: Session, picture: Picture, gpu: int) -> dict[str, Any]:
    inventory = session.inventory
    return waveform_json(session.history, inventory, inventory.of_kind("gpu")[gpu], picture.end_s, picture.shown_s)


def _stride(values: list[Any]) -> int:
    """Every how many points are drawn, so that a picture stays small."""
    return max(1, ceil(len(values) / _MOST_POINTS))


def _mean(rates: list[float | None]) -> float:
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else 0.0


def main() -> None:
    """Draw all of them."""
    HERE.mkdir(exist_ok=True)
    for picture in PICTURES:
        path = draw(picture)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
