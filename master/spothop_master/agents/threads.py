"""Threads that belong to the agents' calls.

The pages, users' long polls and storage probes share the default threads of the server. When those
are all at work, a call waits for one of them, and a notice must not. So agents have threads of
their own, by how much a call may wait:

- `urgent`: syncs with reports other than progress (a notice, a commit, an exit), and joins;
- `plain`: syncs with nothing new, answered from the database;
- `bulk`: log chunks, bundles, and syncs that are long to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

URGENT, PLAIN, BULK = 4, 4, 4
"""More would only wait for each other: one core, and one writer at a time on SQLite."""

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

    def close(self) -> None:
        """What has begun is finished."""
        self._threads.shutdown(wait=True, cancel_futures=True)


class AgentThreads:
    """One of each per master."""

    def __init__(self) -> None:
        self.urgent = Lane("agents-urgent", URGENT)
        self.plain = Lane("agents-plain", PLAIN)
        self.bulk = Lane("agents-bulk", BULK)

    def close(self) -> None:
        for lane in (self.urgent, self.plain, self.bulk):
            lane.close()
