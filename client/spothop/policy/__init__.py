"""When to save. Pure, and the same code for agent, master and simulator."""

from spothop.policy.decide import (
    POLICIES,
    Q_CAP,
    UnknownPolicy,
    at_notice,
    emergency,
    fit_share,
    next_insurance,
    parse,
)
from spothop.policy.types import EmergencyDecision, InsuranceDecision, Measures

__all__ = [
    "POLICIES",
    "Q_CAP",
    "EmergencyDecision",
    "InsuranceDecision",
    "Measures",
    "UnknownPolicy",
    "at_notice",
    "emergency",
    "fit_share",
    "next_insurance",
    "parse",
]
