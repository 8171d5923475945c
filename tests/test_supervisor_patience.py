"""How long a device is left alone that fails again and again, and that the others keep their samples meanwhile."""

from __future__ import annotations

import heapq
from itertools import count

import pytest

from exporter.supervisor_patience import CRASH, GIVEN_UP_PAUSE_S, HANG, LONGEST_PAUSE_S, Patience

HOUR_S = 3600.0


def test_a_first_hang_costs_no_pause_and_later_ones_ever_longer_ones() -> None:
    patience = Patience()
    assert [patience.hung("GPU-1", 100.0 * k) for k in range(8)] == [0, 60, 120, 240, 480, 600, 600, 600]
    assert patience.hung("GPU-2", 800.0) == 0.0


def test_three_crashes_within_a_minute_are_too_many() -> None:
    patience = Patience()
    assert [patience.crashed("GPU-1", t_s) for t_s in (0.0, 40.0, 80.0, 120.0)] == [None] * 4
    assert patience.crashed("GPU-1", 130.0) == 60.0  # with those at 80 and 120 the third


def test_a_device_that_crashes_right_after_its_pause_is_left_alone_at_once_for_longer() -> None:
    patience = Patience()
    pauses = [patience.crashed("GPU-1", t_s) for t_s in (0.0, 1.0, 2.0)]
    assert pauses == [None, None, 60.0]
    now_s = 2.0
    for expected_s in (120.0, 240.0, 480.0, 600.0, 600.0):
        now_s += pauses[-1] or 0.0
        patience.tries("GPU-1", CRASH, now_s)
        now_s += 1.0
        pauses.append(patience.crashed("GPU-1", now_s))
        assert pauses[-1] == expected_s
    patience.tries("GPU-1", CRASH, now_s + 600.0)
    assert patience.crashed("GPU-1", now_s + 700.0) is None  # it had behaved for more than a minute


def test_what_was_an_hour_ago_is_forgotten() -> None:
    patience = Patience()
    assert [patience.hung("GPU-1", t_s) for t_s in (0.0, 10.0, HOUR_S + 11.0)] == [0.0, 60.0, 0.0]


def test_no_pause_is_longer_than_the_longest_that_is_set() -> None:
    patience = Patience(longest_pause_s=5.0)
    assert [patience.hung("GPU-1", float(k)) for k in range(4)] == [0.0, 5.0, 5.0, 5.0]
    assert patience.gave_up() == 5.0
    patience.longest_pause_s = LONGEST_PAUSE_S
    assert patience.gave_up() == GIVEN_UP_PAUSE_S


def test_a_device_waits_while_the_others_have_been_silent_too_often_yet_not_for_ever() -> None:
    patience = Patience(longest_pause_s=400.0)
    for k in range(4):
        patience.hung(f"GPU-{k}", 10.0 * k)
    assert not patience.may_try(40.0, 40.0)
    assert not patience.may_try(40.0, 300.0)
    assert patience.may_try(40.0, 300.1)  # the first of the four is more than five minutes ago
    impatient = Patience(longest_pause_s=20.0)
    for k in range(4):
        impatient.hung(f"GPU-{k}", 10.0 * k)
    assert (impatient.may_try(40.0, 59.9), impatient.may_try(40.0, 60.0)) == (False, True)


def test_after_a_release_every_device_begins_anew() -> None:
    patience = Patience()
    for k in range(4):
        patience.hung("GPU-1", float(k))
    patience.forgive()
    assert patience.may_try(5.0, 5.0)
    assert patience.hung("GPU-1", 6.0) == 0.0


@pytest.mark.parametrize("kind", [HANG, CRASH])
@pytest.mark.parametrize("devices", [1, 2])
def test_devices_that_fail_at_every_try_leave_the_others_95_percent_of_any_five_minutes(kind: str, devices: int) -> None:
    """Played with the times of a reader: each hang silences it for 3 s, each crash for 1 s; a hung call returns after 4 s."""
    patience = Patience()
    silences: list[tuple[float, float]] = []
    order = count()
    tries = [(0.5 * k, next(order), f"GPU-{k}") for k in range(devices)]
    while tries[0][0] < 2 * HOUR_S:
        now_s, _, device = heapq.heappop(tries)
        busy_until_s = max((end for _, end in silences), default=0.0)
        if now_s < busy_until_s:
            heapq.heappush(tries, (busy_until_s, next(order), device))
            continue
        silences.append((now_s, now_s + (3.0 if kind == HANG else 1.0)))
        now_s = silences[-1][1]
        pause_s = patience.hung(device, now_s) if kind == HANG else patience.crashed(device, now_s)
        again_s = until_s = now_s + (4.0 if kind == HANG else 0.0) + (pause_s or 0.0)
        while not patience.may_try(until_s, again_s):
            again_s += 1.0
        if pause_s:
            patience.tries(device, kind, again_s)
        heapq.heappush(tries, (again_s, next(order), device))
    assert len(silences) > 10 * devices
    for start_s, _ in silences:
        silent_s = sum(min(end, start_s + 300.0) - begin for begin, end in silences if start_s <= begin < start_s + 300.0)
        assert silent_s <= 15.0, (start_s, silent_s)
