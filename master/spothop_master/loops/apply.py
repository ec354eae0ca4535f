"""Writes decisions down, in the transaction in which they were made (I3: intent before effect).

What needs a cloud comes back as an effect, to be performed after the commit, under a lease on its
VM that is taken here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session
from typing_extensions import assert_never

from spothop.wire import AgentConfig, Dialect, Pool, VmState
from spothop_master.agents import assignment
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.clouds.base import OWNER_TAG, LaunchSpec, PoolInfo
from spothop_master.core.actions import (
    Action,
    Adopt,
    AllowFence,
    AskTermination,
    AssignSame,
    EndAttempt,
    FinishJob,
    LaunchLost,
    LaunchRefused,
    LaunchVm,
    MarkRunning,
    MarkSuspect,
    ReleaseVm,
    RepeatLaunch,
    ResumeJob,
    StopAttempt,
    VmOver,
    Wait,
)
from spothop_master.core.facts import Requirements, Snapshot
from spothop_master.loops.calls import Effect, Launch, Terminate
from spothop_master.security import token_hash
from spothop_master.store import attempts, jobs, launches, leases, transitions, vms
from spothop_master.store.launches import Intent
from spothop_master.store.schema import Attempt, Job, VmRow

AGENT_DIRECTORY = "/var/lib/spothop"
"""On the VM's own disk. The local cloud puts its own in place of it."""


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """What launching needs besides the decision."""

    owner: str
    master_url: str
    new_token: Callable[[], str]
    """Unguessable; for leases, and the names of VMs."""
    join_token: Callable[[str], str]
    """Of a VM, by its name: always the same."""
    ca: str
    """In PEM, who vouches for the master."""
    away_s: float
    """After so long without their master VMs end themselves."""
    lease_now: datetime
    """What leases are measured in (`Database.now`)."""
    offers: Mapping[Pool, PoolInfo]
    heartbeats: Heartbeats


def apply(
    session: Session, snapshot: Snapshot, action: Action, context: LaunchContext, *, now: datetime
) -> list[Effect]:
    """One action; the effects it needs."""
    job = session.get_one(Job, snapshot.job.id)
    match action:
        case LaunchVm():
            asks = snapshot.job.requirements
            return _launch(session, job, action, asks, context, now)
        case RepeatLaunch():
            asks = snapshot.job.requirements
            return [_repeat(session, job, action, asks, context, now)]
        case AskTermination():
            return [_terminate(session, job, action, context)]
        case (
            Adopt()
            | MarkRunning()
            | LaunchLost()
            | LaunchRefused()
            | VmOver()
            | MarkSuspect()
            | ReleaseVm()
        ):
            _of_vm(session, snapshot, action, context.heartbeats, now)
        case AssignSame():
            row = session.get_one(VmRow, action.vm)
            _place(session, job, row, action, now)
        case EndAttempt() | AllowFence() | StopAttempt():
            _of_attempt(session, job, action, now)
        case Wait():
            jobs.wait(
                session, job, until=action.until, reason=action.reason, why=action.why, now=now
            )
        case FinishJob():
            jobs.finish(session, job, action.state, reason=action.reason, now=now)
        case ResumeJob():
            jobs.resume(session, job, reason=action.reason, now=now)
        case _:
            assert_never(action)
    return []


def plain_launches(snapshot: Snapshot, actions: Sequence[Action]) -> list[LaunchVm]:
    """These actions, where `launch_all` can take them: launches alone, of a new attempt, in pools
    that nothing closed lately. Else none."""
    newest = snapshot.newest
    found = [
        action
        for action in actions
        if isinstance(action, LaunchVm)
        and (newest is None or action.attempt > newest.number)
        and not any(back_off.covers(action.pool) for back_off in snapshot.back_offs)
    ]
    return found if len(found) == len(actions) else []


def launch_all(
    session: Session,
    wanted: Sequence[tuple[Snapshot, Sequence[LaunchVm]]],
    context: LaunchContext,
    *,
    now: datetime,
) -> list[Effect]:
    """Of each of these jobs what `plain_launches` says; the effects that they need."""
    intents: list[Intent] = []
    effects: list[Effect] = []
    for snapshot, actions in wanted:
        job, asks = session.get_one(Job, snapshot.job.id), snapshot.job.requirements
        for action in actions:
            intent = _intent(job, action, context)
            row = launches.row_of(intent, now=now)
            intents.append(intent)
            effects.append(_effect(session, job, row, intent.lease, asks, context))
    launches.request_all(session, intents, now=now)
    return effects


def _intent(job: Job, action: LaunchVm, context: LaunchContext) -> Intent:
    info = context.offers[action.pool]
    name = f"vm-{context.new_token()[:10]}"
    return Intent(
        job=job.id,
        attempt=action.attempt,
        node=action.node,
        reason=action.reason,
        vm=name,
        join_hash=token_hash(context.join_token(name)),
        token=f"spothop-{context.new_token()}",
        lease=context.new_token(),
        lease_until=context.lease_now + leases.TTL,
        pool=info.pool,
        price=info.price,
        on_demand_price=info.on_demand_price,
        grace_s=info.grace_s,
        dialect=info.dialect,
    )


def _launch(
    session: Session,
    job: Job,
    action: LaunchVm,
    asks: Requirements,
    context: LaunchContext,
    now: datetime,
) -> list[Effect]:
    intent = _intent(job, action, context)
    row = launches.request(session, intent, now=now)
    _place(session, job, row, action, now)
    return [_effect(session, job, row, intent.lease, asks, context)]


def _repeat(
    session: Session,
    job: Job,
    action: RepeatLaunch,
    asks: Requirements,
    context: LaunchContext,
    now: datetime,
) -> Launch:
    row, lease = session.get_one(VmRow, action.vm), context.new_token()
    leases.take(session, row.id, token=lease, now=context.lease_now)
    transitions.record(session, "vm", action.reason, now=now, row=row)
    return replace(_effect(session, job, row, lease, asks, context), repeated=True)


def _effect(
    session: Session, job: Job, row: VmRow, lease: str, asks: Requirements, context: LaunchContext
) -> Launch:
    """The same at every call but for the lease, as far as its row and the settings are."""
    user_data = AgentConfig(
        master=context.master_url,
        token=context.join_token(row.id),
        vm=row.id,
        dialect=Dialect(row.dialect),
        directory=AGENT_DIRECTORY,
        ca=context.ca,
        away_s=asks.away_s or context.away_s,
    )
    reads, writes = assignment.folders(session, job)
    spec = LaunchSpec(
        pool=vms.pool_of(row),
        user_data=user_data,
        tags={OWNER_TAG: context.owner, "spothop-job": job.id, "spothop-vm": row.id},
        max_price=asks.max_price,
        image=asks.image,
        disk_gb=asks.disk_gb,
        reads=reads,
        writes=writes,
    )
    return Launch(job=job.id, vm=row.id, cloud=row.cloud, lease=lease, token=row.token, spec=spec)


def _terminate(
    session: Session, job: Job, action: AskTermination, context: LaunchContext
) -> Terminate:
    row, lease = session.get_one(VmRow, action.vm), context.new_token()
    leases.take(session, row.id, token=lease, now=context.lease_now)
    return Terminate(
        job=job.id, vm=row.id, cloud=row.cloud, lease=lease, cloud_id=row.cloud_id or ""
    )


def _place(
    session: Session, job: Job, vm: VmRow, action: LaunchVm | AssignSame, now: datetime
) -> None:
    attempts.place(session, job, vm, action.attempt, action.node, reason=action.reason, now=now)


def _of_vm(
    session: Session,
    snapshot: Snapshot,
    action: Adopt | MarkRunning | LaunchLost | LaunchRefused | VmOver | MarkSuspect | ReleaseVm,
    heartbeats: Heartbeats,
    now: datetime,
) -> None:
    row = session.get_one(VmRow, action.vm)
    facts = snapshot.vm(action.vm)
    seen, growth = facts.sighting, snapshot.limits.growth(snapshot.jitter)
    match action:
        case Adopt():
            assert seen is not None, "only a VM that the cloud lists is adopted"
            if facts.state is VmState.TERMINATING:
                leases.void(session, row.id)
            vms.launched(session, row, cloud_id=seen.cloud_id, reason=action.reason, now=now)
        case MarkRunning():
            zone = seen.zone if seen else ""
            vms.running(session, row, running_at=action.running_at, zone=zone, now=now)
        case LaunchLost():
            leases.void(session, row.id)
            vms.launch_lost(session, row, detail=action.reason, growth=growth, now=now)
        case LaunchRefused():
            if action.kept:
                leases.void(session, row.id)
            vms.refused(
                session,
                row,
                action.refused,
                text=action.reason,
                growth=growth,
                kept=action.kept,
                now=now,
            )
        case MarkSuspect():
            vms.suspect(session, row, suspect=action.suspect, reason=action.reason, now=now)
        case ReleaseVm():
            row.last_contact_at = heartbeats.last_contact(row.id) or row.last_contact_at
            if facts.cloud_id is not None:  # all that can be under way is its launch
                leases.void(session, row.id)
            vms.release(session, row, action.why, reason=action.reason, now=now)
        case VmOver():
            vms.over(
                session,
                row,
                cause=seen.cause if seen else facts.record,
                running_at=seen.running_at if seen else None,
                zone=seen.zone if seen else "",
                ended_at=seen.ended_at if seen else None,
                last_contact_at=heartbeats.last_contact(row.id),
                reason=action.reason,
                now=now,
            )
        case _:
            assert_never(action)


def _of_attempt(
    session: Session, job: Job, action: EndAttempt | AllowFence | StopAttempt, now: datetime
) -> None:
    row: Attempt | None = attempts.get(session, job.id, action.attempt)
    assert row is not None, "decisions name attempts of their snapshot"
    match action:
        case EndAttempt():
            attempts.end(session, job, row, action.why, detail=action.reason, now=now)
        case AllowFence():
            attempts.allow_fence(session, row, reason=action.reason, now=now)
        case StopAttempt():
            attempts.stop(session, row, action.why, reason=action.reason, now=now)
        case _:
            assert_never(action)
