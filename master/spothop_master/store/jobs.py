"""Jobs: submitting one, what its user wants of it, waiting, ending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session
from typing_extensions import assert_never

from spothop.jobspec import JobSpec
from spothop.jobstorage import StorageSection
from spothop.wire import JOB_ACTIVE, AttemptState, JobState, VmState, Wanted
from spothop_master.core.facts import Match, Requirements
from spothop_master.core.states import JobEvent
from spothop_master.store import leases, sealing, transitions
from spothop_master.store.schema import Attempt, Event, Job, VmRow

_EVENT_OF_END = {
    JobState.SUCCEEDED: JobEvent.SUCCEED,
    JobState.FAILED: JobEvent.FAIL,
    JobState.CANCELLED: JobEvent.CANCEL,
    JobState.PAUSED: JobEvent.PAUSE,
}


BY_USER = "cancelled by the user"
PAUSED_BY_USER = "paused by the user"


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


def want(
    session: Session,
    job_id: str,
    wanted: Wanted,
    *,
    now: datetime,
    why: str = "",
    at_once: bool = False,
) -> Job:
    """Write down what the user wants, and for people who wants it and `why`; the supervise loop
    makes it so. `at_once`: without another save, also where a cancel that saves is under way.
    Harmless when repeated.

    Raises LookupError (no such job), JobIsOver.
    """
    job = session.get(Job, job_id, with_for_update=True, populate_existing=True)
    if job is None:
        raise LookupError(f"no job {job_id!r}")
    hurries = wanted is Wanted.CANCELLED and at_once and not job.at_once
    over = JobState(job.state) not in JOB_ACTIVE | {JobState.PAUSED}
    if job.wanted == wanted and (wanted is Wanted.CANCELLED if over else not hurries):
        return job
    if over:
        raise JobIsOver(f"job {job_id} has {job.state}; submit it again to run it once more")
    if job.wanted == Wanted.CANCELLED and not hurries:
        raise JobIsOver(f"job {job_id} is being cancelled; submit it again to run it once more")
    job.wanted, job.wanted_why = wanted.value, why
    job.at_once = job.at_once or hurries
    transitions.record(session, "wanted", _wish(wanted, why, at_once), now=now, row=job)
    session.flush()
    return job


def want_all(
    session: Session,
    job_ids: Sequence[str],
    wanted: Wanted,
    *,
    now: datetime,
    why: str = "",
    at_once: bool = False,
) -> int:
    """What `want` does, for many in few statements; of how many this is something new. What waits
    and has neither attempt nor VM is cancelled or paused at once: with thousands, the supervise
    loop would have to look at each."""
    leases.lock_all(session, job_ids)
    here = [Job.id.in_(job_ids), *_changes(wanted, at_once)]
    values = {"wanted": wanted.value, "wanted_why": why}
    if at_once and wanted is Wanted.CANCELLED:
        values["at_once"] = True  # type: ignore[assignment]
    done = _settle_idle(session, here, wanted, values, why=why, now=now)
    living = [state.value for state in JOB_ACTIVE | {JobState.PAUSED}]
    statement = (
        update(Job)
        .where(*here, Job.state.in_(living))
        .values(**values)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    asked = list(session.scalars(statement))
    transitions.record_jobs(session, "wanted", _wish(wanted, why, at_once), asked, now=now)
    return done + len(asked)


def _changes(wanted: Wanted, at_once: bool) -> list[ColumnElement[bool]]:
    """Of which jobs this wish is another one."""
    match wanted:
        case Wanted.CANCELLED:
            other = Job.wanted != Wanted.CANCELLED.value
            return [or_(other, ~Job.at_once) if at_once else other]
        case Wanted.PAUSED:
            return [Job.wanted == Wanted.RUNNING.value]
        case Wanted.RUNNING:
            return [Job.wanted == Wanted.PAUSED.value]
        case _:
            assert_never(wanted)


def _settle_idle(
    session: Session,
    here: Sequence[ColumnElement[bool]],
    wanted: Wanted,
    values: Mapping[str, object],
    *,
    why: str,
    now: datetime,
) -> int:
    """Cancel or pause those that wait and have neither attempt nor VM; how many there were."""
    if wanted is Wanted.RUNNING:
        return 0
    attempts = select(Attempt.id).where(
        Attempt.job_id == Job.id, Attempt.state != AttemptState.ENDED.value
    )
    vms = select(VmRow.id).where(VmRow.job_id == Job.id, VmRow.state != VmState.TERMINATED.value)
    cancels = wanted is Wanted.CANCELLED
    reason = why or (BY_USER if cancels else PAUSED_BY_USER)
    settled = transitions.change_jobs(
        session,
        [*here, ~attempts.exists(), ~vms.exists()],
        JobEvent.CANCEL if cancels else JobEvent.PAUSE,
        JobState.QUEUED,
        now=now,
        text=f"{wanted}: {reason}",
        reason=reason,
        insurance=None,
        not_before=None,
        **{"ended_at" if cancels else "paused_at": now},
        **values,
    )
    return len(settled)


def is_new(wanted: Wanted, *, at_once: bool) -> list[ColumnElement[bool]]:
    """Of jobs that have not ended: those of which this is another wish than the one before."""
    return [Job.ended_at.is_(None), *_changes(wanted, at_once)]


def _wish(wanted: Wanted, why: str, at_once: bool) -> str:
    text = f"the user wants it {wanted}"
    if at_once and wanted is Wanted.CANCELLED:
        text += ", without another save"
    return f"{text}: {why}" if why else text


def finish(session: Session, job: Job, state: JobState, *, reason: str, now: datetime) -> None:
    """`state` is a terminal one, or PAUSED. Raises IllegalTransition."""
    pauses = state is JobState.PAUSED
    transitions.change(
        session,
        job,
        _EVENT_OF_END[state],
        now=now,
        text=f"{state.value}: {reason}" if reason else state.value,
        reason=reason,
        ended_at=None if pauses else now,
        paused_at=now if pauses else None,
        insurance=None,
        not_before=None,
    )


def resume(session: Session, job: Job, *, reason: str, now: datetime) -> None:
    """From a pause. Raises IllegalTransition."""
    paused_s = (now - job.paused_at).total_seconds() if job.paused_at is not None else 0.0
    transitions.change(
        session,
        job,
        JobEvent.RESUME,
        now=now,
        text=reason,
        reason=reason,
        paused_at=None,
        paused_s=job.paused_s + max(0.0, paused_s),
    )


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
        away_s=spec.master_away.total_seconds() if spec.master_away else None,
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
