"""Ends a backup whose thread hangs in the network: whoever waits for it goes on at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from spothop.storage.errors import StorageUnavailable

T = TypeVar("T")

LOOK_S = 0.5
"""How often it is asked whether a call takes too long: a notice may come while it hangs."""


class Superseded(Exception):
    """A more urgent backup goes first; the work on this one was stopped."""


class Abort:
    """Of one backup. Its thread ends at its next block, or before it writes the chain entry."""

    def __init__(self) -> None:
        self._thread = threading.Event()
        self._loop = asyncio.Event()

    def set(self) -> None:
        self._thread.set()
        self._loop.set()

    def check(self) -> None:
        """In the thread of the work: raises Superseded after `set`."""
        if self._thread.is_set():
            raise Superseded

    async def unless(
        self, work: asyncio.Task[T], *, too_long: Callable[[], bool] | None = None
    ) -> T:
        """The result of `work`. Raises Superseded as soon as `set` is called: a thread that hangs
        in the network must not hold up what is more urgent; and StorageUnavailable when `too_long`
        says so."""
        stop = asyncio.create_task(self._loop.wait())
        try:
            while not work.done() and not self._loop.is_set():
                await asyncio.wait(
                    {work, stop},
                    return_when=asyncio.FIRST_COMPLETED,
                    timeout=None if too_long is None else LOOK_S,
                )
                if too_long is not None and not work.done() and too_long():
                    work.add_done_callback(_ignore)
                    raise StorageUnavailable("the storage does not answer, and time is short")
        except asyncio.CancelledError:  # the attempt ends: so does the upload, at its next block
            self._thread.set()
            work.cancel()
            raise
        finally:
            stop.cancel()
        if not self._loop.is_set():
            return work.result()
        work.add_done_callback(_ignore)
        raise Superseded


def _ignore(task: asyncio.Task[T]) -> None:
    """Nobody waits for its result any more."""
    if not task.cancelled():
        task.exception()
