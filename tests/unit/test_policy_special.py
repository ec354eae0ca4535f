"""Gamma and Beta quantiles against closed forms, known figures and their own inverse."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spothop.policy.special import beta_cdf, beta_quantile, gamma_cdf, gamma_quantile
from support.examples import examples

share = st.floats(0.001, 0.999)
shape = st.floats(0.3, 2_000)
# Below 0.5 neighbouring floats near 1 lie further apart in probability than what is asked for.
beta_shape = st.floats(0.5, 2_000)


@examples(60)
@given(share)
def test_gamma_of_shape_1_is_the_exponential(p: float) -> None:
    assert gamma_quantile(p, 1.0) == pytest.approx(-math.log1p(-p), rel=1e-9)


@examples(60)
@given(share, shape)
def test_gamma_quantile_inverts_the_distribution(p: float, a: float) -> None:
    assert gamma_cdf(gamma_quantile(p, a), a) == pytest.approx(p, abs=1e-8)


@examples(60)
@example(0.999, 221.0, 0.5)  # steep near 1
@given(share, beta_shape, beta_shape)
def test_beta_quantile_inverts_the_distribution(p: float, a: float, b: float) -> None:
    assert beta_cdf(beta_quantile(p, a, b), a, b) == pytest.approx(p, abs=1e-7)


@examples(60)
@given(share, st.floats(0.3, 50))
def test_beta_with_b_1_is_a_power(p: float, a: float) -> None:
    assert beta_quantile(p, a, 1.0) == pytest.approx(p ** (1 / a), rel=1e-8, abs=1e-11)


def test_chi_square_table() -> None:
    # the 95 % points of chi-square with 10 and 60 degrees of freedom, from any table
    assert 2 * gamma_quantile(0.95, 5.0) == pytest.approx(18.307, abs=1e-3)
    assert 2 * gamma_quantile(0.95, 30.0) == pytest.approx(79.082, abs=1e-3)


@pytest.mark.parametrize(("p", "a"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.0), (0.5, math.inf)])
def test_nonsense_is_refused(p: float, a: float) -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1|above 0"):
        gamma_quantile(p, a)
    with pytest.raises(ValueError, match=r"between 0 and 1|above 0"):
        beta_quantile(p, a, 2.0)
