"""THE table of findings: what must be true for a cause to be named, held against which numbers, and what to do then.

`diagnosis.py` asks each rule in its turn and keeps the time. A condition looks at facts and answers with evidence, or
with None: not so, or not known. It never guesses: a rule whose inputs are missing does not fire. The paragraph above a
threshold says why it stands where it does; symptoms of raw readings are in `symptoms.py`, texts in `meanings.py` and
`advice.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from exporter.channels import increase, latest
from exporter.model import Device, Evidence, Inventory, OverlapAnalysis, Series, TransportVerdict
from exporter.symptoms import STATE_AGE_S, WINDOW_S, LinkMemory, capped_power, congestion, crumbs, hurt_links

Answer = tuple[Evidence, ...] | None


@dataclass(frozen=True)
class Facts:
    """All that the rules may look at, at one whole second."""

    t_s: float
    inventory: Inventory
    analyses: tuple[OverlapAnalysis, ...]  # of all windows
    transport: TransportVerdict
    series: Series
    verdict_window_s: float = 60.0

    def verdict(self, gpu_id: str) -> OverlapAnalysis | None:
        """What the verdict window says of a GPU."""
        return self._verdicts.get(gpu_id)

    @cached_property
    def _verdicts(self) -> Mapping[str, OverlapAnalysis]:
        return {a.gpu_id: a for a in self.analyses if a.window_s == self.verdict_window_s}

    def device(self, device_id: str) -> Device:
        """A device of the inventory; KeyError where it is not there."""
        for device in self.inventory.devices:
            if device.id == device_id:
                return device
        raise KeyError(device_id)


GpuCondition = Callable[[Facts, str], Answer]
NodeCondition = Callable[[Facts, LinkMemory], Answer]


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause. Exactly one of `gpu` and `node` is its condition; advice: keys of the catalogue, least effort first.

    hold_s: how long the condition has to stand before the finding appears; clear_s: how long it has to be gone.
    every_s: seconds from one question to the next, of conditions that look at many raw readings over 20 s and more.
    """

    finding: str
    advice: tuple[str, ...]
    gpu: GpuCondition | None = None
    node: NodeCondition | None = None
    hold_s: float = 30.0
    clear_s: float = 60.0
    every_s: int = 1

    @property
    def scope(self) -> str:
        """Whom the finding names: gpu or node."""
        return "gpu" if self.gpu else "node"


def _evidence(name: str, value: float | None, unit: str = "ratio", threshold: float | None = None) -> Answer:
    return () if value is None else (Evidence(name, value, unit, threshold),)


# One hour lost in twenty. The error of the exposed share is 0.01 to 0.03 where the job can be observed, so a job that
# hides everything stays well below; a job that loses less gains less than the change would cost.
_EXPOSED_LEAST = 0.05


def exposed_communication(facts: Facts, gpu_id: str) -> Answer:
    """Running time is lost to communication that nothing hides."""
    verdict = facts.verdict(gpu_id)
    if verdict is None or verdict.exposed is None or verdict.exposed < _EXPOSED_LEAST:
        return None
    return (
        Evidence("exposed", verdict.exposed, "ratio", _EXPOSED_LEAST),
        *(_evidence("health", verdict.health) or ()),
        *(_evidence("communication", verdict.communication) or ()),
    )


def tcp_fallback(facts: Facts, _memory: LinkMemory) -> Answer:
    """The job's bytes go over TCP although RDMA ports are up.

    Only the transport `tcp`, which has its own thresholds: a rest of TCP beside RDMA (mixed) is how many jobs look that
    are well. A node without RDMA ports has nothing to fall back from.
    """
    up = sum(latest(facts.series, f"{p.id}/up_ratio", facts.t_s, STATE_AGE_S) == 1 for p in facts.inventory.compute_ports())
    if facts.transport.transport != "tcp" or not up:
        return None
    return (
        Evidence("rdma_ports_up", float(up), "count", 1.0),
        *(_evidence("tcp", facts.transport.tcp_bytes_per_s, "bytes_per_second") or ()),
        *(_evidence("rdma", facts.transport.rdma_bytes_per_s, "bytes_per_second") or ()),
    )


# Utilisation is a mean over up to a second and its share is known to 0.03, so that a healthy loader reads 0 to 0.03 and
# the gaps between steps of a slow launcher 0.05. A tenth is a cause of its own; the state `stalled` begins at 0.17.
_STALL_LEAST = 0.10
_WITNESSES = (
    ("read_bytes_total", "disk_read", "bytes_per_second"),
    ("written_bytes_total", "disk_written", "bytes_per_second"),
    ("network_filesystem_read_bytes_total", "network_filesystem_read", "bytes_per_second"),
    ("cpu_iowait_seconds_total", "cpu_iowait", "ratio"),
)


def input_stall(facts: Facts, gpu_id: str) -> Answer:
    """No kernel and no traffic: the GPU waits for the loader or for storage. What the disks did stands beside it."""
    verdict = facts.verdict(gpu_id)
    if verdict is None or verdict.stall is None or verdict.stall < _STALL_LEAST:
        return None
    found = [Evidence("stall", verdict.stall, "ratio", _STALL_LEAST)]
    for disk in facts.inventory.of_kind("disk"):
        for quantity, name, unit in _WITNESSES:
            counted = increase(facts.series, f"{disk.id}/{quantity}", facts.t_s - WINDOW_S, facts.t_s)
            if counted is not None:
                found.append(Evidence(name, counted[0] / counted[1], unit))
    return tuple(found)


# All GPUs of a node end a collective together, so that the one they wait for is the one with the least time without compute:
# exposed communication and waits taken together are known to 0.003 between equal GPUs, the split of the two only to 0.03. What
# the others lose more than it has to exceed four times their own scatter, and a share of time that no chance reached for
# thirty seconds in balanced jobs; of fewer GPUs chance says more. Its own wait may be what a classification leaves (0.02), or
# a third of theirs: between GPUs that all wait for another node the readings differ by a tenth, not by a factor. More than a
# quarter of the GPUs so is not a straggler but two kinds of work (pipeline stages).
_LATE_LEAST = ((7, 0.015), (3, 0.03), (1, 0.08))  # by how many others there are at least
_LATE_SCATTERS, _SCATTER_LEAST, _SCATTER_OF_MEDIAN = 4.0, 0.003, 1.5
_OWN_WAIT_MOST, _OWN_WAIT_OF_OTHERS = 0.02, 1 / 3
_SLOW_GPUS_MOST = 0.25


def lateness(own: float, others: Sequence[float]) -> tuple[float, float]:
    """By how much the others lose more time than this one, and what that has to exceed to be no chance. Shares of time.

    >>> late, least = lateness(0.04, [0.09, 0.1, 0.1, 0.11, 0.1, 0.1, 0.1])
    >>> round(late, 3), least
    (0.06, 0.015)
    """
    usual = median(others)
    scatter = max(_SCATTER_LEAST, _SCATTER_OF_MEDIAN * median(abs(x - usual) for x in others))
    least = next(least for count, least in _LATE_LEAST if len(others) >= count)
    return usual - own, max(least, _LATE_SCATTERS * scatter)


def straggler_wait(facts: Facts, gpu_id: str) -> Answer:
    """The other GPUs of the job wait, and this one does not: it is the last to arrive, for as long as the rule holds."""
    job = facts.inventory.jobs.get(gpu_id)
    mates = [g.id for g in facts.inventory.of_kind("gpu") if facts.inventory.jobs.get(g.id) == job]
    verdicts = {g: v for g in mates if (v := facts.verdict(g)) is not None and v.wait is not None and v.communication}
    waits = {g: v.wait for g, v in verdicts.items() if v.wait is not None}
    lost = {g: v.exposed_or_wait for g, v in verdicts.items() if v.exposed_or_wait is not None}
    if gpu_id not in lost or len(lost) < 2:
        return None

    def late(gpu: str) -> tuple[float, float]:
        return lateness(lost[gpu], [x for other, x in lost.items() if other != gpu])

    by, least = late(gpu_id)
    usual = median(w for g, w in waits.items() if g != gpu_id)
    own_most = max(_OWN_WAIT_MOST, _OWN_WAIT_OF_OTHERS * usual)
    if by < least or waits[gpu_id] > own_most:
        return None
    if sum(theirs >= needed for theirs, needed in map(late, lost)) > max(1.0, _SLOW_GPUS_MOST * len(lost)):
        return None
    return (
        Evidence("others_wait_longer", by, "ratio", least),
        *(_evidence("wait_of_others", usual) or ()),
        Evidence("own_wait", waits[gpu_id], "ratio", own_most),
    )


def small_buckets(facts: Facts, gpu_id: str) -> Answer:
    """Traffic in crumbs that costs running time: hidden traffic may be as slow as it likes."""
    exposed = exposed_communication(facts, gpu_id)
    ports = {p.id: p for p in facts.inventory.compute_ports()}
    for link in facts.inventory.links if exposed else ():
        if link.gpu_id == gpu_id and link.path == "rdma" and link.device_id in ports:
            found = crumbs(facts.series, ports[link.device_id], facts.t_s)
            if found is not None and exposed is not None:
                return (*found, exposed[0])
    return None


def power_capped(facts: Facts, gpu_id: str) -> Answer:
    """The power limit holds the clocks down."""
    return capped_power(facts.series, facts.device(gpu_id), facts.t_s)


# Below one half health and exposed are not given (the method's own limit): this finding says so in words.
_OBSERVABLE_LEAST = 0.5


def sensor_too_slow(facts: Facts, gpu_id: str) -> Answer:
    """The job communicates, and the sensors do not resolve its rhythm. Bytes that nobody can attribute are another matter."""
    verdict = facts.verdict(gpu_id)
    if verdict is None or verdict.state != "unobservable" or verdict.observability is None:
        return None
    if verdict.observability >= _OBSERVABLE_LEAST:
        return None
    return (
        Evidence("observability", verdict.observability, "ratio", _OBSERVABLE_LEAST),
        *(_evidence("resolution", verdict.resolution_s, "seconds") or ()),
        *(_evidence("step_period", verdict.step_period_s, "seconds", verdict.resolution_s) or ()),
    )


def link_degraded(facts: Facts, memory: LinkMemory) -> Answer:
    """A port of the job trained down, went down, or counts link errors."""
    return hurt_links(facts.series, facts.inventory.compute_ports(), memory, facts.t_s)


def network_congestion(facts: Facts, _memory: LinkMemory) -> Answer:
    """The fabric marks, pauses, drops or resends more than the traffic explains."""
    return congestion(facts.series, facts.inventory.compute_ports(), facts.t_s)


def shared_node(facts: Facts, _memory: LinkMemory) -> Answer:
    """A device carries GPUs of more than one job, and at least two of these jobs are running."""
    jobs_of: dict[str, set[str]] = {}
    for link in (*facts.inventory.links, *facts.transport.links):
        verdict = facts.verdict(link.gpu_id)
        if link.gpu_id in facts.inventory.jobs and verdict is not None and verdict.state not in ("idle", "no_data"):
            jobs_of.setdefault(link.device_id, set()).add(facts.inventory.jobs[link.gpu_id])
    shared = {device: jobs for device, jobs in jobs_of.items() if len(jobs) > 1}
    if not shared:
        return None
    jobs = set().union(*shared.values())
    return Evidence("jobs", float(len(jobs)), "count", 2.0), Evidence("shared_devices", float(len(shared)), "count", 1.0)


RULES: tuple[Rule, ...] = (
    Rule("exposed_communication",
         ("ddp_bucket_cap", "zero3_buckets", "fsdp_prefetch", "gradient_accumulation", "fsdp_reshard", "gradient_16bit",
          "hybrid_shard"), gpu=exposed_communication),
    Rule("tcp_fallback",
         ("nccl_debug", "nccl_variables", "nccl_ib_hca", "roce_gid", "nccl_socket_ifname", "pod_infiniband", "memlock",
          "rdma_libraries"), node=tcp_fallback),
    Rule("input_stall",
         ("loader_workers", "loader_prefetch", "loader_pinned", "checkpoint_async", "dataset_local", "loader_offline"),
         gpu=input_stall),
    Rule("straggler_wait",
         ("straggler_clocks", "straggler_xid", "straggler_host", "straggler_data", "straggler_replace"), gpu=straggler_wait),
    Rule("small_buckets", ("ddp_bucket_cap", "ddp_first_bucket", "zero3_buckets", "fsdp_larger_units"), gpu=small_buckets,
         every_s=4),
    Rule("link_degraded", ("link_inspect", "link_exclude", "link_reseat", "link_replace"), node=link_degraded, every_s=4),
    Rule("congestion", ("nccl_spread", "roce_gid", "placement", "roce_lossless"), node=network_congestion, every_s=4),
    Rule("power_capped", ("power_accept", "power_limit", "power_even"), gpu=power_capped),
    Rule("sensor_too_slow", ("sensor_bounds", "sensor_rate", "profile_once", "sensor_driver"), gpu=sensor_too_slow),
    Rule("shared_node", ("shared_pairing", "shared_exclusive"), node=shared_node),
)  # fmt: skip
