"""What users want of their jobs: pause, resume, cancel; one job, or many in few requests.

A request only writes down what is wanted; the supervise loop makes it so. So each is idempotent,
whatever the job does at that moment.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from spothop.wire import (
    MAX_WHY,
    CancelReply,
    CancelRequest,
    JobState,
    JobView,
    ManyJobs,
    ManyReply,
    Wanted,
    plain_text,
)
from spothop_master.api import errors
from spothop_master.api.deps import ServicesDep, Writer
from spothop_master.api.jobs import view_of, wanted_of
from spothop_master.api.lookup import job_for
from spothop_master.problems import ApiError
from spothop_master.security import Principal
from spothop_master.services import Services
from spothop_master.store import job_lists, jobs

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=errors.answers(401, 403, 422))

AT_ONCE = 50
"""Jobs that are changed in one transaction."""

Why = Annotated[str, Query(max_length=MAX_WHY)]
_WORDS = {
    Wanted.CANCELLED: "cancelled",
    Wanted.PAUSED: "paused",
    Wanted.RUNNING: "resumed",
}


@router.post("/jobs/{ref}/cancel", responses=errors.answers(404, 409))
def cancel(
    ref: str, services: ServicesDep, user: Writer, now: bool = False, why: Why = ""
) -> JobView:
    """The newest state is saved first, in a limited time, where the job trains; not with `now`,
    which also hurries a cancel that is under way. Harmless when repeated; 409 when the job has
    ended otherwise."""
    return _want(services, user, ref, Wanted.CANCELLED, why=why, at_once=now)


@router.post("/jobs/{ref}/pause", responses=errors.answers(404, 409))
def pause(ref: str, services: ServicesDep, user: Writer, why: Why = "") -> JobView:
    """Save, release the VM, and start nothing more until it is resumed. Harmless when repeated; 409
    when the job has ended, or is being cancelled."""
    return _want(services, user, ref, Wanted.PAUSED, why=why)


@router.post("/jobs/{ref}/resume", responses=errors.answers(404, 409))
def resume(ref: str, services: ServicesDep, user: Writer, why: Why = "") -> JobView:
    """From its newest checkpoint, with its place by the moment of its submit; no quota refuses it.
    Harmless when repeated; 409 when the job has ended, or is being cancelled."""
    return _want(services, user, ref, Wanted.RUNNING, why=why)


def _want(
    services: Services,
    user: Principal,
    ref: str,
    wanted: Wanted,
    *,
    why: str,
    at_once: bool = False,
) -> JobView:
    with services.db.begin() as session:
        job = job_for(session, user, ref)
        if not (wanted is Wanted.CANCELLED and job.state == JobState.CANCELLED):
            told = _why(user, wanted, why)
            try:
                jobs.want(session, job.id, wanted, now=services.clock(), why=told, at_once=at_once)
            except jobs.JobIsOver as error:
                fact, _, hint = str(error).partition("; ")
                raise ApiError(409, "job_is_over", fact, hint) from None
        return view_of(services, session, job)


@router.post("/cancellations", responses=errors.answers(413))
def cancel_many(request: CancelRequest, services: ServicesDep, user: Writer) -> CancelReply:
    """Those that have not ended, newest first, at most `limit`; ask again while some are left. A
    few in each transaction, so that agents do not wait for all of them."""
    reply = _want_many(services, user, request, Wanted.CANCELLED, at_once=request.now)
    return CancelReply(cancelled=reply.changed, left=reply.left)


@router.post("/pauses", responses=errors.answers(413))
def pause_many(request: ManyJobs, services: ServicesDep, user: Writer) -> ManyReply:
    """As `/cancellations` does it, those that are neither paused nor being paused."""
    return _want_many(services, user, request, Wanted.PAUSED)


@router.post("/resumptions", responses=errors.answers(413))
def resume_many(request: ManyJobs, services: ServicesDep, user: Writer) -> ManyReply:
    """As `/cancellations` does it, those that are paused or being paused."""
    return _want_many(services, user, request, Wanted.RUNNING)


def _want_many(
    services: Services,
    user: Principal,
    request: ManyJobs,
    wanted: Wanted,
    *,
    at_once: bool = False,
) -> ManyReply:
    which = wanted_of(
        services, user, request.state, name=request.name, owner=request.owner, every=True
    )
    new, why = jobs.is_new(wanted, at_once=at_once), _why(user, wanted, request.why)
    with services.db.read() as session:
        found = job_lists.ids_of(session, which, new, limit=request.limit + 1)
    ids, changed = found[: request.limit], 0
    for first in range(0, len(ids), AT_ONCE):
        with services.db.begin() as session:
            some = ids[first : first + AT_ONCE]
            changed += jobs.want_all(
                session, some, wanted, now=services.clock(), why=why, at_once=at_once
            )
    left = 0
    if len(found) > request.limit:
        with services.db.read() as session:
            left = job_lists.count_of(session, which, new)
    return ManyReply(changed=changed, left=left)


def _why(user: Principal, wanted: Wanted, why: str) -> str:
    told = f"{_WORDS[wanted]} by {user.name}"
    return plain_text(f"{told}: {why}") if why else told
