"""Jobs: submitting one, what its user wants of it, waiting, ending."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from spothop.jobspec import JobSpec, StorageSection
from spothop.wire import JOB_ACTIVE, AttemptState, JobState, VmState, Wanted
from spothop_master.core.facts import Match, Requirements
from spothop_master.core.states import JobEvent
from spothop_master.store import sealing, transitions
from spothop_master.store.schema import Attempt, Event, Job, VmRow

_EVENT_OF_END = {
    JobState.SUCCEEDED: JobEvent.SUCCEED,
    JobState.FAILED: JobEvent.FAIL,
    JobState.CANCELLED: JobEvent.CANCEL,
    JobState.PAUSED: JobEvent.PAUSE,
}


BY_USER = "cancelled by the user"


class JobIsOver(Exception):
    """The job has ended; the message says how and what to do instead."""


def submit(
    session: Session,
    *,
    spec: JobSpec,
    bundle: str,
    token: str,
    owner_id: int,
    job_id: str,
    now: datetime,
    storage_url: str = "",
) -> Job:
    """A new job, or the one that this token made before.

    `storage_url` is used when the spec names none, and written down with the job: its chain must
    not move when the master's settings do. Raises ValueError when neither names one.
    """
    known = made_by(session, token)
    if known is not None:
        return known
    shown, sealed = sealing.seal(session, job_id, _with_storage(spec, storage_url).as_mapping())
    job = Job(
        id=job_id,
        name=spec.name,
        owner_id=owner_id,
        submit_token=token,
        spec=shown,
        sealed=sealed,
        bundle=bundle,
        state=JobState.QUEUED.value,
        wanted=Wanted.RUNNING.value,
        submitted_at=now,
    )
    session.add(job)
    session.flush()
    transitions.record(session, "submitted", f"{spec.name} submitted", now=now, row=job)
    return job


def made_by(session: Session, token: str) -> Job | None:
    """The job of this submit token."""
    return session.scalar(select(Job).where(Job.submit_token == token))


def want(session: Session, job_id: str, wanted: Wanted, *, now: datetime) -> Job:
    """Write down what the user wants; the supervise loop makes it so. Harmless when repeated.

    Raises LookupError (no such job), JobIsOver.
    """
    job = session.get(Job, job_id)
    if job is None:
        raise LookupError(f"no job {job_id!r}")
    if job.wanted == wanted:
        return job
    if JobState(job.state) not in JOB_ACTIVE | {JobState.PAUSED}:
        raise JobIsOver(f"job {job_id} has {job.state}; submit it again to run it once more")
    if job.wanted == Wanted.CANCELLED:
        raise JobIsOver(f"job {job_id} is being cancelled; submit it again to run it once more")
    job.wanted = wanted.value
    transitions.record(session, "wanted", f"the user wants it {wanted}", now=now, row=job)
    session.flush()
    return job


def cancel_all(session: Session, job_ids: Sequence[str], *, now: datetime) -> int:
    """What `want` with CANCELLED does, for many in few statements; how many were not being
    cancelled before. What waits and has neither attempt nor VM is over at once: with thousands,
    the supervise loop would have to look at each."""
    here = [Job.id.in_(job_ids), Job.wanted != Wanted.CANCELLED.value]
    attempts = select(Attempt.id).where(
        Attempt.job_id == Job.id, Attempt.state != AttemptState.ENDED.value
    )
    vms = select(VmRow.id).where(VmRow.job_id == Job.id, VmRow.state != VmState.TERMINATED.value)
    over = transitions.change_jobs(
        session,
        [*here, ~attempts.exists(), ~vms.exists()],
        JobEvent.CANCEL,
        JobState.QUEUED,
        now=now,
        text=f"cancelled: {BY_USER}",
        wanted=Wanted.CANCELLED,
        reason=BY_USER,
        ended_at=now,
        insurance=None,
        not_before=None,
    )
    living = [state.value for state in JOB_ACTIVE | {JobState.PAUSED}]
    statement = (
        update(Job)
        .where(*here, Job.state.in_(living))
        .values(wanted=Wanted.CANCELLED.value)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    asked = list(session.scalars(statement))
    text = f"the user wants it {Wanted.CANCELLED}"
    transitions.record_jobs(session, "wanted", text, asked, now=now)
    return len(over) + len(asked)


def finish(session: Session, job: Job, state: JobState, *, reason: str, now: datetime) -> None:
    """`state` is a terminal one, or PAUSED. Raises IllegalTransition."""
    ended_at = None if state is JobState.PAUSED else now
    transitions.change(
        session,
        job,
        _EVENT_OF_END[state],
        now=now,
        text=f"{state.value}: {reason}" if reason else state.value,
        reason=reason,
        ended_at=ended_at,
        insurance=None,
        not_before=None,
    )


def resume(session: Session, job: Job, *, reason: str, now: datetime) -> None:
    transitions.change(session, job, JobEvent.RESUME, now=now, text=reason, reason=reason)


def wait(
    session: Session, job: Job, *, until: datetime, reason: str, why: str = "", now: datetime
) -> None:
    """No launch before `until`. A wait for the same `why` as the last one goes on without
    another event, until a VM is allocated: an account may be closed for days."""
    job.not_before = until
    job.reason = reason
    if not why or _waits_for(session, job.id) != why:
        data = {"until": until.isoformat(), "why": why}
        transitions.record(session, "wait", reason, now=now, row=job, data=data)
    transitions.follow(session, job, now=now, text=reason, waits=True)


def _waits_for(session: Session, job_id: str) -> str | None:
    """What the newest wait was for, if no VM was allocated since."""
    session.flush()
    newest = session.scalar(
        select(Event)
        .where(Event.job_id == job_id, Event.kind.in_(("wait", "allocated")))
        .order_by(Event.id.desc())
        .limit(1)
    )
    return newest.data.get("why") if newest is not None else None


def spec_of(job: Job) -> JobSpec:
    """With the mask in place of each secret."""
    return JobSpec.of_accepted(job.spec)


def whole_spec_of(session: Session, job: Job) -> JobSpec:
    """With its secrets: for the job's agent alone. Raises `sealing.Unreadable`."""
    return JobSpec.of_accepted(sealing.whole(session, job))


def requirements_of(spec: JobSpec) -> Requirements:
    """What the job file asks of the master, as facts for decisions."""
    asked = spec.resources
    return Requirements(
        any_of=tuple(
            Match(
                cloud=each.cloud,
                region=each.region,
                zone=each.zone,
                vm=each.vm,
                needs=each.needs(),
            )
            for each in asked.choices()
        ),
        spot=asked.spot,
        max_price=asked.max_price,
        user_retries=spec.retries.user,
        infrastructure_retries=spec.retries.infrastructure,
        hang_retries=spec.retries.hang,
        max_duration_s=spec.max_duration.total_seconds() if spec.max_duration else None,
        nodes=spec.nodes,
        image=spec.image,
        disk_gb=asked.disk,
    )


def _with_storage(spec: JobSpec, storage_url: str) -> JobSpec:
    if spec.checkpoint.storage:
        return spec
    if not storage_url:
        raise ValueError(f"job {spec.name!r} has no storage: set checkpoint.storage")
    checkpoint = spec.checkpoint.model_copy(update={"storage": StorageSection(url=storage_url)})
    return spec.model_copy(update={"checkpoint": checkpoint})
