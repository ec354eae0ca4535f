"""`POST /plan`: which pools a job would try, in which order, with the figures behind that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from spothop import jobfile, storageoptions
from spothop.jobspec import JobSpec
from spothop.jobstorage import StorageSection
from spothop.wire import PlanReply, Pool, PoolPlan
from spothop_master.api import errors
from spothop_master.api.deps import Reader, ServicesDep
from spothop_master.api.places import check_places
from spothop_master.api.plan_storage import store_plans
from spothop_master.api.resources import check_gpus, no_pool
from spothop_master.api.storage import check_storage
from spothop_master.core import placement
from spothop_master.core import refusals as core_refusals
from spothop_master.core.facts import Requirements
from spothop_master.pools import Offer, offers, refuse_unanswered
from spothop_master.problems import ApiError
from spothop_master.security import Principal
from spothop_master.services import Services
from spothop_master.store import pool_figures, refusals
from spothop_master.store.jobs import requirements_of

router = APIRouter(prefix="/api/v1", tags=["plan"])


class PlanRequest(BaseModel):
    """The job file as a mapping."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any]


@router.post("/plan", responses=errors.answers(401, 403, 413, 422, 502, 503))
def post_plan(request: PlanRequest, services: ServicesDep, user: Reader) -> PlanReply:
    spec = checked_spec(request.spec)
    offered = offers(services)
    check_gpus(services.watcher, spec)
    choices = _order(services, offered, requirements_of(spec))
    if not choices:
        refuse_unanswered(services)  # one of those may have it
        raise no_pool(services.watcher, spec)
    may_use_storage(services, user, spec, try_out=user.may_write)
    with services.db.read() as session:
        now, tried = services.clock(), [choice.pool for choice in choices]
        known = pool_figures.of_pools(session, tried, services.settings, now=now)
        closed = core_refusals.closed(tried, (), refusals.back_offs(session), now=now)
    tried.sort(key=lambda pool: closed[pool].until if pool in closed else now)  # stable
    pools = [_pool_plan(offered[pool], known[pool], closed.get(pool)) for pool in tried]
    storage = spec.checkpoint.storage
    url = storage.url if storage else services.settings.storage_url
    shown = storageoptions.without_password(url)
    section = storage or StorageSection.of_setting(shown)
    return PlanReply(pools=pools, storage=shown, stores=store_plans(section, tried))


def checked_spec(mapping: Mapping[str, Any]) -> JobSpec:
    try:
        return jobfile.parse(mapping)
    except jobfile.JobFileError as error:
        raise errors.bad_job_file(error) from None


def may_use_storage(
    services: Services, user: Principal, spec: JobSpec, *, try_out: bool = True
) -> None:
    """Raises ApiError for a storage that this user's job may not have, or that cannot be used."""
    url = services.settings.storage_url
    check_storage(spec, services.clouds, services.probes, default_url=url, try_out=False)
    with services.db.read() as session:
        check_places(session, user, spec, services.settings)
    if try_out:
        check_storage(spec, services.clouds, services.probes, default_url=url)


def check_pools(services: Services, spec: JobSpec) -> None:
    """Refuse a job that no pool can ever match. Prices may change, and a cloud that never answered
    may have its pool: neither is a reason."""
    try:
        offered = offers(services)
    except ApiError:
        return
    check_gpus(services.watcher, spec)
    at_any_price = replace(requirements_of(spec), max_price=None)
    if not _order(services, offered, at_any_price) and not services.watcher.unanswered():
        raise no_pool(services.watcher, spec)


def _order(
    services: Services, offered: Mapping[Pool, Offer], requirements: Requirements
) -> list[placement.Choice]:
    infos = [offer.info for offer in offered.values()]
    return placement.order(
        {info.pool: info.price for info in infos},
        requirements,
        shapes={info.pool: info.shape for info in infos if info.shape is not None},
        avoid_s=services.settings.avoid_s,
        now=services.clock(),
    )


def _pool_plan(
    offer: Offer, known: pool_figures.PoolFigures, closed: core_refusals.Closed | None
) -> PoolPlan:
    info = offer.info
    return PoolPlan(
        pool=info.pool,
        spot_price=info.price,
        on_demand_price=info.on_demand_price,
        grace_s=info.grace_s,
        dialect=info.dialect,
        offer_age_s=offer.age_s,
        mttp_s=known.rate.mttp_s,
        mttp_assumed=known.rate.assumed,
        lives=known.region_lives,
        restart_s=known.restart_s,
        closed=closed.by.told if closed is not None and closed.by is not None else "",
    )
