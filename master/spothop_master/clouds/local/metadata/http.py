"""Serves one VM's metadata endpoint over HTTP/1.1: asyncio and h11."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

import h11

from spothop_master.clouds.local.metadata import (
    Announcement,
    Dialect,
    Machine,
    Request,
    Response,
    text,
)

_LONGEST_BODY = 64 * 1024
_IDLE_S = 300.0


class MetadataService:
    """The endpoint of one VM; `announce` makes a preemption visible (None: withdraws it) and ends
    long polls."""

    def __init__(
        self, dialect: Dialect, machine: Machine, *, acknowledged: Callable[[str], None]
    ) -> None:
        self._dialect = dialect
        self._machine = machine
        self._acknowledged = acknowledged
        self._changed = asyncio.Event()

    def announce(self, announcement: Announcement | None) -> None:
        self._machine = replace(self._machine, announcement=announcement)
        self._changed.set()
        self._changed = asyncio.Event()

    async def listen(self, listener: socket.socket) -> asyncio.AbstractServer:
        return await asyncio.start_server(self._converse, sock=listener)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while await self._exchange(connection, reader, writer):
                pass
        except (ConnectionError, asyncio.TimeoutError):
            pass  # the VM went away, or said nothing for long
        finally:
            writer.close()

    async def _exchange(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False when the connection is over."""
        try:
            request = await asyncio.wait_for(_receive(connection, reader), _IDLE_S)
        except h11.RemoteProtocolError as error:
            writer.write(_wire(connection, text(error.error_status_hint, str(error))))
            await writer.drain()
            return False
        if request is None:
            return False
        response = await self._answer(request)
        writer.write(_wire(connection, response))
        await writer.drain()
        if response.acknowledged is not None:
            self._acknowledged(response.acknowledged)
        if connection.our_state is not h11.DONE:
            return False
        connection.start_next_cycle()
        return True

    async def _answer(self, request: Request) -> Response:
        waited = False
        while True:
            changed = self._changed
            reply = self._dialect.respond(request, self._machine, now=time.time(), waited=waited)
            if isinstance(reply, Response):
                return reply
            with suppress(asyncio.TimeoutError):  # then the present value is the answer
                await asyncio.wait_for(changed.wait(), reply.timeout_s)
            waited = True


async def _receive(connection: h11.Connection, reader: asyncio.StreamReader) -> Request | None:
    """The next whole request; None at the end of the connection."""
    head: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(4096))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _LONGEST_BODY:
                raise h11.RemoteProtocolError("body too long", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return _request(head, body)
        else:
            return None


def _request(head: h11.Request, body: bytes) -> Request:
    target = urlsplit(head.target.decode("ascii", "replace"))
    return Request(
        method=head.method.decode(),
        path=target.path,
        query=dict(parse_qsl(target.query)),
        headers={name.decode(): value.decode("latin-1") for name, value in head.headers},
        body=body,
    )


def _wire(connection: h11.Connection, response: Response) -> bytes:
    headers = dict(response.headers) | {
        # Vendors' endpoints name their present second; agents count deadlines by it.
        "date": formatdate(time.time(), usegmt=True),
        "content-length": str(len(response.body)),
    }
    head = h11.Response(
        status_code=response.status,
        reason=HTTPStatus(response.status).phrase.encode(),
        headers=list(headers.items()),
    )
    parts = [connection.send(head)]
    parts.append(connection.send(h11.Data(data=response.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)
