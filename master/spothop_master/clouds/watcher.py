"""What the clouds said lately: their listings and their offers, read in the background.

It is the only caller of `Cloud.list`, `Cloud.pools` and `KeepsRecords.end_cause`: the loops and the
routes read its newest answers. A cloud that is slow or away therefore delays nobody, however many
ask, and is asked no more often than it allows. Three rules:

1. At most one question of a kind is on its way to each cloud. A question that failed is asked again
   after a back-off, and the last answer stays meanwhile.
2. An answer carries when its asking began. What happened later may be missing in it, so a reader
   who needs an answer from after some moment compares `began_at`, never the time of arrival.
3. Answers only get newer: by rule 1 no older one can arrive after a newer one.

A cloud that lists region by region (`ListsByRegion`) is asked for each by itself, so one that
does not answer hides no VM elsewhere. Of VMs in a region that was never heard nothing is known.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial

from spothop.backoff import delay_s
from spothop.catalog.needs import Shape
from spothop.catalog.table import Catalogue, packaged
from spothop.wire import Pool
from spothop_master.clouds.base import (
    Cloud,
    CloudError,
    CloudLimits,
    KeepsRecords,
    ListsByRegion,
    PoolInfo,
    TellsGaps,
    Throttled,
    Vm,
)
from spothop_master.core.evidence import EndCause
from spothop_master.core.placement import Prices

log = logging.getLogger(__name__)

BACKOFF_BASE_S, BACKOFF_MAX_S = 1.0, 30.0
LONGEST_WAIT_S = 300.0
"""What a cloud asks for is followed up to this: VMs go unwatched meanwhile."""

ADAPTER_FAULT = "its adapter failed; the master's log has the trace"
"""For users, in place of an error that nobody wrote for them."""

LIST, OFFERS, RECORD = "list", "offers", "record"
"""The kinds of questions; that for a listing may be one for each region, that for a record is one
for each VM."""

SILENT = 4
"""Listings that fail in a row: with the back-off, some ten seconds."""

RECORD_EVERY = timedelta(seconds=5)
"""Between two questions about the same VM."""

RECORDS_AT_ONCE = 3
"""Questions about VMs that are on their way to one cloud; a zone that is emptied makes hundreds,
and the threads are those of all clouds."""

RECORDS = 10_000
"""So many answers are kept: those about VMs whose end is written down serve nobody any more."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One answer of `Cloud.list`, or of `ListsByRegion.list_region`."""

    began_at: datetime
    """A VM that was launched after this may be missing."""
    vms: Sequence[Vm]
    region: str | None = None
    """Of VMs elsewhere it says nothing; None: it has all regions of its cloud."""

    def covers(self, region: str) -> bool:
        return self.region is None or self.region == region

    @cached_property
    def by_token(self) -> Mapping[str, Vm]:
        return {vm.token: vm for vm in self.vms}


@dataclass(frozen=True, kw_only=True)
class Offers:
    """One answer of `Cloud.pools`."""

    began_at: datetime
    by_pool: Mapping[Pool, PoolInfo]


@dataclass(frozen=True, kw_only=True)
class Market:
    """What all clouds offer, as decisions read it; nobody changes it."""

    made_of: tuple[Offers, ...]
    infos: Mapping[Pool, PoolInfo]
    prices: Prices
    """USD an hour."""
    shapes: Mapping[Pool, Shape]
    """What the VM types have; of one that is missing nobody knows."""

    @classmethod
    def of(cls, offers: tuple[Offers, ...]) -> Market:
        infos = {pool: info for each in offers for pool, info in each.by_pool.items()}
        shapes = {pool: info.shape for pool, info in infos.items() if info.shape is not None}
        prices = Prices({pool: info.price for pool, info in infos.items()}, shapes)
        return cls(made_of=offers, infos=infos, prices=prices, shapes=shapes)


@dataclass(frozen=True, kw_only=True)
class TooFast:
    """A listing that was throttled, or a part of one."""

    cloud: str
    region: str | None
    error: Throttled
    asked_at: datetime


@dataclass(kw_only=True)
class _Asked:
    """How one question to one cloud goes."""

    busy: bool = False
    began_at: datetime
    failures: int = 0
    error: str = ""
    """Why the last asking failed; empty when it did not."""
    next_at: datetime | None = None


class CloudWatcher:
    """Thread-safe."""

    def __init__(
        self,
        clouds: Mapping[str, Cloud],
        owner: str,
        *,
        executor: Executor,
        clock: Callable[[], datetime],
        rng: random.Random,
        offers_every_s: float = 60.0,
        catalogue: Catalogue | None = None,
        attention: MutableMapping[str, str] | None = None,
    ) -> None:
        """`catalogue` tells what VM types have of which their cloud says nothing; `attention` is
        told which listings fail again and again."""
        self._clouds = clouds
        self._owner = owner
        self._executor = executor
        self._clock = clock
        self._rng = rng
        self.catalogue = catalogue if catalogue is not None else packaged()
        self._attention = {} if attention is None else attention
        self._offers_every = timedelta(seconds=offers_every_s)
        self._on_listing: list[Callable[[frozenset[str]], None]] = []
        self._on_offers: list[Callable[[], None]] = []
        self._on_throttled: list[Callable[[TooFast], None]] = []
        self._listings: dict[tuple[str, str | None], Listing] = {}
        """By cloud and region; None: all of them."""
        self._offers: dict[str, Offers] = {}
        self._market: Market | None = None
        self._asked: dict[tuple[str, str], _Asked] = {}
        self._records: dict[tuple[str, str], EndCause] = {}
        self._record_due: dict[tuple[str, str], datetime] = {}
        self._record_queues: dict[str, deque[Callable[[], None]]] = {}
        """By cloud: questions that wait for their turn."""
        self._record_workers: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._closed = False

    def subscribe(
        self,
        *,
        listed: Callable[[frozenset[str]], None],
        offered: Callable[[], None],
        throttled: Callable[[TooFast], None] = lambda what: None,
    ) -> None:
        """Call `listed` after each listing, with the tokens of the VMs that differ from the listing
        before, `offered` after offers that differ, and `throttled` when a listing is refused for
        that. In the thread that asked the cloud."""
        self._on_listing.append(listed)
        self._on_offers.append(offered)
        self._on_throttled.append(throttled)

    def limits(self, cloud: str) -> CloudLimits:
        """How this cloud wants to be asked; the defaults of one that is not configured any more."""
        known = self._clouds.get(cloud)
        return known.limits if known is not None else CloudLimits(list_every_s=0.0)

    # -- listings --------------------------------------------------------------------------------

    def listing(self, cloud: str, region: str | None = None) -> Listing | None:
        """The newest that covers this region, or all; None while it has not answered."""
        return self._listings.get((cloud, region)) or self._listings.get((cloud, None))

    def ask_listing(self, cloud: str) -> None:
        """Of each region, unless its listing is fresh, on its way, or it just failed."""
        if cloud not in self._clouds:
            return
        every = timedelta(seconds=self._clouds[cloud].limits.list_every_s)
        for region in self._regions(cloud):
            known = self._listings.get((cloud, region))
            if known is None or self._is_old(known, every):
                self._ask(_list_of(region), cloud, partial(self._list, region=region))

    def fresh_listings(self, cloud: str, *, wait_s: float) -> Sequence[Listing]:
        """The newest of each region, after asking for those that are not fresh, and waiting
        `wait_s` seconds at most for the answers. Still the one before of a region that is away;
        none of one that never answered."""
        self.ask_listing(cloud)
        regions = self._regions(cloud)
        self._wait(lambda: all(self._is_idle(_list_of(each), cloud) for each in regions), wait_s)
        found = (self._listings.get((cloud, region)) for region in regions)
        return [listing for listing in found if listing is not None]

    def _regions(self, cloud: str) -> Sequence[str | None]:
        """That are listed one by one; None: all together."""
        known = self._clouds.get(cloud)
        return known.regions() if isinstance(known, ListsByRegion) else [None]

    # -- records of VMs that vanished ------------------------------------------------------------

    def end_cause(self, cloud: str, vm_id: str, *, token: str) -> tuple[EndCause | None, bool]:
        """Why a VM ended that the listing lacks, and whether that may still be told. Asks in the
        background, again and again until there is an answer; who subscribed to listings is told the
        VM's token then."""
        known = self._records.get((cloud, vm_id))
        if known is not None:
            return known, False
        keeper = self._clouds.get(cloud)
        if not isinstance(keeper, KeepsRecords):
            return None, False

        def question(cloud: str) -> Callable[[], None]:
            return self._record(keeper, cloud, vm_id, token)

        now = self._clock()
        left = self._record_due.get((cloud, vm_id), now) - now
        if not timedelta() < left <= RECORD_EVERY:  # a clock that was set back delays nothing
            self._ask(f"{RECORD} of {vm_id}", cloud, question, in_turn=True)
        return self._records.get((cloud, vm_id)), True

    def _record(
        self, keeper: KeepsRecords, cloud: str, vm_id: str, token: str
    ) -> Callable[[], None]:
        cause = keeper.end_cause(vm_id)
        self._asked.pop((f"{RECORD} of {vm_id}", cloud), None)
        if cause is None:
            self._record_due[cloud, vm_id] = self._clock() + RECORD_EVERY
            return lambda: None
        self._record_due.pop((cloud, vm_id), None)
        self._records[cloud, vm_id] = cause
        for kept in (self._records, self._record_due):
            while len(kept) > RECORDS:
                kept.pop(next(iter(kept)), None)

        def tell() -> None:
            for listed in self._on_listing:
                listed(frozenset({token}))

        return tell

    # -- offers ----------------------------------------------------------------------------------

    def offers(self) -> Mapping[Pool, PoolInfo] | None:
        """Of all clouds that answered; None while some have not and no answer has a pool."""
        market = self.market()
        return None if market is None else market.infos

    def market(self) -> Market | None:
        """`offers`, made once for each answer of a cloud: every decision asks for them."""
        answered, known = self.offers_by_cloud(), self._market
        offers = tuple(answered.values())
        if known is None or [*map(id, known.made_of)] != [*map(id, offers)]:
            known = self._market = Market.of(offers)
        return known if known.infos or len(answered) == len(self._clouds) else None

    def offers_by_cloud(self) -> dict[str, Offers]:
        """The newest of each cloud that ever answered."""
        return dict(self._offers)

    def unanswered(self) -> dict[str, str]:
        """Clouds that never said what they offer, and why: empty while no asking has failed."""
        found = {}
        for cloud in self._clouds:
            if cloud not in self._offers:
                asked = self._asked.get((OFFERS, cloud))
                found[cloud] = asked.error if asked else ""
        return found

    def ask_offers(self) -> None:
        """Every cloud, unless its offers are fresh, on their way, or it just failed."""
        for cloud in self._clouds:
            known = self._offers.get(cloud)
            if known is None or self._is_old(known, self._offers_every):
                self._ask(OFFERS, cloud, self._pools)

    def wait_for_first_offers(self, *, wait_s: float) -> None:
        """Until each cloud has answered once, or failed, or has had `wait_s` seconds for it. Later
        it returns at once: one that failed is asked again, but nobody waits for it again."""
        now = self._clock()
        late = {
            cloud: wait_s - (now - asked.began_at).total_seconds()
            for cloud, asked in self._first_offers_on_their_way().items()
        }
        if late:
            self._wait(
                lambda: late.keys().isdisjoint(self._first_offers_on_their_way()),
                max(late.values()),
            )

    def _first_offers_on_their_way(self) -> dict[str, _Asked]:
        """Of clouds that were asked once: they neither answered nor failed yet."""
        asked = {cloud: self._asked.get((OFFERS, cloud)) for cloud in self.unanswered()}
        return {
            cloud: each for cloud, each in asked.items() if each and each.busy and not each.failures
        }

    # -- asking ----------------------------------------------------------------------------------

    def _is_old(self, known: Listing | Offers, every: timedelta) -> bool:
        """One from later than now is, too: the clock was set back."""
        return not timedelta() <= self._clock() - known.began_at < every

    def close(self) -> None:
        """Nobody waits any longer; answers that are on their way are waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._executor.shutdown(wait=True)

    def _ask(
        self,
        what: str,
        cloud: str,
        question: Callable[[str], Callable[[], None]],
        *,
        in_turn: bool = False,
    ) -> None:
        now = self._clock()
        with self._changed:
            asked = self._asked.setdefault((what, cloud), _Asked(began_at=now))
            too_early = asked.next_at is not None and asked.began_at <= now < asked.next_at
            if asked.busy or too_early or self._closed:
                return
            asked.busy, asked.began_at = True, now
        if in_turn:
            self._queue(cloud, lambda: self._answer(what, cloud, question, asked))
            return
        self._executor.submit(self._answer, what, cloud, question, asked)

    def _queue(self, cloud: str, ask: Callable[[], None]) -> None:
        """A question about one VM: in its turn, `RECORDS_AT_ONCE` of a cloud side by side."""
        with self._changed:
            self._record_queues.setdefault(cloud, deque()).append(ask)
            if self._record_workers[cloud] >= RECORDS_AT_ONCE:
                return
            self._record_workers[cloud] += 1
        self._executor.submit(self._ask_in_turn, cloud)

    def _ask_in_turn(self, cloud: str) -> None:
        while True:
            with self._changed:
                if not self._record_queues[cloud] or self._closed:
                    self._record_workers[cloud] -= 1
                    return
                ask = self._record_queues[cloud].popleft()
            try:
                ask()
            except Exception:  # of whoever was told; the others wait
                log.exception("cloud %s: what it answered could not be told", cloud)

    def _answer(
        self, what: str, cloud: str, question: Callable[[str], Callable[[], None]], asked: _Asked
    ) -> None:
        try:
            tell = question(cloud)
        except CloudError as error:
            self._failed(what, cloud, asked, str(error), error.retry_after_s or 0.0)
        except Exception:  # a fault of the adapter must not end asking for ever
            log.exception("cloud %s: %s failed", cloud, what)
            self._failed(what, cloud, asked, ADAPTER_FAULT)
        else:
            with self._changed:
                asked.busy, asked.failures, asked.error, asked.next_at = False, 0, "", None
                self._attention.pop(_silence(what, cloud), None)
                self._changed.notify_all()
            tell()

    def _failed(
        self, what: str, cloud: str, asked: _Asked, error: str, retry_after_s: float = 0.0
    ) -> None:
        with self._changed:
            asked.failures += 1
            wait_s = delay_s(
                asked.failures,
                base_s=BACKOFF_BASE_S,
                max_s=BACKOFF_MAX_S,
                jitter=self._rng.random(),
            )
            wait_s = max(wait_s, min(retry_after_s, LONGEST_WAIT_S))
            asked.next_at = self._clock() + timedelta(seconds=wait_s)
            asked.busy, asked.error = False, error
            if asked.failures >= SILENT and what.startswith(LIST):
                self._attention[_silence(what, cloud)] = error
            self._changed.notify_all()
        log.warning("cloud %s: %s: %s; again in %.1f s", cloud, what, error, wait_s)

    def _is_idle(self, what: str, cloud: str) -> bool:
        """It answered, or failed, or was not asked: nothing is on its way."""
        asked = self._asked.get((what, cloud))
        return asked is None or not asked.busy

    def _wait(self, done: Callable[[], bool], wait_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: done() or self._closed, timeout=max(0.0, wait_s))

    def _list(self, cloud: str, *, region: str | None) -> Callable[[], None]:
        began_at, known = self._clock(), self._listings.get((cloud, region))
        asked = self._clouds[cloud]
        try:
            if region is not None and isinstance(asked, ListsByRegion):
                vms = tuple(asked.list_region(region, self._owner))
            else:
                vms = tuple(asked.list(self._owner))
        except Throttled as error:
            self._too_fast(TooFast(cloud=cloud, region=region, error=error, asked_at=began_at))
            raise
        gap = asked.gap(region) if region is not None and isinstance(asked, TellsGaps) else None
        if isinstance(gap, Throttled):
            self._too_fast(TooFast(cloud=cloud, region=region, error=gap, asked_at=began_at))
        listing = Listing(began_at=began_at, vms=vms, region=region)
        self._listings[cloud, region] = listing
        before, now = known.by_token if known else {}, listing.by_token
        changed = frozenset(
            token for token in before.keys() | now.keys() if before.get(token) != now.get(token)
        )

        def tell() -> None:
            for listed in self._on_listing:
                listed(changed)

        return tell

    def _too_fast(self, what: TooFast) -> None:
        for throttled in self._on_throttled:
            throttled(what)

    def _shaped(self, info: PoolInfo) -> PoolInfo:
        """What the provider tells of a VM type wins over the catalogue."""
        if info.shape is not None:
            return info
        return replace(info, shape=self.catalogue.shape(info.pool.cloud, info.pool.vm))

    def _pools(self, cloud: str) -> Callable[[], None]:
        began_at, known = self._clock(), self._offers.get(cloud)
        by_pool = {info.pool: self._shaped(info) for info in self._clouds[cloud].pools()}
        self._offers[cloud] = Offers(began_at=began_at, by_pool=by_pool)
        new = known is None or known.by_pool != by_pool

        def tell() -> None:
            for offered in self._on_offers if new else ():
                offered()

        return tell


def _list_of(region: str | None) -> str:
    return LIST if region is None else f"{LIST} of {region}"


def _silence(what: str, cloud: str) -> str:
    """What an admin has to look at, such as "no listing of aws us-east-1"."""
    return f"no listing of {cloud} {what.removeprefix(LIST).removeprefix(' of ')}".rstrip()
