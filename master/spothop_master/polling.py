"""Long polls: ask when there is news, until there is an answer, the wait is over, or the master
ends.

Who waits holds no thread and no session. After it was woken it waits a moment for what comes
together (a sync brings steps, events and lines of the log), so that one answer holds it all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from spothop_master.notifier import Topic
from spothop_master.services import Services

LONGEST_S = 30.0
"""Below the idle limits of the usual reverse proxies (60 s)."""
GATHER_S = 0.1

T = TypeVar("T")


async def poll(
    services: Services,
    ask: Callable[[], T],
    *,
    enough: Callable[[T], bool],
    topics: Callable[[T], Sequence[Topic]],
    wait_s: float,
) -> T:
    """The newest answer of `ask` (run in a thread) once it is `enough` or `wait_s` are over;
    `topics` are those that may change such an answer."""
    loop, news = asyncio.get_running_loop(), services.notifier
    until = loop.time() + min(wait_s, LONGEST_S)
    while True:
        mark = news.mark()
        answer = await run_in_threadpool(ask)
        left_s = until - loop.time()
        if enough(answer) or left_s <= 0 or services.stopping.is_set():
            return answer
        await news.wait(topics(answer), since=mark, at_most_s=left_s)
        if not services.stopping.is_set():
            await asyncio.sleep(max(0.0, min(GATHER_S, until - loop.time())))
