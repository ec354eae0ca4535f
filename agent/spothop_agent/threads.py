"""Where blocking work runs: never in the event loop, and not in its default threads either.

The loop has to see a notice within a second, and a tree of 100,000 files takes half a minute to
delete. And a thread that hangs in the network cannot be ended: the default threads are few (six
on a VM of two cores), and asyncio resolves host names in them, so a few hung uploads would cut
the agent off from its master and leave it no thread for its disk. So each kind has threads of its
own; they are started only when they are needed.

- `disk`: walking, measuring, unpacking and deleting here. Few: one disk does not get faster.
- `storage`: calls to the store. Many: one that hangs keeps its thread until the HTTP client gives
  up (two minutes), long after it was given up here and tried again.
- `idle`: one, of low priority, for work that nobody waits for. It is a thread that does nothing
  else, because it may not raise its priority again (setpriority(2); on Linux each thread has its
  own). What holds Python's lock for long is not for it: beside processes that keep all cores busy
  the whole agent, the loop that sees a notice included, would wait for its turn. For the same
  reason its priority is not the lowest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

DISK, STORAGE = 4, 64
LOW = 10
"""Of nice(2): a tenth of the share of a process that trains."""


class Threads:
    """One for an agent. What waits for a call may be cancelled; the thread goes on."""

    def __init__(self) -> None:
        self._disk = ThreadPoolExecutor(DISK, "spothop-disk")
        self._storage = ThreadPoolExecutor(STORAGE, "spothop-storage")
        self._idle = ThreadPoolExecutor(1, "spothop-idle", initializer=_yield_to_all)

    async def disk(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._disk, partial(function, *args, **kwargs))

    async def storage(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._storage, partial(function, *args, **kwargs))

    async def idle(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._idle, partial(function, *args, **kwargs))


def _yield_to_all() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW)
