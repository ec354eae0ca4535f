"""The event log of a job as users see it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.wire import EventView
from spothop_master.store.schema import Event


def events(
    session: Session, job_id: str, *, after: int = 0, limit: int = 500, newest: bool = False
) -> list[EventView]:
    """In order of ids, those above `after`; `newest`: the last `limit` instead of the first."""
    query = select(Event).where(Event.job_id == job_id, Event.id > after)
    if newest:
        rows = list(session.scalars(query.order_by(Event.id.desc()).limit(limit)))[::-1]
    else:
        rows = list(session.scalars(query.order_by(Event.id).limit(limit)))
    return [event_view(row) for row in rows]


def event_view(row: Event) -> EventView:
    return EventView(
        id=row.id,
        at=row.at,
        job=row.job_id,
        vm=row.vm_id,
        attempt=row.attempt,
        kind=row.kind,
        text=row.text,
        data=row.data,
    )
