"""THE table of alerts: what is worth a person's time, with the reason for every limit and every minute.

`build.py` writes them. One bad job is one alert, however many GPUs it has: what concerns a job is grouped by `workload`, what
concerns a machine by `instance`. severity: critical wakes somebody, warning is for working hours, info is for dashboards.
"""

from __future__ import annotations

from deploy.prometheus.recording import GPU, W
from deploy.prometheus.rule import Alert, Group

_WORKLOAD = "{{ $labels.workload }}"
_NODE = "{{ $labels.instance }}"
_SHARE = "{{ $value | humanizePercentage }}"
_JOB_PANEL = "/d/overlap-job?var-workload={{ $labels.workload }}&var-cluster={{ $labels.cluster }}"
_NODE_PANEL = "/d/overlap-node?var-instance={{ $labels.instance }}&var-cluster={{ $labels.cluster }}"
_SELF_PANEL = "/d/overlap-exporter?var-instance={{ $labels.instance }}&var-cluster={{ $labels.cluster }}"
_MINUTE, _HOUR = 60, 3600


_TENTHS = 'printf "%.1f"'


def _placed(expr: str) -> str:
    """With the name of the node, where the job runs on one node only."""
    return f"(\n{expr}\n)\n* on ({W}) group_left (instance) workload:overlap_place:info"


def _asked(series: str, format_: str = "humanize", phase: str = "") -> str:
    """A recorded number of the job, for a text."""
    names = f"phase='{phase}'," if phase else ""
    query = (f'printf "{series}{{{names}workload=%q,workload_namespace=%q,cluster=%q}}" '
             "$labels.workload $labels.workload_namespace $labels.cluster")
    return f"{{{{ range query ({query}) }}}}{{{{ .Value | {format_} }}}}{{{{ end }}}}"


def _members_with(finding: str) -> str:
    """How many GPUs of each job have a finding."""
    return (f"count by ({W}) (\n  max by ({GPU}, {W.removeprefix('cluster, ')}) (gpu:overlap_workload:info)\n"
            f'  and on ({GPU}) (overlap_finding{{finding="{finding}"}} == 1)\n)')  # fmt: skip


def _nodes_with(finding: str) -> str:
    """How many busy nodes of each job have a finding of the node."""
    return (f"count by ({W}) (\n  instance_workload:overlap_busy:rate5m > 0.1 * instance_workload:overlap_gpus:count\n"
            f'  and on (cluster, instance) (overlap_finding{{finding="{finding}"}} == 1)\n)')  # fmt: skip


_RUNS = f"and on ({W})\nworkload:overlap_running:rate5m > 0.1 * workload:overlap_gpus:count"

_JOBS: tuple[Alert, ...] = (
    Alert(
        name="OverlapSerialized",
        severity="warning",
        expr=_placed(f"workload:overlap_exposed:ratio_rate5m >= 0.15\n{_RUNS}"),
        for_s=15 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="Cost, not health: what is lost is the share of running time, over 300 seconds. 0.15 is 150 GPUs out of 1,000; "
            "the error of the share is 0.03, so that a job below 0.12 cannot raise it. A job that hardly runs yet has no "
            "share worth a name.",
        why_for="Start-up, evaluation and checkpoints pass within a quarter of an hour; a job that overlaps badly does so "
                "for days.",
        why_keep="The share moves with every evaluation loop: ten minutes below the limit end it, a dip does not, and the "
                 "same alert is not sent twice.",
        summary=f"{_WORKLOAD} loses {_SHARE} of its time to communication that nothing hides, on "
                f"{_asked('workload:overlap_gpus:count')} "
                f"GPUs: as if {_asked('workload:overlap_phase_seconds:rate5m', _TENTHS, 'exposed')} of them did nothing. "
                f"Health {_asked('workload:overlap_health:ratio_rate5m', 'humanizePercentage')}",
        description="Compute waits for the network in every step. Look at the job's nodes side by side, then change "
                    "prefetch and buckets as the runbook lists them.",
        panel=_JOB_PANEL,
    ),
    Alert(
        name="OverlapDegraded",
        severity="warning",
        expr=_placed(f"""\
(
  workload:overlap_exposed:ratio_rate5m
  - quantile_over_time(0.5, workload:overlap_exposed:ratio_rate5m[6h] offset 1h)
) >= 0.1
and on ({W})
count_over_time(workload:overlap_exposed:ratio_rate5m[6h] offset 1h) >= 60
{_RUNS}"""),
        for_s=20 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="Against the job's own last hours: the median of six hours that ended an hour ago, from at least half an hour "
            "of them. A tenth of the time is three times the error of the share. It ends by itself when the new level has "
            "lasted four hours: then it is the job's own, and OverlapSerialized judges it.",
        why_for="Longer than an evaluation or a checkpoint of a large model takes.",
        why_keep="As for OverlapSerialized.",
        summary=f"{_WORKLOAD} loses {_SHARE} of its time more to exposed communication than in the hours before, on "
                f"{_asked('workload:overlap_gpus:count')} GPUs: now "
                f"{_asked('workload:overlap_exposed:ratio_rate5m', 'humanizePercentage')}",
        description="The job was better before. Something changed under it: a link, the fabric, a neighbour, or its "
                    "configuration after a restart.",
        panel=_JOB_PANEL,
    ),
    Alert(
        name="RdmaFellBackToTcp",
        severity="critical",
        expr=_placed(_nodes_with("tcp_fallback")),
        for_s=3 * _MINUTE,
        keep_s=15 * _MINUTE,
        why="The exporter names this only where RDMA ports are up and an interface moves two-way traffic in the rhythm of "
            "the GPUs. NCCL chooses once, at the start of the job: it never repairs itself.",
        why_for="The finding has stood for 30 s already; three minutes leave out jobs that die at their start.",
        why_keep="A job that stops for a checkpoint is quiet, not cured.",
        summary=f"{_WORKLOAD} moves its gradients over TCP on {{{{ $value }}}} of {_asked('workload:overlap_nodes:count')} "
                f"nodes although RDMA is up: {_asked('workload:overlap_exposed:ratio_rate5m', 'humanizePercentage')} of "
                "its "
                "time is exposed communication",
        description="Every collective of the job is as slow as its slowest node. Read what NCCL logged at the start, "
                    "correct it, restart the job.",
        panel=_JOB_PANEL,
    ),
    Alert(
        name="InputStall",
        severity="warning",
        expr=_placed(f"workload:overlap_stall:ratio_rate5m >= 0.15\n{_RUNS}"),
        for_s=15 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="The finding begins at 0.10 and the state at 0.17. At 0.15 one GPU in seven does nothing because the input is "
            "not there.",
        why_for="The first epoch fills caches, and a checkpoint is a stall that ends.",
        why_keep="Loaders recover and fall behind again with every shard.",
        summary=f"{_WORKLOAD} spends {_SHARE} of its time without data: no kernel, no traffic, on "
                f"{_asked('workload:overlap_gpus:count')} GPUs",
        description="The GPUs wait for the loader or for storage, not for the network. Compare with disk reads, writes and "
                    "iowait on the node dashboard.",
        panel=_JOB_PANEL,
    ),
    Alert(
        name="StragglerNode",
        severity="warning",
        expr=f"instance_workload:overlap_straggler_wait:ratio_rate5m\nand on ({W})\n"
        f"count by ({W}) (instance_workload:overlap_straggler_wait:ratio_rate5m) <= 3",
        for_s=15 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="Nodes that the rest of their job waits for. More than three such nodes are no stragglers but uneven work, "
            "which is for the one who wrote the job.",
        why_for="A node that is slow for minutes may be writing a checkpoint; one that is slow for a quarter of an hour "
                "stays so.",
        why_keep="Waits swing with the length of the sequences.",
        summary=f"{_NODE} keeps {_WORKLOAD} waiting: the other GPUs lose {_SHARE} of their time to it",
        description="Compare clocks, temperature, throttling and XID errors of this node's GPUs with those of the others.",
        panel=_NODE_PANEL,
    ),
    Alert(
        name="RdmaCongestion",
        severity="warning",
        expr=_placed(f"{_nodes_with('congestion')}\nunless on ({W})\nworkload:overlap_exposed:ratio_rate5m < 0.05"),
        for_s=15 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="Marks, pauses and losses that cost nothing are the fabric doing its work: below 0.05 of exposed time nobody "
            "is told. Where the share is unknown, the finding alone counts.",
        why_for="Other jobs' checkpoints and starts congest a fabric for minutes.",
        why_keep="Congestion comes in waves.",
        summary=f"The network is congested on {{{{ $value }}}} of {_asked('workload:overlap_nodes:count')} nodes of "
                f"{_WORKLOAD}, which loses {_asked('workload:overlap_exposed:ratio_rate5m', 'humanizePercentage')} of its "
                "time "
                "to exposed communication",
        description="Packets are marked, paused, lost or sent again more often than a healthy fabric does for this "
                    "traffic.",
        panel=_JOB_PANEL,
    ),
    Alert(
        name="GpuPowerCapped",
        severity="info",
        expr=_placed(_members_with("power_capped")),
        for_s=30 * _MINUTE,
        keep_s=30 * _MINUTE,
        why="Never more than info: a GPU at its limit is fully used, and good overlap looks like this. It matters where "
            "only some GPUs of a job are held down, because all others wait for them.",
        why_for="Nothing here is urgent.",
        why_keep="The limit is brushed and left many times an hour.",
        summary="{{ $value }} of " + _asked("workload:overlap_gpus:count")
                + f" GPUs of {_WORKLOAD} are held down by their power limit",
        description="Compare the limits and clocks of the job's GPUs: uneven ones cost all of them time.",
        panel=_JOB_PANEL,
    ),
    Alert(
        name="SensorTooSlow",
        severity="info",
        expr=_placed(_members_with("sensor_too_slow")),
        for_s=30 * _MINUTE,
        keep_s=30 * _MINUTE,
        why="The exporter says itself that it cannot judge these GPUs: no alert on them will come, and somebody should "
            "know.",
        why_for="A job's rhythm changes with its phases; half an hour is its own.",
        why_keep="As long again, so that it is told once per job.",
        summary="{{ $value }} of " + _asked("workload:overlap_gpus:count")
                + f" GPUs of {_WORKLOAD} cannot be judged: the job is faster than the sensors",
        description="Only bounds of the exposed share are known (overlap_exposed_low_ratio, overlap_exposed_high_ratio). "
                    "Profile a few steps once.",
        panel=_JOB_PANEL,
    ),
)  # fmt: skip

# Ports that are down and should not be; {} takes matchers of the node.
_DEAD_PORTS = """\
  max by (cluster, instance, device, port) (overlap_rdma_port_up{}) == 0
  and on (cluster, instance, device, port)
  (
    port:overlap_rdma_active:timestamp_seconds
    or max by (cluster, instance, device, port) (overlap_gpu_link_info{{path="rdma"}})
  )"""
_OF_NODE = "{instance=%q,cluster=%q}"


def _each(series: str, text: str) -> str:
    """A text for each series of the node, by device."""
    query = " ".join(series.split()).replace('"', "'")
    asked = f'query (printf "{query}" $labels.instance $labels.cluster) | sortByLabel "device"'
    return f"{{{{ range {asked} }}}}{text} {{{{ end }}}}"


_MACHINES: tuple[Alert, ...] = (
    Alert(
        name="RdmaLinkDown",
        severity="critical",
        expr=f"count by (cluster, instance) (\n{_DEAD_PORTS.format('')}\n)",
        for_s=2 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="Only ports that a GPU is paired with, or that were up within a day: many nodes carry ports that never had a "
            "cable.",
        why_for="A link that trains again is back within seconds, a switch that restarts within minutes.",
        why_keep="A link that flaps is down, whatever it says now.",
        summary=f"{{{{ $value }}}} RDMA ports of {_NODE} are down: "
                + _each(_DEAD_PORTS.format(_OF_NODE), "{{ .Labels.device }}/{{ .Labels.port }}"),
        description="Jobs on this node hang or fall back to fewer ports. Keep new jobs away until the link is back.",
        panel=_NODE_PANEL,
    ),
    Alert(
        name="RdmaLinkDegraded",
        severity="warning",
        expr="max by (cluster, instance) (overlap_finding{finding=\"link_degraded\"})",
        for_s=5 * _MINUTE,
        keep_s=30 * _MINUTE,
        why="The finding compares each port with its own best rate and with that of its peers, and counts link errors over "
            "five minutes. The slowest link decides for the whole job, so that one port is enough.",
        why_for="Five minutes leave out a link that trains again after a cable was touched.",
        why_keep="Errors come in bursts; half an hour without one is a repair.",
        summary=f"A link of {_NODE} is slower than it should be. Rates now: "
                + _each("overlap_rdma_port_rate_bytes_per_second" + _OF_NODE,
                        "{{ .Labels.device }}/{{ .Labels.port }} {{ .Value | humanize }}B/s"),
        description="A port runs below its own or its peers' rate, or counts link errors. The live page of the node names "
                    "port and number.",
        panel=_NODE_PANEL,
    ),
    Alert(
        name="GpuLost",
        severity="critical",
        expr="""\
count by (cluster, instance) (max by (cluster, instance, gpu, uuid) (overlap_gpu_up) == 0)
or on (cluster, instance)
max by (cluster, instance) (overlap_gpus{origin="pci"}) - max by (cluster, instance) (overlap_gpus{origin="nvml"}) > 0""",
        for_s=3 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="A GPU that was there and does not answer, or one that the PCI bus shows and the driver does not.",
        why_for="A driver that is loaded anew, or a reader that is replaced, takes the GPUs away for seconds.",
        why_keep="A GPU that comes back without a reset goes again.",
        summary="{{ $value }} GPUs of " + _NODE + " do not answer",
        description="The job that used them has died or hangs. Drain the node, look for XID errors in the kernel log, "
                    "reset or replace.",
        panel=_NODE_PANEL,
    ),
)  # fmt: skip

_EXPORTER: tuple[Alert, ...] = (
    Alert(
        name="ExporterSourceDown",
        severity="warning",
        expr="""\
max by (cluster, instance, source) (overlap_source_up) == 0
and on (cluster, instance, source) overlap_source_last_success_timestamp_seconds
or on (cluster, instance, source)
max by (cluster, instance, source) (overlap_source_up{source="nvml"}) == 0
and on (cluster, instance) overlap_gpus{origin="pci"} > 0""",
        for_s=10 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="Sources that answered before, and NVML on every node whose PCI bus has GPUs. A node without GPUs or RDMA is "
            "no fault.",
        why_for="Readers are restarted with up to 30 s of back-off; a driver upgrade takes minutes.",
        why_keep="A source that comes and goes is down.",
        summary="The exporter on " + _NODE + " has no readings of {{ $labels.source }}",
        description="Health and exposed of this node are missing or rest on fewer readings. Run overlap-exporter doctor on "
                    "it.",
        panel=_SELF_PANEL,
    ),
    Alert(
        name="ExporterSamplesLate",
        severity="warning",
        expr="""\
sum by (cluster, instance, source) (rate(overlap_source_missed_ticks_total[5m]))
  / sum by (cluster, instance, source) (
    rate(overlap_source_missed_ticks_total[5m]) + rate(overlap_source_reads_total[5m])
  ) > 0.1
or on (cluster, instance, source)
(
  max by (cluster, instance, source) (
    timestamp(overlap_source_last_success_timestamp_seconds) - overlap_source_last_success_timestamp_seconds
  ) > 120
  and on (cluster, instance, source)
  max by (cluster, instance, source) (overlap_source_up) == 1
)""",
        for_s=15 * _MINUTE,
        keep_s=10 * _MINUTE,
        why="One read in ten left out halves the resolution at the worst moments. The age of two minutes also shows a node "
            "whose clock is wrong.",
        why_for="A node that boots, or compiles, is busy for minutes.",
        why_keep="As for the others.",
        summary=f"The exporter on {_NODE} reads {{{{ $labels.source }}}} late: {{{{ if lt $value 1.0 }}}}{_SHARE} of the "
                "reads "
                "are left out{{ else }}the last one is {{ $value | humanizeDuration }} old{{ end }}",
        description="Shares of time from such readings are less certain. The node is short of CPU time, or a device "
                    "answers slowly.",
        panel=_SELF_PANEL,
    ),
    Alert(
        name="ExporterDown",
        severity="warning",
        expr='up{job="overlap-exporter"} == 0',
        for_s=5 * _MINUTE,
        keep_s=5 * _MINUTE,
        why="No metrics from a node that is configured. It also silences the other alerts of the node (see the "
            "Alertmanager example): what is not seen cannot be judged.",
        why_for="A node that boots takes five minutes; a rolling upgrade of the exporter takes one.",
        why_keep="A target that answers every other scrape is down.",
        summary="The exporter on " + _NODE + " cannot be scraped",
        description="Look whether the node is up, then at the exporter's log and at whether the port can be reached.",
        panel=_SELF_PANEL,
    ),
)  # fmt: skip

ALERTS: tuple[Group, ...] = (
    Group("overlap-alerts-jobs", 30, _JOBS),
    Group("overlap-alerts-machines", 30, _MACHINES),
    Group("overlap-alerts-exporter", 30, _EXPORTER),
)
