"""When the injector strikes: a pure function of the plan and the number."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop_master.core.injection import Plan
from support.examples import examples


def test_the_kth_interval_has_the_kth_mean_and_the_last_repeats() -> None:
    plan = Plan(mttp_s=[600, 1200], seed=7)
    unit = Plan(mttp_s=[1], seed=7)
    for k, mean_s in enumerate([600, 1200, 1200, 1200]):
        interval_s, of_one = plan.interval_s(k), unit.interval_s(k)
        assert interval_s is not None
        assert of_one is not None
        assert interval_s == pytest.approx(mean_s * of_one)


def test_the_same_seed_gives_the_same_and_another_one_others() -> None:
    first, again, other = (Plan(mttp_s=[60], seed=seed) for seed in (1, 1, 2))
    assert [first.interval_s(k) for k in range(9)] == [again.interval_s(k) for k in range(9)]
    assert first.interval_s(0) != other.interval_s(0)


def test_these_very_intervals_whatever_the_machine() -> None:
    """A change of the draw would change every recorded experiment."""
    plan = Plan(mttp_s=[600, 1200], seed=7)
    assert [round(plan.interval_s(k) or 0, 3) for k in range(3)] == [1994.167, 2125.386, 406.474]


def test_intervals_are_exponential() -> None:
    plan = Plan(mttp_s=[10], seed=3)
    drawn = [plan.interval_s(k) or 0.0 for k in range(4000)]
    assert statistics.mean(drawn) == pytest.approx(10, rel=0.05)
    assert statistics.stdev(drawn) == pytest.approx(10, rel=0.06)
    assert sum(s < 10 * math.log(2) for s in drawn) / len(drawn) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("no_notice", "low", "high"), [(0, 1, 1), (1, 0, 0), (0.25, 0.7, 0.8)])
def test_the_share_without_notice(no_notice: float, low: float, high: float) -> None:
    plan = Plan(mttp_s=[10], seed=5, no_notice=no_notice)
    share = sum(plan.noticed(k) for k in range(2000)) / 2000
    assert low <= share <= high


def test_a_trace_ends() -> None:
    plan = Plan(lives_s=[30.0, 5.0])
    assert [plan.interval_s(k) for k in range(4)] == [30.0, 5.0, None, None]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"mttp_s": [1], "lives_s": [1]},
        {"mttp_s": [0]},
        {"mttp_s": [-1]},
        {"mttp_s": [math.nan]},
        {"lives_s": [math.inf]},
        {"mttp_s": [1], "no_notice": 1.1},
        {"mttp_s": [1], "no_notice": math.nan},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match=r"needs either|above 0|probability"):
        Plan(**wrong)  # type: ignore[arg-type]


@examples(100)
@given(
    mttp=st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=5),
    seed=st.integers(0, 2**63 - 1),
    k=st.integers(0, 10**6),
)
def test_intervals_are_finite_and_never_negative(mttp: list[float], seed: int, k: int) -> None:
    interval_s = Plan(mttp_s=mttp, seed=seed).interval_s(k)
    assert interval_s is not None
    assert 0 <= interval_s < math.inf


def test_these_very_preemptions_have_no_notice() -> None:
    plan = Plan(mttp_s=[600], seed=7, no_notice=0.5)
    assert [k for k in range(12) if not plan.noticed(k)] == [0, 1, 2, 4, 5, 6, 7, 11]
