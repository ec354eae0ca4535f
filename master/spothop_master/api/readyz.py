"""`GET /readyz`: whether this master should be sent calls, and which loop runs where since when."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy.exc import SQLAlchemyError

from spothop_master.api.deps import ServicesDep
from spothop_master.loops.elected import LOOPS
from spothop_master.services import Services
from spothop_master.store import elections

router = APIRouter(tags=["master"])


@router.get("/readyz", include_in_schema=False)
def readyz(services: ServicesDep, response: Response) -> dict[str, Any]:
    """200 when it reaches the database and hears what other masters do, else 503: for whoever
    spreads calls over several masters. Needs no token, as `/healthz`; tells no addresses.

    `loops` that nobody runs are null: one that stays so needs a master that may run it.
    """
    try:
        found = _read(services)
    except SQLAlchemyError:
        response.status_code = 503
        return {"status": "no database", "master": services.elected.name}
    if not services.others.is_fresh():
        response.status_code = 503
        found["status"] = "does not hear of other masters"
    return found


def _read(services: Services) -> dict[str, Any]:
    elected = services.elected
    loops: dict[str, dict[str, Any] | None] = dict.fromkeys(sorted(LOOPS))
    names = [elected.name]
    if services.db.single_master:
        for name, since in elected.running().items():
            loops[name] = {"master": elected.name, "since": since}
    else:
        with services.db.read() as session:
            now = services.db.now(session)
            for loop, who in elections.holders(session, now=now):
                master = who.name if who is not None else loop.master_id
                loops[loop.name] = {"master": master, "since": loop.since}
            names = [each.name for each in elections.masters(session, now=now)]
    return {"status": "ok", "master": elected.name, "masters": names, "loops": loops}
