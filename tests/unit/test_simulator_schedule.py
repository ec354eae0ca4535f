"""Counting saves by arithmetic against listing them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy import Measures, periodic
from spothop.policy.hazard import Weibull
from spothop.policy.periodic import due
from spothop.simulator.schedule import NEVER, ByAge, Even, Spread, by_age, parts, reach
from support.examples import examples

MEASURES = Measures(
    step_s=4.6, save_s=2.5, backup_s=5, mttp_s=3_600, restart_s=290, grace_s=30, notice_kept=0.9
)


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def listed(gap: int, every: int, start: int, upto: int) -> list[int]:
    """Saves in (start, upto], each re-arming the next insurance save."""
    saves, last = [], start
    for step in range(start + 1, upto + 1):
        if step - last >= gap or step % every == 0:
            saves.append(step)
            last = step
    return saves


steps = st.integers(0, 200)


@examples(100)
@given(st.integers(1, 60), st.integers(1, 90) | st.just(NEVER), steps, steps)
def test_even_saves_are_those_that_a_walk_finds(gap: int, every: int, start: int, on: int) -> None:
    schedule = Even(min(gap, every), every)
    saves = listed(gap, every, start, start + on)
    assert schedule.count(array(start), array(start + on))[0] == len(saves)
    assert schedule.last(array(start), array(start + on))[0] == max([start, *saves])


def walked(gap: float, every: int, start: int, upto: int, *, least: int = 1) -> list[int]:
    """As master and agent do it: after each save the next one is decided anew."""
    saves, newest = [], start
    while True:
        periodic = (newest // every + 1) * every
        newest = min(due(newest, gap, periodic, least=least), periodic)
        if newest > upto:
            return saves
        saves.append(newest)


@examples(100)
@given(st.floats(10, 60), st.integers(1, 300), st.integers(0, 500), st.integers(0, 700))
def test_saves_between_periodic_ones_are_spread_as_master_and_agent_do_it(
    gap: float, every: int, start: int, on: int
) -> None:
    schedule = Spread(gap, every)
    begun, end = array(start), array(start + on)
    saves = walked(gap, every, start, start + on)
    counted = int(schedule.count(begun, end)[0])
    # where x^2 is about n (n + 1), both numbers of parts cost the same
    assert abs(counted - len(saves)) <= 1 + on // every
    newest = schedule.last(begun, end)[0]
    assert newest == start or schedule.count(begun, array(newest - 1))[0] == counted - 1
    own = {n for n in range(start + 1, start + on + 1) if n % every == 0}
    assert own <= set(saves)
    assert all(int(schedule.last(begun, array(n))[0]) == n for n in own)
    parts_long = [b - a for a, b in itertools.pairwise([start, *saves])]
    assert all(length <= math.sqrt(2) * gap + 1 for length in parts_long)


def test_43_steps_become_equal_parts_of_1000() -> None:
    schedule = Spread(43.0, 1_000)
    saved = {int(schedule.last(array(0), array(step))[0]) for step in range(2_001)}
    gaps = np.diff(sorted(saved))
    assert set(gaps) == {43, 44}
    assert schedule.count(array(0), array(2_000))[0] == 2 * 23
    assert {1_000, 2_000} <= saved
    rearmed = Even(43, 1_000)
    assert rearmed.count(array(0), array(2_000))[0] == 2 * 24


def test_after_a_restore_the_rest_of_the_period_is_divided() -> None:
    schedule = Spread(43.0, 1_000)
    newest = [int(schedule.last(array(930), array(step))[0]) for step in (964, 965, 999, 1_000)]
    assert newest == [930, 965, 965, 1_000]


@pytest.mark.parametrize("every", [9, 15, 19, 20, 25, 39, 43])
def test_parts_are_no_shorter_than_the_least_interval(every: int) -> None:
    """Whether the interval depends on the age of a VM or not."""
    evenly = Spread(10.0, every, least=10)
    aged = ByAge(array(*range(10, 400, 10)), 10, every, least=10)
    for start in (0, 3):
        left = every - start
        end = array(start + left - 1)
        walks = walked(10.0, every, start, start + left - 1, least=10)
        for schedule in (evenly, aged):
            assert schedule.count(array(start), end)[0] == len(walks)
    whole = 7 * every
    assert evenly.count(array(0), array(whole))[0] == 7 * max(every // 10, 1)
    assert aged.count(array(0), array(whole))[0] == 7 * max(every // 10, 1)


@pytest.mark.parametrize("x", [0, 0.1, 1, 1.41, 1.42, 2.44, 2.45, 23.26, 1e6, 1e300])
def test_parts_are_those_of_the_policy(x: float) -> None:
    assert parts(np.array([x]))[0] == periodic.parts(x)


@examples(60)
@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=6),
    st.integers(1, 90),
    steps,
    steps,
)
def test_saves_by_age_are_as_many_as_intervals_and_end_with_each_periodic_one(
    gaps: list[int], every: int, start: int, on: int
) -> None:
    schedule = ByAge(np.cumsum(gaps), gaps[-1], every)
    begun = array(start)
    saved = [
        step
        for step in range(start + 1, start + on + 1)
        if schedule.last(begun, array(step))[0] == step
    ]
    assert schedule.count(begun, array(start + on))[0] == len(saved)
    assert {n for n in range(start + 1, start + on + 1) if n % every == 0} <= set(saved)
    if len(set(gaps)) == 1:
        spread = Spread(float(gaps[0]), every).count(begun, array(start + on))[0]
        assert abs(len(saved) - spread) <= 1


@examples(60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), steps, steps)
def test_saves_by_age_without_periodic_ones_are_those_listed_and_then_even(
    gaps: list[int], start: int, on: int
) -> None:
    after = np.cumsum(gaps)
    schedule = ByAge(after, gaps[-1])
    insured = [*after, *range(int(after[-1]) + gaps[-1], 1_000, gaps[-1])]
    insured = [start + n for n in insured if n <= on]
    assert schedule.count(array(start), array(start + on))[0] == len(insured)
    assert schedule.last(array(start), array(start + on))[0] == max([start, *insured])


@examples(100)
@given(
    st.integers(1, 30),
    st.integers(0, 50),
    st.floats(0.1, 10),
    st.floats(0, 10),
    st.floats(0, 2_000),
)
def test_reach_is_the_last_step_that_fits(
    gap: int, start: int, step_s: float, stall_s: float, budget_s: float
) -> None:
    schedule = Even(gap)
    got = reach(
        schedule,
        array(start),
        100_000,
        np.array([step_s]),
        np.array([stall_s]),
        np.array([budget_s]),
    )

    def spent(step: int) -> float:
        return (step - start) * step_s + stall_s * ((step - start) // gap)

    assert spent(int(got[0])) <= budget_s + 1e-6
    assert spent(int(got[0]) + 1) > budget_s - 1e-6


def test_reach_stops_at_the_end_of_the_job() -> None:
    got = reach(Even(5), array(0), 40, np.array([1.0]), np.array([0.0]), np.array([1e6]))
    assert got[0] == 40


@pytest.mark.parametrize("budget_s", [1e15, 1e20, 1e300])
def test_reach_counts_no_further_than_the_job(budget_s: float) -> None:
    budget = np.array([budget_s, -budget_s])
    got = reach(Even(5), array(7, 7), 40, np.full(2, 1e-4), np.full(2, 0.1), budget)
    assert got.tolist() == [40, 7]


def test_a_schedule_by_age_is_denser_while_hazard_is_high() -> None:
    law = Weibull.of_mean(3_600, 0.6)
    schedule = by_age("notice-aware", MEASURES, law, first_age_s=160, steps=10_000, every=NEVER)
    gaps = np.diff(schedule.after)
    assert gaps[0] < gaps[-1]
    assert (np.diff(gaps) >= -1).all()


@pytest.mark.parametrize("policy", ["thesis", "none"])
def test_a_policy_without_insurance_has_no_saves(policy: str) -> None:
    law = Weibull.of_mean(3_600, 0.6)
    schedule = by_age(policy, MEASURES, law, first_age_s=0, steps=10_000, every=NEVER)
    assert schedule.count(array(0), array(10_000))[0] == 0
