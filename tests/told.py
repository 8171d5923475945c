"""What a machine tells, as text: devices, links, states, and one reading of the lanes of the first and last of equal devices.

The golden files in tests/golden/machines are such texts. They are written by two hands that must agree: `tests/played.py`
reads the sources in this process on a clock of its own, `tests/live_machines.py` runs the readers that the daemon runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporter.model import Device, Inventory, Source, SourceStatus

_NOT_SHOWN = ("topology", "detail")  # a whole file; what the loader says differs from system to system


@dataclass
class Told:
    """All that a machine has told. values and errors: by name of source, errors without those at zero."""

    about: str
    inventory: Inventory
    kinds: Sequence[SourceStatus] = ()  # of kinds as a whole that are down
    extra: Mapping[str, Any] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def text(self, root: str) -> str:
        """The golden file; paths below `root` are written as ROOT."""
        lines = [f"# {self.about}", *(_device(d) for d in self.inventory.devices)]
        lines += [f"status {s.source} {'up' if s.up else 'down'}: {s.reason}" for s in self.kinds]
        lines += [f"extra {key}: {value}" for key, value in self.extra.items() if key not in _NOT_SHOWN]
        lines += [f"lost {device}: {reason}" for device, reason in self.lost.items()]
        lines += [f"link {k.gpu_id} {k.path} {k.device_id}: {k.reason}, weight {k.weight:g}" for k in self.inventory.links]
        alike: dict[tuple[str, ...], list[Source]] = {}
        for source in self.inventory.sources:
            alike.setdefault(_shape(source), []).append(source)
        for first, *rest in alike.values():
            lines += self._source(first)
            lines += [f"{len(rest) - 1} lanes alike"] if len(rest) > 1 else []
            lines += self._source(rest[-1]) if rest else []
        return "\n".join(lines).replace(root, "ROOT") + "\n"

    def _source(self, source: Source) -> list[str]:
        values = zip(source.channels, self.values[source.name], strict=True)
        lines = [f"lane {source.name} each {source.interval_s:g} s"]
        lines += [f"  {channel.removeprefix(_prefix(source))} {value:.10g}" for channel, value in values]
        return lines + [f"  error {reason} {count}" for reason, count in self.errors.get(source.name, {}).items() if count]


def _device(device: Device) -> str:
    values = {
        "uuid": device.uuid, "index": device.index, "name": device.name, "driver": device.driver,
        "power_limit_watts": device.power_limit_watts, "power_source": device.power_source,
        "power_window_s": device.power_window_s, "power_refresh_s": device.power_refresh_s,
        "rate_bytes_per_s": device.rate_bytes_per_s, "pci_path": device.pci_path, "numa_node": device.numa_node, **device.info,
    }  # fmt: skip
    return f"{device.kind} {device.id}: " + ", ".join(f"{k} {v}" for k, v in values.items() if v is not None)


def _prefix(source: Source) -> str:
    """What the channels of a source have in common: the device, or the port where a device has one."""
    device = source.name.split("/")[1]
    port = f"{device}/1/"
    return port if all(channel.startswith(port) for channel in source.channels) else f"{device}/"


def _shape(source: Source) -> tuple[str, ...]:
    """Kind, quantities and rate of a lane: what those of equal devices have in common."""
    kind, _, *name = source.name.split("/")
    channels = (channel.removeprefix(_prefix(source)) for channel in source.channels)
    return (kind, *name, f"{source.interval_s:g}", *channels)
