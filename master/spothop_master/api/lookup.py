"""Jobs and VMs by what a user types; what they may not see does not exist for them, but where
`own_job` says so."""

from __future__ import annotations

from sqlalchemy.orm import Session

from spothop_master.problems import ApiError, no_such_job
from spothop_master.security import Principal
from spothop_master.store import lookup
from spothop_master.store.schema import Job, VmRow


def job_for(session: Session, user: Principal, ref: str) -> Job:
    try:
        return lookup.find_job(session, ref, owner_id=user.sees_owner)
    except lookup.NoSuchJob as error:
        raise no_such_job(str(error)) from None
    except lookup.AmbiguousName as error:
        raise ApiError(409, "ambiguous_name", str(error), "use the id") from None


def vm_for(session: Session, user: Principal, vm_id: str) -> VmRow:
    row = session.get(VmRow, vm_id)
    job = session.get(Job, row.job_id) if row is not None and row.job_id else None
    if row is None or not user.may_see(job.owner_id if job else None):
        raise _no_such_vm(vm_id)
    return row


def own_job(
    session: Session, user: Principal, *, job_ref: str = "", vm_id: str = ""
) -> tuple[Job, VmRow | None]:
    """The job of this reference, or that of this VM together with the VM.

    For what one may do to one's own jobs only: a job of another user is 403 here, and not 404, so
    that nobody mistakes it for a typing error.
    """
    if not vm_id:
        job = _hidden_job(session, user, job_ref)
        if job is None:
            return job_for(session, user, job_ref), None
        raise _not_your_job(job)
    vm = session.get(VmRow, vm_id)
    if vm is None or vm.job_id is None:
        raise _no_such_vm(vm_id)
    job = session.get_one(Job, vm.job_id)
    if not user.may_see(job.owner_id):
        raise _not_your_job(job)
    return job, vm


def _hidden_job(session: Session, user: Principal, ref: str) -> Job | None:
    """The job of this reference that the user may not see; None where it is one that they may, or
    none at all."""
    try:
        lookup.find_job(session, ref, owner_id=user.sees_owner)
    except lookup.NoSuchJob:
        pass
    except lookup.AmbiguousName:
        return None
    else:
        return None
    try:
        return lookup.find_job(session, ref, owner_id=None)
    except LookupError:
        return None


def _no_such_vm(vm_id: str) -> ApiError:
    return ApiError(
        404, "no_such_vm", f"no VM {vm_id!r}", "`spothop vms` lists the ones you can see"
    )


def _not_your_job(job: Job) -> ApiError:
    return ApiError(
        403,
        "not_your_job",
        f"job {job.id!r} belongs to another user",
        "take a job of your own; `spothop jobs` lists them",
    )
