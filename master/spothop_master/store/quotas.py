"""How much of a master each user may take: jobs, VMs, bytes of bundles and of logs.

A quota of a user's own counts before the one of the settings (`Quota`); None is no limit. Jobs and
VMs are counted in the transaction that adds one, bytes on the disk. Several masters that add at the
same moment may go over by what they add.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from spothop.wire import JOB_ACTIVE, VmState
from spothop_master.settings import Quota
from spothop_master.store.schema import BundleUpload, Job, User, VmRow

_ACTIVE = [state.value for state in JOB_ACTIVE]
_COUNTED = [state.value for state in (VmState.REQUESTED, VmState.BOOTING, VmState.READY)]
_COUNTED.append(VmState.RUNNING.value)
"""Not those with a notice: the VM that replaces one is not a further one."""


@dataclass(frozen=True, kw_only=True)
class OwnQuota:
    """Whose, and what counts for them."""

    user_id: int
    name: str
    quota: Quota


def of_user(user: User, default: Quota) -> Quota:
    own = {
        "jobs": user.max_jobs,
        "vms": user.max_vms,
        "bundle_bytes": user.max_bundle_bytes,
        "log_bytes": user.max_log_bytes,
    }
    return default.model_copy(update={k: v for k, v in own.items() if v is not None})


def of_id(session: Session, user_id: int, default: Quota) -> OwnQuota:
    user = session.get_one(User, user_id)
    return OwnQuota(user_id=user.id, name=user.name, quota=of_user(user, default))


def jobs_by_owner(session: Session, owners: Collection[int] | None = None) -> dict[int, int]:
    """Jobs that have not ended and are not paused."""
    query = select(Job.owner_id, func.count()).where(Job.state.in_(_ACTIVE))
    if owners is not None:
        query = query.where(Job.owner_id.in_(owners))
    return {row[0]: row[1] for row in session.execute(query.group_by(Job.owner_id))}


def vms_by_owner(session: Session, owners: Collection[int] | None = None) -> dict[int, int]:
    """VMs that are wanted: neither on their way out nor with a notice."""
    query = (
        select(Job.owner_id, func.count())
        .join(VmRow, VmRow.job_id == Job.id)
        .where(VmRow.state.in_(_COUNTED), VmRow.notice_at.is_(None))
    )
    if owners is not None:
        query = query.where(Job.owner_id.in_(owners))
    return {row[0]: row[1] for row in session.execute(query.group_by(Job.owner_id))}


def bundles_of(session: Session, user_id: int) -> list[str]:
    """SHA-256 of each that the user has sent; some may be gone."""
    query = select(BundleUpload.sha256).where(BundleUpload.user_id == user_id)
    return list(session.scalars(query))


def bundles_by_user(session: Session) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for user_id, sha256 in session.execute(select(BundleUpload.user_id, BundleUpload.sha256)):
        found.setdefault(user_id, []).append(sha256)
    return found


def owners_of(session: Session, job_ids: Collection[str]) -> dict[str, int]:
    """Of those of these jobs that there are."""
    found: dict[str, int] = {}
    ids = list(job_ids)
    for first in range(0, len(ids), 500):
        query = select(Job.id, Job.owner_id).where(Job.id.in_(ids[first : first + 500]))
        found.update((job_id, owner) for job_id, owner in session.execute(query))
    return found


def log_limits(session: Session, default: Quota) -> dict[int, int]:
    """Bytes of logs, of each user who has a limit."""
    found = {user.id: of_user(user, default).log_bytes for user in session.scalars(select(User))}
    return {user_id: limit for user_id, limit in found.items() if limit is not None}


def jobs_of(session: Session, user_id: int) -> list[str]:
    return list(session.scalars(select(Job.id).where(Job.owner_id == user_id)))
