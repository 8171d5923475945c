"""What a reader has told the exporter of its devices, so that it speaks only of changes.

`reader_rounds.py` tells it what was found, lost and counted; it sends inventories, quarantines and statuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter.clock import Clock
from exporter.model import EMPTY, Device, Source, SourceStatus
from exporter.reader_outlet import Outlet
from exporter.reader_turns import Turn
from exporter.sources import Opened

_LOST = "gpu_lost"  # what a device is counted under that cannot be opened: only GPUs are lost


class Ledger:
    """The devices, the lost ones among them, and the kinds that are down. Used by the thread that does the rounds."""

    def __init__(self, kind: str, device_kind: str, outlet: Outlet, clock: Clock) -> None:
        self._kind = kind
        self._device_kind = device_kind
        self._outlet = outlet
        self._clock = clock
        self._devices: dict[str, Device] = {}
        self._extra: Mapping[str, Any] = {}
        self._told: tuple[tuple[Device, ...], tuple[Source, ...], dict[str, Any]] | None = None
        self._sources: dict[str, Source] = {}  # those told, by name
        self._down: dict[str, SourceStatus] = {}
        self._lost_at_opening: Counter[str] = Counter()
        self.lost: dict[str, str] = {}  # device id -> reason

    def found(self, opened: Opened, sources: Sequence[Source], skipped: Sequence[str], *, everything: bool) -> bool:
        """Take in what opening found; True where a device was lost anew.

        A library that is away for now does not unmake its devices: they and their sources stay in the inventory. Nor does
        a device end that was not looked at, because it is left alone.
        """
        self._extra = opened.extra
        if everything and not opened.devices and opened.statuses and not sources and self._told is not None:
            sources = self._told[1]
        else:
            here = {d.id: d for d in opened.devices}
            kept = {i: d for i, d in self._devices.items() if not everything or {i, i.split("/")[0]} & set(skipped)}
            merged = kept | here
            self._devices = {i: merged[i] for i in dict.fromkeys([*self._devices, *here]) if i in merged}
        self.inventory(sources)
        return self._losses(opened)

    def _losses(self, opened: Opened) -> bool:
        lost_anew = {i: reason for i, reason in opened.lost.items() if self.lost.get(i) != reason}
        for device_id, reason in lost_anew.items():
            self._lost_at_opening[device_id] += 1
            self.lose(device_id, reason, {_LOST: self._lost_at_opening[device_id]})  # there is no lane that counts it
        for device_id in [d.id for d in opened.devices if d.id in self.lost and d.id not in opened.lost]:
            del self.lost[device_id]
            self._outlet.send_quarantine(self._device_kind, device_id, None, self._clock.mono_s())
        return bool(lost_anew)

    def lose(self, device_id: str, reason: str, errors: Mapping[str, int] = EMPTY) -> None:
        """A device is gone, whichever of its lanes it was that noticed; it is tried again later."""
        self.lost[device_id] = reason
        now_s = self._clock.mono_s()
        self._outlet.send_quarantine(self._device_kind, device_id, reason, now_s)
        status = SourceStatus(f"{self._kind}/{device_id}", 0.0, errors=errors, up=False, reason=reason)
        self._outlet.send_status([status], now_s)

    def knows(self, source: Source) -> bool:
        """Whether a source is in the inventory in force."""
        told = self._sources.get(source.name)
        return told is source or told == source

    def inventory(self, sources: Sequence[Source]) -> None:
        """Send what there is to read, where it is not what was sent last."""
        inventory = (tuple(self._devices.values()), tuple(sources), dict(self._extra))
        if inventory != self._told:
            self._told = inventory
            self._sources = {source.name: source for source in sources}
            self._outlet.send_inventory(*inventory, self._clock.mono_s())

    def down(self, statuses: Iterable[SourceStatus]) -> None:
        """Kinds that are not up as a whole; those that were, and are not named now, are up again."""
        down = {status.source: status for status in statuses}
        news = [status for name, status in down.items() if self._down.get(name) != status]
        news += [SourceStatus(name, 0.0) for name in self._down if name not in down]
        self._down = down
        if news:
            self._outlet.send_status(news, self._clock.mono_s())

    def statuses(self, turns: Iterable[Turn]) -> None:
        """What changed in how sources do."""
        news = [status for turn in turns if (status := turn.news()) is not None]
        if news:
            self._outlet.send_status(news, self._clock.mono_s())
