"""`/injection` of a job or VM: preemptions to come, for tests of one's own jobs."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.exc import IntegrityError

from spothop.wire import InjectionView, InjectRequest
from spothop_master.api import errors
from spothop_master.api.deps import ServicesDep, Writer
from spothop_master.api.lookup import own_job
from spothop_master.problems import ApiError
from spothop_master.security import Principal
from spothop_master.services import Services
from spothop_master.store import injections, jobs
from spothop_master.store.schema import Job, VmRow

router = APIRouter(
    prefix="/api/v1",
    tags=["injections"],
    responses=errors.answers(401, 403, 404, 409, 413, 422),
)


@router.post("/jobs/{ref}/injection", status_code=201)
def inject_job(
    ref: str, services: ServicesDep, user: Writer, request: InjectRequest
) -> InjectionView:
    """Preempt whichever VM of the job trains, again and again."""
    return _start(services, user, request, job_ref=ref)


@router.post("/vms/{vm_id}/injection", status_code=201)
def inject_vm(
    vm_id: str, services: ServicesDep, user: Writer, request: InjectRequest
) -> InjectionView:
    """Preempt this VM, once."""
    return _start(services, user, request, vm_id=vm_id)


@router.delete("/jobs/{ref}/injection")
def stop_job(ref: str, services: ServicesDep, user: Writer) -> InjectionView:
    return _stop(services, user, job_ref=ref)


@router.delete("/vms/{vm_id}/injection")
def stop_vm(vm_id: str, services: ServicesDep, user: Writer) -> InjectionView:
    return _stop(services, user, vm_id=vm_id)


def _start(
    services: Services,
    user: Principal,
    request: InjectRequest,
    *,
    job_ref: str = "",
    vm_id: str = "",
) -> InjectionView:
    try:
        with services.db.begin() as session:
            job, vm = own_job(session, user, job_ref=job_ref, vm_id=vm_id)
            _refuse_on_demand(job, vm)
            row = injections.start(session, job, vm, request, now=services.clock())
            return injections.view(row)
    except injections.BadPlan as error:
        raise ApiError(
            422, "bad_injection", str(error), "give mttp_s or lives_s, one of the two"
        ) from None
    except injections.Refused as error:
        fact, _, hint = str(error).partition("; ")
        raise ApiError(409, "no_injection_possible", fact, hint) from None
    except IntegrityError:  # two at the same moment: the database lets one in
        raise ApiError(
            409, "injection_under_way", "another injection was just made", "end it with --stop"
        ) from None


def _stop(
    services: Services, user: Principal, *, job_ref: str = "", vm_id: str = ""
) -> InjectionView:
    with services.db.begin() as session:
        job, vm = own_job(session, user, job_ref=job_ref, vm_id=vm_id)
        row = injections.under_way(session, job.id)
        if row is None or (vm is not None and row.vm_id != vm.id):
            raise ApiError(
                409,
                "no_injection",
                f"nothing is injected into {vm.id if vm else job.id}",
                f"`spothop show {job.id}` tells of the last one",
            )
        injections.stop(session, row, reason=f"{user.name} ended it", now=services.clock())
        return injections.view(row)


def _refuse_on_demand(job: Job, vm: VmRow | None) -> None:
    spot = vm.spot if vm is not None else jobs.spec_of(job).resources.spot
    if not spot:
        raise ApiError(
            409,
            "on_demand",
            f"{vm.id if vm else job.id!r} is on demand: clouds preempt only spot VMs",
            "inject into a job with `resources.spot: true`",
        )
