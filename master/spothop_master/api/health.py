"""`GET /healthz` before the routes: whoever watches the master hears of it while a crowd is served.

A route waits its turn among the steps of all other requests, several times on its way. This answers
in one step, without a thread, a lock or a row.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version

from starlette.types import ASGIApp, Receive, Scope, Send

from spothop_master.services import Services

PATHS = frozenset({"/healthz", "/api/v1/healthz"})


def told(services: Services) -> dict[str, str]:
    """The master answers, whatever its threads do; `attention`: what an admin has to look at."""
    subjects = ", ".join(sorted(services.attention))
    found = {"status": "ok", "version": _version()}
    return found | ({"attention": subjects} if subjects else {})


class Health:
    """ASGI middleware. All but GET is left to the routes."""

    def __init__(self, app: ASGIApp, *, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        body = json.dumps(told(self._services)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@cache
def _version() -> str:
    return version("spothop")
