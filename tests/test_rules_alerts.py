"""Every alert by promtool: the minute from which it fires, the minutes at which it must not, and what it says.

Series are those of the exporter; the recording rules stand between them and the alerts, as in production.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.prometheus.alerts import ALERTS
from deploy.prometheus.rule import Alert
from deploy.prometheus.runbooks import runbook_url
from tests.promtool import run

TABLE: Mapping[str, Alert] = {rule.name: rule for group in ALERTS for rule in group.rules if isinstance(rule, Alert)}
PHASES = ("overlapped", "exposed", "compute", "stall", "wait", "idle", "unknown")


def constant(value: float, minutes: int) -> str:
    return f"{value:g}x{minutes}"


def steps(*parts: tuple[float, int]) -> str:
    """A gauge: value, minutes; value, minutes ..."""
    return " ".join(f"{value:g}x{minutes - 1}" for value, minutes in parts)


def counter(*parts: tuple[float, int]) -> str:
    """A counter: growth per second, minutes; ..."""
    out, total = ["0"], 0.0
    for per_s, minutes in parts:
        step = 60 * per_s
        out.append(f"{total + step:g}+{step:g}x{minutes - 1}")
        total += step * minutes
    return " ".join(out)


def phases(node: str, uuid: str, *parts: tuple[Mapping[str, float], int]) -> Iterator[tuple[str, str]]:
    for phase in PHASES:
        yield (f'overlap_phase_seconds_total{{instance="{node}",gpu="{uuid}",uuid="{uuid}",phase="{phase}"}}',
               counter(*((shares.get(phase, 0.0), minutes) for shares, minutes in parts)))


def gpu(node: str, uuid: str, *parts: tuple[Mapping[str, float], int]) -> dict[str, str]:
    minutes = sum(m for _, m in parts)
    return {f'overlap_gpu_up{{instance="{node}",gpu="{uuid}",uuid="{uuid}"}}': constant(1, minutes),
            **dict(phases(node, uuid, *parts))}


def job(gpus: int, *parts: tuple[Mapping[str, float], int], nodes: int = 1) -> dict[str, str]:
    """A job with pods on `nodes` nodes of `gpus` GPUs, all alike."""
    series: dict[str, str] = {}
    minutes = sum(m for _, m in parts)
    for n in range(nodes):
        for g in range(gpus):
            series |= gpu(f"n{n}", f"{n}{g}", *parts)
            pod = f'mig_uuid="",workload_namespace="llm",workload_pod="train-worker-{n}",workload_container="main"'
            series[f'overlap_gpu_pod_info{{instance="n{n}",gpu="{n}{g}",uuid="{n}{g}",{pod}}}'] = constant(1, minutes)
    return series


def finding(name: str, node: str, values: str, uuid: str = "") -> dict[str, str]:
    return {f'overlap_finding{{instance="{node}",finding="{name}",gpu="{uuid}",uuid="{uuid}"}}': values}


def uneven(nodes: int, quick: int) -> dict[str, str]:
    """A job whose first nodes wait less than the rest."""
    waits = [{"wait": 0.01 if n < quick else 0.3, "compute": 0.7} for n in range(nodes)]
    pods = {k: v for k, v in job(1, (GOOD, 60), nodes=nodes).items() if "pod_info" in k}
    return pods | {k: v for n in range(nodes) for k, v in gpu(f"n{n}", f"{n}0", (waits[n], 60)).items()}


GOOD = {"overlapped": 0.5, "compute": 0.48, "exposed": 0.02}
BAD = {"overlapped": 0.1, "compute": 0.5, "exposed": 0.4}
WORSE = {"overlapped": 0.4, "compute": 0.46, "exposed": 0.14}
STALLED = {"stall": 0.3, "compute": 0.4, "overlapped": 0.3}
IDLE = {"idle": 1.0}
TRAIN = {"workload": "llm/train", "workload_namespace": "llm"}
ON_N0 = TRAIN | {"instance": "n0"}
PORT = 'overlap_rdma_port_up{{instance="n0",device="mlx5_{}",port="1"}}'


@dataclass(frozen=True)
class Case:
    """One story. fires: minutes at which exactly the `expected` (labels -> summary) fire; silent: minutes at which none do."""

    alert: str
    story: str
    series: Mapping[str, str]
    silent: tuple[int, ...]
    fires: tuple[int, ...] = ()
    expected: tuple[tuple[Mapping[str, str], str], ...] = ()
    kept: tuple[tuple[int, str], ...] = ()  # minutes at which it is still kept firing, and its summary then

    def __str__(self) -> str:
        return f"{self.alert}: {self.story}"


def source(name: str, values: str, node: str = "n0") -> dict[str, str]:
    return {f'overlap_source_up{{instance="{node}",source="{name}"}}': values}


CASES: tuple[Case, ...] = (
    # Bad from minute 20: the five minutes of rate() hold 0.15 after two of them, and 15 minutes later it fires.
    Case("OverlapSerialized", "a job of two nodes is one alert, and ends ten minutes after it is well",
         job(4, (GOOD, 20), (BAD, 30), (GOOD, 40), nodes=2), (10, 20, 30, 36, 68, 80), (38, 45, 50),
         ((TRAIN, "llm/train loses 40% of its time to communication that nothing hides, on 8 GPUs: as if 3.2 of them did "
                  "nothing. Health 20%"),),
         kept=((58, "llm/train loses 17.2% of its time to communication that nothing hides, on 8 GPUs: as if 1.4 of them did "
                    "nothing. Health 66.41%"),)),
    Case("OverlapSerialized", "a job on one node carries the name of the node",
         job(2, (BAD, 40)), (10, 15), (20, 30),
         ((ON_N0, "llm/train loses 40% of its time to communication that nothing hides, on 2 GPUs: as if 0.8 of them did "
                  "nothing. Health 20%"),)),
    Case("OverlapSerialized", "a node that knows of no job is named itself",
         gpu("n0", "a", (BAD, 40)), (10,), (20, 30),
         (({"workload": "node/n0", "instance": "n0"},
           "node/n0 loses 40% of its time to communication that nothing hides, on 1 GPUs: as if 0.4 of them did nothing. "
           "Health 20%"),)),
    Case("OverlapSerialized", "bad overlap that costs little is no alert: health 0, and a twentieth of the time",
         job(2, ({"exposed": 0.05, "compute": 0.95}, 60)), (20, 40, 60)),
    Case("OverlapSerialized", "ten bad minutes are no alert", job(2, (GOOD, 20), (BAD, 10), (GOOD, 30)), (25, 30, 35, 40, 50)),
    Case("OverlapSerialized", "what could not be judged is no alert", job(2, ({"unknown": 1.0}, 60)), (20, 40, 60)),
    Case("OverlapSerialized", "a job that runs for a few seconds a minute is no alert",
         job(2, ({"exposed": 0.04, "compute": 0.01, "idle": 0.95}, 60)), (20, 40, 60)),
    Case("OverlapDegraded", "worse than in its own hours before, until that is its own level",
         job(1, (GOOD, 100), (WORSE, 190)), (30, 100, 118, 285), (135, 200, 250),
         ((ON_N0, "llm/train loses 12% of its time more to exposed communication than in the hours before, on 1 GPUs: now "
                  "14%"),)),
    Case("OverlapDegraded", "a job without a past is not compared", job(1, (BAD, 80)), (30, 60, 80)),
    Case("OverlapDegraded", "a job that was always like this has not degraded", job(1, (BAD, 240)), (60, 120, 240)),
    Case("RdmaFellBackToTcp", "one alert for all nodes of the job",
         job(2, (BAD, 60), nodes=3) | finding("tcp_fallback", "n0", steps((1, 31)))
         | finding("tcp_fallback", "n2", steps((1, 31))),
         (2, 60), (5, 20, 30, 44),
         ((TRAIN, "llm/train moves its gradients over TCP on 2 of 3 nodes although RDMA is up: 40% of its time is exposed "
                  "communication"),)),
    Case("RdmaFellBackToTcp", "a finding of two minutes is no alert",
         job(2, (BAD, 60)) | finding("tcp_fallback", "n0", "_x9 1x1 stale"), (5, 11, 13, 20, 40)),
    Case("RdmaFellBackToTcp", "a node of the job that is idle is none",
         gpu("n0", "a", (IDLE, 40)) | finding("tcp_fallback", "n0", constant(1, 40)), (10, 30)),
    Case("InputStall", "waits for data", job(2, (GOOD, 10), (STALLED, 40)), (10, 20, 25), (30, 45),
         ((ON_N0, "llm/train spends 30% of its time without data: no kernel, no traffic, on 2 GPUs"),)),
    Case("InputStall", "a checkpoint of five minutes is no alert",
         job(2, (GOOD, 20), (STALLED, 5), (GOOD, 30)), (20, 25, 30, 40)),
    Case("StragglerNode", "the node that the others wait for, by name",
         job(1, ({"wait": 0.3, "compute": 0.7}, 40), nodes=3)
         | gpu("n1", "10", ({"wait": 0.01, "compute": 0.99}, 40)),
         (5, 14), (20, 35),
         ((TRAIN | {"instance": "n1"}, "n1 keeps llm/train waiting: the other GPUs lose 29% of their time to it"),)),
    Case("StragglerNode", "many nodes that wait less are uneven work",
         uneven(20, 5), (20, 35, 60)),
    Case("RdmaCongestion", "congestion that costs something",
         job(1, ({"exposed": 0.1, "overlapped": 0.3, "compute": 0.6}, 50), nodes=2)
         | finding("congestion", "n1", constant(1, 50)),
         (5, 14), (20, 40),
         ((TRAIN, "The network is congested on 1 of 2 nodes of llm/train, which loses 10% of its time to exposed "
                  "communication"),)),
    Case("RdmaCongestion", "congestion that costs nothing is nobody's business",
         job(1, (GOOD, 50)) | finding("congestion", "n0", constant(1, 50)), (20, 40)),
    Case("RdmaLinkDown", "a port that was up within the day, and one that is paired",
         {PORT.format(0): steps((1, 11), (0, 60)), PORT.format(1): constant(0, 70), PORT.format(2): constant(0, 70),
          'overlap_gpu_link_info{instance="n0",gpu="0",uuid="A",device="mlx5_2",port="1",path="rdma",reason="PIX"}':
          constant(1, 70)},
         (1,), (15, 40),
         (({"instance": "n0"}, "2 RDMA ports of n0 are down: mlx5_0/1 mlx5_2/1 "),)),
    Case("RdmaLinkDown", "a port that never had a cable is no alert",
         {PORT.format(0): constant(0, 60), PORT.format(1): constant(1, 60)}, (10, 30, 60)),
    Case("RdmaLinkDown", "a port that trains again within a minute is no alert",
         {PORT.format(0): steps((1, 20), (0, 1), (1, 30))}, (10, 21, 23, 40)),
    Case("RdmaLinkDegraded", "a slow link, until half an hour after it is repaired",
         finding("link_degraded", "n0", steps((1, 20)))
         | {'overlap_rdma_port_rate_bytes_per_second{instance="n0",device="mlx5_0",port="1"}': constant(2.5e10, 90)},
         (3, 62, 80), (6, 20, 45),
         (({"instance": "n0"}, "A link of n0 is slower than it should be. Rates now: mlx5_0/1 25GB/s "),)),
    Case("GpuLost", "a GPU that does not answer any more",
         {'overlap_gpu_up{instance="n0",gpu="0",uuid="A"}': constant(1, 40),
          'overlap_gpu_up{instance="n0",gpu="1",uuid="B"}': steps((1, 10), (0, 30))},
         (5, 10, 12), (14, 30), (({"instance": "n0"}, "1 GPUs of n0 do not answer"),)),
    Case("GpuLost", "GPUs that the bus shows and the driver does not",
         {'overlap_gpus{instance="n0",origin="pci"}': constant(8, 40),
          'overlap_gpus{instance="n0",origin="nvml"}': constant(6, 40)},
         (2,), (5, 30), (({"instance": "n0"}, "2 GPUs of n0 do not answer"),)),
    Case("GpuLost", "a driver that is loaded anew for two minutes is no alert",
         {'overlap_gpu_up{instance="n0",gpu="0",uuid="A"}': steps((1, 10), (0, 2), (1, 30))}, (10, 12, 14, 30)),
    Case("GpuPowerCapped", "some GPUs of a job",
         job(2, (GOOD, 60)) | finding("power_capped", "n0", constant(1, 60), "00"), (10, 29), (32, 60),
         ((ON_N0, "1 of 2 GPUs of llm/train are held down by their power limit"),)),
    Case("SensorTooSlow", "GPUs that cannot be judged",
         job(2, ({"unknown": 1.0}, 60)) | finding("sensor_too_slow", "n0", constant(1, 60), "00")
         | finding("sensor_too_slow", "n0", constant(1, 60), "01"), (10, 29), (32, 60),
         ((ON_N0, "2 of 2 GPUs of llm/train cannot be judged: the job is faster than the sensors"),)),
    Case("ExporterSourceDown", "a source that answered before",
         source("rdma", steps((1, 10), (0, 40)))
         | {'overlap_source_last_success_timestamp_seconds{instance="n0",source="rdma"}': constant(600, 50)},
         (5, 15, 19), (21, 45), (({"instance": "n0", "source": "rdma"}, "The exporter on n0 has no readings of rdma"),)),
    Case("ExporterSourceDown", "NVML that never answered where the bus has GPUs",
         source("nvml", constant(0, 40)) | {'overlap_gpus{instance="n0",origin="pci"}': constant(8, 40)},
         (9,), (12, 30), (({"instance": "n0", "source": "nvml"}, "The exporter on n0 has no readings of nvml"),)),
    Case("ExporterSourceDown", "a node without GPUs and without RDMA is no fault",
         source("nvml", constant(0, 60)) | source("rdma", constant(0, 60))
         | {'overlap_gpus{instance="n0",origin="pci"}': constant(0, 60)}, (10, 30, 60)),
    Case("ExporterSamplesLate", "a fifth of the reads left out",
         {'overlap_source_missed_ticks_total{instance="n0",source="rdma"}': counter((0, 10), (100, 40)),
          'overlap_source_reads_total{instance="n0",source="rdma"}': counter((400, 50))},
         (10, 20, 25), (35, 45),
         (({"instance": "n0", "source": "rdma"}, "The exporter on n0 reads rdma late: 20% of the reads are left out"),)),
    Case("ExporterSamplesLate", "readings that are minutes old",
         source("nic", constant(1, 40))
         | {'overlap_source_last_success_timestamp_seconds{instance="n0",source="nic"}': "-600+60x40"},
         (10,), (20, 35),
         (({"instance": "n0", "source": "nic"}, "The exporter on n0 reads nic late: the last one is 10m 0s old"),)),
    Case("ExporterSamplesLate", "one read in fifty left out is no alert",
         {'overlap_source_missed_ticks_total{instance="n0",source="rdma"}': counter((8, 60)),
          'overlap_source_reads_total{instance="n0",source="rdma"}': counter((400, 60))}, (30, 60)),
    Case("ExporterDown", "a node that cannot be scraped", {'up{job="overlap-exporter",instance="n0"}': steps((1, 10), (0, 40))},
         (9, 14), (16, 45), (({"instance": "n0", "job": "overlap-exporter"}, "The exporter on n0 cannot be scraped"),)),
    Case("ExporterDown", "a restart is no alert", {'up{job="overlap-exporter",instance="n0"}': steps((1, 10), (0, 3), (1, 40))},
         (10, 14, 20)),
)  # fmt: skip


def rendered(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda m: labels.get(m[1], ""), template)


def expectation(case: Case, minute: int, fires: bool, kept: str = "") -> dict[str, object]:
    rule = TABLE[case.alert]
    alerts = [
        {"exp_labels": {"severity": rule.severity, **labels},
         "exp_annotations": {"summary": kept or summary, "description": rendered(rule.description, labels),
                             "runbook_url": runbook_url(rule.name), "dashboard": rendered(rule.panel, labels)}}
        for labels, summary in case.expected
    ]
    return {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": alerts if fires else []}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_alert_fires_at_its_minutes_and_at_no_others(case: Case, tmp_path: Path) -> None:
    tests = [expectation(case, minute, True) for minute in case.fires] + [expectation(case, m, False) for m in case.silent]
    tests += [expectation(case, minute, True, summary) for minute, summary in case.kept]
    assert run(tmp_path, case.series, alerts=tests) == ""


def test_every_alert_is_seen_firing_and_every_one_that_pages_is_seen_silent() -> None:
    assert {case.alert for case in CASES if case.fires} == set(TABLE)
    assert {case.alert for case in CASES if case.silent and not case.fires} >= {
        name for name, rule in TABLE.items() if rule.severity == "critical"
    }
