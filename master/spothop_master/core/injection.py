"""When the injector takes the next VM. Pure: the same plan and number give the same answer.

The k-th interval begins when the k-th VM comes up, or when the injection is asked for if that is
later, and ends with the eviction call. Its uniform numbers are hashes of seed and number: a restart
of the master changes nothing, and no state of a generator has to be kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Either mean lives or lives themselves; seconds."""

    mttp_s: Sequence[float] = ()
    """Exponential: the k-th interval has the k-th mean, the last repeats."""
    lives_s: Sequence[float] = ()
    """As they were seen; after the last one no more preemption."""
    seed: int = 0
    no_notice: float = 0.0
    """Probability that a preemption comes without notice."""

    def __post_init__(self) -> None:
        if bool(self.mttp_s) == bool(self.lives_s):
            raise ValueError("an injection needs either mean lives or lives")
        if not all(0 < s < math.inf for s in (*self.mttp_s, *self.lives_s)):
            raise ValueError("lives and mean lives are above 0 s, and finite")
        if not 0 <= self.no_notice <= 1:
            raise ValueError(f"a probability is between 0 and 1, not {self.no_notice}")

    def interval_s(self, k: int) -> float | None:
        """Of the k-th preemption, counted from 0; None: there is none."""
        if self.lives_s:
            return self.lives_s[k] if k < len(self.lives_s) else None
        mean_s = self.mttp_s[min(k, len(self.mttp_s) - 1)]
        return -math.log1p(-self._uniform(k, "life")) * mean_s

    def noticed(self, k: int) -> bool:
        """The k-th preemption comes with its notice."""
        return self._uniform(k, "notice") >= self.no_notice

    def _uniform(self, k: int, what: str) -> float:
        """In [0, 1)."""
        digest = hashlib.sha256(f"{self.seed}:{k}:{what}".encode()).digest()
        return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
