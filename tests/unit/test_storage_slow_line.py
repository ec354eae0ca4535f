"""A slow and steady line is no store that hangs, in virtual time."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from contextlib import suppress

import obstore.store
import pytest

from spothop.storage import Piece, RemoteStore, StorageUnavailable, sending
from spothop.storage.base import MIB
from spothop.storage.sending import Sending
from spothop.storage.window import Patience, Window

DATA = bytes(8 * MIB)
TICK_S = 0.25


class Ended(Exception):
    """The VM is gone."""


class Line:
    """All requests under way share `rate` bytes a second; those of `hanging` begin and never end.
    Each tick of the upload is `TICK_S` of virtual time, the same on any machine."""

    def __init__(self, rate: float, *, hanging: int = 0, breaks_at: float = math.inf) -> None:
        self.now = 0.0
        self._breaks_at = breaks_at
        self._rate = rate
        self._hanging = hanging
        self._open: dict[asyncio.Future[None], float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = threading.Event()

    async def put(self, key: str, data: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        answer = self._loop.create_future()
        self._began.set()
        if self._hanging:
            self._hanging -= 1
            await answer
        self._open[answer] = len(data)
        try:
            await answer
        finally:
            del self._open[answer]

    def tick(self) -> None:
        assert self._began.wait(10)
        assert self._loop is not None
        for _ in range(3):  # what was begun has begun, and what is answered is told
            asyncio.run_coroutine_threadsafe(self._settle(), self._loop).result(10)
        asyncio.run_coroutine_threadsafe(self._move(), self._loop).result(10)
        for _ in range(3):
            asyncio.run_coroutine_threadsafe(self._settle(), self._loop).result(10)
        self.now += TICK_S

    async def _settle(self) -> None:
        await asyncio.sleep(0)

    async def _move(self) -> None:
        share = self._rate * TICK_S / max(1, len(self._open))
        if self.now >= self._breaks_at:
            self._breaks_at = math.inf
            next(iter(self._open)).set_exception(StorageUnavailable("connection reset"))
        for answer in self._open:
            self._open[answer] -= share
            if self._open[answer] <= 0 and not answer.done():
                answer.set_result(None)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "TICK_S", 0.0)


def arrives(line: Line, count: int, *, left_s: float | None, uses: Window | None = None) -> int:
    """How many of `count` pieces of 8 MiB arrive in the time that is left."""
    arrived: list[Piece] = []

    def tick() -> None:
        line.tick()
        if left_s is not None and line.now >= left_s:
            raise Ended

    with suppress(Ended):
        Sending(
            line.put,
            uses or Window(48 * MIB),
            patience=Patience(),
            left_s=lambda: None if left_s is None else left_s - line.now,
            still_wanted=tick,
            on_sent=arrived.append,
            clock=lambda: line.now,
        ).run(pieces(count))
    return len(arrived)


def pieces(count: int) -> Iterator[Piece]:
    return (Piece(f"k{number}", DATA, "") for number in range(count))


@pytest.mark.parametrize(("mib_s", "count"), [(0.5, 1), (2.5, 7), (6.0, 16)])
def test_a_slow_line_makes_it_in_the_time_after_a_notice(mib_s: float, count: int) -> None:
    """It needs 16, 22 and 21 s of 30, and nothing is known of it."""
    assert arrives(Line(mib_s * MIB), count, left_s=30) == count


@pytest.mark.parametrize("hanging", [1, 2])
def test_requests_that_hang_are_sent_again_in_time(hanging: int) -> None:
    assert arrives(Line(40 * MIB, hanging=hanging), 1, left_s=30) == 1


def test_one_that_breaks_does_not_drop_those_beside_it() -> None:
    """Six share 1 MiB/s for 48 s, and after 40 s one of them breaks: five parts of six stay."""
    line = Line(1 * MIB, breaks_at=40)
    sent: list[Piece] = []
    with pytest.raises(StorageUnavailable, match="reset"):
        Sending(
            line.put,
            Window(48 * MIB),
            patience=Patience(),
            left_s=lambda: None,
            still_wanted=line.tick,
            on_sent=sent.append,
            clock=lambda: line.now,
        ).run(pieces(9))
    assert [piece.key for piece in sent] == ["k1", "k2", "k3", "k4", "k5"]
    assert line.now < 50


def test_what_takes_long_does_not_get_more_at_once() -> None:
    uses = Window(48 * MIB, at_once=2)
    assert arrives(Line(1 * MIB), 4, left_s=None, uses=uses) == 4  # 16 s each
    assert uses.at_once == 2


class Slow(RemoteStore):
    def __init__(self) -> None:
        super().__init__(obstore.store.MemoryStore(), "memory://", clock=lambda: self.line.now)
        self.line = Line(0.4 * MIB)

    async def _put_async(self, key: str, data: bytes) -> None:
        await self.line.put(key, data)

    def try_to_send(self, sent: list[str]) -> None:
        self.line = Line(0.4 * MIB)  # for each try has an event loop of its own
        self.send_pieces(
            (piece for piece in pieces(8) if piece.key not in sent),
            on_sent=lambda piece: sent.append(piece.key),
            still_wanted=self.line.tick,
            left_s=lambda: None,
        )


def test_so_many_at_once_that_none_is_finished_are_fewer_at_the_next_try() -> None:
    """48 MiB at once need 120 s at 0.4 MiB/s: that would be tried for ever."""
    store, sent = Slow(), list[str]()
    with pytest.raises(StorageUnavailable, match="nothing that was sent was answered"):
        store.try_to_send(sent)
    assert sent == []
    store.try_to_send(sent)
    assert len(sent) == 8
    assert store.line.now < 220
