"""`POST /api/v1/cancellations`: cancel many jobs in few requests."""

from __future__ import annotations

from fastapi import APIRouter

from spothop.wire import CancelReply, CancelRequest
from spothop_master.api import errors
from spothop_master.api.deps import ServicesDep, Writer
from spothop_master.api.jobs import wanted_of
from spothop_master.store import job_lists, jobs

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=errors.answers(401, 403, 413, 422))

AT_ONCE = 50
"""Jobs that are cancelled in one transaction."""


@router.post("/cancellations")
def cancel_many(request: CancelRequest, services: ServicesDep, user: Writer) -> CancelReply:
    """Those that have not ended, newest first, at most `limit`; ask again while some are left. A
    few in each transaction, so that agents do not wait for all of them."""
    wanted = wanted_of(
        services, user, request.state, name=request.name, owner=request.owner, every=True
    )
    with services.db.read() as session:
        found = job_lists.living_ids(session, wanted, limit=request.limit + 1)
    ids, cancelled = found[: request.limit], 0
    for first in range(0, len(ids), AT_ONCE):
        with services.db.begin() as session:
            some = ids[first : first + AT_ONCE]
            cancelled += jobs.cancel_all(session, some, now=services.clock())
    left = 0
    if len(found) > request.limit:
        with services.db.read() as session:
            left = job_lists.count_living(session, wanted)
    return CancelReply(cancelled=cancelled, left=left)
