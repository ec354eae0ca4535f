"""What the observations say of a pool: the figures of `spothop pools`, and the policy's measures.

`notice-aware` takes the posterior of `spothop.policy.estimators`: censored lives, the ages of VMs
that are alive (counted once: an ended VM has its observation instead), other zones of the region as
a weakened prior, decay. `thesis` takes the thesis's plain means over (VM type, region). Where
nothing was measured a stated default speaks, and says so. All durations are seconds.

Three queries whatever the number of pools, and two more for a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select, tuple_
from sqlalchemy.orm import Session

from spothop.policy import Measures
from spothop.policy.estimators import (
    Life,
    NoticePosterior,
    RatePosterior,
    RatePrior,
    Survival,
    failure_mean_s,
    kaplan_meier,
    median_life_s,
    notice_share,
    preemption_rate,
)
from spothop.policy.hazard import Hazard, fit_by_age, weighed
from spothop.wire import Pool
from spothop_master.store.observations import Priors, prior_mttp_s
from spothop_master.store.schema import Attempt, Observation, VmRow

FADED_HALF_LIVES = 14
"""Lives that ended longer ago weigh less than 1/16,000: they are not read."""
MAX_LIVES = 5_000
"""Newest lives that are read of all zones of one region."""
FEWEST_LIVES = 2
"""Preemptions from which a survival curve is reported."""
TOGETHER_S = 120.0
"""Preemptions in one zone within about this time are one event."""
FAILURES = ("silence", "cloud")
"""Evidence of a censored life that ended without us: it fell silent, or broke."""
_LONGEST_S = 3e9
"""A century; keeps dates within what the calendar can say."""

Region = tuple[str, str, str, bool]
"""Cloud, region, VM type, spot: the thesis's unit of statistics."""


@dataclass(frozen=True, kw_only=True)
class PoolFigures:
    """One pool; restart and notices are those of its VM type in the whole region."""

    pool: Pool
    prior_mttp_s: float
    half_life_s: float
    default_restart_s: float
    own: Sequence[Life]
    """Of this zone, ended ones and those alive."""
    neighbours: Sequence[Life]
    """Of the region's other zones."""
    by_zone: Sequence[Sequence[Life]]
    """Of all zones, this one included."""
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
    notices: int
    """Preemptions whose emergency save was to fit."""
    kept: int

    @cached_property
    def rate(self) -> RatePosterior:
        return preemption_rate(
            self.own,
            neighbours=self.neighbours,
            prior=RatePrior(exposure_s=self.prior_mttp_s),
            half_life_s=self.half_life_s,
        )

    @cached_property
    def notice(self) -> NoticePosterior:
        lost = self.notices - self.kept
        return notice_share([True] * self.kept + [False] * lost)

    @property
    def failure_s(self) -> float | None:
        """M_f of the region: mean time between ends that nothing announced."""
        return failure_mean_s(
            [*self.own, *self.neighbours],
            prior_exposure_s=self.prior_mttp_s,
            half_life_s=self.half_life_s,
        )

    @property
    def hazard(self) -> Hazard | None:
        """The hazard by age: its shape from the region, its level from the zone's own M."""
        zones = [
            weighed(
                (life.duration_s, life.preempted, round(life.ended_ago_s / TOGETHER_S))
                for life in zone
            )
            for zone in self.by_zone
        ]
        return fit_by_age(zones, mttp_s=self.rate.mttp_s)

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
    def restart_assumed(self) -> bool:
        return self.allocation_s is None or self.preparation_s is None


@dataclass
class _Zone:
    """What was read of one zone: how many figures of each (kind, censored), their sum, lives."""

    count: dict[tuple[str, bool], int] = field(default_factory=lambda: defaultdict(int))
    total: dict[tuple[str, bool], float] = field(default_factory=lambda: defaultdict(float))
    lives: list[Life] = field(default_factory=list)
    alive: int = 0

    def add(self, other: _Zone) -> None:
        """Its sums."""
        for key, count in other.count.items():
            self.count[key] += count
            self.total[key] += other.total[key]

    def mean(self, kind: str) -> float | None:
        count = self.count[kind, False]
        return self.total[kind, False] / count if count else None


_Read = dict[Region, dict[str, _Zone]]
"""By region and zone."""


def of_pools(
    session: Session, pools: Iterable[Pool], priors: Priors, *, now: datetime
) -> dict[Pool, PoolFigures]:
    """The figures of each of these pools."""
    wanted = list(dict.fromkeys(pools))
    regions = {region_of(pool) for pool in wanted}
    if not regions:
        return {}
    read: _Read = defaultdict(lambda: defaultdict(_Zone))
    _read_sums(session, regions, read)
    _read_lives(session, regions, read, priors.mttp_half_life_s, now)
    _read_alive(session, regions, read, now)
    return {pool: _figures(pool, read[region_of(pool)], priors) for pool in wanted}


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a policy is given."""

    measures: Measures
    hazard: Hazard | None
    """None with fewer than 30 preemptions in the region, and for other policies."""
    saved: bool
    """Delta and beta were measured; else they are stated defaults."""


def known(
    session: Session,
    pool: Pool,
    job_id: str | None,
    priors: Priors,
    *,
    policy: str,
    now: datetime,
    grace_s: float = 0.0,
) -> Known:
    """M, R and q of the pool as `policy` takes them; delta, beta and T of the job, if there is one.

    `lives` counts the preemptions of the region: they are behind M under either policy.
    """
    figures = of_pools(session, [pool], priors, now=now)[pool]
    save_s, backup_s = _of_job(session, job_id)
    ours = not policy.startswith("thesis")
    measures = Measures(
        step_s=_newest_step_s(session, job_id) or 0.0,
        save_s=priors.prior_save_s if save_s is None else save_s,
        backup_s=priors.prior_backup_s if backup_s is None else backup_s,
        mttp_s=figures.rate.mttp_s if ours else figures.plain_mttp_s,
        restart_s=figures.restart_s,
        grace_s=grace_s,
        notice_kept=figures.notice.mean,
        lives=figures.region_lives,
        failure_s=figures.failure_s if ours else None,
    )
    hazard = figures.hazard if policy == "notice-aware" else None
    return Known(
        measures=measures, hazard=hazard, saved=save_s is not None and backup_s is not None
    )


def region_of(pool: Pool) -> Region:
    return pool.cloud, pool.region, pool.vm, pool.spot


def _figures(pool: Pool, zones: Mapping[str, _Zone], priors: Priors) -> PoolFigures:
    own, whole = zones.get(pool.zone, _Zone()), _Zone()
    for zone in zones.values():
        whole.add(zone)
    prior_s, plain_s = prior_mttp_s(pool, priors), whole.mean("life")
    return PoolFigures(
        pool=pool,
        prior_mttp_s=prior_s,
        plain_mttp_s=prior_s if plain_s is None else plain_s,
        half_life_s=priors.mttp_half_life_s,
        default_restart_s=priors.prior_restart_s,
        own=own.lives,
        neighbours=[
            life for name, zone in zones.items() if name != pool.zone for life in zone.lives
        ],
        by_zone=[zone.lives for zone in zones.values()],
        lives=own.count["life", False],
        region_lives=whole.count["life", False],
        censored=own.count["life", True],
        alive=own.alive,
        allocation_s=whole.mean("allocation"),
        preparation_s=whole.mean("preparation"),
        notices=whole.count["emergency", False],
        kept=round(whole.total["emergency", False]),
    )


def _read_sums(session: Session, regions: set[Region], read: _Read) -> None:
    o = Observation
    rows = session.execute(
        select(
            *(o.cloud, o.region, o.vm_type, o.spot, o.zone, o.kind, o.censored),
            *(func.count(), func.sum(o.value)),
        )
        .where(o.kind.in_(("life", "allocation", "preparation", "emergency")), _within(o, regions))
        .group_by(o.cloud, o.region, o.vm_type, o.spot, o.zone, o.kind, o.censored)
    )
    for *region, name, kind, censored, count, total in rows:
        zone = _zone(read, region, name)
        zone.count[kind, censored] += count
        zone.total[kind, censored] += float(total or 0.0)


def _read_lives(
    session: Session, regions: set[Region], read: _Read, half_life_s: float, now: datetime
) -> None:
    """Ended lives that still weigh something."""
    o = Observation
    since = now - timedelta(seconds=min(FADED_HALF_LIVES * half_life_s, _LONGEST_S))
    rows = session.execute(
        select(o.cloud, o.region, o.vm_type, o.spot, o.zone, o.value, o.censored, o.evidence, o.at)
        .where(o.kind == "life", o.at >= since, _within(o, regions))
        .order_by(o.at.desc(), o.id.desc())
        .limit(MAX_LIVES * len(regions))
    )
    for *region, name, value, censored, evidence, at in rows:
        life = Life(
            duration_s=max(0.0, value),
            preempted=not censored,
            ended_ago_s=max(0.0, (now - at).total_seconds()),
            failed=censored and evidence in FAILURES,
        )
        _zone(read, region, name).lives.append(life)


def _read_alive(session: Session, regions: set[Region], read: _Read, now: datetime) -> None:
    """The ages of the VMs that are alive: censored lives."""
    v = VmRow
    rows = session.execute(
        select(v.cloud, v.region, v.vm_type, v.spot, v.zone, v.running_at).where(
            v.running_at.is_not(None), v.ended_at.is_(None), _within(v, regions)
        )
    )
    for *region, name, running_at in rows:
        assert running_at is not None, "the query asks for it"
        age_s = max(0.0, (now - running_at).total_seconds())
        zone = _zone(read, region, name)
        zone.lives.append(Life(duration_s=age_s, preempted=False))
        zone.alive += 1


def _zone(read: _Read, region: Sequence[Any], name: str) -> _Zone:
    cloud, of, vm_type, spot = region
    return read[cloud, of, vm_type, spot][name]


def _within(
    model: type[Observation] | type[VmRow], regions: Iterable[Region]
) -> ColumnElement[bool]:
    wanted = sorted(regions)
    columns = (model.cloud, model.region, model.vm_type, model.spot)
    if len(wanted) == 1:  # plain comparisons find their index in every database
        return and_(*(column == value for column, value in zip(columns, wanted[0], strict=True)))
    return tuple_(*columns).in_(wanted)


def _of_job(session: Session, job_id: str | None) -> tuple[float | None, float | None]:
    """Mean delta and beta of the job, where it has any."""
    means: dict[str, float] = {}
    if job_id is not None:
        rows = session.execute(
            select(Observation.kind, func.avg(Observation.value))
            .where(Observation.job_id == job_id, Observation.kind.in_(("save", "backup")))
            .group_by(Observation.kind)
        )
        means = {row[0]: float(row[1]) for row in rows}
    return means.get("save"), means.get("backup")


def _newest_step_s(session: Session, job_id: str | None) -> float | None:
    if job_id is None:
        return None
    return session.scalar(
        select(Attempt.step_s)
        .where(Attempt.job_id == job_id, Attempt.step_s.is_not(None))
        .order_by(Attempt.number.desc())
        .limit(1)
    )
