"""Records the clouds' prices whenever they change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop_master.clouds.base import Cloud, CloudError, PoolInfo
from spothop_master.store.db import Database
from spothop_master.store.schema import Price

log = logging.getLogger(__name__)


class Prices:
    """One row a pool and change, in USD an hour."""

    def __init__(
        self, db: Database, clouds: Mapping[str, Cloud], clock: Callable[[], datetime]
    ) -> None:
        self._db = db
        self._clouds = clouds
        self._clock = clock

    def run_once(self) -> None:
        """Every cloud; one that is away delays only itself."""
        for name, cloud in self._clouds.items():
            try:
                infos = cloud.pools()
            except CloudError as error:
                log.warning("cloud %s: prices: %s; again at the next turn", name, error)
                continue
            now = self._clock()
            with self._db.begin() as session:
                _write(session, infos, now)


def _write(session: Session, infos: Sequence[PoolInfo], now: datetime) -> None:
    for info in infos:
        pool = info.pool
        newest = session.scalar(
            select(Price.price)
            .where(
                Price.cloud == pool.cloud,
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
                    at=now,
                )
            )
