"""The figures of pools for those who ask at every sync: read seldom, and never while writing.

Reading them costs what the fleet is large: every living VM and thousands of ended lives. They
change slowly. So they are kept for a while, and the while grows with what reading took: a small
fleet's are a second old at most, and a large one's cost a twentieth of a core at most.

A transaction that writes uses what there is (`of`); `warm` is called before it, without a lock.
Only what was never read is waited for: older figures serve until the new ones are there. (Read by
whoever was to answer syncs, they kept all of them waiting for a third of a second.)

What does not work: sums that each observation adds to. The estimates weigh each life by its age and
by the lives around it, so that nothing that can be added stands still.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from spothop.wire import Pool
from spothop_master.store.observations import STATED, Priors
from spothop_master.store.pool_figures import PoolFigures, of_pools
from spothop_master.store.zone_observations import Region, region_of

log = logging.getLogger(__name__)

LEAST_S, MOST_S = 1.0, 60.0
SHARE = 20
"""They are kept for so many times what reading them took."""


class Statistics:
    """What is known of pools, and what is assumed where nothing is. Reads at every question."""

    def __init__(self, priors: Priors) -> None:
        self.priors = priors

    def of(self, session: Session, pool: Pool, *, now: datetime) -> PoolFigures:
        return of_pools(session, [pool], self.priors, now=now)[pool]


FRESH = Statistics(STATED)
"""With the defaults of the settings."""


@dataclass(frozen=True, kw_only=True)
class _Region:
    """The figures of those of its pools that somebody asked for; read together."""

    figures: Mapping[Pool, PoolFigures]
    until: float
    """On the monotonic clock."""


class KeptStatistics(Statistics):
    """Thread-safe. `later` does what it is given, at once or in another thread."""

    def __init__(
        self,
        priors: Priors,
        read: Callable[[], AbstractContextManager[Session]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        later: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        super().__init__(priors)
        self._later = later
        self._read = read
        self._monotonic = monotonic
        self._regions: dict[Region, _Region] = {}
        self._reading = threading.Lock()

    def warm(self, pool: Pool, *, now: datetime) -> None:
        """Read them anew if they are old: in a transaction of its own, so outside any other. While
        another thread is doing that, what there is serves."""
        known = self._known(pool)
        if known is not None and self._monotonic() < known.until:
            return
        if not self._reading.acquire(blocking=known is None):
            return
        if known is None:
            self._renew(pool, now)
            return
        try:
            self._later(partial(self._renew_quietly, pool, now))
        except RuntimeError:  # no thread: what there is serves
            self._reading.release()

    def _renew(self, pool: Pool, now: datetime) -> None:
        """With the lock, which is released."""
        try:
            with self._read() as session:
                self._remember(session, [pool], now)
        finally:
            self._reading.release()

    def _renew_quietly(self, pool: Pool, now: datetime) -> None:
        try:
            self._renew(pool, now)
        except Exception:  # the database is away: older figures serve, and the next one tries again
            log.exception("the figures of %s could not be read anew", pool)

    def warm_all(self, pools: Collection[Pool], *, now: datetime) -> None:
        """The same for several pools: each region is read once."""
        unknown = {pool for pool in pools if self._known(pool) is None}
        if unknown:
            with self._reading, self._read() as session:
                for region in {region_of(pool) for pool in unknown}:
                    some = [pool for pool in unknown if region_of(pool) == region]
                    self._remember(session, some, now)
        for region in {region_of(pool) for pool in pools}:
            self.warm(next(pool for pool in pools if region_of(pool) == region), now=now)

    def of(self, session: Session, pool: Pool, *, now: datetime) -> PoolFigures:
        """As old as they may be; read in this session when there are none."""
        known = self._known(pool)
        return (known or self._remember(session, [pool], now)).figures[pool]

    def _known(self, pool: Pool) -> _Region | None:
        known = self._regions.get(region_of(pool))
        return known if known is not None and pool in known.figures else None

    def _remember(self, session: Session, pools: Sequence[Pool], now: datetime) -> _Region:
        """These pools are of one region."""
        began, region = self._monotonic(), region_of(pools[0])
        before = self._regions.get(region)
        pools = [*dict.fromkeys([*pools, *(before.figures if before else ())])]
        figures = of_pools(session, pools, self.priors, now=now)
        for each in figures.values():
            each.settle()
        done = self._monotonic()
        keep_s = min(MOST_S, max(LEAST_S, SHARE * (done - began)))
        found = self._regions[region] = _Region(figures=figures, until=done + keep_s)
        return found
