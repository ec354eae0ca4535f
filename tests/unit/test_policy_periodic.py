"""Insurance saves between those that the script makes by itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy import Measures, next_insurance
from spothop.policy.periodic import FARTHEST, due, next_save, parts
from support.examples import examples

# tau is 43.5 steps
M = Measures(
    step_s=19.75, save_s=19.5, backup_s=8, mttp_s=20_000, restart_s=461, grace_s=20, notice_kept=1
)


@pytest.mark.parametrize(
    ("saved", "step", "expected"),
    [
        ([], 5, None),
        ([1_000], 1_005, None),
        ([1_000, 2_000], 2_010, 3_000),
        ([2_000, 1_000, 2_000], 1_500, 2_000),  # computed again after a preemption
        ([1_000, 2_000, 4_000], 4_000, 5_000),  # the one at 3,000 answered a request
        ([1_000, 2_000, 2_700], 2_800, None),  # not regular
        ([1_000, 2_000], 4_321, 5_000),
        ([1_000, 2_000], 4_999, 5_000),
        ([1_000, 2_000], 5_000, None),  # those at 3,000, 4,000 and 5,000 did not come
    ],
)
def test_the_next_periodic_save_follows_from_the_last_ones(
    saved: list[int], step: int, expected: int | None
) -> None:
    assert next_save(saved, step) == expected


@given(st.floats(0, 1e4))
def test_the_number_of_parts_costs_least(x: float) -> None:
    def cost(n: int) -> float:
        return n + x**2 / n

    n = parts(x)
    assert cost(n) <= cost(n + 1) * (1 + 1e-9)
    assert n == 1 or cost(n) <= cost(n - 1) * (1 + 1e-9)


@examples(200)
@given(
    st.integers(0, 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.integers(0, 10**9),
)
def test_the_next_save_comes_later_and_not_much_after_its_interval(
    step: int, gap: float, periodic: int | None
) -> None:
    at = due(step, gap, periodic)
    whole = min(max(gap, 1.0), FARTHEST)
    assert step < at <= step + (math.sqrt(2) + 0.25) * whole + 2


def test_a_script_that_stops_saving_gets_its_whole_interval() -> None:
    """Often before: each of them would be expected anew, and a quarter of an interval after it an
    insurance save would come."""
    saved, steps = range(0, 80, 10), [70]
    for _ in range(3):
        steps.append(due(steps[-1], 1_000, next_save(saved, steps[-1])))
    assert steps == [70, 330, 1_330, 2_330]


def test_no_two_saves_are_closer_than_the_least_distance() -> None:
    assert due(0, 100, 5, least=100) == 100
    assert due(0, 100, 90, least=100) == 115


def test_the_policy_spreads_and_says_so() -> None:
    plain = next_insurance("notice-aware", M, step=1_000)
    spread = next_insurance("notice-aware", M, step=1_000, periodic=2_000)
    assert plain.at_step is not None
    assert plain.tau_s == spread.tau_s
    n = parts(1_000 / ((plain.tau_s or 0.0) / M.step_s))
    assert spread.at_step == 1_000 + round(1_000 / n)
    assert "spread evenly up to your own save at step 2000" in spread.reason
    assert "spread" not in plain.reason


def test_shortly_before_a_periodic_save_there_is_no_other() -> None:
    near = next_insurance("notice-aware", M, step=1_970, periodic=2_000)
    assert near.at_step == 2_000 + round(43.5 / 4)  # if the script has not saved by then


def test_the_other_policies_count_on_regardless() -> None:
    for policy in ("thesis-always", "static:43"):
        decision = next_insurance(policy, M, step=990, periodic=1_000)
        assert decision == next_insurance(policy, M, step=990)


def test_without_a_step_time_nothing_is_spread() -> None:
    waits = next_insurance("notice-aware", replace(M, step_s=0), step=0, periodic=1_000)
    assert waits.at_step is None
