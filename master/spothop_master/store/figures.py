"""Sums over the rows of one job. No queries: the rows are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from spothop.wire import AttemptState, EndReason
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


@dataclass(frozen=True, kw_only=True)
class Account:
    """A `Bill` without the moment and without the newest steps, so that it changes only with the
    rows of attempts and VMs and not with every sync: `cost` and `on_demand` add those."""

    settled: float
    """USD at `settled_at`, or for good where no VM runs."""
    settled_at: datetime | None
    rate: float
    """USD an hour of what runs."""
    ran: Attempt | None
    """The newest attempt that has a step; its steps are not in `useful`."""
    ran_rate: float
    """USD a second on demand of its VMs."""
    useful: float
    """USD on demand."""
    start: float
    """USD on demand of one start."""
    any_spot: bool


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
    shares = _shares(attempts)
    useful = sum(share.kept_s * _rate(share.attempt, by_id, on_demand=True) for share in shares)
    start = _start(shares, by_id)
    return Bill(
        cost=sum(cost(vm, vm.price, now=now) for vm in vms),
        on_demand=useful + start if useful > 0 and _any_spot(vms) else None,
        lost=sum(share.lost_s * _rate(share.attempt, by_id, on_demand=False) for share in shares),
    )


def account(attempts: Sequence[Attempt], vms: Sequence[VmRow]) -> Account:
    """`attempts` by number; `vms` those that ran and those of the attempts."""
    by_id = {vm.id: vm for vm in vms}
    shares = _shares(attempts)
    newest = shares[-1] if shares else None
    running = [vm for vm in vms if vm.running_at is not None and vm.ended_at is None]
    began = [vm.running_at for vm in running if vm.running_at is not None]
    settled_at = max(began, default=None)
    ended = sum(cost(vm, vm.price, now=vm.ended_at) for vm in vms if vm.ended_at is not None)
    so_far = sum(cost(vm, vm.price, now=settled_at) for vm in running if settled_at is not None)
    return Account(
        settled=ended + so_far,
        settled_at=settled_at,
        rate=sum(vm.price for vm in running),
        ran=newest.attempt if newest else None,
        ran_rate=_rate(newest.attempt, by_id, on_demand=True) if newest else 0.0,
        useful=sum(s.kept_s * _rate(s.attempt, by_id, on_demand=True) for s in shares[:-1]),
        start=_start(shares, by_id),
        any_spot=_any_spot(vms),
    )


def _any_spot(vms: Sequence[VmRow]) -> bool:
    return any(vm.spot for vm in vms if vm.running_at is not None)


def _rate(attempt: Attempt, vms: Mapping[str, VmRow], *, on_demand: bool) -> float:
    """USD a second of all places of an attempt."""
    rows = [vms[place.vm_id] for place in attempt.places]
    return sum(vm.on_demand_price if on_demand else vm.price for vm in rows) / 3600


def _start(shares: Sequence[_Share], vms: Mapping[str, VmRow]) -> float:
    """USD on demand of the first start that came to a step."""
    for share in shares:
        if share.attempt.first_step_at is not None:
            return _start_s(share.attempt, vms) * _rate(share.attempt, vms, on_demand=True)
    return 0.0


def preemptions(attempts: Sequence[Attempt]) -> int:
    """Attempts that a preemption ended, and those with a notice."""
    return sum(a.reason == EndReason.PREEMPTED.value or a.notice_at is not None for a in attempts)


def newest_metrics(attempts: Sequence[Attempt]) -> dict[str, float]:
    """`attempts` by number: a later one logs only when the earlier ones cannot any more (I2)."""
    found: dict[str, float] = {}
    for attempt in attempts:
        found.update(attempt.metrics or {})
    return found


def is_starting(attempt: Attempt | None) -> bool:
    """Its process runs, and has not begun a step."""
    return (
        attempt is not None
        and attempt.state == AttemptState.PREPARING.value
        and attempt.started_at is not None
        and attempt.first_step_at is None
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
