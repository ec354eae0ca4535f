"""Virtual time for calls that block in the middle: `pause` waits inside what runs "in a thread".

`virtual_time` runs such a call at once, in the loop, so that it can wait only at its beginning
(`Takes`). Here each call has a real thread, but only one thread moves at a time: the loop stands
still until the call has ended or pauses. So every run of a scenario is the same, as long as the
call does not start threads of its own that pause, too (`InlinePool` takes the place of a pool).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from fakes.virtual_time import VirtualTimeLoop

T = TypeVar("T")

_current = threading.local()


class Abandoned(BaseException):
    """The scenario is over; the call that still waits ends."""


def pause(seconds: float) -> None:
    """Wait inside a call for a thread, in virtual time."""
    call: _Call = _current.call
    call.pause(seconds)


class _Call:
    def __init__(
        self, loop: BlockingCallsLoop, work: Callable[[], Any], future: asyncio.Future[Any]
    ) -> None:
        self._loop = loop
        self._work = work
        self._future = future
        self._go = threading.Event()
        self._stands = threading.Event()
        self._wants_s: float | None = None
        self._abandoned = False
        self._error: BaseException | None = None
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    # --- in the loop's thread ---

    def begin(self) -> None:
        self._thread.start()
        self._when_it_stands()

    def _go_on(self) -> None:
        self._stands.clear()
        self._go.set()
        self._when_it_stands()

    def _when_it_stands(self) -> None:
        self._stands.wait()
        if self._wants_s is not None:
            self._loop.call_later(self._wants_s, self._go_on)
            return
        self._thread.join()
        self._loop.calls.discard(self)
        if self._future.done():
            return
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._result)

    def abandon(self) -> None:
        self._abandoned = True
        self._go.set()
        self._thread.join()

    # --- in its own ---

    def _run(self) -> None:
        _current.call = self
        try:
            self._result = self._work()
        except Abandoned:
            pass
        except BaseException as error:  # whoever awaits the call gets it, as of a thread
            self._error = error
        self._wants_s = None
        self._stands.set()

    def pause(self, seconds: float) -> None:
        self._wants_s = seconds
        self._stands.set()
        self._go.wait()
        self._go.clear()
        if self._abandoned:
            raise Abandoned


class BlockingCallsLoop(VirtualTimeLoop):
    def __init__(self) -> None:
        super().__init__()
        self.calls: set[_Call] = set()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        call = _Call(self, lambda: func(*args), future)
        self.calls.add(call)
        call.begin()
        return future

    def close(self) -> None:
        for call in [*self.calls]:
            call.abandon()
        super().close()


class InlinePool(Executor):
    """In place of `ThreadPoolExecutor`: each call runs at once, in the thread that submits it."""

    def __init__(self, *args: object) -> None: ...

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # as an executor does
            future.set_exception(error)
        return future

    def map(  # type: ignore[override]
        self, fn: Callable[..., T], *iterables: Iterable[Any]
    ) -> Iterator[T]:
        return iter([fn(*items) for items in zip(*iterables, strict=True)])
