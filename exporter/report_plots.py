"""The plots of the offline report, as inline SVG: waveform with phases, scatter with quadrants, folded step, trend.

`report` places them. They are drawn in CSS classes, so that one style sheet gives both palettes; labels that are words come
in both languages. Pure functions of what `scope` and `trend` give; nothing here judges or reads anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from exporter.advice import Text
from exporter.wording import measured

Points = Iterable[tuple[float, float | None]]
_PHASES = {"o": "overlapped", "e": "exposed", "c": "compute", "s": "stall", "w": "wait", "i": "idle", "u": "unknown"}
_QUADRANTS = (
    ("exposed", 0, 1, Text("traffic only", "只有通信")), ("overlapped", 1, 1, Text("both", "同时进行")),
    ("compute", 1, 0, Text("compute only", "只有计算")), ("wait", 0, 0, Text("neither", "都没有")),
)  # fmt: skip
_LONGEST_GAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Box:
    """Where a plot lies within its picture, and the ranges of its axes."""

    width: float
    height: float
    left: float = 54.0
    right: float = 62.0
    top: float = 8.0
    bottom: float = 24.0
    x_from: float = 0.0
    x_to: float = 1.0

    def x(self, value: float) -> float:
        """Place of a value on the axis below."""
        share = (value - self.x_from) / max(self.x_to - self.x_from, 1e-12)
        return self.left + share * (self.width - self.left - self.right)

    def y(self, share: float) -> float:
        """Place of a share of the height, 0 at the bottom."""
        return self.top + (1 - share) * (self.height - self.top - self.bottom)


def both(text: Text) -> str:
    """A text in both languages, of which the style sheet shows one."""
    return f'<tspan lang="en">{escape(text.en)}</tspan><tspan lang="zh">{escape(text.zh)}</tspan>'


def picture(box: Box, label: Text, *parts: str) -> str:
    """A whole SVG. `label` is what it shows, for those who cannot see it."""
    return (
        f'<svg viewBox="0 0 {box.width:g} {box.height:g}" role="img" aria-label="{escape(label.en)}">'
        f"<title>{both(label)}</title>{''.join(parts)}</svg>"
    )


def round_up(value: float) -> float:
    """The next number whose quarters read well too: the top of an axis.

    >>> round_up(383.0), round_up(22.6e9), round_up(0.0)
    (400.0, 24000000000.0, 1.0)
    """
    if not value > 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    steps = (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    return next(step * power for step in steps if step * power >= value * 0.9999)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{text}</text>'


def _grid(box: Box, top_watts: float, top_rate: float | None, ticks: Sequence[tuple[float, str]]) -> str:
    parts: list[str] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = box.y(share)
        parts.append(f'<path class="grid" d="M{box.left:g} {y:.1f}H{box.width - box.right:g}"/>')
        parts.append(_text(box.left - 6, y + 4, f"{share * top_watts:.0f} W", "watts", "end"))
        if top_rate is not None:
            said = "0" if share == 0 else measured(share * top_rate, "bytes_per_second")
            parts.append(_text(box.width - box.right + 6, y + 4, said, "rates"))
    parts += [_text(box.x(at), box.height - 6, escape(said), "ticks", "middle") for at, said in ticks]
    return "".join(parts)


def _line(box: Box, points: Points, top: float, kind: str, filled: bool = False) -> str:
    """A line with gaps where nothing was read."""
    runs: list[list[tuple[float, float]]] = [[]]
    last = -math.inf
    for t, value in points:
        if value is None or (t - last > _LONGEST_GAP_S and runs[-1]):
            runs.append([])
        if value is not None:
            runs[-1].append((box.x(t), box.y(min(1.05, value / top))))
        last = t
    parts: list[str] = []
    for run in runs:
        if len(run) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
            if filled:
                bottom = f"{box.y(0):.1f}"
                parts.append(f'<path class="{kind} area" d="M{run[0][0]:.1f} {bottom}L{path}L{run[-1][0]:.1f} {bottom}Z"/>')
            parts.append(f'<path class="{kind}" d="M{path}"/>')
    return "".join(parts)


def _most(values: Iterable[float | None]) -> float:
    return max((v for v in values if v is not None), default=0.0)


def waveform_svg(scope: Mapping[str, Any], limit_watts: float | None, seconds: float) -> str:
    """Power and traffic of the last seconds of `scope_json`, phases in a band below."""
    end_s = scope["at_s"]
    box = Box(1120, 250, bottom=44, x_from=end_s - seconds, x_to=end_s)
    lag_s, readings = scope["picture"]["lag_s"], scope["picture"]["readings"]
    power = [(t - lag_s, w) for t, w in zip(scope["power"]["t_s"], scope["power"]["watts"], strict=True) if t > box.x_from]
    step_s, first_s = scope["traffic"]["step_s"], scope["traffic"]["t0_s"]
    paths = {
        path: [(first_s + (k + 0.5) * step_s, v) for k, v in enumerate(rates) if first_s + k * step_s >= box.x_from]
        for path, rates in scope["traffic"].items() if isinstance(rates, list)
    }  # fmt: skip
    top_watts = round_up(max(_most(w for _, w in power), limit_watts or 0.0))
    top_rate = round_up(max((_most(v for _, v in points) for points in paths.values()), default=0.0))
    every = next(s for s in (1, 2, 5, 10, 30, 60) if seconds / s <= 10)
    ticks = [(end_s - k * every, f"-{k * every} s" if k else "0 s") for k in range(int(seconds // every), -1, -1)]
    limit = ""
    if limit_watts:
        limit = f'<path class="limit" d="M{box.left:g} {box.y(limit_watts / top_watts):.1f}H{box.width - box.right:g}"/>'
    return picture(
        box, Text("power and traffic with phases", "功耗与流量及其阶段"),
        _grid(box, top_watts, top_rate if paths else None, ticks),
        *(_line(box, points, top_rate, path, filled=path != "nvlink") for path, points in paths.items()), limit,
        _line(box, power, top_watts, "power"), _band(box, readings["t_s"], readings["phases"]),
    )  # fmt: skip


def _band(box: Box, t_s: Sequence[float], letters: str) -> str:
    parts: list[str] = []
    for k, (t, letter) in enumerate(zip(t_s, letters, strict=True)):
        before = (t_s[k - 1] + t) / 2 if k and t - t_s[k - 1] < _LONGEST_GAP_S else t - 0.05
        after = (t_s[k + 1] + t) / 2 if k + 1 < len(t_s) and t_s[k + 1] - t < _LONGEST_GAP_S else t + 0.05
        begin, end = max(before, box.x_from), min(after, box.x_to)
        if end > begin:
            parts.append(f'<rect class="phase {_PHASES[letter]}" x="{box.x(begin):.1f}" y="{box.y(0) + 4:.1f}" '
                         f'width="{box.x(end) - box.x(begin) + 0.3:.1f}" height="12"/>')  # fmt: skip
    return "".join(parts)


def scatter_svg(drawn: Mapping[str, Any]) -> str | None:
    """A dot per reading of `picture_json`; None where power and traffic were never read together."""
    readings = drawn["readings"]
    rows = zip(readings["watts"], readings["bytes_per_s"], readings["phases"], strict=True)
    dots = [(w, b, letter) for w, b, letter in rows if w is not None and b is not None]
    if not dots:
        return None
    box = Box(360, 250, left=66, right=12, bottom=24, x_to=max(w for w, _, _ in dots) * 1.15)
    top = max(max(b for _, b, _ in dots) * 1.2, 1e6)
    parts = [f'<rect class="frame" x="{box.left:g}" y="{box.top:g}" width="{box.width - box.left - box.right:g}" '
             f'height="{box.height - box.top - box.bottom:g}"/>']  # fmt: skip
    parts += [_text(box.x(s * box.x_to), box.height - 6, f"{s * box.x_to:.0f} W", "watts", "middle") for s in (0.0, 0.5, 0.9)]
    for share in (0.0, 0.5, 1.0):
        said = "0" if share == 0 else measured(share * top, "bytes_per_second")
        parts.append(_text(box.left - 6, box.y(share) + 4 + 6 * (share == 1), said, "rates", "end"))
    for w, b, letter in dots:
        parts.append(f'<circle class="dot {_PHASES[letter]}" cx="{box.x(w):.1f}" cy="{box.y(b / top):.1f}" r="2.2"/>')
    middle_watts, middle_rate = drawn["middle_watts"], drawn["middle_bytes_per_s"]
    if middle_watts is not None:
        across = "" if middle_rate is None else f"M{box.left:g} {box.y(middle_rate / top):.1f}H{box.width - box.right:g}"
        parts.append(f'<path class="middle" d="M{box.x(middle_watts):.1f} {box.top:g}V{box.y(0):.1f}{across}"/>')
        for phase, right, up, name in _QUADRANTS:
            sends = [(w >= middle_watts, middle_rate is not None and b >= middle_rate) for w, b, _ in dots]
            share = sends.count((bool(right), bool(up))) / len(dots)
            x = box.width - box.right - 6 if right else box.left + 6
            parts.append(_text(x, box.top + 15 if up else box.y(0) - 7, f"{both(name)} {share:.0%}", f"corner {phase}",
                               "end" if right else "start"))  # fmt: skip
    return picture(box, Text("power against traffic", "功耗与流量"), *parts)


def fold_svg(fold: Mapping[str, Any]) -> str:
    """The mean waveform of one step."""
    period_s = fold["period_s"]
    box = Box(360, 250, x_to=period_s)
    paths = {path: fold[path] for path in ("rdma", "nvlink", "tcp") if any(fold.get(path) or ())}
    top_watts = round_up(_most(fold["watts"]))
    top_rate = round_up(max((_most(rates) for rates in paths.values()), default=0.0))
    unit, factor = ("ms", 1e3) if period_s < 2 else ("s", 1.0)
    ticks = [(share * period_s, f"{share * period_s * factor:.3g} {unit}") for share in (0.25, 0.5, 0.75)]
    known = {path: [(t, v) for t, v in zip(fold["phase_s"], values, strict=True) if v is not None]
             for path, values in {**paths, "power": fold["watts"]}.items()}  # fmt: skip
    return picture(
        box, Text("one step, mean of many", "一步的平均波形"), _grid(box, top_watts, top_rate, ticks),
        *(_line(box, known[path], top_rate, path, filled=path != "nvlink") for path in paths),
        _line(box, known["power"], top_watts, "power"),
    )  # fmt: skip


def trend_svg(trend: Mapping[str, Any]) -> str | None:
    """Health, exposed share and correlation over the trace, the state in a band below; None with fewer than two verdicts."""
    t_s = trend["t_s"]
    if len(t_s) < 2:
        return None
    box = Box(360, 250, left=34, right=10, bottom=38, x_from=max(0.0, t_s[0] - trend["every_s"]), x_to=t_s[-1])
    parts: list[str] = []
    for value in (-1.0, -0.5, 0.0, 0.5, 1.0):
        y = box.y((value + 1) / 2)
        parts.append(f'<path class="grid" d="M{box.left:g} {y:.1f}H{box.width - box.right:g}"/>')
        parts.append(_text(box.left - 5, y + 4, f"{value:g}", "ticks", "end"))
    for k, state in enumerate(trend["state"]):
        x = box.x(max(box.x_from, t_s[k] - trend["every_s"]))
        wide = box.x(t_s[k]) - x + 0.3
        parts.append(f'<rect class="state {state}" x="{x:.1f}" y="{box.y(0) + 3:.1f}" width="{wide:.1f}" height="7"/>')
    for name in ("correlation", "exposed", "health"):
        run: list[str] = []
        last = -math.inf
        for t, value in zip(t_s, trend[name], strict=True):
            if value is not None:
                goes_on = bool(run) and t - last < 3 * trend["every_s"]
                run.append(f"{'L' if goes_on else 'M'}{box.x(t):.1f} {box.y((value + 1) / 2):.1f}")
                last = t
        if len(run) > 1:
            parts.append(f'<path class="{name}" d="{"".join(run)}"/>')
    span = box.x_to - box.x_from
    parts += [_text(box.x(box.x_from + s * span), box.height - 6, f"{box.x_from + s * span:.0f} s", "ticks", a)
              for s, a in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))]  # fmt: skip
    label = Text("health, exposed share and correlation over time", "健康度、暴露占比与相关系数随时间的变化")
    return picture(box, label, *parts)
