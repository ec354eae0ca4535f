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

A cloud has thousands of pools, and after a notice time is short. In which order they come without
any trouble is the same for all jobs that ask for the same, until the offers change, so those
(`Prices`) remember it. What is left for each decision is the trouble, which few pools have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from spothop.catalog.needs import Shape
from spothop.wire import ANY_ZONE, Pool, VmReason
from spothop_master.core.facts import Match, Requirements, VmFacts
from spothop_master.core.refusals import FINAL, PoolRefusal

NOTHING_KNOWN: Mapping[Pool, Shape] = {}


REMEMBERED = 256
"""Different wishes for which an order is remembered; most users want the same all day."""

Harm: TypeAlias = tuple[datetime, str]
"""When, and what."""


class Ranked(NamedTuple):
    """A pool that a job may use, by its place without any trouble."""

    rank: int
    """Of the first entry of `any_of` that it matches."""
    price: float
    name: str
    """Ties by name: the same facts always give the same order."""
    pool: Pool


class Prices(dict[Pool, float]):
    """What pools cost, USD an hour, with what their VM types have; whoever made it changes nothing
    of it. Remembers how its pools are ranked. Thread-safe."""

    def __init__(self, prices: Mapping[Pool, float], shapes: Mapping[Pool, Shape]) -> None:
        super().__init__(prices)
        self._shapes = shapes
        self._known: dict[tuple[object, ...], tuple[Ranked, ...]] = {}

    def ranked(self, requirements: Requirements) -> tuple[Ranked, ...]:
        asked = (requirements.any_of, requirements.spot, requirements.max_price)
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known = {}
            found = self._known[asked] = tuple(_ranked(self, requirements, self._shapes))
        return found


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
    among them is taken by its name only. (`Prices` know their own.) `history` is this job's VMs,
    `refusals` what pools answered to it. A preemption counts against the whole zone: in a public
    record of AWS p3 spot VMs (Bamboo, NSDI 2023) three of four removals were followed by another
    one within 3 minutes. A refusal counts against the pool alone.
    """
    known = {refusal.pool: refusal for refusal in refusals}
    since = now - timedelta(seconds=avoid_s)
    harms = [(place, harm) for place, harm in _harms(history) if harm[0] > since]
    if isinstance(offers, Prices):
        ranked: Iterable[Ranked] = offers.ranked(requirements)
    else:
        ranked = _ranked(offers, requirements, shapes)
    if not harms and not known:
        return [Choice(each.pool, each.price, None, now) for each in ranked]
    of_places: dict[tuple[str, str, str], Harm | None] = {}
    well: list[Choice] = []
    bad: list[tuple[datetime, Choice]] = []
    for _, price, _, pool in ranked:
        refusal = known.get(pool)
        if refusal is not None and refusal.error in FINAL:
            continue
        place = (pool.cloud, pool.region, pool.zone)
        if place not in of_places:  # of hundreds of pools in one zone it is the same
            of_places[place] = _last_harm(pool, harms)
        harm = of_places[place]
        if refusal is not None and refusal.last_at > since:
            harm = max(harm or (refusal.last_at, refusal.error), (refusal.last_at, refusal.error))
        if harm is None:
            well.append(Choice(pool, price, None, now))
        else:
            bad.append((harm[0], Choice(pool, price, harm, now)))
    bad.sort(key=itemgetter(0))
    return [*well, *(choice for _, choice in bad)]


def _ranked(
    offers: Mapping[Pool, float], requirements: Requirements, shapes: Mapping[Pool, Shape]
) -> list[Ranked]:
    """Those that a job may use, the best first."""
    found = []
    for pool, price in offers.items():
        rank = _preference(pool, requirements, shapes)
        if rank is None or (requirements.max_price is not None and price > requirements.max_price):
            continue
        found.append(Ranked(rank, price, str(pool), pool))
    return sorted(found, key=itemgetter(0, 1, 2))


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


def _last_harm(pool: Pool, harms: Sequence[tuple[Pool, Harm]]) -> Harm | None:
    """Of the place where the pool is."""
    return max((harm for place, harm in harms if same_place(place, pool)), default=None)


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
