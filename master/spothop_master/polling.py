"""Long polls: ask when there is news, until there is an answer, the wait is over, or the master
ends.

No two waits are of the same length, up to a quarter of it: a thousand that began together, after a
restart of the master or because one event woke them all, would otherwise come again together for
ever, and everybody else would wait behind them.

Who waits holds no thread and no session. After it was woken it waits a moment for what comes
together (a sync brings steps, events and lines of the log), so that one answer holds it all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

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
    until = loop.time() + min(wait_s, LONGEST_S) * services.spread()
    while True:
        mark = news.mark()
        answer = await services.user_threads.polls.run(ask)
        left_s = until - loop.time()
        if enough(answer) or left_s <= 0 or services.stopping.is_set():
            return answer
        at_most_s = min(left_s, news.fallback_s * services.spread())
        told = await news.wait(topics(answer), since=mark, at_most_s=at_most_s)
        over = not told and services.db.single_master and loop.time() >= until
        if over or services.stopping.is_set():
            return answer  # it is still right, and a thousand may end at this moment
        await asyncio.sleep(max(0.0, min(GATHER_S, until - loop.time())))
