"""Logging in to the pages: an API token in a cookie that scripts cannot read.

The pages only read, so a forged request could change nothing; SameSite=Strict keeps other sites
from even asking. Tokens never stand in a URL: those end up in histories, logs and referrers.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from spothop_master.security import Principal
from spothop_master.services import Services

COOKIE = "spothop_token"
MAX_AGE_S = 30 * 86400


class NotLoggedIn(Exception):
    """Answered with a redirect to the login page."""


async def viewer(request: Request) -> Principal:
    """Who looks at the page. Raises `NotLoggedIn`."""
    token = request.cookies.get(COOKIE, "")
    services: Services = request.app.state.services
    principal = await run_in_threadpool(services.whose, token) if token else None
    if principal is None:
        raise NotLoggedIn
    return principal


async def form_token(request: Request) -> str:
    """The `token` field of a posted form (urlencoded; the body's size is limited before)."""
    try:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:  # more fields than our form has
        return ""
    return fields.get("token", [""])[0].strip()


def logged_in(token: str, *, secure: bool) -> Response:
    """To the jobs, with the cookie. `secure`: the master is reached over TLS."""
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        COOKIE, token, max_age=MAX_AGE_S, httponly=True, samesite="strict", secure=secure
    )
    return response


def logged_out() -> Response:
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response
