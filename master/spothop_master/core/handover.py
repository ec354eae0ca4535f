"""From an attempt with a notice to the replacement that is ready. Pure.

What it must guarantee: no work that is worth a save is given away. The emergency save comes at once
after the notice, and training goes on meanwhile; the fence of the replacement ends that. Rules:

1. Nothing can be committed past the deadline: then the replacement may fence, whatever there is.
2. Before that it waits for the emergency save, and until it is ready itself.
3. What was trained since the newest checkpoint is worth one more save where it took longer than
   that save takes. Where there is time for it, the old attempt is stopped with a save, which is the
   last one; the fence waits for its commit, or for the end of the process.
4. Where there is no time for that, the agent makes a last save by itself, shortly before the
   deadline. It is waited for if the wait is shorter than what would be lost.
5. Without a notice, where the cloud only recommended to leave the VM, there is no deadline: the old
   attempt is stopped with a save as soon as its replacement is ready, and waited for like any stop.
6. An agent that is silent hears nothing, and is not waited for.

What does not work: a fence as soon as the emergency save is committed. All that was trained while
the replacement prepared, often a minute, was then computed twice.
"""

from __future__ import annotations

from spothop.wire import EndReason
from spothop_master.core import gang
from spothop_master.core.actions import Action, StopAttempt
from spothop_master.core.facts import AttemptFacts, Snapshot
from spothop_master.core.watch import past_deadline

HEARS_S = 2.0
"""A stop reaches the agent with one of its next syncs; they are a second apart after a notice."""


def last_saves(snapshot: Snapshot) -> list[Action]:
    """The older attempts that are to make their last save now, because the newest is ready."""
    newest = snapshot.newest
    if newest is None or not newest.alive or newest.may_fence or newest.prepared_at is None:
        return []
    text = f"attempt {newest.number} is ready: a last save, and it takes over"
    return [
        StopAttempt(attempt=older.number, why=EndReason.PREEMPTED, reason=text)
        for older in snapshot.living
        if older.number < newest.number
        and (_is_ahead_of_notice(older) or _has_time_for_a_last_save(snapshot, older))
    ]


def out_of_the_way(snapshot: Snapshot, older: AttemptFacts) -> str | None:
    """Why the older attempt commits nothing more that is worth a wait; None while it may."""
    if past_deadline(snapshot, older):
        return f"the deadline of attempt {older.number} is over"
    if older.notice_at is None:
        stopped = older.stop_at is not None and not _awaits_stop(snapshot, older)
        return f"attempt {older.number} did not end in time" if stopped else None
    if not older.saved_since_notice or _waited_for(snapshot, older):
        return None
    return f"attempt {older.number} has committed its last save"


def _is_ahead_of_notice(older: AttemptFacts) -> bool:
    return older.notice_at is None and older.stop_at is None


def _awaits_stop(snapshot: Snapshot, older: AttemptFacts) -> bool:
    assert older.stop_at is not None
    waited_s = (snapshot.now - older.stop_at).total_seconds()
    return waited_s < older.stop_timeout_s(snapshot.limits)


def _waited_for(snapshot: Snapshot, older: AttemptFacts) -> bool:
    if older.stop_at is not None:
        return not older.saved_since_stop and _awaits_stop(snapshot, older)
    if _has_time_for_a_last_save(snapshot, older):
        return True
    wait_s = _left_s(snapshot, older) + snapshot.limits.fence_margin_s
    return _talks(snapshot, older) and older.unsaved_s > max(older.last_save_s, wait_s)


def _has_time_for_a_last_save(snapshot: Snapshot, older: AttemptFacts) -> bool:
    return (
        older.saved_since_notice
        and older.stop_at is None
        and older.unsaved_s > older.last_save_s
        and _left_s(snapshot, older) > older.last_save_s + HEARS_S
        and _talks(snapshot, older)
    )


def _left_s(snapshot: Snapshot, older: AttemptFacts) -> float:
    """To the first deadline of its places; 0 without a notice."""
    deadline = gang.happened(place.deadline_at for place in older.places)
    return (deadline - snapshot.now).total_seconds() if deadline is not None else 0.0


def _talks(snapshot: Snapshot, older: AttemptFacts) -> bool:
    limit = snapshot.limits.suspect_after_s
    return all(vm.alive and vm.silent_s < limit for vm in snapshot.vms_of(older))
