"""An event loop whose time moves only when nothing else can happen: minutes pass in no time.

As trio's `MockClock` with autojump: when no callback is ready and no descriptor has data, the time
jumps to the next timer. Pipes are real. What asyncio would run in a thread runs at once, in the
loop, so that a test is the same at every run; a call that is to take (virtual) time raises `Takes`.
Not for real processes: their time is not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

START_S = 1000.0
LIMIT_S = 3600.0
"""Virtual seconds after which a scenario that does not end has failed."""
PATIENCE_S = 1000.0
"""Virtual seconds that one condition is waited for."""


class Takes(Exception):
    """Raised inside a call for a thread: it goes on with `then` after so many seconds."""

    def __init__(self, seconds: float, then: Callable[[], Any]) -> None:
        super().__init__(seconds)
        self.seconds = seconds
        self.then = then


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = START_S
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def jump(timeout: float | None = None) -> Any:
            events = select(0)
            if events or timeout == 0:
                return events
            if timeout is None:
                return select(None)  # no timer at all: only a descriptor can go on
            self._virtual_s += timeout
            return []

        selector.select = jump

    def time(self) -> float:
        return self._virtual_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def call(work: Callable[[], T]) -> None:
            if future.cancelled():
                return
            try:
                future.set_result(work())
            except Takes as takes:
                self.call_later(takes.seconds, call, takes.then)
            except Exception as error:  # whoever awaits the call gets it, as of a thread
                future.set_exception(error)

        call(lambda: func(*args))
        return future


class LoopClock:
    """Both clocks of a VM, from the running loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def boottime(self) -> float:
        return asyncio.get_running_loop().time()


def play(
    scenario: Callable[[], Coroutine[Any, Any, T]],
    make_loop: Callable[[], VirtualTimeLoop] = VirtualTimeLoop,
    *,
    limit_s: float = LIMIT_S,
) -> T:
    """Run it to its end in virtual time; fails when something of it is left running."""
    left: set[asyncio.Task[Any]] = set()

    async def whole() -> T:
        try:
            result = await asyncio.wait_for(scenario(), limit_s)
            await asyncio.sleep(1.0)  # what was cancelled last ends now
        finally:
            left.update(asyncio.all_tasks() - {asyncio.current_task()})  # type: ignore[arg-type]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await asyncio.get_running_loop().shutdown_asyncgens()
        return result

    loop = make_loop()
    try:
        result = loop.run_until_complete(whole())
    finally:
        loop.close()
    assert not left, f"still running: {left}"
    return result


async def until(condition: Callable[[], object]) -> None:
    """Let the others go on, in virtual time, until it holds. What takes long is looked at more
    rarely, so that a condition that never holds fails soon in real time, too."""
    waited_s = 0.0
    while not condition():
        step_s = 0.01 if waited_s < 10 else 0.25
        await asyncio.sleep(step_s)
        waited_s += step_s
        assert waited_s < PATIENCE_S, f"nothing happened for {PATIENCE_S:.0f} virtual seconds"
