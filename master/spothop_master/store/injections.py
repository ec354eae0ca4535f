"""Injections: asking for one, finding the next VM to preempt, writing down what became of it.

What it must guarantee: preemption k of a plan comes after its interval and is written down once,
although several masters look at the plan, and any of them may be killed between the call to the
cloud and its record.

1. `done` is the place in the plan: the number of preemptions that are written down. It moves by
   one, with the record, and only from the k that the caller claimed. A second record of the same k
   changes nothing.
2. A claim is a guarded UPDATE with an end (`CLAIM`), not a lock: one master wins it, and one that
   dies with it holds up the next try for that long and no longer.
3. A call without a record is made again: while the VM trains, to the same VM, which is harmless,
   because the cloud answers as it did the first time. Where its notice is known by then, the next
   VM is taken: a master killed at that place may cost one preemption more than the plan counts,
   never one fewer.
4. Intervals are counted from when the VM runs, as the cloud says, or from the injection where that
   is later: what an allocation takes is no part of a life.

What does not work: a thread that sleeps through the interval (a restart forgets it), a list of
moments made at the start (every allocation would eat into the next life), and a random interval
drawn at the call (a repeated call would draw another one; `Plan` answers from seed and k).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import CursorResult, or_, select, update
from sqlalchemy.orm import Session

from spothop.durations import duration
from spothop.injections import plan_text
from spothop.wire import JOB_ACTIVE, AttemptState, InjectionView, InjectRequest
from spothop_master.core.injection import Plan
from spothop_master.store import transitions
from spothop_master.store.schema import Attempt, Injection, Job, Place, VmRow

CLAIM = timedelta(seconds=10)
"""How long a call to the cloud may take before it is made again; also the wait after a refusal."""


class Refused(Exception):
    """No injection can be made now; the message says why, and the way out after a semicolon."""


class BadPlan(ValueError):
    """The request is neither of the two kinds."""


@dataclass(frozen=True, kw_only=True)
class Due:
    """One preemption whose time has come; claimed."""

    injection: int
    k: int
    job: str
    vm: str
    cloud: str
    cloud_id: str
    notice: bool
    after_s: float
    """The interval that is over."""


def start(
    session: Session, job: Job, vm: VmRow | None, request: InjectRequest, *, now: datetime
) -> Injection:
    """Raises Refused, BadPlan. `vm`: only this one, instead of whichever trains."""
    plan_of(request)
    if job.state not in {state.value for state in JOB_ACTIVE}:
        raise Refused(f"job {job.id} is {job.state}; inject into one that runs")
    if under_way(session, job.id) is not None:
        raise Refused(
            f"job {job.id} has an injection under way; end it first: spothop inject {job.id} --stop"
        )
    if vm is not None and vm.ended_at is not None:
        raise Refused(f"VM {vm.id} is over; `spothop vms` shows those that run")
    row = Injection(
        job_id=job.id,
        vm_id=vm.id if vm is not None else None,
        plan=request.model_dump(mode="json"),
        started_at=now,
        done=0,
        reason="",
    )
    session.add(row)
    session.flush()
    transitions.record(
        session, "injection", f"injecting preemptions: {plan_text(view(row))}", now=now, row=job
    )
    return row


def plan_of(request: InjectRequest) -> Plan:
    """Raises BadPlan."""
    try:
        return Plan(
            mttp_s=request.mttp_s,
            lives_s=request.lives_s,
            seed=request.seed,
            no_notice=request.no_notice,
        )
    except ValueError as error:
        raise BadPlan(str(error)) from None


def under_way(session: Session, job_id: str) -> Injection | None:
    return session.scalar(
        select(Injection).where(Injection.job_id == job_id, Injection.ended_at.is_(None))
    )


def newest(session: Session, job_id: str) -> Injection | None:
    return session.scalar(
        select(Injection).where(Injection.job_id == job_id).order_by(Injection.id.desc()).limit(1)
    )


def stop(session: Session, row: Injection, *, reason: str, now: datetime) -> None:
    row.ended_at, row.reason = now, reason
    job = session.get_one(Job, row.job_id)
    text = f"no more injected preemptions after {row.done}: {reason}"
    transitions.record(session, "injection", text, now=now, row=job)
    session.flush()


def any_under_way(session: Session) -> bool:
    return (
        session.scalar(select(Injection.id).where(Injection.ended_at.is_(None)).limit(1))
        is not None
    )


def claim_due(session: Session, *, now: datetime) -> list[Due]:
    """Every preemption whose time has come, claimed so that no other master makes it, too.

    Ends the injections that have nothing left to do.
    """
    due = []
    rows = list(
        session.scalars(
            select(Injection).where(Injection.ended_at.is_(None)).order_by(Injection.id)
        )
    )
    for row in rows:
        job = session.get_one(Job, row.job_id)
        interval_s = _plan(row).interval_s(row.done)
        over = _over(session, row, job, interval_s)
        if over is not None:
            stop(session, row, reason=over, now=now)
            continue
        victim = _victim(session, row)
        if victim is None or victim.running_at is None or victim.cloud_id is None:
            continue
        assert interval_s is not None, "an injection without one is over"
        from_ = max(victim.running_at, row.started_at)
        if now < from_ + timedelta(seconds=min(interval_s, _LONGEST_S)):
            continue
        if _claim(session, row, now):
            due.append(
                Due(
                    injection=row.id,
                    k=row.done,
                    job=job.id,
                    vm=victim.id,
                    cloud=victim.cloud,
                    cloud_id=victim.cloud_id,
                    notice=_plan(row).noticed(row.done),
                    after_s=interval_s,
                )
            )
    return due


def happened(session: Session, due: Due, *, now: datetime) -> None:
    """The cloud has taken the VM back, or will at the end of its notice."""
    row = session.get_one(Injection, due.injection)
    if row.done != due.k:
        return  # another master was quicker
    row.done, row.last_vm_id, row.claimed_until = due.k + 1, due.vm, None
    how = "with its notice" if due.notice else "without notice"
    text = f"injected preemption {due.k + 1} of VM {due.vm} {how}, after {duration(due.after_s)}"
    data = {"k": due.k, "interval_s": due.after_s, "notice": due.notice}
    transitions.record(
        session, "injected", text, now=now, row=session.get_one(VmRow, due.vm), data=data
    )


def failed(session: Session, due: Due, error: str, *, now: datetime) -> None:
    """The claim stands: it is tried again when that is over."""
    text = f"injecting a preemption of VM {due.vm}: {error}; again in {CLAIM.total_seconds():.0f} s"
    transitions.record(session, "injection", text, now=now, row=session.get_one(VmRow, due.vm))


def view(row: Injection) -> InjectionView:
    request = InjectRequest.model_validate(row.plan)
    return InjectionView(
        job=row.job_id,
        vm=row.vm_id,
        mttp_s=request.mttp_s,
        lives=len(request.lives_s),
        seed=request.seed,
        no_notice=request.no_notice,
        started_at=row.started_at,
        done=row.done,
        ended_at=row.ended_at,
        reason=row.reason,
    )


_LONGEST_S = 1e9
"""Thirty years; keeps dates within what the calendar can say."""


def _plan(row: Injection) -> Plan:
    return plan_of(InjectRequest.model_validate(row.plan))


def _over(session: Session, row: Injection, job: Job, interval_s: float | None) -> str | None:
    if job.state not in {state.value for state in JOB_ACTIVE}:
        return f"the job is {job.state}"
    if interval_s is None:
        return "the trace is over"
    if row.vm_id is None:
        return None
    vm = session.get_one(VmRow, row.vm_id)
    return "the VM is over" if vm.ended_at is not None or row.last_vm_id == vm.id else None


def _victim(session: Session, row: Injection) -> VmRow | None:
    """The VM that trains, unless it has its notice already."""
    query = (
        select(VmRow)
        .join(Place, Place.vm_id == VmRow.id)
        .join(Attempt, Attempt.id == Place.attempt_id)
        .where(
            Attempt.job_id == row.job_id,
            Attempt.state == AttemptState.RUNNING.value,
            Attempt.fenced_in,
            VmRow.notice_at.is_(None),
            VmRow.ended_at.is_(None),
            VmRow.spot,
        )
        .order_by(Attempt.number.desc())
        .limit(1)
    )
    if row.vm_id is not None:
        query = query.where(VmRow.id == row.vm_id)
    if row.last_vm_id is not None:
        query = query.where(VmRow.id != row.last_vm_id)
    return session.scalar(query)


def _claim(session: Session, row: Injection, now: datetime) -> bool:
    free = or_(Injection.claimed_until.is_(None), Injection.claimed_until <= now)
    result = session.execute(
        update(Injection)
        .where(Injection.id == row.id, Injection.done == row.done, free)
        .values(claimed_until=now + CLAIM)
        .execution_options(synchronize_session=False)
    )
    session.refresh(row)
    return isinstance(result, CursorResult) and result.rowcount == 1
