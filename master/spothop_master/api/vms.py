"""`/api/v1/vms`, and the provider's own eviction test on a VM or on a job's current one."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from sqlalchemy import select

from spothop.wire import JOB_ENDED, VM_LEAVING, JobState, PreemptRequest, VmPage, VmState, VmView
from spothop_master.api import errors
from spothop_master.api.deps import Reader, ServicesDep, Writer
from spothop_master.api.lookup import job_for, vm_for
from spothop_master.clouds.base import CloudError
from spothop_master.paging import PAGE, CursorText, Limit, cursor_of
from spothop_master.problems import ApiError, known_state
from spothop_master.services import Services
from spothop_master.store import vm_views
from spothop_master.store.figures import current_attempt
from spothop_master.store.schema import Attempt, Job, VmRow

router = APIRouter(prefix="/api/v1", tags=["vms"], responses=errors.answers(401, 404, 409, 422))

PROMISED = PreemptRequest()
LONGEST_NOTICE_S = 1e9
"""Thirty years; keeps dates within what the calendar can say."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What of a VM's row is needed after its session is over."""

    id: str
    cloud: str
    cloud_id: str | None
    state: VmState

    @classmethod
    def of(cls, row: VmRow) -> Target:
        return cls(id=row.id, cloud=row.cloud, cloud_id=row.cloud_id, state=VmState(row.state))


@router.get("/vms")
def list_vms(
    services: ServicesDep,
    user: Reader,
    job: str | None = None,
    state: str | None = None,
    cloud: str | None = None,
    cursor: CursorText = None,
    limit: Limit = PAGE,
) -> VmPage:
    """A page, newest first; `cursor` is the `next` or `previous` of another one. A user sees those
    of their own jobs. `job` is an id or a name."""
    state = known_state(state, VmState, "VM")
    with services.db.read() as session:
        found = vm_views.vm_page(
            session,
            owner_id=user.sees_owner,
            now=services.clock(),
            job_id=job_for(session, user, job).id if job is not None else None,
            state=state,
            cloud=cloud,
            cursor=cursor_of(cursor),
            limit=limit,
        )
    return VmPage(vms=list(found.items), next=found.next, previous=found.previous)


@router.post("/vms/{vm_id}/preempt", responses=errors.answers(403, 413, 502))
def preempt_vm(
    vm_id: str, services: ServicesDep, user: Writer, request: PreemptRequest = PROMISED
) -> VmView:
    with services.db.read() as session:
        target = Target.of(vm_for(session, user, vm_id))
    return _preempt(services, target, request)


@router.post("/jobs/{ref}/preempt", responses=errors.answers(403, 413, 502))
def preempt_job(
    ref: str, services: ServicesDep, user: Writer, request: PreemptRequest = PROMISED
) -> VmView:
    """The VM that trains; while none does, the one that prepares."""
    with services.db.read() as session:
        job = job_for(session, user, ref)
        if job.state in JOB_ENDED:
            raise _job_is_over(job)
        attempts = session.scalars(
            select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number)
        )
        current = current_attempt(list(attempts))
        row = session.get(VmRow, current.leader.vm_id) if current else None
        if row is None or row.state in VM_LEAVING:
            raise _nothing_runs(f"job {job.id!r} has no VM at the moment")
        target = Target.of(row)
    return _preempt(services, target, request)


def _preempt(services: Services, target: Target, request: PreemptRequest) -> VmView:
    """Calls the cloud: outside any session (I4)."""
    if request.notice_s is not None and not 0 <= request.notice_s <= LONGEST_NOTICE_S:
        raise ApiError(
            422,
            "invalid_request",
            f"notice_s: {request.notice_s:g} is no time from 0 to {LONGEST_NOTICE_S:g} s",
            "give seconds, or leave it out for what the pool promises",
            field="notice_s",
        )
    if target.state in VM_LEAVING:
        raise ApiError(
            409,
            "vm_is_over",
            f"VM {target.id!r} is {target.state}: nothing is left to preempt",
            "`spothop vms` shows those that run",
        )
    if target.cloud_id is None or target.state == VmState.REQUESTED:
        raise _nothing_runs(f"VM {target.id!r} is {target.state}")
    cloud = services.clouds.get(target.cloud)
    if cloud is None:
        raise ApiError(
            409,
            "no_such_cloud",
            f"VM {target.id!r} is in cloud {target.cloud!r}, which this master does not have",
            "start the master with that cloud",
        )
    try:
        cloud.preempt(target.cloud_id, request.notice_s)
    except CloudError as error:
        raise ApiError(
            502,
            "cloud_refused",
            f"{target.cloud}: {error}",
            "see whether it still runs: spothop vms",
        ) from None
    services.wake()
    with services.db.read() as session:
        row = session.get_one(VmRow, target.id)
        attempts = vm_views.attempts_of(session, [target.id])
        return vm_views.vm_view(row, attempts, now=services.clock())


def _job_is_over(job: Job) -> ApiError:
    return ApiError(
        409,
        "job_is_over",
        f"job {job.id!r} has {'been ' * (job.state == JobState.CANCELLED)}{job.state}: "
        "nothing is left to preempt",
        "`spothop jobs` lists those that run",
    )


def _nothing_runs(message: str) -> ApiError:
    return ApiError(409, "no_running_vm", message, "wait until `spothop vms` shows it as running")
