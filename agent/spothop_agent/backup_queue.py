"""The accepted backups that are not committed yet: what comes in, what is next, what goes.

1. The directory decides: a message about a backup may be lost, a rename is not. So `look` reads the
   outbox, and an agent that was started again finds the same queue.
2. The order is that of acceptance. What cannot be read now, or has to be walked through first,
   holds up what is behind it.
3. What is older than a checkpoint is dropped, because a restore takes the newest entry of the
   chain (see `outbox.Saved`). What a plan has overtaken stays until that plan's save is committed.
4. A disk that has become read-only keeps what is done with, and lets the rest be committed.
5. Nothing is deleted in the event loop: a tree may have 100,000 files.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from spothop_agent import outbox
from spothop_agent.abort import Abort
from spothop_agent.context import Context
from spothop_agent.notice_states import NoticeEvent
from spothop_agent.outbox import Entry, Meta, Saved, Torn
from spothop_agent.resume import Resume
from spothop_agent.saves import Saves
from spothop_agent.shards import Shards
from spothop_agent.state import NoticeSeen
from spothop_agent.transfer import Transfer

_log = logging.getLogger(__name__)

RESERVE = 1 << 20
"""Bytes of the disk kept for our own state and spool."""


class BackupQueue:
    """`on_covered` is called when the notice is covered by a checkpoint newer than the answer."""

    def __init__(
        self, context: Context, saves: Saves, transfer: Transfer, *, on_covered: Callable[[], None]
    ) -> None:
        self._context = context
        self._saves = saves
        self._transfer = transfer
        self._on_covered = on_covered
        self.entries: dict[str, Entry] = {}
        self.current: Entry | None = None
        """The one whose turn it is; `abort` ends its turn."""
        self.abort = Abort()
        self.passed: set[str] = set()
        """Had their turn in this round, in vain."""
        self.wake = asyncio.Event()
        self.idle = asyncio.Event()
        self._stuck: set[str] = set()  # done with, and still in the outbox
        self._measuring: asyncio.Task[None] | None = None
        self._deleting = context.errands()
        for leftover in outbox.leftovers(context.paths.outbox):
            self._delete(leftover)
        self.resume = Resume(context, self.look)
        """What a script that is started again goes on from."""
        self._shards = Shards(context.paths.outbox)
        self.found_at_start = set(outbox.names(context.paths.outbox))

    def ordered(self) -> list[Entry]:
        return [self.entries[name] for name in sorted(self.entries)]

    def plan(self) -> outbox.Plan:
        return outbox.plan(
            [entry for entry in self.ordered() if entry.id not in self.passed],
            left_s=self._transfer.left_s(),
            backup_s=self._saves.backup_s,
            bytes_per_s=self._transfer.bytes_per_s,
            current=None if self.current is None else self._transfer.progress(self.current),
            stalled_s=self._transfer.stalled_s,
        )

    # --- what comes in --------------------------------------------------------------------------

    def look(self) -> bool:
        """Queue new entries, in order. The directory decides: a message about one may be lost.
        False when one cannot be read now, or has to be walked through first: look again."""
        if self._measuring is not None:
            if not self._measuring.done():
                return False
            self._measuring.result()  # a failure of ours ends the agent, as everywhere
            self._measuring = None
        readable, folder = True, self._context.paths.outbox
        parts, joined = self._shards.look(outbox.names(folder))
        for leftover in joined:
            self._delete(leftover)
        for name in outbox.names(folder):
            if name in self.entries or name in parts or name in self._stuck:
                continue
            if outbox.is_tree(folder, name):
                self._measuring = asyncio.create_task(self._measure(name))
                return False
            found = outbox.read(folder, name)
            if found is None or _is_part(found):
                readable = False
            else:
                self._take(found)
        self._after_look()
        return readable and not self._shards.delayed

    async def _measure(self, name: str) -> None:
        """A tree may have 100,000 files. Those behind it wait, so that the order stays."""
        folder = self._context.paths.outbox
        found = await self._context.threads.disk(outbox.read, folder, name)
        if found is not None and not _is_part(found) and name not in self.entries:
            self._take(found)
            self._measuring = None
            self.look()

    @property
    def is_measuring(self) -> bool:
        return self._measuring is not None

    async def measured(self, pause_s: float | None = None) -> None:
        """Wait for a tree that is walked through, or so long."""
        if self._measuring is not None:
            await asyncio.wait({self._measuring}, timeout=pause_s)
        elif pause_s is not None:
            await asyncio.sleep(pause_s)

    def close(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()

    def _after_look(self) -> None:
        self._make_room()
        if self.current is not None and self.current in self.plan().superseded:
            self.abort.set()
            self.wake.set()

    def _take(self, entry: Entry | Torn) -> None:
        if isinstance(entry, Torn):
            self.give_up(entry.message)
            return
        meta = entry.meta
        self.entries[entry.id] = entry
        self.resume.accepted(entry)
        self._saves.accepted(
            meta.kind,
            meta.step,
            request=meta.request,
            delta_s=meta.delta_s,
            exact=meta.exact,
            now=meta.mono,
        )
        answered = self.notice_of(meta, NoticeEvent.ANSWER)
        self._context.state_file.set(
            notice=answered or self._context.state.notice,
            saved_step=self._saves.saved_step,
            last_step=self._saves.step,
        )
        self.idle.clear()
        self.wake.set()
        self.drop_overtaken()
        self.drop_shards(step=meta.step - 1)

    def notice_of(self, meta: Meta, event: NoticeEvent) -> NoticeSeen | None:
        """The notice after `event`, where this backup brings it that step further."""
        notice = self._context.state.notice
        if notice is None or not notice.takes(event):
            return None
        covers = notice.covered_by(meta.kind, meta.mono, began=meta.began)
        return notice.after(event) if covers else None

    # --- what goes ------------------------------------------------------------------------------

    def drop_shards(self, *, step: int | None = None, before: float | None = None) -> None:
        """Those of incomplete saves, as `Shards.drop` says."""
        told = self._shards.drop(step=step, before=before)
        for text in told:
            self._context.tell_user(text, level="warning")
        for leftover in outbox.leftovers(self._context.paths.outbox) if told else ():
            self._delete(leftover)

    def drop_overtaken(self) -> None:
        """What is older than a checkpoint must not be committed behind it, and is not needed. It
        closes a notice as its own commit would."""
        newest = self._context.state.committed
        for entry in self.ordered() if newest is not None else []:
            if newest is None or not Saved.of(entry).older_than(newest):
                continue
            if (covered := self.notice_of(entry.meta, NoticeEvent.COMMIT)) is not None:
                self._context.state_file.set(notice=covered)
                self._on_covered()
            self._context.tell_user(
                f"the save of step {entry.meta.step} is not backed up: step {newest.step} is",
                level="warning",
            )
            if entry is self.current:
                self.abort.set()
            self.forget(entry)

    def _make_room(self) -> None:
        if self._deleting:
            return  # there will be more room in a moment
        free = shutil.disk_usage(self._context.paths.outbox).free - RESERVE
        if self.resume.make_room(free):
            return
        queue = [entry for entry in self.ordered() if entry is not self.current]
        victim = outbox.to_evict(queue, free=free)
        if victim is not None:
            meta = victim.meta
            self.give_up(
                f"the disk is nearly full ({max(free, 0) >> 20} MiB free): the {meta.kind.value}"
                f" save of step {meta.step} was given up before its backup; a larger disk helps"
            )
            self.forget(victim)

    def give_up(self, message: str) -> None:
        self._context.state_file.set(given_up=self._context.state.given_up + 1)
        self._context.tell_user(message, level="error")

    def forget(self, entry: Entry, *, committed: bool = False) -> None:
        kept = committed and self.resume.keep(entry)
        if not kept:
            try:
                self._delete(entry.set_aside())
            except OSError as error:
                _log.warning("backup %s stays, though it is done with: %s", entry.id, error)
                self._stuck.add(entry.id)
        self.entries.pop(entry.id, None)
        self._transfer.forget(entry)

    def is_done_with(self, name: str) -> bool:
        """It only could not be deleted."""
        return name in self._stuck

    def _delete(self, tree: Path) -> None:
        """In the background; what an end interrupts the next agent goes on with."""

        async def delete() -> None:
            await self._context.threads.disk(shutil.rmtree, tree, ignore_errors=True)

        self._deleting.start("backups that are done with could not be deleted", delete())


def _is_part(found: Entry | Torn) -> bool:
    """A shard that could not be read when `Shards` looked, and can be now: it is no whole save."""
    return isinstance(found, Entry) and found.meta.part is not None
