"""Every pool that is offered now, with what was measured of it: for the REST and the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spothop.wire import Pool, PoolView
from spothop_master.clouds.base import CloudError, PoolInfo
from spothop_master.problems import ApiError
from spothop_master.services import Services
from spothop_master.store import pool_figures
from spothop_master.store.pool_figures import PoolFigures


def offers(services: Services) -> dict[Pool, PoolInfo]:
    """Of every cloud that answers; 502 when none does. Calls clouds: never inside a session."""
    infos: dict[Pool, PoolInfo] = {}
    failures = []
    for name, cloud in services.clouds.items():
        try:
            infos.update({info.pool: info for info in cloud.pools()})
        except CloudError as error:
            failures.append(f"{name}: {error}")
    if failures and not infos:
        raise ApiError(502, "clouds_away", "; ".join(failures), "try again in a minute")
    return infos


def pool_views(services: Services) -> list[PoolView]:
    """By name. Calls clouds: never inside a session."""
    infos = offers(services)
    with services.db.read() as session:
        known = pool_figures.of_pools(session, infos, services.settings, now=services.clock())
    return [pool_view(infos[pool], known[pool]) for pool in _by_name(infos)]


def pool_view(info: PoolInfo, known: PoolFigures) -> PoolView:
    low_s, high_s = known.rate.interval()
    notice_low, notice_high = known.notice.interval()
    return PoolView(
        pool=info.pool,
        price=info.price,
        on_demand_price=info.on_demand_price,
        grace_s=info.grace_s,
        lives=known.lives,
        region_lives=known.region_lives,
        censored=known.censored,
        alive=known.alive,
        mttp_s=known.rate.mttp_s,
        mttp_low_s=low_s,
        mttp_high_s=high_s,
        mttp_assumed=known.region_lives == 0,
        median_life_s=known.median_life_s,
        allocation_s=known.allocation_s,
        preparation_s=known.preparation_s,
        restart_s=known.restart_s,
        restart_assumed=known.restart_assumed,
        notices=known.notices,
        notices_kept=known.kept,
        notice_share=known.notice.mean,
        notice_low=notice_low,
        notice_high=notice_high,
    )


def _by_name(infos: Mapping[Pool, PoolInfo]) -> Sequence[Pool]:
    return sorted(infos, key=lambda p: (p.cloud, p.region, p.zone, p.vm, not p.spot))
