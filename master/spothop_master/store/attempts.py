"""Attempts: making, moving to another VM, fencing, stopping, ending. Budgets are counted here."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from spothop.wire import USER_FAILURES, AttemptState, EndReason
from spothop_master.core.states import VMS, AttemptEvent, VmEvent
from spothop_master.store import observations, transitions
from spothop_master.store.schema import Attempt, Job, VmRow

_RUNNABLE = {state.value for state in VMS.sources(VmEvent.RUN)}


def get(session: Session, job_id: str, number: int) -> Attempt | None:
    return session.scalar(select(Attempt).where(Attempt.job_id == job_id, Attempt.number == number))


def place(
    session: Session, job: Job, vm: VmRow, number: int, *, reason: str, now: datetime
) -> None:
    """Attempt `number` on this VM: a new one, or one whose launch was refused before."""
    attempt = get(session, job.id, number)
    if attempt is None:
        attempt = Attempt(
            job_id=job.id,
            number=number,
            vm_id=vm.id,
            state=AttemptState.PREPARING.value,
            created_at=now,
        )
        session.add(attempt)
        session.flush()
        text = f"attempt {number}: {reason}"
        transitions.record(session, "attempt", text, now=now, row=attempt, data={"to": "preparing"})
    else:
        attempt.vm_id = vm.id
        session.flush()
    job.not_before = None
    transitions.follow(session, job, now=now, text=reason)


def allow_fence(session: Session, attempt: Attempt, *, reason: str, now: datetime) -> None:
    attempt.may_fence = True
    text = f"attempt {attempt.number} may fence: {reason}"
    transitions.record(session, "may_fence", text, now=now, row=attempt)


def stop(session: Session, attempt: Attempt, why: EndReason, *, reason: str, now: datetime) -> None:
    """The agent is told at its next sync."""
    attempt.stop_wanted, attempt.stop_at = why.value, now
    transitions.record(
        session, "stop", f"stopping attempt {attempt.number}: {reason}", now=now, row=attempt
    )


def end(
    session: Session, job: Job, attempt: Attempt, why: EndReason, *, detail: str, now: datetime
) -> None:
    """Raises IllegalTransition when it has ended already."""
    transitions.change(
        session,
        attempt,
        AttemptEvent.END,
        now=now,
        text=f"attempt {attempt.number} ended ({why.value}): {detail}",
        reason=why,
        detail=detail,
        ended_at=now,
        fenced_in=False,
    )
    if why in USER_FAILURES:
        job.user_failures += 1
    elif why is EndReason.INFRASTRUCTURE:
        job.infrastructure_failures += 1
    vm = session.get_one(VmRow, attempt.vm_id)
    if attempt.step_s is not None:
        observations.add(session, vm, "step", attempt.step_s, attempt=attempt.number, now=now)
    if why is EndReason.PREEMPTED and attempt.first_step_at is not None:
        observations.emergency(session, vm, attempt, now=now)
    transitions.follow(session, job, now=now, text=detail)


def notice(session: Session, job: Job, vm: VmRow, *, text: str, now: datetime) -> None:
    """The VM's notice and deadline are written; bring VM, attempt and job to draining."""
    if vm.state in {state.value for state in VMS.sources(VmEvent.NOTICE)}:
        transitions.change(session, vm, VmEvent.NOTICE, now=now, text=text)
    attempt = session.scalar(
        select(Attempt).where(Attempt.vm_id == vm.id, Attempt.state != AttemptState.ENDED.value)
    )
    if attempt is None:
        return
    attempt.deadline_at = vm.deadline_at
    if attempt.notice_at is None:
        attempt.notice_at = vm.notice_at
        attempt.step_at_notice = attempt.last_step
    if attempt.state != AttemptState.DRAINING.value:
        transitions.change(session, attempt, AttemptEvent.NOTICE, now=now, text=text)
    transitions.follow(session, job, now=now, text=text)


def first_steps(session: Session, job: Job, vm: VmRow, attempt: Attempt, *, now: datetime) -> None:
    """It trains; harmless when that is known."""
    if attempt.state != AttemptState.PREPARING.value and vm.state not in _RUNNABLE:
        return
    text = f"attempt {attempt.number} trains, from step {attempt.restored_step or 0} on"
    if vm.state in _RUNNABLE:
        transitions.change(session, vm, VmEvent.RUN, now=now, text=f"training in {vm.zone}")
    if attempt.state == AttemptState.PREPARING.value:
        transitions.change(session, attempt, AttemptEvent.RUN, now=now, text=text)
    transitions.follow(session, job, now=now, text=text)


def fenced_in(session: Session, attempt: Attempt, *, now: datetime) -> bool:
    """Its fence is in the chain (I2). False when a newer attempt's is: then nothing changes."""
    newer = select(Attempt.id).where(
        Attempt.job_id == attempt.job_id,
        Attempt.number > attempt.number,
        Attempt.fenced_at.is_not(None),
    )
    if session.scalar(newer.limit(1)) is not None:
        return False
    session.execute(
        update(Attempt)
        .where(Attempt.job_id == attempt.job_id, Attempt.number < attempt.number)
        .where(Attempt.fenced_in)
        .values(fenced_in=False)
    )
    attempt.fenced_at = attempt.fenced_at or now
    attempt.fenced_in = attempt.may_fence = True
    session.flush()
    return True
