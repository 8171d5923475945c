"""THE table of recorded series: nodes, jobs and the cluster, out of the series of single GPUs.

`build.py` writes them; dashboards and alerts read them. A job is called `workload`, because `job` is Prometheus's own label:
`slurm/4711`, `namespace/name` of a group of pods, or `node/NAME` on a node where neither is known. Only the labels named here
survive, so that target labels (`pod`, `namespace`, `endpoint`, as a PodMonitor attaches them) never split or break a join.
"""

from __future__ import annotations

from deploy.prometheus.rule import Group, Recording

# The pods of one job differ by an ordinal, after a role and before a suffix that Kubernetes draws: `train-worker-3`,
# `train-0-x7k2p`, `train-workers-0-3-x7k2p`. Kubernetes draws suffixes without vowels, 0, 1 and 3.
POD_OF_JOB = (
    "(.+?)(?:-(?:master|worker|workers|launcher|leader|node|ps|chief|evaluator|head))?(?:-[0-9]+){1,2}(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?"
)
PHASES = ("overlapped", "exposed", "compute", "stall", "wait", "idle", "unknown")

W = "cluster, workload, workload_namespace"
GPU = "cluster, instance, uuid"
_ROW = f"cluster, instance, gpu, uuid, {W.removeprefix('cluster, ')}, workload_pod"
# One row per GPU and job: two pods of one job on a GPU are one.
_MEMBERS = f"max by ({GPU}, {W.removeprefix('cluster, ')}) (gpu:overlap_workload:info)"
_NODE_OF_W = f"cluster, instance, {W.removeprefix('cluster, ')}"


def _of_gpu(series: str) -> str:
    """A series of GPUs, one sample per GPU, whatever target labels came along."""
    return f"max by ({GPU}) ({series})"


def _ratio(level: str, phase: str) -> str:
    return f"{level}:overlap_phase_seconds:rate5m{{phase='{phase}'}}\n  / ignoring (phase) ({level}:overlap_running:rate5m > 0)"


def _health(level: str) -> str:
    phases = f"{level}:overlap_phase_seconds:rate5m"
    return f"""\
sum without (phase) ({phases}{{phase="overlapped"}})
  / (sum without (phase) ({phases}{{phase=~"overlapped|exposed"}}) > 0.01 * {level}:overlap_running:rate5m)"""


def _shares(level: str, whom: str) -> tuple[Recording, ...]:
    """Running time, health and the shares that are lost, of a level whose phases are recorded."""
    return (
        Recording(f"{level}:overlap_running:rate5m",
                  f'sum without (phase) ({level}:overlap_phase_seconds:rate5m{{phase!~"idle|unknown"}})',
                  f"Running time of {whom}: GPUs that ran and could be judged."),
        Recording(f"{level}:overlap_health:ratio_rate5m", _health(level),
                  f"Share of the communication time of {whom} that was hidden. GPUs count by the time that they ran. "
                  "Absent below one percent of communication."),
        *(Recording(f"{level}:overlap_{phase}:ratio_rate5m", _ratio(level, phase)) for phase in ("exposed", "stall", "wait")),
    )  # fmt: skip


WORKLOADS = Group(
    "overlap-workloads", 30,
    (
        Recording(
            "gpu:overlap_workload:info",
            f"""\
max by ({_ROW}) (
  label_join(overlap_gpu_job_info, "workload", "/", "scheduler", "job_id")
)
or on ({GPU})
max by ({_ROW}) (
  label_join(
    label_replace(
      label_replace(overlap_gpu_pod_info, "workload_name", "$1", "workload_pod", "(.+)"),
      "workload_name", "$1", "workload_pod", "{POD_OF_JOB}"
    ),
    "workload", "/", "workload_namespace", "workload_name"
  )
)
or on (cluster, instance)
max by ({_ROW}) (
  label_replace(overlap_gpu_up, "workload", "node/$1", "instance", "(.*)") >= bool 0
)""",
            "Which GPU works for which job: the Slurm job, else the pods, else, where the node knows of neither, the node "
            "itself. A GPU that two pods share has a row for each."),
        *(Recording(
            "instance_workload:overlap_phase_seconds:rate5m",
            f"""\
sum by ({_NODE_OF_W}) (
  {_MEMBERS}
  * on ({GPU}) group_left ()
  {_of_gpu(f'rate(overlap_phase_seconds_total{{phase="{phase}"}}[5m])')}
)""",
            "GPU-seconds per second of each job on each node, by phase." if phase == PHASES[0] else "",
            {"phase": phase}) for phase in PHASES),
        *_shares("instance_workload", "a job on one node"),
        Recording("instance_workload:overlap_busy:rate5m",
                  'sum without (phase) (instance_workload:overlap_phase_seconds:rate5m{phase!="idle"})',
                  "GPUs of a job on a node that were not idle, judged or not."),
        Recording("instance_workload:overlap_gpus:count",
                  f"count by ({_NODE_OF_W}) (\n  {_MEMBERS}\n  * on ({GPU}) group_left ()\n  "
                  f"{_of_gpu('overlap_gpu_up == 1')}\n)",
                  "GPUs of a job on a node that answer."),
        Recording("instance_workload:overlap_step_period_seconds:median",
                  f"quantile by ({_NODE_OF_W}) (\n  0.5,\n  {_MEMBERS}\n  * on ({GPU}) group_left ()\n"
                  f"  {_of_gpu('overlap_step_period_seconds')}\n)",
                  "Period of the steps of a job, as its GPUs on one node show it."),
        Recording("workload:overlap_phase_seconds:rate5m",
                  "sum without (instance) (instance_workload:overlap_phase_seconds:rate5m)",
                  "The same of whole jobs: GPU-seconds per second, which is the number of GPUs that the phase costs."),
        *_shares("workload", "a job"),
        Recording("workload:overlap_gpus:count", "sum without (instance) (instance_workload:overlap_gpus:count)"),
        Recording("workload:overlap_nodes:count", "count without (instance) (instance_workload:overlap_gpus:count)"),
        Recording("workload:overlap_place:info",
                  f"(\n  max by ({_NODE_OF_W}) (gpu:overlap_workload:info)\n  and on ({W})\n"
                  f"  count by ({W}) (max by ({_NODE_OF_W}) (gpu:overlap_workload:info)) == 1\n)\n"
                  f"or on ({W})\nmax by ({W}) (gpu:overlap_workload:info)",
                  "Lends the alerts of a job that runs on one node the name of that node, so that what is said of the node "
                  "(it is down) can silence what is said of the job."),
    ),
    "Jobs. A GPU that could not be judged counts in neither side of a ratio; everything else counts by its seconds.",
)  # fmt: skip

STRAGGLERS = Group(
    "overlap-stragglers", 30,
    (
        Recording(
            "workload:overlap_step_period_seconds:spread_ratio",
            f"(\n  max by ({W}) (instance_workload:overlap_step_period_seconds:median)\n"
            f"  - min by ({W}) (instance_workload:overlap_step_period_seconds:median)\n)\n"
            f"/ quantile by ({W}) (0.5, instance_workload:overlap_step_period_seconds:median)",
            "How far apart the nodes of a job see its steps. Nodes that step together see one period: a spread means that "
            "they do not, or that some see a multiple of it."),
        Recording(
            "instance_workload:overlap_wait_least:ratio_rate5m",
            f"""\
min by ({_NODE_OF_W}) (
  {_MEMBERS}
  * on ({GPU}) group_left ()
  (
    {_of_gpu('rate(overlap_phase_seconds_total{phase="wait"}[5m])')}
    / (sum by ({GPU}) (max by ({GPU}, phase) (rate(overlap_phase_seconds_total{{phase!~"idle|unknown"}}[5m]))) > 0)
  )
)""",
            "Wait of the GPU that waits least on the node: one slow GPU keeps all others of its job waiting, and not "
            "itself."),
        Recording(
            "instance_workload:overlap_straggler_wait:ratio_rate5m",
            f"""\
(
  quantile by ({W}) (0.5, instance_workload:overlap_wait_least:ratio_rate5m)
  - on ({W}) group_right ()
  instance_workload:overlap_wait_least:ratio_rate5m
)
and on ({W}) quantile by ({W}) (0.5, instance_workload:overlap_wait_least:ratio_rate5m) >= 0.08
and on ({W}) count by ({W}) (instance_workload:overlap_wait_least:ratio_rate5m) >= 2
and on ({_NODE_OF_W}) (
  instance_workload:overlap_wait_least:ratio_rate5m
  <= on ({W}) group_left ()
  quantile by ({W}) (0.5, instance_workload:overlap_wait_least:ratio_rate5m) / 3
)
or on ({_NODE_OF_W})
(
  instance_workload:overlap_wait:ratio_rate5m
  and on ({_NODE_OF_W})
  (
    {_MEMBERS}
    * on ({GPU}) group_left ()
    {_of_gpu('overlap_finding{finding="straggler_wait"}')}
  )
)""",
            "The nodes that the others wait for, and how much of their time that costs them. Either the node's own least "
            "wait is a third of what is usual in the job (0.08 and more: waits are known to 0.02), or its exporter has "
            "found the slow GPU among its own."),
    ),
)  # fmt: skip

CLUSTER = Group(
    "overlap-cluster", 30,
    (
        Recording("instance:overlap_phase_seconds:rate5m",
                  "sum by (cluster, instance, phase) (\n"
                  f"  max by ({GPU}, phase) (rate(overlap_phase_seconds_total[5m]))\n)",
                  "GPU-seconds per second of each node, by phase: without the join, so that a GPU that two pods share "
                  "counts once."),
        *_shares("instance", "a node"),
        Recording("instance:overlap_state:worst",
                  "max by (cluster, instance) (\n"
                  + "\n".join(f"  {'or ' if code else ''}overlap_state{{state=\"{state}\"}} * {code}"
                              for code, state in enumerate(("no_data", "idle", "compute_only", "overlapped", "unobservable",
                                                            "partial", "stalled", "serialized")))
                  + "\n)",
                  "The worst state of the node's GPUs as a number: 0 no data, 1 idle, 2 compute only, 3 overlapped, 4 "
                  "unobservable, 5 partial, 6 stalled, 7 serialized."),
        Recording("cluster:overlap_phase_seconds:rate5m", "sum without (instance) (instance:overlap_phase_seconds:rate5m)",
                  "The whole cluster: GPU-seconds per second. Its sum over a day, in steps of a minute and divided by 60, "
                  "is GPU-hours."),
        *_shares("cluster", "the cluster"),
    ),
)  # fmt: skip

PORTS = Group(
    "overlap-ports", 30,
    (
        Recording("port:overlap_rdma_active:timestamp_seconds",
                  "max by (cluster, instance, device, port) (timestamp(overlap_rdma_port_up == 1))\n"
                  "or\nport:overlap_rdma_active:timestamp_seconds > time() - 86400",
                  "When a port was last up, for ports that were up within a day: many nodes carry ports that never had a "
                  "cable. It "
                  "carries its own last value on, because a look back over a day of samples of all ports takes seconds in "
                  "a large "
                  "cluster; after more than five minutes without rules it begins anew."),
    ),
)  # fmt: skip

RECORDING: tuple[Group, ...] = (WORKLOADS, STRAGGLERS, CLUSTER, PORTS)
