"""VM rows: from the intent to the end that the cloud confirms."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from spothop.wire import ANY_ZONE, JOB_ACTIVE, JobState, Pool, VmReason, VmState
from spothop_master.core.evidence import EndCause, EndEvidence, ending
from spothop_master.core.refusals import REFUSALS, Growth, Refused, Scope, told_until
from spothop_master.core.states import VmEvent
from spothop_master.store import observations, refusals, transitions
from spothop_master.store.schema import Event, Injection, Job, Place, VmRow


def pool_of(row: VmRow) -> Pool:
    return Pool(cloud=row.cloud, region=row.region, zone=row.zone, vm=row.vm_type, spot=row.spot)


def note_clouds(
    session: Session, known: Mapping[str, Collection[str] | None], *, now: datetime
) -> None:
    """Say of each living VM whose cloud or region was taken out of the configuration, and of each
    for which that is back, what is to be done: once, in its row and in its job's events.
    `known`: by cloud the regions that are configured; None: all."""
    living = VmRow.state != VmState.TERMINATED.value
    for row in session.scalars(select(VmRow).where(living)):
        text = _missing(row, known)
        if row.hint == text:
            continue
        row.hint = text
        told = text or f"cloud {row.cloud!r} is configured again"
        data = {"level": "warning" if text else "info"}
        transitions.record(session, "message", told, now=now, row=row, data=data)


def _missing(row: VmRow, known: Mapping[str, Collection[str] | None]) -> str:
    """What a user is told of a VM whose cloud or region nobody can ask any more."""
    regions = known.get(row.cloud, ())
    if regions is None or row.region in regions:
        return ""
    region = f"region {row.region!r} of " if row.cloud in known else ""
    vm = f"{row.id} ({row.cloud_id})" if row.cloud_id else row.id
    return (
        f"{region}cloud {row.cloud!r} is not configured any more: nobody can look at VM {vm} or end"
        f" it; add the {'region' if region else 'cloud'} back, or end the VM by hand"
    )


def launched(session: Session, row: VmRow, *, cloud_id: str, reason: str, now: datetime) -> None:
    """The cloud took it. Its agent may have joined already, and it may be unwanted by now."""
    if row.state == VmState.REQUESTED.value:
        transitions.change(
            session,
            row,
            VmEvent.LAUNCH,
            now=now,
            text=reason,
            cloud_id=cloud_id,
            launched_at=now,
        )
    elif row.cloud_id is None:
        row.cloud_id, row.launched_at = cloud_id, now
        transitions.record(session, "vm", reason, now=now, row=row, data={"cloud_id": cloud_id})
    job = session.get_one(Job, row.job_id)
    job.refusals = 0
    refusals.accepted(session, row)


def refused(
    session: Session,
    row: VmRow,
    refused: Refused,
    *,
    text: str,
    growth: Growth,
    kept: bool = False,
    now: datetime,
) -> None:
    """The cloud said no: there is no such VM, or, `kept`, what there is of it has to be terminated.
    An error that is not among `REFUSALS`, as of a driver's own subclass, counts as their base."""
    error = refused.error if refused.error in REFUSALS else REFUSALS[0]
    known = replace(refused, error=error)
    until = refusals.count(session, row, known, growth=growth, now=now)
    transitions.change(
        session,
        row,
        VmEvent.TERMINATE if kept else VmEvent.REFUSE,
        now=now,
        text=text + told_until(known, until, now=now),
        data={
            "error": refused.error,
            "scope": refused.scope.value,
            "code": refused.code,
            "until": until.isoformat(),
        },
        reason=VmReason.LAUNCH_FAILED,
        refusal=error,
        detail=text,
        ended_at=None if kept else now,
        join_hash=None,
    )
    job = session.get_one(Job, row.job_id)
    job.refusals += 1
    if JobState(job.state) in JOB_ACTIVE:  # else it says why the job is over, or paused
        job.reason = text


def withdrawn(session: Session, row: VmRow, *, now: datetime) -> None:
    """It was unwanted before the cloud was asked for it: there is no such VM, and no refusal."""
    if row.state == VmState.TERMINATING.value:
        text = "over: the cloud was not asked for it"
        transitions.change(
            session, row, VmEvent.GONE, now=now, text=text, ended_at=now, join_hash=None
        )


def not_asked(session: Session, row: VmRow, error: str, *, text: str, now: datetime) -> None:
    """What it was to be asked for was closed before its turn came: nobody refused it, and there is
    no such VM."""
    if row.state in (VmState.REQUESTED.value, VmState.TERMINATING.value):
        transitions.change(
            session,
            row,
            VmEvent.REFUSE,
            now=now,
            text=text,
            reason=VmReason.LAUNCH_FAILED,
            refusal=error,
            detail=text,
            ended_at=now,
            join_hash=None,
        )


def launch_lost(
    session: Session, row: VmRow, *, detail: str, growth: Growth, now: datetime
) -> None:
    """The launch never reached the cloud, as far as its listing says. Counts as a refusal, so that
    a cloud that never answers clearly is asked less and less often."""
    unclear = Refused(error="Ambiguous", scope=Scope.POOL, detail=detail)
    refused(session, row, unclear, text=detail, growth=growth, now=now)


def forget_refused(session: Session, job_id: str) -> None:
    """Drop the rows of refused launches that fill no place any more: their events stay, and
    `refusals` has counted them. Only where the cloud itself said no (I3): a VM may still come of a
    launch that had no clear answer, and then its row says whose it is. One that was chosen for an
    injection stays, too.
    """
    session.flush()
    rows = session.scalars(
        select(VmRow).where(
            VmRow.job_id == job_id,
            VmRow.state == VmState.TERMINATED.value,
            VmRow.reason == VmReason.LAUNCH_FAILED.value,
            VmRow.refusal != "Ambiguous",
            VmRow.lease_token.is_(None),  # whose last call to the cloud is still under way
            ~select(Place.id).where(Place.vm_id == VmRow.id).exists(),
            ~select(Injection.id).where(Injection.vm_id == VmRow.id).exists(),
        )
    ).all()
    for row in rows:
        session.execute(
            update(Event).where(Event.job_id == job_id, Event.vm_id == row.id).values(vm_id=None)
        )
        session.delete(row)


def running(
    session: Session, row: VmRow, *, running_at: datetime, zone: str = "", now: datetime
) -> None:
    """Billing begins, allocation is over. Where the cloud was to choose a zone, it has chosen:
    `zone` is that of the VM from now on. Not earlier: what is refused is the pool that was asked.
    """
    if row.zone == ANY_ZONE and zone:
        refusals.gave_a_vm(session, row)
        row.zone = zone
    row.running_at = min(max(running_at, row.requested_at), now)
    latency = (row.running_at - row.requested_at).total_seconds()
    observations.add(session, row, "allocation", latency, now=now)
    text = f"running in {row.zone} {latency:.1f} s after the request"
    data = {"allocation_s": latency, "pool": str(pool_of(row)), "price": row.price}
    transitions.record(session, "allocated", text, now=now, row=row, data=data)
    observations.preparation(session, row, now=now)
    refusals.gave_a_vm(session, row)


def suspect(session: Session, row: VmRow, *, suspect: bool, reason: str, now: datetime) -> None:
    row.suspect_at = now if suspect else None
    transitions.record(session, "suspect", reason, now=now, row=row, data={"suspect": suspect})


def release(session: Session, row: VmRow, why: VmReason, *, reason: str, now: datetime) -> None:
    """We want it gone; it is over only when the cloud says so."""
    transitions.change(
        session,
        row,
        VmEvent.TERMINATE,
        now=now,
        text=f"terminating ({why.value}): {reason}",
        reason=why,
        detail=reason,
    )


def over(
    session: Session,
    row: VmRow,
    *,
    cause: EndCause | None,
    running_at: datetime | None,
    zone: str = "",
    ended_at: datetime | None,
    last_contact_at: datetime | None,
    reason: str,
    now: datetime,
) -> None:
    """The cloud says it is over: its state, its reason by rank of evidence, and its life."""
    if row.running_at is None and running_at is not None:
        running(session, row, running_at=running_at, zone=zone, now=now)
    end = ending(
        EndEvidence(
            running_at=row.running_at,
            notice_at=row.notice_at,
            deadline_at=row.deadline_at,
            ours=VmReason(row.reason) if row.reason else None,
            cause=cause,
            cloud_ended_at=min(ended_at, now) if ended_at else None,
            last_contact_at=last_contact_at or row.last_contact_at,
            now=now,
        )
    )
    transitions.change(
        session,
        row,
        VmEvent.GONE,
        now=now,
        text=f"over ({end.reason.value}): {reason}",
        data={"evidence": end.evidence.value},
        reason=end.reason,
        detail=reason,
        ended_at=max(end.ended_at, row.running_at or end.ended_at),
        last_contact_at=last_contact_at or row.last_contact_at,
    )
    if end.life_s is not None:
        observations.add(
            session,
            row,
            "life",
            end.life_s,
            censored=end.censored,
            evidence=end.evidence.value,
            now=now,
        )
