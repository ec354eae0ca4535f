"""What the clouds said lately: their listings and their offers, read in the background.

A cloud that is slow or away delays nobody: decisions use the newest answer there is, which carries
when its asking began.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime, timedelta

from spothop.backoff import delay_s
from spothop.wire import Pool
from spothop_master.clouds.base import Cloud, CloudError, PoolInfo, Vm

log = logging.getLogger(__name__)

BACKOFF_BASE_S, BACKOFF_MAX_S = 1.0, 30.0


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One answer of `Cloud.list`."""

    began_at: datetime
    """A VM that was launched after this may be missing."""
    by_token: Mapping[str, Vm]


@dataclass(frozen=True, kw_only=True)
class Offers:
    """One answer of `Cloud.pools`."""

    began_at: datetime
    pools: Mapping[Pool, PoolInfo]


@dataclass(kw_only=True)
class _Asked:
    """How one question to one cloud goes."""

    busy: bool = False
    failures: int = 0
    next_at: datetime | None = None


class CloudWatcher:
    """Thread-safe. `news` is called after each answer that differs from the one before."""

    def __init__(
        self,
        clouds: Mapping[str, Cloud],
        owner: str,
        *,
        executor: Executor,
        clock: Callable[[], datetime],
        rng: random.Random,
        offers_every_s: float = 60.0,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self._clouds = clouds
        self._owner = owner
        self._executor = executor
        self._clock = clock
        self._rng = rng
        self._offers_every = timedelta(seconds=offers_every_s)
        self._news = news
        self._listings: dict[str, Listing] = {}
        self._offers: dict[str, Offers] = {}
        self._asked: dict[tuple[str, str], _Asked] = {}
        self._lock = threading.Lock()

    def listing(self, cloud: str) -> Listing | None:
        """The newest; None while it has not answered."""
        return self._listings.get(cloud)

    def offers(self) -> dict[Pool, PoolInfo] | None:
        """Of all clouds that answered; None while some have not and no answer has a pool."""
        answered = list(self._offers.values())
        pools = {pool: info for offer in answered for pool, info in offer.pools.items()}
        return pools if pools or len(answered) == len(self._clouds) else None

    def ask_listing(self, cloud: str) -> None:
        """Unless its listing is fresh, on its way, or it just failed."""
        if cloud not in self._clouds:
            return
        known = self._listings.get(cloud)
        every = timedelta(seconds=self._clouds[cloud].list_every_s)
        if known is None or self._clock() - known.began_at >= every:
            self._ask("list", cloud, self._list)

    def ask_offers(self) -> None:
        for cloud in self._clouds:
            known = self._offers.get(cloud)
            if known is None or self._clock() - known.began_at >= self._offers_every:
                self._ask("offers", cloud, self._pools)

    def _ask(self, what: str, cloud: str, question: Callable[[str], bool]) -> None:
        with self._lock:
            asked = self._asked.setdefault((what, cloud), _Asked())
            if asked.busy or (asked.next_at is not None and self._clock() < asked.next_at):
                return
            asked.busy = True
        self._executor.submit(self._answer, what, cloud, question, asked)

    def _answer(
        self, what: str, cloud: str, question: Callable[[str], bool], asked: _Asked
    ) -> None:
        try:
            news = question(cloud)
        except CloudError as error:
            self._failed(what, cloud, asked, error)
        except Exception as error:  # a fault of the adapter must not end asking for ever
            log.exception("cloud %s: %s failed", cloud, what)
            self._failed(what, cloud, asked, error)
        else:
            with self._lock:
                asked.busy, asked.failures, asked.next_at = False, 0, None
            if news:
                self._news()

    def _failed(self, what: str, cloud: str, asked: _Asked, error: Exception) -> None:
        with self._lock:
            asked.busy = False
            asked.failures += 1
            wait_s = delay_s(
                asked.failures,
                base_s=BACKOFF_BASE_S,
                max_s=BACKOFF_MAX_S,
                jitter=self._rng.random(),
            )
            asked.next_at = self._clock() + timedelta(seconds=wait_s)
        log.warning("cloud %s: %s: %s; again in %.1f s", cloud, what, error, wait_s)

    def _list(self, cloud: str) -> bool:
        began_at, known = self._clock(), self._listings.get(cloud)
        by_token = {vm.token: vm for vm in self._clouds[cloud].list(self._owner)}
        self._listings[cloud] = Listing(began_at=began_at, by_token=by_token)
        return known is None or known.by_token != by_token

    def _pools(self, cloud: str) -> bool:
        began_at, known = self._clock(), self._offers.get(cloud)
        pools = {info.pool: info for info in self._clouds[cloud].pools()}
        self._offers[cloud] = Offers(began_at=began_at, pools=pools)
        return known is None or known.pools != pools
