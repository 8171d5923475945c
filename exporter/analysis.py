"""Analysis: the readings of a node in, a verdict per GPU and window out; keeps what must be remembered between them.

Called by the session at every whole second of its own clock, and for any instant that a user names. All GPUs are
evaluated as one array. The only state are the memories, and only `step` moves them: a trace replayed gives the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from exporter.memories import SELF_TEST_S, GpuMemory
from exporter.model import PHASES, Device, Inventory, OverlapAnalysis, SensorRefresh, Series
from exporter.readings import Counter, Readings, floor_of, gather, known_refresh
from exporter.resolution import SLOW_S, held_to_sensors, resolution_of
from exporter.rhythm import period_of
from exporter.shares import IDLE_RUN_S, MIN_COVERAGE, Shares, idle_seconds, shares_of
from exporter.signals import rates, sensor
from exporter.signals.observability import survival
from exporter.verdict import shared_devices, verdict

Array = NDArray[np.float64]

SLOW_WINDOW_S = 300.0  # windows from here on are evaluated every fifth second
SLOW_EVERY_S = 5
BOOKED_BACK_S = 16  # a second is booked when it is known whether it belongs to an idle run of 15 s
_LEAD_S = IDLE_RUN_S + 2.5  # before the window: the begin of an idle run, and the lag of the sensor
_MOST_SCALED = 4.0  # where single readings count next to nothing, there is nothing to scale
_CATCH_UP_S = 120  # after a longer silence the seconds between are unknown
_BYTES_TEST_S, _VOLLEYS_S = 15.0, 60.0  # volleys are rare
_LEARN_EVERY_S = 4
_SETTLED_TURNS = 3  # of these, from one look at a step period that stays the same to the next
_STALE = 0.05  # of the polls before a refresh: the counter is about as slow as the polls


class Analyzer:
    """Judges all GPUs of a node. Not thread-safe: one owner."""

    def __init__(self, windows_s: Iterable[float] = (15.0, 60.0, 300.0), verdict_window_s: float = 60.0) -> None:
        self._windows_s = tuple(windows_s)
        self._verdict_window_s = verdict_window_s
        self._memories: dict[str, GpuMemory] = {}
        self._identities: dict[str, tuple[str, str | None]] = {}
        self._counters: dict[str, Counter] = {}
        self._last: dict[tuple[str, float], OverlapAnalysis] = {}
        self._booked_s: int | None = None
        self._inventory = Inventory("", 0.0)

    def step(self, series: Series, inventory: Inventory, t_s: float) -> tuple[OverlapAnalysis, ...]:
        """The whole-second evaluation: memories move on; one analysis per GPU and window, windows in their order.

        Windows of 300 s and more are evaluated each fifth second; in between the last answer stands.
        """
        self._meet(inventory, t_s)
        self._learn(series, inventory, t_s)
        second = round(t_s)
        gpus = inventory.of_kind("gpu")
        due = [
            w
            for w in self._windows_s
            if w < SLOW_WINDOW_S or second % SLOW_EVERY_S == 0 or any((gpu.id, w) not in self._last for gpu in gpus)
        ]
        verdict_s = self._verdict_window_s
        readings, idle_s = self._read(series, inventory, t_s, max([*due, verdict_s]))
        shares = {w: self._shares(readings, idle_s, t_s, w) for w in dict.fromkeys((*due, verdict_s))}
        shared = shared_devices(inventory)
        steps_s = self._learn_periods(series, shared, readings, shares[verdict_s], t_s)
        verdicts = {w: self._verdicts(readings, shares[w], inventory, shared, t_s, w, steps_s) for w in shares}
        for window_s in due:
            self._last.update(((a.gpu_id, window_s), a) for a in verdicts[window_s])
        self._book(readings, idle_s, shares[verdict_s], [a.state for a in verdicts[verdict_s]], second)
        shortest_s = min(shares)
        self._remember(readings, idle_s, shares[shortest_s], t_s, shortest_s)
        return tuple(self._last[gpu.id, w] for gpu in gpus for w in self._windows_s)

    def evaluate(
        self, series: Series, inventory: Inventory, t_s: float, windows_s: Iterable[float]
    ) -> tuple[OverlapAnalysis, ...]:
        """A named instant, any windows, all fields; uses the memories and changes nothing."""
        windows_s, verdict_s = tuple(windows_s), self._verdict_window_s
        readings, idle_s = self._read(series, inventory, t_s, max(*windows_s, verdict_s))
        shares = {w: self._shares(readings, idle_s, t_s, w) for w in (*windows_s, verdict_s)}
        shared = shared_devices(inventory)
        steps_s = [
            self._step_period(series, shared, readings, shares[verdict_s], t_s, g) for g in range(len(readings.gpus))
        ]
        per_window = [self._verdicts(readings, shares[w], inventory, shared, t_s, w, steps_s) for w in windows_s]
        return tuple(a for of_gpu in zip(*per_window, strict=True) for a in of_gpu)

    @property
    def phases(self) -> Mapping[str, Mapping[str, float]]:
        """GPU id -> seconds per phase, of the GPUs that are there."""
        return {gpu_id: dict(memory.phases) for gpu_id, memory in self._memories.items()}

    @property
    def refresh(self) -> tuple[SensorRefresh, ...]:
        """How often the sensors of power and the counters of bytes really take a new value, as far as seen."""
        kinds = {d.id: d.kind for d in self._inventory.devices}
        power = [
            SensorRefresh("gpu", gpu.id, "power", memory.refresh_s, memory.believed(gpu).window_s)
            for gpu in self._inventory.of_kind("gpu")
            if (memory := self._memories.get(gpu.id)) is not None and memory.refresh_s > 0
        ]
        seen = {d: c.refresh_s for d, c in self._counters.items() if c.refresh_s > 0}
        return (*power, *(SensorRefresh(kinds.get(d, "gpu"), d, "bytes", s) for d, s in seen.items()))

    def _meet(self, inventory: Inventory, t_s: float) -> None:
        """Memories for the GPUs that are there; a new board, power source or job starts anew."""
        self._inventory = inventory
        gpus = inventory.of_kind("gpu")
        for gpu in gpus:
            identity = (gpu.uuid_or_id, gpu.power_source)
            if self._identities.get(gpu.id) != identity:
                before = self._memories.get(gpu.id)
                self._memories[gpu.id] = GpuMemory()
                if before is not None and self._identities[gpu.id][0] == identity[0]:
                    self._memories[gpu.id].phases = before.phases  # the same board: its time goes on
                self._identities[gpu.id] = identity
            self._memories[gpu.id].meet_job(inventory.jobs.get(gpu.id), t_s)
        here = {gpu.id for gpu in gpus}
        for gone in self._memories.keys() - here:
            del self._memories[gone], self._identities[gone]
        self._last = {key: a for key, a in self._last.items() if key[0] in here}
        linked = {link.device_id for link in inventory.links}
        self._counters = {d: c for d, c in self._counters.items() if d in linked}

    def _learn(self, series: Series, inventory: Inventory, t_s: float) -> None:
        """What the latest readings tell of the sensors; each of them is asked in turn."""
        turn = round(t_s) % _LEARN_EVERY_S
        for gpu in inventory.of_kind("gpu")[turn::_LEARN_EVERY_S]:
            t, power = series.series(f"{gpu.id}/power_watts", t_s - SELF_TEST_S, t_s)
            self._memories[gpu.id].learn_sensor(t, power, gpu.power_refresh_s)
        devices = {d.id: d for d in inventory.devices}
        linked = list(dict.fromkeys((link.device_id, link.path) for link in inventory.links))
        for device_id, path in linked[turn::_LEARN_EVERY_S]:
            key = "nvlink_receive_bytes_total" if path == "nvlink" else "receive_bytes_total"
            t, total = series.series(f"{device_id}/{key}", t_s - _VOLLEYS_S, t_s)
            known = ~np.isnan(total)
            t, total = t[known], total[known]
            interval_s, told_s = rates.poll_interval(t), known_refresh(devices.get(device_id))
            before = self._counters.get(device_id) or Counter(told_s)
            close_s = sensor.volley_refresh(t, total, interval_s) if math.isnan(told_s) else math.nan
            if math.isnan(close_s) and math.isnan(told_s):
                close_s = before.close_s
            late = int(np.searchsorted(t, t_s - _BYTES_TEST_S, side="right"))
            t, total = t[late:], total[late:]
            refresh_s = sensor.counter_refresh(t, total, interval_s) if math.isnan(close_s) else close_s
            polls = rates.thin(t, interval_s)
            stale = sensor.stale_share(t[polls], total[polls], floor_of(devices.get(device_id), path))
            self._counters[device_id] = Counter(
                before.refresh_s if math.isnan(refresh_s) else refresh_s,
                before.stale if math.isnan(stale) else stale >= _STALE,
                close_s,
            )

    def _learn_periods(
        self, series: Series, shared: Mapping[str, str], readings: Readings, shares: Shares, t_s: float
    ) -> list[float | None]:
        """The step period of each GPU: looked for in turn, less often once it is settled, and at once where none is known."""
        for g, gpu in enumerate(readings.gpus):
            memory = self._memories[gpu.id]
            its_turn = (round(t_s) - g) % (_LEARN_EVERY_S * (_SETTLED_TURNS if memory.settled else 1)) == 0
            covered = shares.covered_s[g] >= MIN_COVERAGE * self._verdict_window_s
            if covered and (its_turn or not memory.looked(t_s - _SETTLED_TURNS * _LEARN_EVERY_S, t_s)):
                memory.periods.append((t_s, self._period(series, shared, readings, shares, g)))
        return [self._memories[gpu.id].period(t_s) for gpu in readings.gpus]

    def _step_period(
        self, series: Series, shared: Mapping[str, str], readings: Readings, shares: Shares, t_s: float, g: int
    ) -> float | None:
        """The step period of GPU number g at a named instant: what is remembered, if that is not old."""
        memory = self._memories.get(readings.gpus[g].id, GpuMemory())
        if memory.looked(t_s - _SETTLED_TURNS * _LEARN_EVERY_S, t_s):
            return memory.period(t_s)
        step_s = self._period(series, shared, readings, shares, g)
        return None if math.isnan(step_s) else step_s

    def _period(self, series: Series, shared: Mapping[str, str], readings: Readings, shares: Shares, g: int) -> float:
        """The step period that GPU number g shows in the verdict window, seconds; NaN without.

        While the window fills, what repeats may be a part of a step that has not been seen three times yet.
        """
        if not shares.covered_s[g] >= MIN_COVERAGE * self._verdict_window_s:
            return math.nan
        gpu_id = readings.gpus[g].id
        return period_of(series, readings, shares, g, gpu_id in shared, self._memories.get(gpu_id, GpuMemory()))

    def _read(self, series: Series, inventory: Inventory, t_s: float, window_s: float) -> tuple[Readings, Array]:
        unknown = GpuMemory()
        sensors = {gpu.id: self._memories.get(gpu.id, unknown).believed(gpu) for gpu in inventory.of_kind("gpu")}
        readings = gather(series, inventory, t_s - window_s - _LEAD_S, t_s, sensors, self._counters)
        return readings, idle_seconds(readings, _limits(readings.gpus))

    def _shares(self, readings: Readings, idle_s: Array, t_s: float, window_s: float) -> Shares:
        memories = [self._memories.get(gpu.id, GpuMemory()) for gpu in readings.gpus]
        remembered = np.array([m.level.at(t_s) for m in memories])
        seen = np.fmax(remembered, [m.board_watts for m in memories])
        return shares_of(readings, idle_s, remembered, seen, _limits(readings.gpus), t_s, window_s)

    def _verdicts(
        self, readings: Readings, shares: Shares, inventory: Inventory, shared: Mapping[str, str], t_s: float,
        window_s: float, steps_s: Sequence[float | None],
    ) -> list[OverlapAnalysis]:  # fmt: skip
        """The verdicts on a window; steps_s [g]: the step periods at its end."""
        out = []
        for g, gpu in enumerate(readings.gpus):
            sensor, step_s = readings.sensors[g], steps_s[g]
            bytes_s, poll_s = float(readings.fine_length_s[g]), float(readings.step_s[g])
            left, slowest = 1.0, None
            if bytes_s >= SLOW_S:
                left, slowest = survival(shares.power[g], poll_s, poll_s, bytes_s), self._slowest(inventory, gpu.id)
            elif sensor.window_s >= SLOW_S:
                left = survival(shares.flow[g], float(readings.fine_step_s[g]), bytes_s, sensor.window_s)
            a = verdict(gpu, g, shares, sensor, readings.silent[g], gpu.id in shared, t_s, window_s, step_s,
                        resolution_of(sensor, bytes_s))  # fmt: skip
            out.append(held_to_sensors(a, sensor, bytes_s, step_s, left, slowest))
        return out

    def _slowest(self, inventory: Inventory, gpu_id: str) -> Device | None:
        """The linked device whose byte counter takes new values most rarely."""
        linked = {link.device_id for link in inventory.links if link.gpu_id == gpu_id}
        found = (device for device in inventory.devices if device.id in linked)
        return max(found, key=lambda d: self._counters.get(d.id, Counter()).refresh_s or 0.0, default=None)

    def _remember(self, readings: Readings, idle_s: Array, shares: Shares, t_s: float, window_s: float) -> None:
        """The compute level of the job, forgotten when the GPU has been idle for 15 s; that of the board, kept."""
        for g, gpu in enumerate(readings.gpus):
            memory = self._memories[gpu.id]
            if idle_s.shape[-1] and idle_s[g, -1] >= IDLE_RUN_S:
                memory.forget_job()
            elif shares.covered_s[g] >= 5.0:
                memory.learn_level(t_s, window_s, float(shares.compute_watts[g]))

    def _book(self, readings: Readings, idle_s: Array, shares: Shares, states: list[str], second: int) -> None:
        """Add the seconds that lie 16 s back to the phases; seconds that nobody looked at are unknown."""
        first = second if self._booked_s is None else self._booked_s + 1
        self._booked_s = max(second, self._booked_s or second)
        begin = max(first, second - _CATCH_UP_S)
        for g, gpu in enumerate(readings.gpus):
            phases = self._memories[gpu.id].phases
            phases["unknown"] += begin - first
            idle_of_shares_s = idle_s[g, idle_s.shape[-1] - shares.t.shape[-1] :]
            for at in range(begin, second + 1):
                for phase, seconds in phase_shares(shares, g, states[g], idle_of_shares_s, at - BOOKED_BACK_S).items():
                    phases[phase] += seconds


def phase_shares(shares: Shares, g: int, state: str, idle_s: Array, end_s: float) -> dict[str, float]:
    """The second before end_s by phase, with the levels of the window; sums to 1.

    Soft shares: min(D, tau) is exposed, the rest of tau overlapped, the rest of D stall or wait as the window splits them,
    what is left compute. Scaled so that the seconds of a window add up to its verdict: rhythms that readings blur lose in
    min(D, tau) what their verdict has.
    """
    out = dict.fromkeys(PHASES, 0.0)
    t = shares.t[g]
    with np.errstate(invalid="ignore"):
        second = (t > end_s - 1.0) & (t <= end_s) & ~np.isnan(shares.power[g])
    if not second.any() or state == "no_data":
        return {"unknown": 1.0}
    idle = second & (idle_s >= IDLE_RUN_S)
    out["idle"] = np.count_nonzero(idle) / np.count_nonzero(second)
    rest = second & ~idle
    if state == "unobservable" or not rest.any():
        out["unknown"] = 1.0 - out["idle"]
        return out
    tau = np.where(shares.communicates[g], shares.tau[g, rest], 0.0)
    lack = shares.lack[g, rest]
    known = ~(np.isnan(tau) | np.isnan(lack))
    if not known.any():
        out["unknown"] = 1.0 - out["idle"]
        return out
    tau, lack = tau[known], lack[known]
    x, c = float(shares.exposed[g]), float(shares.communication[g])
    present = float(tau.mean())
    moving = min(1.0, present * _scale(c, float(shares.raw_tau[g])))
    exposed = float(np.minimum(lack, tau).mean()) * _scale(x, float(shares.raw_exposed[g]))
    exposed = min(exposed, max(present, moving))
    left = max(0.0, float(lack.mean()) - exposed)
    overlapped = max(0.0, min(moving, 1.0 - left) - exposed)
    stall, wait = float(shares.stall[g]), float(shares.wait[g])
    stalled = left * stall / (stall + wait) if stall > 0 else 0.0
    for phase, share in (
        ("exposed", exposed), ("overlapped", overlapped), ("stall", stalled), ("wait", left - stalled),
        ("compute", 1.0 - exposed - overlapped - left),
    ):  # fmt: skip
        out[phase] = max(0.0, share) * (1.0 - out["idle"])
    return out


def _scale(told: float, counted: float) -> float:
    """By how much what readings count one by one is off from what the whole window tells."""
    return min(_MOST_SCALED, max(0.0, told / counted)) if counted > 0 else 0.0


def _limits(gpus: tuple[Device, ...]) -> Array:
    return np.array([math.nan if gpu.power_limit_watts is None else gpu.power_limit_watts for gpu in gpus])
