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


@pytest.mark.parametrize(
    ("x", "share"), [(-1.0, 0.0), (0.0, 0.0), (0.25, 0.25), (0.5, 0.5), (1.0, 1.0), (1.5, 1.0)]
)
def test_beta_of_1_and_1_is_uniform(x: float, share: float) -> None:
    assert beta_cdf(x, 1.0, 1.0) == pytest.approx(share, abs=1e-15)


@pytest.mark.parametrize(("x", "share"), [(-1.0, 0.0), (0.0, 0.0), (1.0, 1 - math.exp(-1))])
def test_gamma_is_0_up_to_0(x: float, share: float) -> None:
    assert gamma_cdf(x, 1.0) == pytest.approx(share, abs=1e-15)


@examples(60)
@given(st.floats(0.001, 0.999), st.integers(1, 30), st.integers(1, 30))
def test_beta_of_whole_shapes_is_a_binomial_tail(x: float, a: int, b: int) -> None:
    n = a + b - 1
    tail = sum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert beta_cdf(x, a, b) == pytest.approx(tail, rel=1e-9, abs=1e-13)


@examples(60)
@given(st.floats(0.001, 60), st.integers(1, 30))
def test_gamma_of_a_whole_shape_is_a_poisson_tail(x: float, shape: int) -> None:
    below = sum(math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(shape))
    assert gamma_cdf(x, shape) == pytest.approx(1 - below, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("shapes", [(0.0, 1.0), (1.0, 0.0), (1.0, -1.0), (1.0, math.inf)])
def test_both_shapes_of_beta_are_checked(shapes: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        beta_quantile(0.5, *shapes)
