"""Brings one accepted backup into the store: its data first, then its chain entry.

What must hold, and how:

1. Nothing that went through is sent again. A complete upload is remembered until its commit, so
   that the commit is repeated by itself; parts of an upload are in the journal of its entry.
2. Nobody waits for a thread that hangs in the network. After a notice a call of the chain gets a
   part of the time that is left, and the next one more; a call that was given up must not write any
   more (`still_wanted`).
3. What is measured on the way (rate, progress, stalls) is what `outbox.plan` decides by.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from spothop.storage.errors import StorageUnavailable
from spothop_agent import outbox
from spothop_agent.abort import Abort, Superseded
from spothop_agent.context import Context
from spothop_agent.outbox import Entry

T = TypeVar("T")

if TYPE_CHECKING:
    from spothop.checkpoints import Entry as Written
    from spothop.checkpoints import FileRecord, Outline

    ChainEntry = Written | Outline

SHARE, LEAST_ANSWER_S = 4, 2.0
"""After a notice a call of the chain may take this part of the time left, and no less than so long,
doubled each time that it did not suffice: a hanging request must leave time for another one."""
MAX_DOUBLINGS = 6


class Transfer:
    """Of one attempt; one backup is under way at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._uploaded: dict[str, list[FileRecord]] = {}  # complete, and not committed yet
        self._done_bytes = 0  # of the upload under way
        self._moved_at = 0.0  # when something of the backup under way last went through
        self._furthest: dict[str, int] = {}  # bytes of each upload that ever went through
        self._unanswered = 0  # calls of the chain that were given up, in a row
        self.stalled_s: dict[str, float] = {}
        """The longest that nothing of a backup moved."""
        self.bytes_per_s: float | None = None
        self.advanced_at = 0.0
        """When something went further than before (CLOCK_MONOTONIC)."""

    def left_s(self) -> float | None:
        """To the announced end of this VM; None without a notice. From any thread."""
        notice = self._context.state.notice
        return None if notice is None else notice.deadline - self._context.now()

    def begin(self) -> None:
        """Another backup has its turn."""
        self._done_bytes, self._moved_at = 0, self._context.now()

    def progress(self, current: Entry) -> outbox.Upload:
        """Of the backup under way."""
        hung_s = self._context.now() - self._moved_at
        self.stalled_s[current.id] = max(hung_s, self.stalled_s.get(current.id, 0.0))
        return outbox.Upload(id=current.id, done=self._done_bytes)

    def committed(self) -> None:
        self._unanswered, self.advanced_at = 0, self._context.now()

    def forget(self, entry: Entry) -> None:
        self._furthest.pop(entry.id, None)
        self._uploaded.pop(entry.id, None)
        self.stalled_s.pop(entry.id, None)

    def tell_news(self) -> None:
        """Of several stores: which one failed, and where saves go instead."""
        if self._context.assignment.stores:
            for text in self._context.checkpoint_store.news():
                self._context.tell_user(text, level="warning")

    # --- calls of the store ---------------------------------------------------------------------

    async def find(self, entry: Entry, abort: Abort) -> ChainEntry | None:
        """Its chain entry, where it has one already."""
        store = self._context.checkpoint_store
        return await self._answer(abort, lambda wanted: store.committed(entry.id))

    async def store(self, entry: Entry, abort: Abort) -> ChainEntry:
        """Upload what is not uploaded yet, then commit; each is repeated by itself. Raises
        UnknownCommits where this attempt has committed what we do not know of."""
        store, chaos = self._context.checkpoint_store, self._context.chaos
        if entry.id not in self._uploaded:
            self._uploaded[entry.id] = await self._upload(entry, abort)
        chaos.reach("before_commit")
        files = self._uploaded[entry.id]
        state = self._context.state
        seen = state.committed_n or state.fence_n or 0
        made = await self._answer(
            abort, lambda wanted: store.commit(entry, files, state.restored_n, wanted, seen)
        )
        chaos.reach("after_commit")
        return made

    async def _answer(self, abort: Abort, call: Callable[[Callable[[], None]], T]) -> T:
        """What a call of the chain returns. After a notice one that hangs is given up, and must
        then not write any more. Raises StorageUnavailable."""
        given_up = threading.Event()
        began = self._context.now()

        def still_wanted() -> None:
            abort.check()
            if given_up.is_set():
                raise Superseded

        def too_long() -> bool:
            left_s = self.left_s()
            if left_s is None:
                return False
            least_s = LEAST_ANSWER_S * 2.0 ** min(self._unanswered, MAX_DOUBLINGS)
            return self._context.now() - began > max(left_s / SHARE, least_s)

        work = asyncio.create_task(self._context.threads.storage(call, still_wanted))
        try:
            return await abort.unless(work, too_long=too_long)
        except StorageUnavailable:
            if not work.done():
                given_up.set()
                self._unanswered += 1
            raise

    async def _upload(self, entry: Entry, abort: Abort) -> list[FileRecord]:
        store, chaos = self._context.checkpoint_store, self._context.chaos
        chaos.reach("before_upload")

        def on_progress(done: int, total: int) -> None:
            chaos.reach("during_upload")
            self._done_bytes, self._moved_at = done, self._context.now()
            if done > self._furthest.get(entry.id, 0):
                self._furthest[entry.id], self.advanced_at = done, self._moved_at
            abort.check()

        began = self._context.now()
        upload = self._context.threads.storage(
            store.upload, entry, on_progress, abort.check, self.left_s
        )
        try:
            files = await abort.unless(asyncio.create_task(upload))
        finally:
            self.tell_news()
        self.bytes_per_s = max(entry.size, 1) / max(self._context.now() - began, 1e-3)
        chaos.reach("after_upload")
        return files
