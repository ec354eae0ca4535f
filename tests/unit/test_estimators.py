"""What lives and notices say: the rate with censoring, fading and neighbours; q; Kaplan-Meier."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy.estimators import (
    DAY_S,
    Life,
    NoticePosterior,
    RatePosterior,
    RatePrior,
    evidence,
    faded_mean,
    failure_mean_s,
    kaplan_meier,
    median_life_s,
    notice_share,
    preemption_rate,
)
from support.examples import examples

lives = st.lists(
    st.builds(
        Life,
        duration_s=st.floats(0, 1e7),
        preempted=st.booleans(),
        ended_ago_s=st.floats(0, 1e7),
    ),
    max_size=30,
)


def died(hours: float, ago_s: float = 0.0) -> Life:
    return Life(duration_s=hours * 3_600, preempted=True, ended_ago_s=ago_s)


def one_by_one(hours: float, n: int, ago_s: float = 0.0) -> list[Life]:
    """One VM at a time: each runs when the one before has gone."""
    return [died(hours, ago_s + i * hours * 3_600) for i in range(n)]


def cut(hours: float) -> Life:
    return Life(duration_s=hours * 3_600, preempted=False)


def test_no_lives_leave_the_prior() -> None:
    posterior = preemption_rate([])
    assert posterior.mttp_s == 3 * 3_600
    assert posterior.lives == 0
    assert preemption_rate([], prior=RatePrior(exposure_s=20.0)).mttp_s == 20


def test_the_rate_is_preemptions_over_all_exposure() -> None:
    posterior = preemption_rate([died(1), died(3, ago_s=600), cut(8)], half_life_s=None)
    assert posterior.mttp_s == pytest.approx((3 + 12) / (1 + 2) * 3_600)
    assert posterior.lives == 2


def test_a_censored_life_makes_the_pool_look_safer_and_a_death_less_safe() -> None:
    before = preemption_rate([died(1), died(3)]).mttp_s
    assert preemption_rate([died(1), died(3), cut(5)]).mttp_s > before
    assert preemption_rate([died(1), died(3), died(0.1)]).mttp_s < before


def test_old_lives_fade_and_very_old_ones_leave_the_prior() -> None:
    fresh, old = one_by_one(0.5, 20), one_by_one(0.5, 20, ago_s=30 * DAY_S)
    assert preemption_rate(fresh).mttp_s < 1.1 * 3_600
    assert preemption_rate(old).mttp_s == pytest.approx(3 * 3_600, rel=1e-6)
    assert preemption_rate(old, half_life_s=None).mttp_s < 1.1 * 3_600


def test_drift_is_followed() -> None:
    calm = [died(24, ago_s=(5 + i) * DAY_S) for i in range(10)]
    storm = [died(1, ago_s=i * 3_600.0) for i in range(24)]
    faded = preemption_rate(calm + storm).mttp_s
    whole = preemption_rate(calm + storm, half_life_s=None).mttp_s
    assert faded < 1.3 * 3_600 < 6 * 3_600 < whole


def test_fading_leaves_a_steady_rate_unbiased() -> None:
    rng, estimates = random.Random(3), []
    for _ in range(200):
        seen, now = [], -10 * DAY_S
        while now < 0:
            end = min(now + rng.expovariate(1 / 7_200), 0.0)
            seen.append(Life(duration_s=end - now, preempted=end < 0, ended_ago_s=-end))
            now = end
        posterior = preemption_rate(seen)
        estimates.append(1 / posterior.mttp_s)
    assert sum(estimates) / len(estimates) == pytest.approx(1 / 7_200, rel=0.03)


def test_neighbours_help_a_zone_without_lives_and_yield_to_its_own() -> None:
    region = [one_by_one(1, 20)] * 5
    alone = preemption_rate([], neighbours=region)
    assert alone.mttp_s == pytest.approx(3_600, rel=0.1)
    assert alone.events > 5
    assert alone.lives == 0
    own = one_by_one(10, 50)
    assert preemption_rate(own, neighbours=region, half_life_s=None).mttp_s > 8.5 * 3_600


def test_more_lives_make_the_interval_narrower() -> None:
    def width(n: int) -> float:
        low, high = preemption_rate(one_by_one(3, n), half_life_s=None).interval()
        return high / low

    assert width(100) < width(30) < width(3)


def test_a_wider_level_gives_a_wider_interval() -> None:
    posterior = preemption_rate(one_by_one(3, 10))
    inner, outer = posterior.interval(0.5), posterior.interval(0.95)
    assert outer[0] < inner[0] < posterior.mttp_s < inner[1] < outer[1]


@examples(100)
@given(lives, lives, st.none() | st.floats(1, 1e9))
def test_every_estimate_is_finite_and_inside_its_interval(
    mine: list[Life], others: list[Life], half_life_s: float | None
) -> None:
    posterior = preemption_rate(mine, neighbours=[others], half_life_s=half_life_s)
    low, high = posterior.interval()
    assert 0 < low < posterior.mttp_s < math.inf
    assert low < high < math.inf


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_an_impossible_life_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="0 or more, and finite"):
        preemption_rate([Life(duration_s=seconds, preempted=True)])


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="half-life"):
        preemption_rate([], half_life_s=0)
    with pytest.raises(ValueError, match="prior needs"):
        RatePrior(exposure_s=0)
    with pytest.raises(ValueError, match="Beta prior"):
        notice_share([], prior_lost=0)


def test_the_share_of_notices_starts_at_two_thirds_and_learns() -> None:
    assert notice_share([]).mean == pytest.approx(2 / 3)
    many = notice_share([True] * 95 + [False] * 5)
    assert many.mean == pytest.approx(97 / 103)
    low, high = many.interval()
    assert 0.88 < low < 0.95 < high < 0.98


def test_outcomes_of_notices_fade_with_their_interval_kept() -> None:
    """A broken path shows within hours, whatever came before; what is new counts in full."""
    before, now = [True] * 1_000, [False] * 10
    ages_s = [*(3 * DAY_S + 60 * i for i in range(1_000)), *(600.0 * i for i in range(10))]
    faded = notice_share(before + now, ages_s=ages_s)
    assert notice_share(before + now).mean > 0.98
    assert faded.mean < 0.92
    fresh = notice_share([True] * 8 + [False] * 2, ages_s=[0.0] * 10)
    assert fresh == notice_share([True] * 8 + [False] * 2)
    old = notice_share([True] * 8, ages_s=[DAY_S] * 8)
    assert (old.kept, old.lost) == pytest.approx((2 + 8, 1))  # weighed up by 2, see `_kish`
    older = notice_share([True] * 8, ages_s=[2 * DAY_S] * 8)
    assert older.kept == pytest.approx(2 + 4)


def test_a_faded_mean_follows_what_is_new() -> None:
    assert faded_mean([], half_life_s=DAY_S) is None
    assert faded_mean([(10.0, 0.0), (40.0, DAY_S)], half_life_s=DAY_S) == pytest.approx(20)


def test_a_quiet_vm_shows_how_long_it_has_been_quiet() -> None:
    """By its faded exposure alone, of 2.9 days at the most, M could never pass 72 h."""
    quiet = Life(duration_s=30 * DAY_S, preempted=False)
    assert preemption_rate([quiet]).mttp_s == pytest.approx(30 * DAY_S + 3 * 3_600)
    lasting = [preemption_rate([cut(24 * days)]).mttp_s for days in (1, 2, 3, 4, 8, 16)]
    assert lasting == sorted(lasting)


def test_only_what_came_after_the_newest_preemption_is_quiet() -> None:
    quiet = Life(duration_s=30 * DAY_S, preempted=False)
    once = died(1, ago_s=10 * DAY_S)
    assert preemption_rate([quiet, once]).mttp_s == pytest.approx(10 * DAY_S, rel=0.02)
    assert preemption_rate([quiet, died(1)]).mttp_s < 2 * DAY_S
    known = evidence([quiet], half_life_s=DAY_S, quiet_s=5 * DAY_S)  # it was too long ago
    assert known.exposure_s == pytest.approx(5 * DAY_S)


def test_a_vm_that_is_not_there_any_more_is_quiet_no_longer() -> None:
    gone = Life(duration_s=30 * DAY_S, preempted=False, ended_ago_s=20 * DAY_S)
    found = evidence([gone, died(1, ago_s=25 * DAY_S)], half_life_s=DAY_S)
    assert found.exposure_s == pytest.approx(5 * DAY_S, rel=0.01)


def test_kaplan_meier_without_censoring_is_the_share_still_alive() -> None:
    curve = kaplan_meier([died(1), died(2), died(2), died(4)])
    assert [(p.age_s / 3_600, p.share) for p in curve] == [(1, 0.75), (2, 0.25), (4, 0)]
    assert [(p.at_risk, p.deaths) for p in curve] == [(4, 1), (3, 2), (1, 1)]
    assert curve[0].error == pytest.approx(math.sqrt(0.75 * 0.25 / 4))


def test_kaplan_meier_keeps_censored_lives_at_risk_until_they_leave() -> None:
    curve = kaplan_meier([died(1), cut(1), cut(2), died(3)])
    assert [(p.age_s / 3_600, p.share) for p in curve] == [(1, 0.75), (3, 0)]


def test_the_median_life() -> None:
    assert median_life_s(kaplan_meier([died(1), died(2), died(3)])) == 7_200
    assert median_life_s(kaplan_meier([died(1), cut(2), cut(3)])) is None
    assert kaplan_meier([]) == []


@examples(60)
@given(lives)
def test_survival_falls_from_1_and_stays_a_share(seen: list[Life]) -> None:
    shares = [1.0, *(point.share for point in kaplan_meier(seen))]
    assert all(0 <= b < a <= 1 for a, b in itertools.pairwise(shares))


def test_failures_have_a_mean_of_their_own() -> None:
    """Weakly drawn to the prior; none was seen, none is reckoned with."""
    calm = [Life(duration_s=3_600.0, preempted=True)] * 10
    assert failure_mean_s(calm, prior_exposure_s=10_800.0) is None
    broken = [*calm, *[Life(duration_s=1_800.0, preempted=False, failed=True)] * 2]
    found = failure_mean_s(broken, prior_exposure_s=10_800.0, half_life_s=None)
    assert found == pytest.approx((10_800 + 39_600) / 2)


def test_the_intervals_have_equal_tails() -> None:
    """With one preemption the rate is exponential; with none kept and none lost, q is uniform."""
    low, high = RatePosterior(events=1.0, exposure_s=1.0, lives=1).interval(0.9)
    assert (low, high) == pytest.approx((1 / -math.log(0.05), 1 / -math.log(0.95)))
    assert NoticePosterior(kept=1.0, lost=1.0).interval(0.8) == pytest.approx((0.1, 0.9))


def test_one_failure_counts_and_fades() -> None:
    once = Life(duration_s=100.0, preempted=False, failed=True, ended_ago_s=0.0)
    assert failure_mean_s([once], prior_exposure_s=50.0, half_life_s=None) == 150.0
    old = replace(once, ended_ago_s=3_600.0)
    assert failure_mean_s([old], prior_exposure_s=50.0, half_life_s=None) == 150.0
    faded = failure_mean_s([old], prior_exposure_s=50.0, half_life_s=360.0)
    assert faded is not None
    assert faded > 10_000


@pytest.mark.parametrize(("kept", "lost"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)])
def test_a_prior_of_notices_is_above_0(kept: float, lost: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        notice_share([], prior_kept=kept, prior_lost=lost)
    assert notice_share([], prior_kept=0.5, prior_lost=0.25).mean == pytest.approx(2 / 3)


def test_kaplan_meier_has_greenwoods_error() -> None:
    first, second = kaplan_meier([died(1), died(2), cut(3), cut(4)])
    assert first.error == pytest.approx(0.75 * math.sqrt(1 / 12))
    assert second.error == pytest.approx(0.5 * math.sqrt(1 / 12 + 1 / 6))
    assert median_life_s([first, second]) == 2 * 3_600  # just half do not pass it


@pytest.mark.parametrize("half_life_s", [0.25, 3_600.0])
@pytest.mark.parametrize(("duration", "ago"), [(0.5, 0.0), (1.0, 0.75), (4.0, 2.0)])
def test_a_life_fades_as_the_integral_of_its_weight(
    half_life_s: float, duration: float, ago: float
) -> None:
    """Durations in half-lives. A weight is 2^-age; both figures are scaled by the ratio of the sums
    of the weights and of their squares, at most by 2."""
    weight = 2.0**-ago
    exposure = weight * (1 - 2.0**-duration) / math.log(2)
    squared = weight**2 * (1 - 4.0**-duration) / (2 * math.log(2))
    scale = min(exposure / squared, 2.0)
    life = Life(duration_s=duration * half_life_s, preempted=True, ended_ago_s=ago * half_life_s)
    found = preemption_rate(
        [life], prior=RatePrior(events=0.5, exposure_s=0.125), half_life_s=half_life_s
    )
    assert found.events == pytest.approx(0.5 + scale * weight)
    assert found.exposure_s == pytest.approx(0.125 + scale * exposure * half_life_s)


def test_lives_of_no_length_count_once() -> None:
    life = Life(duration_s=0.0, preempted=True)
    assert preemption_rate([life], prior=RatePrior(events=1.0)).events == pytest.approx(2.0)


def test_the_lives_of_neighbours_fade_too() -> None:
    def level(ago_s: float) -> float:
        near = one_by_one(0.1, 3, ago_s)
        return preemption_rate([], neighbours=[near], half_life_s=3_600.0).mttp_s

    assert level(0.0) < level(3_600.0) < level(1e6) == pytest.approx(3 * 3_600)


def test_the_prior_speaks_until_as_much_was_seen() -> None:
    """A preemption, or as much VM time as the prior stands for; not what has faded away."""
    assert preemption_rate([]).assumed
    assert preemption_rate([cut(2.9)], half_life_s=None).assumed
    assert not preemption_rate([cut(3)], half_life_s=None).assumed
    assert not preemption_rate([died(0.1)]).assumed
    assert not preemption_rate([], neighbours=[[died(0.1)]]).assumed
    assert preemption_rate(one_by_one(0.5, 20, ago_s=9 * DAY_S)).assumed


def test_a_posterior_says_what_the_preemptions_of_the_region_count_for() -> None:
    assert preemption_rate([]).weight == 0
    alone = preemption_rate(one_by_one(1, 10, ago_s=DAY_S))
    assert alone.weight == pytest.approx(alone.events - 1)
    assert alone.weight < 10
    among = preemption_rate([died(1)], neighbours=[one_by_one(1, 20)] * 3, half_life_s=None)
    assert 1 < among.weight < 61


@pytest.mark.parametrize(
    ("events", "exposure_s"), [(0.0, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.inf)]
)
def test_a_prior_of_rates_is_above_0_and_finite(events: float, exposure_s: float) -> None:
    with pytest.raises(ValueError, match="prior"):
        RatePrior(events=events, exposure_s=exposure_s)
    assert RatePrior(events=0.5, exposure_s=0.5).exposure_s == 0.5
