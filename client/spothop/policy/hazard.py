"""How the hazard of a preemption depends on the age of a VM.

Real lives are not exponential: young VMs die more (Weibull shapes of 0.57 to 0.79 on AWS), and VMs
with a maximum run time die at its end (the bathtub of Google's preemptible VMs, Kadupitiya et al.
2020).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

_LARGEST = 700.0  # e to it is still a float
FEWEST_DEATHS = 30
"""Preemptions, at different moments, that it takes to tell a hazard by age from chance."""
_DEATHS_A_BIN, _MAX_BINS, _EVEN_BINS = 10, 8, 8


class Hazard(Protocol):
    """A law of lives, as its cumulative hazard."""

    def cumulative(self, age_s: float) -> float:
        """H(age) = -ln P(a life is longer than age): 0 at 0, never falling."""


@dataclass(frozen=True)
class Weibull:
    """H(t) = (t / scale)^shape; below shape 1 young VMs die more."""

    shape: float
    scale_s: float

    def __post_init__(self) -> None:
        if not (0 < self.shape < math.inf and 0 < self.scale_s < math.inf):
            raise ValueError(f"shape and scale must be above 0, not {self.shape}, {self.scale_s}")

    @classmethod
    def of_mean(cls, mean_s: float, shape: float) -> Weibull:
        """The law with this mean life."""
        return cls(shape, mean_s / math.gamma(1 + 1 / shape))

    def cumulative(self, age_s: float) -> float:
        scaled = age_s / self.scale_s
        if scaled <= 0:  # the smallest ages are rounded to 0
            return 0.0
        return math.exp(min(self.shape * math.log(scaled), _LARGEST))


@dataclass(frozen=True)
class Piecewise:
    """A constant rate between two ages: `rates[i]` from `ages_s[i]` on, the last one for ever."""

    ages_s: tuple[float, ...]
    rates: tuple[float, ...]
    """Preemptions a second."""

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.ages_s))
        if not self.ages_s or self.ages_s[0] != 0 or not rising:
            raise ValueError(f"ages must rise from 0, not {self.ages_s}")
        if len(self.rates) != len(self.ages_s) or any(not 0 <= r < math.inf for r in self.rates):
            raise ValueError("one rate of at least 0 for each age")

    def cumulative(self, age_s: float) -> float:
        age_s = max(age_s, 0.0)
        last = bisect_right(self.ages_s, age_s) - 1
        whole = sum((self.ages_s[i + 1] - self.ages_s[i]) * self.rates[i] for i in range(last))
        return whole + (age_s - self.ages_s[last]) * self.rates[last]


Seen = tuple[float, bool, float]
"""Seconds, preempted, weight."""


def weighed(lives: Iterable[tuple[float, bool, Hashable]]) -> list[Seen]:
    """Lives of one zone, as (seconds, preempted, when it ended), with the weight of each.

    A zone that goes away takes all its VMs: preemptions of the same moment are one event, each of m
    weighs 1/m. Censored lives weigh 1.
    """
    known = list(lives)
    together = Counter(when for _, preempted, when in known if preempted)
    return [
        (s, preempted, 1 / together[when] if preempted else 1.0) for s, preempted, when in known
    ]


def fit_by_age(
    zones: Iterable[Iterable[Seen]], *, mttp_s: float, prior_deaths: float = 3.0
) -> Piecewise | None:
    """How the hazard depends on the age in the lives of a region, at the level of `mttp_s`.

    Takes `weighed` lives by zone; one that was not ended by a preemption is exposure only. Each bin
    has the deaths in it over those that the zones' own rates make expect, shrunk to 1 by
    `prior_deaths`: without the zones' rates a region of one bad zone and many good ones would look
    as if young VMs died more (proportional hazards, Cox 1972).

    Bins hold equally many deaths, so that they are narrow where VMs die, as at the end of a maximum
    run time; and none is longer than an eighth of the longest life, so that a calm time before it
    counts as one. None with fewer than `FEWEST_DEATHS`.
    """
    seen = [[(max(s, 0.0), preempted, w) for s, preempted, w in zone] for zone in zones]
    died = sorted((s, w) for zone in seen for s, preempted, w in zone if preempted)
    events = sum(w for _, w in died)
    if events < FEWEST_DEATHS * (1 - 1e-9) or died[-1][0] <= 0:
        return None
    longest_s = died[-1][0]
    bins = int(min(_MAX_BINS, events // _DEATHS_A_BIN))
    edges = {0.0, *(died[len(died) * i // bins][0] for i in range(1, bins))}
    edges |= {longest_s * i / _EVEN_BINS for i in range(1, _EVEN_BINS)}
    ages = sorted(edges)
    expected = [0.0] * len(ages)
    for zone in seen:
        whole_s = sum(s * w for s, _, w in zone)
        rate = sum(w for _, preempted, w in zone if preempted) / whole_s if whole_s > 0 else 0.0
        for i, exposure_s in enumerate(_exposures(zone, ages)):
            expected[i] += rate * exposure_s
    deaths = [0.0] * len(ages)
    for age_s, weight in died:
        deaths[bisect_right(ages, age_s) - 1] += weight
    rates = (
        (found + prior_deaths) / (due + prior_deaths) / max(mttp_s, 1e-9)
        for found, due in zip(deaths, expected, strict=True)
    )
    return Piecewise(tuple(ages), tuple(rates))


def _exposures(lives: Iterable[Seen], ages_s: Sequence[float]) -> list[float]:
    """Weighed seconds that these lives have spent in each bin of ages."""
    spent = [0.0] * len(ages_s)
    for s, _, weight in lives:
        last = bisect_right(ages_s, s) - 1
        for i in range(last):
            spent[i] += weight * (ages_s[i + 1] - ages_s[i])
        spent[last] += weight * (s - ages_s[last])
    return spent
