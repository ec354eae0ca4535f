"""`spothop preempt`: the target may be a job or a VM."""

from __future__ import annotations

from spothop.sdk.client import Client
from spothop.sdk.errors import ApiError
from spothop.wire import VmView

NOT_FOUND = 404


def preempt(client: Client, target: str, notice_s: float | None) -> VmView:
    """Preempt the VM of the job with this id or name, or the VM with this id."""
    try:
        return client.preempt(target, notice_s=notice_s)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
    try:
        return client.preempt_vm(target, notice_s=notice_s)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise ApiError(
            f"no job and no VM {target!r}",
            "`spothop jobs` and `spothop vms` list those you can see",
            status=error.status,
            error=error.error,
        ) from None
