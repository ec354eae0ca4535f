"""When a job's next insurance save is due, as its agent is told. Pure.

The interval comes from the policy (`spothop.policy`). This module has what a master adds to it:
what to do before anything was measured, what an agent goes on with while the master is away, and
which changes are worth an event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spothop.policy import InsuranceDecision, Measures, next_insurance
from spothop.policy.hazard import Hazard
from spothop.policy.periodic import next_save
from spothop.wire import Insurance, PolicyParams

UNMEASURED = "no save was measured yet"

MATERIAL = 0.25
"""A change of tau by this share, against the newest event, is worth another event."""

NO_SAVES = -1.0
"""In place of a tau: the newest event said that there are no insurance saves."""


@dataclass(frozen=True, kw_only=True)
class InsuranceFacts:
    """One attempt on its VM."""

    policy: str
    """As `spothop.policy` names it."""
    measures: Measures
    hazard: Hazard | None
    """None: too few lives were seen, or the policy does not ask for it."""
    saves_measured: bool
    """Delta and beta were measured; else they are stated defaults."""
    step: int
    """Newest saved or restored step: the interval begins there."""
    age_s: float
    """Of the VM, when the interval began."""
    own_saves: tuple[int, ...] = ()
    """Steps at which the script has saved by itself, the newest few."""


def decide(facts: InsuranceFacts) -> InsuranceDecision:
    """The policy's answer. `thesis` cannot tell that an emergency save fits before one was
    measured: until then it insures, and says so."""
    if facts.policy == "thesis" and not facts.saves_measured:
        answer = next_insurance("thesis-always", facts.measures, step=facts.step)
        return replace(answer, policy=facts.policy, because=answer.because or UNMEASURED)
    return next_insurance(
        facts.policy,
        facts.measures,
        step=facts.step,
        age_s=facts.age_s,
        hazard=facts.hazard,
        periodic=next_save(facts.own_saves, facts.step),
    )


def directive(decision: InsuranceDecision) -> Insurance | None:
    """What the agent is told. None: no insurance saves, or the first step time is not known yet."""
    if decision.at_step is None or decision.tau_s is None:
        return None
    return Insurance(at_step=decision.at_step, tau_s=decision.tau_s, reason=decision.reason)


def params(facts: InsuranceFacts) -> PolicyParams:
    """What an agent needs to decide without the master: from its start, and while the master is
    away."""
    measures, fields = facts.measures, PolicyParams.model_fields
    first_tau_s = decide(facts).tau_s
    return PolicyParams(
        policy=facts.policy,
        grace_s=measures.grace_s,
        min_interval_s=measures.min_interval_s,
        # the thesis's rule has none
        margin_s=0.0 if facts.policy == "thesis" else fields["margin_s"].default,
        save_s=measures.save_s if facts.saves_measured else None,
        backup_s=measures.backup_s if facts.saves_measured else None,
        step_s=measures.step_s or None,
        first_tau_s=first_tau_s if first_tau_s else fields["first_tau_s"].default,
    )


def is_material(last_tau_s: float | None, new: Insurance | None) -> bool:
    """Worth an event. `last_tau_s` is that of the newest event: None before the first one,
    `NO_SAVES` for one that said that there are none.

    The job's row would not do for a comparison: it follows every small change, so that a slow
    drift would never make an event.
    """
    if last_tau_s is None:
        return True
    if new is None or last_tau_s < 0:
        return (new is None) != (last_tau_s < 0)
    return abs(new.tau_s - last_tau_s) > MATERIAL * last_tau_s
