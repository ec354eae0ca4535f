"""Runs several tasks of which one ends the group, and any may fail it.

Every task that is started is waited for by somebody: by `first_end`, or through `Background` where
they come and go. A task whose error nobody sees leaves its work undone, and nobody knows. Work
that nothing depends on must not end the agent: it is an errand (`Errands`), and its error is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

CANCEL_AGAIN_S = 1.0

_log = logging.getLogger(__name__)


async def first_end(ends: set[asyncio.Task[Any]], others: set[asyncio.Task[Any]]) -> None:
    """Return when one of `ends` is done; raise what any task fails with before.

    Of `others`, those that end by themselves are not missed. Nothing is cancelled here.
    """
    waiting = ends | others
    while not any(task.done() for task in ends):
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def cancel_all(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel and wait; what they raise now is ignored.

    More than once: up to Python 3.11 `asyncio.wait_for` loses a cancellation that comes together
    with the result (https://github.com/python/cpython/issues/86296), and the task goes on.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        done, waiting = await asyncio.wait(waiting, timeout=CANCEL_AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()


class Background:
    """Tasks that are started at any time; whoever runs them together awaits `failure`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed = asyncio.Event()
        self._error: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._failed.set()

    async def failure(self) -> None:
        """Never returns; raises what the first task fails with, also one that has failed before."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    async def cancel(self) -> None:
        """Cancel all, and wait."""
        await cancel_all([*self._tasks])


class Errands:
    """Tasks that nothing depends on. `tell` gets what an unexpected error is about, once for each
    `what`, because an errand may come again and again; the log has every one."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()

    def __bool__(self) -> bool:
        """Whether any is under way."""
        return bool(self._tasks)

    def start(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """When `work` fails, `what` says in words what it is about."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(what, done))
        return task

    def _done(self, what: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("%s", what, exc_info=error)
        if what not in self._told:
            self._told.add(what)
            self._tell(f"{what}: unexpected {type(error).__name__}: {error}")

    async def cancel(self) -> None:
        """Cancel all, and wait."""
        await cancel_all([*self._tasks])
