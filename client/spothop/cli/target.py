"""A target JOB|VM on the command line: the id or name of a job, or the id of a VM."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spothop.sdk.errors import ApiError

NOT_FOUND = 404

T = TypeVar("T")


def job_or_vm(target: str, of_job: Callable[[str], T], of_vm: Callable[[str], T]) -> T:
    """What `of_job` answers, or `of_vm` where there is no such job; raises ApiError where there is
    no such VM either."""
    try:
        return of_job(target)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
    try:
        return of_vm(target)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise ApiError(
            f"no job and no VM {target!r}",
            "`spothop jobs` and `spothop vms` list those you can see",
            status=error.status,
            error=error.error,
        ) from None
