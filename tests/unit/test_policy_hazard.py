"""Laws of lives: cumulative hazards and the piecewise fit."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy.hazard import Piecewise, Weibull, fit_by_age, weighed
from support.examples import examples

positive = st.floats(1e-3, 1e6)


def test_weibull_of_shape_1_is_the_exponential() -> None:
    law = Weibull.of_mean(3_600, 1.0)
    assert law.cumulative(7_200) == pytest.approx(2.0)


def test_weibull_of_mean_has_that_mean() -> None:
    law = Weibull.of_mean(3_600, 0.6)
    rng = random.Random(1)
    drawn = [law.scale_s * rng.expovariate(1) ** (1 / law.shape) for _ in range(40_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(3_600, rel=0.05)


@examples(60)
@given(st.floats(0.05, 20), positive, positive, st.floats(0, 1e12))
def test_cumulative_hazard_never_falls_and_stays_finite(
    shape: float, scale: float, a: float, b: float
) -> None:
    law = Weibull(shape, scale)
    low, high = sorted((a, b))
    assert 0 <= law.cumulative(low) <= law.cumulative(high) < math.inf


@pytest.mark.parametrize(("shape", "scale"), [(0, 1), (1, 0), (-1, 1), (math.inf, 1)])
def test_weibull_refuses_nonsense(shape: float, scale: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Weibull(shape, scale)


def test_piecewise_adds_up_its_bins() -> None:
    law = Piecewise((0.0, 10.0, 30.0), (0.1, 0.0, 0.5))
    assert law.cumulative(5) == pytest.approx(0.5)
    assert law.cumulative(20) == pytest.approx(1.0)
    assert law.cumulative(32) == pytest.approx(2.0)
    assert law.cumulative(-1) == 0


@pytest.mark.parametrize(
    ("ages", "rates"), [((), ()), ((1.0,), (1.0,)), ((0.0, 0.0), (1.0, 1.0)), ((0.0,), (-1.0,))]
)
def test_piecewise_refuses_nonsense(ages: tuple[float, ...], rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"ages must rise|one rate"):
        Piecewise(ages, rates)


def test_fit_finds_that_young_vms_die_more() -> None:
    rng = random.Random(2)
    law = Weibull.of_mean(7_200, 0.6)
    lives = [(law.scale_s * rng.expovariate(1) ** (1 / 0.6), True, 1.0) for _ in range(4_000)]
    fitted = fit_by_age([lives], mttp_s=7_200)
    assert fitted is not None
    for low, high in ((0, 600), (600, 3_600), (3_600, 20_000)):
        found, true = (h.cumulative(high) - h.cumulative(low) for h in (fitted, law))
        assert found == pytest.approx(true, rel=0.12)


def test_fit_counts_a_censored_life_as_exposure_only() -> None:
    """An old VM that is alive tells that old ones die less."""
    young = [(60.0 * i, True, 1.0) for i in range(1, 41)]
    fitted = fit_by_age([[*young, *[(20_000.0, False, 1.0)] * 40]], mttp_s=10_000)
    assert fitted is not None
    assert fitted.rates[0] > 3 * fitted.rates[-1]


def test_zones_of_different_hazard_are_not_taken_for_an_effect_of_age() -> None:
    rng = random.Random(4)
    zones = [
        [(rng.expovariate(1 / m), True, 1.0) for _ in range(300)] for m in (600, 6_000, 60_000)
    ]
    apart = fit_by_age(zones, mttp_s=6_000)
    mixed = fit_by_age([[life for zone in zones for life in zone]], mttp_s=6_000)
    assert apart is not None
    assert mixed is not None
    assert all(0.4 < 6_000 * rate < 2.5 for rate in apart.rates)
    assert mixed.rates[0] > 5 * mixed.rates[-1]


def test_vms_that_a_zone_takes_at_once_are_one_event() -> None:
    ends = [*["first"] * 4, "second", "alive", "alive"]
    lives = [(60.0, end != "alive", end) for end in ends]
    assert [w for _, _, w in weighed(lives)] == [0.25] * 4 + [1.0] * 3
    often = [(60.0 + i, True, i // 10) for i in range(290)]
    assert fit_by_age([weighed(often)], mttp_s=100) is None  # 29 events
    assert fit_by_age([weighed([*often, (60.0, True, 99)])], mttp_s=100) is not None


def test_the_hazard_by_age_needs_thirty_deaths() -> None:
    assert fit_by_age([[(60.0, True, 1.0)] * 29 + [(900.0, False, 1.0)] * 50], mttp_s=100) is None
    assert fit_by_age([[(60.0, True, 1.0)] * 30], mttp_s=100) is not None
    assert fit_by_age([[(0.0, True, 1.0)] * 30], mttp_s=100) is None


def test_the_hazard_by_age_has_the_regions_shape_at_the_zones_level() -> None:
    """The bathtub of a maximum run time: calm for long, then all die."""
    rng = random.Random(3)
    lives = [(rng.uniform(0, 3_600), True, 1.0) for _ in range(40)]
    lives += [(rng.uniform(80_000, 86_400), True, 1.0) for _ in range(160)]
    mean_s = sum(s for s, _, _ in lives) / len(lives)
    law, twice = (fit_by_age([lives], mttp_s=mttp_s) for mttp_s in (mean_s, mean_s / 2))
    assert law is not None
    assert twice is not None

    def hazard(law: Piecewise, a: float, b: float) -> float:
        return mean_s * (law.cumulative(b) - law.cumulative(a)) / (b - a)

    assert hazard(law, 0, 3_600) > 1.5
    assert hazard(law, 10_000, 75_000) < 0.2
    assert hazard(law, 82_000, 86_400) > 5
    assert hazard(twice, 0, 3_600) == pytest.approx(2 * hazard(law, 0, 3_600))


EIGHT = tuple(float(age) for age in range(8))
"""Edges of the even bins when the longest life is 8 s."""


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_each_bin_has_its_deaths_over_those_expected(weight: float) -> None:
    """All die at 8 s: the zone's rate, 1/8, expects 30/8 in each bin before it, and none after."""
    zone = [(8.0, True, weight)] * int(30 / weight)
    at_once = [(0.0, True, 1.0)]  # a zone without exposure expects nothing, and has a death
    fitted = fit_by_age([zone, at_once], mttp_s=100.0)
    assert fitted is not None
    assert fitted.ages_s == (*EIGHT, 8.0)
    assert [100 * rate for rate in fitted.rates] == pytest.approx(
        [(1 + 3) / (3.75 + 3), *[3 / (3.75 + 3)] * 7, (30 + 3) / 3]
    )


def test_a_stronger_prior_draws_the_bins_to_1() -> None:
    fitted = fit_by_age([[(8.0, True, 1.0)] * 30], mttp_s=100.0, prior_deaths=30.0)
    assert fitted is not None
    assert 100 * fitted.rates[-1] == pytest.approx(2.0)


@pytest.mark.parametrize("others", [0.0, 4.0])
def test_the_even_bins_reach_to_the_longest_life(others: float) -> None:
    fitted = fit_by_age([[(others, True, 1.0)] * 29 + [(8.0, True, 1.0)]], mttp_s=100.0)
    assert fitted is not None
    assert fitted.ages_s == EIGHT


def test_bins_hold_equally_many_deaths() -> None:
    lives = [(float(s), True, 1.0) for s in range(1, 41)]
    fitted = fit_by_age([lives], mttp_s=100.0)
    assert fitted is not None
    even = {5.0 * i for i in range(1, 8)}
    assert fitted.ages_s == tuple(sorted({0.0, 11.0, 21.0, 31.0} | even))


def test_lives_of_less_than_a_second_tell_their_hazard_too() -> None:
    assert fit_by_age([[(0.5, True, 1.0)] * 30], mttp_s=0.5) is not None


def test_an_mttp_of_nothing_leaves_the_rates_finite() -> None:
    fitted = fit_by_age([[(8.0, True, 1.0)] * 30], mttp_s=0.0)
    assert fitted is not None
    assert fitted.rates[-1] == pytest.approx(11 * 1e9)


def test_infinite_figures_are_no_hazard() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Weibull(1.0, math.inf)
    with pytest.raises(ValueError, match="one rate"):
        Piecewise((0.0,), (math.inf,))
