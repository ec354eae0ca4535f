"""`/api/v1/strays`: VMs with this installation's tag that no row owns. For admins alone."""

from __future__ import annotations

from fastapi import APIRouter

from spothop.wire import StrayView
from spothop_master.api import errors
from spothop_master.api.deps import ServicesDep
from spothop_master.api.users import Admin
from spothop_master.store import strays

router = APIRouter(prefix="/api/v1", tags=["strays"], responses=errors.answers(401, 403))


@router.get("/strays")
def list_strays(services: ServicesDep, _user: Admin) -> list[StrayView]:
    """As the sweep saw them last."""
    with services.db.read() as session:
        return strays.views(session)


@router.post("/strays/end", responses=errors.answers(422))
def end_strays(services: ServicesDep, _user: Admin, cloud: str | None = None) -> list[StrayView]:
    """The next sweep ends those that are held, of one cloud or of all; the answer names them."""
    with services.db.begin() as session:
        return strays.end(session, cloud=cloud, now=services.clock())
