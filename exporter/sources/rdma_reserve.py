"""Byte counters that may stop without an error, watched by lesser ones of the same port that go on.

bnxt_re asks its firmware for the better counters; once that failed, the driver repeats the last answer for ever and says
nothing (drivers/infiniband/hw/bnxt_re/hw_counters.c), while those that the device writes into memory go on. `rdma.py` makes
the lane; when it has seen that, devices are looked for anew and the lesser counters carry on from where the better stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence

from exporter.sources import REDISCOVER, LaneError, Plan
from exporter.sources.files import Channels, FileLane, Total

LOOK_S = 1.0  # the reserve takes a new value each second
PATIENCE_S = 5.0  # the better counters have given the same values for so long
LEAST_BYTES = 1 << 20  # that the reserve counted meanwhile: more than the packets that it alone counts


class Frozen:
    """The ports whose better counters have stopped, and how far they had counted. A device that was probed again is another."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, int], dict[str, float]] = {}

    def add(self, root: str, port_id: str, values: Mapping[str, float]) -> None:
        """The counters of a port have stopped at these values (channel -> bytes)."""
        self._ports[self._key(root, port_id)] = dict(values)

    def begin(self, root: str, port_id: str) -> Mapping[str, float]:
        """What the reserve of a port goes on from; empty for ports whose counters are well."""
        return self._ports.get(self._key(root, port_id), {})

    def here(self, root: str, port_ids: Collection[str]) -> list[str]:
        """Those of the ports that have stopped."""
        return [port_id for port_id in port_ids if self._key(root, port_id) in self._ports]

    @staticmethod
    def _key(root: str, port_id: str) -> tuple[str, int]:
        device, _, number = port_id.rpartition("/")
        path = f"{root}/class/infiniband/{device}/ports/{number}"
        try:
            return path, os.stat(path).st_ino  # noqa: PTH116
        except OSError:
            return path, 0


class WatchedLane(FileLane):
    """A lane of byte counters that also looks at their reserves, once a second."""

    def __init__(
        self, name: str, interval_s: float, device_kind: str, device_id: str, channels: Channels, *, errors: dict[str, int],
        plan: Plan, reserves: Mapping[str, Total], on_frozen: Callable[[str, Mapping[str, float]], None],
    ) -> None:
        super().__init__(name, interval_s, device_kind, device_id, channels, errors=errors, plan=plan)
        self._reserves = dict(reserves)
        self._on_frozen = on_frozen
        self._each = max(1, round(LOOK_S * plan.reads_per_s))
        self._patience = round(PATIENCE_S * plan.reads_per_s / self._each)
        self._reads = 0
        self._before: Sequence[float] | None = None
        self._still = 0  # looks that found the better counters as they were
        self._counted: dict[str, float] = {}  # the reserves when they were last found to move

    def read(self) -> Sequence[float]:
        """One value per channel, as FileLane; LaneError("frozen") where the reserves prove that these have stopped."""
        values = super().read()
        self._reads += 1
        if self._reads % self._each == 0:
            self._look(values)
        return values

    def _look(self, values: Sequence[float]) -> None:
        counted = {channel: total.read() for channel, total in self._reserves.items()}
        moved, self._before = values != self._before, values
        if moved or any(value != value for value in values):
            self._still, self._counted = 0, counted
            return
        self._still += 1
        unseen = sum(max(0.0, counted[c] - self._counted.get(c, counted[c])) for c in counted if counted[c] == counted[c])
        if self._still < self._patience or unseen < LEAST_BYTES:
            return
        self._errors["not_available"] += 1
        told = dict(zip(self.source.channels, values, strict=True))
        for port_id in {channel.rpartition("/")[0] for channel in self._reserves}:
            self._on_frozen(port_id, {c: v for c, v in told.items() if c.startswith(f"{port_id}/")})
        raise LaneError("frozen", REDISCOVER)

    def close(self) -> None:
        """Give every descriptor back."""
        super().close()
        for total in self._reserves.values():
            for attribute in total.attributes:
                attribute.close()
