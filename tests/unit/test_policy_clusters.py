"""Which preemptions were one event, and how much wider that makes the interval of a rate."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy.clusters import TOGETHER_S, dispersion, event_of
from spothop.policy.estimators import Life, by_event, preemption_rate

HOUR = 3_600.0
LONG = 1e9  # exposure of a zone in which two minutes are nothing

deaths = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20)


def groups(seen: list[tuple[float, float]], exposure_s: float = LONG) -> list[int]:
    return event_of(seen, exposure_s=exposure_s)


def test_deaths_close_in_time_are_one_event() -> None:
    seen = [(1_000.0, HOUR), (1_000.0 - TOGETHER_S, HOUR), (1_000.0 - TOGETHER_S - 1, HOUR)]
    assert groups(seen) == [0, 0, 1]
    assert groups(seen[::-1]) == [1, 0, 0]  # whatever their order


def test_an_event_lasts_from_its_first_death_and_does_not_grow_by_each_other() -> None:
    assert groups([(1_000.0 - 100 * i, HOUR) for i in range(5)]) == [0, 0, 1, 1, 2]


def test_a_vm_that_came_after_an_event_began_did_not_die_of_it() -> None:
    assert groups([(100.0, HOUR), (50.0, 50.0), (50.0, 0.0)]) == [0, 1, 2]
    assert groups([(100.0, HOUR), (50.0, 50.5)]) == [0, 0]


def test_where_vms_live_for_seconds_close_means_less() -> None:
    """A twentieth of the mean life: of 20 s on the local cloud, one second."""
    local = [(10.0, 30.0), (8.9, 30.0), (9.1, 30.0)]
    assert groups(local, exposure_s=60.0) == [0, 1, 0]


@given(deaths, st.floats(0, 1e9))
def test_every_death_is_of_one_event(seen: list[tuple[float, float]], exposure_s: float) -> None:
    numbers = groups(seen, exposure_s)
    assert sorted(set(numbers)) == list(range(len(set(numbers))))
    weights = [1.0] * len(seen)
    found = dispersion(seen, weights, exposure_s=exposure_s, watched_s=exposure_s)
    assert 1 <= found <= max(1, len(seen))


def test_ten_that_always_die_together_count_as_one() -> None:
    seen = [(i * HOUR, HOUR) for i in range(9) for _ in range(10)]
    whole = dispersion(seen, [1.0] * 90, exposure_s=90 * HOUR, watched_s=LONG)
    assert whole == pytest.approx(10, rel=1e-3)
    apart = dispersion(seen[::10], [1.0] * 9, exposure_s=90 * HOUR, watched_s=LONG)
    assert apart == 1


def test_large_events_count_more_and_old_ones_less() -> None:
    """(sum of w m^2) / (sum of w m) for one of three deaths and one of one."""
    seen = [(5_000.0, HOUR)] * 3 + [(100.0, HOUR)]
    assert dispersion(seen, [1.0] * 4, exposure_s=LONG, watched_s=LONG) == pytest.approx(
        10 / 4, rel=1e-4
    )
    assert dispersion(seen, [0.5] * 3 + [1.0], exposure_s=LONG, watched_s=LONG) == pytest.approx(
        5.5 / 2.5, rel=1e-4
    )
    assert dispersion(seen, [0.0] * 4, exposure_s=LONG, watched_s=LONG) == 1


def test_deaths_of_many_vms_that_come_close_by_chance_stay_apart() -> None:
    """50 VMs with a mean life of an hour: a death every 72 s."""
    rng = random.Random(5)
    seen = [(rng.uniform(0, 20 * HOUR), 30 * HOUR) for _ in range(1_000)]
    found = dispersion(seen, [1.0] * 1_000, exposure_s=1_000 * HOUR, watched_s=20 * HOUR)
    assert found == pytest.approx(1, abs=0.25)
    assert max(map(groups(seen).count, range(20))) > 2


def test_the_rate_stays_and_its_interval_widens() -> None:
    """Ten VMs, taken together every hour for 40 hours: 40 events, not 400."""

    def life(i: int) -> Life:
        return Life(duration_s=HOUR, preempted=True, ended_ago_s=i * HOUR)

    together = preemption_rate([life(i) for i in range(40) for _ in range(10)], half_life_s=None)
    one_vm = preemption_rate([life(i) for i in range(40)], half_life_s=None)
    assert together.mttp_s == pytest.approx(one_vm.mttp_s, rel=1e-3)
    assert together.interval() == pytest.approx(one_vm.interval(), rel=1e-2)
    assert together.lives == 400


def test_lives_with_the_event_of_each() -> None:
    seen = [
        Life(duration_s=HOUR, preempted=True, ended_ago_s=60.0),
        Life(duration_s=HOUR, preempted=False, ended_ago_s=60.0),
        Life(duration_s=2 * HOUR, preempted=True, ended_ago_s=30.0),
        Life(duration_s=3 * HOUR, preempted=True, ended_ago_s=9_000.0),
    ]
    assert by_event(seen) == [
        (HOUR, True, 1), (HOUR, False, -1), (2 * HOUR, True, 1), (3 * HOUR, True, 0),
    ]  # fmt: skip
