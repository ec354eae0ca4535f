"""Who may stay connected: deadlines for slow connections, and room for those who are known.

An idle connection costs its peer nothing and us a file descriptor; a thousand of them once left the
agents' syncs unheard until their VMs were ended. So:

- A connection is *trusted* once a request on it has shown a valid token. Others are few, and closed
  when they send nothing, or send more slowly than anybody needs to.
- Where there are too many others, the first that came and waits for no answer makes room.
- Where even the trusted ones are too many, those of whoever has the most make room: one token
  cannot keep everybody else out.
- Of what is no body nobody sends much: uvicorn keeps headers in memory, however long they get.
- There are always more file descriptors than connections.
- Agents may have a port and a door of their own, with half of the file descriptors: then no crowd
  at the other one takes a connection from them.

What does not work: a cap for each address alone (all VMs of a team may have the same one, and so
has everybody behind a reverse proxy), and refusing the newcomer instead of the idle one (who comes
first then keeps everybody out).

Sources: uvicorn's protocol, which has a deadline for resting connections only; RFC 9110, section
9.3.6 and RFC 9112, section 9.5 (a server may close a connection at any time).
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spothop_master.security import TRUST

FILES_WANTED = 65_536
"""File descriptors that the process asks its system for."""

FILES_KEPT = 256
"""Of them, for the database, logs, bundles, and calls to clouds."""


class Doing(Enum):
    """What a connection does."""

    RECEIVING = "receiving"
    """A request arrives, or is still to begin on a new connection."""
    WORKING = "working"
    """We answer."""
    RESTING = "resting"
    """Between two requests."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    connections: int
    """In all."""
    strangers: int
    """Not trusted, in all."""
    strangers_of_one: int = 100
    """Not trusted, of one address that is not this machine's own (a reverse proxy's)."""
    begin_s: float = 10.0
    """For the headers, and for whatever else has no size."""
    slowest: float = 16_384.0
    """Bytes a second of a body, on average."""
    rest_s: float = 10.0
    """A stranger's rest."""
    trusted_rest_s: float = 120.0
    """Above the server's keep-alive, which ends at any byte, even one that begins no request."""
    stall_s: float = 60.0
    """A peer that takes nothing of its answer."""


class Connection(Protocol):
    """What the door sees of one connection."""

    address: str
    doing: Doing
    since: float
    """When it began to do that (seconds, of the door's clock)."""
    received: int
    """Bytes of the body that arrives."""
    stalled_since: float | None
    trusted: bool
    who: str
    """Whose token it has shown, where it is trusted."""

    @property
    def held(self) -> bool:
        """We do not read on, because we have not done with what came."""

    def drop(self) -> None:
        """Close it now."""


def too_slow(connection: Connection, limits: Limits, now: float) -> bool:
    """Whether it has had all the time that it needs."""
    if connection.stalled_since is not None and now - connection.stalled_since > limits.stall_s:
        return True
    waited_s = now - connection.since
    if connection.doing is Doing.RECEIVING and not connection.held:
        return waited_s > limits.begin_s + connection.received / limits.slowest
    rest_s = limits.trusted_rest_s if connection.trusted else limits.rest_s
    return connection.doing is Doing.RESTING and waited_s > rest_s


_Strangers: TypeAlias = "OrderedDict[Connection, None]"
"""Taken from its beginning, which costs a plain dict what was deleted there before."""


class FrontDoor:
    """For one thread: the event loop's. Only `trusted` and `who` of a connection may be set by
    others."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self.inside: dict[Connection, None] = {}
        self._strangers: _Strangers = OrderedDict()  # oldest first; some are trusted by now
        self._of_address: dict[str, _Strangers] = {}

    def enter(self, connection: Connection) -> None:
        """A new connection, which may have to go at once."""
        self.inside[connection] = None
        self._strangers[connection] = None
        of_address = self._of_address.setdefault(connection.address, OrderedDict())
        of_address[connection] = None
        limits = self.limits
        if not _is_own(connection.address):
            self._make_room(of_address, limits.strangers_of_one)
        self._make_room(self._strangers, limits.strangers)
        if len(self.inside) > limits.connections:
            idlest = next((c for c in (_idlest(self._strangers),) if c is not connection), None)
            for other in [idlest] if idlest else self._of_the_greediest():
                self._drop(other)
        if len(self.inside) > limits.connections:
            self._drop(connection)

    def leave(self, connection: Connection) -> None:
        """It is closed; harmless to say twice."""
        self.inside.pop(connection, None)
        self._strangers.pop(connection, None)
        of_address = self._of_address.get(connection.address)
        if of_address is not None:
            of_address.pop(connection, None)
            if not of_address:
                del self._of_address[connection.address]

    def look(self) -> None:
        """Drop what is too slow: to be called every second or so."""
        now = self.clock()
        for connection in [c for c in self.inside if too_slow(c, self.limits, now)]:
            self._drop(connection)

    def _of_the_greediest(self) -> list[Connection]:
        """Connections that rest, of whoever has the most: many at once, because to find them takes
        time. None where everybody has few."""
        held: dict[str, list[Connection]] = {}
        for connection in self.inside:
            if connection.trusted:
                held.setdefault(connection.who, []).append(connection)
        most = max(held.values(), key=len, default=[])
        fair = max(1, self.limits.connections // 16)
        resting = [c for c in most[:-fair] if c.doing is not Doing.WORKING]
        return resting[:fair]

    def _make_room(self, strangers: _Strangers, most: int) -> None:
        """Of those whom we owe no answer the first that came goes. Those whom we do go to the end
        of the queue, so that nobody looks at them again for each newcomer of a crowd."""
        for _ in range(len(strangers)):
            if len(strangers) <= most:
                return
            connection = next(iter(strangers))
            if connection.trusted:
                del strangers[connection]
            elif connection.doing is Doing.WORKING:
                strangers.move_to_end(connection)
            else:
                self._drop(connection)
        if len(strangers) > most:  # we owe each of them an answer
            self._drop(next(reversed(strangers)))

    def _drop(self, connection: Connection) -> None:
        self.leave(connection)
        connection.drop()


def _idlest(strangers: dict[Connection, None]) -> Connection | None:
    """Of those whom we do not owe an answer, the first that came."""
    return next(
        (c for c in strangers if not c.trusted and c.doing is not Doing.WORKING),
        None,
    )


@lru_cache(maxsize=1024)
def _is_own(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a Unix socket's
        return True


def raise_file_limit() -> int:
    """As many file descriptors as the system grants, up to `FILES_WANTED`; how many there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else FILES_WANTED


def limits_for(files: int, doors: int = 1) -> Limits:
    """Of each of these doors, with so many file descriptors for all."""
    files //= doors
    connections = max(files - FILES_KEPT, files // 2)
    return Limits(connections=connections, strangers=min(2000, connections // 4))


LOOK_EVERY_S = 1.0

HEAD_BYTES = 64 * 1024
"""In a row that are of no body and do not end the headers; browsers send some 8 KiB."""

PIPELINED = 16
"""Requests behind one that is not answered yet. Hardly any client sends two, and uvicorn keeps all:
thousands fit into what it reads at once."""


class WatchedConnection(HttpToolsProtocol):
    """uvicorn's connection, which tells the door what it does."""

    def __init__(
        self, *, door: FrontDoor, others: Mapping[int, FrontDoor] | None = None, **more: Any
    ) -> None:
        """`others` are the doors of other ports that the server listens on."""
        super().__init__(**more)
        self._others = others or {}
        self._door = door
        self.address = ""
        self.doing = Doing.RECEIVING
        self.since = door.clock()
        self.received = 0
        self.stalled_since: float | None = None
        self.trusted = False
        self.who = ""
        self._bare = 0
        """Bytes since the last useful ones."""
        self._useful = False

    @property
    def held(self) -> bool:
        return self.flow.read_paused

    def drop(self) -> None:
        self.transport.abort()

    def trust(self, who: str) -> None:
        """In any thread."""
        self.who, self.trusted = who, True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        port = self.server[1] if self.server else None
        self._door = self._others.get(port or 0, self._door)
        self._door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._useful = False
        super().data_received(data)
        self._bare = 0 if self._useful else self._bare + len(data)
        if self._bare > HEAD_BYTES:
            self._door.leave(self)
            self.drop()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("too many requests at once")  # uvicorn answers 400 and closes
        self._useful = True
        super().on_headers_complete()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRUST: self.trust}  # type: ignore[dict-item]
        self.received = 0
        if self.doing is not Doing.RECEIVING:
            self._now(Doing.RECEIVING)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._useful = True
        self.received += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._now(Doing.RESTING if self.cycle.response_complete else Doing.WORKING)

    def on_response_complete(self) -> None:
        if self.doing is Doing.WORKING:  # else the answer came before the end of the request
            self._now(Doing.RESTING)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled_since = self._door.clock()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalled_since = None

    def _now(self, doing: Doing) -> None:
        self.doing, self.since = doing, self._door.clock()


async def watch(*doors: FrontDoor) -> None:
    """Until it is cancelled."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        for door in doors:
            door.look()
