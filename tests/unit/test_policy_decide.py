"""The decisions: algorithm 1 of the thesis, our policy, and both on any finite figures."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy import (
    Measures,
    UnknownPolicy,
    at_notice,
    emergency,
    fit_share,
    next_insurance,
    parse,
)
from spothop.policy.hazard import Piecewise, Weibull
from spothop.policy.intervals import LONGEST_S, exact
from support.examples import examples

LIGHT = Measures(step_s=4.6, save_s=2.5, backup_s=5, mttp_s=10_800, restart_s=293.5, grace_s=30)
HEAVY = Measures(step_s=19.75, save_s=19.5, backup_s=8, mttp_s=10_800, restart_s=461, grace_s=30)

finite = st.floats(allow_nan=False, allow_infinity=False)
any_measures = st.builds(
    Measures,
    step_s=finite,
    save_s=finite,
    backup_s=finite,
    mttp_s=finite,
    restart_s=finite,
    grace_s=finite,
    notice_kept=finite,
    lives=st.integers(0, 10**6),
    stall_s=st.none() | finite,
    failure_s=st.none() | finite,
    wait_s=st.none() | finite,
    margin_s=finite,
)
sane_measures = st.builds(
    Measures,
    step_s=st.floats(1e-3, 100),
    save_s=st.floats(0, 600),
    backup_s=st.floats(0, 600),
    mttp_s=st.floats(1, 1e7),
    restart_s=st.floats(0, 1e4),
    grace_s=st.floats(0, 3_600),
    notice_kept=st.floats(0, 1),
)
policies = st.sampled_from(["none", "static:7", "thesis", "thesis-always", "notice-aware"])


def test_thesis_has_no_insurance_while_an_emergency_save_fits() -> None:
    decision = next_insurance("thesis", LIGHT, step=100)
    assert (decision.at_step, decision.tau_s) == (None, None)
    assert "an emergency save fits: step 4.6 s + save 2.5 s + backup 5.0 s < grace 30 s" in (
        decision.reason
    )


def test_thesis_saves_every_33_steps_where_no_emergency_save_fits() -> None:
    decision = next_insurance("thesis", HEAVY, step=100)
    assert decision.at_step == 133
    assert decision.tau_s == pytest.approx(math.sqrt(2 * 19.5 * 11_261))


def test_thesis_always_is_the_same_formula_without_the_switch() -> None:
    assert next_insurance("thesis-always", LIGHT, step=0).at_step == 51
    heavy = next_insurance("thesis-always", HEAVY, step=9)
    assert heavy.at_step == next_insurance("thesis", HEAVY, step=9).at_step


def test_static_counts_from_the_newest_save() -> None:
    assert next_insurance("static:500", LIGHT, step=1_234).at_step == 1_734


def test_none_never_saves() -> None:
    assert next_insurance("none", LIGHT, step=0).at_step is None


def test_notice_aware_counts_unprotected_losses_only() -> None:
    kept = replace(LIGHT, notice_kept=0.95)
    tau_s = next_insurance("notice-aware", kept, step=0).tau_s
    assert tau_s == pytest.approx(math.sqrt(2 * 2.5 * 10_800 / 0.05), rel=0.01)


def test_notice_aware_never_trusts_notices_wholly() -> None:
    sure = next_insurance("notice-aware", replace(LIGHT, notice_kept=1.0), step=0)
    assert sure == replace(
        next_insurance("notice-aware", replace(LIGHT, notice_kept=0.98), step=0),
        measures=sure.measures,
    )


def test_notice_aware_does_not_count_on_saves_that_cannot_fit() -> None:
    hopeless = replace(HEAVY, grace_s=20)
    assert fit_share(hopeless) == 0
    every = next_insurance("notice-aware", hopeless, step=0)
    assert (
        every.tau_s
        == next_insurance("notice-aware", replace(hopeless, notice_kept=0.0), step=0).tau_s
    )


def test_notice_aware_also_counts_failures_without_notice() -> None:
    often = next_insurance("notice-aware", replace(LIGHT, failure_s=3_600), step=0)
    rarely = next_insurance("notice-aware", LIGHT, step=0)
    assert often.tau_s is not None
    assert rarely.tau_s is not None
    assert often.tau_s < rarely.tau_s


def test_notice_aware_uses_the_stall_of_an_asynchronous_save_and_waits_for_the_upload() -> None:
    quick = replace(LIGHT, stall_s=0.25, notice_kept=0.0)
    tau_s = next_insurance("notice-aware", quick, step=0).tau_s
    assert tau_s == pytest.approx(math.sqrt(2 * 0.25 * 10_800), rel=0.01)
    slow = next_insurance("notice-aware", replace(quick, backup_s=900), step=0)
    assert slow.tau_s == 900


def test_notice_aware_saves_more_often_while_a_vm_is_young() -> None:
    hazard = Weibull.of_mean(10_800, 0.6)

    def tau(age_s: float) -> float:
        tau_s = next_insurance("notice-aware", LIGHT, step=0, age_s=age_s, hazard=hazard).tau_s
        assert tau_s is not None
        return tau_s

    assert tau(0) < tau(3_600) < tau(36_000)


def test_an_exponential_hazard_changes_nothing() -> None:
    hazard = Weibull.of_mean(10_800, 1.0)
    flat = next_insurance("notice-aware", LIGHT, step=0)
    scaled = next_insurance("notice-aware", LIGHT, step=0, age_s=5_000, hazard=hazard)
    assert scaled.at_step == flat.at_step


CHEAP = Measures(
    step_s=0.03, save_s=0.002, backup_s=0.06, mttp_s=55, restart_s=10, grace_s=30, notice_kept=0.75
)


@pytest.mark.parametrize("policy", ["notice-aware", "thesis-always"])
def test_saves_that_cost_nothing_are_still_some_seconds_apart(policy: str) -> None:
    freely = next_insurance(policy, CHEAP, step=0)
    assert freely.tau_s is not None
    assert freely.tau_s < 2
    held = next_insurance(policy, replace(CHEAP, min_interval_s=10), step=0)
    assert (held.tau_s, held.at_step) == (10, 334)  # 333 steps are 9.99 s
    assert held.reason.endswith("which is the least, as saves cost so little")
    longer = replace(LIGHT, min_interval_s=10)
    assert next_insurance(policy, longer, step=0).because == ""


def test_saves_that_are_spread_up_to_a_periodic_one_are_no_closer() -> None:
    m = replace(CHEAP, step_s=1.0, min_interval_s=10)
    assert next_insurance("notice-aware", m, step=0, periodic=19).at_step > 19  # none before it
    assert next_insurance("notice-aware", m, step=0, periodic=29).at_step == 14
    assert next_insurance("notice-aware", m, step=0, periodic=30).at_step == 10


def test_static_and_none_know_no_least_interval() -> None:
    m = replace(CHEAP, min_interval_s=10)
    assert next_insurance("static:5", m, step=0).at_step == 5
    assert next_insurance("none", m, step=0).at_step is None


def test_a_job_without_a_step_time_gets_its_interval_in_seconds_only() -> None:
    decision = next_insurance("thesis-always", replace(LIGHT, step_s=0), step=0)
    assert decision.at_step is None
    assert decision.tau_s == pytest.approx(235.6, abs=0.1)
    assert "waits for a first step time" in decision.reason


def test_the_reason_names_the_figures() -> None:
    m = replace(LIGHT, mttp_s=10_920, lives=41, weight=12.46, notice_kept=0.95)
    assert next_insurance("notice-aware", m, step=0).reason == (
        "tau 17 min 23 s from stall 2.5 s and 1/lambda 2 d 12 h: MTTP 3 h 2 min "
        "(41 preemptions in the region, faded to 12.5), q 95.0 %"
    )
    capped = next_insurance("notice-aware", replace(m, notice_kept=0.999), step=0)
    assert "q 98.0 % (99.9 % of notices kept, trusted to 98 %)" in capped.reason
    unfit = next_insurance("notice-aware", replace(HEAVY, notice_kept=0.9), step=0)
    assert "q 11.4 % (90.0 % of notices kept, 12.7 % of saves fit)" in unfit.reason
    plain = replace(m, weight=None, lives=1)
    assert "(1 preemption in the region, not faded)" in (
        next_insurance("thesis-always", plain, step=0).reason
    )
    assert next_insurance("thesis-always", replace(m, lives=0), step=0).reason == (
        "tau 3 min 57 s from stall 2.5 s, MTTP 3 h 2 min (no preemption seen yet), "
        "restart 4 min 54 s"
    )


UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3_600, "d": 86_400}


def printed_s(text: str, after: str) -> float:
    """The duration that follows these words."""
    found = re.search(re.escape(after) + r" ((?:[\d.]+ (?:ms|s|min|h|d) ?)+)", text)
    assert found is not None, text
    return sum(float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.]+) (\w+)", found[1]))


@pytest.mark.parametrize(
    ("m", "shape"),
    [
        (replace(LIGHT, notice_kept=0.95), None),
        (replace(LIGHT, notice_kept=0.999), None),  # above the cap
        (replace(HEAVY, notice_kept=0.9), None),  # few emergency saves fit
        (replace(LIGHT, notice_kept=0.9, failure_s=200_000.0), None),
        (replace(LIGHT, notice_kept=0.9, stall_s=0.25), 0.6),
        (replace(HEAVY, notice_kept=0.5, failure_s=90_000.0), 0.79),
    ],
)
def test_tau_can_be_computed_again_from_what_the_reason_prints(
    m: Measures, shape: float | None
) -> None:
    hazard = None if shape is None else Weibull.of_mean(m.mttp_s, shape)
    decision = next_insurance("notice-aware", m, step=0, age_s=600.0, hazard=hazard)
    said = decision.reason
    stall_s, loss_s = printed_s(said, "stall"), printed_s(said, "1/lambda")
    assert decision.tau_s == pytest.approx(exact(stall_s, loss_s), rel=0.02)
    q = re.search(r", q ([\d.]+) %", said)
    assert q is not None
    ratio = re.search(r"hazard ([\d.]+) times", said)
    rate = (1 - float(q[1]) / 100) / printed_s(said, "MTTP") * float(ratio[1] if ratio else 1)
    rate += 1 / printed_s(said, "a failure each") if m.failure_s else 0.0
    assert loss_s == pytest.approx(1 / rate, rel=0.04)


def test_the_reason_says_when_a_backup_takes_longer_than_the_best_interval() -> None:
    slow = next_insurance("notice-aware", replace(LIGHT, notice_kept=0.0, backup_s=900), step=0)
    assert slow.tau_s == 900
    assert slow.reason.endswith("no shorter than a backup of 15 min")


@pytest.mark.parametrize("policy", ["statik", "static", "static:0", "static:x", "thesis:3", ""])
def test_an_unknown_policy_is_refused(policy: str) -> None:
    with pytest.raises(UnknownPolicy, match=r"no policy|write the steps"):
        parse(policy)


def test_the_emergency_rule_is_a_strict_sum() -> None:
    edge = replace(LIGHT, grace_s=4.6 + 2.5 + 5)
    assert not emergency(edge).fits
    assert emergency(at_notice(edge, left_s=12.2)).fits
    assert not emergency(at_notice(replace(edge, margin_s=0.5), left_s=12.2)).fits


def test_a_save_that_need_not_wait_for_its_step_fits_sooner() -> None:
    assert not emergency(HEAVY).fits
    assert emergency(replace(HEAVY, wait_s=0)).fits
    assert fit_share(replace(HEAVY, wait_s=0)) == 1


def test_the_share_that_fits_falls_with_the_step() -> None:
    assert fit_share(LIGHT) == 1
    assert fit_share(HEAVY) == pytest.approx(2.5 / 19.75)


@examples(100)
@given(policies, any_measures, st.integers(0, 10**9), st.floats(0, 1e9))
def test_every_answer_is_a_number_or_never(
    policy: str, m: Measures, step: int, age_s: float
) -> None:
    hazard = Weibull.of_mean(3_600, 0.6)
    for decision in (
        next_insurance(policy, m, step=step),
        next_insurance(policy, m, step=step, age_s=age_s, hazard=hazard),
    ):
        assert decision.at_step is None or decision.at_step > step
        assert decision.tau_s is None or 0 <= decision.tau_s < math.inf
        assert decision.reason
    assert 0 <= fit_share(m) <= 1
    assert emergency(m).reason


@examples(100)
@given(sane_measures)
def test_notice_aware_insurance_never_vanishes(m: Measures) -> None:
    assert next_insurance("notice-aware", m, step=0).at_step is not None


@examples(50)
@given(sane_measures, st.floats(0, 1), st.floats(0, 1))
def test_the_more_notices_are_kept_the_fewer_saves_are_made(
    m: Measures, a: float, b: float
) -> None:
    few, many = (
        next_insurance("notice-aware", replace(m, notice_kept=q), step=0).tau_s
        for q in sorted((a, b))
    )
    assert few is not None
    assert many is not None
    assert few <= many * (1 + 1e-9)


@examples(100)
@given(
    sane_measures,
    st.floats(0.3, 12),
    st.floats(0, 100_000),
    st.floats(100, 1e6),
)
def test_the_interval_is_what_the_mean_hazard_over_it_asks_for(
    m: Measures, shape: float, age_s: float, mean_s: float
) -> None:
    """Also where the hazard rises steeply, where repeating the formula flips for ever."""
    m, law = replace(m, backup_s=0.0), Weibull.of_mean(mean_s, shape)
    tau_s = next_insurance("notice-aware", m, step=0, age_s=age_s, hazard=law).tau_s
    assert tau_s is not None
    over_s = max(tau_s, age_s * 1e-9, 1e-9)
    mean = (law.cumulative(age_s + over_s) - law.cumulative(age_s)) / over_s
    constant = replace(m, mttp_s=1 / max(mean, 0.01 / m.mttp_s))
    again_s = next_insurance("notice-aware", constant, step=0).tau_s
    assert again_s == pytest.approx(tau_s, rel=0.01, abs=1e-6)


@pytest.mark.parametrize("policy", ["none", "thesis"])
def test_a_refusal_carries_its_figures_too(policy: str) -> None:
    decision = next_insurance(policy, LIGHT, step=0)
    assert (decision.policy, decision.measures, decision.tau_s) == (policy, LIGHT, None)


def test_static_has_an_interval_in_seconds_too() -> None:
    assert next_insurance("static:7", replace(LIGHT, step_s=0.0625), step=0).tau_s == 0.4375
    assert next_insurance("static:7", replace(LIGHT, step_s=-1.0), step=0).tau_s == 0.0


def test_static_takes_every_number_of_steps_that_a_counter_holds() -> None:
    assert parse("static:1") == ("static", 1)
    assert parse(f"static:{10**15}") == ("static", 10**15)
    with pytest.raises(UnknownPolicy):
        parse(f"static:{10**15 + 1}")


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_an_even_hazard_moves_the_interval_as_another_mttp_would(times: float) -> None:
    law = Piecewise((0.0,), (times / LIGHT.mttp_s,))
    decision = next_insurance("notice-aware", LIGHT, step=0, age_s=60.0, hazard=law)
    losses = decision.losses
    assert losses is not None
    assert (losses.age_s, losses.hazard_ratio) == (60.0, pytest.approx(times))
    same = next_insurance("notice-aware", replace(LIGHT, mttp_s=LIGHT.mttp_s / times), step=0)
    assert decision.tau_s == pytest.approx(same.tau_s, rel=2e-3)


def test_a_hazard_counts_only_with_an_age_and_an_age_only_with_a_hazard() -> None:
    law = Piecewise((0.0,), (1.0,))
    plain = next_insurance("notice-aware", LIGHT, step=0)
    assert next_insurance("notice-aware", LIGHT, step=0, age_s=60.0) == plain
    assert next_insurance("notice-aware", LIGHT, step=0, hazard=law) == plain
    assert plain.losses is not None
    assert (plain.losses.age_s, plain.losses.hazard_ratio) == (None, None)


def test_notice_aware_is_the_exact_interval_of_the_unprotected_rate() -> None:
    m = replace(LIGHT, notice_kept=0.5, failure_s=7_200.0)
    rate = 0.5 / m.mttp_s + 1 / 7_200
    assert next_insurance("notice-aware", m, step=0).tau_s == pytest.approx(exact(2.5, 1 / rate))


def test_where_nothing_is_ever_lost_the_mean_time_to_a_loss_is_the_longest() -> None:
    m = replace(LIGHT, mttp_s=math.inf)
    assert next_insurance("notice-aware", m, step=0).tau_s == exact(2.5, LONGEST_S)


def test_an_interval_shorter_than_a_step_saves_after_each() -> None:
    m = replace(LIGHT, step_s=10_000.0)
    assert next_insurance("thesis-always", m, step=5).at_step == 6


@pytest.mark.parametrize(
    ("grace_s", "share"), [(7.5, 0.0), (7.96, 0.1), (9.8, 0.5), (12.1, 1.0), (99.0, 1.0)]
)
def test_the_share_of_a_step_from_which_a_save_fits(grace_s: float, share: float) -> None:
    assert fit_share(replace(LIGHT, grace_s=grace_s)) == pytest.approx(share)
    assert fit_share(replace(LIGHT, grace_s=7.5, step_s=0.0)) == 0.0  # no time left at all
