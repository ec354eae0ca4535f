"""Who calls is known before a body is read.

FastAPI reads and parses a body before it asks who sends it: 8 MB of JSON from nobody cost half a
second of processor. This looks at the token first; the routes' `reader` takes what it found.

Plain ASGI, as `guard` is. Agents' calls are not here: `sync_calls` has its own order.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from spothop_master.api import errors
from spothop_master.api.browsers import SAFE
from spothop_master.api.deps import principal_of, remember, token_in
from spothop_master.problems import ApiError
from spothop_master.services import Services

USERS = "/api/"


class Callers:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["method"] not in SAFE
            and scope["path"].startswith(USERS)
        ):
            try:
                token = token_in(Headers(scope=scope).get("authorization", ""))
                tokens = self._services.user_threads.tokens
                who = await tokens.run(principal_of, self._services, token)
            except ApiError as error:
                problem = errors.answer(errors.of(error, Request(scope)))
                await problem(scope, receive, send)
                return
            remember(scope, who)
        await self._app(scope, receive, send)
