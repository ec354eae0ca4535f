"""The interval formulas against their own definitions and a brute-force search."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

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


@pytest.mark.parametrize(
    ("z", "w"),
    [
        (-1 / math.e, -1.0),
        (-0.2, -0.25917110181907377),
        (0.0, 0.0),
        (1.0, 0.5671432904097838),
        (math.e, 1.0),
    ],
)
def test_lambert_w0_has_its_known_values(z: float, w: float) -> None:
    assert intervals.lambert_w0(z) == pytest.approx(w, rel=1e-14)


def test_lambert_w0_takes_rounding_at_the_branch_point_for_the_branch_point() -> None:
    assert intervals.lambert_w0(-1 / math.e - 5e-16) == -1.0
    with pytest.raises(ValueError, match="real from -1/e"):
        intervals.lambert_w0(-1 / math.e - 1e-14)


@pytest.mark.parametrize("x", [1e-9, 0.5e-3, 0.999e-3, 1.001e-3, 0.1, 3.0])
def test_exact_interval_to_eight_digits(x: float) -> None:
    """Against Newton's iteration on 1 - y = e^-(y + x) with 40 digits."""
    with localcontext() as context:
        context.prec = 40
        y, stall = Decimal(2 * x).sqrt(), Decimal(x)
        for _ in range(60):
            e = (-(y + stall)).exp()
            y -= (y + e - 1) / (1 - e)
    assert intervals.exact(x, 1.0) == pytest.approx(float(y), rel=6e-9)


def test_thesis_interval_counts_negative_figures_as_0_and_small_ones_as_they_are() -> None:
    assert intervals.thesis(0.5, 0.25, 0.75) == 1.0
    assert intervals.thesis(-1.0, 10.0, 10.0) == 0.0
    assert intervals.thesis(0.5, -5.0, 4.0) == 2.0
    assert intervals.thesis(0.5, 4.0, -5.0) == 2.0
