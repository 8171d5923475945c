"""Files of the kernel that are read again and again: one kept open, sums of several, and the lane that reads them together.

`rdma` and `nic` make their lanes of these. Nothing here knows a clock: pauses are counted in reads of a known interval.

An attribute of sysfs is rendered anew by each pread at offset 0, so its descriptor is kept: a tenth of the cost of
opening it. When the device goes, a kept descriptor answers ENODEV for ever, even after a device of the same name came
back; and the path of a renamed interface goes while its descriptor lives on. Both end in LaneError("vanished").
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from exporter.model import Source
from exporter.sources import REDISCOVER, LaneError, Plan
from exporter.sources.sysfs import BUFFER_BYTES, Parse, judge, parse_count, reason_of

WRAPS, STICKS, EITHER = "wraps", "sticks", "either"  # what a counter does when it has counted as far as it can
_NEAR = 0.25  # of a counter's range: how close to its end, and to its beginning, the two readings around a wrap lie
_PASSING = ("io_error", "not_a_number")  # by their nature; a file that is half written reads as empty
_SHORT_COUNT = 16  # digits of a count that a float holds exactly, and that is no driver's way of saying "none"
_REPROBE_S = 300.0
_LONGEST_BACK_OFF_S = 60.0


class Attribute:
    """One file that is read again and again; `errors` is the count by reason that its lane shares.

    A failing file is counted once per change of its reason and then left alone: for five minutes, or, where it has given
    numbers before or the fault passes by nature, for 0, 1, 2, 4 ... 60 s. `normal` maps reasons that are answers rather
    than faults to the value they stand for (the speed of a link that is down).

    Once a second the path is compared with the open file, so that a file put in place of another is noticed. Sysfs never
    replaces a living file; where it happens twice (a tree that is not sysfs), the path is opened for each read.

    A count that goes back was reset, which is counted, or has wrapped: a counter of `bits` that WRAPS, stood in the last
    quarter of its range and stands in the first one now, goes on from where it was. One that STICKS and has reached its
    end says no more than "at least": that is no reading (saturated). Of some it is not known which (EITHER).
    """

    def __init__(
        self,
        path: str,
        parse: Parse,
        interval_s: float,
        errors: dict[str, int],
        normal: Mapping[str, float] = MappingProxyType({}),
        *,
        bits: int = 64,
        at_end: str = WRAPS,
    ) -> None:
        self.path = path
        self.reason: str | None = None
        self.ever_good = False
        self._parse = parse
        self._counts = parse is parse_count
        self._interval_s = interval_s
        self._errors = errors
        self._normal = normal
        self._fd = -1
        self._inode = (0, 0)
        self._reads = 0
        self._follow_each = max(1, round(1 / interval_s))  # reads
        self._replaced = 0
        self._failures = 0
        self._pause = 0  # reads still to be left out
        self._range = 2.0**bits
        self._end = self._range - 1 if at_end != WRAPS else math.nan
        self._wraps = at_end != STICKS
        self._before = -math.inf  # a count as it was read last
        self._wrapped = 0.0  # what was counted before the last wrap

    def read(self) -> float:
        """The number in the file, or NaN; `reason` then says why."""
        if self._pause > 0:
            self._pause -= 1
            return math.nan
        value: float | None = None
        try:
            data = self._fetch().strip()
        except OSError as error:
            reason: str | None = reason_of(error)
        else:
            if self._counts and data.isdigit() and len(data) < _SHORT_COUNT:  # nearly every read ends here
                value, reason = float(data), None
            else:
                value, reason = judge(data.decode("utf-8", "replace"), self._parse)
        if value == self._end:
            value, reason = None, "saturated"
        if value is not None:
            self.reason, self.ever_good, self._failures = None, True, 0
            if self._counts:
                if value < self._before:
                    self._went_back(value)
                self._before = value
                value += self._wrapped
            return value
        assert reason is not None  # judge gives the one or the other
        if reason in self._normal:
            self.reason = None
            return self._normal[reason]
        self._fail(reason)
        return math.nan

    def _went_back(self, count: float) -> None:
        near = _NEAR * self._range
        if self._wraps and self._range - near <= self._before < self._range and count < near:
            self._wrapped += self._range
        else:
            self._errors["counter_reset"] = self._errors.get("counter_reset", 0) + 1
            self._wrapped = 0.0

    def _fail(self, reason: str) -> None:
        if reason != self.reason:
            self._errors[reason] = self._errors.get(reason, 0) + 1
        self.reason = reason
        pause_s = _REPROBE_S
        if self.ever_good or reason in _PASSING:
            pause_s = min(_LONGEST_BACK_OFF_S, 2.0 ** (self._failures - 1)) if self._failures else 0.0
        self._failures = min(self._failures + 1, 16)
        self._pause = math.ceil(pause_s / self._interval_s)
        self.close()

    def _fetch(self) -> bytes:
        if self._fd < 0:
            self._open()
        elif self._replaced >= 2:
            self.close()
            self._open()
        elif self._reads < 10 or self._reads % self._follow_each == 0:
            self._follow()
        self._reads += 1
        return os.pread(self._fd, BUFFER_BYTES, 0)

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        stat = os.fstat(self._fd)
        self._inode = (stat.st_dev, stat.st_ino)

    def _follow(self) -> None:
        stat = os.stat(self.path)  # noqa: PTH116
        if (stat.st_dev, stat.st_ino) != self._inode:
            self._replaced += 1
            self.close()
            self._open()

    def close(self) -> None:
        """Give the descriptor back; the next read opens the path again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Total:
    """The sum of files that feed one channel, times a factor: 4 for words of InfiniBand, 8 for flits of Omni-Path.

    A file that fails makes the sum NaN, unless it has failed from the start while others answer: then it is left out for
    good, because a sum that a late file joins would jump. `begin` is what the first reading is to give, where these files
    carry on the count of others.
    """

    def __init__(self, attributes: Sequence[Attribute], factor: int = 1, begin: float | None = None) -> None:
        self.attributes = list(attributes)
        self._factor = float(factor)
        self._settled = len(self.attributes) == 1
        self._begin = begin
        self._ahead = 0.0

    def read(self) -> float:
        """The sum as it stands, or NaN. Exact up to 2**53; after a reset it stands lower than before."""
        if self._begin is None:
            return self._sum() + self._ahead
        value = self._sum()
        if value == value:
            self._ahead, self._begin = self._begin - value, None
        return value + self._ahead

    def _sum(self) -> float:
        if self._settled and len(self.attributes) == 1:
            return self.attributes[0].read() * self._factor
        values = [attribute.read() for attribute in self.attributes]
        if not self._settled and any(a.ever_good for a in self.attributes):
            self._settled = True
            values = [v for v, a in zip(values, self.attributes, strict=True) if a.ever_good]
            for attribute in self.attributes:
                if not attribute.ever_good:
                    attribute.close()
            self.attributes = [a for a in self.attributes if a.ever_good]
        return sum(values) * self._factor


Channels = Mapping[str, Total | Attribute]


class FileLane:
    """Channels of one device that are read at one rate. Opens nothing before its first read."""

    def __init__(
        self,
        name: str,
        interval_s: float,
        device_kind: str,
        device_id: str,
        channels: Channels,
        *,
        errors: dict[str, int],
        plan: Plan | None = None,
    ) -> None:
        self.source = Source(name, tuple(channels), interval_s)
        self.plan = plan or Plan(1.0 / interval_s)
        self.device_kind = device_kind
        self.device_id = device_id
        self._errors = errors
        self._channels = tuple(channels.values())

    @property
    def errors(self) -> Mapping[str, int]:
        """Running totals by reason."""
        return self._errors

    def _attributes(self) -> list[Attribute]:
        return [a for c in self._channels for a in (c.attributes if isinstance(c, Total) else (c,))]

    def read(self) -> Sequence[float]:
        """One value per channel, NaN where not read; LaneError("vanished") once the device has gone."""
        values = [channel.read() for channel in self._channels]
        total = sum(values)
        if total != total:  # one of them is NaN
            reasons = [attribute.reason for attribute in self._attributes()]
            if "vanished" in reasons:
                raise LaneError("vanished", REDISCOVER)
            if all(reason == "missing" for reason in reasons):  # every path has gone, as after a rename
                self._errors["vanished"] += 1
                raise LaneError("vanished", REDISCOVER)
        return values

    def close(self) -> None:
        """Give every descriptor back."""
        for attribute in self._attributes():
            attribute.close()
