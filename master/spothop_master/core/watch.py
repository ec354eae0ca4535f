"""What the clouds' listings, and agents that are silent, say about VMs. Pure.

What it must guarantee: a VM counts as terminated only when its cloud says so, and a launch as
failed only when nothing can come of it any more (I3). An answer that got lost is therefore no
evidence; the listing is. Four rules:

1. A listing without a VM says something only if it began `settle_s` after the launch, and after the
   end of the call for it: clouds list a new VM late, and a call may hang for a minute before it
   makes one. Before that nothing follows from it.
   But who was to make a launch may have died on the way. Another process asks for the same at once,
   with the same token: the cloud makes one VM for it, and answers sooner than its listing.
2. Without a cloud id and without an agent that joined, a VM that such a listing lacks was never
   made. Otherwise it is over, but only if we asked for that or its agent is silent, too: a listing
   may lack a VM that runs, and an agent that talks is the better evidence.
3. A cloud may forget a VM that it took. Where it keeps a record of that, the record is what ends
   the VM, and it is waited for as long as silence is borne. A refusal that comes after the launch
   was accepted is a refusal, not an end of a VM, as long as no agent has joined.
4. Silence alone only makes a VM suspect. A longer one (or one past the deadline of its notice)
   releases it; it is then over when the cloud says so. Of many that fell silent together none is
   released for much longer: it is then more likely that nobody reaches the master, whose VMs train
   on and save.
5. A VM that is silent and of which its cloud says that it takes it back is not waited for: nobody
   but the cloud can tell of that notice. An agent that talks tells of its notice by itself, and
   earlier.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spothop.wire import VmReason, VmState
from spothop_master.core.actions import (
    Action,
    Adopt,
    LaunchLost,
    LaunchRefused,
    MarkRunning,
    MarkSuspect,
    ReleaseVm,
    RepeatLaunch,
    VmOver,
)
from spothop_master.core.facts import AttemptFacts, Snapshot, VmFacts

TALKING = (VmState.READY, VmState.RUNNING, VmState.DRAINING)


def cloud_says(snapshot: Snapshot) -> list[Action]:
    """The listing against our rows, VM by VM."""
    actions: list[Action] = []
    for vm in snapshot.vms:
        if vm.state is not VmState.TERMINATED:
            action = _seen(vm) if vm.sighting else _unseen(snapshot, vm)
            actions += [action] if action else []
    return actions


def silence(snapshot: Snapshot) -> list[Action]:
    """Missed syncs, agents that never joined, and notices whose deadline passed in silence."""
    actions: list[Action] = []
    for vm in snapshot.vms:
        if vm.state in TALKING:
            actions += _quiet(snapshot, vm)
        elif vm.state is VmState.BOOTING:
            actions += _unjoined(snapshot, vm)
    return actions


SHARE, AT_LEAST = 0.5, 5
"""Of the VMs that this master heard or waits for."""


def together(silent: int, known: int) -> bool:
    """More VMs fell silent than would by themselves."""
    return silent >= AT_LEAST and silent > SHARE * known


def past_deadline(snapshot: Snapshot, attempt: AttemptFacts) -> bool:
    """Of every place: until then one of them may still commit."""
    deadlines = [place.deadline_at for place in attempt.places]
    return all(deadline is not None and _over(snapshot, deadline) for deadline in deadlines)


def _over(snapshot: Snapshot, deadline: datetime) -> bool:
    return snapshot.now >= deadline + timedelta(seconds=snapshot.limits.fence_margin_s)


def _seen(vm: VmFacts) -> Action | None:
    seen = vm.sighting
    assert seen is not None
    if vm.cloud_id is None:
        return Adopt(vm=vm.id, reason=f"the cloud has its token as {seen.cloud_id}")
    if seen.refused is not None and vm.state is VmState.BOOTING and vm.joined_at is None:
        text = f"{vm.pool} refused after it had accepted: {seen.refused.detail}"
        return LaunchRefused(vm=vm.id, refused=seen.refused, kept=not seen.over, reason=text)
    if seen.over:
        return VmOver(vm=vm.id, reason=f"the cloud says it is over: {seen.why}")
    if seen.running_at is not None and vm.running_at is None:
        return MarkRunning(vm=vm.id, running_at=seen.running_at, reason="the cloud says it runs")
    return None


def _unseen(snapshot: Snapshot, vm: VmFacts) -> Action | None:
    since = vm.launched_at or vm.requested_at
    if vm.cloud_id is None:
        if vm.in_flight:
            return None
        if _is_left_over(snapshot, vm):
            text = "who was to ask for it is gone; asking the same"
            return RepeatLaunch(vm=vm.id, reason=text)
        since = max(since, vm.effect_until or since)
    settled = since + timedelta(seconds=vm.settle_s)
    if vm.listed_at is None or vm.listed_at < settled:
        return None
    if vm.cloud_id is None and vm.joined_at is None:
        return LaunchLost(vm=vm.id, reason="the cloud has no VM with its token")
    if vm.record is not None:
        return VmOver(vm=vm.id, reason=f"the cloud's own record says: {vm.record.value}")
    # One listing without it is not enough against an agent that still talks.
    limits = snapshot.limits
    patience_s = limits.silent_after_s if vm.awaits_record else limits.suspect_after_s
    if vm.state is VmState.TERMINATING or vm.silent_s >= patience_s:
        return VmOver(vm=vm.id, reason="the cloud does not know it any more")
    return None


REPEATED_WITHIN = timedelta(hours=1)
"""Of the request; no cloud remembers tokens for ever."""


def _is_left_over(snapshot: Snapshot, vm: VmFacts) -> bool:
    """Where listings show VMs at once, they tell as soon."""
    waits = vm.state is VmState.REQUESTED and vm.joined_at is None and not vm.called_here
    return waits and vm.settle_s > 0 and snapshot.now - vm.requested_at < REPEATED_WITHIN


def _quiet(snapshot: Snapshot, vm: VmFacts) -> list[Action]:
    limits, silent = snapshot.limits, f"silent for {vm.silent_s:.0f} s"
    suspect = vm.silent_s >= limits.suspect_after_s
    if vm.deadline_at is not None:
        if suspect and _over(snapshot, vm.deadline_at):
            text = f"{silent} past the deadline of its notice"
            return [ReleaseVm(vm=vm.id, why=VmReason.PREEMPTED, reason=text)]
    elif suspect and (taken := _taken(vm)):
        return [taken]
    elif vm.silent_s >= patience_s(snapshot):
        return [ReleaseVm(vm=vm.id, why=VmReason.AGENT_LOST, reason=silent)]
    if suspect != (vm.suspect_at is not None):
        text = f"{silent}; asking the cloud" if suspect else "it reports again"
        return [MarkSuspect(vm=vm.id, suspect=suspect, reason=text)]
    return []


def patience_s(snapshot: Snapshot) -> float:
    """The silence that ends a VM (seconds)."""
    limits = snapshot.limits
    if not snapshot.silent_together:
        return limits.silent_after_s
    return max(limits.silent_after_s, limits.silent_together_s)


def _taken(vm: VmFacts) -> Action | None:
    if vm.sighting is None or not vm.sighting.taken:
        return None
    text = f"the cloud takes it back: {vm.sighting.why}"
    return ReleaseVm(vm=vm.id, why=VmReason.PREEMPTED, reason=text)


def _unjoined(snapshot: Snapshot, vm: VmFacts) -> list[Action]:
    if (taken := _taken(vm)) is not None:
        return [taken]
    since = vm.running_at or vm.launched_at or vm.requested_at
    waited_s = (snapshot.now - since).total_seconds()
    if waited_s < vm.join_timeout_s:
        return []
    text = f"its agent did not join within {waited_s:.0f} s"
    return [ReleaseVm(vm=vm.id, why=VmReason.NEVER_JOINED, reason=text)]
