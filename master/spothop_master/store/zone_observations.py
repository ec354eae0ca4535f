"""What was observed in each zone of a region: counts, sums, lives that ended, VMs alive.

One query each, up to 100 regions. All durations are seconds. None costs more in a longer history:
counts and sums were kept as the observations were written, of lives and other figures the newest
are read, and of VMs those that have not ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, select, tuple_, union_all
from sqlalchemy.orm import Session

from spothop.policy.at_risk import AtRisk
from spothop.policy.estimators import Life
from spothop.wire import Pool, VmReason
from spothop_master.store.schema import Observation, VmRow, ZoneSum

FADED_HALF_LIVES = 14
"""Lives that ended longer ago weigh less than 1/16,000: they are not read."""
MAX_LIVES, MAX_FIGURES = 2_000, 200
"""Newest lives that are read of all zones of one region, and newest figures of each other kind."""
FADING = ("allocation", "preparation", "emergency")
"""Kinds, besides lives, whose newest figures count more."""
NO_NOTICE = "no_notice"
"""Evidence of an emergency that nothing announced."""
FAILURES = ("silence", "cloud")
"""Evidence of a censored life that ended without us: it fell silent, or broke."""
_REGIONS_A_QUERY = 100  # four parts each; SQLite joins at most 500
_LONGEST_S = 3e9
"""A century; keeps dates within what the calendar can say."""

Region = tuple[str, str, str, bool]
"""Cloud, region, VM type, spot: the thesis's unit of statistics."""


@dataclass
class ZoneObservations:
    """What was read of one zone: how many figures of each (kind, censored), their sum, lives."""

    count: dict[tuple[str, bool], int] = field(default_factory=lambda: defaultdict(int))
    total: dict[tuple[str, bool], float] = field(default_factory=lambda: defaultdict(float))
    notices: int = 0
    """Preemptions that a notice announced and whose emergency save was to fit."""
    kept: int = 0
    """Those whose emergency save became durable."""
    preempted_at: datetime | None = None
    """The newest preemption ever seen."""
    newest: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By kind: newest figures that are not censored, each with its age in seconds."""
    lives: list[Life] = field(default_factory=list)
    alive: int = 0
    risks: list[AtRisk] = field(default_factory=list)
    """VMs that their cloud recommended to leave, without those that were preempted."""

    def add(self, other: ZoneObservations) -> None:
        """Its counts, sums and newest figures; not its lives."""
        for key, count in other.count.items():
            self.count[key] += count
            self.total[key] += other.total[key]
        self.notices += other.notices
        self.kept += other.kept
        for kind, values in other.newest.items():
            self.newest[kind] += values

    def mean(self, kind: str) -> float | None:
        count = self.count[kind, False]
        return self.total[kind, False] / count if count else None


ByRegion = dict[Region, dict[str, ZoneObservations]]
"""By region and zone."""


def region_of(pool: Pool) -> Region:
    return pool.cloud, pool.region, pool.vm, pool.spot


def read_sums(session: Session, regions: set[Region], read: ByRegion) -> None:
    z = ZoneSum
    rows = session.execute(
        select(
            *(z.cloud, z.region, z.vm_type, z.spot, z.zone, z.kind, z.censored),
            *(z.evidence, z.count, z.total, z.newest_at),
        ).where(_within(z, regions))
    )
    for *region, name, kind, censored, evidence, count, total, newest_at in rows:
        zone = _zone(read, region, name)
        zone.count[kind, censored] += count
        zone.total[kind, censored] += total
        if kind == "emergency" and not censored and evidence != NO_NOTICE:
            zone.notices += count
            zone.kept += round(total)
        if kind == "life" and not censored:
            zone.preempted_at = max(zone.preempted_at or newest_at, newest_at)


def read_newest(
    session: Session, regions: set[Region], read: ByRegion, half_life_s: float, now: datetime
) -> None:
    """Ended lives and other figures that still weigh something. The limits are each region's, so
    that a busy one leaves the others their rows. One query for each 100 regions."""
    since = now - timedelta(seconds=min(FADED_HALF_LIVES * half_life_s, _LONGEST_S))
    wanted = sorted(regions)
    for first in range(0, len(wanted), _REGIONS_A_QUERY):
        newest = [
            _newest(kind, region, since)
            for region in wanted[first : first + _REGIONS_A_QUERY]
            for kind in ("life", *FADING)
        ]
        for *of, name, kind, value, censored, evidence, at in session.execute(union_all(*newest)):
            zone, ago_s = _zone(read, of, name), max(0.0, (now - at).total_seconds())
            if kind == "life":
                failed = censored and evidence in FAILURES
                life = Life(
                    duration_s=max(0.0, value),
                    preempted=not censored,
                    ended_ago_s=ago_s,
                    failed=failed,
                )
                zone.lives.append(life)
            elif not censored:
                zone.newest[kind].append((value, ago_s))


def _newest(kind: str, region: Region, since: datetime) -> Select[Any]:
    """A query of its own, because a limit for each group would sort all rows of all groups."""
    o = Observation
    columns = (o.cloud, o.region, o.vm_type, o.spot, o.zone)
    newest = (
        select(*columns, o.kind, o.value, o.censored, o.evidence, o.at)
        .where(o.kind == kind, o.at >= since, _within(o, [region]))
        .order_by(o.at.desc(), o.id.desc())
        .limit(MAX_LIVES if kind == "life" else MAX_FIGURES)
    )
    return select(newest.subquery())


def read_alive(session: Session, regions: set[Region], read: ByRegion, now: datetime) -> None:
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


def read_risks(
    session: Session, regions: set[Region], read: ByRegion, half_life_s: float, now: datetime
) -> None:
    """The newest recommendations to leave a VM: alive, or ended not so long ago."""
    v = VmRow
    since = now - timedelta(seconds=min(FADED_HALF_LIVES * half_life_s, _LONGEST_S))
    rows = session.execute(
        select(v.cloud, v.region, v.vm_type, v.spot, v.zone, v.at_risk_at, v.ended_at)
        .where(
            *(v.at_risk_at.is_not(None), v.at_risk_at >= since, v.notice_at.is_(None)),
            or_(v.reason.is_(None), v.reason != VmReason.PREEMPTED.value),
            _within(v, regions),
        )
        .order_by(v.at_risk_at.desc())
        .limit(MAX_LIVES)
    )
    for *region, name, at_risk_at, ended_at in rows:
        assert at_risk_at is not None, "the query asks for it"
        outlived_s = ((ended_at or now) - at_risk_at).total_seconds()
        ago_s = (now - ended_at).total_seconds() if ended_at is not None else 0.0
        risk = AtRisk(outlived_s=max(0.0, outlived_s), ended_ago_s=max(0.0, ago_s))
        _zone(read, region, name).risks.append(risk)


def _zone(read: ByRegion, region: Sequence[Any], name: str) -> ZoneObservations:
    cloud, of, vm_type, spot = region
    return read[cloud, of, vm_type, spot][name]


def _within(
    model: type[Observation] | type[VmRow] | type[ZoneSum], regions: Iterable[Region]
) -> ColumnElement[bool]:
    wanted = sorted(regions)
    columns = (model.cloud, model.region, model.vm_type, model.spot)
    if len(wanted) == 1:  # plain comparisons find their index in every database
        return and_(*(column == value for column, value in zip(columns, wanted[0], strict=True)))
    return tuple_(*columns).in_(wanted)
