"""Sends a save to the nearest of several stores that takes it.

Rules:

1. A save goes to one store as a whole: what is restored then depends on no more than that one and
   the chain. Which one is decided anew for each save, by `spothop.checkpoints.near`.
2. A store that refuses or does not answer loses its place for `RETRY_S`, and the save goes to the
   next one at once, down to the last. When all of them fail, the caller tries again, as ever.
3. After a notice a store in which nothing moves gets a quarter of the time left, and no less than
   `LEAST_S`: another one must still have time. Without a notice a store that hangs is given up
   where its client does so.
4. Upload times are of one object of `PROBE` bytes, sent at the start of the attempt to each store.
   The sizes of saves differ too much to be compared between stores.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from spothop.checkpoints import Candidate, Choice, FileRecord, Place, Stores, by_nearness, keys
from spothop.storage import (
    ObjectStore,
    SourceChanged,
    SourceUnreadable,
    StorageError,
    StorageUnavailable,
    UnsafePath,
)
from spothop.storageoptions import without_password
from spothop.wire import Assignment, PlacedStorage

_log = logging.getLogger(__name__)

PROBE = 1 << 20
RETRY_S = 300.0
SHARE, LEAST_S = 4, 2.0

Send = Callable[
    [ObjectStore, str, Callable[[int, int], None], Callable[[], object]], list[FileRecord]
]
"""Uploads to this store, which the records name by this URL (empty: the one of the chain)."""


class NearStores:
    """`clock` gives seconds, of any beginning. For several threads."""

    def __init__(
        self,
        assignment: Assignment,
        stores: Stores,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._attempt = assignment.job, assignment.attempt
        self._here = Place(cloud=assignment.cloud, region=assignment.region)
        self._placed: list[PlacedStorage] = assignment.stores or []
        self._stores = stores
        self._clock = clock
        self._lock = threading.Lock()
        self._upload_s: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._told: set[str] = set()
        self._news: list[str] = []

    def measure(self) -> None:
        """Send a small object to each, all at once, and delete it."""
        with ThreadPoolExecutor(max(1, len(self._placed)), "spothop-measure") as pool:
            list(pool.map(self._measure, (each.storage.url for each in self._placed)))

    def order(self) -> list[Choice]:
        """The nearest first."""
        now = self._clock()
        with self._lock:
            candidates = [
                Candidate(
                    url=each.storage.url,
                    place=Place(cloud=each.cloud, region=each.region),
                    upload_s=self._upload_s.get(each.storage.url),
                    failing=now - self._failed_at.get(each.storage.url, -RETRY_S) < RETRY_S,
                )
                for each in self._placed
            ]
        return by_nearness(self._here, candidates)

    def news(self) -> list[str]:
        """What is to be told, once."""
        with self._lock:
            told, self._news = self._news, []
        return told

    def upload(
        self,
        send: Send,
        on_progress: Callable[[int, int], None],
        still_wanted: Callable[[], object],
        left_s: Callable[[], float | None],
    ) -> list[FileRecord]:
        """The files in the first store of the order that takes all of them.

        Raises what is wrong with the payload, whatever the callbacks raise, and when all stores
        failed the error of one: one that trying again may help, if there is any.
        """
        errors: list[StorageError] = []
        order = self.order()
        for at, choice in enumerate(order):
            following = order[at + 1].url if at + 1 < len(order) else None
            patience = _Patience(self._clock, left_s, last=following is None)
            try:
                files = send(
                    self._stores.at(self._name(choice.url)),
                    self._name(choice.url),
                    patience.passing(on_progress),
                    patience.watching(still_wanted),
                )
            except (SourceChanged, SourceUnreadable, UnsafePath):
                raise
            except StorageError as error:
                instead = without_password(following) if following else ""
                self._failed(choice.url, error, instead)
                errors.append(error)
            else:
                self._works(choice.url)
                return files
        raise next((error for error in errors if error.retryable), errors[-1])

    def _name(self, url: str) -> str:
        """As an entry says it: the chain's own store has none."""
        return "" if url == self._placed[0].storage.url else url

    def _measure(self, url: str) -> None:
        key = f"{keys.job_prefix(self._job)}/near/{self._attempt}"
        began = self._clock()
        try:
            store = self._stores.at(self._name(url))
            store.put(key, bytes(PROBE))
        except StorageError as error:
            self._failed(url, error, "another one of the list")
            return
        with self._lock:
            self._upload_s[url] = self._clock() - began
        try:
            store.delete([key])
        except StorageError as error:  # rights to save are enough to save
            _log.info("the probe %s stays in %s: %s", key, url, error)

    def _failed(self, url: str, error: StorageError, instead: str) -> None:
        """`instead` is where saves go; empty: nowhere, all have failed."""
        with self._lock:
            self._failed_at[url] = self._clock()
            if url in self._told:
                return
            self._told.add(url)
            then = (
                f"saves go to {instead} for now, and this one is tried again after"
                f" {RETRY_S / 60:.0f} min"
                if instead
                else "and no other one of the list has taken this save; all are tried again"
            )
            self._news.append(f"this VM cannot save to {without_password(url)}: {error}; {then}")

    def _works(self, url: str) -> None:
        with self._lock:
            self._failed_at.pop(url, None)
            self._told.discard(url)


class _Patience:
    """How long one store may stand still after a notice. The last one may as long as it likes."""

    def __init__(
        self, clock: Callable[[], float], left_s: Callable[[], float | None], *, last: bool
    ) -> None:
        self._clock = clock
        self._left_s = left_s
        self._last = last
        self._moved_at = clock()

    def passing(self, on_progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def moved(done: int, total: int) -> None:
            self._moved_at = self._clock()
            on_progress(done, total)

        return moved

    def watching(self, still_wanted: Callable[[], object]) -> Callable[[], object]:
        def check() -> None:
            still_wanted()
            left_s = None if self._last else self._left_s()
            if left_s is None:
                return
            stood_s = self._clock() - self._moved_at
            if stood_s > max(LEAST_S, left_s / SHARE):
                raise StorageUnavailable(f"nothing went through for {stood_s:.0f} s")

        return check
