"""No second user on a cloud whose VMs run as the master's user, unless a setting says so.

A job there can read the admin token and the database: whoever submits is the master's user. That is
as it should be for one person on their own machine, and for nobody else.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.orm import Session

from spothop.jobspec import JobSpec
from spothop_master.problems import ApiError
from spothop_master.security import Principal, Role
from spothop_master.services import Services
from spothop_master.store import users

SETTING = "SPOTHOP_MASTER_ALLOW_SHARED_LOCAL_CLOUD"
_HINT = (
    "run the master as root, with `isolation: auto` in the local cloud's file, so that jobs are "
    f"kept apart; or, where everybody may read all that it can, set {SETTING}=true"
)


def shared_clouds(services: Services) -> list[str]:
    """Those that keep no user from the others; none where the setting allows them."""
    if services.settings.allow_shared_local_cloud:
        return []
    return [name for name, cloud in services.clouds.items() if not cloud.separates_users]


def refuse_user(services: Services, role: Role) -> None:
    """Of a user to come. Raises ApiError."""
    if role is not Role.VIEWER and (shared := shared_clouds(services)):
        raise ApiError(
            409,
            "users_not_separated",
            f"jobs on the cloud {shared[0]!r} run as the master's user: a second user could read "
            "the admin token and everybody's files",
            f"{_HINT}; a viewer may be added in any case",
            field="role",
        )


def refuse_job(services: Services, session: Session, user: Principal, spec: JobSpec) -> None:
    """Of another user than the first one. Raises ApiError."""
    wanted: Collection[str | None] = {choice.cloud for choice in spec.resources.choices()} or {None}
    shared = [name for name in shared_clouds(services) if name in wanted or None in wanted]
    if shared and user.user_id != users.first_id(session):
        raise ApiError(
            403,
            "users_not_separated",
            f"jobs on the cloud {shared[0]!r} run as the master's user, so only the first user of "
            "this master may submit to it",
            f"name another cloud in `resources`, or ask the admin: {_HINT}",
            field="resources",
        )
