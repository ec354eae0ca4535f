"""What a recommendation to leave a VM says of its pool. Pure.

AWS recommends to rebalance when a VM is "at elevated risk of interruption", and does so before each
interruption (EC2 User Guide, "EC2 instance rebalance recommendations"; Auto Scaling User Guide,
"Capacity Rebalancing"). How many of them are false nobody publishes. And we heed them: a VM that
was left in time is a censored life, so the pool would look the calmer the more of its warnings we
believed. Four rules:

1. A recommendation counts as `SHARE` of a preemption: a half, the mean of a uniform prior of the
   share that comes true.
2. The longer its VM outlives it, the less it counts, with `OUTLIVED_HALF_LIFE_S`. Two hours is the
   longest that AWS's own replacement (`termination-delay`) leaves such a VM alive; after them it
   counts as a quarter of what it did.
3. From the end of its VM on it fades as lives do. Where the VM was preempted, that death counts,
   and the recommendation does not.
4. Recommendations of one zone within `TOGETHER_S` are one, as preemptions are (`policy.clusters`):
   the one that counts most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from spothop.policy.clusters import TOGETHER_S

SHARE = 0.5
"""Of a preemption."""
OUTLIVED_HALF_LIFE_S = 3_600.0


@dataclass(frozen=True, kw_only=True)
class AtRisk:
    """A VM that its cloud recommended to leave, and that was not preempted (yet)."""

    outlived_s: float
    """From the recommendation to its end, or to now."""
    ended_ago_s: float = 0.0
    """0 for a VM that is still alive."""


def events(known: Iterable[AtRisk], *, half_life_s: float | None) -> float:
    """How many preemptions these recommendations of one zone count as; `half_life_s` is that of
    lives (None: they do not fade)."""
    total, began_ago, most = 0.0, None, 0.0
    for one in sorted(known, key=_ago_s, reverse=True):
        if began_ago is None or began_ago - _ago_s(one) > TOGETHER_S:
            total, began_ago, most = total + most, _ago_s(one), 0.0
        most = max(most, _counts(one, half_life_s))
    return total + most


def _ago_s(one: AtRisk) -> float:
    return one.outlived_s + one.ended_ago_s


def _counts(one: AtRisk, half_life_s: float | None) -> float:
    halvings = one.outlived_s / OUTLIVED_HALF_LIFE_S
    if half_life_s is not None:
        halvings += one.ended_ago_s / half_life_s
    return SHARE * math.pow(2.0, -halvings)
