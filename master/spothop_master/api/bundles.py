"""`PUT` and `HEAD /bundles/{sha256}`: code bundles by content."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from spothop_master import bundles
from spothop_master.api import errors, openapi
from spothop_master.api.deps import Reader, ServicesDep, Writer
from spothop_master.problems import ApiError

router = APIRouter(prefix="/api/v1/bundles", tags=["bundles"])


@router.put(
    "/{sha256}",
    status_code=201,
    response_class=Response,
    responses={200: {"description": "Already there"}, **errors.answers(401, 403, 413, 422)},
    openapi_extra=openapi.takes_bytes("application/gzip"),
)
async def put_bundle(
    sha256: str, request: Request, services: ServicesDep, user: Writer
) -> Response:
    """The raw tar.gz. 201 when it is new, 200 when the master had it already."""
    try:
        known = services.bundles.path(sha256) is not None
        with services.bundles.upload(sha256) as upload:
            async for chunk in request.stream():
                await run_in_threadpool(upload.write, chunk)
            await run_in_threadpool(upload.finish)
    except bundles.BundleError as error:
        raise _problem(error) from None
    return Response(status_code=200 if known else 201)


@router.head("/{sha256}", response_class=Response, responses=errors.answers(401, 404, 422))
def head_bundle(sha256: str, services: ServicesDep, user: Reader) -> Response:
    """200 when the master has it, else 404."""
    try:
        services.bundles.use(sha256)
        path = services.bundles.path(sha256)
    except bundles.BadBundleName as error:
        raise _problem(error) from None
    if path is None:
        raise no_such_bundle(sha256)
    return Response(headers={"Content-Length": str(path.stat().st_size)})


def no_such_bundle(sha256: str) -> ApiError:
    return ApiError(
        404,
        "no_such_bundle",
        f"the master has no bundle {sha256[:64]}",
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
