"""What users see, read from the tables: a fixed number of queries however many jobs there are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from spothop.wire import (
    JOB_ENDED,
    AttemptState,
    AttemptView,
    CheckpointView,
    Dialect,
    EndReason,
    EventView,
    Insurance,
    JobDetail,
    JobState,
    JobView,
    Pool,
    SaveKind,
    StorageSpec,
    VmReason,
    VmState,
    VmView,
    Wanted,
)
from spothop_master.store import injections
from spothop_master.store.figures import cost, current_attempt, newest_step, progress
from spothop_master.store.schema import Attempt, Checkpoint, Event, Job, Metric, User, VmRow


class NoSuchJob(LookupError):
    """No job of this id or name that the asker may see."""


class AmbiguousName(LookupError):
    """Several jobs have this name."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the rows of one page of jobs need besides the jobs."""

    owners: dict[int, str]
    attempts: dict[str, list[Attempt]]
    vms: dict[str, list[VmRow]]
    saves: dict[str, dict[SaveKind, int]]
    metrics: dict[str, dict[str, float]]


def find_job(session: Session, ref: str, *, owner_id: int | None) -> Job:
    """By id, or by a name that only one job (or one unfinished job) has; `owner_id` None sees all.

    Raises `NoSuchJob`, `AmbiguousName`.
    """
    visible = select(Job).where(*_visible(owner_id))
    exact = session.scalar(visible.where(Job.id == ref))
    if exact is not None:
        return exact
    named = visible.where(Job.name == ref).order_by(Job.submitted_at.desc()).limit(50)
    matches = list(session.scalars(named))
    active = [job for job in matches if job.state not in JOB_ENDED]
    for chosen in (matches, active):
        if len(chosen) == 1:
            return chosen[0]
    if not matches:
        raise NoSuchJob(f"no job {ref!r}")
    ids = ", ".join(sorted(job.id for job in matches)[:5])
    raise AmbiguousName(f"{len(matches)} jobs have the name {ref!r}: {ids}")


def job_views(
    session: Session,
    *,
    owner_id: int | None,
    now: datetime,
    storage_url: str,
    state: str | None = None,
    ended_since: datetime | None = None,
    limit: int = 200,
) -> list[JobView]:
    """Newest first. `owner_id` None means everybody's; `storage_url` where a job names none;
    `ended_since` leaves out those that ended before."""
    query = select(Job).where(*_visible(owner_id))
    if state:
        query = query.where(Job.state == state)
    if ended_since:
        query = query.where(or_(Job.ended_at.is_(None), Job.ended_at >= ended_since))
    jobs = session.scalars(query.order_by(Job.submitted_at.desc(), Job.id.desc()).limit(limit))
    return views_of(session, list(jobs), now=now, storage_url=storage_url)


def views_of(
    session: Session, jobs: Sequence[Job], *, now: datetime, storage_url: str
) -> list[JobView]:
    context = _context(session, jobs)
    return [
        JobView.model_validate(_job_fields(job, context, now=now, storage_url=storage_url))
        for job in jobs
    ]


def job_detail(
    session: Session, job: Job, *, now: datetime, storage_url: str, log_tail: str = ""
) -> JobDetail:
    context = _context(session, [job])
    attempts = context.attempts[job.id]
    figures = progress(attempts)
    injected = injections.newest(session, job.id)
    checkpoints = session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == job.id).order_by(Checkpoint.n)
    )
    return JobDetail(
        **_job_fields(job, context, now=now, storage_url=storage_url),
        spec=job.spec,
        attempts=[attempt_view(attempt) for attempt in attempts],
        vms=[
            vm_view(vm, attempts, now=now)
            for vm in sorted(context.vms[job.id], key=lambda vm: (vm.requested_at, vm.id))
        ],
        checkpoints=[checkpoint_view(checkpoint) for checkpoint in checkpoints],
        useful_s=figures.useful_s,
        recomputed_steps=figures.recomputed_steps,
        injection=injections.view(injected) if injected is not None else None,
        log_tail=log_tail,
    )


def vm_views(
    session: Session, *, owner_id: int | None, now: datetime, limit: int = 200
) -> list[VmView]:
    """Newest first; a user sees the VMs of their own jobs."""
    query = select(VmRow)
    if owner_id is not None:
        query = query.join(Job, Job.id == VmRow.job_id).where(Job.owner_id == owner_id)
    rows = list(session.scalars(query.order_by(VmRow.requested_at.desc(), VmRow.id).limit(limit)))
    attempts = session.scalars(
        select(Attempt).where(Attempt.vm_id.in_([row.id for row in rows])).order_by(Attempt.number)
    )
    by_vm: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_vm[attempt.vm_id].append(attempt)
    return [vm_view(row, by_vm[row.id], now=now) for row in rows]


def events(
    session: Session, job_id: str, *, after: int = 0, limit: int = 500, newest: bool = False
) -> list[EventView]:
    """In order of ids, those above `after`; `newest`: the last `limit` instead of the first."""
    query = select(Event).where(Event.job_id == job_id, Event.id > after)
    if newest:
        rows = list(session.scalars(query.order_by(Event.id.desc()).limit(limit)))[::-1]
    else:
        rows = list(session.scalars(query.order_by(Event.id).limit(limit)))
    return [event_view(row) for row in rows]


def metric_series(
    session: Session, job_id: str, name: str, *, points: int = 400
) -> list[tuple[int, float]]:
    """(step, value) in order of steps, thinned evenly to about `points`; a step computed again
    counts once, with its newest value."""
    newest = (
        select(func.max(Metric.id).label("id"))
        .where(Metric.job_id == job_id, Metric.name == name)
        .group_by(Metric.step)
        .subquery()
    )
    rows = session.execute(
        select(Metric.step, Metric.value)
        .join(newest, newest.c.id == Metric.id)
        .order_by(Metric.step)
    ).all()
    stride = max(1, -(-len(rows) // points))
    kept = [(row[0], row[1]) for row in rows[::stride]]
    if rows and kept[-1][0] != rows[-1][0]:
        kept.append((rows[-1][0], rows[-1][1]))
    return kept


def vm_view(row: VmRow, attempts: Sequence[Attempt], *, now: datetime) -> VmView:
    numbers = [attempt.number for attempt in attempts if attempt.vm_id == row.id]
    return VmView(
        id=row.id,
        cloud_id=row.cloud_id,
        pool=pool_of(row),
        state=VmState(row.state),
        reason=VmReason(row.reason) if row.reason else None,
        dialect=Dialect(row.dialect),
        attempt=max(numbers, default=0),
        requested_at=row.requested_at,
        running_at=row.running_at,
        ended_at=row.ended_at,
        price=row.price,
        cost=cost(row, row.price, now=now),
    )


def pool_of(row: VmRow) -> Pool:
    return Pool(cloud=row.cloud, region=row.region, zone=row.zone, vm=row.vm_type, spot=row.spot)


def attempt_view(row: Attempt) -> AttemptView:
    return AttemptView(
        number=row.number,
        vm=row.vm_id,
        state=AttemptState(row.state),
        reason=EndReason(row.reason) if row.reason else None,
        detail=row.detail,
        started_at=row.started_at,
        ended_at=row.ended_at,
        restored_step=row.restored_step,
        last_step=row.last_step,
        notice_at=row.notice_at,
        prepared_at=row.prepared_at,
        first_step_at=row.first_step_at,
        step_at_notice=row.step_at_notice,
        notice_fits=row.notice_fits,
    )


def checkpoint_view(row: Checkpoint) -> CheckpointView:
    return CheckpointView(
        n=row.n,
        step=row.step,
        attempt=row.attempt,
        kind=SaveKind(row.kind),
        bytes=row.bytes,
        delta_s=row.delta_s,
        beta_s=row.beta_s,
        committed_at=row.committed_at,
        since_notice_s=row.since_notice_s,
    )


def event_view(row: Event) -> EventView:
    return EventView(
        id=row.id,
        at=row.at,
        job=row.job_id,
        vm=row.vm_id,
        attempt=row.attempt,
        kind=row.kind,
        text=row.text,
        data=row.data,
    )


def _visible(owner_id: int | None) -> list[ColumnElement[bool]]:
    return [] if owner_id is None else [Job.owner_id == owner_id]


def _job_fields(job: Job, context: Context, *, now: datetime, storage_url: str) -> dict[str, Any]:
    attempts, vms = context.attempts[job.id], context.vms[job.id]
    current = current_attempt(attempts)
    vm = next((vm for vm in vms if current is not None and vm.id == current.vm_id), None)
    return {
        "id": job.id,
        "name": job.name,
        "owner": context.owners.get(job.owner_id, "?"),
        "state": JobState(job.state),
        "wanted": Wanted(job.wanted),
        "reason": job.reason,
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at,
        "attempt": current.number if current else 0,
        "vm": vm.id if vm else None,
        "pool": pool_of(vm) if vm else None,
        "step": newest_step(attempts),
        "metrics": context.metrics[job.id],
        "preemptions": sum(
            a.reason == EndReason.PREEMPTED.value or a.notice_at is not None for a in attempts
        ),
        "saves": context.saves[job.id],
        "cost": sum(cost(vm, vm.price, now=now) for vm in vms),
        "on_demand_cost": sum(cost(vm, vm.on_demand_price, now=now) for vm in vms),
        "storage": _storage(job, storage_url),
        "insurance": Insurance.model_validate(job.insurance) if job.insurance else None,
    }


def _storage(job: Job, default: str) -> StorageSpec:
    return StorageSpec(url=(job.spec.get("checkpoint") or {}).get("storage") or default)


def _context(session: Session, jobs: Sequence[Job]) -> Context:
    ids = [job.id for job in jobs]
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in session.scalars(
        select(Attempt).where(Attempt.job_id.in_(ids)).order_by(Attempt.number)
    ):
        attempts[attempt.job_id].append(attempt)
    vms: dict[str, list[VmRow]] = defaultdict(list)
    for vm in session.scalars(select(VmRow).where(VmRow.job_id.in_(ids))):
        vms[vm.job_id or ""].append(vm)
    return Context(
        owners={
            row[0]: row[1]
            for row in session.execute(
                select(User.id, User.name).where(User.id.in_({job.owner_id for job in jobs}))
            )
        },
        attempts=attempts,
        vms=vms,
        saves=_saves(session, ids),
        metrics=_newest_metrics(session, ids),
    )


def _saves(session: Session, ids: Sequence[str]) -> dict[str, dict[SaveKind, int]]:
    counts: dict[str, dict[SaveKind, int]] = defaultdict(dict)
    for job_id, kind, count in session.execute(
        select(Checkpoint.job_id, Checkpoint.kind, func.count())
        .where(Checkpoint.job_id.in_(ids))
        .group_by(Checkpoint.job_id, Checkpoint.kind)
    ):
        counts[job_id][SaveKind(kind)] = count
    return counts


def _newest_metrics(session: Session, ids: Sequence[str]) -> dict[str, dict[str, float]]:
    newest = (
        select(func.max(Metric.id))
        .where(Metric.job_id.in_(ids))
        .group_by(Metric.job_id, Metric.name)
    )
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for job_id, name, value in session.execute(
        select(Metric.job_id, Metric.name, Metric.value).where(Metric.id.in_(newest))
    ):
        if math.isfinite(value):  # JSON has no NaN
            values[job_id][name] = value
    return values
