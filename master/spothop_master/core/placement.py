"""In which order to try the pools. Pure.

What it must guarantee: the user's order comes first; every pool that may work is in the answer; a
job never asks the same failing pool again and again while others are left.

1. Only `any_of`, `spot`, `max_price` and a refusal that no repetition changes (`refusals.FINAL`)
   take a pool out. Trouble moves it to the end. A job whose pools all had trouble still has one to
   try. (A pool that is closed for a while is in the answer, too: `refusals.closed` names those.)
2. Trouble is forgotten after `avoid_s`, and among the pools with trouble the one whose trouble is
   longest ago comes first. So tries go round, and a pool that is well again is found.
3. It is judged from this job's own VMs and refusals, and it is the same for the same facts: a
   master that was restarted between two tries goes on where the other one stopped.

What does not work: leaving out pools with trouble for good (with one zone the job would stand
still), counting refusals (a pool that was full all day would be the last one for another day), and
the price alone (the cheapest pool is often the one that is being emptied).

A cloud has thousands of pools, and after a notice time is short: what is asked of every pool is a
few comparisons, and the rest only of those that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from spothop.catalog.needs import Shape
from spothop.wire import ANY_ZONE, Pool, VmReason
from spothop_master.core.facts import Match, Requirements, VmFacts
from spothop_master.core.refusals import FINAL, PoolRefusal

NOTHING_KNOWN: Mapping[Pool, Shape] = {}


Harm: TypeAlias = tuple[datetime, str]
"""When, and what."""


class Choice(NamedTuple):
    """A pool with the reason for its place."""

    pool: Pool
    price: float
    harm: Harm | None
    """The newest trouble."""
    now: datetime

    @property
    def reason(self) -> str:
        """In words; of thousands of choices one is told."""
        return _reason(self.pool, self.price, self.harm, self.now)


def order(
    offers: Mapping[Pool, float],
    requirements: Requirements,
    history: Sequence[VmFacts] = (),
    refusals: Sequence[PoolRefusal] = (),
    *,
    shapes: Mapping[Pool, Shape] = NOTHING_KNOWN,
    avoid_s: float,
    now: datetime,
) -> list[Choice]:
    """In the order of `any_of`, then by price. Pools with trouble lately come last; the one
    whose trouble is longest ago is the first of these.

    What a job asks of a VM (GPU, CPUs, memory) is compared with `shapes`; a VM type that is not
    among them is taken by its name only. `history` is this job's VMs, `refusals` what pools
    answered to it. A preemption counts against the whole zone: in a public record of AWS p3 spot
    VMs (Bamboo, NSDI 2023) three of four removals were followed by another one within 3 minutes. A
    refusal counts against the pool alone.
    """
    known = {refusal.pool: refusal for refusal in refusals}
    since = now - timedelta(seconds=avoid_s)
    harms = [(place, harm) for place, harm in _harms(history) if harm[0] > since]
    ranked = []
    for pool, price in offers.items():
        rank = _preference(pool, requirements, shapes)
        if rank is None or (requirements.max_price is not None and price > requirements.max_price):
            continue
        refusal = known.get(pool) if known else None
        if refusal is not None and refusal.error in FINAL:
            continue
        bad = _last_harm(pool, harms, refusal, since=since) if harms or refusal else None
        when = bad[0].timestamp() if bad else 0.0
        # ties by name: the same facts always give the same order
        ranked.append((when, rank, price, str(pool), pool, bad))
    ranked.sort(key=itemgetter(0, 1, 2, 3))
    return [Choice(pool, price, bad, now) for _, _, price, _, pool, bad in ranked]


def _preference(pool: Pool, requirements: Requirements, shapes: Mapping[Pool, Shape]) -> int | None:
    """Index of the first entry of `any_of` that it matches; None when there is none."""
    if pool.spot != requirements.spot:
        return None
    if not requirements.any_of:
        return 0
    for rank, match in enumerate(requirements.any_of):
        # the shape is looked up last: most pools have another name
        if _named(pool, match) and (not match.needs or match.needs.admits(shapes.get(pool))):
            return rank
    return None


def _named(pool: Pool, match: Match) -> bool:
    return (
        match.vm in (None, pool.vm)
        and match.zone in (None, pool.zone)
        and match.region in (None, pool.region)
        and match.cloud in (None, pool.cloud)
    )


def _harms(history: Sequence[VmFacts]) -> list[tuple[Pool, Harm]]:
    """Of spot VMs, each with its pool."""
    found = []
    for vm in history:
        if not vm.pool.spot:
            continue
        if vm.notice_at is not None:
            found.append((vm.pool, (vm.notice_at, "preempted")))
        elif vm.at_risk_at is not None:
            found.append((vm.pool, (vm.at_risk_at, "at risk")))
        elif vm.reason is VmReason.PREEMPTED and vm.ended_at is not None:
            found.append((vm.pool, (vm.ended_at, "preempted")))
    return found


def _last_harm(
    pool: Pool,
    harms: Sequence[tuple[Pool, Harm]],
    refusal: PoolRefusal | None,
    *,
    since: datetime,
) -> Harm | None:
    here = [harm for place, harm in harms if same_place(place, pool)]
    if refusal is not None:
        here.append((refusal.last_at, refusal.error))
    return max((harm for harm in here if harm[0] > since), default=None)


def same_place(one: Pool, other: Pool) -> bool:
    """A pool without a zone of its own may give a VM in any of its region."""
    if (one.cloud, one.region) != (other.cloud, other.region):
        return False
    return one.zone == other.zone or ANY_ZONE in (one.zone, other.zone)


def _reason(pool: Pool, price: float, bad: Harm | None, now: datetime) -> str:
    text = f"{pool} at {price:g} USD/h"
    if bad is None:
        return text
    ago = (now - bad[0]).total_seconds()
    return f"{text}, tried last ({bad[1]} {ago:.0f} s ago)"
