"""Traces: gzip of JSON lines, a header and then one line per read; a reader and a writer (a sink).

`record`, `simulate` and the flight recorder write traces; `replay`, `analyze` and the report read them. A trace may be cut
off anywhere: what is whole is used, and the reader says where it ended. Nothing here judges values, and no clock is read.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO

from exporter.model import Event, Inventory, Quarantine, Record, Source
from exporter.quantities import quantity_of, split_channel
from exporter.trace_header import TraceError, header, parse_header, short

__all__ = ["TraceError", "TraceReader", "TraceWriter", "header", "read_trace"]

_GZIP = 31  # zlib's wbits for a gzip stream
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 24  # the header of a large node has some 30 KiB; far beyond that it is no trace
_FLUSH_S = 1.0  # of trace time: what a crash may lose

_Pick = tuple[int, tuple[int, ...] | None]  # values on a line, and which of them are of known channels (None: all)


def read_trace(path: str | Path) -> TraceReader:
    """Open a trace and read its header; TraceError, in one line, where it is none."""
    return TraceReader(path)


class TraceReader:
    """The events of a trace in file order, each time it is iterated; little of the file is in memory at once.

    inventory: of the first header. cut: where the trace ended before its end, None while it is whole; known when an
    iteration has ended.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.cut: str | None = None
        self.read_bytes = 0  # of the file, by the iteration that is going on
        self._end: str | None = None  # how the file ended, where not well
        first = next(iter(self))  # an iteration yields its header first, or raises
        assert isinstance(first, Inventory)
        self.inventory: Inventory = first

    def __iter__(self) -> Iterator[Event]:
        self.cut = self._end = None
        picks: dict[str, _Pick] = {}
        lines, t_s = 0, None
        for text, ended in self._lines():
            try:
                line = json.loads(text) if text.strip() else None
            except (ValueError, RecursionError) as e:  # UnicodeDecodeError is a ValueError, too
                if not ended:
                    self._end = self._end or "cut off"
                    break
                what = f"line {lines + 1} is not JSON" if lines else "not a trace, its first line is not JSON"
                raise TraceError(f"{self.path}: {what} ({short(text[:40])})") from e
            lines += 1
            try:
                if isinstance(line, dict):
                    inventory = parse_header(line)
                    picks, inventory = _known_channels(inventory)
                    yield inventory
                elif lines == 1:
                    raise TraceError("not a trace, its first line is not a header")  # noqa: TRY301
                elif line is not None and (record := _record(line, picks)) is not None:
                    t_s = record.t_s
                    yield record
            except TraceError as e:
                raise TraceError(f"{self.path}: {'' if lines == 1 else f'line {lines}: '}{e}") from None
        if lines == 0:
            raise TraceError(f"{self.path}: {'cut off before its header ended' if self._end else 'empty, not a trace'}")
        if self._end is not None:
            self.cut = f"{self._end} after line {lines}" + ("" if t_s is None else f", {t_s:.1f} s")

    def _lines(self) -> Iterator[tuple[bytes, bool]]:
        """Lines, and whether each ended in a newline: the last one may not."""
        rest = b""
        for data in self._inflated():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line, True
            if len(rest) > _LINE_BYTES_MAX:
                raise TraceError(f"{self.path}: not a trace, a line is longer than {_LINE_BYTES_MAX >> 20} MiB")
        if rest.strip():
            yield rest, False

    def _inflated(self) -> Iterator[bytes]:
        """What the gzip stream holds, in pieces of at most 1 MiB; a damaged or missing rest sets `_end`."""
        try:
            with Path(self.path).open("rb") as file:
                data = file.read(_CHUNK_BYTES)
                self.read_bytes = len(data)
                if data and not data.startswith(_GZIP_MAGIC[: len(data)]):
                    raise TraceError(f"{self.path}: not gzip, so not a trace")
                inflate = zlib.decompressobj(_GZIP)
                while data:
                    before = inflate.copy()
                    try:
                        inflated = inflate.decompress(data, 1 << 20)
                    except zlib.error:
                        self._end = "damaged"
                        yield from _up_to_damage(before, data)
                        return
                    yield inflated
                    data = inflate.unconsumed_tail
                    if inflate.eof:  # gzip files may be concatenated
                        data = (inflate.unused_data or file.read(_CHUNK_BYTES)).lstrip(b"\0")
                        if data:
                            inflate = zlib.decompressobj(_GZIP)
                    elif not data:
                        data = file.read(_CHUNK_BYTES)
                        self.read_bytes += len(data)
                        if not data:
                            self._end = "cut off"
        except OSError as e:
            raise TraceError(f"{self.path}: {e.strerror or e}") from e



def _up_to_damage(inflate: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """What a damaged piece holds before its damage: zlib tells an error and keeps what it had made until then."""
    with suppress(zlib.error):
        for i in range(len(data)):
            yield inflate.decompress(data[i : i + 1])


def _known_channels(inventory: Inventory) -> tuple[dict[str, _Pick], Inventory]:
    """The inventory without channels that this program does not know, and how to take the rest out of a line."""
    kinds = {device.id: device.kind for device in inventory.devices}
    ids = frozenset(kinds)
    picks: dict[str, _Pick] = {}
    sources: list[Source] = []
    for source in inventory.sources:
        known: list[int] = []
        for i, channel in enumerate(source.channels):
            parts = split_channel(channel, ids)
            if parts is not None and quantity_of(kinds[parts[0]], parts[1]) is not None:
                known.append(i)
        if known:
            whole = len(known) == len(source.channels)
            picks[source.name] = (len(source.channels), None if whole else tuple(known))
            sources.append(source if whole else replace(source, channels=tuple(source.channels[i] for i in known)))
    return picks, replace(inventory, sources=tuple(sources))


def _record(line: object, picks: Mapping[str, _Pick]) -> Record | None:
    """The record of a line, None where its source is not known; TraceError where it is no record."""
    if not isinstance(line, list) or len(line) < 3:
        raise TraceError(f"neither a header nor a read ({short(line)})")
    t_s, name, values = line[0], line[1], line[2]
    if isinstance(t_s, bool) or not isinstance(t_s, (int, float)) or not math.isfinite(t_s):
        raise TraceError(f"the time is {short(t_s)}, not a number of seconds")
    if not isinstance(name, str) or not isinstance(values, list):
        raise TraceError(f"not a read of the form [seconds, source, [values]] ({short(line)})")
    if (pick := picks.get(name)) is None:
        return None
    if len(values) != pick[0]:
        raise TraceError(f"{len(values)} values of {name}, which has {pick[0]} channels")
    if pick[1] is not None:
        values = [values[i] for i in pick[1]]
    try:
        return Record(name, float(t_s), [math.nan if v is None or v - v != 0 else v + 0.0 for v in values])
    except (TypeError, OverflowError):
        raise TraceError(f"a value of {name} is not a number ({short(values)})") from None


class TraceWriter:
    """A sink for events that writes a trace; a crash loses at most the last second.

    An Inventory becomes a header line, a Record a line. A Quarantine becomes a header without the device, its lifting one
    with it again: in a trace a device that is left alone is a device that is not there. Records of sources that the last
    header does not name are dropped, as the history does. `target` is a path, or a binary file that stays open.
    """

    def __init__(self, target: str | Path | IO[bytes], force: bool = False) -> None:
        self._own = isinstance(target, (str, Path))
        self.path = str(target) if self._own else str(getattr(target, "name", "trace"))
        self._file: IO[bytes] | None = _create(target, force) if isinstance(target, (str, Path)) else target
        self._deflate = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._inventory: Inventory | None = None
        self._gone: dict[str, Quarantine] = {}
        self._widths: dict[str, int] = {}  # values per line of each source of the header in force
        self._names: dict[str, str] = {}  # sources, as they stand on a line
        self._flushed_s = -math.inf

    def write(self, event: Event) -> None:
        """Take in one event; TraceError when the file cannot take it (what was written before stays readable)."""
        if isinstance(event, Record):
            if self._widths.get(event.source) == len(event.values):
                self._write_text(_line(self._names[event.source], event))
                if not 0 <= event.t_s - self._flushed_s < _FLUSH_S:
                    self.flush()
                    self._flushed_s = event.t_s
        elif isinstance(event, Inventory):
            self._inventory = event
            self._write_header()
        elif isinstance(event, Quarantine):
            before = set(self._gone)
            if event.reason is None:
                self._gone.pop(event.id, None)
            else:
                self._gone[event.id] = event
            if set(self._gone) != before and self._inventory is not None:
                self._write_header()

    def _write_header(self) -> None:
        assert self._inventory is not None
        inventory = _without(self._inventory, self._gone)
        self._widths = {source.name: len(source.channels) for source in inventory.sources}
        self._names = {source.name: json.dumps(source.name) for source in inventory.sources}
        self._write_text(json.dumps(header(inventory), separators=(",", ":")) + "\n")
        self.flush()

    def _write_text(self, text: str) -> None:
        self._write_bytes(self._deflate.compress(text.encode()))

    def flush(self) -> None:
        """Hand everything to the operating system, at the end of a whole block."""
        self._write_bytes(self._deflate.flush(zlib.Z_SYNC_FLUSH))

    def _write_bytes(self, data: bytes) -> None:
        if self._file is None:
            raise TraceError(f"{self.path}: closed")
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) or 0 :]
            if not self._own and data:
                self._file.flush()
        except OSError as e:
            self._release()
            raise TraceError(f"{self.path}: cannot write: {e.strerror or e}") from e

    def _release(self) -> None:
        file, self._file = self._file, None
        if file is not None and self._own:
            with suppress(OSError):
                file.close()

    def close(self) -> None:
        """End the gzip stream; harmless when closed before, or after a failed write."""
        if self._file is not None:
            self._write_bytes(self._deflate.flush())
            self._release()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _create(path: str | Path, force: bool) -> IO[bytes]:
    """The file, unbuffered; an existing regular file is refused unless `force`. Devices and pipes are written to."""
    target = Path(path)
    mode = "wb" if force or (target.exists() and not target.is_file()) else "xb"
    try:
        return target.open(mode, buffering=0)
    except FileExistsError:
        raise TraceError(f"{path}: exists already and is not overwritten") from None
    except OSError as e:
        raise TraceError(f"{path}: cannot write: {e.strerror or e}") from e


def _without(inventory: Inventory, gone: Mapping[str, Quarantine]) -> Inventory:
    """The inventory without devices that are left alone, their channels and links."""
    if not gone:
        return inventory
    prefixes = tuple(device_id + "/" for device_id in gone)

    def here(name: str) -> bool:
        return name not in gone and not name.startswith(prefixes)

    sources = (replace(s, channels=tuple(c for c in s.channels if here(c))) for s in inventory.sources)
    return replace(
        inventory,
        devices=tuple(d for d in inventory.devices if here(d.id)),
        links=tuple(k for k in inventory.links if here(k.gpu_id) and here(k.device_id)),
        sources=tuple(s for s in sources if s.channels),
        jobs=MappingProxyType({gpu: job for gpu, job in inventory.jobs.items() if here(gpu)}),
    )


def _line(name: str, record: Record) -> str:
    """A read as it stands in a trace: whole numbers (counters are) without a point, everything else in full.

    >>> _line('"nvml"', Record("nvml", 0.10391, [612.4, 1.0, math.nan]))
    '[0.1039,"nvml",[612.4,1,null]]\\n'
    """
    values = ",".join([_number(value) for value in record.values])
    return f"[{round(record.t_s, 4)!r},{name},[{values}]]\n"


def _number(value: float) -> str:
    if value != value or value in (math.inf, -math.inf):
        return "null"
    whole = int(value)
    return str(whole) if whole == value else repr(float(value))
