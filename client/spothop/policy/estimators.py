"""What the measured lives and notices of a pool say, with how sure they are. Pure.

The preemption rate has a Gamma posterior: lives are right-censored (a VM that we ended did not die,
a VM still alive counts its age, once), which for constant rates needs only the number of
preemptions and the total exposure; those of one event count as one. Lives in other zones of the
region enter as a prior, the weaker the more the zones differ; old lives lose weight with a
half-life. The share of kept notices has a Beta posterior.

With few lives the prior dominates: `RatePosterior.interval` then describes the prior, not the
pool (`benchmarks/estimator_coverage.py` shows by how much).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from spothop.policy import at_risk
from spothop.policy.at_risk import AtRisk
from spothop.policy.clusters import dispersion, event_of
from spothop.policy.pooling import Evidence, believed
from spothop.policy.special import beta_quantile, gamma_quantile

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Life:
    """One VM, from running to its end or to now."""

    duration_s: float
    preempted: bool
    """False: censored. We ended it, it fell silent, or it is still alive."""
    ended_ago_s: float = 0.0
    """0 for a VM that is still alive."""
    failed: bool = False
    """It broke or fell silent: an end without any notice, which is no preemption."""


@dataclass(frozen=True, kw_only=True)
class RatePrior:
    """Gamma prior of the preemption rate: as if `events` preemptions were seen in `exposure_s`."""

    events: float = 1.0
    exposure_s: float = 3 * 3_600.0

    def __post_init__(self) -> None:
        if not (0 < self.events < math.inf and 0 < self.exposure_s < math.inf):
            raise ValueError(
                f"a prior needs events and exposure above 0, not {self.events} in "
                f"{self.exposure_s} s; 1 event in the mean life that you expect is a weak one"
            )


@dataclass(frozen=True, kw_only=True)
class RatePosterior:
    """Gamma posterior of the preemption rate of one pool."""

    events: float
    exposure_s: float
    lives: int = 0
    """Preemptions that were really seen in this pool, not faded."""
    weight: float = 0.0
    """What all preemptions of the region count for in `events`."""
    assumed: bool = False
    """The stated prior speaks: it outweighs what was seen in the region, in preemptions and in VM
    time."""

    @property
    def mttp_s(self) -> float:
        """1 / the mean rate: what the policies take as M."""
        return self.exposure_s / self.events

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """The equal-tailed interval of the mean time to preemption, in seconds."""
        tail = (1 - level) / 2
        high, low = gamma_quantile(tail, self.events), gamma_quantile(1 - tail, self.events)
        return self.exposure_s / low, self.exposure_s / max(high, 1e-300)


@dataclass(frozen=True, kw_only=True)
class NoticePosterior:
    """Beta posterior of q, the share of preemptions whose emergency save became durable.

    Count only preemptions where the emergency save was predicted to fit: whether one
    fits is a figure of the job, not of the pool, and the policy accounts for it separately.
    """

    kept: float
    lost: float

    @property
    def mean(self) -> float:
        return self.kept / (self.kept + self.lost)

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        tail = (1 - level) / 2
        return (
            beta_quantile(tail, self.kept, self.lost),
            beta_quantile(1 - tail, self.kept, self.lost),
        )


@dataclass(frozen=True, kw_only=True)
class Survival:
    """One step of the Kaplan-Meier curve."""

    age_s: float
    share: float
    """P(a life is longer than this age)."""
    at_risk: int
    deaths: int
    error: float
    """Standard error of the share (Greenwood 1926)."""


def preemption_rate(
    lives: Iterable[Life],
    *,
    neighbours: Iterable[Iterable[Life]] = (),
    prior: RatePrior | None = None,
    half_life_s: float | None = DAY_S,
) -> RatePosterior:
    """The rate of one pool; `neighbours` are the lives of the region's other zones, zone by zone.

    `half_life_s` None: nothing fades. Raises ValueError on a negative or infinite duration.
    """
    mine = list(lives)
    return zone_rate(
        evidence(mine, half_life_s=half_life_s),
        [evidence(zone, half_life_s=half_life_s) for zone in neighbours],
        prior=prior or RatePrior(),
        lives=sum(life.preempted for life in mine),
    )


def zone_rate(
    own: Evidence, others: Sequence[Evidence], *, prior: RatePrior, lives: int = 0
) -> RatePosterior:
    """The posterior of one zone from what each zone of its region tells.

    `pooling.believed` makes the zone's prior of the stated one and of the other zones.
    """
    before = believed(own, others, Evidence(events=prior.events, exposure_s=prior.exposure_s))
    zones = (own, *others)
    seen = sum(zone.events for zone in zones) >= prior.events
    watched = sum(zone.exposure_s for zone in zones) >= prior.exposure_s
    return RatePosterior(
        events=before.events + own.events,
        exposure_s=before.exposure_s + own.exposure_s,
        lives=lives,
        weight=own.events + max(0.0, before.events - prior.events),
        assumed=not (seen or watched),
    )


def by_event(lives: Iterable[Life]) -> list[tuple[float, bool, int]]:
    """Lives of one zone as `hazard.weighed` takes them: seconds, preempted, number of the event."""
    known = list(lives)
    died = [(life.ended_ago_s, life.duration_s) for life in known if life.preempted]
    numbers = iter(event_of(died, exposure_s=sum(life.duration_s for life in known)))
    return [
        (life.duration_s, life.preempted, next(numbers) if life.preempted else -1) for life in known
    ]


def failure_mean_s(
    lives: Iterable[Life], *, prior_exposure_s: float, half_life_s: float | None = DAY_S
) -> float | None:
    """M_f: mean time between ends that no notice announces; None where none was seen.

    Faded like preemptions. `prior_exposure_s` without a failure is added, so that a single failure
    in a short history does not count too much.
    """
    events, exposure_s = _faded(lives, half_life_s, counts=_failed)
    return (prior_exposure_s + exposure_s) / events if events > 0 else None


def notice_share(
    outcomes: Iterable[bool],
    *,
    ages_s: Iterable[float] | None = None,
    half_life_s: float = DAY_S,
    prior_kept: float = 2.0,
    prior_lost: float = 1.0,
) -> NoticePosterior:
    """Beta(2, 1) prior: two of three notices are believed before any was seen.

    Outcomes fade by their `ages_s` as lives do; None: nothing fades.
    """
    if not (prior_kept > 0 and prior_lost > 0):
        raise ValueError(f"a Beta prior needs figures above 0, not {prior_kept}, {prior_lost}")
    seen = list(outcomes)
    weights = [1.0] * len(seen) if ages_s is None else [2 ** -(s / half_life_s) for s in ages_s]
    scale = _kish(sum(weights), sum(w * w for w in weights))
    kept = scale * sum(w for w, was_kept in zip(weights, seen, strict=True) if was_kept)
    return NoticePosterior(
        kept=prior_kept + kept, lost=prior_lost + max(0.0, scale * sum(weights) - kept)
    )


def faded_mean(values: Iterable[tuple[float, float]], *, half_life_s: float) -> float | None:
    """Mean of (value, age in seconds), older ones with less weight; None without any."""
    total = weights = 0.0
    for value, age_s in values:
        weight = 2 ** -(age_s / half_life_s)
        total, weights = total + weight * value, weights + weight
    return total / weights if weights > 0 else None


def kaplan_meier(lives: Iterable[Life]) -> list[Survival]:
    """The survival curve with right-censoring (Kaplan and Meier 1958), one entry per age of death.

    A life censored at the age of a death counts as at risk there. No lives: no entries.
    """
    ordered = sorted((life.duration_s, life.preempted) for life in lives)
    curve: list[Survival] = []
    share, spread, at_risk = 1.0, 0.0, len(ordered)
    for age_s, same in groupby(ordered, key=lambda life: life[0]):
        ended = [preempted for _, preempted in same]
        if deaths := sum(ended):
            share *= 1 - deaths / at_risk
            if at_risk > deaths:
                spread += deaths / (at_risk * (at_risk - deaths))
            error = share * math.sqrt(spread)
            curve.append(
                Survival(age_s=age_s, share=share, at_risk=at_risk, deaths=deaths, error=error)
            )
        at_risk -= len(ended)
    return curve


def median_life_s(curve: Sequence[Survival]) -> float | None:
    """The first age that half of the lives do not pass; None while more than half do."""
    return next((point.age_s for point in curve if point.share <= 0.5), None)


def evidence(
    lives: Iterable[Life],
    *,
    half_life_s: float | None,
    quiet_s: float = math.inf,
    risks: Iterable[AtRisk] = (),
) -> Evidence:
    """Faded preemptions and exposure of one zone, so that the Gamma interval keeps its level.

    Deaths of one event count as one, and so does the exposure behind them: the rate stays, the
    interval widens (`spothop.policy.clusters`).

    Exposure since the zone's newest preemption does not fade: a VM that nothing happens to for a
    month shows a mean life of a month, not of the three days that are left of it. `quiet_s` is the
    time since that preemption where it is older than these lives. `risks` are the zone's
    recommendations to leave a VM, each a part of a preemption (`spothop.policy.at_risk`). Raises
    ValueError on a negative or infinite duration, and on a half-life that is not above 0.
    """
    known = list(lives)
    events, exposure_s = _faded(known, half_life_s)
    died = [life for life in known if life.preempted]
    quiet_s = min([quiet_s, *(life.ended_ago_s for life in died)])
    quiet = sum(max(0.0, min(life.duration_s, quiet_s - life.ended_ago_s)) for life in known)
    exposure_s = max(exposure_s, quiet)
    share = 1 / dispersion(
        [(life.ended_ago_s, life.duration_s) for life in died],
        [_weight(life, half_life_s) for life in died],
        exposure_s=sum(life.duration_s for life in known),
        watched_s=max((life.ended_ago_s + life.duration_s for life in known), default=0.0),
    )
    warned = at_risk.events(risks, half_life_s=half_life_s)
    return Evidence(events=share * events + warned, exposure_s=share * exposure_s)


_preempted, _failed = attrgetter("preempted"), attrgetter("failed")


def _faded(
    lives: Iterable[Life],
    half_life_s: float | None,
    *,
    counts: Callable[[Life], bool] = _preempted,
) -> tuple[float, float]:
    """Ends that count and exposure by their weights, scaled up to what they tell.

    Weights below 1 make the variance of a weighted count smaller than its mean; a posterior that
    took the sums as they are would be too wide. Both are therefore scaled by (sum of w) / (sum of
    w^2) over the exposure (Kish 1965): mean and variance of the count then agree again. At most
    by 2, its value in a long steady history: old lives alone do not get their full weight back.
    """
    if half_life_s is not None and not half_life_s > 0:
        raise ValueError(f"a half-life of {half_life_s} s: it must be above 0, or None for none")
    events = exposure_s = squared_s = 0.0
    for life in lives:
        _check(life)
        weight = _weight(life, half_life_s)
        if half_life_s is None:
            first, second = life.duration_s, life.duration_s
        else:
            fade = math.log(2) / half_life_s
            first = -weight * math.expm1(-fade * life.duration_s) / fade
            second = -(weight**2) * math.expm1(-2 * fade * life.duration_s) / (2 * fade)
        events += weight * counts(life)
        exposure_s += first
        squared_s += second
    scale = _kish(exposure_s, squared_s)
    return scale * events, scale * exposure_s


def _kish(weights: float, squares: float) -> float:
    return min(weights / squares, 2.0) if squares > 0 else 1.0


def _weight(life: Life, half_life_s: float | None) -> float:
    return 1.0 if half_life_s is None else 2.0 ** -(life.ended_ago_s / half_life_s)


def _check(life: Life) -> None:
    for name, value in (("life", life.duration_s), ("age", life.ended_ago_s)):
        if not 0 <= value < math.inf:
            raise ValueError(f"a {name} of {value} s: it must be 0 or more, and finite")
