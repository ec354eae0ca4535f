"""`GET /me` and `GET /healthz`."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter

from spothop_master.api import errors
from spothop_master.api.deps import Reader, ServicesDep

router = APIRouter(tags=["master"])


@router.get("/api/v1/me", responses=errors.answers(401))
def me(user: Reader) -> dict[str, str]:
    """Whose token this is."""
    return {"name": user.name, "role": user.role.value}


@router.get("/healthz", include_in_schema=False)
@router.get("/api/v1/healthz")
def healthz(services: ServicesDep) -> dict[str, str]:
    """The master answers. Needs no token, and tells only whether an admin has to look at something:
    `attention` names what."""
    subjects = ", ".join(sorted(services.attention))
    found = {"status": "ok", "version": version("spothop")}
    return found | ({"attention": subjects} if subjects else {})
