"""Launches of many jobs at once: what is written before a cloud is asked, and after it took them.

Preemptions come in swarms: a hundred notices of a zone want a hundred replacements at once, and
what one costs decides when the last of them is asked for. Rows that a session writes one by one
cost a dozen statements a launch. So here a table takes one statement, however many launches there
are. The rules are those of `attempts.place` and `vms.launched`; only the plain case is taken, and
whatever is not plain is left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, update
from sqlalchemy.orm import Session

from spothop.wire import AttemptState, Dialect, Pool, VmState
from spothop_master.core.states import VmEvent
from spothop_master.store import changes, leases, refusals, transitions
from spothop_master.store.schema import Attempt, Job, Place, VmRow
from spothop_master.store.transitions import Step


@dataclass(frozen=True, kw_only=True)
class Intent:
    """One VM that is about to be asked for, for a node of an attempt that is new."""

    job: str
    attempt: int
    node: int
    reason: str
    vm: str
    """Its name."""
    token: str
    """Client token of the launch."""
    lease: str
    """Token of the lease under which it is asked for (`store.leases`)."""
    lease_until: datetime
    join_hash: str
    pool: Pool
    price: float
    on_demand_price: float
    grace_s: float
    dialect: Dialect


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A launch that its cloud accepted."""

    job: str
    vm: str
    lease: str
    cloud_id: str
    text: str


class NotPlain(Exception):
    """There is more to do than for many at once; nothing may be committed."""


def row_of(intent: Intent, *, now: datetime) -> VmRow:
    """As it will be written."""
    pool = intent.pool
    return VmRow(
        id=intent.vm,
        job_id=intent.job,
        token=intent.token,
        cloud=pool.cloud,
        region=pool.region,
        zone=pool.zone,
        vm_type=pool.vm,
        spot=pool.spot,
        dialect=intent.dialect.value,
        grace_s=intent.grace_s,
        price=intent.price,
        on_demand_price=intent.on_demand_price,
        state=VmState.REQUESTED.value,
        requested_at=now,
        join_hash=intent.join_hash,
        lease_token=intent.lease,
        lease_until=intent.lease_until,
    )


def request(session: Session, intent: Intent, *, now: datetime) -> VmRow:
    """The intent (I3): committed before the cloud is called. Its attempt is another's concern.
    Raises StaleState when somebody else was faster to ask in a scope that lets one launch through.
    """
    refusals.let_through(session, intent.pool, now=now)
    row = row_of(intent, now=now)
    session.add(row)
    session.flush()
    told = _requesting(intent, now)
    transitions.record(session, "vm", told["text"], now=now, row=row, data=told["data"])
    return row


def request_all(session: Session, intents: Sequence[Intent], *, now: datetime) -> None:
    """The same for intents of many jobs, with their attempts: those of one job are of one attempt,
    which is made. Nothing may be closed where they are asked for, so that there is nothing to be
    let through. Jobs that the session has loaded follow when they are asked next."""
    session.flush()
    connection = session.connection()
    connection.execute(insert(VmRow), [_values(row_of(intent, now=now)) for intent in intents])
    first = {intent.job: intent for intent in reversed(intents)}
    made = connection.execute(
        insert(Attempt).returning(Attempt.id, Attempt.job_id),
        [
            {
                "job_id": job,
                "number": intent.attempt,
                "state": AttemptState.PREPARING.value,
                "created_at": now,
            }
            for job, intent in first.items()
        ],
    )
    attempts = {row.job_id: row.id for row in made}
    places = [
        {"attempt_id": attempts[intent.job], "node": intent.node, "vm_id": intent.vm}
        for intent in intents
    ]
    connection.execute(insert(Place), places)
    begun = [_begun(intent, now) for intent in first.values()]
    transitions.record_all(session, [*(_requesting(intent, now) for intent in intents), *begun])
    waits = update(Job).where(Job.id.in_(first), Job.not_before.is_not(None))
    connection.execute(waits.values(not_before=None))
    changes.tell_jobs(session, first, figured=True)
    transitions.follow_all(session, {job: (intent.reason, now) for job, intent in first.items()})
    for row in session.identity_map.values():
        if isinstance(row, Job) and row.id in first:
            session.expire(row, ["state", "reason", "not_before"])


_TAKEN = (
    update(VmRow)
    .where(
        VmRow.id == bindparam("vm"),
        VmRow.lease_token == bindparam("lease"),
        VmRow.cloud_id.is_(None),
    )
    .values(
        cloud_id=bindparam("said"),
        launched_at=bindparam("now"),
        lease_token=None,
        lease_until=bindparam("until"),
    )
)


def taken_all(
    session: Session, taken: Sequence[Taken], *, now: datetime, lease_now: datetime
) -> None:
    """The clouds took these launches: what `vms.launched` writes, and the leases given back. Raises
    `NotPlain`, StaleState: then roll back, and write each by itself."""
    jobs = sorted({each.job for each in taken})
    leases.lock_all(session, jobs)
    if refusals.any_accepting(session):
        raise NotPlain("an account refused something lately")
    connection = session.connection()
    values = [
        {
            "vm": each.vm,
            "lease": each.lease,
            "said": each.cloud_id,
            "now": now,
            "until": lease_now,
        }
        for each in taken
    ]
    if connection.execute(_TAKEN, values).rowcount != len(taken):
        raise NotPlain("a lease was lost, or a listing was faster")
    steps = [
        Step(row=each.vm, job=each.job, vm=each.vm, attempt=None, at=now, text=each.text)
        for each in taken
    ]
    transitions.change_all(session, VmRow, steps, VmEvent.LAUNCH, VmState.REQUESTED)
    refused = update(Job).where(Job.id.in_(jobs), Job.refusals > 0)
    connection.execute(refused.values(refusals=0))


def _values(row: VmRow) -> dict[str, Any]:
    return {key: value for key, value in vars(row).items() if not key.startswith("_")}


def _requesting(intent: Intent, now: datetime) -> dict[str, Any]:
    return {
        "at": now,
        "job_id": intent.job,
        "vm_id": intent.vm,
        "attempt": None,
        "kind": "vm",
        "text": f"requesting {intent.reason}",
        "data": {"to": VmState.REQUESTED.value},
    }


def _begun(intent: Intent, now: datetime) -> dict[str, Any]:
    return {
        "at": now,
        "job_id": intent.job,
        "vm_id": intent.vm,
        "attempt": intent.attempt,
        "kind": "attempt",
        "text": f"attempt {intent.attempt}: {intent.reason}",
        "data": {"to": AttemptState.PREPARING.value},
    }
