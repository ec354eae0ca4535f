"""Jobs and VMs by what a user types; what they may not see does not exist for them."""

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
    """The job of this reference, or that of this VM together with the VM."""
    if not vm_id:
        return job_for(session, user, job_ref), None
    vm = vm_for(session, user, vm_id)
    if vm.job_id is None:
        raise _no_such_vm(vm_id)
    return session.get_one(Job, vm.job_id), vm


def _no_such_vm(vm_id: str) -> ApiError:
    return ApiError(
        404, "no_such_vm", f"no VM {vm_id!r}", "`spothop vms` lists the ones you can see"
    )
