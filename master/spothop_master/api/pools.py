"""`GET /pools`: price and statistics of every pool."""

from __future__ import annotations

from fastapi import APIRouter

from spothop.wire import PoolView
from spothop_master.api import errors
from spothop_master.api.deps import Reader, ServicesDep
from spothop_master.pools import pool_views

router = APIRouter(prefix="/api/v1", tags=["pools"])


@router.get("/pools", responses=errors.answers(401, 502, 503))
def list_pools(services: ServicesDep, user: Reader) -> list[PoolView]:
    """By name. Figures are over all users' jobs: they say nothing of any one of them."""
    return pool_views(services)
