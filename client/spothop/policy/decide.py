"""The decisions themselves: agent, master and simulator call these two functions and no others."""

from __future__ import annotations

import math
from dataclasses import replace

from spothop.policy import intervals
from spothop.policy.hazard import Hazard
from spothop.policy.types import EmergencyDecision, InsuranceDecision, Measures

POLICIES = ("none", "static", "thesis", "thesis-always", "notice-aware")
"""`static` is written with its interval in steps: `static:500`."""

Q_CAP = 0.98
"""No more trust in notices than this, however many were kept: insurance never vanishes."""

_FARTHEST = 10**15  # steps; keeps at_step within 64 bits
_HAZARD_ROUNDS = 4  # the interval and the mean hazard over it settle in 2 or 3
_LEAST_HAZARD = 0.01  # of 1 / MTTP: a bin without deaths must not switch insurance off


class UnknownPolicy(ValueError):
    """No policy of that name; the message lists the ones there are."""


def next_insurance(
    policy: str,
    m: Measures,
    *,
    step: int,
    age_s: float | None = None,
    hazard: Hazard | None = None,
) -> InsuranceDecision:
    """When to save next, `step` being the newest saved or restored step.

    `age_s` (since the VM runs) and `hazard` together let `notice-aware` follow the danger of this
    age. Raises UnknownPolicy. Never answers NaN: negative figures count as 0.
    """
    name, every = parse(policy)
    if name == "none":
        return _never(name, m, "the policy is none: only the user's own saves")
    if every is not None:
        return InsuranceDecision(
            at_step=step + every,
            tau_s=min(max(every * m.step_s, 0.0), intervals.LONGEST_S),
            policy=name,
            measures=m,
            because=f"every {every} steps",
        )
    if name == "thesis" and (rule := emergency(m)).fits:
        return _never(name, m, f"off, because {rule.reason}")
    if name == "notice-aware":
        tau_s = _notice_aware(m, age_s, hazard)
    else:
        tau_s = intervals.thesis(m.save_s, m.mttp_s, m.restart_s)
    return _after(name, m, step, tau_s)


def emergency(m: Measures) -> EmergencyDecision:
    """The thesis's rule: T + delta + beta < G (algorithm 1, line 4), with a margin if one is set.

    `m.grace_s` is what the pool promises before a notice, and the time left at one.
    """
    return EmergencyDecision(fits=m.wait + _dump_s(m) < m.grace_s, measures=m)


def fit_share(m: Measures) -> float:
    """The share of moments in a step from which an emergency save gets done in the grace period.

    1 where the thesis's rule holds. A notice finds training anywhere in a step with equal chance,
    so a save that does not fit after a whole step may fit after the rest of one.
    """
    left = m.grace_s - _dump_s(m)
    if left <= 0:
        return 0.0
    return 1.0 if left >= m.wait else left / m.wait


def parse(policy: str) -> tuple[str, int | None]:
    """`static:500` -> ("static", 500); any other name -> (name, None). Raises UnknownPolicy."""
    name, colon, number = policy.partition(":")
    if name == "static":
        if number.isascii() and number.isdigit() and 0 < int(number) <= _FARTHEST:
            return name, int(number)
        raise UnknownPolicy(f"policy {policy!r}: write the steps between saves, as in static:500")
    if colon or name not in POLICIES:
        raise UnknownPolicy(f"no policy {policy!r}; there are {', '.join(POLICIES)}")
    return name, None


def _notice_aware(m: Measures, age_s: float | None, hazard: Hazard | None) -> float:
    """Only unprotected losses count: lambda_u = (1 - q) / M + 1 / M_f.

    First-order source: Aupy, Robert, Vivien, Zaidouni, "Checkpointing with fault prediction"
    (2012); the interval itself is exact for exponential losses. At least as long as a save takes
    to become durable: more than one image in flight would only queue (Vaidya 1997 for the rest).
    """
    q = min(max(m.notice_kept, 0.0), Q_CAP) * fit_share(m)
    failures = 0.0 if m.failure_s is None else 1 / max(m.failure_s, intervals.TINY_S)
    base = 1 / max(m.mttp_s, intervals.TINY_S)
    tau_s = intervals.exact(m.stall, _mean((1 - q) * base + failures))
    if hazard is not None and age_s is not None:
        for _ in range(_HAZARD_ROUNDS):
            over = max(tau_s, intervals.TINY_S)
            rate = (hazard.cumulative(age_s + over) - hazard.cumulative(age_s)) / over
            rate = max(rate, _LEAST_HAZARD * base)
            tau_s = intervals.exact(m.stall, _mean((1 - q) * rate + failures))
    return max(tau_s, min(m.backup_s, intervals.LONGEST_S))


def _mean(rate: float) -> float:
    return 1 / rate if rate > 0 else intervals.LONGEST_S


def _after(name: str, m: Measures, step: int, tau_s: float) -> InsuranceDecision:
    if m.step_s <= 0:
        waits = "the step waits for a first step time"
        return InsuranceDecision(at_step=None, tau_s=tau_s, policy=name, measures=m, because=waits)
    gap = max(1, math.floor(min(tau_s / m.step_s, _FARTHEST)))
    return InsuranceDecision(at_step=step + gap, tau_s=tau_s, policy=name, measures=m)


def _never(name: str, m: Measures, because: str) -> InsuranceDecision:
    return InsuranceDecision(at_step=None, tau_s=None, policy=name, measures=m, because=because)


def _dump_s(m: Measures) -> float:
    return m.save_s + m.backup_s + m.margin_s


def at_notice(m: Measures, *, left_s: float) -> Measures:
    """The same figures with the time left in place of the promised grace period."""
    return replace(m, grace_s=left_s)
