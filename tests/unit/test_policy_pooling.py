"""What the zones of a region tell about each other, by how much they differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy import pooling
from spothop.policy.estimators import RatePrior, zone_rate
from spothop.policy.pooling import Evidence, believed, spread

HOUR = 3_600.0
STATED = Evidence(events=1.0, exposure_s=3 * HOUR)

evidences = st.builds(Evidence, events=st.floats(0, 1e4), exposure_s=st.floats(0, 1e9))


def zone(deaths: float, mttp_h: float) -> Evidence:
    return Evidence(events=deaths, exposure_s=deaths * mttp_h * HOUR)


def mttp_h(own: Evidence, *others: Evidence) -> float:
    return zone_rate(own, others, prior=RatePrior()).mttp_s / HOUR


def test_the_stated_prior_speaks_where_no_other_zone_was_watched() -> None:
    assert believed(zone(9, 1), [], STATED) == STATED
    assert believed(zone(9, 1), [Evidence(), Evidence()], STATED) == STATED


@pytest.mark.parametrize(("deaths", "off"), [(12, 1.8), (50, 1.25), (145, 1.1)])
def test_a_zone_unlike_its_neighbours_is_soon_judged_by_its_own_lives(
    deaths: int, off: float
) -> None:
    """1 h among 12 h. Counted as five preemptions whatever the difference, the neighbours made that
    4.2, 2.0 and 1.4 times too long."""
    assert 1 <= mttp_h(zone(deaths, 1), *[zone(40, 12)] * 4) < off


def test_zones_that_are_alike_lend_each_other_their_lives() -> None:
    prior = believed(Evidence(), [zone(20, 1)] * 5, STATED)
    assert prior.events > 8
    assert prior.exposure_s / prior.events == pytest.approx(HOUR, rel=0.1)


def test_the_more_the_zones_differ_the_less_they_count_as() -> None:
    shapes = [
        believed(Evidence(), [zone(20, factor), zone(20, 1), zone(20, 1 / factor)], STATED).events
        for factor in (1, 2, 4, 16)
    ]
    assert shapes == sorted(shapes, reverse=True)
    assert shapes[-1] < 1 < 4 < shapes[0]  # at last less than what is only stated


def test_one_busy_zone_does_not_speak_for_all() -> None:
    zones = [zone(5_000, 1), *[zone(20, 4)] * 3]
    prior = believed(Evidence(), zones, STATED)
    assert prior.exposure_s / prior.events > 1.5 * HOUR  # over all their exposure: 1.04 h


def test_the_prior_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One other zone, a spread of 1/2, a rate of 1 an hour like that of the stated prior: 4
    preemptions count as 4 / (1 + 4/2), and the shape is (1 + 4/3) / (1 + 4/3 / 2)."""
    monkeypatch.setattr(pooling, "SPREADS", (0.5,))
    prior = believed(Evidence(), [zone(4, 1)], Evidence(events=1.0, exposure_s=HOUR))
    assert prior.events == pytest.approx(1.4)
    assert prior.exposure_s == pytest.approx(1.4 * HOUR)


def test_the_spread_is_weighed_by_the_negative_binomial(monkeypatch: pytest.MonkeyPatch) -> None:
    """P(d) = C(d + a - 1, d) p^a (1 - p)^d with p = a / (a + mu E), for a = 1 / v."""
    counts, hours = (3, 0, 9), (2.0, 4.0, 3.0)
    zones = [Evidence(events=d, exposure_s=e) for d, e in zip(counts, hours, strict=True)]

    def probability(a: int) -> float:
        mean, _ = pooling._mean(zones, Evidence(events=1.0, exposure_s=1.0), 1 / a)
        found = 1.0
        for d, e in zip(counts, hours, strict=True):
            p = a / (a + mean * e)
            found *= math.comb(d + a - 1, d) * p**a * (1 - p) ** d
        return found

    monkeypatch.setattr(pooling, "SPREADS", (1.0, 0.25))
    one, four = probability(1), probability(4)
    expected = (1.0 * one + 0.25 * four) / (one + four)
    assert spread(zones, Evidence(events=1.0, exposure_s=1.0)) == pytest.approx(expected)


def test_neighbours_that_happen_to_look_alike_are_not_believed_without_end() -> None:
    two = believed(Evidence(), [zone(1_000, 1), zone(1_000, 1)], STATED)
    many = believed(Evidence(), [zone(1_000, 1)] * 8, STATED)
    assert two.events < many.events < 40


@given(evidences, st.lists(evidences, max_size=6), st.floats(1e-3, 1e9))
def test_what_is_believed_is_finite_and_between_what_was_seen(
    own: Evidence, others: list[Evidence], stated_s: float
) -> None:
    prior = believed(own, others, Evidence(events=1.0, exposure_s=stated_s))
    assert 0 < prior.events < math.inf
    assert 0 < prior.exposure_s < math.inf
    rates = [1 / stated_s, *(z.events / z.exposure_s for z in others if z.exposure_s > 0)]
    rate = prior.events / prior.exposure_s
    assert min(rates) * (1 - 1e-9) <= rate <= max(rates) * (1 + 1e-9)
