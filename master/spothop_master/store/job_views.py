"""Jobs as users see them: a fixed number of queries however many jobs there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from spothop import storageoptions
from spothop.protection import ADD
from spothop.wire import (
    AttemptState,
    AttemptView,
    CheckpointView,
    EndReason,
    Insurance,
    JobDetail,
    JobState,
    JobView,
    PlaceView,
    SaveKind,
    StorageSpec,
    Unprotected,
    UnprotectedView,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.store import injections, refusals
from spothop_master.store.figures import bill, current_attempt, newest_step, progress
from spothop_master.store.lookup import visible_to
from spothop_master.store.metrics import newest_metrics
from spothop_master.store.schema import Attempt, Checkpoint, Job, Place, User, VmRow
from spothop_master.store.vm_views import vm_view
from spothop_master.store.vms import pool_of


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the rows of one page of jobs need besides the jobs."""

    owners: dict[int, str]
    attempts: dict[str, list[Attempt]]
    vms: dict[str, list[VmRow]]
    saves: dict[str, dict[SaveKind, int]]
    metrics: dict[str, dict[str, float]]


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
    query = select(Job).where(*visible_to(owner_id))
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
    session: Session,
    job: Job,
    *,
    now: datetime,
    storage_url: str,
    log_tail: str = "",
    env_values: bool = False,
) -> JobDetail:
    """`env_values`: whoever looks may see the values of its environment that are no secrets."""
    context = _context(session, [job])
    attempts = context.attempts[job.id]
    figures = progress(attempts)
    injected = injections.newest(session, job.id)
    checkpoints = session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == job.id).order_by(Checkpoint.n)
    )
    return JobDetail(
        **_job_fields(job, context, now=now, storage_url=storage_url),
        spec=storageoptions.masked_spec(job.spec, env_values=env_values),
        attempts=[attempt_view(attempt) for attempt in attempts],
        vms=[
            vm_view(vm, attempts, now=now)
            for vm in sorted(context.vms[job.id], key=lambda vm: (vm.requested_at, vm.id))
            if not (vm.state == VmState.TERMINATED and vm.reason == VmReason.LAUNCH_FAILED)
        ],
        refusals=refusals.views(session, job.id),
        checkpoints=[checkpoint_view(checkpoint) for checkpoint in checkpoints],
        useful_s=figures.useful_s,
        recomputed_steps=figures.recomputed_steps,
        lost_s=figures.lost_s,
        lost_cost=bill(attempts, context.vms[job.id], now=now).lost,
        injection=injections.view(injected) if injected is not None else None,
        log_tail=log_tail,
    )


def attempt_view(row: Attempt) -> AttemptView:
    return AttemptView(
        number=row.number,
        vm=row.leader.vm_id,
        places=[place_view(place) for place in row.places],
        state=AttemptState(row.state),
        reason=EndReason(row.reason) if row.reason else None,
        detail=row.detail,
        started_at=row.started_at,
        starting=_is_starting(row),
        ended_at=row.ended_at,
        restored_step=row.restored_step,
        last_step=row.last_step,
        notice_at=row.notice_at,
        prepared_at=row.prepared_at,
        first_step_at=row.first_step_at,
        step_at_notice=row.step_at_notice,
        notice_fits=row.notice_fits,
    )


def _is_starting(row: Attempt | None) -> bool:
    """Its process runs, and has not begun a step."""
    return (
        row is not None
        and row.state == AttemptState.PREPARING.value
        and row.started_at is not None
        and row.first_step_at is None
    )


def place_view(row: Place) -> PlaceView:
    return PlaceView(
        node=row.node,
        vm=row.vm_id,
        prepared_at=row.prepared_at,
        notice_at=row.notice_at,
        last_step=row.last_step,
        exit_code=row.exit_code,
        exit_signal=row.exit_signal,
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


def _job_fields(job: Job, context: Context, *, now: datetime, storage_url: str) -> dict[str, Any]:
    attempts, vms = context.attempts[job.id], context.vms[job.id]
    current, figures = current_attempt(attempts), bill(attempts, vms, now=now)
    vm = next((vm for vm in vms if current is not None and vm.id == current.leader.vm_id), None)
    return {
        "id": job.id,
        "name": job.name,
        "owner": context.owners.get(job.owner_id, "?"),
        "state": JobState(job.state),
        "starting": job.state == JobState.PREPARING.value
        and _is_starting(attempts[-1] if attempts else None),
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
        "cost": figures.cost,
        "on_demand_cost": figures.on_demand,
        "storage": _storage(job, storage_url),
        "unprotected": _unprotected(current) if job.ended_at is None else None,
        "insurance": Insurance.model_validate(job.insurance) if job.insurance else None,
    }


def _unprotected(attempt: Attempt | None) -> UnprotectedView | None:
    """Of the first place that lacks something, while the attempt lives."""
    if attempt is None or attempt.state == AttemptState.ENDED.value:
        return None
    found = next((place.unprotected for place in attempt.places if place.unprotected), None)
    if found is None:
        return None
    return UnprotectedView.model_validate({**found, "add": ADD[Unprotected(found["cause"])]})


def _storage(job: Job, default: str) -> StorageSpec:
    """As it may be shown. Read as it lies in the row: a whole `JobSpec` for each line of a list of
    jobs would cost more than the query."""
    storage = (job.spec.get("checkpoint") or {}).get("storage") or default
    if isinstance(storage, str):
        return StorageSpec(url=storageoptions.without_password(storage))
    return StorageSpec.model_validate(storage).masked()


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
        metrics=newest_metrics(session, ids),
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
