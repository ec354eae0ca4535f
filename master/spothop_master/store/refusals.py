"""What clouds refused: a counter for each job and pool, and the back-offs that all jobs share.

The rules are those of `core.refusals`. The rows of `backoffs` belong to no job: several masters
write them at the same time, so each is read for update, and one that must be made is made inside a
savepoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import ColumnElement, CursorResult, and_, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from spothop.wire import Pool, RefusalView
from spothop_master.core.refusals import (
    PROBE,
    BackOff,
    Growth,
    PoolRefusal,
    Refused,
    Scope,
    keys_of,
    name_of,
)
from spothop_master.store.schema import BackOffRow, Refusal, VmRow
from spothop_master.store.transitions import StaleState

Row = TypeVar("Row", Refusal, BackOffRow)


def of_jobs(session: Session, job_ids: Sequence[str]) -> dict[str, tuple[PoolRefusal, ...]]:
    """What their pools answered last; jobs without a refusal are left out."""
    rows = session.scalars(
        select(Refusal).where(Refusal.job_id.in_(job_ids)).order_by(Refusal.id)
    ).all()
    return {
        job_id: tuple(_refusal(row) for row in rows if row.job_id == job_id)
        for job_id in dict.fromkeys(row.job_id for row in rows)
    }


def _refusal(row: Refusal) -> PoolRefusal:
    return PoolRefusal(pool=_pool(row), error=row.error, last_at=row.last_at, until=row.until)


def back_offs(session: Session) -> tuple[BackOff, ...]:
    """Of all clouds, those that are over included."""
    rows = session.scalars(select(BackOffRow).order_by(BackOffRow.cloud, BackOffRow.name))
    return tuple(_back_off(row) for row in rows)


def closed_since(session: Session, vm: VmRow, *, now: datetime) -> BackOff | None:
    """What was closed around this VM after its launch was decided, and still is."""
    rows = _around(
        session, _pool(vm), BackOffRow.until > now, BackOffRow.last_at >= vm.requested_at
    )
    return _back_off(max(rows, key=lambda row: row.until)) if rows else None


def views(session: Session, job_id: str) -> list[RefusalView]:
    """The newest first."""
    rows = session.scalars(select(Refusal).where(Refusal.job_id == job_id)).all()
    around = back_offs(session) if rows else ()
    return [
        RefusalView(
            pool=_pool(row),
            count=row.count,
            first_at=row.first_at,
            last_at=row.last_at,
            until=_asked_again(row, around),
            error=row.error,
            code=row.code,
            detail=row.detail,
        )
        for row in sorted(rows, key=lambda row: (row.last_at, row.id), reverse=True)
    ]


def _asked_again(row: Refusal, around: Sequence[BackOff]) -> datetime | None:
    """By its own refusal, or that of its zone, region or account; whichever is later."""
    pool = _pool(row)
    moments = [each.until for each in around if each.covers(pool)]
    return max([*moments, *([row.until] if row.until is not None else [])], default=None)


def counts(session: Session) -> dict[Pool, int]:
    """By pool, over all jobs."""
    pool = (Refusal.cloud, Refusal.region, Refusal.zone, Refusal.vm_type, Refusal.spot)
    rows = session.execute(select(*pool, func.sum(Refusal.count)).group_by(*pool)).all()
    return {
        Pool(cloud=row[0], region=row[1], zone=row[2], vm=row[3], spot=row[4]): int(row[5])
        for row in rows
    }


def count(
    session: Session, vm: VmRow, refused: Refused, *, growth: Growth, now: datetime
) -> datetime:
    """The launch of this VM was refused; until when what refused is left alone."""
    row = _made(session, Refusal, _of_pool(vm), _first(vm, refused, now))
    in_row = growth.in_row(row.in_row, row.last_at, asked_at=vm.requested_at)
    row.count += 1
    row.last_at, row.error, row.code, row.detail = now, refused.error, refused.code, refused.detail
    row.until = None
    if refused.scope is Scope.POOL:
        row.in_row = in_row
        until = row.until = now + growth.back_off(refused, in_row)
    else:
        until = close(session, _pool(vm), refused, asked_at=vm.requested_at, growth=growth, now=now)
    session.flush()
    return until


def throttled(
    session: Session,
    pool: Pool,
    refused: Refused,
    *,
    asked_at: datetime,
    growth: Growth,
    now: datetime,
) -> None:
    """Something else than a launch was: launches wait with it. `pool` names its cloud, and region
    and zone as far as they are known."""
    if refused.scope is not Scope.POOL:
        close(session, pool, refused, asked_at=asked_at, growth=growth, now=now)


def let_through(session: Session, pool: Pool, *, now: datetime) -> None:
    """A launch in this pool is about to be asked for: where a back-off has just ended, all others
    wait for what becomes of it. Raises StaleState when somebody else's came first."""
    for row in _around(session, pool, BackOffRow.until <= now):
        result = session.execute(
            update(BackOffRow)
            .where(_key(row), BackOffRow.until <= now)
            .values(until=now + PROBE)
            .execution_options(synchronize_session=False)
        )
        if not isinstance(result, CursorResult) or result.rowcount != 1:
            raise StaleState(f"another launch was let through in {row.cloud} {row.name}")
        session.refresh(row)


def accepted(session: Session, vm: VmRow) -> None:
    """The cloud took the launch: its account works, and nothing around the VM is throttled. What
    was refused after it was asked for is newer than that."""
    _open(session, vm, _ACCEPTING, BackOffRow.error != "QuotaExceeded")


_ACCEPTING = or_(BackOffRow.scope == Scope.ACCOUNT.value, BackOffRow.error == "Throttled")
"""Back-offs of which a launch that was accepted has something to say."""


def any_accepting(session: Session) -> bool:
    """There are some of which `accepted` may have something to say."""
    return session.scalar(select(BackOffRow.name).where(_ACCEPTING).limit(1)) is not None


def gave_a_vm(session: Session, vm: VmRow) -> None:
    """The VM runs: nothing around it is closed, as far as was known when it was asked for."""
    _open(session, vm)
    if vm.job_id is None:
        return
    row = session.scalar(select(Refusal).where(_of_pool(vm)))
    if row is not None and row.last_at < vm.requested_at:
        row.in_row, row.until = 0, None


def _back_off(row: BackOffRow) -> BackOff:
    return BackOff(
        cloud=row.cloud,
        scope=Scope(row.scope),
        name=row.name,
        error=row.error,
        detail=row.detail,
        until=row.until,
    )


def close(
    session: Session,
    pool: Pool,
    refused: Refused,
    *,
    asked_at: datetime,
    growth: Growth,
    now: datetime,
) -> datetime:
    """The zone, region or account of this pool refused something that was asked for at `asked_at`,
    a launch or another request; until when all leave it alone."""
    new = BackOffRow(
        cloud=pool.cloud,
        scope=refused.scope.value,
        name=name_of(refused.scope, pool, refused.error),
        until=now,
        refusals=0,
        last_at=asked_at,
        error=refused.error,
    )
    row = _made(session, BackOffRow, _key(new), new)
    known_before = row.refusals > 0 and asked_at <= row.last_at
    row.refusals = growth.in_row(row.refusals, row.last_at, asked_at=asked_at)
    row.last_at, row.error, row.code, row.detail = now, refused.error, refused.code, refused.detail
    until = now + growth.back_off(refused, row.refusals)
    row.until = max(row.until, until) if known_before else until
    return row.until


def _open(session: Session, vm: VmRow, *which: ColumnElement[bool]) -> None:
    session.flush()
    older = BackOffRow.last_at < vm.requested_at
    for row in _around(session, _pool(vm), older, *which):
        session.execute(
            delete(BackOffRow)
            .where(_key(row), older)
            .execution_options(synchronize_session="fetch")
        )


def _made(session: Session, model: type[Row], where: ColumnElement[bool], new: Row) -> Row:
    """The row of this key, locked; `new` where there is none."""
    query = select(model).where(where).with_for_update()
    row = session.scalar(query)
    if row is not None:
        return row
    try:
        with session.begin_nested():
            session.add(new)
    except IntegrityError:  # another transaction made it meanwhile
        return session.scalars(query).one()
    return new


def _first(vm: VmRow, refused: Refused, now: datetime) -> Refusal:
    return Refusal(
        job_id=vm.job_id,
        cloud=vm.cloud,
        region=vm.region,
        zone=vm.zone,
        vm_type=vm.vm_type,
        spot=vm.spot,
        count=0,
        in_row=0,
        first_at=now,
        last_at=vm.requested_at,
        error=refused.error,
    )


def _of_pool(vm: VmRow) -> ColumnElement[bool]:
    return and_(
        Refusal.job_id == vm.job_id,
        Refusal.cloud == vm.cloud,
        Refusal.region == vm.region,
        Refusal.zone == vm.zone,
        Refusal.vm_type == vm.vm_type,
        Refusal.spot == vm.spot,
    )


def _around(session: Session, pool: Pool, *which: ColumnElement[bool]) -> list[BackOffRow]:
    """Those that close this pool. Few are closed at a time: a statement that names all its scopes
    costs more than choosing from the rows of its cloud."""
    keys = keys_of(pool)
    rows = session.scalars(
        select(BackOffRow)
        .where(BackOffRow.cloud == pool.cloud, *which)
        .order_by(BackOffRow.scope, BackOffRow.name)
    )
    return [row for row in rows if (row.cloud, Scope(row.scope), row.name) in keys]


def _key(row: BackOffRow) -> ColumnElement[bool]:
    return and_(
        BackOffRow.cloud == row.cloud, BackOffRow.scope == row.scope, BackOffRow.name == row.name
    )


def _pool(row: Refusal | VmRow) -> Pool:
    return Pool(cloud=row.cloud, region=row.region, zone=row.zone, vm=row.vm_type, spot=row.spot)
