"""Sends pieces to a store, several at once; a late one a second time.

One thread reads and hashes (the caller's: the pieces are made as they are asked for), one runs the
requests, in an event loop of its own. Why not a thread for each request: a thread that hangs in the
network cannot be ended, holds its memory and keeps a place in a pool, while a request that is
cancelled is dropped at once, with its connection.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache

from spothop.storage.base import Piece
from spothop.storage.errors import StorageError, StorageUnavailable
from spothop.storage.window import Patience, Window

Put = Callable[[str, bytes], Awaitable[None]]
TICK_S = 0.1
"""How often it is asked whether the upload is still wanted."""
SETTLE_S = 0.1


@dataclass
class _Flight:
    """One piece under way, in one copy or two."""

    piece: Piece
    began: float
    copied: float
    copies: list[Future[None]] = field(default_factory=list)
    begun: int = 0
    """Copies in all, also those that are no more."""


class Stalled(StorageUnavailable):
    """Nothing at all was answered for too long: the store hangs, or the line is too slow for so
    many at once."""


class Sending:
    """`run` sends all pieces. The first error that leaves a piece without a copy ends it: at once
    where it is final, else no more is begun, and what is under way is finished first. To drop that
    would cost a slow line up to a minute at each error."""

    def __init__(
        self,
        put: Put,
        window: Window,
        *,
        patience: Patience,
        left_s: Callable[[], float | None],
        still_wanted: Callable[[], object],
        on_sent: Callable[[Piece], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._put = put
        self._window = window
        self._patience = patience
        self._left_s = left_s
        self._still_wanted = still_wanted
        self._on_sent = on_sent
        self._clock = clock
        self._flights: list[_Flight] = []
        self._moved = clock()
        self._failed: BaseException | None = None

    def run(self, pieces: Iterator[Piece]) -> None:
        """Raises what a request raises, what `still_wanted` raises, and `Stalled` when
        nothing is finished for too long. Requests under way are dropped then."""
        _settle_at_exit()
        with _loop_thread() as loop:
            following = next(pieces, None)
            self._moved = self._clock()
            while self._flights or (following is not None and self._failed is None):
                while self._failed is None and following is not None and self._admits(following):
                    self._begin(loop, following)
                    following = next(pieces, None)
                copies = [copy for flight in self._flights for copy in flight.copies]
                wait(copies, timeout=TICK_S, return_when=FIRST_COMPLETED)
                self._still_wanted()
                self._collect()
                self._send_late_again(loop)
            if self._failed is not None:
                raise self._failed

    def _admits(self, piece: Piece) -> bool:
        under_way = sum(len(flight.piece.data) for flight in self._flights)
        return self._window.admits(len(self._flights), under_way, len(piece.data))

    def _begin(self, loop: asyncio.AbstractEventLoop, piece: Piece) -> None:
        now = self._clock()
        self._window.begun(now)
        if not self._flights:
            self._moved = now
        flight = _Flight(piece, began=now, copied=now)
        self._flights.append(flight)
        self._copy(loop, flight)

    def _copy(self, loop: asyncio.AbstractEventLoop, flight: _Flight) -> None:
        async def put() -> None:
            await self._put(flight.piece.key, flight.piece.data)

        flight.copied = self._clock()
        flight.begun += 1
        flight.copies.append(asyncio.run_coroutine_threadsafe(put(), loop))

    def _collect(self) -> None:
        for flight in list(self._flights):
            done = [copy for copy in flight.copies if copy.done()]
            if any(copy.exception() is None for copy in done):
                self._land(flight)
                continue
            for copy in done:
                flight.copies.remove(copy)
                self._window.failed()
                if not flight.copies:
                    self._flights.remove(flight)
                    self._fail(copy.exception())

    def _fail(self, error: BaseException | None) -> None:
        if error is not None and not (isinstance(error, StorageError) and error.retryable):
            raise error
        self._failed = self._failed or error

    def _land(self, flight: _Flight) -> None:
        for copy in flight.copies:
            copy.cancel()
        self._flights.remove(flight)
        now = self._clock()
        self._moved = now
        self._window.finished(len(flight.piece.data), now - flight.began, now)
        self._on_sent(flight.piece)

    def _send_late_again(self, loop: asyncio.AbstractEventLoop) -> None:
        """A second copy; where both are late, a new one in place of the younger. The first stays:
        on a slow line it has come furthest. And each waits twice as long as the one before."""
        now, left_s = self._clock(), self._left_s()
        if self._flights and now - self._moved > self._patience.stalled_s:
            raise Stalled(f"nothing that was sent was answered for {now - self._moved:.0f} s")
        for flight in self._flights:
            late_s = self._window.late_after_s(len(flight.piece.data), self._patience, left_s)
            if now - flight.copied < late_s * 2.0 ** (flight.begun - 1):
                continue
            if len(flight.copies) > 1:
                flight.copies.pop().cancel()
            elif self._doubled() >= self._window.second_copies():
                continue
            self._copy(loop, flight)

    def _doubled(self) -> int:
        return sum(len(flight.copies) > 1 for flight in self._flights)


@cache
def _settle_at_exit() -> None:
    """obstore's threads (0.12) hand a result over from Python, and a thread that comes back into an
    interpreter that is ending aborts the process: 2 of 40 that ended right after an upload. So
    an ending process lets them finish. (The agent ends by `os._exit`, and does not wait.)"""
    atexit.register(time.sleep, SETTLE_S)


@contextmanager
def _loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread; what is left in it at the end is cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="spothop-send", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        with suppress(RuntimeError):  # it is closed
            asyncio.run_coroutine_threadsafe(_cancel_the_rest(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
