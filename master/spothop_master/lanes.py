"""Threads for one kind of work, so that it never waits for another kind's.

All threads of a process share one interpreter: forty that compute at once leave the event loop a
fortieth of it, and nobody is answered any sooner. So each kind has few, and the rest of its calls
wait in order, where they cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Lane:
    """Some threads and the calls that wait for them, in order."""

    def __init__(self, name: str, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """`work` in one of the threads; raises what it raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *args, **more))

    def later(self, work: Callable[[], object]) -> None:
        """The same for work that nobody waits for; it must not raise. Raises RuntimeError where
        there is no thread for it."""
        self._threads.submit(work)

    def close(self) -> None:
        """What has begun is finished."""
        self._threads.shutdown(wait=True, cancel_futures=True)


TOKENS, POLLS = 4, 4


class UserThreads:
    """For what users ask most often; the routes have the server's own threads. A thousand long
    polls that all ask again once kept `/healthz` waiting for four seconds."""

    def __init__(self) -> None:
        self.tokens = Lane("users-tokens", TOKENS)
        """Whose token it is."""
        self.polls = Lane("users-polls", POLLS)
        """What is new for a long poll."""

    def close(self) -> None:
        for lane in (self.tokens, self.polls):
            lane.close()
