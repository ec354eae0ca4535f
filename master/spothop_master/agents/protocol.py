"""The protocol with agents: joining, taking their reports in order, and the directives they get.

Requests and answers get lost, repeated and overtaken; agents and masters are killed between any two
lines. Three rules make that harmless:

1. Reports have numbers without gaps. Those up to `acked_seq` are known and skipped; one after a gap
   waits, because the missing one is still on the agent's disk. The number moves in the transaction
   that applies the report, so each counts exactly once.
2. Directives are states, not commands: they are read from the rows at every call ("this attempt may
   fence", "this VM is not wanted"). Nothing is queued, a lost answer loses nothing, and saying it
   again changes nothing.
3. A token is used up when the agent has its session for certain: at its first report, not at the
   answer, which may never arrive.

A VM's reports and the loops change the same rows, so both take the job's row first (`leases.lock`).

What does not work: refusing a whole sync for one bad report (the agent sends it again for ever, and
nothing after it counts), and trusting the agent's clock (reports carry their age instead).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from spothop.wire import (
    PROTOCOL,
    VM_LEAVING,
    AnyDirective,
    AssignDirective,
    Assignment,
    AttemptState,
    EndReason,
    Envelope,
    FenceDirective,
    Insurance,
    InsuranceDirective,
    ReleaseDirective,
    StopDirective,
)
from spothop_master.agents import insurance, reports
from spothop_master.agents.assignment import build
from spothop_master.agents.limits import VmLimits
from spothop_master.agents.reading import Fault, FaultyEnvelope
from spothop_master.core.facts import SAVED_FIRST
from spothop_master.core.states import VmEvent
from spothop_master.store import attempts, leases, transitions
from spothop_master.store.schema import Attempt, Job, Place, VmRow
from spothop_master.store.statistics import FRESH, Statistics

_log = logging.getLogger(__name__)


UNKNOWN = "this join token is unknown or used, or its VM is not wanted any more"


class BadToken(Exception):
    """The join token is unknown, used, or its VM is not wanted any more."""


def refuse_unknown(session: Session, join_hash: str) -> None:
    """Raises BadToken. For a session that only reads: strangers take no write lock, which agents
    and loops wait for."""
    if session.scalar(select(VmRow.id).where(VmRow.join_hash == join_hash)) is None:
        raise BadToken(UNKNOWN)


def join(
    session: Session,
    *,
    join_hash: str,
    session_hash: str,
    now: datetime,
    boot_s: float | None = None,
    address: str | None = None,
    statistics: Statistics = FRESH,
    spoken: int = PROTOCOL,
) -> tuple[VmRow, Assignment]:
    """The one-time token of a VM becomes its session, and `spoken` the version of the protocol that
    it is spoken to in. Raises BadToken.

    "One-time" ends with the first report that the master has: an agent whose answer got lost asks
    again, and the session of the lost answer ends there.
    """
    vm = session.scalar(select(VmRow).where(VmRow.join_hash == join_hash))
    if vm is not None and vm.job_id is not None:
        leases.lock(session, vm.job_id)
        session.refresh(vm)
    place = attempts.living_place(session, vm.id) if vm is not None else None
    if vm is None or place is None or vm.state in VM_LEAVING:
        raise BadToken(UNKNOWN)
    attempt = place.attempt
    place.address = address
    job = session.get_one(Job, attempt.job_id)
    if vm.joined_at is None:
        text = f"joined from {vm.zone}"
        data = {"boot_s": boot_s} if boot_s is not None else None
        transitions.change(session, vm, VmEvent.JOIN, now=now, text=text, data=data, joined_at=now)
        transitions.follow(session, job, now=now, text=f"attempt {attempt.number} prepares")
    vm.session_hash, vm.last_contact_at, vm.protocol = session_hash, now, spoken
    session.flush()
    return vm, build(session, vm, attempt, statistics, now=now)


def apply(
    session: Session,
    vm_id: str,
    envelopes: Sequence[Envelope],
    *,
    now: datetime,
    limits: VmLimits | None = None,
) -> int:
    """Reports in the order of their numbers; the highest one without a gap before it.

    Replays change nothing. Those of an attempt that has ended, or that a newer one has fenced out,
    change nothing but facts of the VM, the copy of the chain, and the event log (I2). One that
    makes no sense changes nothing; the user is told, as far as `limits` permits.
    """
    vm = session.get_one(VmRow, vm_id)
    if vm.job_id is not None:
        _job = leases.lock(session, vm.job_id)  # held: a session forgets rows that nobody holds
        session.refresh(vm)
    new = without_gaps(envelopes, vm.acked_seq)
    if not new:
        return vm.acked_seq
    limits = limits or VmLimits()
    try:
        with session.begin_nested():
            _apply_all(session, vm, new, limits, now)
    except Exception as error:  # by one of them: each by itself, so that the others count
        if passes(error):
            raise
        for envelope in new:
            _apply_one(session, vm, envelope, limits, now)
    vm.acked_seq, vm.join_hash, vm.last_contact_at = new[-1].seq, None, now
    session.flush()
    return vm.acked_seq


def without_gaps(envelopes: Sequence[Envelope], acked_seq: int) -> list[Envelope]:
    """Those that are new, in order, up to the first that is missing."""
    found: list[Envelope] = []
    for envelope in sorted(envelopes, key=lambda envelope: envelope.seq):
        if envelope.seq == acked_seq + len(found) + 1:
            found.append(envelope)
    return found


def made_at(envelope: Envelope, joined_at: datetime | None, now: datetime) -> datetime:
    """By the master's clock: no VM says anything before it joined."""
    at = now - timedelta(seconds=max(0.0, envelope.age_s))
    return max(at, joined_at or at)


def _apply_all(
    session: Session,
    vm: VmRow,
    envelopes: Sequence[Envelope],
    limits: VmLimits,
    now: datetime,
) -> None:
    place: Place | None = None
    for envelope in envelopes:
        if place is None or place.attempt.number != envelope.attempt:
            place = attempts.place_of(session, vm.id, envelope.attempt)
        at = made_at(envelope, vm.joined_at, now)
        if isinstance(envelope, FaultyEnvelope):
            limits.quarantine.tell(session, vm, place, envelope.fault, now=at)
            if not envelope.fault.counts:
                continue
        reports.apply_report(session, vm, place, envelope, at=at, names=limits.names)
    session.flush()


def _apply_one(
    session: Session, vm: VmRow, envelope: Envelope, limits: VmLimits, now: datetime
) -> None:
    """One that cannot be applied changes nothing: the agent would send it again for ever, and none
    of those after it would count."""
    try:
        with session.begin_nested():
            _apply_all(session, vm, [envelope], limits, now)
    except Exception as error:  # of any kind: see above
        if passes(error):
            raise
        report = envelope.report
        _log.exception("VM %s: report %d (%s) cannot be applied", vm.id, envelope.seq, report.kind)
        why = error.orig if isinstance(error, DBAPIError) else error  # without the statement
        fault = Fault.of_report(report, f"the database cannot hold it ({type(why).__name__})")
        limits.quarantine.tell(session, vm, None, fault, now=now)


def passes(error: Exception) -> bool:
    """Not the fault of a report: the same one may be applied later."""
    if isinstance(error, (transitions.StaleState, leases.StaleLease, MemoryError)):
        return True
    return isinstance(error, SQLAlchemyError) and not isinstance(error, (DataError, IntegrityError))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """To one sync."""

    directives: list[AnyDirective]
    waiting: bool
    """The VM is ready and idle until the master lets it fence or assigns an attempt."""
    draining: bool
    """Its attempt has a notice, and is told when its replacement is ready."""
    step_s: float | None = None
    """What a step of its attempt takes."""
    noted: bool = True
    """The insurance is about what the job's row says."""


def answer(
    session: Session,
    vm_id: str,
    *,
    now: datetime,
    statistics: Statistics = FRESH,
    writes: bool = False,
) -> Answer:
    """What holds now for this VM; saying it again is harmless. With `writes`, in a transaction that
    may write, what it says of the insurance is noted in the job and its events."""
    vm = session.get_one(VmRow, vm_id)
    place = attempts.living_place(session, vm_id)
    insure = insurance.refresh if writes else insurance.directive
    found = _directives(session, vm, place, insure, statistics, now)
    if place is None:
        return Answer(directives=found, waiting=vm.state not in VM_LEAVING, draining=False)
    attempt = place.attempt
    return Answer(
        directives=found,
        waiting=place.prepared_at is not None and attempt.fenced_at is None,
        draining=attempt.state == AttemptState.DRAINING.value,
        step_s=attempt.step_s,
        noted=writes
        or attempt.state != AttemptState.RUNNING.value  # such a one has none, and none to note
        or insurance.is_noted(_told(session, attempt), insurance_in(found)),
    )


def _told(session: Session, attempt: Attempt) -> Mapping[str, Any] | None:
    return session.get_one(Job, attempt.job_id).insurance


def insurance_in(directives: Sequence[AnyDirective]) -> Insurance | None:
    found = (d.insurance for d in directives if isinstance(d, InsuranceDirective))
    return next(found, None)


def _directives(
    session: Session,
    vm: VmRow,
    place: Place | None,
    insure: Callable[..., Insurance | None],
    statistics: Statistics,
    now: datetime,
) -> list[AnyDirective]:
    if vm.state in VM_LEAVING:
        return [ReleaseDirective()]
    if place is None:
        return []
    attempt, number = place.attempt, place.attempt.number
    if attempt.stop_wanted is not None:
        why = EndReason(attempt.stop_wanted)
        saves = why in SAVED_FIRST and not session.get_one(Job, attempt.job_id).at_once
        return [StopDirective(attempt=number, reason=why, save=saves)]
    found: list[AnyDirective] = []
    if _is_reassigned(session, place):
        found.append(AssignDirective(assignment=build(session, vm, attempt, statistics, now=now)))
    if attempt.may_fence and attempt.fenced_at is None:
        found.append(FenceDirective(attempt=number))
    if attempt.state == AttemptState.RUNNING.value:
        due = insure(session, vm, attempt, statistics, now=now)
        if due is not None:
            found.append(InsuranceDirective(attempt=number, insurance=due))
    return found


def _is_reassigned(session: Session, place: Place) -> bool:
    """Not the VM's first attempt, and nothing of it was heard yet."""
    if place.prepared_at is not None or place.started_at is not None:
        return False
    return attempts.place_of(session, place.vm_id, place.attempt.number - 1) is not None
