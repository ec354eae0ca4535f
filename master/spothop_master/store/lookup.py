"""Jobs by what a user types: an id or a name."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from spothop.wire import JOB_ENDED
from spothop_master.store.schema import Job

IN_ONE_QUERY = 500
"""Values; databases limit them."""

SHOWN = 5
"""Jobs that an ambiguous name lists."""


class NoSuchJob(LookupError):
    """No job of this id or name that the asker may see."""


class AmbiguousName(LookupError):
    """Several jobs that have not ended have this name."""


def find_job(session: Session, ref: str, *, owner_id: int | None) -> Job:
    """By id, or by name: of several, the one that has not ended; when all have, the newest.

    `owner_id` None sees all.

    Raises `NoSuchJob`, `AmbiguousName`.
    """
    visible = select(Job).where(*visible_to(owner_id))
    exact = session.scalar(visible.where(Job.id == ref))
    if exact is not None:
        return exact
    named = visible.where(Job.name == ref).order_by(Job.submitted_at.desc(), Job.id.desc())
    ended = [state.value for state in JOB_ENDED]
    active = list(session.scalars(named.where(Job.state.not_in(ended)).limit(SHOWN + 1)))
    if len(active) > 1:
        ids = ", ".join(job.id for job in active[:SHOWN])
        more = " and more" if len(active) > SHOWN else ""
        raise AmbiguousName(f"several jobs of the name {ref!r} have not ended: {ids}{more}")
    newest = active[0] if active else session.scalar(named.limit(1))
    if newest is None:
        raise NoSuchJob(f"no job {ref!r}")
    return newest


def seen(session: Session, ids: Sequence[str], owner_id: int | None) -> list[str]:
    """Those of these jobs that one may see, in their order; of the first hundreds."""
    some = ids[:IN_ONE_QUERY]
    found = set(session.scalars(select(Job.id).where(Job.id.in_(some), *visible_to(owner_id))))
    return [job_id for job_id in some if job_id in found]


def visible_to(owner_id: int | None) -> list[ColumnElement[bool]]:
    return [] if owner_id is None else [Job.owner_id == owner_id]
