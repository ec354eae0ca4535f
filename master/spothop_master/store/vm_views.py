"""VMs as users see them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from spothop.wire import Dialect, VmReason, VmState, VmView
from spothop_master.store.figures import cost
from spothop_master.store.keyset import Cursor, Key, Page, beyond, order, page
from spothop_master.store.schema import Attempt, Job, Place, VmRow
from spothop_master.store.vms import pool_of

REFUSED = and_(
    VmRow.state == VmState.TERMINATED.value,
    func.coalesce(VmRow.reason, "") == VmReason.LAUNCH_FAILED.value,
)
"""Rows behind which there is no VM."""


def vm_page(
    session: Session,
    *,
    owner_id: int | None,
    now: datetime,
    job_id: str | None = None,
    state: str | None = None,
    cloud: str | None = None,
    cursor: Cursor | None = None,
    limit: int,
) -> Page[VmView]:
    """Newest first; a user sees the VMs of their own jobs. The other filters: None takes all. What
    a cloud refused to make is no VM: `refusals.views` counts it."""
    wanted = {VmRow.job_id: job_id, VmRow.state: state, VmRow.cloud: cloud}
    query = select(VmRow).where(
        ~REFUSED, *(c == value for c, value in wanted.items() if value is not None)
    )
    if owner_id is not None:
        query = query.join(Job, Job.id == VmRow.job_id).where(Job.owner_id == owner_id)
    query = query.where(*beyond(cursor, VmRow.requested_at, VmRow.id))
    query = query.order_by(*order(cursor, VmRow.requested_at, VmRow.id)).limit(limit + 1)
    found = page(list(session.scalars(query)), _key, cursor=cursor, limit=limit)
    rows = found.items
    by_vm: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts_of(session, [row.id for row in rows]):
        for place in attempt.places:
            by_vm[place.vm_id].append(attempt)
    views = [vm_view(row, by_vm[row.id], now=now) for row in rows]
    return Page(items=views, next=found.next, previous=found.previous)


def _key(row: VmRow) -> Key:
    return Key(row.requested_at, row.id)


def attempts_of(session: Session, vm_ids: Sequence[str]) -> list[Attempt]:
    """Those that have, or had, a place on one of these VMs; by number."""
    placed = select(Place.attempt_id).where(Place.vm_id.in_(vm_ids))
    query = select(Attempt).where(Attempt.id.in_(placed))
    return list(session.scalars(query.order_by(Attempt.number)))


def vm_view(row: VmRow, attempts: Sequence[Attempt], *, now: datetime) -> VmView:
    numbers = [
        attempt.number
        for attempt in attempts
        if any(place.vm_id == row.id for place in attempt.places)
    ]
    return VmView(
        id=row.id,
        cloud_id=row.cloud_id,
        pool=pool_of(row),
        state=VmState(row.state),
        reason=VmReason(row.reason) if row.reason else None,
        dialect=Dialect(row.dialect),
        attempt=max(numbers, default=0),
        requested_at=row.requested_at,
        running_at=row.running_at,
        ended_at=row.ended_at,
        price=row.price,
        cost=cost(row, row.price, now=now),
        job=row.job_id,
        hint=(row.hint or "") if row.state != VmState.TERMINATED.value else "",
    )
