"""`/api/v1/jobs`: submit, look, follow events and logs."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from spothop.jobspec import JobSpec
from spothop.wire import (
    CheckpointPage,
    EventView,
    JobDetail,
    JobPage,
    JobState,
    JobView,
    SubmitRequest,
)
from spothop_master import bundles
from spothop_master.api import errors, quotas
from spothop_master.api.bundles import no_such_bundle, own_bundle
from spothop_master.api.deps import MAX_INTEGER, Count, Reader, ServicesDep, Writer
from spothop_master.api.lookup import job_for
from spothop_master.api.plan import check_pools, checked_spec, may_use_storage
from spothop_master.api.separation import refuse_job
from spothop_master.notifier import News
from spothop_master.paging import PAGE, CursorText, Limit, cursor_of
from spothop_master.polling import LONGEST_S, poll
from spothop_master.problems import ApiError, known_state
from spothop_master.security import Principal
from spothop_master.services import Services
from spothop_master.store import event_views, job_lists, job_views, jobs
from spothop_master.store.schema import Job

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], responses=errors.answers(401, 422))

RECENT = timedelta(days=1)
EVENTS = 500

Wait = Annotated[float, Query(ge=0, le=LONGEST_S)]


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": JobView, "description": "Made before"},
        **errors.answers(403, 404, 409, 413),
    },
)
def submit(
    request: SubmitRequest, services: ServicesDep, user: Writer, response: Response
) -> JobView:
    """201 and the new job; 200 and the one made before when the token is known."""
    made = _made_before(services, user, request.token)
    if made is not None:  # whatever its storage says now: it may run
        response.status_code = 200
        return made
    spec = checked_spec(request.spec)
    if not _has_bundle(services, user, request.bundle):
        raise no_such_bundle(request.bundle)
    check_pools(services, spec)
    may_use_storage(services, user, spec)
    job_id = f"{spec.name}-{secrets.token_hex(3)}"
    try:
        view = _submit(services, user, spec, request, job_id)
    except IntegrityError:  # the same token at the same moment: the other one won
        view = _submit(services, user, spec, request, job_id)
    if view.id != job_id:
        response.status_code = 200
    return view


def _submit(
    services: Services, user: Principal, spec: JobSpec, request: SubmitRequest, job_id: str
) -> JobView:
    now = services.clock()
    with services.db.begin() as session:
        refuse_job(services, session, user, spec)
        quotas.refuse_job(services, session, user, spec)
        _check_init_from(session, user, spec)
        job = jobs.submit(
            session,
            spec=spec,
            bundle=request.bundle,
            token=request.token,
            owner_id=user.user_id,
            job_id=job_id,
            now=now,
            storage_url=services.settings.storage_url,
        )
        return _own(services, session, user, job)


def _made_before(services: Services, user: Principal, token: str) -> JobView | None:
    """Of this token."""
    with services.db.read() as session:
        job = jobs.made_by(session, token)
        return _own(services, session, user, job) if job is not None else None


def _own(services: Services, session: Session, user: Principal, job: Job) -> JobView:
    """Raises ApiError where it is another user's."""
    if not user.may_see(job.owner_id):
        raise ApiError(
            409,
            "token_taken",
            "another user submitted a job with this token",
            "choose a new random token",
            field="token",
        )
    return view_of(services, session, job)


@router.get("")
def list_jobs(
    services: ServicesDep,
    user: Reader,
    state: str | None = None,
    name: str = "",
    owner: str | None = None,
    every: Annotated[bool, Query(alias="all")] = False,
    cursor: CursorText = None,
    limit: Limit = PAGE,
) -> JobPage:
    """A page, newest first; `cursor` is the `next` or `previous` of another one. Those that ended
    over a day ago only with `all` or by their `state`. `name` is how names begin."""
    wanted = wanted_of(services, user, state, name=name, owner=owner, every=every)
    with services.db.read() as session:
        found = job_lists.job_page(
            session,
            wanted,
            now=services.clock(),
            storage_url=services.settings.storage_url,
            cursor=cursor_of(cursor),
            limit=limit,
        )
    return JobPage(
        jobs=list(found.page.items),
        next=found.page.next,
        previous=found.page.previous,
        counts=found.counts,
        total=found.total,
    )


def wanted_of(
    services: Services,
    user: Principal,
    state: str | None = None,
    *,
    name: str = "",
    owner: str | None = None,
    every: bool = False,
) -> job_lists.Wanted:
    """Raises ApiError where no job can be in this state."""
    state = known_state(state, JobState, "job")
    return job_lists.Wanted(
        owner_id=user.sees_owner,
        owner=owner,
        state=state,
        prefix=name,
        ended_since=None if every or state else services.clock() - RECENT,
    )


@router.get("/{ref}", responses=errors.answers(404, 409))
def get_job(ref: str, services: ServicesDep, user: Reader) -> JobDetail:
    """By id or name; of several of one name the newest, when all have ended."""
    with services.db.read() as session:
        job = job_for(session, user, ref)
        detail = job_views.job_detail(
            session,
            job,
            now=services.clock(),
            storage_url=services.settings.storage_url,
            env_values=user.may_see_values(job.owner_id),
        )
    numbers = [attempt.number for attempt in detail.attempts]
    tail = services.logs.newest_tail(detail.id, numbers)
    size = services.logs.bytes_of(detail.id)
    return detail.model_copy(update={"log_tail": tail, "log_bytes": size})


@router.get("/{ref}/checkpoints", responses=errors.answers(404, 409))
def list_checkpoints(
    ref: str,
    services: ServicesDep,
    user: Reader,
    cursor: Annotated[int | None, Query(ge=0, le=MAX_INTEGER)] = None,
    limit: Limit = PAGE,
) -> CheckpointPage:
    """A page, newest first; `cursor` is the `next` of the one before."""
    with services.db.read() as session:
        job = job_for(session, user, ref)
        found = job_views.checkpoint_views(session, job.id, before=cursor, limit=limit + 1)
    more = len(found) > limit
    return CheckpointPage(checkpoints=found[:limit], next=str(found[limit - 1].n) if more else None)


@router.get("/{ref}/events", responses=errors.answers(404, 409))
async def get_events(
    ref: str,
    services: ServicesDep,
    user: Reader,
    after: Count = 0,
    wait_s: Wait = 0,
    limit: Limit = EVENTS,
) -> list[EventView]:
    """The oldest of those with an id above `after`, which is the cursor: ask again after the last
    one until there is none. Waits up to `wait_s` seconds for the first one."""

    def ask() -> tuple[str, list[EventView]]:
        with services.db.read() as session:
            job = job_for(session, user, ref)
            return job.id, event_views.events(session, job.id, after=after, limit=limit)

    _, found = await poll(
        services,
        ask,
        enough=lambda answer: bool(answer[1]),
        topics=lambda answer: [(News.ROWS, answer[0])],
        wait_s=wait_s,
    )
    return found


def view_of(services: Services, session: Session, job: Job) -> JobView:
    now, url = services.clock(), services.settings.storage_url
    return job_lists.job_view(session, job.id, now=now, storage_url=url)


def _has_bundle(services: Services, user: Principal, sha256: str) -> bool:
    try:
        own = own_bundle(services, user, sha256) is not None
        return own and services.bundles.use(sha256)
    except bundles.BadBundleName:
        return False


def _check_init_from(session: Session, user: Principal, spec: JobSpec) -> None:
    """An input checkpoint of a job is read only by those who may see that job."""
    source = spec.checkpoint.init_from or ""
    if not source.startswith("job:"):
        return
    wanted = source.removeprefix("job:")
    job = session.get(Job, wanted)
    if job is None or not user.may_see(job.owner_id):
        raise ApiError(
            422,
            "no_such_job",
            f"checkpoint.init_from: no job {wanted!r}",
            "give the id of a job that you can see; `spothop jobs --all` lists them",
            field="checkpoint.init_from",
        )
