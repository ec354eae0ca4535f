"""What may go from the tables: found without a lock, deleted a few rows at a time.

Nothing that a figure, a bill or a decision reads is deleted: states, attempts, VMs and checkpoints
stay with their job; counts and sums of observations were kept as these were written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, Result, Select, delete, func, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from spothop.policy.savetimes import RECENT
from spothop_master.core.thinning import Point
from spothop_master.store.schema import (
    REGION,
    Base,
    BundleUpload,
    Event,
    Job,
    Metric,
    Observation,
    Price,
    Refusal,
    Stray,
    VmRow,
    ZoneSum,
)

IN_ONE_QUERY = 500
"""Values; databases limit them."""

PAGE = 2_000
"""Rows of one reading."""

CHATTER = (
    *("phase", "save_requested", "committed", "acknowledged", "insurance", "message"),
    *("late", "suspect", "cloud", "wait"),
)
"""Kinds of events that go by age: there is one for each save or message, and what figures and pages
need of them is in the rows too. All others are changes of a state, or told once in a while."""

_OF_JOBS = ("save", "backup", "step")
"""Kinds of observations that are of one job."""


def jobs_after(session: Session, after: str) -> list[tuple[str, datetime | None]]:
    """The next ids, with when each ended."""
    rows = session.execute(
        select(Job.id, Job.ended_at).where(Job.id > after).order_by(Job.id).limit(PAGE)
    )
    return [(row[0], row[1]) for row in rows]


def curves(session: Session, job_id: str, *, longer_than: int) -> list[str]:
    """The metrics of the job that have more values than that."""
    counted = select(Metric.name).where(Metric.job_id == job_id).group_by(Metric.name)
    return list(session.scalars(counted.having(func.count() > longer_than)))


def points_after(session: Session, job_id: str, name: str, after: Point | None) -> list[Point]:
    """The next ones of a curve, by step and id."""
    query = select(Metric.id, Metric.step, Metric.value, Metric.at).where(
        Metric.job_id == job_id, Metric.name == name
    )
    if after is not None:
        query = query.where(
            Metric.step >= after.step, tuple_(Metric.step, Metric.id) > (after.step, after.id)
        )
    rows = session.execute(query.order_by(Metric.step, Metric.id).limit(PAGE))
    return [Point(row[0], row[1], row[2], row[3]) for row in rows]


def old_chatter(session: Session, job_id: str | None, *, before: datetime, after: int) -> list[int]:
    """The next ids of events; of the insurance directives the newest stays, to compare with."""
    mine = Event.job_id.is_(None) if job_id is None else Event.job_id == job_id
    newest = select(func.max(Event.id)).where(mine, Event.kind == "insurance").scalar_subquery()
    query = select(Event.id).where(mine, Event.kind.in_(CHATTER), Event.at < before)
    query = query.where(or_(Event.kind != "insurance", Event.id < newest))
    return _page(session, query, Event.id, after)


def old_observations(session: Session, job_id: str, *, before: datetime, after: int) -> list[int]:
    """Of the job itself: they are in its sums, and of save times that are only bounds the newest
    count."""
    mine = Observation.job_id == job_id, Observation.kind.in_(_OF_JOBS)
    bounds = select(Observation.id).where(
        Observation.job_id == job_id, Observation.kind == "save", Observation.censored
    )
    newest = list(session.scalars(bounds.order_by(Observation.id.desc()).limit(RECENT)))
    query = select(Observation.id).where(*mine, Observation.at < before)
    return _page(session, query.where(Observation.id.not_in(newest)), Observation.id, after)


def regions(session: Session) -> list[tuple[object, ...]]:
    """All of which there are sums."""
    columns = [getattr(ZoneSum, name) for name in REGION]
    return [tuple(row) for row in session.execute(select(*columns).distinct())]


def old_figures(
    session: Session, region: Sequence[object], kind: str, *, before: datetime, after: int
) -> list[int]:
    """Of a region, but not of VMs that live: their rows keep it from being added twice."""
    columns = [getattr(Observation, name) for name in REGION]
    alive = select(VmRow.id).where(VmRow.ended_at.is_(None))
    query = select(Observation.id).where(
        *(column == value for column, value in zip(columns, region, strict=True)),
        Observation.kind == kind,
        Observation.at < before,
        Observation.vm_id.not_in(alive),
    )
    return _page(session, query, Observation.id, after)


def old_refusals(session: Session, *, before: datetime, after: int) -> list[int]:
    """Of jobs that ended before then."""
    query = select(Refusal.id).join(Job, Job.id == Refusal.job_id).where(Job.ended_at < before)
    return _page(session, query, Refusal.id, after)


def old_prices(session: Session, *, before: datetime, after: int) -> list[int]:
    """But for the newest of each pool."""
    later = aliased(Price)
    pool = ("cloud", "region", "zone", "vm_type", "spot")
    same = [getattr(later, name) == getattr(Price, name) for name in pool]
    newer = select(later.id).where(*same, later.at > Price.at).exists()
    return _page(session, select(Price.id).where(Price.at < before, newer), Price.id, after)


def forget_strays(session: Session, clouds: Collection[str], *, before: datetime) -> int:
    """Those that were found before then in clouds other than these, which nobody lists any more;
    how many they were."""
    gone = delete(Stray).where(Stray.cloud.not_in(clouds), Stray.found_at < before)
    return _count(session.execute(gone))


def forget_uploads(session: Session, bundles: Collection[str], *, before: datetime) -> int:
    """Who sent bundles before then that are not among these, which are here; how many rows."""
    known = session.scalars(select(BundleUpload.sha256).distinct())
    gone, forgotten = [sha256 for sha256 in known if sha256 not in bundles], 0
    for first in range(0, len(gone), IN_ONE_QUERY):
        some = BundleUpload.sha256.in_(gone[first : first + IN_ONE_QUERY])
        statement = delete(BundleUpload).where(some, BundleUpload.uploaded_at < before)
        forgotten += _count(session.execute(statement))
    return forgotten


def _count(result: Result[Any]) -> int:
    return result.rowcount if isinstance(result, CursorResult) else 0


def _page(
    session: Session, query: Select[Any], column: InstrumentedAttribute[int], after: int
) -> list[int]:
    return list(session.scalars(query.where(column > after).order_by(column).limit(PAGE)))


def remove(session: Session, model: type[Base], ids: Sequence[int]) -> None:
    """By primary key. `model` is one of those whose rows nothing refers to."""
    statement = delete(model).where(model.__table__.c.id.in_(ids))
    session.execute(statement, execution_options={"synchronize_session": False})


def bundles_of_jobs(session: Session) -> dict[str, datetime | None]:
    """When the last job that uses each bundle ended; None while one of them has not."""
    rows = session.execute(
        select(
            Job.bundle, func.max(Job.ended_at), func.count() - func.count(Job.ended_at)
        ).group_by(Job.bundle)
    )
    return {row[0]: None if row[2] else row[1] for row in rows}


def is_needed(session: Session, bundle: str) -> bool:
    """By a job that has not ended."""
    query = select(Job.id).where(Job.bundle == bundle, Job.ended_at.is_(None))
    return session.scalar(query.limit(1)) is not None


def ends_of_all(session: Session, job_ids: Sequence[str]) -> dict[str, datetime]:
    """Of those of these jobs that have ended."""
    found: dict[str, datetime] = {}
    for first in range(0, len(job_ids), IN_ONE_QUERY):
        some = job_ids[first : first + IN_ONE_QUERY]
        query = select(Job.id, Job.ended_at).where(Job.id.in_(some), Job.ended_at.is_not(None))
        found.update((row[0], row[1]) for row in session.execute(query) if row[1] is not None)
    return found


def zips_of_living_vms(session: Session) -> set[str]:
    """SHA-256 of the agent's zips that VMs were told of which may still fetch them."""
    living = VmRow.ended_at.is_(None), VmRow.boot.is_not(None)
    found = session.scalars(select(VmRow.boot).where(*living))
    return {sha256 for boot in found for sha256 in json.loads(boot or "{}")["zips"].values()}


def living_vms(session: Session) -> set[str]:
    return set(session.scalars(select(VmRow.id).where(VmRow.ended_at.is_(None))))
