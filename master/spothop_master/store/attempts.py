"""Attempts: making, moving to another VM, fencing, stopping, ending. Budgets are counted here."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from spothop.wire import USER_FAILURES, VM_LEAVING, AttemptState, EndReason
from spothop_master.core.states import VMS, AttemptEvent, VmEvent
from spothop_master.store import observations, transitions, vms
from spothop_master.store.schema import Attempt, Checkpoint, Job, Place, VmRow

_RUNNABLE = {state.value for state in VMS.sources(VmEvent.RUN)}


def get(session: Session, job_id: str, number: int) -> Attempt | None:
    return session.scalar(select(Attempt).where(Attempt.job_id == job_id, Attempt.number == number))


def place_of(session: Session, vm_id: str, number: int) -> Place | None:
    """The place that the VM has, or had, in its job's attempt of this number."""
    return session.scalar(
        select(Place)
        .join(Attempt, Attempt.id == Place.attempt_id)
        .where(Place.vm_id == vm_id, Attempt.number == number)
    )


def living_place(session: Session, vm_id: str) -> Place | None:
    """The VM's place in an attempt that has not ended; it has one at most."""
    return session.scalar(select(Place).where(Place.vm_id == vm_id, Place.living))


def place(
    session: Session, job: Job, vm: VmRow, number: int, node: int, *, reason: str, now: datetime
) -> None:
    """This VM fills this node of attempt `number`, which may be new; a VM whose launch was refused
    makes room for it."""
    attempt = get(session, job.id, number)
    if attempt is None:
        attempt = Attempt(
            job_id=job.id, number=number, state=AttemptState.PREPARING.value, created_at=now
        )
        attempt.places.append(Place(node=node, vm_id=vm.id))
        session.add(attempt)
        session.flush()
        text = f"attempt {number}: {reason}"
        transitions.record(session, "attempt", text, now=now, row=attempt, data={"to": "preparing"})
    else:
        known = next((place for place in attempt.places if place.node == node), None)
        if known is None:
            attempt.places.append(Place(node=node, vm_id=vm.id))
        else:
            known.vm_id = vm.id
            vms.forget_refused(session, job.id)
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
    if why in USER_FAILURES and why is not EndReason.HANG:  # of those the attempts are counted
        job.user_failures += 1
    elif why is EndReason.INFRASTRUCTURE:
        job.infrastructure_failures += 1
    for each in attempt.places:
        each.living = False
    _observe_end(session, attempt, why, now)
    transitions.follow(session, job, now=now, text=detail)


def hangs(session: Session, job_id: str) -> int:
    """Attempts that hung, in a row: since the newest checkpoint."""
    committed = select(Checkpoint.committed_at).where(Checkpoint.job_id == job_id)
    since = session.scalar(committed.order_by(Checkpoint.n.desc()).limit(1))
    hung = select(func.count()).where(
        Attempt.job_id == job_id, Attempt.reason == EndReason.HANG.value
    )
    return session.scalar(hung if since is None else hung.where(Attempt.ended_at >= since)) or 0


def ever_prepared(session: Session, job_id: str) -> bool:
    """Some place of the job was."""
    return _ever(session, job_id, Place.prepared_at.is_not(None))


def ever_trained(session: Session, job_id: str) -> bool:
    """Some place of the job made a step."""
    return _ever(session, job_id, Place.first_step_at.is_not(None))


def _ever(session: Session, job_id: str, what: ColumnElement[bool]) -> bool:
    query = select(Place.id).join(Attempt).where(Attempt.job_id == job_id, what)
    return session.scalar(query.limit(1)) is not None


def _observe_end(session: Session, attempt: Attempt, why: EndReason, now: datetime) -> None:
    """The step time once, because a gang steps as one; of each VM that was taken, whether the
    emergency save was in time."""
    if attempt.step_s is not None:
        vm = session.get_one(VmRow, attempt.leader.vm_id)
        observations.add(session, vm, "step", attempt.step_s, attempt=attempt.number, now=now)
    if why is not EndReason.PREEMPTED or attempt.first_step_at is None:
        return
    for each in attempt.places:
        vm = session.get_one(VmRow, each.vm_id)
        if each.notice_at is not None or vm.state in VM_LEAVING:
            observations.emergency(session, vm, each, now=now)


def notice(session: Session, job: Job, vm: VmRow, *, text: str, now: datetime) -> None:
    """The VM's notice and deadline are written; bring VM, attempt and job to draining."""
    if vm.state in {state.value for state in VMS.sources(VmEvent.NOTICE)}:
        transitions.change(session, vm, VmEvent.NOTICE, now=now, text=text)
    place = living_place(session, vm.id)
    if place is None:
        return
    attempt = place.attempt
    place.deadline_at = vm.deadline_at
    if place.notice_at is None:
        place.notice_at = vm.notice_at
        place.step_at_notice = place.last_step
    if attempt.state != AttemptState.DRAINING.value:
        transitions.change(session, attempt, AttemptEvent.NOTICE, now=now, text=text)
    transitions.follow(session, job, now=now, text=text)


def first_steps(session: Session, job: Job, vm: VmRow, attempt: Attempt, *, now: datetime) -> None:
    """The VM trains, and the attempt when all of its VMs do; harmless when that is known."""
    if attempt.state != AttemptState.PREPARING.value and vm.state not in _RUNNABLE:
        return
    text = f"attempt {attempt.number} trains, from step {attempt.restored_step or 0} on"
    if vm.state in _RUNNABLE:
        transitions.change(session, vm, VmEvent.RUN, now=now, text=f"training in {vm.zone}")
    if attempt.state == AttemptState.PREPARING.value and attempt.first_step_at is not None:
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
