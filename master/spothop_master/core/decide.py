"""What to do next about one job: `decide(snapshot)` -> actions, each with its reason. Pure.

The rules have an order: first what listings and silent agents say of VMs, then what that means for
attempts, then what the user wants, then the job's end, then replacements, and the tidying last.
The first rule with an answer ends the round; the caller applies it, looks again, and so every rule
sees facts that the rules before it agree with.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from spothop.wire import (
    JOB_ACTIVE,
    AttemptState,
    EndReason,
    JobState,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.core import failures, handover, replace
from spothop_master.core.actions import (
    Action,
    AllowFence,
    AskTermination,
    EndAttempt,
    ReleaseVm,
    StopAttempt,
)
from spothop_master.core.facts import BY_USER, AttemptFacts, Snapshot, VmFacts
from spothop_master.core.watch import cloud_says, past_deadline, silence

Rule = Callable[[Snapshot], list[Action]]

_END_OF_VM = {
    VmReason.PREEMPTED: EndReason.PREEMPTED,
    VmReason.RELEASED: EndReason.INFRASTRUCTURE,
    VmReason.NEVER_JOINED: EndReason.INFRASTRUCTURE,
    VmReason.AGENT_LOST: EndReason.INFRASTRUCTURE,
    VmReason.FAILED: EndReason.INFRASTRUCTURE,
    VmReason.ORPHAN: EndReason.INFRASTRUCTURE,
}


def decide(snapshot: Snapshot) -> list[Action]:
    """The first rule's answer; an empty list when there is nothing to do now."""
    for rule in _RULES if snapshot.job.state in JOB_ACTIVE else _RULES_AFTER:
        if actions := rule(snapshot):
            return actions
    return []


def ends_of_vms(snapshot: Snapshot) -> list[Action]:
    """An attempt outlives none of its VMs; one whose launch was refused gets another VM instead.

    Of several that are over at once, a preemption explains the end: it is nobody's failure.
    """
    actions: list[Action] = []
    for attempt in snapshot.living:
        ends = [end for vm in snapshot.vms_of(attempt) if (end := _end_by(vm)) is not None]
        preempted = [end for end in ends if end[0] is EndReason.PREEMPTED]
        for why, text in (preempted or ends)[:1]:
            actions.append(EndAttempt(attempt=attempt.number, why=why, reason=text))
    return actions


def _end_by(vm: VmFacts) -> tuple[EndReason, str] | None:
    """What the VM's end means for an attempt on it; None while it lives or never came up."""
    if vm.alive or vm.reason is None or vm.reason is VmReason.LAUNCH_FAILED:
        return None
    why = EndReason.PREEMPTED if vm.notice_at else _END_OF_VM[vm.reason]
    return why, f"its VM is over: {vm.reason.value}"


def success(snapshot: Snapshot) -> list[Action]:
    """One attempt that succeeded is the job's success, whatever else still runs."""
    for attempt in snapshot.attempts:
        if attempt.reason is EndReason.SUCCEEDED:
            return replace.finish(snapshot, JobState.SUCCEEDED, attempt.detail)
    return []


def wanted_end(snapshot: Snapshot) -> list[Action]:
    """Cancel, pause, or out of time: stop what lives, then end the job."""
    wanted = _wanted_end(snapshot)
    if wanted is None:
        return []
    state, why, text = wanted
    if not snapshot.living:
        return replace.finish(snapshot, state, text)
    actions: list[Action] = []
    for attempt in snapshot.living:
        actions += _stop(snapshot, attempt, why, text)
    return actions


def superseded(snapshot: Snapshot) -> list[Action]:
    """Once a newer attempt is fenced in, an older one can save nothing more."""
    actions: list[Action] = []
    for attempt in snapshot.living:
        newer = [a for a in snapshot.attempts if a.number > attempt.number and a.fenced_at]
        if newer:
            why = EndReason.PREEMPTED if attempt.notice_at else EndReason.FENCED
            text = f"attempt {newer[-1].number} is fenced in"
            actions.append(EndAttempt(attempt=attempt.number, why=why, reason=text))
    return actions


def hopeless(snapshot: Snapshot) -> list[Action]:
    """A replacement that got a notice before it was fenced in holds nothing worth a grace period.

    Ending it at once makes room for the next one: two attempts of a job at most.
    """
    older_alive = len(snapshot.living) > 1
    newest = snapshot.newest
    if not older_alive or newest is None or newest.state is not AttemptState.DRAINING:
        return []
    text = "a notice came before it had anything to save"
    return [EndAttempt(attempt=newest.number, why=EndReason.PREEMPTED, reason=text)]


def fences(snapshot: Snapshot) -> list[Action]:
    """May the newest attempt write its fence? Not while an older one may still save."""
    newest = snapshot.newest
    if newest is None or not newest.alive or newest.may_fence:
        return []
    older = [attempt for attempt in snapshot.living if attempt.number < newest.number]
    reasons = [handover.out_of_the_way(snapshot, attempt) for attempt in older]
    if any(reason is None for reason in reasons):
        return []
    if any(not past_deadline(snapshot, a) for a in older) and newest.prepared_at is None:
        return []  # the old one may go on training until this one is ready
    text = "; ".join(r for r in reasons if r) or "no older attempt can commit any more"
    return [AllowFence(attempt=newest.number, reason=text)]


def tidy(snapshot: Snapshot) -> list[Action]:
    """VMs that no attempt needs."""
    needed = {place.vm for attempt in snapshot.living for place in attempt.places}
    if replace.waits_for_same_vms(snapshot) and snapshot.newest is not None:
        needed |= {place.vm for place in snapshot.newest.places}
    return [
        ReleaseVm(vm=vm.id, why=VmReason.RELEASED, reason="no attempt needs it")
        for vm in snapshot.vms
        if vm.alive and vm.id not in needed
    ]


def ask(snapshot: Snapshot) -> list[Action]:
    """A VM on its way out: tell the cloud until its listing agrees (I3). One whose launch has not
    returned yet is told of as soon as it has an id."""
    again = snapshot.limits.ask_again_s
    return [
        AskTermination(vm=vm.id, reason="not over yet" if vm.asked_s else _why(vm))
        for vm in snapshot.vms
        if vm.state is VmState.TERMINATING and vm.cloud_id is not None and not vm.in_flight
        if vm.asked_s is None or vm.asked_s >= again
    ]


def _why(vm: VmFacts) -> str:
    return vm.reason.value if vm.reason else "not needed"


def _wanted_end(snapshot: Snapshot) -> tuple[JobState, EndReason, str] | None:
    """A pause comes before the end of its time, which does not run on while it lasts."""
    job = snapshot.job
    if job.wanted is Wanted.CANCELLED:
        return JobState.CANCELLED, EndReason.CANCELLED, job.why or "cancelled by the user"
    if job.wanted is Wanted.PAUSED:
        return JobState.PAUSED, EndReason.PAUSED, job.why or "paused by the user"
    if job.ends_at is not None and snapshot.now >= job.ends_at:
        text = f"max_duration of {job.requirements.max_duration_s:.0f} s is over"
        return JobState.FAILED, EndReason.CANCELLED, text
    return None


def _stop(snapshot: Snapshot, attempt: AttemptFacts, why: EndReason, text: str) -> list[Action]:
    if not any(vm.alive and vm.joined_at is not None for vm in snapshot.vms_of(attempt)):
        return [EndAttempt(attempt=attempt.number, why=why, reason=text)]
    if attempt.stop_wanted is None:
        return [StopAttempt(attempt=attempt.number, why=why, reason=text)]
    return _end_late(snapshot, attempt, why, text)


def _end_late(snapshot: Snapshot, attempt: AttemptFacts, why: EndReason, text: str) -> list[Action]:
    waited = snapshot.now - (attempt.stop_at or snapshot.now)
    if waited >= timedelta(seconds=attempt.stop_timeout_s(snapshot.limits)):
        late = f"{text}; no exit reported within {waited.total_seconds():.0f} s"
        return [EndAttempt(attempt=attempt.number, why=why, reason=late)]
    return []


def stopped(snapshot: Snapshot) -> list[Action]:
    """A stop has its time and no more, also where the user has resumed the job meanwhile."""
    actions: list[Action] = []
    for attempt in snapshot.living:
        if attempt.stop_wanted in BY_USER:
            text = f"it was {attempt.stop_wanted}"
            actions += _end_late(snapshot, attempt, attempt.stop_wanted, text)
    return actions


def stopping(snapshot: Snapshot) -> bool:
    return _wanted_end(snapshot) is not None


def _unless_stopping(rule: Rule) -> Rule:  # pragma: no mutate block, bound at import
    return lambda snapshot: [] if stopping(snapshot) else rule(snapshot)


_RULES_AFTER: tuple[Rule, ...] = (cloud_says, ends_of_vms, replace.resume, tidy, ask)
_RULES: tuple[Rule, ...] = (
    cloud_says,
    silence,
    ends_of_vms,
    success,
    wanted_end,
    failures.budgets,
    superseded,
    hopeless,
    _unless_stopping(stopped),
    _unless_stopping(replace.replacement),
    _unless_stopping(handover.last_saves),
    _unless_stopping(fences),
    tidy,
    ask,
)
