"""`core.insurance`: the policy's answer as an agent is told, and which changes are news."""

from __future__ import annotations

from typing import Any

import pytest

from spothop.policy import Measures
from spothop.policy.hazard import Piecewise
from spothop.wire import Insurance, PolicyParams
from spothop_master.core import insurance
from spothop_master.core.insurance import NO_SAVES, UNMEASURED, InsuranceFacts

MEASURES = Measures(
    step_s=0.5, save_s=1.0, backup_s=2.0, mttp_s=1000.0, restart_s=60.0, grace_s=30.0
)


def facts(policy: str = "notice-aware", **changes: Any) -> InsuranceFacts:
    fields = {"measures": MEASURES, "hazard": None, "saves_measured": True, "step": 40}
    return InsuranceFacts(policy=policy, **{**fields, "age_s": 0.0, **changes})


def told(tau_s: float) -> Insurance:
    return Insurance(at_step=1, tau_s=tau_s, reason="")


def test_the_interval_begins_at_the_newest_saved_step() -> None:
    decision = insurance.decide(facts("static:500"))
    directive = insurance.directive(decision)
    assert directive is not None
    assert (directive.at_step, directive.reason) == (540, decision.reason)


@pytest.mark.parametrize(
    "without", [facts("none"), facts(measures=Measures(**{**vars(MEASURES), "step_s": 0.0}))]
)
def test_nothing_is_told_without_insurance_or_without_a_step_time(without: InsuranceFacts) -> None:
    assert insurance.directive(insurance.decide(without)) is None


def test_thesis_insures_until_it_knows_that_an_emergency_save_fits() -> None:
    before = insurance.decide(facts("thesis", saves_measured=False))
    assert before.at_step is not None
    assert (before.policy, UNMEASURED in before.reason) == ("thesis", True)
    assert insurance.decide(facts("thesis")).at_step is None


def test_without_a_step_time_it_says_that_and_not_that_no_save_was_measured() -> None:
    no_steps = Measures(**{**vars(MEASURES), "step_s": 0.0})
    waits = insurance.decide(facts("thesis", saves_measured=False, measures=no_steps))
    assert waits.at_step is None
    assert "waits for a first step time" in waits.reason
    assert UNMEASURED not in waits.reason


def test_only_the_rule_of_the_thesis_changes_with_the_first_measured_save() -> None:
    unmeasured = insurance.decide(facts("notice-aware", saves_measured=False))
    assert unmeasured == insurance.decide(facts("notice-aware"))


def test_an_agent_begins_with_what_was_measured_and_with_no_stated_default() -> None:
    known = insurance.params(facts())
    assert (known.save_s, known.backup_s, known.step_s, known.grace_s) == (1.0, 2.0, 0.5, 30.0)
    assert known.first_tau_s == insurance.decide(facts()).tau_s
    assumed = insurance.params(facts(saves_measured=False))
    assert (assumed.save_s, assumed.backup_s) == (None, None)


def test_only_the_rule_of_the_thesis_has_no_margin() -> None:
    default = PolicyParams.model_fields["margin_s"].default
    assert default > 0
    assert insurance.params(facts("thesis")).margin_s == 0.0
    assert insurance.params(facts("notice-aware")).margin_s == default


@pytest.mark.parametrize(
    ("last_tau_s", "new", "material"),
    [
        (None, None, True),
        (None, told(100), True),
        (NO_SAVES, None, False),
        (NO_SAVES, told(100), True),
        (100.0, None, True),
        (0.5, None, True),
        (0.5, told(0.5), False),
        (100.0, told(125), False),
        (100.0, told(126), True),
        (100.0, told(75), False),
        (100.0, told(74), True),
    ],
)
def test_small_changes_of_the_interval_are_no_news(
    last_tau_s: float | None, new: Insurance | None, material: bool
) -> None:
    assert insurance.is_material(last_tau_s, new) is material


def test_what_is_told_is_what_was_decided() -> None:
    decision = insurance.decide(facts())
    assert insurance.directive(decision) == Insurance(
        at_step=decision.at_step or 0, tau_s=decision.tau_s or 0.0, reason=decision.reason
    )


def test_an_age_and_a_hazard_go_into_the_policy() -> None:
    law = Piecewise((0.0, 100.0), (1.0, 1e-6))
    young, old = (insurance.decide(facts(hazard=law, age_s=age_s)) for age_s in (0.0, 200.0))
    assert young.losses is not None
    assert old.losses is not None
    assert (young.losses.age_s, old.losses.age_s) == (0.0, 200.0)
    assert young.tau_s is not None
    assert old.tau_s is not None
    assert young.tau_s < old.tau_s


def test_the_thesis_keeps_its_figures_before_a_save_was_measured() -> None:
    before = insurance.decide(facts("thesis", saves_measured=False))
    always = insurance.decide(facts("thesis-always"))
    assert (before.at_step, before.tau_s, before.measures) == (
        always.at_step,
        always.tau_s,
        MEASURES,
    )
    assert before.because == UNMEASURED


def test_without_an_interval_an_agent_begins_with_the_stated_one() -> None:
    fields = PolicyParams.model_fields
    assert insurance.params(facts("none")).first_tau_s == fields["first_tau_s"].default
    assert insurance.params(facts("none")).policy == "none"
    unknown = Measures(**{**vars(MEASURES), "step_s": 0.0})
    assert insurance.params(facts(measures=unknown)).step_s is None


def test_an_interval_that_is_hardly_any_is_one() -> None:
    assert insurance.is_material(0.0, None)
    assert not insurance.is_material(0.0, told(0.0))
    assert insurance.is_material(0.5, None)


def test_the_saves_are_spread_between_those_of_the_script() -> None:
    plain = insurance.decide(facts(step=1_000)).at_step
    spread = insurance.decide(facts(step=1_000, own_saves=(900, 800)))
    assert plain is not None
    assert plain > 1_100  # the script's own save comes first
    assert spread.at_step == 1_100 + round((plain - 1_000) / 4)
    assert insurance.decide(facts(step=1_000, own_saves=(900,))).at_step == plain
