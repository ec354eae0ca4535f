"""`GET /me`, `GET /disk` and `GET /healthz`."""

from __future__ import annotations

from fastapi import APIRouter

from spothop.wire import DiskView, JobDisk
from spothop_master.api import errors, health
from spothop_master.api.deps import Reader, ServicesDep
from spothop_master.store import lookup

router = APIRouter(tags=["master"])

LARGEST = 5
"""Logs that are named."""


@router.get("/api/v1/me", responses=errors.answers(401))
def me(user: Reader) -> dict[str, str]:
    """Whose token this is."""
    return {"name": user.name, "role": user.role.value}


@router.get("/api/v1/disk", responses=errors.answers(401))
def disk(services: ServicesDep, user: Reader) -> DiskView:
    """What the master keeps, and the largest logs of the jobs that one sees."""
    database, free = services.db.bytes()
    logs = services.logs.folders()
    with services.db.read() as session:
        seen = lookup.seen(session, sorted(logs, key=lambda job: -logs[job]), user.sees_owner)
    return DiskView(
        database=database,
        database_free=free,
        logs=sum(logs.values()),
        bundles=sum(file.bytes for file in services.bundles.files().values()),
        largest=[JobDisk(job=job, log_bytes=logs[job]) for job in seen[:LARGEST] if logs[job]],
    )


@router.get("/healthz", include_in_schema=False)
@router.get("/api/v1/healthz")
async def healthz(services: ServicesDep) -> dict[str, str]:
    """The master answers, whatever its threads do. Needs no token, and tells only whether an admin
    has to look at something: `attention` names what."""
    return health.told(services)  # before the routes, for whoever only asks
