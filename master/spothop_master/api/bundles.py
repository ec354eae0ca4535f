"""`PUT` and `HEAD /bundles/{sha256}`: code bundles by content."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool

from spothop_master import bundles
from spothop_master.api import errors, openapi, quotas
from spothop_master.api.deps import Reader, ServicesDep, Writer
from spothop_master.problems import ApiError
from spothop_master.security import Principal
from spothop_master.services import Services
from spothop_master.store import uploads

router = APIRouter(prefix="/api/v1/bundles", tags=["bundles"])


@router.put(
    "/{sha256}",
    status_code=201,
    response_class=Response,
    responses={200: {"description": "Already there"}, **errors.answers(401, 403, 409, 413, 422)},
    openapi_extra=openapi.takes_bytes("application/gzip"),
)
async def put_bundle(
    sha256: str, request: Request, services: ServicesDep, user: Writer
) -> Response:
    """The raw tar.gz. 201 when it is new, 200 when this user has sent it before."""
    try:
        known = await run_in_threadpool(own_bundle, services, user, sha256) is not None
        room = await run_in_threadpool(quotas.bundle_room, services, user, sha256)
        with services.bundles.upload(sha256, most=room) as upload:
            async for chunk in request.stream():
                await run_in_threadpool(upload.write, chunk)
            await run_in_threadpool(upload.finish)
    except bundles.BundleTooLarge as error:
        if room is None or room >= services.settings.max_bundle_bytes:
            raise _problem(error) from None
        refused = await run_in_threadpool(quotas.no_bundle_room, services, user, room)
        raise refused from None
    except bundles.BundleError as error:
        raise _problem(error) from None
    await run_in_threadpool(_record, services, user, sha256)
    return Response(status_code=200 if known else 201)


def _record(services: Services, user: Principal, sha256: str) -> None:
    try:
        with services.db.begin() as session:
            uploads.record(session, sha256, user_id=user.user_id, now=services.clock())
    except IntegrityError:  # the same one at the same moment: it is written down
        return


def own_bundle(services: Services, user: Principal, sha256: str) -> Path | None:
    """The file of a bundle that this user may run; None where there is none, or it is of others.
    Raises `BadBundleName`."""
    path = services.bundles.path(sha256)
    if path is None:
        return None
    with services.db.read() as session:
        return path if uploads.has(session, sha256, user_id=user.user_id) else None


@router.head("/{sha256}", response_class=Response, responses=errors.answers(401, 404, 422))
def head_bundle(sha256: str, services: ServicesDep, user: Reader) -> Response:
    """200 when this user has sent it, or has a job with it; else 404."""
    try:
        path = own_bundle(services, user, sha256)
        there = path is not None and services.bundles.use(sha256)
    except bundles.BadBundleName as error:
        raise _problem(error) from None
    if path is None or not there:  # or retention has just removed it
        raise no_such_bundle(sha256)
    return Response(headers={"Content-Length": str(path.stat().st_size)})


def no_such_bundle(sha256: str) -> ApiError:
    return ApiError(
        404,
        "no_such_bundle",
        f"the master has no bundle {sha256[:64]} of yours",
        f"upload it first: PUT /api/v1/bundles/{sha256[:64]}",
        field="bundle",
    )


def _problem(error: bundles.BundleError) -> ApiError:
    if isinstance(error, bundles.BundleTooLarge):
        return ApiError(
            413,
            "bundle_too_large",
            str(error),
            "name data and build folders in .gitignore, or raise the master's max_bundle_bytes",
        )
    if isinstance(error, bundles.BundleMismatch):
        return ApiError(422, "bundle_mismatch", str(error), "the upload was damaged: send it again")
    return ApiError(422, "bad_bundle_name", str(error), "name it by its SHA-256", field="sha256")
