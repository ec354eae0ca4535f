"""Records the clouds' prices whenever they change."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.wire import Pool
from spothop_master.clouds.base import PoolInfo
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.store.db import Database
from spothop_master.store.schema import Price


class Prices:
    """One row a pool and change, in USD an hour. The watcher asks the clouds, as often as its
    `offers_every_s` says; a pass without a new answer costs nothing."""

    def __init__(self, db: Database, watcher: CloudWatcher) -> None:
        self._db = db
        self._watcher = watcher
        self._recorded: dict[str, datetime] = {}
        """When the answer that was recorded last began, by cloud."""
        self._known: dict[Pool, float] = {}
        """What was recorded last; a provider has thousands of pools, and few prices change."""

    def run_once(self) -> None:
        """Lets the clouds be asked when that is due, and records the answers that there are."""
        self._watcher.ask_offers()
        for cloud, offers in self._watcher.offers_by_cloud().items():
            if self._recorded.get(cloud) == offers.began_at:
                continue
            new = [
                info for pool, info in offers.by_pool.items() if self._known.get(pool) != info.price
            ]
            if new:
                with self._db.begin() as session:
                    _write(session, new, offers.began_at)
                self._known.update((info.pool, info.price) for info in new)
            self._recorded[cloud] = offers.began_at


def _write(session: Session, infos: Iterable[PoolInfo], at: datetime) -> None:
    for info in infos:
        pool = info.pool
        newest = session.scalar(
            select(Price.price)
            .where(
                Price.cloud == pool.cloud,
                Price.region == pool.region,
                Price.zone == pool.zone,
                Price.vm_type == pool.vm,
                Price.spot == pool.spot,
            )
            .order_by(Price.at.desc(), Price.id.desc())
            .limit(1)
        )
        if newest != info.price:
            session.add(
                Price(
                    cloud=pool.cloud,
                    region=pool.region,
                    zone=pool.zone,
                    vm_type=pool.vm,
                    spot=pool.spot,
                    price=info.price,
                    at=at,
                )
            )
