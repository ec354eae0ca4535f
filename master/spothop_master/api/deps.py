"""What routes ask for: the services, and who is calling."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.types import Scope

from spothop_master.problems import ApiError, read_only
from spothop_master.security import Principal, trust
from spothop_master.services import Services

UNAUTHORIZED = "set SPOTHOP_TOKEN; the first token is in the file admin.token of the master's home"


MAX_INTEGER = 2**63 - 1
"""What databases and file systems count up to; a greater number in a query is refused."""

Count = Annotated[int, Query(ge=0, le=MAX_INTEGER)]


async def services_of(request: Request) -> Services:
    """Not a plain function: FastAPI would run it in one of the threads that users wait for."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


class TokenScheme(SecurityBase):
    """Tells /openapi.json that a route wants a token, and gives it to the route."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="An API token, or the session of a VM")
        self.scheme_name = "token"

    async def __call__(self, request: Request) -> str:
        return token_in(request.headers.get("authorization", ""))


def token_in(authorization: str) -> str:
    """The token of an `Authorization: Bearer` header (RFC 6750). Raises `ApiError`: 401 when there
    is none."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError(401, "no_token", "the request carries no bearer token", UNAUTHORIZED)
    return token.strip()


Bearer = Annotated[str, Depends(TokenScheme())]


def principal_of(services: Services, token: str) -> Principal:
    """The user of the token, or 401. Reads the database: call it from a thread."""
    principal = services.whose(token)
    if principal is None:
        raise ApiError(401, "bad_token", "no user has this token", UNAUTHORIZED)
    return principal


_CALLER = "spothop.caller"


def remember(scope: Scope, principal: Principal) -> None:
    """For the routes of this request: who sent it."""
    trust(scope, principal.who)
    scope[_CALLER] = principal


async def reader(request: Request, services: ServicesDep, token: Bearer) -> Principal:
    """The user of the token."""
    known = request.scope.get(_CALLER)
    if isinstance(known, Principal):
        return known
    principal = await services.user_threads.tokens.run(principal_of, services, token)
    remember(request.scope, principal)
    return principal


async def writer(principal: Annotated[Principal, Depends(reader)]) -> Principal:
    if not principal.may_write:
        raise read_only(principal.name)
    return principal


Reader = Annotated[Principal, Depends(reader)]
Writer = Annotated[Principal, Depends(writer)]
