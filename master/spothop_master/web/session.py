"""Logging in to the pages: an API token opens a session, whose secret is in a cookie.

The cookie holds no token: whoever steals it has the pages until the log-out, and never the API.
Scripts cannot read it, other sites cannot send it (SameSite=Strict, and `api/browsers`). Tokens
never stand in a URL: those end up in histories, logs and referrers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import parse_qs

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from spothop_master.problems import ApiError
from spothop_master.security import Principal, new_login_secret, trust
from spothop_master.services import Services
from spothop_master.store import users

COOKIE = "spothop_session"
MAX_AGE = timedelta(days=30)


class NotLoggedIn(Exception):
    """Answered with a redirect to the login page."""


async def viewer(request: Request) -> Principal:
    """Who looks at the page. Raises `NotLoggedIn`."""
    secret = request.cookies.get(COOKIE, "")
    services = _services(request)
    tokens = services.user_threads.tokens
    principal = await tokens.run(services.logged_in, secret) if secret else None
    if principal is None:
        raise NotLoggedIn
    trust(request.scope, principal.who)
    return principal


async def log_in(request: Request, *, refused: Callable[[], Response]) -> Response:
    """To the jobs, with the cookie, or what `refused` makes. Raises ApiError 429 for an address
    that tried too often."""
    services = _services(request)
    address = request.client.host if request.client else ""
    if (wait_s := services.failed_logins.wait_s(address, services.clock())) > 0:
        minutes = math.ceil(wait_s / 60)
        raise ApiError(
            429,
            "too_many_logins",
            "too many log-ins failed from this address",
            f"try again in {minutes} min" if minutes > 1 else "try again in a minute",
        )
    secret = new_login_secret()
    token = await _form_token(request)
    if not token or not await run_in_threadpool(_log_in, services, token, secret):
        services.failed_logins.failed(address, services.clock())
        return refused()
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        COOKIE,
        secret,
        max_age=int(MAX_AGE.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=services.settings.public_url.startswith("https:"),
    )
    return response


async def log_out(request: Request) -> Response:
    """Nothing counts any more that the cookie held, wherever a copy of it may be."""
    if secret := request.cookies.get(COOKIE, ""):
        await run_in_threadpool(_log_out, _services(request), secret)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _log_in(services: Services, token: str, secret: str) -> bool:
    if services.whose(token) is None:  # without the lock that writers take turns for
        return False
    now = services.clock()
    with services.db.begin() as session:
        return users.log_in(session, token, secret=secret, now=now, expires_at=now + MAX_AGE)


def _log_out(services: Services, secret: str) -> None:
    with services.db.begin() as session:
        users.log_out(session, secret)


async def _form_token(request: Request) -> str:
    """The `token` field of a posted form (urlencoded; the body's size is limited before)."""
    try:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:  # more fields than our form has
        return ""
    return fields.get("token", [""])[0].strip()


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services
