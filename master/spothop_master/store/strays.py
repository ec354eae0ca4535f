"""VMs with our tag that no row owns: what the sweep found, and what an admin said about them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from spothop.wire import Pool, StrayView
from spothop_master.core.orphans import Orphan, Written
from spothop_master.store.schema import Event, Stray, User


def written(session: Session, *, started_at: datetime) -> Written:
    """When this database was written before `started_at`. It was made when its first user was."""
    newest = select(func.max(Event.id)).scalar_subquery()
    return Written(
        born_at=session.scalar(select(func.min(User.created_at))),
        last_at=session.scalar(select(Event.at).where(Event.id == newest)),
        started_at=started_at,
    )


def get(session: Session, cloud: str, cloud_id: str) -> Stray | None:
    return session.get(Stray, (cloud, cloud_id))


def held(session: Session, cloud: str) -> list[Stray]:
    """Those that wait for an admin."""
    waiting = (Stray.cloud == cloud, Stray.held != "", Stray.end_wanted_at.is_(None))
    return list(session.scalars(select(Stray).where(*waiting).order_by(Stray.cloud_id)))


def keep_only(
    session: Session, cloud: str, cloud_ids: Collection[str], *, judged: Callable[[str], bool]
) -> None:
    """All others of this cloud, in regions of which that can be said, are over or have a row."""
    for row in session.scalars(select(Stray).where(Stray.cloud == cloud)):
        if row.cloud_id not in cloud_ids and judged(row.region):
            session.delete(row)
    session.flush()


def any_of(session: Session, cloud: str) -> bool:
    return session.scalar(select(Stray.cloud_id).where(Stray.cloud == cloud).limit(1)) is not None


def note(session: Session, cloud: str, orphan: Orphan, *, held: str | None, now: datetime) -> Stray:
    """It is nobody's. Once held it stays so, whatever becomes of the others, until an admin says
    that it goes."""
    row = get(session, cloud, orphan.cloud_id)
    if row is None:
        row = _new(cloud, orphan, now)
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:  # another master found it in the same moment
            row = session.get_one(Stray, (cloud, orphan.cloud_id))
    row.held = row.held or held or ""
    session.flush()
    return row


def end(session: Session, *, cloud: str | None = None, now: datetime) -> list[StrayView]:
    """An admin says that those that are held now go; the next sweep ends them. Those of one cloud,
    or of all."""
    query = select(Stray).where(Stray.held != "", Stray.end_wanted_at.is_(None))
    if cloud is not None:
        query = query.where(Stray.cloud == cloud)
    rows = list(session.scalars(query.order_by(Stray.cloud, Stray.cloud_id)))
    for row in rows:
        row.end_wanted_at = now
    return [_view(row) for row in rows]


def views(session: Session) -> list[StrayView]:
    rows = session.scalars(select(Stray).order_by(Stray.cloud, Stray.launched_at, Stray.cloud_id))
    return [_view(row) for row in rows]


def _new(cloud: str, orphan: Orphan, now: datetime) -> Stray:
    pool = orphan.pool
    return Stray(
        cloud=cloud,
        cloud_id=orphan.cloud_id,
        region=pool.region,
        zone=pool.zone,
        vm_type=pool.vm,
        spot=pool.spot,
        launched_at=orphan.launched_at,
        found_at=now,
        held="",
    )


def _view(row: Stray) -> StrayView:
    return StrayView(
        cloud_id=row.cloud_id,
        pool=Pool(cloud=row.cloud, region=row.region, zone=row.zone, vm=row.vm_type, spot=row.spot),
        launched_at=row.launched_at,
        found_at=row.found_at,
        held=row.held if row.end_wanted_at is None else "",
        next_at=row.next_at,
        error=row.error,
    )
