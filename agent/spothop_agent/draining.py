"""The end of an attempt: the process is over, and every accepted backup is committed or given up.

Trying again may help for ever, and a VM that only waits costs money for ever. So the wait goes on
as long as anything goes through, and a bounded time after that; what is given up then is told, and
the job is no success (I8).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from spothop_agent import outbox
from spothop_agent.backup_queue import BackupQueue
from spothop_agent.context import Context
from spothop_agent.refusals import REMIND_EVERY_S, Refusals
from spothop_agent.transfer import Transfer

DRAIN_S = 3600.0
"""Nothing has gone through for so long after the process has ended, whatever the store says: the
saves that wait are given up, because a VM that only waits costs money for ever."""
DRAIN_LOOK_S = 30.0
LOOKS, LOOK_AGAIN_S = 300, 1.0
"""For a backup that could not be read, when the process is over and nobody else looks."""


class Draining:
    """The worker goes on meanwhile; this waits for it."""

    def __init__(
        self, context: Context, queue: BackupQueue, transfer: Transfer, refusals: Refusals
    ) -> None:
        self._context = context
        self._queue = queue
        self._transfer = transfer
        self._refusals = refusals

    async def wait(self) -> None:
        began = self._refusals.draining_at = self._context.now()
        looks = 0
        while looks < LOOKS and not self._queue.look():
            looks += 1
            await self._queue.measured(LOOK_AGAIN_S)
        if looks == LOOKS:
            self._give_up_unread()
        self._queue.drop_shards()
        if self._queue.entries and self._context.state.fenced_by is None:
            self._queue.idle.clear()
            self._queue.wake.set()
            await self._idle_in_time(began)

    def _give_up_unread(self) -> None:
        """They were accepted, so the job is no success without them (I8)."""
        for name in outbox.names(self._context.paths.outbox):
            if name not in self._queue.entries and not self._queue.is_done_with(name):
                self._queue.give_up(
                    f"backup {name} could not be read from this VM's disk for {LOOKS:d} s after the"
                    " end of the process: it is not committed"
                )

    async def _idle_in_time(self, since: float) -> None:
        """Trying again may help for ever; the wait ends when nothing at all goes through."""
        told_at = -REMIND_EVERY_S
        while not self._queue.idle.is_set():
            now = self._context.now()
            left_s = max(since, self._transfer.advanced_at) + DRAIN_S - now
            if left_s <= 0:
                self._give_all_up()
                return
            trouble = self._refusals.trouble
            if trouble and now - told_at >= REMIND_EVERY_S:
                told_at = now
                self._context.tell_user(
                    f"the process has ended, and {len(self._queue.entries)} of its saves wait for"
                    f" the storage: {trouble}; trying on for {left_s / 60:.0f} min",
                    level="warning",
                )
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._queue.idle.wait(), min(left_s, DRAIN_LOOK_S))

    def _give_all_up(self) -> None:
        for entry in self._queue.ordered():
            self._queue.give_up(
                f"the save of step {entry.meta.step} was given up: nothing went through to the"
                f" storage for {DRAIN_S / 60:.0f} min after the process had ended: "
                f"{self._refusals.trouble or 'it does not answer'}"
            )
            self._queue.forget(entry)
        self._queue.abort.set()
