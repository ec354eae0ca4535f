"""`POST /agent/v1/sync` before the routes: the calls of a fleet are nearly all of this one kind.

FastAPI resolves dependencies, keeps stacks of exits and makes a request object for each call, which
takes longer than to answer a heartbeat. This answers with the same words as the route, which
describes it (`api/agent.py`) and takes all other methods of the path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from spothop.wire import (
    LOGS_RIDE,
    OLDEST_PROTOCOL,
    PROTOCOL,
    Strict,
    SyncRequest,
    UnspokenProtocol,
    agree,
)
from spothop_master.agents import reading
from spothop_master.agents.sessions import VmSession
from spothop_master.agents.syncs import Syncs
from spothop_master.api import errors
from spothop_master.api.deps import token_in
from spothop_master.problems import ApiError
from spothop_master.security import trust

PATH = "/agent/v1/sync"

AT_ONCE = 128 * 1024
"""Bytes of a body that is read in one go, while all other agents wait: one of 8 MB with nothing but
faults took two seconds."""

_RIDE = LOGS_RIDE.lower().encode("ascii")

Message = TypeVar("Message", bound=Strict)


class SyncCalls:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, syncs: Syncs) -> None:
        self._app = app
        self._syncs = syncs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            headers = dict(scope["headers"])
            token = token_in(headers.get(b"authorization", b"").decode("latin-1"))
            known, rides = await self._syncs.session(token), _RIDE in headers
            trust(scope, known.vm)
            content = await answer(self._syncs, known, await _body(receive), rides=rides)
        except (ApiError, HTTPException) as error:
            problem = errors.answer(errors.of(error, Request(scope)))
            await problem(scope, receive, send)
            return
        length = b"%d" % len(content)
        about = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": about})
        await send({"type": "http.response.body", "body": content})


async def answer(syncs: Syncs, known: VmSession, body: bytes, *, rides: bool) -> bytes:
    """A `wire.SyncReply` as JSON, for an agent whose logs ride in its syncs or not. Raises
    `ApiError`."""
    if len(body) > AT_ONCE:
        message = await syncs.read_long(_reports_one_by_one, body)
    else:
        try:
            message = SyncRequest.model_validate_json(body)
        except ValidationError:
            message = await syncs.read(_reports_one_by_one, body)
    await syncs.hold_back(known, message, len(body))
    return await syncs.answer(known, message, rides=rides)


def read(body: bytes, model: type[Message]) -> Message:
    """The body as this message. Raises `ApiError`."""
    try:
        return model.model_validate_json(body)
    except ValidationError:
        return _read_closely(body, model.model_validate)


def protocol_of(said: str | None) -> int:
    """What is agreed on with an agent that says that in its header. Raises `ApiError`."""
    try:
        return agree(said)
    except UnspokenProtocol as error:
        fact, _, hint = str(error).partition(": ")
        hint = hint or "send the header as an agent does"
        raise ApiError(400, "wrong_protocol", fact, hint, field="protocol") from None


def _reports_one_by_one(body: bytes) -> SyncRequest:
    return _read_closely(body, reading.one_by_one)


def _read_closely(body: bytes, read: Callable[[Any], Message]) -> Message:
    """Of a body that was refused. The protocol is looked at first: a newer agent's other fields are
    unknown to us, and it should learn that its version is the reason."""
    try:
        found = reading.parsed(body)
    except (ValueError, RecursionError) as error:
        raise errors.not_json(error) from None
    spoken = found.get("protocol", PROTOCOL) if isinstance(found, dict) else PROTOCOL
    if spoken not in range(OLDEST_PROTOCOL, PROTOCOL + 1):
        said = f"{spoken}-{spoken}" if type(spoken) is int and spoken >= 0 else repr(spoken)[:20]
        protocol_of(said)
    try:
        return read(found)
    except reading.NoNumber as error:
        hint = "number reports from 1 on"
        raise ApiError(422, "invalid_request", str(error), hint, field="reports") from None
    except ValidationError as error:
        listed = [{**e, "loc": ("body", *e["loc"])} for e in error.errors(include_url=False)]
        raise errors.invalid(listed) from None


async def _body(receive: Receive) -> bytes:
    """Raises ClientDisconnect, and what the limit on its size raises."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
