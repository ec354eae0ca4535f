"""`GET /checks`: what the cloud accounts of the master lack before jobs run. For admins alone."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter

from spothop.wire import CheckView, Verdict
from spothop_master.api import errors
from spothop_master.api.deps import ServicesDep
from spothop_master.api.users import Admin
from spothop_master.clouds.base import Cloud, Diagnoses
from spothop_master.problems import ApiError

router = APIRouter(prefix="/api/v1", tags=["checks"], responses=errors.answers(401, 403))


@router.get("/checks", responses=errors.answers(422))
def list_checks(services: ServicesDep, _user: Admin, cloud: str | None = None) -> list[CheckView]:
    """Of one cloud or of all. Asks the providers, makes nothing; takes seconds."""
    if cloud is not None and cloud not in services.clouds:
        raise ApiError(
            422,
            "no_such_cloud",
            f"cloud: {cloud!r} is none of this master's clouds ({', '.join(services.clouds)})",
            "SPOTHOP_MASTER_CLOUDS names those that it works with",
            field="cloud",
        )
    wanted = {cloud: services.clouds[cloud]} if cloud is not None else services.clouds
    url = services.settings.storage_url
    return [view for name, each in wanted.items() for view in _views(name, each, url)]


def _views(name: str, cloud: Cloud, storage_url: str) -> Iterator[CheckView]:
    if not isinstance(cloud, Diagnoses):
        yield CheckView(cloud=name, subject="account", verdict=Verdict.OK, fact="it needs none")
        return
    for check in cloud.diagnose(storage_url):
        yield CheckView(
            cloud=name,
            subject=check.subject,
            verdict=check.verdict,
            fact=check.fact,
            hint=check.hint,
        )
