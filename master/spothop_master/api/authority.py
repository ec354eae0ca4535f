"""`GET /ca`: who vouches for this master. Public, as certificates are: whoever takes it compares
its fingerprint with the one that the master printed."""

from __future__ import annotations

from fastapi import APIRouter, Response

from spothop_master.api import errors, openapi
from spothop_master.api.deps import ServicesDep
from spothop_master.problems import ApiError

router = APIRouter(prefix="/api/v1", tags=["me"])

PEM = "application/x-x509-ca-cert"  # what browsers offer to import


@router.get(
    "/ca", response_class=Response, responses=openapi.gives_bytes(PEM) | errors.answers(404)
)
def get_authority(services: ServicesDep) -> Response:
    """The certificate in PEM. 404 when this master has none of its own."""
    if not services.ca:
        raise ApiError(
            404,
            "no_authority",
            "this master has no certificate authority of its own",
            "start it with --tls auto, or leave SPOTHOP_CA out",
        )
    return Response(services.ca, media_type=PEM)
