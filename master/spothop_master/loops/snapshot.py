"""Jobs' facts, from their rows, the newest listings and the silence of their agents. Reads only.

Looks are frequent, so what one costs has two rules. The number of queries is fixed, however many
jobs are looked at together. What they read does not grow with a job's history: of attempts that
ended only the newest two and one that succeeded, of VMs that are over only those of these attempts
and those that ended lately. What never changes in a job, which is what its file asks for, is read
once. What only the rules about failures look at is read when the newest attempt has failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from spothop.jobspec import JobSpec
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
    Requirements,
    Sighting,
    Snapshot,
    VmFacts,
    VmQuota,
)
from spothop_master.core.failures import SELF_MADE
from spothop_master.core.watch import TALKING, together
from spothop_master.store import fact_rows, leases, quotas, refusals
from spothop_master.store.attempts import ever_prepared, ever_trained
from spothop_master.store.attempts import hangs as count_hangs
from spothop_master.store.fact_rows import ALIVE
from spothop_master.store.jobs import requirements_of
from spothop_master.store.schema import Job, VmRow

IN_ONE_QUERY = 500
"""Values; databases limit them."""

AnyRow = Any
"""Of a query: SQLAlchemy's own type names every column's."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The sources of facts that are in no row."""

    watcher: CloudWatcher
    heartbeats: Heartbeats
    asked: dict[str, datetime]
    """When we last asked the cloud to terminate a VM."""
    called: Container[str]
    """VMs that this process has asked clouds for."""
    limits: Limits
    join_timeout_s: float | None = None
    """What the settings say; None: what its cloud says of a VM."""
    requirements: dict[str, Requirements] = field(default_factory=dict)
    """What each job's file asks for, once it was read."""

    def silent(self, now: datetime) -> tuple[int, int]:
        """How many VMs of all jobs are silent, of how many."""
        return self.heartbeats.count(now, timedelta(seconds=self.limits.suspect_after_s))

    def only(self, jobs: Iterable[str]) -> None:
        """Forget what was kept of other jobs."""
        wanted = set(jobs)
        for job_id in [job_id for job_id in self.requirements if job_id not in wanted]:
            del self.requirements[job_id]


def jobs_to_watch(session: Session) -> list[str]:
    """Those that are not over, and those that have VMs."""
    states = [state.value for state in JOB_ACTIVE | {JobState.PAUSED}]
    with_vms = select(VmRow.job_id).where(VmRow.state.in_(ALIVE))
    query = select(Job.id).where(or_(Job.state.in_(states), Job.id.in_(with_vms)))
    return list(session.scalars(query.order_by(Job.submitted_at, Job.id)))


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


def snapshots_of(
    session: Session,
    job_ids: Sequence[str],
    observed: Observed,
    *,
    jitter: Callable[[], float],
    now: datetime,
    lease_now: datetime | None = None,
) -> dict[str, Snapshot]:
    """Of those of these jobs that there are, in this order; at most `IN_ONE_QUERY`. `lease_now` is
    the database's time, where that is another one."""
    rows = {row.id: row for row in session.execute(fact_rows.JOBS, {"jobs": job_ids})}
    jobs = [rows[job_id] for job_id in dict.fromkeys(job_ids) if job_id in rows]
    hurried = frozenset(row.id for row in jobs if row.at_once)
    attempts = _attempts(session, job_ids, hurried, now)
    vms = _vms(session, job_ids, attempts, observed, now, lease_now or now)
    launching = [job_id for job_id in job_ids if _may_launch(attempts[job_id], vms[job_id])]
    refused = refusals.of_jobs(session, launching) if launching else {}
    back_offs = refusals.back_offs(session) if launching else ()
    vm_quotas = _vm_quotas(session, [row for row in jobs if row.id in launching], observed)
    market = observed.watcher.market()
    requirements = _requirements(session, job_ids, observed)
    return {
        row.id: Snapshot(
            job=_job(session, row, attempts[row.id], requirements[row.id]),
            attempts=_that_matter(attempts[row.id]),
            before=_before(attempts[row.id]),
            vms=tuple(vms[row.id]),
            refusals=refused.get(row.id, ()),
            back_offs=back_offs,
            quota=vm_quotas.get(row.id),
            offers=None if market is None else market.prices,
            shapes={} if market is None else market.shapes,
            silent_together=together(*observed.silent(now)),
            limits=observed.limits,
            jitter=jitter(),
            now=now,
        )
        for row in jobs
    }


def _may_launch(attempts: Sequence[AttemptFacts], vms: Sequence[VmFacts]) -> bool:
    """Only then do the rules ask what clouds refused."""
    if any(vm.reason is VmReason.LAUNCH_FAILED or vm.at_risk_at is not None for vm in vms):
        return True
    return not attempts or attempts[-1].state in (AttemptState.DRAINING, AttemptState.ENDED)


def _vm_quotas(session: Session, rows: Sequence[AnyRow], observed: Observed) -> dict[str, VmQuota]:
    """Of these jobs; most users have none, and then nothing is counted."""
    limits = {
        row.id: observed.limits.user_vms if row.max_vms is None else row.max_vms for row in rows
    }
    limited = [row for row in rows if limits[row.id] is not None]
    if not limited:
        return {}
    used = quotas.vms_by_owner(session, {row.owner_id for row in limited})
    return {
        row.id: VmQuota(owner=row.owner, limit=limits[row.id] or 0, used=used.get(row.owner_id, 0))
        for row in limited
    }


def _requirements(
    session: Session, job_ids: Sequence[str], observed: Observed
) -> Mapping[str, Requirements]:
    known = observed.requirements
    unknown = [job_id for job_id in job_ids if job_id not in known]
    if unknown:
        for row in session.execute(select(Job.id, Job.spec).where(Job.id.in_(unknown))):
            known[row.id] = requirements_of(JobSpec.of_accepted(row.spec))
    return known


def _job(
    session: Session, row: AnyRow, attempts: Sequence[AttemptFacts], asks: Requirements
) -> JobFacts:
    why = attempts[-1].reason if attempts else None
    return JobFacts(
        id=row.id,
        state=JobState(row.state),
        wanted=Wanted(row.wanted),
        submitted_at=row.submitted_at,
        user_failures=row.user_failures,
        infrastructure_failures=row.infrastructure_failures,
        hangs=count_hangs(session, row.id) if why is EndReason.HANG else 0,
        was_prepared=why in SELF_MADE and ever_prepared(session, row.id),
        was_trained=why in SELF_MADE and ever_trained(session, row.id),
        not_before=row.not_before,
        why=row.wanted_why,
        at_once=row.at_once,
        paused_s=row.paused_s,
        requirements=asks,
    )


def _attempts(
    session: Session, job_ids: Sequence[str], hurried: Container[str], now: datetime
) -> defaultdict[str, list[AttemptFacts]]:
    """By job and number: those alive, the newest two, and those that succeeded. The jobs `hurried`
    are to end without another save."""
    rows = session.execute(fact_rows.ATTEMPTS, {"jobs": job_ids}).all()
    noticed = {row.id for row in rows if row.notice_at and row.state != AttemptState.ENDED.value}
    saves = {}
    if noticed:
        found = session.execute(fact_rows.SAVES, {"attempts": sorted(noticed)})
        saves = {row.id: row for row in found}
    attempts: defaultdict[str, list[AttemptFacts]] = defaultdict(list)
    for (job_id, attempt_id), of_one in groupby(rows, key=lambda row: (row.job_id, row.id)):
        found_one = _attempt([*of_one], saves.get(attempt_id), now, hurried=job_id in hurried)
        attempts[job_id].append(found_one)
    return attempts


def _that_matter(attempts: Sequence[AttemptFacts]) -> tuple[AttemptFacts, ...]:
    """Those alive, the newest, and those that succeeded."""
    return tuple(
        attempt
        for attempt in attempts
        if attempt.alive or attempt is attempts[-1] or attempt.reason is EndReason.SUCCEEDED
    )


def _before(attempts: Sequence[AttemptFacts]) -> AttemptFacts | None:
    """The one before the newest, where that has ended."""
    return attempts[-2] if len(attempts) > 1 and not attempts[-1].alive else None


def _attempt(
    rows: Sequence[AnyRow], saves: AnyRow | None, now: datetime, *, hurried: bool
) -> AttemptFacts:
    """From a row for each place; `saves` where it lives and has a notice."""
    row = rows[0]
    saved_at = saves.emergency_at if saves is not None else None
    return AttemptFacts(
        number=row.number,
        places=tuple(
            PlaceFacts(
                vm=place.vm_id,
                node=place.node,
                prepared_at=place.prepared_at,
                notice_at=place.notice_at,
                deadline_at=place.deadline_at,
            )
            for place in rows
        ),
        state=AttemptState(row.state),
        reason=EndReason(row.reason) if row.reason else None,
        detail=row.detail,
        trained=all(place.first_step_at is not None for place in rows),
        fenced_at=row.fenced_at,
        may_fence=row.may_fence,
        saved_since_notice=saved_at is not None,
        unsaved_s=_unsaved_s(saves, now),
        last_save_s=sum(s or 0.0 for s in (row.step_s, row.save_s, row.backup_s)),
        saved_since_stop=bool(saved_at and row.stop_at and saved_at > row.stop_at),
        stop_wanted=EndReason(row.stop_wanted) if row.stop_wanted else None,
        stop_at=row.stop_at,
        hurried=hurried,
        ended_at=row.ended_at,
    )


def _unsaved_s(saves: AnyRow | None, now: datetime) -> float:
    """Since its newest checkpoint was handed over."""
    if saves is None or saves.committed_at is None:
        return 0.0
    since: timedelta = now - saves.committed_at
    return max(0.0, since.total_seconds() + float(saves.beta_s))


def _vms(
    session: Session,
    job_ids: Sequence[str],
    attempts: Mapping[str, Sequence[AttemptFacts]],
    observed: Observed,
    now: datetime,
    lease_now: datetime,
) -> defaultdict[str, list[VmFacts]]:
    placed = [
        place.vm
        for each in attempts.values()
        for attempt in _that_matter(each)
        for place in attempt.places
    ]
    since = now - timedelta(seconds=observed.limits.avoid_s)
    found: defaultdict[str, list[VmFacts]] = defaultdict(list)
    for row in session.execute(fact_rows.VMS, {"jobs": job_ids, "placed": placed, "since": since}):
        found[row.job_id].append(_vm(row, observed, now, lease_now))
    return found


@lru_cache(maxsize=4096)
def _pool(cloud: str, region: str, zone: str, vm: str, spot: bool) -> Pool:
    return Pool(cloud=cloud, region=region, zone=zone, vm=vm, spot=spot)


def _vm(row: AnyRow, observed: Observed, now: datetime, lease_now: datetime) -> VmFacts:
    cloud = observed.watcher.limits(row.cloud)
    listing = None
    if cloud.covers(row.region):
        listing = observed.watcher.listing(row.cloud, row.region)
    seen = listing.by_token.get(row.token) if listing else None
    asked = observed.asked.get(row.id)
    lost = listing is not None and seen is None and listing.began_at >= _settled(row, observed)
    record, awaits = _record(row, observed) if lost else (None, False)
    return VmFacts(
        id=row.id,
        pool=_pool(row.cloud, row.region, row.zone, row.vm_type, row.spot),
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
        at_risk_at=row.at_risk_at,
        ended_at=row.ended_at,
        listed_at=listing.began_at if listing else None,
        sighting=sighting_of(seen) if seen else None,
        record=record,
        awaits_record=awaits,
        settle_s=cloud.settle_s,
        join_timeout_s=observed.join_timeout_s or cloud.join_timeout_s,
        silent_s=_silent_s(row, observed.heartbeats, now),
        asked_s=(now - asked).total_seconds() if asked else None,
        in_flight=leases.held(row.lease_token, row.lease_until, now=lease_now),
        called_here=row.id in observed.called,
        effect_until=row.lease_until,
    )


def _settled(row: AnyRow, observed: Observed) -> datetime:
    """From then on a listing has to have it."""
    since: datetime = row.launched_at or row.requested_at
    return since + timedelta(seconds=observed.watcher.limits(row.cloud).settle_s)


def _record(row: AnyRow, observed: Observed) -> tuple[EndCause | None, bool]:
    """What its cloud says of the end of a VM that it does not list any more, and whether it may say
    more; asked in the background. A notice has said enough."""
    if row.cloud_id is None or row.notice_at is not None or row.state not in ALIVE:
        return None, False
    return observed.watcher.end_cause(row.cloud, row.cloud_id, token=row.token)


def _silent_s(row: AnyRow, heartbeats: Heartbeats, now: datetime) -> float:
    """Reports and joins count too: they are in the row."""
    if row.state in TALKING:
        heartbeats.await_word(row.id)
    silent_s = heartbeats.silent_for(row.id, now).total_seconds()
    if row.last_contact_at is None:
        return silent_s
    known: timedelta = now - row.last_contact_at
    return min(silent_s, max(0.0, known.total_seconds()))


def sighting_of(vm: base.Vm) -> Sighting:
    over = vm.state is base.CloudVmState.TERMINATED
    return Sighting(
        cloud_id=vm.id,
        over=over,
        cause=vm.cause,
        told=vm.told,
        refused=base.refused_by(vm.error) if vm.error is not None else None,
        zone=vm.pool.zone,
        running_at=vm.running_at,
        ended_at=vm.ended_at,
    )
