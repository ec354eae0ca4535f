"""When a decision about a job may change by itself: what it waits for. Pure.

`decide` answers from facts. Most of them change only when somebody writes a row, and that is told.
Three sorts change without: the time, the silence of an agent, and what a cloud lists and offers.
`due` names those that this job's rules look at, so that a job is looked at when there is something
to see and not at every pass.

What it must guarantee: if `decide(facts)` has no action now, it has none at any later moment before
what `due` names, as long as nothing else changes. A test walks through random facts to prove it.
One that names too little would leave a VM or a job alone for as long as the slow scan takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spothop.wire import JOB_ACTIVE, JOB_ENDED, VmState
from spothop_master.core.facts import Snapshot, VmFacts
from spothop_master.core.watch import patience_s


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """What the rules make of one VM's silence."""

    since: datetime
    """When it was last heard."""
    until: datetime | None
    """A rule speaks if it is not heard until then; None: not any more."""
    suspect: bool = False
    """It counts as silent: a rule speaks when it is heard again."""


@dataclass(frozen=True, kw_only=True)
class Due:
    """What a job waits for; whichever comes first."""

    at: datetime | None = None
    """A moment that a rule compares the time with; None: there is none."""
    quiet: Mapping[str, Quiet] = field(default_factory=dict)
    """By VM."""
    listing: bool = False
    """The next listing may say something even if it says the same as the one before."""
    offers: bool = False
    """It may launch as soon as a cloud says what it offers."""


def due(snapshot: Snapshot) -> Due | None:
    """Of facts about which `decide` has nothing to say; None: never again, the job is over."""
    present = [vm for vm in snapshot.vms if vm.state is not VmState.TERMINATED]
    if snapshot.job.state in JOB_ENDED and not present:
        return None
    times = [*_of_job(snapshot), *_of_attempts(snapshot), *_of_vms(snapshot, present)]
    return Due(
        at=min((at for at in times if at > snapshot.now), default=None),
        quiet={vm.id: _quiet(snapshot, vm) for vm in present},
        listing=any(vm.sighting is None for vm in present),
        offers=snapshot.job.state in JOB_ACTIVE and snapshot.offers is None,
    )


def _of_job(snapshot: Snapshot) -> Iterator[datetime]:
    job = snapshot.job
    if job.not_before is not None:
        yield job.not_before
    if any(vm.at_risk_at is not None for vm in snapshot.vms):  # another place is open then
        yield from (each.until for each in snapshot.refusals if each.until is not None)
        yield from (each.until for each in snapshot.back_offs)
    if job.ends_at is not None:
        yield job.ends_at


def _of_attempts(snapshot: Snapshot) -> Iterator[datetime]:
    limits = snapshot.limits
    for attempt in snapshot.living:
        if attempt.stop_at is not None:
            yield attempt.stop_at + timedelta(seconds=attempt.stop_timeout_s(limits))
        yield from _deadlines(snapshot, [place.deadline_at for place in attempt.places])


def _of_vms(snapshot: Snapshot, present: list[VmFacts]) -> Iterator[datetime]:
    limits = snapshot.limits
    yield from _deadlines(snapshot, [vm.deadline_at for vm in present])
    for vm in present:
        if snapshot.silent_together and vm.silent_s >= limits.silent_after_s:
            yield snapshot.now + timedelta(seconds=limits.suspect_after_s)  # while it lasts
        if vm.in_flight and vm.effect_until is not None:
            yield vm.effect_until
        if vm.state is VmState.BOOTING:
            since = vm.running_at or vm.launched_at or vm.requested_at
            yield since + timedelta(seconds=vm.join_timeout_s)
        if vm.state is VmState.TERMINATING and vm.asked_s is not None:
            yield snapshot.now + timedelta(seconds=limits.ask_again_s - vm.asked_s)


def _deadlines(snapshot: Snapshot, deadlines: list[datetime | None]) -> Iterator[datetime]:
    for deadline in deadlines:
        if deadline is not None:
            yield deadline + timedelta(seconds=snapshot.limits.fence_margin_s)


def _quiet(snapshot: Snapshot, vm: VmFacts) -> Quiet:
    """Up to the next limit above what it is silent for."""
    limits = (snapshot.limits.suspect_after_s, patience_s(snapshot))
    limit_s = min((limit for limit in limits if limit > vm.silent_s), default=None)
    since = snapshot.now - timedelta(seconds=vm.silent_s)
    return Quiet(
        since=since,
        until=None if limit_s is None else since + timedelta(seconds=limit_s),
        suspect=vm.suspect_at is not None,
    )
