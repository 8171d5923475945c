"""Which way the job's traffic goes: healthy and fallen back per kind of device, what never counts, and how fast it is said."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model import TRANSPORTS, Device, Inventory, Link, TransportVerdict
from exporter.transport import CONFIRM_S, REASONS, Transport, observe
from tests.handmade import GPU, Handmade, Rate, nic, port, square, wandering

BURSTS = square(2e9, phase=0.6)  # two-way, while the GPU waits
RDMA_BURSTS = square(20e9, phase=0.6)
CHATTER = 2e3


def node(*devices: Device, links: tuple[Link, ...] = (), gpus: int = 1) -> Inventory:
    boards = tuple(replace(GPU, id=f"GPU-{i}", index=i) for i in range(gpus))
    return Inventory("node-1", 0.0, (*boards, *devices), links)


def readings(traffic: dict[str, Rate | tuple[Rate, Rate]], end_s: float = 100.0, power: Rate | None = None) -> Handmade:
    """A GPU that computes for 0.6 s of each second, and the traffic of devices (one rate: two-way)."""
    made = Handmade(end_s)
    made.value("GPU-0/power_watts", power or square(600.0, 250.0, duty=0.6), hertz=10.0)
    for device, rate in traffic.items():
        made.traffic(device, *(rate if isinstance(rate, tuple) else (rate,)))
    return made


def after(series: Handmade, inventory: Inventory, seconds: int = 60, busy: bool | None = True) -> TransportVerdict:
    transport = Transport()
    for t in range(1, seconds):
        transport.step(series, inventory, float(t), busy)
    return transport.step(series, inventory, float(seconds), busy)


@dataclass(frozen=True)
class Case:
    name: str
    devices: tuple[Device, ...]
    traffic: dict[str, Rate | tuple[Rate, Rate]]
    transport: str
    reason: str
    carriers: tuple[str, ...] = ()


IB = port(link_layer="InfiniBand", netdev="ib0")
IPOIB = nic("ib0", "ipoib", 50e9)
ROCE = port(netdev="eth1")
LAG = replace(ROCE, info={**ROCE.info, "netdev": "bond0", "bond": "bond0", "bond_links": "eth2 eth3"})
EFA = Device("rdma_port", "rdmap0s6/1", driver="efa", rate_bytes_per_s=12.5e9, info={"link_layer": "Unknown", "netdev": ""})
ENA = nic("ens5")

# One row per line of what is known about healthy nodes and fallen back ones, by driver.
CASES = (
    Case("InfiniBand, healthy", (IB, IPOIB),
         {IB.id: RDMA_BURSTS, "ib0": CHATTER}, "rdma", "rdma_moves"),
    Case("InfiniBand, all of it IPoIB", (IB, IPOIB),
         {IB.id: square(2.06e9, phase=.6), "ib0": BURSTS}, "tcp", "ipoib_carries", ("ib0",)),
    Case("InfiniBand, a third of it IPoIB", (IB, IPOIB),
         {IB.id: square(6e9, phase=.6), "ib0": BURSTS}, "mixed", "both_move", ("ib0",)),
    Case("InfiniBand, storage over IPoIB, silent job", (IB, IPOIB),
         {IB.id: (1e5, 2.06e9), "ib0": (1e5, 2e9)}, "none", "quiet"),
    Case("Omni-Path, all of it over its interface", (replace(IB, driver="hfi1"), IPOIB),
         {IB.id: square(2.06e9, phase=.6), "ib0": BURSTS}, "tcp", "ipoib_carries", ("ib0",)),
    Case("RoCE, healthy", (ROCE, nic("eth1")),
         {ROCE.id: RDMA_BURSTS, "eth1": CHATTER}, "rdma", "rdma_moves"),
    Case("RoCE, over the interface of the port", (ROCE, nic("eth1")),
         {ROCE.id: 0.0, "eth1": BURSTS}, "tcp", "nic_carries", ("eth1",)),
    Case("RoCE, over the management interface", (ROCE, nic("eth1"), nic()),
         {ROCE.id: 0.0, "eth1": CHATTER, "eth0": BURSTS}, "tcp", "nic_carries", ("eth0",)),
    Case("RoCE, half over TCP", (ROCE, nic("eth1")),
         {ROCE.id: BURSTS, "eth1": square(1.4e9, phase=.6)}, "mixed", "both_move", ("eth1",)),
    Case("RoCE, uplink that counts RDMA again", (ROCE, nic("eth1", "uplink", 50e9)),
         {ROCE.id: RDMA_BURSTS, "eth1": square(20.4e9, phase=.6)}, "rdma", "rdma_moves"),
    Case("RoCE over a bond, healthy", (LAG, nic("bond0", "bond"), nic("eth2"), nic("eth3")),
         {LAG.id: RDMA_BURSTS, "eth2": CHATTER, "eth3": CHATTER}, "rdma", "rdma_moves"),
    Case("RoCE over a bond whose uplinks count RDMA again", (LAG, nic("eth2", "uplink", 50e9), nic("eth3", "uplink", 50e9)),
         {LAG.id: RDMA_BURSTS, "eth2": square(8.2e9, phase=.6), "eth3": square(12.2e9, phase=.6)}, "rdma", "rdma_moves"),
    Case("RoCE over a bond, all of it TCP over both links", (LAG, nic("bond0", "bond"), nic("eth2"), nic("eth3")),
         {LAG.id: 0.0, "eth2": BURSTS, "eth3": BURSTS}, "tcp", "nic_carries", ("eth2", "eth3")),
    Case("EFA, healthy", (EFA, ENA),
         {EFA.id: square(5e9, phase=.6), "ens5": CHATTER}, "rdma", "rdma_moves"),
    Case("EFA, over ENA", (EFA, ENA),
         {EFA.id: 0.0, "ens5": BURSTS}, "tcp", "nic_carries", ("ens5",)),
    Case("software RDMA is an interface", (port(driver="rxe", netdev="eth0"), nic()),
         {"mlx5_0/1": BURSTS, "eth0": BURSTS}, "tcp", "no_rdma_ports", ("eth0",)),
    Case("no RDMA at all", (nic(), nic("eth2")),
         {"eth0": BURSTS, "eth2": CHATTER}, "tcp", "no_rdma_ports", ("eth0",)),
    Case("several interfaces at once", (nic(), nic("eth2")),
         {"eth0": BURSTS, "eth2": BURSTS}, "tcp", "no_rdma_ports", ("eth0", "eth2")),
    Case("one GPU alone", (ROCE, nic()),
         {ROCE.id: CHATTER, "eth0": CHATTER}, "none", "quiet"),
    Case("data set read over the management interface", (ROCE, nic()),
         {ROCE.id: 0.0, "eth0": (2e6, 1e9)}, "none", "quiet"),
    Case("checkpoint written in the rhythm of the job", (ROCE, nic()),
         {ROCE.id: RDMA_BURSTS, "eth0": (BURSTS, square(3e7, phase=.6))}, "rdma", "rdma_moves"),
    Case("two-way storage with a rhythm of its own", (ROCE, nic()),
         {ROCE.id: 0.0, "eth0": wandering(5e8, seed=3)}, "none", "quiet"),
    Case("a little TCP beside RDMA", (ROCE, nic()),
         {ROCE.id: RDMA_BURSTS, "eth0": square(1e9, phase=.6)}, "rdma", "rdma_moves"),
    Case("control messages in the rhythm of the job", (nic(),),
         {"eth0": square(5e6, phase=.6)}, "none", "quiet"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_transport_of_every_kind_of_node(case: Case) -> None:
    verdict = after(readings(case.traffic), node(*case.devices))
    assert (verdict.transport, verdict.reason) == (case.transport, case.reason)
    assert tuple(link.device_id for link in verdict.links) == case.carriers


def test_every_verdict_uses_the_words_of_the_model() -> None:
    assert {case.transport for case in CASES} <= set(TRANSPORTS)
    assert {case.reason for case in CASES} <= set(REASONS)


def test_the_rates_and_the_share_stand_beside_the_verdict() -> None:
    verdict = after(readings({ROCE.id: BURSTS, "eth1": square(1.4e9, phase=0.6)}), node(ROCE, nic("eth1")))
    assert verdict.rdma_bytes_per_s == pytest.approx(0.8e9, rel=0.05)
    assert verdict.tcp_bytes_per_s == pytest.approx(0.56e9, rel=0.05)
    assert verdict.tcp_share == pytest.approx(0.56 / 1.36, rel=0.05)


def test_every_gpu_of_the_node_shares_the_carrying_interface() -> None:
    verdict = after(readings({"eth0": BURSTS}), node(nic(), gpus=4))
    assert verdict.links == tuple(Link(f"GPU-{i}", "eth0", "tcp", "rhythm", 0.25) for i in range(4))


def test_a_pair_that_the_inventory_holds_is_trusted_and_not_given_again() -> None:
    held = Link("GPU-0", "eth0", "tcp", "trace")
    one_way = readings({"eth0": (2e9, 1e6)})
    verdict = after(one_way, node(nic(), links=(held,)))
    assert (verdict.transport, verdict.links) == ("tcp", ())
    assert after(one_way, node(nic())).transport == "none"


def test_only_ports_that_are_paired_with_a_gpu_can_carry_the_job() -> None:
    storage = port(1, netdev="eth9")
    traffic: dict[str, Rate | tuple[Rate, Rate]] = {ROCE.id: 0.0, storage.id: 20e9, "eth0": BURSTS}
    pair = Link("GPU-0", ROCE.id, "rdma", "PIX")
    assert after(readings(traffic), node(ROCE, storage, nic(), links=(pair,))).transport == "tcp"
    assert after(readings(traffic), node(ROCE, storage, nic())).transport == "rdma"


def test_a_bond_is_not_counted_beside_its_members() -> None:
    verdict = after(readings({"bond0": BURSTS, "eth0": BURSTS}), node(nic("bond0", "bond"), nic()))
    assert [link.device_id for link in verdict.links] == ["eth0"]


class TestFlatPower:
    """Perfect overlap over TCP has no rhythm in its power: then the flow itself has to be strong enough."""

    @pytest.mark.parametrize(("rate", "transport"), [(0.02 * 3.125e9, "tcp"), (0.005 * 3.125e9, "none")])
    def test_two_way_traffic_counts_from_a_hundredth_of_the_line(self, rate: float, transport: str) -> None:
        verdict = after(readings({"eth0": rate}, power=600.0), node(nic()))
        assert verdict.transport == transport
        assert {link.reason for link in verdict.links} == ({"symmetry"} if transport == "tcp" else set())

    def test_the_line_rate_may_come_from_the_channel(self) -> None:
        series = readings({"eth0": 2e7}, power=600.0).value("eth0/rate_bytes_per_second", 12.5e9, hertz=0.2)
        assert after(series, node(nic(rate_bytes_per_s=None))).transport == "none"
        del series.channels["eth0/rate_bytes_per_second"]  # 10 Gbit/s are assumed
        assert after(series, node(nic(rate_bytes_per_s=None))).transport == "tcp"

    def test_power_is_not_called_flat_before_there_is_enough_of_it(self) -> None:
        series = readings({ROCE.id: 0.0, "eth0": wandering(5e8, seed=1)})
        seen = [observe(series, node(ROCE, nic()), float(t), True)[0].transport for t in range(1, 90)]
        assert seen == ["unknown"] * seen.count("unknown") + ["none"] * seen.count("none")
        assert seen.count("unknown") <= 10

    def test_flat_traffic_beside_varying_power_is_not_the_jobs(self) -> None:
        assert after(readings({"eth0": 5e8}), node(nic())).transport == "none"


class TestUnknown:
    """What is not read is never taken for silence."""

    def test_missing_rdma_bytes_are_not_a_fallback(self) -> None:
        verdict = after(readings({"eth0": BURSTS}), node(ROCE, nic()))
        assert (verdict.transport, verdict.reason, verdict.devices) == ("unknown", "bytes_missing", (ROCE.id,))
        assert verdict.links == ()
        assert verdict.rdma_bytes_per_s is None

    def test_one_missing_direction_is_missing(self) -> None:
        series = readings({ROCE.id: 0.0, "eth0": BURSTS})
        del series.channels[f"{ROCE.id}/receive_bytes_total"]
        assert after(series, node(ROCE, nic())).transport == "unknown"

    def test_a_missing_port_beside_one_that_moves_is_still_rdma(self) -> None:
        verdict = after(readings({ROCE.id: RDMA_BURSTS, "eth0": CHATTER}), node(ROCE, port(1), nic()))
        assert verdict.transport == "rdma"

    def test_a_dead_port_without_bytes_is_not_missed(self) -> None:
        series = readings({ROCE.id: 0.0, "eth0": BURSTS}).value("mlx5_1/1/up_ratio", 0.0, hertz=0.2)
        assert after(series, node(ROCE, port(1), nic())).transport == "tcp"

    def test_stale_bytes_are_unknown_at_once_and_the_links_go(self) -> None:
        series = readings({ROCE.id: 0.0, "eth0": BURSTS})
        series.traffic(ROCE.id, 0.0, end_s=50.0)
        transport = Transport()
        said = {t: transport.step(series, node(ROCE, nic()), float(t), True) for t in range(1, 60)}
        assert said[54].transport == "tcp"
        assert said[55].transport == "unknown"
        assert said[55].links == ()

    def test_an_interface_that_is_not_read_hides_a_fallback(self) -> None:
        assert after(readings({ROCE.id: 0.0}), node(ROCE, nic())).reason == "bytes_missing"
        assert after(readings({ROCE.id: 0.0}), node(ROCE)).reason == "no_interfaces"

    def test_infiniband_bytes_prove_nothing_while_ipoib_is_not_read(self) -> None:
        assert after(readings({IB.id: RDMA_BURSTS, "eth0": CHATTER}), node(IB, nic())).reason == "ipoib_unread"
        without = replace(IB, info={"link_layer": "InfiniBand", "netdev": ""})
        assert after(readings({IB.id: RDMA_BURSTS, "eth0": CHATTER}), node(without, nic())).transport == "rdma"

    def test_gpus_of_which_nothing_is_known_do_not_make_a_flow_the_jobs(self) -> None:
        inventory = node(ROCE, nic())
        assert after(readings({ROCE.id: 0.0, "eth0": BURSTS}), inventory, busy=None).reason == "activity_unknown"
        assert after(readings({ROCE.id: RDMA_BURSTS, "eth0": CHATTER}), inventory, busy=None).transport == "rdma"

    def test_idle_gpus_have_no_transport(self) -> None:
        verdict = after(readings({ROCE.id: 0.0, "eth0": BURSTS}), node(ROCE, nic()), busy=False)
        assert (verdict.transport, verdict.reason) == ("none", "gpus_idle")


class TestTime:
    """Three windows in a row for a change; one for RDMA where there was nothing."""

    @staticmethod
    def said(rdma: Rate, tcp: Rate, seconds: int = 100) -> dict[int, str]:
        series, inventory, transport = readings({ROCE.id: rdma, "eth0": tcp}), node(ROCE, nic()), Transport()
        return {t: transport.step(series, inventory, float(t), True).transport for t in range(1, seconds)}

    @staticmethod
    def first_seen(tcp: Rate, transport: str) -> int:
        series, inventory = readings({ROCE.id: 0.0, "eth0": tcp}), node(ROCE, nic())
        return next(t for t in range(1, 100) if observe(series, inventory, float(t), True)[0].transport == transport)

    def test_tcp_is_said_two_windows_after_it_was_first_seen(self) -> None:
        said, seen = self.said(0.0, BURSTS), self.first_seen(BURSTS, "tcp")
        assert said[seen + int(CONFIRM_S) - 1] == "unknown"
        assert said[seen + int(CONFIRM_S)] == "tcp"
        assert set(list(said.values())[seen + int(CONFIRM_S) - 1 :]) == {"tcp"}

    def test_a_short_flow_over_tcp_changes_nothing(self) -> None:
        def brief(t: np.ndarray) -> np.ndarray:
            return np.where((t > 40) & (t < 48), BURSTS(t), CHATTER)

        assert set(list(self.said(square(4e8, phase=0.6), brief).values())[10:]) == {"rdma"}

    def test_a_job_that_starts_over_tcp_after_one_over_rdma_is_noticed(self) -> None:
        said = self.said(lambda t: np.where(t < 40, RDMA_BURSTS(t), 0.0), lambda t: np.where(t < 40, CHATTER, BURSTS(t)))
        changes = [t for t in range(2, 100) if said[t] != said[t - 1]]
        assert [said[t] for t in changes] == ["rdma", "tcp"] or [said[t] for t in changes] == ["rdma", "mixed", "tcp"]
        assert 60 <= changes[-1] <= 75

    def test_steps_far_apart_do_not_start_the_count_anew(self) -> None:
        def rare(t: np.ndarray) -> np.ndarray:
            return np.where(t % 16 < 4, 2e9, CHATTER)

        series = readings({ROCE.id: 0.0, "eth0": rare}, power=lambda t: np.where(t % 16 < 4, 250.0, 600.0))
        assert after(series, node(ROCE, nic()), 90).transport == "tcp"

    def test_rdma_is_said_with_its_first_bytes(self) -> None:
        said = self.said(lambda t: np.where(t < 40, 0.0, RDMA_BURSTS(t)), CHATTER)
        assert said[39] == "none"
        assert said[42] == "rdma"

    def test_silence_is_believed_after_three_windows(self) -> None:
        said = self.said(lambda t: np.where(t < 40, RDMA_BURSTS(t), 0.0), CHATTER)
        assert [t for t in range(2, 100) if said[t] != said[t - 1]][-1] in range(69, 72)

    def test_a_counter_that_starts_again_is_not_traffic(self) -> None:
        series = readings({ROCE.id: 0.0, "eth0": CHATTER})
        t, value = series.channels["eth0/transmit_bytes_total"]
        series.channels["eth0/transmit_bytes_total"] = (t, np.where(t < 50, value + 5e12, value))
        transport = Transport()
        assert {transport.step(series, node(ROCE, nic()), float(s), True).transport for s in range(10, 100)} == {"none"}


@given(
    rate=st.floats(1e5, 3e9),
    answer=st.floats(0.0, 0.3),
    reverse=st.booleans(),
    period_s=st.floats(0.5, 5.0),
    duty=st.floats(0.1, 1.0),
)
@settings(max_examples=40, deadline=None)
def test_one_way_traffic_is_never_the_jobs(rate: float, answer: float, reverse: bool, period_s: float, duty: float) -> None:
    there, back = square(rate, period_s=period_s, duty=duty), square(rate * answer, period_s=period_s, duty=duty)
    series = readings({"eth0": (back, there) if reverse else (there, back)}, 61.0, power=square(250.0, 600.0, period_s, duty))
    for t in (30.0, 60.0):
        verdict, carriers = observe(series, node(nic()), t, True)
        assert verdict.transport == "none"
        assert not carriers
