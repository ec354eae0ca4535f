"""Connections that are idle, slow, or too many: who stays, and who makes room."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from spothop_master.front_door import (
    Connection,
    Doing,
    FrontDoor,
    Limits,
    WatchedConnection,
    limits_for,
    raise_file_limit,
    too_slow,
)
from spothop_master.security import TRUST

LIMITS = Limits(connections=10, strangers=4, strangers_of_one=2)


@dataclass(eq=False)
class Visitor:
    address: str = "10.0.0.1"
    doing: Doing = Doing.RECEIVING
    since: float = 0.0
    received: int = 0
    stalled_since: float | None = None
    trusted: bool = False
    who: str = "somebody"
    held: bool = False
    dropped: bool = False

    def drop(self) -> None:
        self.dropped = True


@pytest.mark.parametrize(
    ("visitor", "longest_s"),
    [
        (Visitor(), 10),
        (Visitor(trusted=True), 10),
        (Visitor(received=10 * 16_384), 20),
        (Visitor(doing=Doing.RESTING), 10),
        (Visitor(doing=Doing.RESTING, trusted=True), 120),
        (Visitor(doing=Doing.WORKING), None),
        (Visitor(doing=Doing.WORKING, stalled_since=0.0), 60),
        (Visitor(held=True), None),
    ],
)
def test_each_has_the_time_that_it_needs(visitor: Visitor, longest_s: float | None) -> None:
    assert not too_slow(visitor, LIMITS, longest_s or 1e9)
    if longest_s is not None:
        assert too_slow(visitor, LIMITS, longest_s + 0.1)


def test_a_stranger_of_a_crowded_address_makes_room_for_the_next() -> None:
    door = FrontDoor(LIMITS, clock=lambda: 0.0)
    first, second, other = Visitor(), Visitor(), Visitor(address="10.0.0.2")
    for visitor in (first, second, other, third := Visitor()):
        door.enter(visitor)
    assert [v.dropped for v in (first, second, third, other)] == [True, False, False, False]


def test_who_is_trusted_or_waits_for_an_answer_stays() -> None:
    door = FrontDoor(LIMITS, clock=lambda: 0.0)
    agents = [Visitor() for _ in range(5)]
    for agent in agents:
        door.enter(agent)
        agent.trusted = True
    waiting = [Visitor(doing=Doing.WORKING) for _ in range(2)]
    for visitor in (*waiting, late := Visitor()):
        door.enter(visitor)
    assert not any(v.dropped for v in (*agents, *waiting))
    assert late.dropped


def test_own_addresses_share_one_limit_alone() -> None:
    """Everybody stands behind a reverse proxy of this machine."""
    door = FrontDoor(LIMITS, clock=lambda: 0.0)
    visitors = [Visitor(address=address) for address in ("127.0.0.1", "::1", "", "127.9.9.9")]
    for visitor in visitors:
        door.enter(visitor)
    assert not any(v.dropped for v in visitors)
    door.enter(Visitor(address="127.0.0.1"))
    assert [v.dropped for v in visitors] == [True, False, False, False]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["10.0.0.1", "10.0.0.2", "127.0.0.1"]),
            st.sampled_from(Doing),
            st.booleans(),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_the_limits_hold_and_no_trusted_one_goes(
    steps: list[tuple[str, Doing, bool, bool]],
) -> None:
    door = FrontDoor(LIMITS, clock=lambda: 0.0)
    inside: list[Visitor] = []
    for address, doing, trusted, leaves in steps:
        visitor = Visitor(address=address, doing=doing)
        full_of_trusted = len(door.inside) == LIMITS.connections
        door.enter(visitor)
        inside = [v for v in (*inside, visitor) if not v.dropped]
        assert set(door.inside) == set(inside)
        assert len(inside) <= LIMITS.connections
        strangers = [v for v in inside if not v.trusted]
        assert len(strangers) <= LIMITS.strangers
        assert sum(v.address == "10.0.0.1" for v in strangers) <= LIMITS.strangers_of_one
        if visitor.dropped:
            assert full_of_trusted or len(strangers) >= LIMITS.strangers_of_one
        else:
            visitor.trusted = trusted
        if leaves and not visitor.dropped:
            door.leave(visitor)
            door.leave(visitor)
            inside.remove(visitor)
    assert not any(v.trusted and v.dropped for v in inside)


def test_there_are_more_files_than_connections() -> None:
    for files in (64, 256, 1024, 65_536):
        limits = limits_for(files)
        assert 0 < limits.connections < files
        assert limits.strangers < limits.connections
        assert 2 * limits_for(files, doors=2).connections < files


def test_the_process_asks_for_more_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert raise_file_limit() == 4096
    assert asked == [(4096, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert raise_file_limit() == 4096
    assert len(asked) == 1


# --- over real sockets; the door's clock stands still until the test moves it ---


class TellingDoor(FrontDoor):
    def __init__(self, limits: Limits, *, clock: Callable[[], float]) -> None:
        super().__init__(limits, clock=clock)
        self._came: asyncio.Queue[Connection] = asyncio.Queue()

    def enter(self, connection: Connection) -> None:
        super().enter(connection)
        self._came.put_nowait(connection)

    async def entered(self, many: int) -> None:
        """So many more came in."""
        for _ in range(many):
            await self._came.get()


@dataclass
class Room:
    """A server whose application trusts whoever says so, and answers when `may_answer` is set."""

    now: float = 0.0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.door = TellingDoor(LIMITS, clock=lambda: self.now)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/trusted"):
            scope["extensions"][TRUST](scope["path"])
        self.began.set()
        while (await receive()).get("more_body"):
            pass
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def look(self, later_s: float) -> None:
        self.now += later_s
        self.door.look()


def in_room(scenario: Callable[[Room, int], Awaitable[None]]) -> None:
    async def run() -> None:
        room = Room()
        config = uvicorn.Config(room.app, lifespan="off", interface="asgi3", log_level="critical")
        config.load()
        made = partial(
            WatchedConnection,
            door=room.door,
            config=config,
            server_state=ServerState(),
            app_state={},
        )
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        async with server:
            await scenario(room, server.sockets[0].getsockname()[1])

    asyncio.run(run())


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bytes:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return (await reader.readuntil(b"\r\n\r\n"))[:12]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab",
    ],
)
def test_whoever_sends_no_whole_request_is_closed(sent: bytes) -> None:
    async def scenario(room: Room, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await writer.drain()
        if sent.endswith(b"ab"):
            await room.began.wait()
        await room.door.entered(1)
        room.look(9.9)
        assert room.door.inside
        room.look(0.3)
        assert not room.door.inside
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    in_room(scenario)


def test_a_long_answer_is_waited_for_and_then_strangers_rest_briefly() -> None:
    async def scenario(room: Room, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = asyncio.ensure_future(ask(reader, writer, "/"))
        await room.began.wait()
        room.look(1000.0)
        room.may_answer.set()
        assert await answer == b"HTTP/1.1 204"
        room.look(9.0)
        assert await ask(reader, writer, "/") == b"HTTP/1.1 204"
        room.look(10.1)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    in_room(scenario)


def test_trusted_connections_rest_as_long_as_the_server_lets_them() -> None:
    async def scenario(room: Room, port: int) -> None:
        room.may_answer.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ask(reader, writer, "/trusted") == b"HTTP/1.1 204"
        for _ in range(3):
            room.look(70.0)
            assert await ask(reader, writer, "/") == b"HTTP/1.1 204"
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        await room.door.entered(21)
        assert await ask(reader, writer, "/") == b"HTTP/1.1 204"
        assert len(room.door.inside) == 1 + LIMITS.strangers
        for _, other in (*crowd, (reader, writer)):
            other.close()

    in_room(scenario)


def test_an_empty_line_keeps_no_trusted_connection() -> None:
    """uvicorn ends its own deadline at any byte, and no request begins with these."""

    async def scenario(room: Room, port: int) -> None:
        room.may_answer.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ask(reader, writer, "/trusted") == b"HTTP/1.1 204"
        writer.write(b"\r\n")
        room.look(119.0)
        assert room.door.inside
        room.look(2.0)
        assert not room.door.inside
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    in_room(scenario)


@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"GET /",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ",
    ],
    ids=["header", "address", "trailer"],
)
def test_nobody_fills_the_memory_with_what_is_no_body(begin: bytes) -> None:
    async def scenario(room: Room, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await room.door.entered(1)
        writer.write(begin)
        sent = 0
        with suppress(ConnectionError):
            while room.door.inside and sent < 16 << 20:
                writer.write(b"y" * 65_536)
                sent += 65_536
                await writer.drain()
                await asyncio.sleep(0)
        assert sent < 16 << 20
        writer.close()

    in_room(scenario)


def test_a_large_body_is_no_header() -> None:
    async def scenario(room: Room, port: int) -> None:
        room.may_answer.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n" + bytes(4_000_000))
        assert (await reader.readuntil(b"\r\n\r\n"))[:12] == b"HTTP/1.1 204"
        writer.close()

    in_room(scenario)


def test_whoever_holds_the_most_makes_room_when_all_are_trusted() -> None:
    door = FrontDoor(Limits(connections=32, strangers=8), clock=lambda: 0.0)
    agents = [Visitor(who=f"vm-{i}") for i in range(10)]
    greedy = [Visitor(who="user 7", doing=Doing.RESTING) for _ in range(22)]
    for visitor in (*agents, *greedy):
        door.enter(visitor)
        visitor.trusted = True
    door.enter(newcomer := Visitor())
    assert not any(visitor.dropped for visitor in (*agents, newcomer))
    assert [visitor.dropped for visitor in greedy] == [True] * 2 + [False] * 20


def test_a_crowd_at_one_port_takes_no_connection_from_another() -> None:
    async def scenario(room: Room, port: int) -> None:
        room.may_answer.set()
        agents = TellingDoor(LIMITS, clock=lambda: room.now)
        config = uvicorn.Config(room.app, lifespan="off", interface="asgi3", log_level="critical")
        config.load()
        others: dict[int, FrontDoor] = {}
        more = {"config": config, "server_state": ServerState(), "app_state": {}}
        made = partial(WatchedConnection, door=room.door, others=others, **more)
        both = [
            await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0) for _ in range(2)
        ]
        front, back = (server.sockets[0].getsockname()[1] for server in both)
        others[back] = agents
        reader, writer = await asyncio.open_connection("127.0.0.1", back)
        assert await ask(reader, writer, "/") == b"HTTP/1.1 204"
        crowd = [await asyncio.open_connection("127.0.0.1", front) for _ in range(20)]
        await room.door.entered(20)
        assert (len(room.door.inside), len(agents.inside)) == (LIMITS.strangers, 1)
        assert await ask(reader, writer, "/") == b"HTTP/1.1 204"
        for _, other in (*crowd, (reader, writer)):
            other.close()
        for server in both:
            server.close()

    in_room(scenario)


@pytest.mark.parametrize(("many", "stays"), [(10, True), (5_000, False)])
def test_nobody_fills_the_memory_with_requests(many: int, stays: bool) -> None:
    async def scenario(room: Room, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * many)
        await room.began.wait()
        if stays:
            room.may_answer.set()
            for _ in range(many):
                assert (await reader.readuntil(b"\r\n\r\n"))[:12] == b"HTTP/1.1 204"
        else:
            with suppress(ConnectionResetError):
                assert (await reader.read())[:12] == b"HTTP/1.1 400"
        writer.close()

    in_room(scenario)
