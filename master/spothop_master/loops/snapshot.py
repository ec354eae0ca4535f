"""One job's facts, from its rows, the newest listings and the silence of its agents. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from spothop.wire import (
    JOB_ACTIVE,
    AttemptState,
    EndReason,
    JobState,
    Pool,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.clouds import base
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.core.evidence import EndCause
from spothop_master.core.facts import (
    AttemptFacts,
    JobFacts,
    Limits,
    PlaceFacts,
    Sighting,
    Snapshot,
    VmFacts,
)
from spothop_master.store import leases, refusals
from spothop_master.store.attempts import hangs as count_hangs
from spothop_master.store.jobs import requirements_of, spec_of
from spothop_master.store.observations import saved_since_notice, saved_since_stop
from spothop_master.store.schema import Attempt, Checkpoint, Job, Place, VmRow
from spothop_master.store.vms import pool_of

IN_ONE_QUERY = 500
"""Values; databases limit them."""

ALIVE = [state.value for state in VmState if state is not VmState.TERMINATED]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The sources of facts that are in no row."""

    watcher: CloudWatcher
    heartbeats: Heartbeats
    asked: dict[str, datetime]
    """When we last asked the cloud to terminate a VM."""
    limits: Limits


def jobs_to_watch(session: Session) -> list[str]:
    """Those that are not over, and those that have VMs."""
    states = [state.value for state in JOB_ACTIVE | {JobState.PAUSED}]
    with_vms = select(VmRow.job_id).where(VmRow.state.in_(ALIVE))
    query = select(Job.id).where(or_(Job.state.in_(states), Job.id.in_(with_vms)))
    return list(session.scalars(query.order_by(Job.submitted_at)))


def jobs_of_tokens(session: Session, tokens: Sequence[str]) -> list[str]:
    """Whose VMs were launched with these tokens; others are not ours."""
    query = select(VmRow.job_id).where(VmRow.job_id.is_not(None)).distinct()
    found: dict[str, None] = {}
    for first in range(0, len(tokens), IN_ONE_QUERY):
        some = tokens[first : first + IN_ONE_QUERY]
        found.update(
            (job, None) for job in session.scalars(query.where(VmRow.token.in_(some))) if job
        )
    return [*found]


def clouds_in_use(session: Session) -> list[str]:
    return list(session.scalars(select(VmRow.cloud).where(VmRow.state.in_(ALIVE)).distinct()))


def snapshot_of(
    session: Session, job_id: str, observed: Observed, *, jitter: float, now: datetime
) -> Snapshot:
    job = session.get_one(Job, job_id)
    attempts = _attempts(session, job_id)
    rows = _vms(session, job_id, attempts, since=now - timedelta(seconds=observed.limits.avoid_s))
    infos = observed.watcher.offers()
    offers: dict[Pool, float] | None = None
    if infos is not None:
        offers = {pool: info.price for pool, info in infos.items()}
    return Snapshot(
        job=_job(session, job, attempts),
        attempts=tuple(_attempt(session, attempt, now) for attempt in attempts),
        before=_before(session, attempts, now),
        vms=tuple(_vm(row, observed, now) for row in rows),
        refusals=refusals.of_job(session, job_id),
        back_offs=refusals.back_offs(session),
        offers=offers,
        limits=observed.limits,
        jitter=jitter,
        now=now,
    )


def _attempts(session: Session, job_id: str) -> list[Attempt]:
    """Those alive, the newest, and one that succeeded; by number."""
    of_job = select(Attempt).where(Attempt.job_id == job_id)
    matters = or_(
        Attempt.state != AttemptState.ENDED.value, Attempt.reason == EndReason.SUCCEEDED.value
    )
    found = {row.number: row for row in session.scalars(of_job.where(matters))}
    newest = session.scalar(of_job.order_by(Attempt.number.desc()).limit(1))
    if newest is not None:
        found[newest.number] = newest
    return [found[number] for number in sorted(found)]


def _before(session: Session, attempts: Sequence[Attempt], now: datetime) -> AttemptFacts | None:
    """The one before the newest, where that has ended."""
    if not attempts or attempts[-1].state != AttemptState.ENDED.value:
        return None
    newest = attempts[-1]
    query = select(Attempt).where(Attempt.job_id == newest.job_id, Attempt.number < newest.number)
    row = session.scalar(query.order_by(Attempt.number.desc()).limit(1))
    return _attempt(session, row, now) if row is not None else None


def _vms(
    session: Session, job_id: str, attempts: Sequence[Attempt], *, since: datetime
) -> list[VmRow]:
    matters = or_(
        VmRow.state.in_(ALIVE),
        VmRow.id.in_([place.vm_id for attempt in attempts for place in attempt.places]),
        VmRow.ended_at >= since,
    )
    query = select(VmRow).where(VmRow.job_id == job_id, matters)
    return list(session.scalars(query.order_by(VmRow.requested_at, VmRow.id)))


def _job(session: Session, row: Job, attempts: Sequence[Attempt]) -> JobFacts:
    hung = bool(attempts) and attempts[-1].reason == EndReason.HANG.value
    prepared = select(Place.id).join(Attempt).where(Attempt.job_id == row.id)
    prepared = prepared.where(Place.prepared_at.is_not(None)).limit(1)
    trained = select(Place.id).join(Attempt).where(Attempt.job_id == row.id)
    trained = trained.where(Place.first_step_at.is_not(None)).limit(1)
    return JobFacts(
        id=row.id,
        state=JobState(row.state),
        wanted=Wanted(row.wanted),
        submitted_at=row.submitted_at,
        user_failures=row.user_failures,
        infrastructure_failures=row.infrastructure_failures,
        hangs=count_hangs(session, row.id) if hung else 0,
        was_prepared=session.scalar(prepared) is not None,
        was_trained=session.scalar(trained) is not None,
        not_before=row.not_before,
        requirements=requirements_of(spec_of(row)),
    )


def _attempt(session: Session, row: Attempt, now: datetime) -> AttemptFacts:
    noticed = row.notice_at is not None and row.state != AttemptState.ENDED.value
    return AttemptFacts(
        number=row.number,
        places=tuple(_place(place) for place in row.places),
        state=AttemptState(row.state),
        reason=EndReason(row.reason) if row.reason else None,
        detail=row.detail,
        trained=row.first_step_at is not None,
        fenced_at=row.fenced_at,
        may_fence=row.may_fence,
        saved_since_notice=noticed and saved_since_notice(session, row),
        unsaved_s=_unsaved_s(session, row, now) if noticed else 0.0,
        last_save_s=sum(s or 0.0 for s in (row.step_s, row.save_s, row.backup_s)),
        saved_since_stop=noticed and saved_since_stop(session, row),
        stop_wanted=EndReason(row.stop_wanted) if row.stop_wanted else None,
        stop_at=row.stop_at,
        ended_at=row.ended_at,
    )


def _unsaved_s(session: Session, row: Attempt, now: datetime) -> float:
    """Since its newest checkpoint was handed over."""
    newest = session.execute(
        select(Checkpoint.committed_at, Checkpoint.beta_s)
        .where(Checkpoint.job_id == row.job_id, Checkpoint.attempt == row.number)
        .order_by(Checkpoint.n.desc())
        .limit(1)
    ).first()
    if newest is None:
        return 0.0
    since: timedelta = now - newest.committed_at
    return max(0.0, since.total_seconds() + float(newest.beta_s))


def _place(row: Place) -> PlaceFacts:
    return PlaceFacts(
        vm=row.vm_id,
        node=row.node,
        prepared_at=row.prepared_at,
        notice_at=row.notice_at,
        deadline_at=row.deadline_at,
    )


def _vm(row: VmRow, observed: Observed, now: datetime) -> VmFacts:
    listing = observed.watcher.listing(row.cloud)
    seen = listing.by_token.get(row.token) if listing else None
    asked = observed.asked.get(row.id)
    lost = listing is not None and seen is None and listing.began_at >= _settled(row, observed)
    record, awaits = _record(row, observed) if lost else (None, False)
    return VmFacts(
        id=row.id,
        pool=pool_of(row),
        state=VmState(row.state),
        reason=VmReason(row.reason) if row.reason else None,
        cloud_id=row.cloud_id,
        requested_at=row.requested_at,
        launched_at=row.launched_at,
        running_at=row.running_at,
        joined_at=row.joined_at,
        suspect_at=row.suspect_at,
        notice_at=row.notice_at,
        deadline_at=row.deadline_at,
        ended_at=row.ended_at,
        listed_at=listing.began_at if listing else None,
        sighting=sighting_of(seen) if seen else None,
        record=record,
        awaits_record=awaits,
        silent_s=_silent_s(row, observed.heartbeats, now),
        asked_s=(now - asked).total_seconds() if asked else None,
        in_flight=leases.held(row.lease_token, row.lease_until, now=now),
        effect_until=row.lease_until,
    )


def _settled(row: VmRow, observed: Observed) -> datetime:
    """From then on a listing has to have it."""
    since = row.launched_at or row.requested_at
    return since + timedelta(seconds=observed.limits.settle_s)


def _record(row: VmRow, observed: Observed) -> tuple[EndCause | None, bool]:
    """What its cloud says of the end of a VM that it does not list any more, and whether it may say
    more; asked in the background. A notice has said enough."""
    if row.cloud_id is None or row.notice_at is not None or row.state not in ALIVE:
        return None, False
    return observed.watcher.end_cause(row.cloud, row.cloud_id, token=row.token)


def _silent_s(row: VmRow, heartbeats: Heartbeats, now: datetime) -> float:
    """Reports and joins count too: they are in the row."""
    silent = heartbeats.silent_for(row.id, now)
    if row.last_contact_at is not None:
        silent = min(silent, max(timedelta(), now - row.last_contact_at))
    return silent.total_seconds()


def sighting_of(vm: base.Vm) -> Sighting:
    over = vm.state is base.CloudVmState.TERMINATED
    return Sighting(
        cloud_id=vm.id,
        over=over,
        cause=vm.cause if over else None,
        refused=base.refused_by(vm.error) if vm.error is not None else None,
        running_at=vm.running_at,
        ended_at=vm.ended_at,
    )
