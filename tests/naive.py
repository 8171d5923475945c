"""Slow, obvious twins of the numerical functions: loops and plain Python, one reading at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

Numbers = Sequence[float]


def known(x: Numbers) -> list[float]:
    return [float(v) for v in x if not math.isnan(v)]


def mean(x: Numbers) -> float:
    values = known(x)
    return sum(values) / len(values) if values else math.nan


def quantile(x: Numbers, share: float) -> float:
    values = sorted(known(x))
    if not values:
        return math.nan
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def clip(v: float, low: float = 0.0, high: float = 1.0) -> float:
    return v if math.isnan(v) else min(high, max(low, v))


def poll_interval(t: Numbers) -> float:
    """The gap that covers the middle of the time once all gaps are laid out by length."""
    gaps = sorted(b - a for a, b in pairwise(t))
    half, covered = sum(gaps) / 2, 0.0
    for gap in gaps:
        covered += gap
        if covered >= half - 1e-12:
            return gap
    return math.nan


def flow(t: Numbers, sent: Numbers, received: Numbers, longest_gap_s: float) -> tuple[list[float], list[float]]:
    n = len(t) - 1
    good = [sent[i + 1] >= sent[i] and received[i + 1] >= received[i] and t[i + 1] - t[i] <= longest_gap_s for i in range(n)]
    tx = [sent[i + 1] - sent[i] if good[i] else 0.0 for i in range(n)]
    rx = [received[i + 1] - received[i] if good[i] else 0.0 for i in range(n)]
    reach = max(1, round(n / (t[-1] - t[0])))
    done, unknown = [0.0], [0.0]
    for i in range(n):
        near = range(max(0, i - reach), min(n, i + reach + 1))
        a, b = sum(tx[j] for j in near), sum(rx[j] for j in near)
        weight = clip((min(a, b) / max(a, b) - 0.5) / 0.2) if max(a, b) > 0 else 0.0
        small, large = min(tx[i], rx[i]), max(tx[i], rx[i])
        one_way = max(0.0, small - 0.02 * large)
        done.append(done[-1] + one_way + weight * (large - one_way))
        unknown.append(unknown[-1] + (0.0 if good[i] else t[i + 1] - t[i]))
    return done, unknown


def rate_between(t: Numbers, done: Numbers, unknown: Numbers, start_s: float, end_s: float) -> float:
    """Bytes of each part of each poll that lies inside, over the length."""
    if start_s < t[0] or end_s > t[-1]:
        return math.nan
    total = lost = 0.0
    for i in range(len(t) - 1):
        inside = max(0.0, min(end_s, t[i + 1]) - max(start_s, t[i])) / (t[i + 1] - t[i])
        total += inside * (done[i + 1] - done[i])
        lost += inside * (unknown[i + 1] - unknown[i])
    return math.nan if lost > 1e-6 else total / (end_s - start_s)


def boxcar_mean(x: Numbers, reach: int) -> list[float]:
    return [math.nan if math.isnan(x[i]) else mean(x[max(0, i - reach) : i + reach + 1]) for i in range(len(x))]


def traffic_levels(x: Numbers) -> tuple[float, float]:
    top, high = quantile(x, 1.0), quantile(x, 0.95)
    low = min(quantile(x, 0.05), 3 * quantile(x, 0.01))
    if high < 0.3 * top:
        high = 0.6 * top
    return (low if low < 0.5 * high else 0.0), high


def soft_presence(scaled: float) -> float:
    return clip((scaled - 0.06) / 0.64)


def power_levels(power: Numbers, on: Sequence[bool], remembered: float) -> tuple[float, float]:
    high = quantile(power, 0.95)
    if not math.isnan(remembered):
        high = max(high, 0.9 * remembered)
    beside = quantile([p for p, flag in zip(power, on, strict=True) if flag], 0.10)
    return (0.4 * high if math.isnan(beside) else min(0.4 * high, beside)), high


def deficit(power: float, low: float, high: float) -> float:
    return clip(((high - power) / (high - low) - 0.3) / 0.4)


def run_seconds(t: Numbers, on: Sequence[bool], step_s: float) -> list[float]:
    out = []
    for i, flag in enumerate(on):
        if not flag:
            out.append(0.0)
            continue
        first = last = i
        while first > 0 and on[first - 1]:
            first -= 1
        while last < len(on) - 1 and on[last + 1]:
            last += 1
        out.append(t[last] - t[first] + step_s)
    return out


def exposed(lack: Numbers, tau: Numbers) -> float:
    return mean([math.nan if math.isnan(a + b) else min(a, b) for a, b in zip(lack, tau, strict=True)])


def exposed_low(lack: Numbers, tau: Numbers) -> float:
    return mean([math.nan if math.isnan(a + b) else max(0.0, a + b - 1) for a, b in zip(lack, tau, strict=True)])


def communication(scaled: Numbers, tau: Numbers, step_s: float, length_s: float) -> float:
    """Time in runs of traffic, each shortened by what an interval adds at its two ends; not above mean presence."""
    if not known(tau):
        return math.nan
    seconds, inside = 0.0, False
    for v in scaled:
        on = not math.isnan(v) and v > 0.1
        if on:
            seconds += step_s
            if not inside:
                seconds -= 0.8 * length_s
        inside = on
    return clip(min(mean(tau), seconds / (len(known(tau)) * step_s)))


def pearson(a: Numbers, b: Numbers) -> float:
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if not math.isnan(x + y)]
    if not pairs:
        return math.nan
    ma, mb = (sum(p[k] for p in pairs) / len(pairs) for k in (0, 1))
    va = sum((x - ma) ** 2 for x, _ in pairs) / len(pairs)
    vb = sum((y - mb) ** 2 for _, y in pairs) / len(pairs)
    if ma <= 0 or mb <= 0 or math.sqrt(va) < 0.05 * ma or math.sqrt(vb) < 0.1 * mb:
        return math.nan
    return sum((x - ma) * (y - mb) for x, y in pairs) / len(pairs) / math.sqrt(va * vb)


def fresh(t: Numbers, power: Numbers, refresh_s: float) -> list[int]:
    kept: list[int] = []
    since, last, turns = 0.0, math.nan, 0
    still = 1.0 if returning(power) > 0.5 else 2.5
    for i, p in enumerate(power):
        if math.isnan(p):
            continue
        if not kept or p != last:
            kept.append(i)
            since, last, turns = t[i], p, 0
            continue
        now = math.floor((t[i] - since) / refresh_s + 1e-9)
        if now > turns and t[i] - since >= still * refresh_s - 1e-9:
            kept.append(i)
        turns = now
    return kept


def changes(t: Numbers, total: Numbers, refresh_s: float) -> list[int]:
    kept, moved_at = [], 0
    for i in range(len(t)):
        moved = i == 0 or total[i] != total[i - 1]
        long = t[i] - t[moved_at] > 1.5 * refresh_s - 1e-9
        if moved and i and long:
            polls = range(moved_at, i + 1)
            kept.append(min(polls, key=lambda k: (abs(t[k] - (t[i] - refresh_s)), -k)))
        if moved or (i == len(t) - 1 and long):
            kept.append(i)
        if moved:
            moved_at = i
    return sorted(set(kept))


def stretches_of(value: Numbers) -> list[list[float]]:
    out: list[list[float]] = []
    for v in known(value):
        if out and out[-1][-1] == v:
            out[-1].append(v)
        else:
            out.append([v])
    return out


def returning(value: Numbers) -> float:
    stretches = stretches_of(value)
    repeats, at_levels = 0, 0
    for s in stretches:
        alike = sum(1 for other in stretches if other[0] == s[0])
        repeats += len(s) - 1
        if alike >= 2 and alike >= 0.1 * len(stretches):
            at_levels += len(s) - 1
    return at_levels / repeats if repeats else math.nan


def measured_refresh(t: Numbers, value: Numbers) -> float:
    at = [t[i] for i in range(1, len(t)) if value[i] != value[i - 1]]
    gaps = [b - a for a, b in pairwise(at)]
    if len(gaps) < 10:
        return math.nan
    repeats = len(value) - len(stretches_of(value))
    if repeats > 0.25 * (len(value) - 1) and returning(value) > 0.5:
        return math.nan
    middle = quantile(gaps, 0.5)
    return mean([g for g in gaps if g <= 2.5 * middle])


def autocorrelation(x: Numbers, there: Sequence[bool], width: int, lag: int) -> float:
    """Of readings behind a boxcar: mean product of the deviations `lag` apart, over as many pairs as the readings have."""
    middle = mean([v for v, known_here in zip(x, there, strict=True) if known_here])
    deviation = [v - middle if known_here else 0.0 for v, known_here in zip(x, there, strict=True)]
    smooth = [sum(deviation[max(0, i - width + 1) : i + 1]) / width for i in range(len(x) + width - 1)]
    pairs = sum(1 for i in range(len(x) - lag) if there[i] and there[i + lag])
    return sum(smooth[i] * smooth[i + lag] for i in range(len(smooth) - lag)) / max(pairs, 1)


def dispersion(p: Numbers) -> float:
    """Variance over that of a coin with the same mean; 0 where it is (nearly) always on or off."""
    values = known(p)
    m = mean(values) if values else 0.0
    if m * (1 - m) <= 1e-4:
        return 0.0
    return sum((v - m) ** 2 for v in values) / len(values) / (m * (1 - m))


def scaled_to(flow: Numbers, share: float) -> list[float]:
    """Bisection on the factor: linear in bytes, at most 1, mean `share`."""
    values = [max(0.0, v) for v in known(flow)]
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mean([min(1.0, v * middle) for v in values]) < share else (low, middle)
    return [math.nan if math.isnan(v) else min(1.0, max(0.0, v) * high) for v in flow]


def burst_polls(f: Numbers, step_s: float, length_s: float) -> tuple[float, float, float]:
    on = [not math.isnan(v) and v > 0.1 for v in f]
    runs = max(1, sum(on[i] and (i == 0 or not on[i - 1]) for i in range(len(on))))
    steps = max(0.0, sum(on) - 0.8 * runs * length_s / step_s)
    count = max(1, len(known(f)))
    return steps / runs * step_s / length_s, steps / count, sum(on) / count


def kernel_gap(busy: float, active: float, compute: float) -> float:
    """The B - C for which activity is that of compute in C and of spinning in the rest."""
    if math.isnan(busy + active):
        return math.nan
    return min(busy, max(0.0, (compute * busy - active) / (compute - 0.14)))


def together(lack: Numbers, tau: Numbers) -> float:
    def three(x: Numbers) -> list[float]:
        return boxcar_mean(x, 1)

    single = mean([math.nan if math.isnan(a + b) else min(a, b) for a, b in zip(lack, tau, strict=True)])
    smooth = mean([math.nan if math.isnan(a + b) else min(a, b) for a, b in zip(three(lack), three(tau), strict=True)])
    return (single + smooth) / 2 / mean(tau)


def steadiness(f: Numbers) -> float:
    """1 where polls whose neighbours hold traffic as well differ by at most a tenth, 0 from three tenths on."""
    on = [v > 0.1 for v in f]
    inside = [v for i, v in enumerate(f) if on[i] and on[max(i - 1, 0)] and on[min(i + 1, len(f) - 1)]]
    if len(inside) < 5:
        return 1.0
    m = mean(inside)
    spread = math.sqrt(sum((v - m) ** 2 for v in inside) / len(inside)) / m
    return 1 - clip((spread - 0.1) / 0.2)


def busy_deficit(power: float, low: float, high: float, idle: float, still: float) -> float:
    """Power of the time with a kernel alone, placed between a lone transfer and compute, less the dead zone."""
    if math.isnan(power):
        return math.nan
    missing = (high - (power + still * max(0.0, high - idle))) / (high - low)
    return min(1.0, clip((missing - 0.05) / 0.9) / max(0.05, 1 - still))


def tellable(still: float, stall: float) -> float:
    """A reading's time without a kernel: all of it up to a stall of .2, none of it from .5 on."""
    return still * clip((0.5 - stall) / 0.3)


def held_to_duty(x: float, smeared: float, c: float) -> tuple[float, float]:
    """A quarter of the way from the exposed share of traffic to the exposed time, both as shares of time; their distance."""
    by_share = x / smeared * min(c, smeared)
    by_time = min(x, c)
    return 0.75 * by_share + 0.25 * by_time, (by_time - by_share) / c


def room(power: Numbers, high: float, limit: float) -> float:
    """The share x for which compute at the highest level and a transfer at .55 of it have the mean of power."""
    top = max(high, 0.97 * limit)
    return clip((top - mean(power)) / (top - 0.55 * top))


def mean_watts(t: Numbers, joules: Numbers) -> list[tuple[float, float]]:
    """Middle and mean power of each stretch from one new value of an energy counter to the next, where it grew."""
    values: list[tuple[float, float]] = []
    for at, value in zip(t, joules, strict=True):
        if not math.isnan(value) and (not values or value != values[-1][1]):
            values.append((at, value))
    return [((a + b) / 2, (w - v) / (b - a)) for (a, v), (b, w) in pairwise(values) if w > v]
