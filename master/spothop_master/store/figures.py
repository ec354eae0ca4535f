"""Sums over the rows of one job. No queries: the rows are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    lost_s: float
    """Wall time inside the steps that were lost (seconds)."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a job cost so far, and what it would have cost without preemptions, on demand (USD)."""

    cost: float
    """Of all its VMs, from running to the end of each."""
    on_demand: float | None
    """The useful steps and one start (from running to the first step) at the on-demand price of
    the VMs that made them. Saves are left out, so that the comparison rather flatters on demand.
    None before the first useful step, and where no VM was spot."""
    lost: float
    """What the steps that were lost cost, at the price of the VMs that made them."""


@dataclass(frozen=True)
class _Share:
    """The steps of one attempt."""

    attempt: Attempt
    kept: int
    lost: int
    """Beyond where the next attempt began."""

    @property
    def kept_s(self) -> float:
        return self.kept * (self.attempt.step_s or 0.0)

    @property
    def lost_s(self) -> float:
        return self.lost * (self.attempt.step_s or 0.0)


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
    shares = _shares(attempts)
    return Progress(
        useful_s=sum(share.kept_s for share in shares),
        recomputed_steps=sum(share.lost for share in shares),
        lost_s=sum(share.lost_s for share in shares),
    )


def bill(attempts: Sequence[Attempt], vms: Sequence[VmRow], *, now: datetime) -> Bill:
    """`attempts` by number, `vms` all of the job's."""
    by_id = {vm.id: vm for vm in vms}

    def rate(attempt: Attempt, *, on_demand: bool) -> float:
        """USD a second of all places of an attempt."""
        rows = [by_id[place.vm_id] for place in attempt.places]
        return sum(vm.on_demand_price if on_demand else vm.price for vm in rows) / 3600

    shares = _shares(attempts)
    useful = sum(share.kept_s * rate(share.attempt, on_demand=True) for share in shares)
    start = next(
        (
            _start_s(share.attempt, by_id) * rate(share.attempt, on_demand=True)
            for share in shares
            if share.attempt.first_step_at is not None
        ),
        0.0,
    )
    return Bill(
        cost=sum(cost(vm, vm.price, now=now) for vm in vms),
        on_demand=useful + start if useful > 0 and any(vm.spot for vm in vms) else None,
        lost=sum(share.lost_s * rate(share.attempt, on_demand=False) for share in shares),
    )


def _start_s(attempt: Attempt, vms: Mapping[str, VmRow]) -> float:
    """From the moment its VM ran to its first step (seconds)."""
    running_at = vms[attempt.leader.vm_id].running_at
    if running_at is None or attempt.first_step_at is None:
        return 0.0
    return max(0.0, (attempt.first_step_at - running_at).total_seconds())


def _shares(attempts: Sequence[Attempt]) -> list[_Share]:
    """Of those that ran, by number: what of each still counts."""
    ran = [a for a in attempts if a.last_step is not None or a.restored_step is not None]
    shares: list[_Share] = []
    following: int | None = None  # where the next attempt began
    floor: int | None = None  # where the lowest of all later ones began
    for attempt in reversed(ran):
        start = attempt.restored_step or 0
        last = start if attempt.last_step is None else attempt.last_step
        kept = last if floor is None else min(last, floor)
        lost = 0 if following is None else max(0, last - following)
        shares.append(_Share(attempt, max(0, kept - start), lost))
        following = start
        floor = start if floor is None else min(floor, start)
    return shares[::-1]
