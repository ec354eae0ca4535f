"""Who calls a cloud about a VM: a token in its row, taken with the intent, given back with the
result.

What it guarantees: of all who called a cloud about a VM, only the one whose lease still stands
writes what came of it. It does not keep a second one from calling: whoever was slow may lose the
lease while its call is under way. Three rules make that harmless:

1. A lease guards an effect on one VM, never a decision about its job: cancel, fence and notice go
   on while a launch is slow. Decisions are made from the rows under `lock`, and among their facts
   is that an effect is under way.
2. It is taken in the transaction that writes the intent, and given back in the one that writes the
   result, both by guarded updates: a lost lease rolls the result back (`StaleLease`). What the lost
   call did is found by its token in the cloud's listing (I3, I10).
3. Its holder renews it until then, for calls wait for their turn (`loops.effects`).

`lease_until` stays when a lease is given back or broken: until then a call was under way, so a
listing that began before says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, CursorResult, event, or_, select, update
from sqlalchemy.orm import Session, SessionTransaction

from spothop_master.store import dialects
from spothop_master.store.schema import Event, Job, VmRow

TTL = timedelta(seconds=15)
"""So long the leases of a dead master hold where there are several. They are renewed while a call
waits or hangs, by the database's time (`Database.now`)."""

_LOCKED = "spothop_locked_jobs"


class StaleLease(Exception):
    """Another thread or master works on this VM now; nothing was written."""


def held(token: str | None, until: datetime | None, *, now: datetime) -> bool:
    """Somebody calls the cloud, and the time of the lease is not over."""
    return token is not None and (until is None or now < until)


def lock(session: Session, job_id: str) -> Job:
    """The job's row as it is now, nobody else's until the commit. Taken before rows of its VMs and
    attempts are read, so that two transactions about one job follow each other on PostgreSQL and
    never wait for each other; SQLite has locked the whole database by then.
    """
    found = session.get_one(Job, job_id, with_for_update=True, populate_existing=True)
    _locked(session).add(job_id)
    return found


def lock_all(session: Session, job_ids: Sequence[str]) -> None:
    """The same for several jobs, always in one order; their rows are not loaded."""
    if dialects.locks_rows(session):
        locked = select(Job.id).where(Job.id.in_(job_ids)).order_by(Job.id).with_for_update()
        _locked(session).update(session.connection().execute(locked).scalars())


def lock_for_events(session: Session, job_ids: Iterable[str | None]) -> None:
    """The jobs of events that are about to be written, those that are not locked yet: an event's id
    is taken before its commit, and who reads those above the last id it knows would never see one
    that commits later with a lower one."""
    missing = {job_id for job_id in job_ids if job_id is not None} - _locked(session)
    if missing:
        lock_all(session, sorted(missing))


def _locked(session: Session) -> set[str]:
    found: set[str] = session.info.setdefault(_LOCKED, set())
    return found


@event.listens_for(Session, "after_soft_rollback")
def _unlocked(session: Session, _before: SessionTransaction) -> None:
    """A savepoint that is undone gives back what was locked in it."""
    session.info.pop(_LOCKED, None)


@event.listens_for(Session, "before_flush")
def _lock_for_new_events(session: Session, *_: object) -> None:
    lock_for_events(session, [row.job_id for row in session.new if isinstance(row, Event)])


def lock_those_of(session: Session, vm_ids: Sequence[str]) -> None:
    """The jobs of these VMs, as `lock_all` does."""
    if dialects.locks_rows(session):
        jobs = select(VmRow.job_id).where(VmRow.id.in_(vm_ids))
        locked = select(Job.id).where(Job.id.in_(jobs)).order_by(Job.id).with_for_update()
        _locked(session).update(session.connection().execute(locked).scalars())


def take(session: Session, vm_id: str, *, token: str, now: datetime) -> None:
    """Raises StaleLease when it is held."""
    free = or_(VmRow.lease_token.is_(None), VmRow.lease_until <= now)
    _update(session, vm_id, free, lease_token=token, lease_until=now + TTL)


def renew(session: Session, tokens: Mapping[str, str], *, now: datetime) -> None:
    """Of these VMs, each while it is still held with its token."""
    for vm_id, token in tokens.items():
        mine = update(VmRow).where(VmRow.id == vm_id, VmRow.lease_token == token)
        session.execute(mine.values(lease_until=now + TTL))


def drop(session: Session, vm_id: str, *, token: str, now: datetime) -> None:
    """Give it back. Raises StaleLease when it is another's: roll back what was to be written."""
    _update(session, vm_id, VmRow.lease_token == token, lease_token=None, lease_until=now)


def void(session: Session, vm_id: str) -> None:
    """Whoever holds it writes nothing any more: the VM's launch was given up, or the VM is listed
    and is to be ended, which does not wait until the call for it has returned."""
    session.execute(update(VmRow).where(VmRow.id == vm_id).values(lease_token=None))


def break_all(session: Session, *, now: datetime) -> None:
    """End all leases. Only where this is the only master: whoever took them is gone."""
    statement = update(VmRow).where(VmRow.lease_token.is_not(None))
    session.execute(statement.values(lease_token=None, lease_until=now))


def _update(session: Session, vm_id: str, guard: ColumnElement[bool], **values: object) -> None:
    session.flush()
    statement = update(VmRow).where(VmRow.id == vm_id, guard).values(**values)
    result = session.execute(statement)
    if not isinstance(result, CursorResult) or result.rowcount != 1:
        raise StaleLease(f"VM {vm_id} is worked on by somebody else")
