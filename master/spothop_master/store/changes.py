"""Which jobs a transaction changed, told after its commit.

Whoever keeps something that was made from a job's rows (the supervise loop, the directives in
memory) has to know when they change. Telling it from each place that writes was tried first: each
new one is one that may be forgotten. So the session itself is watched, and `Database.begin` tells
what it saw once that is committed.

Two rules:

1. Columns that only report progress are left out (`_PROGRESS`); they change at every sync of every
   VM, and no decision waits for them. (What a save takes matters to a hand-over; it changes with a
   checkpoint, which is told.)
2. Statements are not seen, only rows that the session writes. Who writes a decisive column by a
   statement says so (`tell`): a change of a state does. Leases, the times of the last contact and
   the mark of the fenced attempt need not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, UOWTransaction

from spothop_master.store.schema import (
    Attempt,
    BackOffRow,
    Base,
    Checkpoint,
    Event,
    Job,
    Place,
    VmRow,
)

_KEY = "spothop_changed_jobs"

_FIGURED_KEY = "spothop_figured_jobs"
_SAVED_KEY = "spothop_checkpoints"
_SAVES_KEY = "spothop_saves"
_NOTED_KEY = "spothop_noted_jobs"
_MOVED_KEY = "spothop_moved_jobs"
_HURRIED_KEY = "spothop_hurried_jobs"
_CLOSED_KEY = "spothop_closed_clouds"

_PROGRESS: dict[type[Base], frozenset[str]] = {
    Job: frozenset({"insurance", "reason", "alarms"}),
    Attempt: frozenset({"step_s", "save_s", "backup_s", "places", "metrics"}),
    Place: frozenset(
        {"last_step", "last_step_at", "step_at_notice", "unprotected", "idle", "attempt"}
    ),
    VmRow: frozenset(
        {"acked_seq", "last_contact_at", "join_hash", "protocol", "lease_token", "lease_until"}
        | {"boot", "user_data_sha256"}
    ),
    Checkpoint: frozenset(),
}
"""The tables that decisions are made from, and their columns that tell only of progress."""

_FIGURED: dict[type[Base], frozenset[str]] = {
    Attempt: frozenset({"state", "reason", "fenced_in", "restored_step", "ended_at"}),
    Place: frozenset(
        {"vm_id", "living", "started_at", "first_step_at", "notice_at", "unprotected", "exit_code"}
        | {"exit_signal", "reason"}
    ),
    VmRow: frozenset({"running_at", "ended_at", "price", "on_demand_price"}),
}
"""The columns that a job's summary is made of (`store/summaries`)."""


def changed_jobs(session: Session) -> frozenset[str]:
    """So far; ids of jobs."""
    return frozenset(session.info.get(_KEY, ()))


def figured_jobs(session: Session) -> frozenset[str]:
    """So far, those of which a summary may have changed; ids."""
    return frozenset(session.info.get(_FIGURED_KEY, ()))


def noted_jobs(session: Session) -> frozenset[str]:
    """So far, those that changed or have new events; ids."""
    return frozenset(session.info.get(_NOTED_KEY, ())) | changed_jobs(session)


def moved_jobs(session: Session) -> frozenset[str]:
    """So far, those of which anything was written; ids."""
    return frozenset(session.info.get(_MOVED_KEY, ()))


def hurried_jobs(session: Session) -> frozenset[str]:
    """So far, those with a notice that is new; ids."""
    return frozenset(session.info.get(_HURRIED_KEY, ()))


def tell_hurried(session: Session, jobs: Iterable[str]) -> None:
    """A notice of one of their VMs was written."""
    session.info.setdefault(_HURRIED_KEY, set()).update(jobs)


def closed_clouds(session: Session) -> frozenset[str]:
    """So far, those of which a zone, a region or the account was closed, or for longer; names."""
    return frozenset(session.info.get(_CLOSED_KEY, ()))


def tell_progress(session: Session, jobs: Iterable[str]) -> None:
    """Of these jobs a statement of this transaction wrote steps or metrics."""
    session.info.setdefault(_MOVED_KEY, set()).update(jobs)


def tell_events(session: Session, jobs: Iterable[str]) -> None:
    """Of these jobs a statement of this transaction wrote events."""
    session.info.setdefault(_NOTED_KEY, set()).update(jobs)


def tell_saves(session: Session, saves: Iterable[tuple[str, str]]) -> None:
    """A statement of this transaction wrote a checkpoint of this job and this kind, for each."""
    session.info.setdefault(_SAVES_KEY, []).extend(saves)


def new_saves(session: Session) -> list[tuple[str, str]]:
    """Job and kind of each checkpoint that this transaction has written, without those that a
    savepoint took back."""
    rows = [row for row in session.info.get(_SAVED_KEY, ()) if sa.inspect(row).persistent]
    return [*((row.job_id, row.kind) for row in rows), *session.info.get(_SAVES_KEY, ())]


def tell(session: Session, row: Job | Attempt | VmRow, columns: Collection[str]) -> None:
    """Of a row of which a statement of this transaction wrote these columns."""
    if (job_id := _job_id(row)) is not None:
        session.info.setdefault(_KEY, set()).add(job_id)
        if is_figured(type(row), columns):
            session.info.setdefault(_FIGURED_KEY, set()).add(job_id)


def is_figured(model: type[Base], columns: Collection[str]) -> bool:
    """A job's summary is made of one of these columns."""
    return not _FIGURED.get(model, frozenset()).isdisjoint(columns)


def tell_jobs(session: Session, job_ids: Collection[str], *, figured: bool = False) -> None:
    """Of jobs that statements of this transaction changed; `figured`: with them attempts, places or
    VMs of which their summaries are made."""
    session.info.setdefault(_KEY, set()).update(job_ids)
    if figured:
        session.info.setdefault(_FIGURED_KEY, set()).update(job_ids)


@sa.event.listens_for(Session, "after_flush")
def _collect(session: Session, _context: UOWTransaction) -> None:
    found = session.info.setdefault(_KEY, set())
    for row in _changed(session):
        job_id = _job_of(row)
        if job_id is not None:
            found.add(job_id)
    written = [row for row in [*session.new, *session.dirty] if type(row) in _PROGRESS]
    tell_progress(session, filter(None, map(_job_of, written)))
    events = [row for row in session.new if isinstance(row, Event) and row.job_id is not None]
    tell_events(session, (row.job_id for row in events if row.job_id is not None))
    figured = session.info.setdefault(_FIGURED_KEY, set())
    for row in [*session.new, *session.dirty]:
        if type(row) in _FIGURED and (row in session.new or _columns(row) & _FIGURED[type(row)]):
            job_id = _job_of(row)
            figured.update([job_id] if job_id is not None else [])
    closed = [row for row in [*session.new, *session.dirty] if isinstance(row, BackOffRow)]
    session.info.setdefault(_CLOSED_KEY, set()).update(row.cloud for row in closed)
    saved = [row for row in session.new if isinstance(row, Checkpoint)]
    session.info.setdefault(_SAVED_KEY, []).extend(saved)


def _changed(session: Session) -> Iterator[Base]:
    yield from (row for row in session.new if type(row) in _PROGRESS)
    for row in session.dirty:
        progress = _PROGRESS.get(type(row))
        if progress is not None and not _columns(row) <= progress:
            yield row


def _columns(row: Any) -> set[str]:
    """Those that have another value than at the last flush."""
    state = sa.inspect(row)
    return {name for name in state.committed_state if state.attrs[name].history.has_changes()}


def _job_of(row: Any) -> str | None:
    return _job_id(row.attempt if isinstance(row, Place) else row)


def _job_id(row: Any) -> str | None:
    found: str | None = row.id if isinstance(row, Job) else row.job_id
    return found
