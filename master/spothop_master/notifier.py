"""Wakes whoever waits for news of a job, so that a long poll asks when there is something to see.

It guarantees: what is told after `mark` was read wakes the wait for it, also when it was told
before that wait began. So an answer is asked for first and waited for after, and nothing falls into
the gap between. A wait holds no thread and no session. Who is told of too much looks in vain; that
costs a look. What other masters write is told to nobody here: whoever waits asks again after
`fallback_s` in any case.

Thread-safe but for `wait`, which belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import TypeAlias

REMEMBERED = 10_000
"""Topics of which it is known when they were told last; of others it is said that it was just
now."""


class News(Enum):
    """What of a job is new."""

    ROWS = "rows"
    """States, events, checkpoints."""
    PROGRESS = "progress"
    """Steps and metrics."""
    LOG = "log"


Topic: TypeAlias = tuple[News, str]
"""And the job's id."""


class Notifier:
    """One per master."""

    def __init__(self, *, fallback_s: float) -> None:
        self.fallback_s = fallback_s
        self._lock = threading.RLock()  # a signal handler may tell while its thread is in here
        self._count = 0
        self._forgotten = 0
        self._told: OrderedDict[Topic, int] = OrderedDict()
        self._waiting: dict[Topic, set[_Waiter]] = {}

    def tell(self, news: News, jobs: Iterable[str]) -> None:
        """These jobs have some."""
        with self._lock:
            self._count += 1
            for job in jobs:
                topic = (news, job)
                self._told[topic] = self._count
                self._told.move_to_end(topic)
                self._wake(self._waiting.get(topic, ()))
            while len(self._told) > REMEMBERED:
                self._forgotten = self._told.popitem(last=False)[1]

    def tell_all(self) -> None:
        """Every wait ends now."""
        with self._lock:
            self._forgotten = self._count = self._count + 1
            for waiters in [*self._waiting.values()]:
                self._wake(waiters)

    @property
    def waits(self) -> bool:
        """Somebody does."""
        return bool(self._waiting)

    def mark(self) -> int:
        """Where the telling is now; read it before asking for what may have to be waited for."""
        with self._lock:
            return self._count

    async def wait(self, topics: Sequence[Topic], *, since: int, at_most_s: float) -> bool:
        """Until one of them is told, or was after `since`; no longer than `at_most_s` or
        `fallback_s`. Whether one was told."""
        waiter = _Waiter()
        with self._lock:
            newest = max(self._told.get(topic, self._forgotten) for topic in topics)
            if newest > since:
                return True
            for topic in topics:
                self._waiting.setdefault(topic, set()).add(waiter)
        try:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(waiter.woken.wait(), min(at_most_s, self.fallback_s))
        finally:
            with self._lock:
                for topic in topics:
                    self._waiting[topic].discard(waiter)
                    if not self._waiting[topic]:
                        del self._waiting[topic]
        return waiter.woken.is_set()

    def _wake(self, waiters: Iterable[_Waiter]) -> None:
        for waiter in [*waiters]:
            waiter.wake()


class _Waiter:
    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self.woken.set)
