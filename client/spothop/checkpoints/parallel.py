"""Many transfers: progress added up, small ones at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from spothop.storage.base import MIB

T = TypeVar("T")
OnProgress = Callable[[int, int], None]
"""Called with bytes done and bytes in all; from any thread, one call at a time."""

_SMALL = 8 * MIB
_WORKERS = 4


class Progress:
    """Adds up what several threads have transferred, and calls the callback."""

    def __init__(self, callback: OnProgress | None, total: int) -> None:
        self._callback = callback
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._callback is not None:
                self._callback(self._done, self._total)


def for_each(
    items: Iterable[T],
    work: Callable[[T], None],
    size: Callable[[T], int],
    *,
    workers: int = _WORKERS,
) -> None:
    """Do all the work: large items one by one (each is parallel inside), small ones at once.

    With more than four `workers` an item counts as small only as far as their memory is bounded.

    The first error ends it, after the transfers under way; memory stays bounded in any case.
    """
    small = []
    for item in items:
        if size(item) > _SMALL * _WORKERS // workers:
            work(item)
        else:
            small.append(item)
    with ThreadPoolExecutor(workers, "spothop-transfer") as pool:
        futures = [pool.submit(work, item) for item in small]
        done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in done:
            future.result()
