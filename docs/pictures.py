"""Draws the pictures of the README from simulated traces, judged by the very analysis that the daemon runs.

`make pictures` runs it; the SVG files under docs/pictures/ are committed. Each picture shows three seconds of one GPU:
power as the sensor gives it, traffic at the rate at which the counters are polled, and above both what a scrape every
15 seconds would have seen.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

from exporter.api import waveform_json
from exporter.model import OverlapAnalysis
from exporter.session import Session
from exporter.sources.simulator import simulate

mpl.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 (the backend comes first)

HERE = Path(__file__).parent / "pictures"
POWER, TRAFFIC, INK, GRID = "#e8710a", "#1a73e8", "#202124", "#dadce0"
SHOWN_S = 3.0
JUDGED_S = 75.0

PICTURES = (
    ("perfect_overlap", "Perfect overlap: two flat lines"),
    ("serialized", "Failed overlap: compute and communication take turns"),
)


def judged(name: str) -> tuple[Session, OverlapAnalysis]:
    """A scenario fed through a session, and the verdict on its first GPU over 60 s."""
    session = Session()
    last_s = 0.0
    for event in simulate(name, JUDGED_S, seed=1):
        t_s = getattr(event, "t_s", last_s)
        session.advance(t_s)
        session.take(event)
        last_s = max(last_s, t_s)
    session.finish(last_s)
    return session, next(a for a in session.evaluate(last_s, (60.0,)) if a.gpu_id == "GPU-0")


def words(verdict: OverlapAnalysis) -> str:
    """The verdict as one line."""
    parts = [f"state {verdict.state}"]
    if verdict.health is not None and verdict.exposed is not None:
        parts += [f"health {verdict.health:.2f}", f"exposed {verdict.exposed:.0%} of the time"]
    parts.append("no correlation (flat)" if verdict.correlation is None else f"correlation {verdict.correlation:+.2f}")
    return ",  ".join(parts)


def draw(name: str, title: str) -> None:
    """One picture: power and traffic of GPU 0 on one time axis."""
    session, verdict = judged(name)
    inventory = session.history.inventory
    gpu = inventory.of_kind("gpu")[0]
    waveform = waveform_json(session.history, inventory, gpu, JUDGED_S, SHOWN_S)
    start_s = JUDGED_S - SHOWN_S
    figure, axes = plt.subplots(figsize=(9.6, 3.4))
    beside = axes.twinx()
    t = np.array(waveform["power"]["t_s"]) - start_s
    axes.step(t, waveform["power"]["watts"], where="post", color=POWER, linewidth=1.8)
    axes.set_ylabel("GPU power, W", color=POWER)
    axes.set_ylim(0, 500)
    t = np.array(waveform["traffic"]["t_s"]) - start_s
    gigabits = np.array([np.nan if v is None else v * 8e-9 for v in waveform["traffic"]["rdma"]])
    beside.fill_between(t, gigabits, step="pre", color=TRAFFIC, alpha=0.18, linewidth=0)
    beside.step(t, gigabits, where="pre", color=TRAFFIC, linewidth=1.3)
    beside.set_ylabel("RDMA traffic, Gbit/s", color=TRAFFIC)
    beside.set_ylim(0, 250)
    axes.set_xlim(0, SHOWN_S)
    axes.set_xlabel("seconds")
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=22)
    axes.text(0, 1.03, words(verdict), transform=axes.transAxes, fontsize=10, color=INK)
    axes.grid(color=GRID, linewidth=0.6)
    for frame in (axes, beside):
        for side in ("top", "left", "right"):
            frame.spines[side].set_visible(False)
        frame.tick_params(length=0)
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draw all of them."""
    mpl.rcParams.update({"svg.hashsalt": "overlap-exporter", "font.family": "DejaVu Sans", "svg.fonttype": "path",
                         "path.simplify": False, "figure.facecolor": "white"})
    HERE.mkdir(exist_ok=True)
    for name, title in PICTURES:
        draw(name, title)


if __name__ == "__main__":
    main()
