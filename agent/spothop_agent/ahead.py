"""Fetches the newest checkpoint while the VM is prepared, and while an older attempt trains on.

After the fence only what is newer is fetched. Nothing depends on it: what it does not have in time
is fetched by the restore, as if it had never been. So no error of it ends anything, and it delays
no report that the VM is prepared.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING

from spothop.storage.errors import StorageError
from spothop_agent.context import Context
from spothop_agent.retry import in_words
from spothop_agent.tasks import cancel_all

if TYPE_CHECKING:
    from spothop.checkpoints import Ahead

LOOK_S = 5.0
"""How often it is looked for a newer one."""


class Stopped(Exception):
    """Nobody wants it any more."""


class FetchingAhead:
    """Of one attempt that goes on with a job: `start`, then `files` after the fence, `close`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._errands = context.errands()
        self._folder = context.paths.root / "ahead"
        self._stop = threading.Event()
        self._newest: int | None = None
        self._fetched = asyncio.Event()
        """Nothing is under way."""
        self._fetched.set()
        self._files: Ahead | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Harmless where there is nothing to fetch."""
        if self._context.assignment.resumes and self._task is None:
            self._task = self._errands.start("fetching a checkpoint ahead", self._follow())

    async def _follow(self) -> None:
        """What an agent before us has left may be half of something."""
        store, threads = self._context.checkpoint_store, self._context.threads
        await threads.disk(shutil.rmtree, self._folder, ignore_errors=True)
        while True:
            try:
                newest = await threads.storage(store.newest)
                if newest is not None and newest != self._newest:
                    await self._fetch(newest)
            except (StorageError, OSError) as error:
                self._context.note(f"fetching a checkpoint ahead: {in_words(error)}")
            except Stopped:
                return
            await asyncio.sleep(LOOK_S)

    async def _fetch(self, newest: int) -> None:
        began = self._context.now()
        await self._drop()
        self._newest = newest
        self._fetched.clear()
        try:
            self._files = await self._context.threads.storage(
                self._context.checkpoint_store.fetch_ahead, newest, self._folder, self._wanted
            )
        finally:
            self._fetched.set()
        if self._files is not None:
            took_s = self._context.now() - began
            self._context.note(f"checkpoint {newest} fetched ahead in {took_s:.1f} s")

    def _wanted(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped

    async def files(self, fence: int) -> Ahead | None:
        """What there is, when nothing newer can come. Waits for what is under way only where that
        is the newest before our fence."""
        if self._task is None:
            return None
        try:
            newest = await self._context.threads.storage(
                self._context.checkpoint_store.newest, fence
            )
        except (StorageError, OSError):
            newest = None  # the restore asks again, and says so
        if newest is not None and newest == self._newest:
            await self._fetched.wait()
        await self._end()
        return self._files

    async def _end(self) -> None:
        self._stop.set()
        if self._task is not None:
            await cancel_all([self._task])

    async def _drop(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            await self._context.threads.disk(files.drop)

    async def close(self) -> None:
        await self._end()
        await self._drop()
        if self._task is not None:
            await self._context.threads.disk(shutil.rmtree, self._folder, ignore_errors=True)
