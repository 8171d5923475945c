"""Ports that stand for several: RDMA over a bond (mlx5 RoCE LAG), where one RDMA device sends through two Ethernet ports.

`rdma_ports.py` asks which interfaces lie below a bond, `rdma.py` makes the lane. Whether the byte files of such a device hold
the bytes of all its ports or of one is written nowhere, and the command behind them asks one function (drivers/infiniband/hw/
mlx5/mad.c). So it is measured where that is possible: the driver counts the RDMA bytes of each function for ethtool as well.
Only in the host's network namespace; elsewhere it stays open, and the port says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from exporter.sources.ethtool import DriverCounters, names_of
from exporter.sources.files import Attribute, Channels, FileLane, Total
from exporter.sources.sysfs import no_errors, parse_rate, parse_speed, read_text

ALL, PART, UNCHECKED = "all ports", "one port of several", "unchecked"
_RDMA_BYTES = "?x_vport_rdma_*_bytes"  # sent and received, of one function
_LEAST_BYTES = 64e6  # between two looks
_ALL_FROM = 0.9  # of what the ports count together
_AGREE = 3  # looks in a row


def slaves_of(root: str, netdev: str | None) -> tuple[str, ...]:
    """The interfaces below a bond; none for any other interface (Documentation/networking/bonding.rst)."""
    return tuple((read_text(f"{root}/class/net/{netdev}/bonding/slaves") or "").split()) if netdev else ()


class Verdicts:
    """What was found about bonded ports, for as long as the process lives and they lie above the same interfaces."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, tuple[str, ...]], str] = {}

    def of(self, root: str, port_id: str, slaves: Sequence[str]) -> str:
        """ALL, PART or UNCHECKED."""
        return self._found.get((root, port_id, tuple(slaves)), UNCHECKED)

    def add(self, root: str, port_id: str, slaves: Sequence[str], verdict: str) -> None:
        """Three looks agreed on this."""
        self._found[root, port_id, tuple(slaves)] = verdict


class Fastest(Total):
    """The line rate of a bonded port: the larger of what the port says and of the speed of the bond.

    The port of a bond used to say the rate of one link; newer kernels say that of all (mlx5_lag_query_bond_speed).
    """

    def read(self) -> float:
        """Bytes per second; NaN where neither says anything."""
        return max((v for a in self.attributes if (v := a.read()) == v), default=math.nan)


def rate_of_bond(rate: str, speed: str, interval_s: float, errors: dict[str, int]) -> Fastest:
    """The line rate of a bonded port, to be read again and again from the port's `rate` and the `speed` of the bond."""
    silent = {"not_available": math.nan}  # a bond without a link
    of_port = Attribute(rate, parse_rate, interval_s, errors)
    return Fastest([of_port, Attribute(speed, parse_speed, interval_s, errors, silent)])


class Look:
    """One bonded port: how much its files counted from look to look, against the functions below it."""

    def __init__(self, root: str, port_id: str, slaves: Sequence[str], own: Sequence[Total], verdicts: Verdicts,
                 interval_s: float) -> None:  # fmt: skip
        names = {slave: names_of(root, slave) for slave in slaves}
        self._counters = [
            DriverCounters(slave, of_it, _RDMA_BYTES, interval_s, no_errors())
            for slave, of_it in names.items() if any(n.startswith("tx_vport_rdma_") for n in of_it)
        ]  # fmt: skip
        self._own = list(own)
        self._port = (root, port_id, tuple(slaves))
        self._verdicts = verdicts
        self.possible = len(self._counters) == len(slaves) > 1 and bool(self._own)
        self._before: tuple[float, float] | None = None
        self._row: list[str] = []

    def take(self) -> None:
        """Read both sides; after three looks that agree the verdict is told, and the look goes on."""
        now = sum(total.read() for total in self._own), sum(counter.read() for counter in self._counters)
        before, self._before = self._before, now
        if before is None:
            return
        counted, sent = now[0] - before[0], now[1] - before[1]
        if not (sent >= _LEAST_BYTES and counted >= 0):
            return
        self._row = [*self._row, ALL if counted >= _ALL_FROM * sent else PART][-_AGREE:]
        if len(self._row) == _AGREE and len(set(self._row)) == 1:
            self._verdicts.add(*self._port, self._row[0])

    def attributes(self) -> list[Attribute]:
        """Everything that is kept open."""
        return [*self._counters, *(a for total in self._own for a in total.attributes)]


class BondLane(FileLane):
    """A lane of the state of ports that also looks at how their bytes are counted."""

    def __init__(self, name: str, interval_s: float, device_id: str, channels: Channels, *, errors: dict[str, int],
                 looks: Sequence[Look]) -> None:  # fmt: skip
        super().__init__(name, interval_s, "rdma_port", device_id, channels, errors=errors)
        self._looks = list(looks)

    def read(self) -> Sequence[float]:
        """One value per channel, as FileLane."""
        values = super().read()
        for look in self._looks:
            look.take()
        return values

    def close(self) -> None:
        """Give everything back."""
        super().close()
        for look in self._looks:
            for attribute in look.attributes():
                attribute.close()

