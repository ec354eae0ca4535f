"""What the observations say of a pool: the figures of `spothop pools` and of the plan.

Lives: the posterior of `spothop.policy.estimators`, from censored lives, the ages of VMs that are
alive (counted once: an ended VM has its observation instead), other zones of the region as far as
they are alike, decay. Where nothing was measured a stated default stands in, and the answer says
so. All durations are seconds. Four queries up to 100 regions, whatever the number of
pools.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain

from sqlalchemy.orm import Session

from spothop.policy.estimators import (
    Life,
    NoticePosterior,
    RatePosterior,
    RatePrior,
    Survival,
    by_event,
    faded_mean,
    failure_mean_s,
    kaplan_meier,
    median_life_s,
    notice_share,
    zone_rate,
)
from spothop.policy.estimators import evidence as evidence_of
from spothop.policy.hazard import Hazard, fit_by_age, weighed
from spothop.policy.pooling import Evidence
from spothop.wire import Pool
from spothop_master.store.observations import Priors, prior_mttp_s
from spothop_master.store.zone_observations import (
    ByRegion,
    ZoneObservations,
    read_alive,
    read_newest,
    read_risks,
    read_sums,
    region_of,
)

FEWEST_LIVES = 2
"""Fewer preemptions than this give no survival curve."""


@dataclass(frozen=True, kw_only=True)
class PoolFigures:
    """One pool; restart and notices are those of its VM type in the whole region."""

    pool: Pool
    prior_mttp_s: float
    half_life_s: float
    default_restart_s: float
    own: Sequence[Life]
    """Of this zone, ended ones and those alive."""
    neighbours: Sequence[Sequence[Life]]
    """Of each of the region's other zones."""
    evidence: Evidence
    """What the lives of this zone tell of its rate."""
    neighbours_evidence: Sequence[Evidence]
    """Of each of the other zones."""
    lives: int
    """Preemptions ever seen in this zone."""
    region_lives: int
    """In all zones of the region."""
    plain_mttp_s: float
    """The thesis's MTTP: the mean of all preempted lives of the region, censored ones ignored."""
    censored: int
    """Ended lives of this zone that say nothing of a preemption's moment."""
    alive: int
    """VMs of this zone that run now."""
    allocation_s: float | None
    preparation_s: float | None
    """Means of the region, faded like lives."""
    plain_restart_s: float | None
    """The thesis's: means of all that was ever seen."""
    notices: int
    """Preemptions that were announced and whose emergency save was to fit, ever seen."""
    kept: int
    """Of those, how many emergency saves became durable."""
    unannounced: int
    """Preemptions without a notice whose emergency save would have fitted, ever seen."""
    outcomes: Sequence[tuple[float, float]]
    """The newest of either: 1 where the save became durable, and how long ago (s)."""

    @cached_property
    def rate(self) -> RatePosterior:
        return zone_rate(
            self.evidence,
            self.neighbours_evidence,
            prior=RatePrior(exposure_s=self.prior_mttp_s),
            lives=sum(life.preempted for life in self.own),
        )

    @cached_property
    def notice(self) -> NoticePosterior:
        return notice_share(
            (kept > 0.5 for kept, _ in self.outcomes),
            ages_s=(ago_s for _, ago_s in self.outcomes),
            half_life_s=self.half_life_s,
        )

    @cached_property
    def failure_s(self) -> float | None:
        """M_f of the region: mean time between ends that nothing announced."""
        return failure_mean_s(
            chain(self.own, *self.neighbours),
            prior_exposure_s=self.prior_mttp_s,
            half_life_s=self.half_life_s,
        )

    @cached_property
    def hazard(self) -> Hazard | None:
        """The hazard by age: its shape from the region, its level from the zone's own M."""
        zones = [weighed(by_event(zone)) for zone in (self.own, *self.neighbours)]
        return fit_by_age(zones, mttp_s=self.rate.mttp_s)

    def settle(self) -> None:
        """Compute now what a policy asks for, and not at the first question."""
        _ = self.rate, self.notice, self.failure_s, self.hazard

    @property
    def survival(self) -> list[Survival]:
        """Kaplan-Meier curve of this zone; empty with fewer than two preemptions."""
        if sum(life.preempted for life in self.own) < FEWEST_LIVES:
            return []
        return kaplan_meier(self.own)

    @property
    def median_life_s(self) -> float | None:
        return median_life_s(self.survival)

    @property
    def restart_s(self) -> float:
        if self.allocation_s is None or self.preparation_s is None:
            return self.default_restart_s
        return self.allocation_s + self.preparation_s

    @property
    def thesis_restart_s(self) -> float:
        return self.default_restart_s if self.plain_restart_s is None else self.plain_restart_s

    @property
    def restart_assumed(self) -> bool:
        return self.allocation_s is None or self.preparation_s is None


def of_pools(
    session: Session, pools: Iterable[Pool], priors: Priors, *, now: datetime
) -> dict[Pool, PoolFigures]:
    """The figures of each of these pools."""
    wanted = list(dict.fromkeys(pools))
    regions = {region_of(pool) for pool in wanted}
    if not regions:
        return {}
    read: ByRegion = defaultdict(lambda: defaultdict(ZoneObservations))
    read_sums(session, regions, read)
    read_newest(session, regions, read, priors.mttp_half_life_s, now)
    read_alive(session, regions, read, now)
    read_risks(session, regions, read, priors.mttp_half_life_s, now)
    told = {region: _evidence(read[region], priors.mttp_half_life_s, now) for region in regions}
    return {
        pool: _figures(pool, read[region_of(pool)], told[region_of(pool)], priors)
        for pool in wanted
    }


def _evidence(
    zones: Mapping[str, ZoneObservations], half_life_s: float, now: datetime
) -> dict[str, Evidence]:
    """Of each zone of one region: once, whatever the number of pools that ask."""
    return {
        name: evidence_of(
            zone.lives, half_life_s=half_life_s, quiet_s=_since(zone, now), risks=zone.risks
        )
        for name, zone in zones.items()
    }


def _since(zone: ZoneObservations, now: datetime) -> float:
    if zone.preempted_at is None:
        return math.inf
    return max(0.0, (now - zone.preempted_at).total_seconds())


def _figures(
    pool: Pool,
    zones: Mapping[str, ZoneObservations],
    evidence: Mapping[str, Evidence],
    priors: Priors,
) -> PoolFigures:
    own, whole = zones.get(pool.zone, ZoneObservations()), ZoneObservations()
    for zone in zones.values():
        whole.add(zone)
    prior_s, plain_s = prior_mttp_s(pool, priors), whole.mean("life")
    plain = whole.mean("allocation"), whole.mean("preparation")
    faded = (
        faded_mean(whole.newest[kind], half_life_s=priors.mttp_half_life_s)
        for kind in ("allocation", "preparation")
    )
    # What was measured so long ago that it has faded away is still better than what is only stated.
    allocation_s, preparation_s = (
        mean if new is None else new for new, mean in zip(faded, plain, strict=True)
    )
    return PoolFigures(
        pool=pool,
        prior_mttp_s=prior_s,
        plain_mttp_s=prior_s if plain_s is None else plain_s,
        half_life_s=priors.mttp_half_life_s,
        default_restart_s=priors.prior_restart_s,
        own=own.lives,
        neighbours=[zone.lives for name, zone in zones.items() if name != pool.zone],
        evidence=evidence.get(pool.zone, Evidence()),
        neighbours_evidence=[told for name, told in evidence.items() if name != pool.zone],
        lives=own.count["life", False],
        region_lives=whole.count["life", False],
        censored=own.count["life", True],
        alive=own.alive,
        allocation_s=allocation_s,
        preparation_s=preparation_s,
        plain_restart_s=None if plain[0] is None or plain[1] is None else plain[0] + plain[1],
        notices=whole.notices,
        kept=whole.kept,
        unannounced=whole.count["emergency", False] - whole.notices,
        outcomes=whole.newest["emergency"],
    )
