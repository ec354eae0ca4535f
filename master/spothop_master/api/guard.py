"""Around every request: a limit on its size, and a named trace for what we did not foresee.

Plain ASGI, because Starlette's own handler for `Exception` answers and then raises again, which
prints every trace twice.
"""

from __future__ import annotations

import json
import logging
import secrets

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spothop.wire import Problem

log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware. `unlimited`: path prefix whose route limits its bodies itself."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, unlimited: str) -> None:
        self._app = app
        self._limit = max_body_bytes
        self._unlimited = unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        limited = not scope["path"].startswith(self._unlimited)
        try:
            await self._app(scope, self._counted(receive) if limited else receive, watched)
        except ClientDisconnect:  # nobody is left to answer, and nothing is wrong here
            log.debug("%s %s: the client went away", scope["method"], scope["path"])
        except Exception:  # any bug of a handler: the user gets its number, the log its trace
            trace = secrets.token_hex(4)
            log.exception("trace %s: %s %s failed", trace, scope["method"], scope["path"])
            if not started:
                await answer(send, 500, _internal(trace))

    def _counted(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                # of this class, because FastAPI makes a 400 of all others while it reads a body
                raise HTTPException(413, f"the request has more than {self._limit} bytes")
            return message

        return counted


def _internal(trace: str) -> Problem:
    return Problem(
        error="internal",
        message=f"the master failed at this request (trace {trace})",
        hint=f"try again; if it stays, look for trace {trace} in the master's log",
    )


async def answer(send: Send, status: int, problem: Problem) -> None:
    body = json.dumps(problem.model_dump()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
