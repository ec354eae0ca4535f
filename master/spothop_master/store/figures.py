"""Sums over the rows of one job. No queries: the rows are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spothop.wire import AttemptState
from spothop_master.store.schema import Attempt, VmRow


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a job's steps were worth."""

    useful_s: float
    """Wall time inside steps that were not computed again (seconds)."""
    recomputed_steps: int


def cost(vm: VmRow, price: float, *, now: datetime) -> float:
    """USD from the moment the cloud said running to the end, at `price` USD an hour."""
    if vm.running_at is None:
        return 0.0
    seconds = ((vm.ended_at or now) - vm.running_at).total_seconds()
    return max(0.0, seconds) * price / 3600


def current_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """The one that trains; else the newest that has not ended; else the newest. By number."""
    alive = [attempt for attempt in attempts if attempt.state != AttemptState.ENDED]
    training = [attempt for attempt in alive if attempt.fenced_in]
    for group in (training, alive, attempts):
        if group:
            return group[-1]
    return None


def newest_step(attempts: Sequence[Attempt]) -> int | None:
    """Of the newest attempt that has one: before its first step that is the step it restored."""
    for attempt in reversed(attempts):
        known = [s for s in (attempt.last_step, attempt.restored_step) if s is not None]
        if known:
            return max(known)
    return None


def progress(attempts: Sequence[Attempt]) -> Progress:
    """`attempts` by number. Steps of one beyond those that a later one restored were lost."""
    ran = [a for a in attempts if a.last_step is not None or a.restored_step is not None]
    useful, recomputed = 0.0, 0
    following: int | None = None  # where the next attempt began
    floor: int | None = None  # where the lowest of all later ones began
    for attempt in reversed(ran):
        start = attempt.restored_step or 0
        last = start if attempt.last_step is None else attempt.last_step
        kept = last if floor is None else min(last, floor)
        useful += max(0, kept - start) * (attempt.step_s or 0.0)
        recomputed += 0 if following is None else max(0, last - following)
        following = start
        floor = start if floor is None else min(floor, start)
    return Progress(useful_s=useful, recomputed_steps=recomputed)
