"""What is answered on the port for agents: their calls, and whether the master lives.

The pages and the API of users are not there: whoever lets VMs through to that port, and nobody
else, has to think of nothing more.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from spothop.wire import Problem
from spothop_master.api.guard import answer

ANSWERED = ("/agent/", "/healthz", "/api/v1/healthz", "/readyz")
"""How paths begin."""


class AgentsOnly:
    """ASGI middleware. `port`: that of the agents."""

    def __init__(self, app: ASGIApp, *, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        here = scope["type"] == "http" and (scope.get("server") or ("", 0))[1] == self._port
        if here and not scope["path"].startswith(ANSWERED):
            await answer(send, 404, _NOT_HERE)
            return
        await self._app(scope, receive, send)


_NOT_HERE = Problem(
    error="agents_only",
    message="this port is for agents alone",
    hint="users reach the master at its public_url",
)
