"""What came of calls to clouds, written together by whoever comes first.

A swarm of preemptions is a swarm of launches, whose answers come at nearly the same time. A
transaction for each of them would keep the next notice waiting. So a thread that brings a result
while nobody writes takes all that wait, and looks again; one that comes meanwhile leaves its result
and goes on with the next call. Nobody waits, no thread is kept for it, and a result that is alone
is written at once by the one who brought it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

R = TypeVar("R")


class Results(Generic[R]):
    """Thread-safe. `write` takes at most `most` results and never raises; it is called by one
    thread at a time."""

    def __init__(self, write: Callable[[Sequence[R]], None], *, most: int) -> None:
        self._write = write
        self._most = most
        self._waiting: list[R] = []
        self._busy = False
        self._lock = threading.Lock()

    def bring(self, result: R) -> None:
        """It is written when this returns, or will be by the thread that writes now."""
        with self._lock:
            self._waiting.append(result)
            if self._busy:
                return
            self._busy = True
        while batch := self._next():
            self._write(batch)

    def _next(self) -> Sequence[R]:
        with self._lock:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            self._busy = bool(batch)
        return batch
