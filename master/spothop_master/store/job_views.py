"""One job as users see it, whole: from all of its rows. `job_lists` makes the lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from spothop import storageoptions
from spothop.durations import parse_duration
from spothop.protection import ADD
from spothop.wire import (
    AttemptState,
    AttemptView,
    CheckpointView,
    EndReason,
    Insurance,
    JobDetail,
    JobState,
    PlaceView,
    SaveKind,
    StorageSpec,
    Unprotected,
    UnprotectedView,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.store import injections, refusals, sealing
from spothop_master.store.figures import (
    bill,
    current_attempt,
    is_starting,
    newest_metrics,
    newest_step,
    preemptions,
    progress,
)
from spothop_master.store.schema import Attempt, Checkpoint, Job, Place, User, VmRow
from spothop_master.store.summaries import unprotected
from spothop_master.store.vm_views import vm_view
from spothop_master.store.vms import pool_of

CHECKPOINTS = 200
"""The newest, with a job; `checkpoint_views` has the others."""


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
    attempts, vms = _attempts(session, job.id), _vms(session, job.id)
    figures, sums = progress(attempts), bill(attempts, vms, now=now)
    injected = injections.newest(session, job.id)
    owner = session.scalar(select(User.name).where(User.id == job.owner_id)) or "?"
    newest = checkpoint_views(session, job.id, limit=CHECKPOINTS)
    return JobDetail(
        **own_fields(job, owner, storage_url),
        **_figures(session, job, attempts, vms),
        cost=sums.cost,
        on_demand_cost=sums.on_demand,
        spec=_shown_spec(session, job, env_values),
        other_storages=_storages(job, storage_url)[1:],
        ends_at=_ends_at(job, now),
        attempts=[attempt_view(attempt) for attempt in attempts],
        vms=[
            vm_view(vm, attempts, now=now)
            for vm in vms
            if not (vm.state == VmState.TERMINATED and vm.reason == VmReason.LAUNCH_FAILED)
        ],
        refusals=refusals.views(session, job.id),
        checkpoints=newest[::-1],
        useful_s=figures.useful_s,
        recomputed_steps=figures.recomputed_steps,
        lost_s=figures.lost_s,
        lost_cost=sums.lost,
        injection=injections.view(injected) if injected is not None else None,
        log_tail=log_tail,
    )


def _ends_at(job: Job, now: datetime) -> datetime | None:
    """Read as it lies in the row, like the storage."""
    told = job.spec.get("max_duration")
    if not told:
        return None
    limit = parse_duration(told)
    paused = now - job.paused_at if job.paused_at is not None else timedelta()
    return job.submitted_at + limit + timedelta(seconds=job.paused_s) + paused


def attempt_view(row: Attempt) -> AttemptView:
    return AttemptView(
        number=row.number,
        vm=row.leader.vm_id,
        places=[place_view(place) for place in row.places],
        state=AttemptState(row.state),
        reason=EndReason(row.reason) if row.reason else None,
        detail=row.detail,
        started_at=row.started_at,
        starting=is_starting(row),
        ended_at=row.ended_at,
        restored_step=row.restored_step,
        last_step=row.last_step,
        notice_at=row.notice_at,
        prepared_at=row.prepared_at,
        first_step_at=row.first_step_at,
        step_at_notice=row.step_at_notice,
        notice_fits=row.notice_fits,
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


def checkpoint_views(
    session: Session, job_id: str, *, before: int | None = None, limit: int
) -> list[CheckpointView]:
    """Newest first; those of lower entries than `before`."""
    query = select(Checkpoint).where(Checkpoint.job_id == job_id)
    if before is not None:
        query = query.where(Checkpoint.n < before)
    rows = session.scalars(query.order_by(Checkpoint.n.desc()).limit(limit))
    return [checkpoint_view(row) for row in rows]


def own_fields(job: Job, owner: str, storage_url: str) -> dict[str, Any]:
    """What the job's own row tells."""
    return {
        "id": job.id,
        "name": job.name,
        "owner": owner,
        "state": JobState(job.state),
        "wanted": Wanted(job.wanted),
        "reason": job.reason,
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at,
        "paused_at": job.paused_at,
        "alarms": [{"kind": kind, **told} for kind, told in (job.alarms or {}).items()],
        "storage": _storage(job, storage_url),
        "insurance": Insurance.model_validate(job.insurance) if job.insurance else None,
    }


def _figures(
    session: Session, job: Job, attempts: Sequence[Attempt], vms: Sequence[VmRow]
) -> dict[str, Any]:
    current = current_attempt(attempts)
    vm = next((vm for vm in vms if current is not None and vm.id == current.leader.vm_id), None)
    newest = attempts[-1] if attempts else None
    return {
        "starting": job.state == JobState.PREPARING.value and is_starting(newest),
        "attempt": current.number if current else 0,
        "vm": vm.id if vm else None,
        "pool": pool_of(vm) if vm else None,
        "step": newest_step(attempts),
        "metrics": newest_metrics(attempts),
        "preemptions": preemptions(attempts),
        "saves": _saves(session, job.id),
        "unprotected": unprotected_view(unprotected(current)) if job.ended_at is None else None,
    }


def unprotected_view(found: Mapping[str, Any] | None) -> UnprotectedView | None:
    if found is None:
        return None
    return UnprotectedView.model_validate({**found, "add": ADD[Unprotected(found["cause"])]})


def _shown_spec(session: Session, job: Job, env_values: bool) -> dict[str, Any]:
    spec: Mapping[str, Any] = job.spec
    if env_values:
        try:
            spec = sealing.whole(session, job)
        except sealing.Unreadable:  # then nobody sees them
            env_values = False
    return storageoptions.masked_spec(spec, env_values=env_values)


def _storage(job: Job, default: str) -> StorageSpec:
    """As it may be shown. Read as it lies in the row: a whole `JobSpec` for each line of a list of
    jobs would cost more than the query."""
    return _storages(job, default)[0]


def _storages(job: Job, default: str) -> list[StorageSpec]:
    storage = (job.spec.get("checkpoint") or {}).get("storage") or default
    items = storage if isinstance(storage, list) else [storage]
    return [_shown_storage(each) for each in items]


def _shown_storage(storage: str | Mapping[str, Any]) -> StorageSpec:
    if isinstance(storage, str):
        return StorageSpec(url=storageoptions.without_password(storage))
    return StorageSpec(url=storage["url"], options=storage.get("options") or {}).masked()


def _attempts(session: Session, job_id: str) -> list[Attempt]:
    query = select(Attempt).where(Attempt.job_id == job_id)
    return list(session.scalars(query.order_by(Attempt.number)))


def _vms(session: Session, job_id: str) -> list[VmRow]:
    query = select(VmRow).where(VmRow.job_id == job_id)
    return list(session.scalars(query.order_by(VmRow.requested_at, VmRow.id)))


def _saves(session: Session, job_id: str) -> dict[SaveKind, int]:
    query = select(Checkpoint.kind, func.count()).where(Checkpoint.job_id == job_id)
    return {SaveKind(kind): n for kind, n in session.execute(query.group_by(Checkpoint.kind))}
