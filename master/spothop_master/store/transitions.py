"""The one function that changes a state: a guarded update and its event in the same transaction.

Two rules: the table of the life cycle (`core.states`) says whether the step exists, and `UPDATE ...
WHERE state = (the one that was read)` says whether it is still ours to take. Zero rows mean that
somebody else took one; then neither row nor event is written. To compare in Python would not do: on
PostgreSQL another transaction may commit between the read and the write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, CursorResult, bindparam, insert, select, update
from sqlalchemy.orm import Session

from spothop.statemachine import Machine
from spothop.wire import JOB_ACTIVE, AttemptState, JobState, VmState
from spothop_master.core.follow import EVENT_OF, Living, job_state
from spothop_master.core.states import ATTEMPTS, JOBS, VMS, AttemptEvent, JobEvent, VmEvent
from spothop_master.store import changes, leases
from spothop_master.store.schema import Attempt, Event, Job, Place, VmRow

Row = TypeVar("Row", Job, Attempt, VmRow)

_MACHINES: Mapping[type, tuple[str, Machine[Any, Any]]] = {
    Job: ("job", JOBS),
    Attempt: ("attempt", ATTEMPTS),
    VmRow: ("vm", VMS),
}


_HURRIES = (VmEvent.NOTICE, AttemptEvent.NOTICE)


class StaleState(Exception):
    """The row is no longer in the state that was read; nothing was changed."""


def change(
    session: Session,
    row: Row,
    event: JobEvent | AttemptEvent | VmEvent,
    *,
    now: datetime,
    text: str,
    data: Mapping[str, Any] | None = None,
    **values: object,
) -> None:
    """Take `event`, write `values` with it, and say so in the event log.

    Raises IllegalTransition when the life cycle has no such step, and StaleState when somebody else
    took one since the row was read.
    """
    thing, machine = _MACHINES[type(row)]
    before = machine.states(row.state)
    after = machine.after(before, event)
    session.flush()
    model = type(row)
    statement = (
        update(model)
        .where(model.id == row.id, model.state == before.value)
        .values(state=after.value, **{k: _plain(v) for k, v in values.items()})
        .execution_options(synchronize_session=False)
    )
    result = session.execute(statement)
    if not isinstance(result, CursorResult) or result.rowcount != 1:
        raise StaleState(f"{thing} {row.id} is not {before.value!r} any more")
    session.refresh(row)
    changes.tell(session, row, {"state", *values})
    if event in _HURRIES and not isinstance(row, Job) and row.job_id is not None:
        changes.tell_hurried(session, [row.job_id])
    facts = {"from": before.value, "to": after.value, "event": event.value, **(data or {})}
    reason = getattr(row, "reason", None)
    if reason and thing != "job":
        facts["reason"] = reason
    record(session, thing, text, now=now, row=row, data=facts)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Of one row among several that change alike."""

    row: str | int
    """Its id."""
    job: str
    vm: str | None
    """Which the event names."""
    attempt: int | None
    """The number, which the event names."""
    at: datetime
    text: str


def change_all(
    session: Session,
    model: type[Job] | type[Attempt] | type[VmRow],
    steps: Sequence[Step],
    event: JobEvent | AttemptEvent | VmEvent,
    before: JobState | AttemptState | VmState,
) -> None:
    """`change` of all these rows, each in state `before`, in two statements. Objects of them that
    the session has loaded do not follow. Raises IllegalTransition; and StaleState when one of the
    rows has another state: roll back then."""
    thing, machine = _MACHINES[model]
    after = machine.after(before, event)
    statement = (
        update(model)
        .where(model.id.in_([step.row for step in steps]), model.state == before.value)
        .values(state=after.value)
        .returning(model.id)
        .execution_options(synchronize_session=False)
    )
    if len(session.scalars(statement).all()) != len({step.row for step in steps}):
        raise StaleState(f"not every {thing} of {len(steps)} is {before.value!r} any more")
    data = {"from": before.value, "to": after.value, "event": event.value}
    record_all(
        session,
        [
            {
                "at": step.at,
                "job_id": step.job,
                "vm_id": step.vm,
                "attempt": step.attempt,
                "kind": thing,
                "text": step.text,
                "data": data,
            }
            for step in steps
        ],
    )
    figured = changes.is_figured(model, {"state"})
    changes.tell_jobs(session, {step.job for step in steps}, figured=figured)
    if event in _HURRIES:
        changes.tell_hurried(session, {step.job for step in steps})


def change_jobs(
    session: Session,
    where: Sequence[ColumnElement[bool]],
    event: JobEvent,
    before: JobState,
    *,
    now: datetime,
    text: str,
    **values: object,
) -> list[str]:
    """`change` for all jobs in state `before` that these conditions hold of, in two statements; the
    ids of those that it changed. Raises IllegalTransition."""
    after = JOBS.after(before, event)
    session.flush()
    statement = (
        update(Job)
        .where(Job.state == before.value, *where)
        .values(state=after.value, **{k: _plain(v) for k, v in values.items()})
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    ids = list(session.scalars(statement))
    facts = {"from": before.value, "to": after.value, "event": event.value}
    record_jobs(session, "job", text, ids, now=now, data=facts)
    return ids


def record_jobs(
    session: Session,
    kind: str,
    text: str,
    job_ids: Sequence[str],
    *,
    now: datetime,
    data: Mapping[str, Any] | None = None,
) -> None:
    """`record` of each of these jobs, in one statement."""
    common = {"at": now, "kind": kind, "text": text, "data": dict(data or {})}
    if job_ids:
        rows = [{**common, "job_id": job_id} for job_id in job_ids]
        leases.lock_for_events(session, job_ids)
        session.execute(insert(Event), rows)
        changes.tell_jobs(session, job_ids)


def record_all(session: Session, events: Sequence[Mapping[str, Any]]) -> None:
    """Rows of the event log, in one statement."""
    leases.lock_for_events(session, [event["job_id"] for event in events])
    session.connection().execute(insert(Event), [*events])
    changes.tell_events(session, {event["job_id"] for event in events if event["job_id"]})


def record(
    session: Session,
    kind: str,
    text: str,
    *,
    now: datetime,
    row: Job | Attempt | Place | VmRow,
    attempt: int | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """One line of the event log, about a job, an attempt, a place of it, or a VM."""
    job_id: str | None
    vm_id: str | None
    match row:
        case Job():
            job_id, vm_id = row.id, None
        case Attempt():
            job_id, vm_id, attempt = row.job_id, row.leader.vm_id, row.number
        case Place():
            job_id, vm_id, attempt = row.attempt.job_id, row.vm_id, row.attempt.number
        case VmRow():
            job_id, vm_id = row.job_id, row.id
    session.add(
        Event(
            at=now,
            job_id=job_id,
            vm_id=vm_id,
            attempt=attempt,
            kind=kind,
            text=text,
            data=dict(data or {}),
        )
    )


def follow(session: Session, job: Job, *, now: datetime, text: str, waits: bool = False) -> None:
    """Bring an active job's state in line with its attempts; call it after each change of one.

    A job without one stays as it is until it is decided what follows: `waits` says that it waits.
    """
    state = JobState(job.state)
    if state not in JOB_ACTIVE:
        return
    living = _living(session, job)
    if not living and not waits:
        return
    target = job_state(living)
    if target is not state:
        change(session, job, EVENT_OF[target], now=now, text=text, reason=text)


def follow_all(session: Session, texts: Mapping[str, tuple[str, datetime]]) -> None:
    """`follow` for these jobs, each with a living attempt, for the reason and at the moment that
    are given. Objects that the session has loaded do not follow."""
    rows = session.execute(select(Job.id, Job.state).where(Job.id.in_(sorted(texts)))).all()
    living = _living_of(session, sorted(texts))
    moved: dict[tuple[JobState, JobState], list[str]] = defaultdict(list)
    for job_id, name in rows:
        state, target = JobState(name), job_state(living[job_id])
        if state in JOB_ACTIVE and living[job_id] and target is not state:
            moved[state, target].append(job_id)
    reason = update(Job).where(Job.id == bindparam("job")).values(reason=bindparam("why"))
    for (state, target), ids in sorted(moved.items()):
        steps = [
            Step(row=job, job=job, vm=None, attempt=None, at=texts[job][1], text=texts[job][0])
            for job in ids
        ]
        change_all(session, Job, steps, EVENT_OF[target], state)
        values = [{"job": job, "why": texts[job][0]} for job in ids]
        session.connection().execute(reason, values)


def _living(session: Session, job: Job) -> list[Living]:
    session.flush()
    return _living_of(session, [job.id])[job.id]


_PLACES_OF = (
    select(Attempt.job_id, Attempt.number, Attempt.state, VmRow.joined_at)
    .join(Place, Place.attempt_id == Attempt.id)
    .join(VmRow, VmRow.id == Place.vm_id)
    .where(
        Attempt.job_id.in_(bindparam("jobs", expanding=True)),
        Attempt.state != AttemptState.ENDED.value,
    )
)


def _living_of(session: Session, job_ids: Sequence[str]) -> dict[str, list[Living]]:
    """As the rows in the database are."""
    joined: dict[tuple[str, int, str], list[bool]] = defaultdict(list)
    for row in session.connection().execute(_PLACES_OF, {"jobs": job_ids}):
        joined[row.job_id, row.number, row.state].append(row.joined_at is not None)
    living: dict[str, list[Living]] = {job_id: [] for job_id in job_ids}
    for (job_id, number, state), each in joined.items():
        found = Living(number=number, state=AttemptState(state), joined=tuple(each))
        living[job_id].append(found)
    return living


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
