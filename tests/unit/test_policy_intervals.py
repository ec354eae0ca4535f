"""The interval formulas against their own definitions and a brute-force search."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy import intervals
from support.examples import examples

finite = st.floats(allow_nan=False, allow_infinity=False)


@examples(100)
@given(st.floats(min_value=-1 / math.e, max_value=1e6))
def test_lambert_w0_solves_its_equation(z: float) -> None:
    w = intervals.lambert_w0(z)
    assert w >= -1
    assert w * math.exp(w) == pytest.approx(z, rel=1e-9, abs=1e-12)


def test_lambert_w0_has_no_real_value_below_the_branch_point() -> None:
    with pytest.raises(ValueError, match="real from -1/e"):
        intervals.lambert_w0(-0.4)


@pytest.mark.parametrize(("stall_s", "mean_s"), [(2.5, 10_800), (19.5, 10_800), (60, 600)])
def test_exact_interval_is_the_minimum_of_the_overhead(stall_s: float, mean_s: float) -> None:
    def per_work(tau: float) -> float:
        return math.expm1((tau + stall_s) / mean_s) / tau

    tau = intervals.exact(stall_s, mean_s)
    assert per_work(tau) <= min(per_work(0.999 * tau), per_work(1.001 * tau))


@pytest.mark.parametrize("x", [1e-12, 1e-6, 0.999e-3, 1.001e-3, 0.1])
def test_exact_interval_solves_its_equation_on_both_sides_of_the_series(x: float) -> None:
    # 1 - y = e^-(y + x) with y = tau / M: the derivative of the overhead set to 0
    y = intervals.exact(x, 1.0)
    assert 1 - y == pytest.approx(math.exp(-(y + x)), abs=max(2e-5 * y * y, 1e-15))


def test_exact_interval_is_near_the_first_order_one_when_losses_are_rare() -> None:
    assert intervals.exact(2.5, 1e6) == pytest.approx(math.sqrt(2 * 2.5 * 1e6), rel=0.002)


def test_thesis_interval_is_that_of_its_tables() -> None:
    assert intervals.thesis(2.5, 10_800, 293.5) // 4.6 == 51
    assert intervals.thesis(19.5, 10_800, 461) // 19.75 == 33


@examples(100)
@given(finite, finite, finite)
def test_no_formula_leaves_the_finite_numbers(a: float, b: float, c: float) -> None:
    for tau in (intervals.exact(a, b), intervals.thesis(a, b, c)):
        assert 0 <= tau <= intervals.LONGEST_S


@examples(50)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1, 1e6))
def test_a_dearer_save_is_taken_less_often(a: float, b: float, mean_s: float) -> None:
    low, high = sorted((a, b))
    assert intervals.exact(low, mean_s) <= intervals.exact(high, mean_s) + 1e-9
