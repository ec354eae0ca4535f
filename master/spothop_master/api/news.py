"""`GET /jobs/{ref}/news`: all that somebody who follows a job needs, in one long poll."""

from __future__ import annotations

import base64

from fastapi import APIRouter

from spothop.wire import JobNews, LogView
from spothop_master.api import errors
from spothop_master.api.deps import Count, Reader, ServicesDep
from spothop_master.api.jobs import EVENTS, Wait
from spothop_master.api.logs import chunk_of, ends_of
from spothop_master.api.lookup import job_for
from spothop_master.notifier import News, Topic
from spothop_master.polling import poll
from spothop_master.security import Principal
from spothop_master.services import Services
from spothop_master.store import event_views, job_lists

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], responses=errors.answers(401, 422))


@router.get("/{ref}/news", responses=errors.answers(404, 409))
async def get_news(
    ref: str,
    services: ServicesDep,
    user: Reader,
    after: Count = 0,
    attempt: Count = 0,
    offset: Count = 0,
    seen: str = "",
    wait_s: Wait = 0,
) -> JobNews:
    """The job, its events above `after`, and the log of `attempt` (0: of none) from `offset` on.

    Waits up to `wait_s` seconds while there are no events, no log, and the job says the same as
    with the answer whose `seen` this is.
    """

    def ask() -> JobNews:
        return look(services, user, ref, after=after, attempt=attempt, offset=offset)

    def enough(found: JobNews) -> bool:
        grown = found.log is not None and (found.log.data or found.log.complete)
        return bool(found.events or grown) or found.seen != seen

    return await poll(services, ask, enough=enough, topics=topics_of, wait_s=wait_s)


def look(
    services: Services, user: Principal, ref: str, *, after: int, attempt: int, offset: int
) -> JobNews:
    """What there is now. Raises ApiError."""
    now, url = services.clock(), services.settings.storage_url
    with services.db.read() as session:
        row = job_for(session, user, ref)
        job = job_lists.job_view(session, row.id, now=now, storage_url=url)
        events = event_views.events(session, row.id, after=after, limit=EVENTS)
        ends = ends_of(services, session, row, attempt) if attempt else None
    log: LogView | None = None
    if ends is not None:
        chunk = chunk_of(services, ends, attempt, offset)
        log = LogView(
            attempt=chunk.attempt,
            data=base64.b64encode(chunk.piece.data).decode(),
            next_offset=chunk.piece.next_offset,
            complete=chunk.complete,
        )
    return JobNews(job=job, events=events, log=log, seen=job_lists.seen_of(job))


def topics_of(found: JobNews) -> list[Topic]:
    return [(news, found.job.id) for news in News]
