"""Findings: when each appears and when, as close as possible, it does not; how long it holds and when it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from exporter.diagnosis import Diagnosis
from exporter.model import Device, Evidence, Finding, Inventory, Link, OverlapAnalysis, Record, TransportVerdict
from exporter.rules import RULES, Answer, Facts, Rule
from exporter.session import Session
from exporter.sources.scenarios import SCENARIOS
from exporter.sources.simulator import simulate
from exporter.symptoms import CONGESTION, CongestionSign, LinkMemory
from tests.handmade import GPU, Handmade, nic, port, square

FINDINGS = (
    "exposed_communication", "tcp_fallback", "input_stall", "straggler_wait", "small_buckets", "link_degraded", "congestion",
    "power_capped", "sensor_too_slow", "shared_node",
)  # fmt: skip
NODE_FINDINGS = {"tcp_fallback", "link_degraded", "congestion", "shared_node"}


# The way from simulated sensors to findings


@cache
def walk(name: str, gpus: int = 4, seconds: int = 100) -> tuple[tuple[Finding, ...], ...]:
    """The findings of each whole second of a scenario; which interface carries TCP is found out, not taken from the trace."""
    session = Session((15.0, 60.0))
    found: list[tuple[Finding, ...]] = []
    for event in simulate(name, seconds, gpus=gpus):
        if isinstance(event, Record) and session.advance(event.t_s):
            found.append(session.verdicts.findings)
        session.take(event)
    return tuple(found)


def named(findings: Iterable[Finding]) -> set[str]:
    return {finding.finding for finding in findings}


# What the job of each scenario suffers from, and nothing else. A straggler's reduce-scatter is exposed as well (7 %).
EXPECTED: dict[str, set[str]] = {
    "perfect_overlap": set(),
    "serialized": {"exposed_communication"},
    "ddp_bucketed": set(),
    "ddp_small_buckets": {"exposed_communication", "small_buckets"},
    "ddp_no_overlap": {"exposed_communication"},
    "fsdp_prefetch": set(),
    "fsdp_no_prefetch": {"exposed_communication"},
    "zero3": {"exposed_communication"},
    "gradient_accumulation": {"exposed_communication"},
    "tcp_fallback": {"exposed_communication", "tcp_fallback"},
    "input_stall": {"input_stall"},
    "storage_checkpoint": {"input_stall"},
    "straggler": {"exposed_communication", "straggler_wait"},
    "pipeline_bubbles": set(),
    "power_capped": {"power_capped"},
    "compute_only": set(),
    "idle": set(),
    "link_degraded": {"exposed_communication", "link_degraded"},
    "two_jobs": {"shared_node"},
    "congestion": {"exposed_communication", "congestion"},
    "slow_sensor": {"sensor_too_slow"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_scenario_shows_its_cause_and_no_other(name: str) -> None:
    ever = named(finding for second in walk(name) for finding in second)
    assert ever == EXPECTED[name]


def test_every_scenario_is_expected_to_show_something_or_nothing() -> None:
    assert {row.name for row in SCENARIOS} - {"gpu_lost"} == EXPECTED.keys()


def test_the_last_seconds_of_a_scenario_hold_its_findings_for_every_gpu() -> None:
    assert {f.gpu_id for f in walk("serialized")[-1]} == {f"GPU-{g}" for g in range(4)}
    assert {f.gpu_id for f in walk("power_capped")[-1]} == {f"GPU-{g}" for g in range(4)}


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_the_straggler_itself_is_named_and_nobody_else(gpus: int) -> None:
    named_gpus = {f.gpu_id for second in walk("straggler", gpus) for f in second if f.finding == "straggler_wait"}
    assert named_gpus == {f"GPU-{min(3, gpus - 1)}"}


@pytest.mark.parametrize("gpus", [2, 8])
def test_the_stages_of_a_pipeline_have_no_straggler(gpus: int) -> None:
    assert "straggler_wait" not in named(f for second in walk("pipeline_bubbles", gpus) for f in second)


def test_a_lost_gpu_takes_its_findings_along_and_the_others_are_not_blamed() -> None:
    ever = {(f.finding, f.gpu_id) for second in walk("gpu_lost") for f in second}
    assert "GPU-3" not in {gpu for _, gpu in ever}
    assert {finding for finding, _ in ever} <= {"input_stall"}  # the job starts again: no kernel for eight seconds


def test_a_degraded_link_is_named_with_its_rate_and_what_it_should_be() -> None:
    (finding,) = (f for f in walk("link_degraded")[-1] if f.finding == "link_degraded")
    assert Evidence("mlx5_2/1 rate", 25e9, "bytes_per_second", pytest.approx(45e9)) in finding.evidence
    assert any(e.name == "mlx5_2/1 link_down" and e.value == 1 for e in finding.evidence)
    assert all(e.name.startswith("mlx5_2/1") for e in finding.evidence)


def test_an_input_stall_comes_with_what_the_disks_did() -> None:
    evidence = {e.name: e.value for e in walk("input_stall")[-1][0].evidence}
    assert evidence["disk_read"] == pytest.approx(4 * 3e8, rel=0.2)
    assert evidence["network_filesystem_read"] == 0.0
    assert evidence["cpu_iowait"] > 0.5


# Facts made by hand


def board(number: int, **changes: object) -> Device:
    return replace(GPU, id=f"GPU-{number}", index=number, **changes)  # type: ignore[arg-type]


def verdict(gpu: int = 0, state: str = "partial", **values: object) -> OverlapAnalysis:
    return OverlapAnalysis(f"GPU-{gpu}", 100.0, 60.0, state, **values)  # type: ignore[arg-type]


def facts(
    *analyses: OverlapAnalysis,
    devices: tuple[Device, ...] = (),
    links: tuple[Link, ...] = (),
    jobs: dict[str, str] | None = None,
    transport: TransportVerdict | None = None,
    series: Handmade | None = None,
    gpus: tuple[Device, ...] | None = None,
    t_s: float = 100.0,
) -> Facts:
    boards = tuple(board(g) for g in range(max(1, len(analyses)))) if gpus is None else gpus
    inventory = Inventory("node-1", 0.0, (*boards, *devices), links, (), jobs or {})
    return Facts(t_s, inventory, analyses, transport or TransportVerdict("rdma", "rdma_moves"), series or Handmade(t_s))


RULE = {rule.finding: rule for rule in RULES}


def ask(name: str, given: Facts, gpu: int = 0, memory: LinkMemory | None = None) -> Answer:
    rule = RULE[name]
    if rule.gpu is not None:
        return rule.gpu(given, f"GPU-{gpu}")
    assert rule.node is not None
    links = memory or LinkMemory()
    links.remember(given.series, given.inventory.compute_ports(), given.t_s)
    return rule.node(given, links)


def test_the_table_holds_every_finding_once_with_the_scope_it_promises() -> None:
    assert [rule.finding for rule in RULES] == list(FINDINGS)
    assert {rule.finding for rule in RULES if rule.scope == "node"} == NODE_FINDINGS
    assert all((rule.gpu is None) != (rule.node is None) for rule in RULES)
    assert {(rule.hold_s, rule.clear_s) for rule in RULES} == {(30.0, 60.0)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.finding)
def test_a_rule_without_its_inputs_does_not_fire(rule: Rule) -> None:
    bare = facts(devices=(port(), nic(), Device("disk", "all")), links=(Link("GPU-0", "mlx5_0/1", "rdma", "PIX"),))
    unanswered = replace(bare, analyses=(verdict(state="no_data", reason="no power readings in this window"),))
    for given in (bare, unanswered, replace(unanswered, transport=TransportVerdict("unknown", "bytes_missing"))):
        assert ask(rule.finding, given) is None


@dataclass(frozen=True)
class Edge:
    finding: str
    fires: OverlapAnalysis
    does_not: OverlapAnalysis


EDGES = (
    Edge("exposed_communication", verdict(exposed=0.0501, health=0.9), verdict(exposed=0.0499, health=0.0)),
    Edge("exposed_communication", verdict(exposed=0.2), verdict(state="unobservable", exposed_low=0.2, exposed_high=0.4)),
    Edge("input_stall", verdict(stall=0.101), verdict(stall=0.099)),
    Edge("input_stall", verdict(stall=0.3), verdict(stall=None, exposed_or_wait=0.3)),
    Edge("sensor_too_slow", verdict(state="unobservable", observability=0.49), verdict(state="partial", observability=0.51)),
    Edge("sensor_too_slow", verdict(state="unobservable", observability=0.3),
         verdict(state="unobservable", reason="shared_node")),
)  # fmt: skip


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.finding)
def test_a_verdict_just_above_the_threshold_fires_and_one_below_does_not(edge: Edge) -> None:
    assert ask(edge.finding, facts(edge.fires))
    assert ask(edge.finding, facts(edge.does_not)) is None


def test_only_the_verdict_window_counts() -> None:
    short = replace(verdict(exposed=0.5), window_s=15.0)
    assert ask("exposed_communication", facts(short)) is None
    assert ask("exposed_communication", replace(facts(short), verdict_window_s=15.0))


class TestStraggler:
    @staticmethod
    def waits(*waits: float | None, jobs: dict[str, str] | None = None, communication: float = 0.4) -> Facts:
        lost = [None if w is None else w + 0.05 for w in waits]
        return facts(*(verdict(g, wait=w, exposed_or_wait=x, communication=communication)
                       for g, (w, x) in enumerate(zip(waits, lost, strict=True))), jobs=jobs)  # fmt: skip

    def test_the_gpu_that_waits_least_by_far_is_named(self) -> None:
        given = self.waits(0.18, 0.19, 0.02, 0.17)
        assert [ask("straggler_wait", given, gpu) is not None for gpu in range(4)] == [False, False, True, False]

    def test_the_smallest_of_similar_waits_is_not(self) -> None:
        given = self.waits(0.18, 0.19, 0.07, 0.17)
        assert not any(ask("straggler_wait", given, gpu) for gpu in range(4))

    def test_of_eight_a_wait_of_three_percent_is_enough(self) -> None:
        given = self.waits(0.028, 0.03, 0.01, 0.026, 0.041, 0.03, 0.034, 0.029)
        assert [gpu for gpu in range(8) if ask("straggler_wait", given, gpu)] == [2]
        evidence = {e.name: e.value for e in ask("straggler_wait", given, 2)}
        assert evidence["others_wait_longer"] == pytest.approx(0.02)
        assert evidence["own_wait"] == 0.01

    @pytest.mark.parametrize("waits", [
        (0.009, 0.013, 0.008, 0.014, 0.017, 0.01, 0.018, 0.001),  # as equal GPUs read
        (0.10, 0.02, 0.09, 0.03, 0.11, 0.05, 0.08, 0.01),  # all differ: nothing stands out
        (0.025, 0.024, 0.0, 0.026),  # what would be enough among eight
        (0.075, 0.0),
    ])  # fmt: skip
    def test_what_chance_may_do_names_nobody(self, waits: tuple[float, ...]) -> None:
        given = self.waits(*waits)
        assert not any(ask("straggler_wait", given, gpu) for gpu in range(len(waits)))

    def test_a_gpu_that_loses_as_much_in_another_way_is_not_the_last(self) -> None:
        given = self.waits(0.18, 0.19, 0.02, 0.17)
        busy = replace(given.analyses[2], exposed_or_wait=0.22)
        assert ask("straggler_wait", replace(given, analyses=(*given.analyses[:2], busy, given.analyses[3])), 2) is None

    def test_two_halves_that_differ_are_two_kinds_of_work(self) -> None:
        given = self.waits(0.2, 0.2, 0.01, 0.01)
        assert not any(ask("straggler_wait", given, gpu) for gpu in range(4))

    def test_a_gpu_of_another_job_is_not_compared(self) -> None:
        given = self.waits(0.2, 0.2, 0.01, jobs={"GPU-0": "a", "GPU-1": "a", "GPU-2": "b"})
        assert ask("straggler_wait", given, 2) is None

    def test_a_gpu_that_does_not_communicate_is_nobodys_straggler(self) -> None:
        given = self.waits(0.2, 0.2, 0.2, 0.2)
        alone = replace(given.analyses[3], wait=0.0, exposed_or_wait=0.0, communication=0.0, state="compute_only")
        assert ask("straggler_wait", replace(given, analyses=(*given.analyses[:3], alone)), 3) is None

    def test_unknown_waits_do_not_count_as_small(self) -> None:
        assert not any(ask("straggler_wait", self.waits(0.2, None, 0.2, 0.2), gpu) for gpu in range(4))

    def test_one_gpu_alone_waits_for_nobody_here(self) -> None:
        assert ask("straggler_wait", self.waits(0.0)) is None


class TestTcpFallback:
    TCP = TransportVerdict("tcp", "nic_carries", tcp_bytes_per_s=1e9, rdma_bytes_per_s=0.0)

    @pytest.mark.parametrize(("transport", "up", "fires"), [
        ("tcp", 1.0, True), ("tcp", 0.0, False), ("mixed", 1.0, False), ("unknown", 1.0, False), ("rdma", 1.0, False),
    ])  # fmt: skip
    def test_it_needs_tcp_beside_a_port_that_is_up(self, transport: str, up: float, fires: bool) -> None:
        series = Handmade().value("mlx5_0/1/up_ratio", up, hertz=0.2)
        given = facts(devices=(port(), nic()), transport=replace(self.TCP, transport=transport), series=series)
        assert (ask("tcp_fallback", given) is not None) == fires

    def test_a_port_of_unknown_state_proves_nothing(self) -> None:
        assert ask("tcp_fallback", facts(devices=(port(), nic()), transport=self.TCP)) is None
        old = Handmade().value("mlx5_0/1/up_ratio", 1.0, hertz=0.2, end_s=60.0)
        assert ask("tcp_fallback", facts(devices=(port(), nic()), transport=self.TCP, series=old)) is None


class TestSmallBuckets:
    LINKS = (Link("GPU-0", "mlx5_0/1", "rdma", "PIX"),)

    def asked(self, rate: Callable[[np.ndarray], np.ndarray], exposed: float = 0.2, hertz: float = 50.0) -> Answer:
        series = Handmade().traffic("mlx5_0/1", rate, hertz=hertz)
        return ask("small_buckets", facts(verdict(exposed=exposed), devices=(port(),), links=self.LINKS, series=series))

    def test_long_even_stretches_at_a_tenth_of_the_line_are_crumbs(self) -> None:
        answer = self.asked(square(5e9, period_s=0.8, duty=0.6))
        assert answer is not None
        assert answer[0] == Evidence("mlx5_0/1 line_fill", pytest.approx(0.1, rel=0.02), "ratio", 0.2)

    def test_stretches_that_fill_a_quarter_of_the_line_are_not(self) -> None:
        assert self.asked(square(12.5e9, period_s=0.8, duty=0.6)) is None

    def test_single_bursts_that_come_and_go_are_not(self) -> None:
        assert self.asked(square(18e9, period_s=0.061, duty=0.1)) is None

    def test_hidden_traffic_may_be_as_slow_as_it_likes(self) -> None:
        assert self.asked(square(5e9, period_s=0.8, duty=0.6), exposed=0.04) is None

    def test_slow_polls_smooth_everything_and_say_nothing(self) -> None:
        assert self.asked(square(5e9, period_s=0.8, duty=0.6), hertz=10.0) is None

    def test_keep_alives_are_not_buckets(self) -> None:
        assert self.asked(lambda t: np.full(len(t), 2e3)) is None


class TestLinkDegraded:
    @staticmethod
    def rates(*rates: float | None, ups: tuple[float, ...] = ()) -> Handmade:
        series = Handmade()
        for n, rate in enumerate(rates):
            if rate is not None:
                series.value(f"mlx5_{n}/1/rate_bytes_per_second", rate, hertz=0.2)
            series.value(f"mlx5_{n}/1/up_ratio", ups[n] if ups else 1.0, hertz=0.2)
        return series

    def asked(self, series: Handmade, ports: int = 4, memory: LinkMemory | None = None, **changes: object) -> list[str]:
        devices = tuple(replace(port(n), rate_bytes_per_s=None, **changes) for n in range(ports))  # type: ignore[arg-type]
        return [e.name for e in ask("link_degraded", facts(devices=devices, series=series), memory=memory) or ()]

    def test_a_port_below_most_of_its_peers_is_degraded(self) -> None:
        assert self.asked(self.rates(50e9, 50e9, 25e9, 50e9)) == ["mlx5_2/1 rate"]

    def test_equal_ports_are_not(self) -> None:
        assert self.asked(self.rates(25e9, 25e9, 25e9, 25e9)) == []

    def test_without_a_majority_nobody_is_the_slow_one(self) -> None:
        assert self.asked(self.rates(50e9, 50e9, 25e9, 25e9)) == []
        assert self.asked(self.rates(50e9, 25e9), ports=2) == []

    def test_storage_ports_of_another_driver_are_no_peers(self) -> None:
        series = self.rates(50e9, 50e9, 50e9, 12.5e9)
        devices = (*(port(n) for n in range(3)), port(3, driver="bnxt_en"))
        assert ask("link_degraded", facts(devices=devices, series=series)) is None

    def test_a_port_below_its_own_best_is_degraded_for_as_long_as_the_process_lives(self) -> None:
        memory = LinkMemory()
        assert self.asked(self.rates(50e9), ports=1, memory=memory) == []
        assert self.asked(self.rates(25e9), ports=1, memory=memory) == ["mlx5_0/1 rate"]
        assert self.asked(self.rates(46e9), ports=1, memory=memory) == []

    def test_the_rate_that_the_kernel_prints_for_an_unknown_one_is_no_degradation(self) -> None:
        assert self.asked(self.rates(50e9, 50e9, 1.25e9, 50e9)) == []

    def test_a_port_that_was_up_and_is_down_is_named_and_one_that_never_was_is_not(self) -> None:
        memory = LinkMemory()
        self.asked(self.rates(50e9, 50e9, ups=(1.0, 0.0)), ports=2, memory=memory)
        assert self.asked(self.rates(1.25e9, 1.25e9, ups=(0.0, 0.0)), ports=2, memory=memory) == ["mlx5_0/1 up"]

    @pytest.mark.parametrize(("event", "per_s", "fires"), [
        ("link_error", 0.15, True), ("link_error", 0.08, False), ("credit_stall", 1e6, False), ("symbol", 1e3, False),
    ])  # fmt: skip
    def test_link_errors_count_from_two_a_minute(self, event: str, per_s: float, fires: bool) -> None:
        series = self.rates(50e9).counter(f"mlx5_0/1/events/{event}", per_s, hertz=1.0)
        assert bool(self.asked(series, ports=1)) == fires

    def test_one_flap_is_enough(self) -> None:
        series = self.rates(50e9).value("mlx5_0/1/events/link_down", lambda t: np.where(t < 70, 4.0, 5.0))
        assert self.asked(series, ports=1) == ["mlx5_0/1 link_down"]
        cleared = self.rates(50e9).value("mlx5_0/1/events/link_down", lambda t: np.where(t < 70, 4.0, 0.0))
        assert self.asked(cleared, ports=1) == []


class TestCongestion:
    @staticmethod
    def asked(counter: str, per_s: float, bytes_per_s: float = 20e9, link_layer: str = "Ethernet") -> Answer:
        series = Handmade().traffic("mlx5_0/1", bytes_per_s).counter(f"mlx5_0/1/events/{counter}", per_s, hertz=1.0)
        return ask("congestion", facts(devices=(port(link_layer=link_layer),), series=series))

    @pytest.mark.parametrize("sign", CONGESTION, ids=lambda sign: sign.counter)
    def test_each_sign_fires_above_its_threshold_and_not_below(self, sign: CongestionSign) -> None:
        unit = 1.0 if sign.per == "second" else 20e9 / 4096
        answer = self.asked(sign.counter, 1.05 * sign.threshold * unit)
        assert answer is not None
        assert answer[0].value == pytest.approx(1.05 * sign.threshold, rel=1e-3)
        assert self.asked(sign.counter, 0.9 * sign.threshold * unit) is None

    def test_the_same_events_on_twice_the_traffic_are_half_as_bad(self) -> None:
        assert self.asked("cnp_rx", 700.0, 20e9)
        assert self.asked("cnp_rx", 700.0, 40e9) is None

    def test_a_silent_port_is_not_congested(self) -> None:
        assert self.asked("cnp_rx", 700.0, 1e6) is None

    def test_sequence_errors_on_infiniband_come_from_adaptive_routing(self) -> None:
        assert self.asked("seq_nak_rx", 100.0)
        assert self.asked("seq_nak_rx", 100.0, link_layer="InfiniBand") is None

    @pytest.mark.parametrize("counter", ["out_of_order_rx", "credit_stall", "rnr", "cnp_tx"])
    def test_other_events_are_not_congestion_by_themselves(self, counter: str) -> None:
        assert self.asked(counter, 1e5) is None

    def test_the_worst_port_is_named(self) -> None:
        series = Handmade()
        for n, per_s in enumerate((600.0, 5000.0, 800.0)):
            series.traffic(f"mlx5_{n}/1", 20e9).counter(f"mlx5_{n}/1/events/cnp_rx", per_s, hertz=1.0)
        answer = ask("congestion", facts(devices=(port(0), port(1), port(2)), series=series))
        assert [e.name for e in answer or ()] == ["mlx5_1/1 cnp_rx"]


class TestPowerCapped:
    @staticmethod
    def asked(share: float | None, watts: float = 500.0, gpus: tuple[Device, ...] | None = None) -> Answer:
        series = Handmade().value("GPU-0/power_watts", watts, hertz=10.0)
        if share is not None:
            series.counter("GPU-0/throttled_seconds_total/power_cap", share, hertz=1.0)
        return ask("power_capped", facts(verdict(), series=series, gpus=gpus))

    def test_the_time_that_the_board_counts_decides(self) -> None:
        assert self.asked(0.31)
        assert self.asked(0.29) is None
        assert self.asked(0.0, watts=699.0) is None

    def test_without_that_time_power_at_the_limit_decides(self) -> None:
        assert self.asked(None, watts=690.0)
        assert self.asked(None, watts=670.0) is None

    def test_peaks_at_the_limit_are_not_a_cap(self) -> None:
        series = Handmade().value("GPU-0/power_watts", square(700.0, 400.0, duty=0.4), hertz=10.0)
        assert ask("power_capped", facts(verdict(), series=series)) is None

    def test_the_limit_in_force_beats_that_of_the_board(self) -> None:
        series = Handmade().value("GPU-0/power_watts", 498.0, hertz=10.0).value("GPU-0/power_limit_watts", 500.0)
        assert ask("power_capped", facts(verdict(), series=series))

    def test_a_board_of_unknown_limit_is_not_judged(self) -> None:
        assert self.asked(None, watts=690.0, gpus=(board(0, power_limit_watts=None),)) is None


class TestSharedNode:
    LINKS = (Link("GPU-0", "mlx5_0/1", "rdma", "PIX"), Link("GPU-1", "mlx5_0/1", "rdma", "PIX"))

    def asked(self, links: tuple[Link, ...], states: tuple[str, str] = ("unobservable", "partial"), **given: object) -> Answer:
        analyses = [verdict(g, state) for g, state in enumerate(states)]
        return ask("shared_node", facts(*analyses, links=links, jobs={"GPU-0": "a", "GPU-1": "b"}, **given))  # type: ignore[arg-type]

    def test_two_jobs_on_one_port_share_the_node(self) -> None:
        assert self.asked(self.LINKS)

    def test_two_jobs_with_a_port_each_do_not(self) -> None:
        assert self.asked((self.LINKS[0], replace(self.LINKS[1], device_id="mlx5_1/1"))) is None

    def test_one_interface_that_carries_both_is_shared_as_well(self) -> None:
        apart = (self.LINKS[0], replace(self.LINKS[1], device_id="mlx5_1/1"))
        over_tcp = tuple(Link(f"GPU-{g}", "eth0", "tcp", "rhythm") for g in range(2))
        assert self.asked(apart, transport=TransportVerdict("tcp", "nic_carries", links=over_tcp))

    def test_a_job_that_does_not_run_shares_nothing(self) -> None:
        assert self.asked(self.LINKS, ("idle", "partial")) is None


# Time


def told(true_at: Iterable[int], seconds: Iterable[int], hold_s: float = 30.0,
         clear_s: float = 60.0) -> dict[int, tuple[Finding, ...]]:  # fmt: skip
    """What a rule that is true at the given seconds makes of them."""
    true = set(true_at)

    def condition(given: Facts, _gpu_id: str) -> Answer:
        return (Evidence("at", given.t_s, "seconds"),) if given.t_s in true else None

    diagnosis = Diagnosis((Rule("power_capped", ("power_limit",), gpu=condition, hold_s=hold_s, clear_s=clear_s),))
    return {t: diagnosis.step(facts(t_s=float(t))) for t in seconds}


class TestTime:
    def test_a_finding_appears_in_the_second_in_which_it_has_held_for_thirty(self) -> None:
        said = told(range(10, 200), range(1, 200))
        assert [t for t in said if said[t]] == list(range(40, 200))

    def test_a_break_of_one_second_starts_the_count_anew(self) -> None:
        said = told(set(range(10, 100)) - {39}, range(1, 100))
        assert min(t for t in said if said[t]) == 70

    def test_a_finding_goes_when_it_has_not_been_true_for_sixty_seconds(self) -> None:
        said = told(range(10, 51), range(1, 200))
        assert [t for t in said if said[t]] == list(range(40, 110))

    def test_an_active_finding_that_is_true_now_and_then_stays(self) -> None:
        said = told({*range(10, 51), 109, 168}, range(1, 300))
        assert [t for t in said if said[t]] == list(range(40, 228))

    def test_hold_and_clear_are_the_rules_own(self) -> None:
        said = told(range(10, 21), range(1, 60), hold_s=3.0, clear_s=5.0)
        assert [t for t in said if said[t]] == list(range(13, 25))

    def test_since_is_the_first_second_of_the_run_and_evidence_the_last_true_one(self) -> None:
        said = told({*range(10, 51), 55}, range(1, 80))
        assert said[60] == (Finding("power_capped", "GPU-0", 10.0, (Evidence("at", 55.0, "seconds"),), ("power_limit",)),)

    def test_seconds_that_nobody_looked_at_do_not_count_as_held(self) -> None:
        said = told(range(1, 200), [*range(1, 20), *range(100, 140)])
        assert min(t for t in said if said[t]) == 130

    def test_a_finding_outlives_a_gap_only_while_it_is_true(self) -> None:
        assert told(range(1, 200), [*range(1, 40), 150])[150]
        assert not told(range(1, 40), [*range(1, 40), 150])[150]

    def test_a_gpu_that_left_takes_its_findings_along_and_starts_anew(self) -> None:
        diagnosis = Diagnosis((Rule("power_capped", (), gpu=lambda _facts, gpu: (Evidence(gpu, 1.0, "count"),)),))
        both, one = facts(gpus=(board(0), board(1))), facts(gpus=(board(0),))
        for t in range(1, 40):
            said = diagnosis.step(replace(both, t_s=float(t)))
        assert [f.gpu_id for f in said] == ["GPU-0", "GPU-1"]
        assert [f.gpu_id for f in diagnosis.step(replace(one, t_s=40.0))] == ["GPU-0"]
        for t in range(41, 60):
            assert [f.gpu_id for f in diagnosis.step(replace(both, t_s=float(t)))] == ["GPU-0"]

    def test_findings_come_in_the_order_of_the_table(self) -> None:
        order = [(f.finding, f.gpu_id) for f in walk("ddp_small_buckets")[-1]]
        position = {rule.finding: n for n, rule in enumerate(RULES)}
        assert order == sorted(order, key=lambda key: (position[key[0]], key[1] or ""))

    def test_a_finding_carries_the_advice_of_its_rule(self) -> None:
        for second in walk("link_degraded"):
            for finding in second:
                assert finding.advice == RULE[finding.finding].advice
