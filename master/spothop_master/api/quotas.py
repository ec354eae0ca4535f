"""What users may take of the master: refusals at submit and upload, and what they take now."""

from __future__ import annotations

from sqlalchemy.orm import Session

from spothop.figures import size
from spothop.jobspec import JobSpec
from spothop.wire import QuotaView, Used
from spothop_master.problems import ApiError
from spothop_master.security import Principal
from spothop_master.services import Services
from spothop_master.store import dialects, quotas
from spothop_master.store.schema import User


def refuse_job(services: Services, session: Session, user: Principal, spec: JobSpec) -> None:
    """In the transaction that adds the job. Raises ApiError."""
    mine = quotas.of_id(session, user.user_id, services.settings.quota)
    jobs, vms = mine.quota.jobs, mine.quota.vms
    if vms is not None and spec.nodes > vms:
        raise _over(mine, "vms", "nodes", f"{spec.nodes} VMs at once", f"{vms}", "ask for fewer")
    if jobs is None:
        return
    dialects.alone(session, f"jobs of user {user.user_id}")  # two submits are counted in turn
    count = quotas.jobs_by_owner(session, [user.user_id]).get(user.user_id, 0)
    if count >= jobs:
        hint = "wait until one has ended, or end one with `spothop cancel`"
        raise _over(mine, "jobs", "jobs", f"{count + 1} jobs at once", f"{jobs}", hint)


def bundle_room(services: Services, user: Principal, sha256: str) -> int | None:
    """Bytes that an upload of this user may have; None: any number. Reads database and disk."""
    with services.db.read() as session:
        mine = quotas.of_id(session, user.user_id, services.settings.quota)
        if mine.quota.bundle_bytes is None:
            return None
        names = set(quotas.bundles_of(session, user.user_id)) - {sha256}
    return max(0, mine.quota.bundle_bytes - services.bundles.bytes_of(names))


def no_bundle_room(services: Services, user: Principal, left: int) -> ApiError:
    """Reads the database."""
    with services.db.read() as session:
        mine = quotas.of_id(session, user.user_id, services.settings.quota)
    limit = mine.quota.bundle_bytes or 0
    return _over(
        mine,
        "bundles",
        "bundle_bytes",
        f"a bundle of more than {size(left)} beside the {size(limit - left)} that are there",
        size(limit),
        "name data and build folders in .gitignore; a bundle that no job needs goes after a while",
    )


def _over(
    mine: quotas.OwnQuota, option: str, field: str, value: str, limit: str, way: str
) -> ApiError:
    return ApiError(
        409,
        "quota_exceeded",
        f"{field}: {value} is over the quota of user {mine.name!r}, which is {limit}",
        f"{way}; an admin may raise it: `spothop user quota {mine.name} --{option} ...`",
        field=field,
    )


class Usage:
    """What all users take now, for lists of them."""

    def __init__(self, services: Services, session: Session) -> None:
        self._default = services.settings.quota
        self._jobs = quotas.jobs_by_owner(session)
        self._vms = quotas.vms_by_owner(session)
        uploads = quotas.bundles_by_user(session)
        self._bundles = {
            user_id: services.bundles.bytes_of(names) for user_id, names in uploads.items()
        }
        kept = services.logs.folders()
        self._logs: dict[int, int] = {}
        for job_id, owner in quotas.owners_of(session, kept).items():
            self._logs[owner] = self._logs.get(owner, 0) + kept[job_id]

    def view(self, user: User) -> QuotaView:
        limits = quotas.of_user(user, self._default)
        return QuotaView(
            jobs=Used(used=self._jobs.get(user.id, 0), limit=limits.jobs),
            vms=Used(used=self._vms.get(user.id, 0), limit=limits.vms),
            bundle_bytes=Used(used=self._bundles.get(user.id, 0), limit=limits.bundle_bytes),
            log_bytes=Used(used=self._logs.get(user.id, 0), limit=limits.log_bytes),
        )
