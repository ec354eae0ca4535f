"""Counting saves by arithmetic against listing them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy import Measures
from spothop.policy.hazard import Weibull
from spothop.simulator.schedule import NEVER, ByAge, Even, by_age, reach
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


@examples(60)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 90) | st.just(NEVER),
    steps,
    steps,
)
def test_saves_by_age_are_those_listed_and_then_even(
    gaps: list[int], every: int, start: int, on: int
) -> None:
    after = np.cumsum(gaps)
    schedule = ByAge(after, gaps[-1], every)
    insured = [*after, *range(int(after[-1]) + gaps[-1], 1_000, gaps[-1])]
    insured = [start + n for n in insured if n <= on]
    periodic = [n for n in range(start + 1, start + on + 1) if n % every == 0]
    assert schedule.count(array(start), array(start + on))[0] == len(insured) + len(periodic)
    assert schedule.last(array(start), array(start + on))[0] == max([start, *insured, *periodic])


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
