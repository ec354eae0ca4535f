"""When a job needs another attempt, and on which VM. Pure.

What it must guarantee: a job that is wanted always has an attempt, a wait with an end, or an end
(I9), and at most two attempts live (I2). Three rules:

1. A replacement is asked for at the notice, not at the end: it prepares while the old one trains.
2. The reason of an end decides how the next attempt begins. Preemptions cost no wait and no budget;
   failures wait for a back-off that grows with their number, and after a failure of the user the
   same VMs are used again if all of them are fit.
3. Refusals go to the next pool at once. There is a wait only while every pool is closed by what it
   or its zone, region or account refused (`refusals`), until the first of them opens; without any
   pool left, the job fails, unless a whole attempt still lives.
4. A launch that would be over the quota of the job's owner waits. A VM with a notice is not
   counted, so that it never holds up the one that replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from spothop.backoff import delay_s
from spothop.wire import (
    JOB_ENDED,
    USER_FAILURES,
    AttemptState,
    EndReason,
    JobState,
    Pool,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.core import placement, refusals
from spothop_master.core.actions import (
    Action,
    AssignSame,
    EndAttempt,
    FinishJob,
    LaunchVm,
    ResumeJob,
    Wait,
)
from spothop_master.core.facts import AttemptFacts, PlaceFacts, Snapshot, VmFacts

_COUNTED = USER_FAILURES | {EndReason.INFRASTRUCTURE, EndReason.FENCED}
"""After an end for one of these reasons the next attempt waits for the back-off."""


QUOTA_S = 10.0
"""A job that waits for its owner's quota is looked at again after this, up to twice of it."""


def replacement(snapshot: Snapshot) -> list[Action]:
    """A new attempt as soon as every living one has a notice; a new VM for a refused launch."""
    newest, job = snapshot.newest, snapshot.job
    nodes = range(job.requirements.nodes)
    if newest is not None and newest.alive:
        refused = [place.node for place in newest.places if _was_refused(snapshot, place)]
        if refused:
            return _launch(snapshot, newest.number, refused, "the launch before it was refused")
        if newest.state is not AttemptState.DRAINING:
            return _ahead_of_notice(snapshot, newest)
    if newest is None:
        return _launch(snapshot, 1, nodes, "first attempt")
    number = newest.number + 1
    if newest.alive:
        return _launch(snapshot, number, nodes, f"attempt {newest.number} has a notice")
    if newest.reason in _COUNTED:
        failures = max(1, job.user_failures, job.infrastructure_failures, job.hangs)
        if wait := _wait(snapshot, newest, failures):
            return wait
        if _waiting(snapshot):
            return []
        if waits_for_same_vms(snapshot):
            text = f"again after: {newest.detail}"
            return [
                AssignSame(vm=place.vm, attempt=number, node=place.node, reason=text)
                for place in newest.places
            ]
    ended = newest.reason.value if newest.reason else "ended"
    return _launch(snapshot, number, nodes, f"attempt {newest.number} ended: {ended}")


def waits_for_same_vms(snapshot: Snapshot) -> bool:
    """The newest attempt failed, on VMs that can all be used for another one."""
    newest = snapshot.newest
    if newest is None or newest.alive or snapshot.job.wanted is not Wanted.RUNNING:
        return False
    if snapshot.job.state in JOB_ENDED:
        return False
    fit = all(_fit(snapshot, vm) for vm in snapshot.vms_of(newest))
    return newest.reason in USER_FAILURES and fit


def resume(snapshot: Snapshot) -> list[Action]:
    """A paused job that is wanted again, or one that was cancelled while paused."""
    job = snapshot.job
    if job.state is not JobState.PAUSED:
        return []
    if job.wanted is Wanted.CANCELLED:
        return [FinishJob(state=JobState.CANCELLED, reason=job.why or "cancelled by the user")]
    if job.wanted is Wanted.RUNNING:
        return [ResumeJob(reason=job.why or "resumed by the user")]
    return []


def finish(snapshot: Snapshot, state: JobState, reason: str) -> list[Action]:
    """The end of the job, and of its attempts that still live."""
    text = f"the job is over: {state.value}"
    ends: list[Action] = [
        EndAttempt(attempt=attempt.number, why=_overtaken(attempt, state), reason=text)
        for attempt in snapshot.living
    ]
    return [*ends, FinishJob(state=state, reason=reason)]


def _overtaken(attempt: AttemptFacts, state: JobState) -> EndReason:
    """A replacement may succeed before we see the end of the attempt with the notice."""
    noticed = attempt.notice_at is not None
    return EndReason.PREEMPTED if noticed and state is JobState.SUCCEEDED else EndReason.CANCELLED


def _was_refused(snapshot: Snapshot, place: PlaceFacts) -> bool:
    return snapshot.vm(place.vm).reason is VmReason.LAUNCH_FAILED


def _is_complete(snapshot: Snapshot, attempt: AttemptFacts) -> bool:
    """It lacks no VM."""
    return not any(_was_refused(snapshot, place) for place in attempt.places)


def _fit(snapshot: Snapshot, vm: VmFacts) -> bool:
    up = vm.state in (VmState.READY, VmState.RUNNING) and vm.notice_at is None
    return up and vm.silent_s < snapshot.limits.suspect_after_s


def _waiting(snapshot: Snapshot) -> bool:
    return snapshot.job.not_before is not None and snapshot.now < snapshot.job.not_before


def _wait(snapshot: Snapshot, newest: AttemptFacts, failures: int) -> list[Action]:
    """A back-off that has not been set yet for this failure."""
    not_before = snapshot.job.not_before
    if newest.ended_at is None or (not_before is not None and not_before > newest.ended_at):
        return []
    return [_back_off(snapshot, failures, newest.detail)]


def _launch(snapshot: Snapshot, attempt: int, nodes: Sequence[int], why: str) -> list[Action]:
    """All in one pool: the nodes of a gang talk to each other at every step."""
    if _waiting(snapshot) or snapshot.offers is None:
        return []
    if wait := _over_quota(snapshot, len(nodes)):
        return [wait]
    choices = _choices(snapshot)
    if not choices:
        return _no_pool(snapshot)
    closed = _closed(snapshot, choices)
    first = next((choice for choice in choices if choice.pool not in closed), None)
    if first is None:
        return [_until_one_opens(snapshot, closed)]
    text = "; ".join([why, first.reason, *refusals.left_out(closed)])
    return [LaunchVm(attempt=attempt, node=node, pool=first.pool, reason=text) for node in nodes]


def _over_quota(snapshot: Snapshot, wanted: int) -> Wait | None:
    """The owner has as many VMs as they may have; another look in a while: what frees one is a row
    of another job."""
    quota = snapshot.quota
    if quota is None or quota.used + wanted <= quota.limit:
        return None
    why = f"user {quota.owner!r} may have {quota.limit} VMs at once"
    seconds = QUOTA_S * (1.0 + snapshot.jitter)
    text = f"{why} and has {quota.used}; next look in {seconds:.0f} s"
    return Wait(until=snapshot.now + timedelta(seconds=seconds), reason=text, why=why)


def _ahead_of_notice(snapshot: Snapshot, newest: AttemptFacts) -> list[Action]:
    """The cloud recommends to leave a VM that trains. It is replaced while it trains on, but only
    by one of another zone that may be had now: there is time, and in the same place the next VM
    would be told the same."""
    risky = [vm for vm in snapshot.vms_of(newest) if vm.at_risk_at is not None and vm.alive]
    one = newest.state is AttemptState.RUNNING and len(snapshot.living) == 1
    if not risky or not one or _waiting(snapshot) or snapshot.offers is None:
        return []
    choices = [
        choice
        for choice in _choices(snapshot)
        if not any(placement.same_place(vm.pool, choice.pool) for vm in risky)
    ]
    closed = _closed(snapshot, choices)
    first = next((choice for choice in choices if choice.pool not in closed), None)
    if first is None:
        return []
    text = f"the cloud recommends to leave {risky[0].id}; {first.reason}"
    return [
        LaunchVm(attempt=newest.number + 1, node=place.node, pool=first.pool, reason=text)
        for place in newest.places
    ]


def _choices(snapshot: Snapshot) -> list[placement.Choice]:
    return placement.order(
        snapshot.offers or {},
        snapshot.job.requirements,
        snapshot.vms,
        snapshot.refusals,
        shapes=snapshot.shapes,
        avoid_s=snapshot.limits.avoid_s,
        now=snapshot.now,
    )


def _closed(snapshot: Snapshot, choices: Sequence[placement.Choice]) -> dict[Pool, refusals.Closed]:
    pools = [choice.pool for choice in choices]
    return refusals.closed(pools, snapshot.refusals, snapshot.back_offs, now=snapshot.now)


def _until_one_opens(snapshot: Snapshot, closed: Mapping[Pool, refusals.Closed]) -> Wait:
    until = refusals.first_opening(closed, jitter=snapshot.jitter)
    why = refusals.why(closed)
    seconds = (until - snapshot.now).total_seconds()
    return Wait(until=until, reason=f"{why}; next try in {seconds:.1f} s", why=why)


def _no_pool(snapshot: Snapshot) -> list[Action]:
    final = [refusal for refusal in snapshot.refusals if refusal.error in refusals.FINAL]
    if final:
        last = max(final, key=lambda refusal: refusal.last_at)
        text = f"no pool is left: {last.pool} answered {last.error}"
        if any(_is_complete(snapshot, attempt) for attempt in snapshot.living):
            return [_back_off(snapshot, 99, f"{text}; the attempt with the notice goes on")]
        return finish(snapshot, JobState.FAILED, text)
    return [_back_off(snapshot, 99, "no cloud offers a pool that the job's resources allow")]


def _back_off(snapshot: Snapshot, failures: int, why: str) -> Wait:
    limits = snapshot.limits
    seconds = delay_s(
        failures,
        base_s=limits.backoff_base_s,
        max_s=limits.backoff_max_s,
        jitter=snapshot.jitter,
    )
    text = f"{why}; next try in {seconds:.1f} s"
    return Wait(until=snapshot.now + timedelta(seconds=seconds), reason=text)
