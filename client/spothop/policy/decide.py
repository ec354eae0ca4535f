"""When to save: agent, master and simulator ask these functions and no others.

Two questions, answered from the same figures:

- At a notice: is there time? A save must wait for the end of the step, be written, and be uploaded
  before the kill: T + delta + beta < G. Nothing else counts; the interval plays no part.
- Without one: how long may training run without a save? A short interval spends time on saves, a
  long one repeats lost work after a failure. The best one balances both (`intervals`). What a
  notice saves anyway is no loss, so `notice-aware` counts *unprotected* failures only: the share of
  preemptions that comes without a usable notice, and failures of other kinds.

Rules:

1. The answer follows from the arguments alone. Master and simulator cannot disagree, and a decision
   can be computed again from the figures that it carries.
2. Every figure is a measurement and may be missing or absurd. Negative ones count as 0, results
   stay between TINY_S and LONGEST_S, nothing is ever NaN: a bad measurement costs a save too many
   or too few, never the loop that asked.
3. Trust in notices and in a measured hazard is bounded (`Q_CAP`, `_LEAST_HAZARD`): no history,
   however good, switches insurance off.

What does not work: following the hazard of this very moment (an interval reaches past it; its mean
over the interval counts), and finding that interval by plain iteration (see `_settled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from spothop.durations import duration
from spothop.policy import intervals
from spothop.policy import periodic as periodic_saves
from spothop.policy.hazard import Hazard
from spothop.policy.types import EmergencyDecision, InsuranceDecision, Losses, Measures

POLICIES = ("none", "static", "thesis", "thesis-always", "notice-aware")
"""`static` is written with its interval in steps: `static:500`."""

Q_CAP = 0.98
"""Trust in notices is never higher than this, so that insurance saves never stop."""

_ROUNDED = 1e-9  # of a step: 10 s are 100 steps of 0.1 s
_SETTLED = 1.001  # of an interval and the one that the mean hazard over it asks for
_MAX_HALVINGS = 200
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
    periodic: int | None = None,
) -> InsuranceDecision:
    """When to save next, `step` being the newest saved or restored step.

    `age_s` (since the VM runs) and `hazard` together let `notice-aware` follow the hazard of this
    age; up to `periodic`, the step at which the script saves by itself, it spreads its saves evenly
    (`periodic.next_save`). Raises UnknownPolicy. Never answers NaN: negative figures count as 0.
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
    if name != "notice-aware":
        return _after(name, m, step, intervals.thesis(m.save_s, m.mttp_s, m.restart_s))
    tau_s, losses = _notice_aware(m, age_s, hazard)
    decision = _after(name, m, step, max(tau_s, _backup_s(m)), periodic)
    because = decision.because
    if decision.tau_s == _backup_s(m) > tau_s and not because:
        because = f"no shorter than a backup of {duration(_backup_s(m))}"
    return replace(decision, losses=losses, because=because)


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
        if number.isascii() and number.isdigit() and 0 < int(number) <= periodic_saves.FARTHEST:
            return name, int(number)
        raise UnknownPolicy(f"policy {policy!r}: write the steps between saves, as in static:500")
    if colon or name not in POLICIES:
        raise UnknownPolicy(f"no policy {policy!r}; there are {', '.join(POLICIES)}")
    return name, None


def _notice_aware(m: Measures, age_s: float | None, hazard: Hazard | None) -> tuple[float, Losses]:
    """Only unprotected losses count: lambda_u = (1 - q) / M + 1 / M_f.

    First-order source: Aupy, Robert, Vivien, Zaidouni, "Checkpointing with fault prediction"
    (2012); the interval itself is exact for exponential losses. At least as long as a save takes
    to become durable: a second upload in flight would only queue (Vaidya 1997 for the rest).
    With a hazard 1 / M gives way to its mean over the interval.
    """
    trusted, fits = min(max(m.notice_kept, 0.0), Q_CAP), fit_share(m)
    q = trusted * fits
    failures = 0.0 if m.failure_s is None else 1 / max(m.failure_s, intervals.TINY_S)
    base = 1 / max(m.mttp_s, intervals.TINY_S)

    def interval(rate: float) -> float:
        return intervals.exact(m.stall, mean_s(rate))

    def mean_s(rate: float) -> float:
        return _mean((1 - q) * rate + failures)

    if hazard is None or age_s is None:
        return interval(base), Losses(mean_s=mean_s(base), trusted=trusted, fits=fits)
    law, age = hazard, age_s

    def mean_hazard(over_s: float) -> float:
        over_s = max(over_s, intervals.TINY_S, age * 1e-9)  # else the difference has no digits
        mean = (law.cumulative(age + over_s) - law.cumulative(age)) / over_s
        return min(max(mean, _LEAST_HAZARD * base), 1 / intervals.TINY_S)

    tau_s = _settled(interval(base), lambda over_s: interval(mean_hazard(over_s)))
    rate = mean_hazard(tau_s)
    return tau_s, Losses(
        mean_s=mean_s(rate), trusted=trusted, fits=fits, age_s=age_s, hazard_ratio=rate / base
    )


def _settled(guess_s: float, answer: Callable[[float], float]) -> float:
    """The fixed point: the interval that follows from the mean hazard over itself.

    Found by bisection. Plain iteration alternates for ever between a long and a short interval
    where the hazard rises, because a longer interval covers more of the rise.
    """
    low, high = sorted((max(guess_s, intervals.TINY_S), max(answer(guess_s), intervals.TINY_S)))
    for _ in range(_MAX_HALVINGS):
        if high >= intervals.LONGEST_S or answer(high) <= high:  # pragma: no mutate: wider does
            break
        low, high = high, 2 * high  # pragma: no mutate: any growth does
    for _ in range(_MAX_HALVINGS):
        if low <= intervals.TINY_S or answer(low) >= low:  # pragma: no mutate: wider does
            break
        low, high = low / 2, low  # pragma: no mutate: any shrinking does
    while high > low * _SETTLED:
        middle = math.sqrt(low * high)
        if answer(middle) > middle:
            low = middle
        else:
            high = middle
    return min(high, intervals.LONGEST_S)


def _mean(rate: float) -> float:
    return 1 / rate if rate > 0 else intervals.LONGEST_S


def _after(
    name: str, m: Measures, step: int, tau_s: float, own: int | None = None
) -> InsuranceDecision:
    because = ""
    if tau_s < m.min_interval_s:
        tau_s, because = m.min_interval_s, "which is the least, as saves cost so little"
    if m.step_s <= 0:
        waits = "the step waits for a first step time"
        return InsuranceDecision(at_step=None, tau_s=tau_s, policy=name, measures=m, because=waits)
    gap = min(tau_s / m.step_s, periodic_saves.FARTHEST)
    at_step = periodic_saves.due(step, gap, own, least=least_steps(m))
    return InsuranceDecision(
        at_step=at_step, tau_s=tau_s, policy=name, measures=m, because=because, periodic=own
    )


def least_steps(m: Measures) -> int:
    """Between two saves, for `min_interval_s`."""
    if m.step_s <= 0:
        return 1
    steps = min(m.min_interval_s / m.step_s, float(periodic_saves.FARTHEST))
    return max(1, math.ceil(steps - _ROUNDED))


def _backup_s(m: Measures) -> float:
    return min(m.backup_s, intervals.LONGEST_S)


def _never(name: str, m: Measures, because: str) -> InsuranceDecision:
    return InsuranceDecision(at_step=None, tau_s=None, policy=name, measures=m, because=because)


def _dump_s(m: Measures) -> float:
    dump_s = max(m.save_s, m.backup_s) if m.stream else m.save_s + m.backup_s
    return dump_s + m.margin_s


def at_notice(m: Measures, *, left_s: float) -> Measures:
    """The same figures with the time left in place of the promised grace period."""
    return replace(m, grace_s=left_s)
