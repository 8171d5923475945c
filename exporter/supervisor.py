"""The exporter's side of its readers: starts them, listens to them, replaces them.

`app.py` calls `poll` in its main loop; the supervisor has no thread of its own and never waits for a device. What a
reader's life looks like stands in `supervisor_reader.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from exporter.clock import Clock
from exporter.model import Event
from exporter.supervisor_patience import LONGEST_PAUSE_S
from exporter.supervisor_reader import HANG_S, Reader, ReaderSpec
from exporter.wire import Decoder

__all__ = ["ReaderSpec", "Supervisor"]

_BLIND_S = 1.0  # a main loop held up for longer than this says nothing about the readers' silence
_STOP_POLL_S = 0.02


class Supervisor:
    """Keeps the readers alive. To be used from the main thread, which must live as long as they."""

    def __init__(
        self, specs: Iterable[ReaderSpec], clock: Clock, *, started_mono_s: float, host: str = "", started_unix_s: float = 0.0,
        hang_s: float = HANG_S, longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self._clock = clock
        self._ticked_s: float | None = None
        self._watched_since_s = 0.0

        def new_decoder() -> Decoder:
            return Decoder(started_mono_s, host, started_unix_s)

        self._readers = {
            spec.name: Reader(spec, new_decoder, started_mono_s, hang_s, longest_pause_s) for spec in specs
        }

    def start(self) -> None:
        """Start all readers."""
        self.tick()

    def poll(self, timeout_s: float) -> list[tuple[str, Event]]:
        """Wait so long, then do what `tick` does. At least four times a second.

        Frames wait in their pipes meanwhile: to wake up for each of them costs several times what reading them does.
        """
        self._clock.sleep_until(self._clock.mono_s() + timeout_s)
        return self.tick()

    def tick(self) -> list[tuple[str, Event]]:
        """Take what has come and do what is due; (name of the reader, event), in the order in which they came."""
        now_s = self._clock.mono_s()
        if self._ticked_s is None or now_s - self._ticked_s > _BLIND_S:
            self._watched_since_s = now_s
        self._ticked_s = now_s
        return [
            (name, event)
            for name, reader in self._readers.items()
            for event in reader.tick(now_s, self._watched_since_s)
        ]

    def release(self, name: str, seconds: float) -> None:
        """End a reader so that its devices are free (driver reload, GPU reset), for so long or until `resume`."""
        now_s = self._clock.mono_s()
        self._readers[name].release(now_s, now_s + seconds)

    def resume(self, name: str) -> None:
        """Take released devices up again."""
        self._readers[name].resume(self._clock.mono_s())

    def released(self, name: str) -> bool:
        """Whether a reader's devices are being left alone because `release` was asked for."""
        return self._readers[name].released

    def pause_at_most(self, seconds: float) -> None:
        """From now on no device is left alone for longer than this once it could be read again."""
        for reader in self._readers.values():
            reader.patience.longest_pause_s = seconds

    def replace(self, spec: ReaderSpec) -> None:
        """Go on with other settings."""
        self._readers[spec.name].replace(spec, self._clock.mono_s())

    def stop(self, timeout_s: float) -> list[int]:
        """End all readers; those that do not end in time and touch nothing are killed. Returns who is left, in a device."""
        until_s = self._clock.mono_s() + timeout_s
        for reader in self._readers.values():
            reader.end(self._clock.mono_s())
        while True:
            left = [child for reader in self._readers.values() for child in reader.bury()]
            now_s = self._clock.mono_s()
            if not left or now_s >= until_s:
                break
            self._clock.sleep_until(min(until_s, now_s + _STOP_POLL_S))
        stuck = [child for child in left if child.touched()]
        for child in left:
            if child not in stuck:
                child.kill()
        return [child.pid for child in stuck]

    def pids(self) -> dict[str, int]:
        """Process ids of the readers that are listened to."""
        return {name: r.child.pid for name, r in self._readers.items() if r.child is not None}

    def families(self) -> dict[str, tuple[int, ...]]:
        """Process ids of each reader with those that were left to themselves and have not ended: for what they cost."""
        return {name: tuple(c.pid for c in r.children()) for name, r in self._readers.items()}

    def ended_cpu_s(self) -> dict[str, float]:
        """CPU time of the ended processes of each reader."""
        return {name: r.ended_cpu_s for name, r in self._readers.items()}

    def restarts(self) -> dict[str, int]:
        """How often each reader was started again."""
        return {name: r.restarts for name, r in self._readers.items()}

    def extra(self, name: str) -> Mapping[str, Any]:
        """Plain values that a reader sent with its last inventory (nvml_gpus, pci_gpus); empty before."""
        child = self._readers[name].child
        return {} if child is None else child.extra
