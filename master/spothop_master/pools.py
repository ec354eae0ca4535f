"""Every pool that the clouds offer, with what was measured of it: for the REST and the pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spothop.wire import Pool, PoolView
from spothop_master.clouds.base import PoolInfo
from spothop_master.core import refusals as core_refusals
from spothop_master.problems import ApiError
from spothop_master.services import Services
from spothop_master.store import pool_figures, refusals
from spothop_master.store.pool_figures import PoolFigures

FIRST_ANSWER_S = 5.0
"""How long a request waits for clouds that never answered: just after the master's start."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One pool as its cloud offered it `age_s` seconds ago."""

    info: PoolInfo
    age_s: float


def offers(services: Services) -> dict[Pool, Offer]:
    """The newest answer of every cloud that ever answered; a cloud that is away keeps its last one.

    Asks no cloud itself; those whose answer is old are asked in the background. Waits only for
    clouds that never answered, `FIRST_ANSWER_S` at most: never call it inside a session. Raises
    ApiError: 502 when no cloud answers, 503 while none has answered yet.
    """
    watcher = services.watcher
    watcher.ask_offers()
    watcher.wait_for_first_offers(wait_s=FIRST_ANSWER_S)
    now, answers = services.clock(), watcher.offers_by_cloud()
    found = {
        pool: Offer(info=info, age_s=max(0.0, (now - answer.began_at).total_seconds()))
        for answer in answers.values()
        for pool, info in answer.by_pool.items()
    }
    if not found:
        refuse_unanswered(services)
    return found


def refuse_unanswered(services: Services) -> None:
    """Raises ApiError where some cloud never said what it offers: 502 with its error, 503 while it
    was not asked, or has not answered yet."""
    unanswered = services.watcher.unanswered()
    failures = [f"{name}: {error}" for name, error in unanswered.items() if error]
    if failures:
        raise ApiError(502, "clouds_away", "; ".join(failures), "try again in a minute")
    if unanswered:
        names = ", ".join(unanswered)
        raise ApiError(
            503,
            "clouds_not_asked",
            f"this master has no answer of its clouds yet ({names})",
            "try again in a few seconds",
        )


def pool_views(services: Services) -> list[PoolView]:
    """By name. May wait: never inside a session."""
    offered = offers(services)
    with services.db.read() as session:
        now = services.clock()
        known = pool_figures.of_pools(session, offered, services.settings, now=now)
        refused = refusals.counts(session)
        closed = core_refusals.closed(offered, (), refusals.back_offs(session), now=now)
    return [
        pool_view(offered[pool], known[pool], refused=refused.get(pool, 0), closed=closed.get(pool))
        for pool in _by_name(offered)
    ]


def pool_view(
    offer: Offer, known: PoolFigures, *, refused: int, closed: core_refusals.Closed | None
) -> PoolView:
    info = offer.info
    low_s, high_s = known.rate.interval()
    notice_low, notice_high = known.notice.interval()
    return PoolView(
        pool=info.pool,
        price=info.price,
        on_demand_price=info.on_demand_price,
        grace_s=info.grace_s,
        offer_age_s=offer.age_s,
        lives=known.lives,
        region_lives=known.region_lives,
        censored=known.censored,
        alive=known.alive,
        mttp_s=known.rate.mttp_s,
        mttp_low_s=low_s,
        mttp_high_s=high_s,
        mttp_assumed=known.rate.assumed,
        median_life_s=known.median_life_s,
        allocation_s=known.allocation_s,
        preparation_s=known.preparation_s,
        restart_s=known.restart_s,
        restart_assumed=known.restart_assumed,
        notices=known.notices,
        notices_kept=known.kept,
        unannounced=known.unannounced,
        notice_share=known.notice.mean,
        notice_low=notice_low,
        notice_high=notice_high,
        refusals=refused,
        closed=closed.by.told if closed is not None and closed.by is not None else "",
    )


def _by_name(pools: Iterable[Pool]) -> Sequence[Pool]:
    return sorted(pools, key=lambda p: (p.cloud, p.region, p.zone, p.vm, not p.spot))
