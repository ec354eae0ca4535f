"""Alarms in the database: the facts that they are judged by, and what begins and ends.

Reads cost a fixed number of queries for up to `IN_ONE_QUERY` jobs, whatever their histories. What
changes is written in one transaction: the alarm's row, the event, the mark on the job, and what its
webhooks are to be told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session, aliased

from spothop.wire import Alarm, AttemptState, EndReason, JobState, Unprotected, VmState
from spothop_master.core import alarms as rules
from spothop_master.store import attempts, transitions
from spothop_master.store.fact_rows import ALIVE
from spothop_master.store.schema import (
    AlarmRow,
    Attempt,
    Checkpoint,
    Delivery,
    Event,
    Job,
    Refusal,
    VmRow,
)

IN_ONE_QUERY = 500
"""Jobs."""


@dataclass(frozen=True, kw_only=True)
class Retries:
    """What the job file allows."""

    user: int
    infrastructure: int
    hang: int


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """What was read of several jobs."""

    attempts: Mapping[str, Sequence[Attempt]]
    vms: Mapping[str, Sequence[VmRow]]
    commits: Mapping[str, datetime]
    refusals: Mapping[str, Any]
    asked: Mapping[str, datetime]
    """Since when a VM is to end."""


def facts_of(
    session: Session,
    job_ids: Sequence[str],
    retries: Callable[[str], Retries],
    *,
    now: datetime,
) -> dict[str, rules.Facts]:
    """Of those of these jobs that there are."""
    found = session.scalars(select(Job).where(Job.id.in_(job_ids)))
    rows = _read(session, job_ids)
    return {job.id: _facts(session, job, rows, retries(job.id), now) for job in found}


def _read(session: Session, job_ids: Sequence[str]) -> _Rows:
    older = aliased(Attempt)
    newest = select(func.max(older.number)).where(older.job_id == Attempt.job_id).scalar_subquery()
    of_jobs: defaultdict[str, list[Attempt]] = defaultdict(list)
    query = select(Attempt).where(Attempt.job_id.in_(job_ids), Attempt.number > newest - 2)
    for attempt in session.scalars(query.order_by(Attempt.number)):
        of_jobs[attempt.job_id].append(attempt)
    vms: defaultdict[str, list[VmRow]] = defaultdict(list)
    for vm in session.scalars(
        select(VmRow).where(VmRow.job_id.in_(job_ids), VmRow.state.in_(ALIVE))
    ):
        vms[vm.job_id or ""].append(vm)
    other = aliased(Checkpoint)
    last = select(func.max(other.n)).where(other.job_id == Checkpoint.job_id).scalar_subquery()
    commits = session.execute(
        select(Checkpoint.job_id, Checkpoint.committed_at).where(
            Checkpoint.job_id.in_(job_ids), Checkpoint.n == last
        )
    )
    refusals = session.execute(
        select(Refusal.job_id, Refusal.last_at, Refusal.error, Refusal.code, Refusal.detail)
        .where(Refusal.job_id.in_(job_ids))
        .order_by(Refusal.last_at)
    )
    leaving = [
        vm.id for each in vms.values() for vm in each if vm.state == VmState.TERMINATING.value
    ]
    asked = session.execute(
        select(Event.vm_id, func.max(Event.at))
        .where(Event.vm_id.in_(leaving), Event.kind == "vm")
        .group_by(Event.vm_id)
    )
    return _Rows(
        attempts=of_jobs,
        vms=vms,
        commits={row.job_id: row.committed_at for row in commits},
        refusals={row.job_id: row for row in refusals},
        asked={row[0]: row[1] for row in asked if row[0]},
    )


def _facts(session: Session, job: Job, rows: _Rows, allowed: Retries, now: datetime) -> rules.Facts:
    mine, vms = rows.attempts.get(job.id, ()), rows.vms.get(job.id, ())
    alive = [each for each in mine if each.state != AttemptState.ENDED.value]
    ended = [each for each in mine if each.state == AttemptState.ENDED.value]
    newest, last = alive[-1] if alive else None, ended[-1] if ended else None
    trains = next((each for each in reversed(alive) if each.first_step_at is not None), None)
    places = trains.places if trains is not None else []
    lacks = next((place.unprotected for place in places if place.unprotected), None)
    idle = next((place.idle for place in places if place.idle), None)
    refusal = rows.refusals.get(job.id)
    return rules.Facts(
        now=now,
        state=JobState(job.state),
        trains_since=trains.first_step_at if trains is not None else None,
        committed_at=rows.commits.get(job.id),
        interval_s=job.insurance.get("tau_s") if job.insurance else None,
        unprotected=Unprotected(lacks["cause"]) if lacks else None,
        unprotected_why=lacks["reason"] if lacks else "",
        ended_as=EndReason(last.reason) if last is not None and last.reason else None,
        ended_at=last.ended_at if last is not None else None,
        noticed_at=last.notice_at if last is not None else None,
        had_trained=last is not None and last.first_step_at is not None,
        waits_since=_waits_since(job, newest, last, vms),
        refused_at=refusal.last_at if refusal is not None else None,
        refused_why=_why(refusal) if refusal is not None else "",
        unconfirmed=_unconfirmed(vms, rows.asked),
        budgets=_budgets(session, job, last, allowed),
        idle_since=datetime.fromisoformat(idle["since"]) if idle else None,
        idle_why=idle["reason"] if idle else "",
    )


def _waits_since(
    job: Job, newest: Attempt | None, last: Attempt | None, vms: Sequence[VmRow]
) -> datetime | None:
    """Since its submit, its pause, or the end of its last attempt; None while one has a VM."""
    up = (VmState.BOOTING.value, VmState.READY.value, VmState.RUNNING.value, VmState.DRAINING.value)
    if any(vm.state in up for vm in vms):
        return None
    resumed = [job.not_before] if newest is None and last is None and job.paused_s else []
    since = [last.ended_at if last is not None else None, *resumed]
    return max([each for each in since if each is not None], default=job.submitted_at)


def _why(refusal: Row[Any]) -> str:
    code = f" ({refusal.code})" if refusal.code else ""
    return f"{refusal.error}{code}: {refusal.detail}" if refusal.detail else refusal.error + code


def _unconfirmed(vms: Sequence[VmRow], asked: Mapping[str, datetime]) -> dict[str, datetime]:
    found = {vm.id: vm.requested_at for vm in vms if vm.state == VmState.REQUESTED.value}
    return found | {vm.id: asked[vm.id] for vm in vms if vm.id in asked}


def _budgets(
    session: Session, job: Job, last: Attempt | None, allowed: Retries
) -> tuple[rules.Budget, ...]:
    hung = last is not None and last.reason == EndReason.HANG.value
    hangs = attempts.hangs(session, job.id) if hung else 0
    return (
        rules.Budget(key="user", used=job.user_failures, allowed=allowed.user),
        rules.Budget(
            key="infrastructure", used=job.infrastructure_failures, allowed=allowed.infrastructure
        ),
        rules.Budget(key="hang", used=hangs, allowed=allowed.hang),
    )


def lasting(session: Session) -> dict[str, dict[Alarm, AlarmRow]]:
    """Those that have begun and are not over, by job."""
    found: dict[str, dict[Alarm, AlarmRow]] = defaultdict(dict)
    for row in session.scalars(select(AlarmRow).where(AlarmRow.ended_at.is_(None))):
        found[row.job_id][Alarm(row.kind)] = row
    return found


def counts(session: Session) -> dict[Alarm, int]:
    """How many last, of each kind; 0 where there is none. For metrics."""
    query = select(AlarmRow.kind, func.count()).where(AlarmRow.ended_at.is_(None))
    found = {Alarm(kind): count for kind, count in session.execute(query.group_by(AlarmRow.kind))}
    return {kind: found.get(kind, 0) for kind in Alarm}


def change(
    session: Session,
    job: Job,
    now_on: Mapping[Alarm, str],
    *,
    targets: Sequence[str],
    new_id: Callable[[], str],
    now: datetime,
) -> None:
    """Write which alarms of a job begin and which are over; `targets` are the webhooks that hear of
    it."""
    query = select(AlarmRow).where(AlarmRow.job_id == job.id, AlarmRow.ended_at.is_(None))
    before = {Alarm(row.kind): row for row in session.scalars(query)}
    told: list[tuple[AlarmRow, bool]] = []
    for kind, why in now_on.items():
        if kind not in before:
            row = AlarmRow(job_id=job.id, kind=kind.value, why=why, began_at=now)
            session.add(row)
            before[kind] = row
            data = {"alarm": kind.value, "over": False, "level": "warning"}
            text = f"alarm {kind}: {why}"
            transitions.record(session, "alarm", text, now=now, row=job, data=data)
            told.append((row, False))
    for kind, row in before.items():
        if kind not in now_on:
            row.ended_at = now
            data = {"alarm": kind.value, "over": True}
            text = f"alarm {kind} is over"
            transitions.record(session, "alarm", text, now=now, row=job, data=data)
            told.append((row, True))
    session.flush()
    for row, over in told:
        for target in targets:
            session.add(
                Delivery(
                    id=new_id(), alarm_id=row.id, over=over, target=target, at=now, next_at=now
                )
            )
    on = [row for row in before.values() if row.ended_at is None]
    job.alarms = {
        row.kind: {"reason": row.why, "since": row.began_at.isoformat()} for row in on
    } or None
