"""Around every request: a limit on its size, and a named trace for what we did not foresee.

Plain ASGI, because Starlette's own handler for `Exception` answers and then raises again, which
prints every trace twice.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spothop.wire import Problem
from spothop_master.store.dialects import in_words, is_away, is_conflict

log = logging.getLogger(__name__)


KIB = 1024
LIMITS = (
    ("/api/v1/bundles/", None),  # its route limits them itself
    ("/api/", 1024 * KIB),
    ("/agent/v1/logs", 8 * 1024 * KIB),
    ("/agent/v1/sync", 8 * 1024 * KIB),  # agents of older releases send all they have, up to 4 MiB
    ("", 64 * KIB),
)
"""Of a body, in bytes, by the beginning of the path; the first that fits counts."""

LimitOf = Callable[[str], int | None]


def limits(most: int) -> LimitOf:
    """`LIMITS`, and never more than `most`."""

    def limit_of(path: str) -> int | None:
        found = next(limit for prefix, limit in LIMITS if path.startswith(prefix))
        return found if found is None else min(found, most)

    return limit_of


class Guard:
    """ASGI middleware. `limit_of`: how large a path's body may be; None does not limit it."""

    def __init__(self, app: ASGIApp, *, limit_of: LimitOf) -> None:
        self._app = app
        self._limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        limit = self._limit_of(scope["path"])
        limited = receive if limit is None else _counted(receive, limit)
        try:
            if limit is not None and _announced(scope) > limit:
                await answer(watched, 413, _too_large(limit))
                return
            try:
                await self._app(scope, limited, watched)
            except SQLAlchemyError as error:
                if started or not _may_go_again(scope, error):
                    raise
                await self._app(scope, limited, watched)  # over a new connection
        except ClientDisconnect:  # nobody is left to answer, and nothing is wrong here
            log.debug("%s %s: the client went away", scope["method"], scope["path"])
        except Exception as error:  # any bug of a handler, or no database
            problem, retry_after_s = _told(scope, error)
            if not started:
                status = 500 if retry_after_s is None else 503
                await answer(send, status, problem, retry_after_s=retry_after_s)


def _may_go_again(scope: Scope, error: SQLAlchemyError) -> bool:
    """It only reads, and lost its connection, or its turn, on the way."""
    return scope["method"] in ("GET", "HEAD") and (is_away(error) or is_conflict(error))


def _told(scope: Scope, error: Exception) -> tuple[Problem, int | None]:
    """What the user hears, and when to try again, where that may help. The user of a bug gets its
    number, the log its trace."""
    if is_away(error) or is_conflict(error):
        log.warning("%s %s: %s", scope["method"], scope["path"], in_words(error))
        return _NO_DATABASE, RETRY_S
    trace = secrets.token_hex(4)
    log.exception("trace %s: %s %s failed", trace, scope["method"], scope["path"])
    return _internal(trace), None


def _announced(scope: Scope) -> int:
    """The size of the body, by its header; 0 where that says nothing that could be read."""
    text = Headers(scope=scope).get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _counted(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            # of this class, because FastAPI makes a 400 of all others while it reads a body
            raise HTTPException(413, _too_large_text(limit))
        return message

    return counted


TOO_LARGE = "body_too_large"
TOO_LARGE_HINT = "send less at once, or raise the master's max_body_bytes"


def _too_large(limit: int) -> Problem:
    return Problem(error=TOO_LARGE, message=_too_large_text(limit), hint=TOO_LARGE_HINT)


def _too_large_text(limit: int) -> str:
    return f"the request has more than {limit} bytes"


def _internal(trace: str) -> Problem:
    return Problem(
        error="internal",
        message=f"the master failed at this request (trace {trace})",
        hint=f"try again; if it stays, look for trace {trace} in the master's log",
    )


RETRY_S = 2
_NO_DATABASE = Problem(
    error="no_database",
    message="the master does not reach its database",
    hint="try again in a moment; if it stays, see whether that database runs",
)


async def answer(
    send: Send, status: int, problem: Problem, *, retry_after_s: int | None = None
) -> None:
    body = json.dumps(problem.model_dump()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % retry_after_s))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
