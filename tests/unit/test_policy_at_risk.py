"""What recommendations to leave VMs say of their pool."""

from __future__ import annotations

import pytest

from spothop.policy.at_risk import OUTLIVED_HALF_LIFE_S, SHARE, AtRisk, events
from spothop.policy.estimators import DAY_S, Life, RatePrior, evidence, zone_rate

HOUR = 3600.0


def test_it_counts_as_half_a_preemption_and_less_the_longer_its_vm_outlives_it() -> None:
    assert events([AtRisk(outlived_s=0)], half_life_s=DAY_S) == SHARE == 0.5
    later = [
        events([AtRisk(outlived_s=hours * OUTLIVED_HALF_LIFE_S)], half_life_s=DAY_S)
        for hours in (1, 2, 24)
    ]
    assert later[:2] == [SHARE / 2, SHARE / 4]
    assert later[2] < 1e-7


def test_from_the_end_of_its_vm_on_it_fades_as_lives_do() -> None:
    left = AtRisk(outlived_s=0, ended_ago_s=DAY_S)
    assert events([left], half_life_s=DAY_S) == SHARE / 2
    assert events([left], half_life_s=None) == SHARE


def test_a_zone_that_warns_all_its_vms_at_once_warns_once() -> None:
    crowd = [AtRisk(outlived_s=float(second)) for second in range(100)]
    assert events(crowd, half_life_s=DAY_S) == SHARE
    apart = [AtRisk(outlived_s=0, ended_ago_s=hours * HOUR) for hours in (0, 1, 2)]
    assert events(apart, half_life_s=None) == 3 * SHARE
    assert events([], half_life_s=DAY_S) == 0


def test_it_makes_the_mean_time_to_preemption_shorter() -> None:
    lives = [Life(duration_s=10 * HOUR, preempted=False)]
    prior = RatePrior(exposure_s=3 * HOUR)

    def mttp_s(*risks: AtRisk) -> float:
        return zone_rate(evidence(lives, half_life_s=None, risks=risks), [], prior=prior).mttp_s

    assert mttp_s() == pytest.approx(13 * HOUR)
    assert mttp_s(AtRisk(outlived_s=0)) == pytest.approx(13 * HOUR / 1.5)
    assert mttp_s(AtRisk(outlived_s=DAY_S)) == pytest.approx(13 * HOUR, rel=1e-6)
