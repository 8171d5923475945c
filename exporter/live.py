"""The feed of a live node: what the readers see, merged into one inventory, with GPUs paired to the ports they use.

`app` builds it, the daemon polls it. Devices are touched by the readers alone; this module only puts together what they
say, and starts and ends them by way of the supervisor.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from exporter.clock import Clock
from exporter.config import Config
from exporter.model import Device, Event, GpuJob, GpuPod, Inventory, Link, ReaderRestarted
from exporter.pairing import pair
from exporter.sources import GpuSettings, NetSettings, as_values
from exporter.supervisor import ReaderSpec, Supervisor
from exporter.workloads import Workloads, WorkloadSettings, jobs_of_gpus

log = logging.getLogger(__name__)

# How long events are kept back so that the first inventory is whole; a reader that hangs at its start must not stop the other.
_START_TOGETHER_S = 5.0
_STOP_S = 3.0
_LOOK_S, _LOOK_CLOSELY_S = 0.2, 0.1  # between two looks at the readers; while somebody looks at the live page


def reader_specs(config: Config) -> tuple[ReaderSpec, ...]:
    """The two readers, with the settings that concern them."""
    gpu = GpuSettings(
        nvml_library=config.nvml_library, sysfs_root=config.path_sysfs, gpu_hertz=config.sampling_gpu_hertz,
        include=config.filters_gpu_include, exclude=config.filters_gpu_exclude,
    )
    net = NetSettings(
        sysfs_root=config.path_sysfs, procfs_root=config.path_procfs, network_hertz=config.sampling_network_hertz,
        host_hertz=config.sampling_host_hertz, rdma_include=config.filters_rdma_include,
        rdma_exclude=config.filters_rdma_exclude, nic_include=config.filters_nic_include,
        nic_exclude=config.filters_nic_exclude, topology_file=config.pairing_topology_file,
    )
    return ReaderSpec("gpu", "nvml", as_values(gpu)), ReaderSpec("net", "rdma", as_values(net))


def workload_settings(config: Config) -> WorkloadSettings:
    """Whom to ask who the GPUs work for."""
    return WorkloadSettings(
        pods_socket=config.pods_socket, pods_interval_s=config.pods_interval_seconds, jobs_directory=config.jobs_directory,
        jobs_scheduler=config.jobs_scheduler, jobs_interval_s=config.jobs_interval_seconds,
    )


class LiveFeed:
    """Implements daemon.Feed on the readers of this node. To be used from the main thread."""

    def __init__(self, config: Config, clock: Clock, host: str) -> None:
        self._config = config
        self._clock = clock
        self._host = host
        self._started_mono_s = clock.mono_s()
        self.started_unix_s = clock.wall_s()
        self._supervisor = Supervisor(
            reader_specs(config), clock, started_mono_s=self._started_mono_s, host=host, started_unix_s=self.started_unix_s,
            longest_pause_s=config.quarantine_longest_pause_seconds,
        )
        self._parts: dict[str, Inventory] = {}
        self._restarts: dict[str, int] = {}
        self._kept_back: list[Event] | None = []
        self._hints: dict[str, str] = {}
        self._workloads = Workloads(workload_settings(config), clock, self._started_mono_s)
        self._owners: tuple[tuple[GpuPod, ...], tuple[GpuJob, ...]] = ((), ())
        self._anew = False  # the settings changed: an inventory is due
        self._supervisor.start()
        self._workloads.start()

    @property
    def done(self) -> bool:
        """A node never ends."""
        return False

    def now_s(self) -> float:
        """Seconds since the start."""
        return self._clock.mono_s() - self._started_mono_s

    def poll(self, until_s: float, closely: bool = False) -> list[Event]:
        """Events of the readers; inventories of all readers merged into one."""
        events: list[Event] = []
        look_s = _LOOK_CLOSELY_S if closely else _LOOK_S
        for name, event in self._supervisor.poll(min(look_s, max(0.0, until_s - self.now_s()))):
            if isinstance(event, Inventory):
                self._parts[name] = event
                events.append(self.inventory())
                self._tell_hint()
            else:
                events.append(event)
        events += self._restarted()
        events += self._heard()
        if self._kept_back is None:
            return events
        self._kept_back += events
        if self.starting() is not None and self.now_s() < _START_TOGETHER_S:
            return []
        events, self._kept_back = self._kept_back, None
        # Of the inventories only the last stands: the first header of a recording is whole.
        whole = [e for e in events if isinstance(e, Inventory)][-1:]
        return [*whole, *(e for e in events if not isinstance(e, Inventory))]

    def _restarted(self) -> list[Event]:
        now = self._supervisor.restarts()
        names = [n for n, count in now.items() if count > self._restarts.get(n, 0)]
        self._restarts = now
        return [
            ReaderRestarted(tuple(s.name for s in self._parts[n].sources), self.now_s()) for n in names if n in self._parts
        ]

    def _heard(self) -> list[Event]:
        """What pods and jobs gave; a new inventory where GPUs changed hands, or the settings say so."""
        events = self._workloads.events()
        if self._parts and (events or self._anew):
            before, due = self._owners, self._anew
            inventory, self._anew = self.inventory(), False
            if due or self._owners != before:
                return [inventory, *events]
        return events

    def _tell_hint(self) -> None:
        """What is wrong with mounts, packages and files, once per change."""
        told = {**self._supervisor.extra("gpu"), **self._supervisor.extra("net")}
        hints: dict[str, str] = {key: told[key] for key in ("nvml_hint", "rdma_hint", "topology_hint") if key in told}
        for key, hint in hints.items():
            if hint != self._hints.get(key):
                log.warning("%s", hint)
        self._hints = hints

    def inventory(self) -> Inventory:
        """What all readers see, and who belongs to whom."""
        parts = [self._parts[name] for name in ("gpu", "net") if name in self._parts]  # whoever spoke first
        merged = Inventory(
            self._host, self.started_unix_s,
            devices=tuple(d for p in parts for d in p.devices),
            sources=(*(s for p in parts for s in p.sources), *self._workloads.sources),
        )
        gpus = merged.of_kind("gpu")
        self._owners = self._workloads.pods(gpus), self._workloads.jobs(gpus)
        return replace(merged, jobs=MappingProxyType(jobs_of_gpus(*self._owners)), links=self._links(merged))

    def owners(self) -> tuple[tuple[GpuPod, ...], tuple[GpuJob, ...]]:
        """Pods and batch jobs that hold the GPUs, as in the last inventory."""
        return self._owners

    def _links(self, inventory: Inventory) -> tuple[Link, ...]:
        """GPUs with their ports. A pod that was given ports of its own uses these; all other GPUs share the rest."""
        gpus, ports = inventory.of_kind("gpu"), inventory.of_kind("rdma_port")
        held = self._workloads.ports_of_pods(ports)
        if not held:
            return self._pair(inventory, gpus, ports)
        pod_of = {row.gpu_id: row.job for row in self._owners[0] if row.job in held}
        groups: list[tuple[list[Device], list[Device]]] = [
            ([g for g in gpus if pod_of.get(g.id) == pod], [p for p in ports if p.id in its])
            for pod, its in held.items() if pod in pod_of.values()
        ]  # fmt: skip
        taken = {p.id for _, its in groups for p in its}
        groups.append(([g for g in gpus if g.id not in pod_of], [p for p in ports if p.id not in taken]))
        links = [link for group, its in groups for link in self._pair(inventory, group, its)]
        shares = Counter(link.device_id for link in links)
        return tuple(replace(link, weight=1.0 / shares[link.device_id]) for link in links)

    def _pair(self, inventory: Inventory, gpus: Sequence[Device], ports: Sequence[Device]) -> tuple[Link, ...]:
        channels = {c for s in inventory.sources for c in s.channels}
        return pair(
            gpus, ports,
            overrides=self._config.pairing_links,
            compute_ports=self._config.pairing_compute_ports,
            topology=self._supervisor.extra("net").get("topology"),
            nics=inventory.of_kind("nic"),
            management_netdevs=self._supervisor.extra("net").get("default_route_netdevs", ()),
            nvlink_gpus={g.id for g in gpus if f"{g.id}/nvlink_transmit_bytes_total" in channels},
        )

    def pids(self) -> Mapping[str, tuple[int, ...]]:
        """The readers, with those that were left to themselves."""
        return {f"reader_{name}": pids for name, pids in self._supervisor.families().items()}

    def ended_cpu_s(self) -> Mapping[str, float]:
        """CPU time of readers that have ended."""
        return {f"reader_{name}": cpu_s for name, cpu_s in self._supervisor.ended_cpu_s().items()}

    def counted_gpus(self) -> tuple[int | None, int | None]:
        """GPUs as sysfs and as NVML count them."""
        extra = self._supervisor.extra("gpu")
        return extra.get("pci_gpus"), extra.get("nvml_gpus")

    def told(self) -> Mapping[str, Any]:
        """What the readers said besides their inventories: counts, hints at mounts, devices left out."""
        return {**self._supervisor.extra("gpu"), **self._supervisor.extra("net")}

    def starting(self) -> str | None:
        """The readers that have not yet said what there is to read."""
        missing = [f"reader {name}" for name in ("gpu", "net") if name not in self._parts]
        return " and ".join(missing) or None

    def release(self, seconds: float) -> None:
        """Let go of the GPU devices, for so long or until `resume`."""
        self._supervisor.release("gpu", seconds)

    def resume(self) -> None:
        """Take the GPU devices up again."""
        self._supervisor.resume("gpu")

    def released(self) -> bool:
        """Whether the GPU devices are being left alone by request."""
        return self._supervisor.released("gpu")

    def holders(self) -> tuple[int, ...]:
        """Processes that may hold a GPU device, those that are stuck in one included."""
        return self._supervisor.families()["gpu"]

    def reconfigure(self, config: Config) -> None:
        """Go on with other settings: readers whose settings changed are replaced, pairing is done anew."""
        old, self._config = self._config, config
        self._supervisor.pause_at_most(config.quarantine_longest_pause_seconds)
        before = {spec.name: spec for spec in reader_specs(old)}
        for spec in reader_specs(config):
            if spec != before[spec.name]:
                self._supervisor.replace(spec)
        self._anew = True

    def stop(self) -> None:
        """End the readers. One that is stuck inside a driver is left behind: killing it there has frozen machines."""
        self._workloads.stop()
        for pid in self._supervisor.stop(_STOP_S):
            log.warning("reader %d is stuck in a device and is left to end by itself", pid)
