"""Who works on a job: a token in its row, taken before the cloud is called and checked after.

What it guarantees: of all who called a cloud for a job, only the one whose lease still stands
writes what came of it. It does not keep a second one from calling: whoever was slow may lose the
lease while its call is under way. Two rules make that harmless:

1. Taking and giving back are guarded updates. Giving back is in the transaction that writes the
   result, so a lost lease rolls both back (`StaleLease`).
2. A lease guards an effect, never a decision. Decisions are made from the rows under `lock`; what a
   lost call did is found by its token in the cloud's listing (I3, I10).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, CursorResult, or_, update
from sqlalchemy.orm import Session

from spothop_master.store.schema import Job


class StaleLease(Exception):
    """Another thread or master works on this job now; nothing was written."""


def held(job: Job, *, now: datetime) -> bool:
    """A thread or master works on it, and its time is not over."""
    return job.lease_token is not None and (job.lease_until is None or now < job.lease_until)


def lock(session: Session, job_id: str) -> Job:
    """The job's row as it is now, nobody else's until the commit. Taken before rows of its VMs and
    attempts are read, so that two transactions about one job follow each other on PostgreSQL and
    never wait for each other; SQLite has locked the whole database by then.
    """
    return session.get_one(Job, job_id, with_for_update=True, populate_existing=True)


def take(session: Session, job_id: str, *, token: str, ttl: timedelta, now: datetime) -> None:
    """Raises StaleLease when it is held."""
    free = or_(Job.lease_token.is_(None), Job.lease_until <= now)
    _update(session, job_id, free, lease_token=token, lease_until=now + ttl)


def drop(session: Session, job_id: str, *, token: str) -> None:
    """Give it back. Raises StaleLease when it is another's: roll back what was to be written."""
    _update(session, job_id, Job.lease_token == token, lease_token=None, lease_until=None)


def break_all(session: Session) -> None:
    """End all leases. Only where this is the only master: whoever took them is gone."""
    statement = update(Job).where(Job.lease_token.is_not(None))
    session.execute(statement.values(lease_token=None, lease_until=None))


def _update(session: Session, job_id: str, guard: ColumnElement[bool], **values: object) -> None:
    session.flush()
    statement = update(Job).where(Job.id == job_id, guard).values(**values)
    result = session.execute(statement)
    if not isinstance(result, CursorResult) or result.rowcount != 1:
        raise StaleLease(f"job {job_id} is worked on by somebody else")
