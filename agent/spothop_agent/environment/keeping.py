"""Finds, unpacks and keeps what `setup:` makes, beside one attempt.

Nothing here fails an attempt: `setup:` can always run. What is given up is told, with the reason.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from spothop.figures import size as in_units
from spothop.storage.errors import StorageError
from spothop.wire import SetupCache
from spothop_agent.context import Context
from spothop_agent.environment import key
from spothop_agent.environment.index import Damaged
from spothop_agent.environment.manifest import Manifest
from spothop_agent.environment.shelf import Keeping
from spothop_agent.environment.tree import Item, NotKept, snapshot
from spothop_agent.retry import in_words, retryable
from spothop_agent.state import Phase

LEAST_PATIENCE_S = 30.0
LOOK_S = 1.0
"""How often it is looked whether nothing more urgent is under way."""
TRIES = 5
"""For a store that does not answer. An environment is not worth more: the next VM tries again."""


class Interrupted(Exception):
    """Something more urgent is under way."""


@dataclass(frozen=True, kw_only=True)
class _Made:
    """What `setup:` has left on this VM."""

    items: list[Item]
    setup_s: float


class SetupCacheOfAttempt:
    """`env` is that of the script; `wall` is the time of day, in seconds since 1970."""

    def __init__(
        self, context: Context, env: dict[str, str], *, wall: Callable[[], float] = time.time
    ) -> None:
        self._context = context
        self._env = env
        self._wall = wall
        self._wanted: SetupCache | None = context.assignment.setup_cache
        self._made: _Made | None = None

    # --- before `setup:` ------------------------------------------------------------------------

    async def restore(self) -> bool:
        """Whether everything is in place, and `setup:` need not run."""
        if self._wanted is None:
            return False
        began = self._context.now()
        try:
            found = await asyncio.wait_for(self._find(), LEAST_PATIENCE_S)
            if found is None:
                self._context.note("setup_cache: nothing is kept yet for this kind of VM")
                return False
            await self._unpack(found)
        except asyncio.TimeoutError:  # an OSError, from Python 3.11 on
            took = f"{self._context.now() - began:.0f} s"
            text = f"setup_cache: not there after {took}; setup runs instead"
            self._context.tell_user(text, level="warning")
            return False
        except (Damaged, StorageError, OSError) as error:
            text = f"setup_cache: {_why(error)}; setup runs instead"
            self._context.tell_user(text, level="warning")
            return False
        self._context.tell_user(
            f"setup_cache: {_described(found)}, of attempt {found.attempt}, unpacked in"
            f" {self._context.now() - began:.1f} s; setup took {found.setup_s:.1f} s there"
        )
        return True

    async def _find(self) -> Manifest | None:
        keys = await self._context.threads.disk(self._keys)
        store = self._context.checkpoint_store
        return await self._context.threads.storage(lambda: store.environments.find(keys))

    def _keys(self) -> list[str]:
        """Of a result that works on this path only, and of one that works on all."""
        assert self._wanted is not None
        assignment = self._context.assignment
        job = key.of_job(
            *(assignment.setup, assignment.bundle, self._wanted.folders, self._wanted.image)
        )
        machine = key.this_machine(self._env)
        here = str(self._context.paths.work)
        return [key.of_result(job, machine, here), key.of_result(job, machine, "")]

    async def _unpack(self, found: Manifest) -> None:
        """Raises TimeoutError where running `setup:` would hardly take longer."""
        work, store = self._context.paths.work, self._context.checkpoint_store
        given_up = threading.Event()

        def still_wanted() -> None:
            if given_up.is_set():
                raise Interrupted

        try:
            ready = await asyncio.wait_for(
                self._context.threads.storage(
                    lambda: store.environments.unpack(found, work, still_wanted=still_wanted)
                ),
                max(LEAST_PATIENCE_S, found.setup_s),
            )
        finally:
            given_up.set()  # a thread that goes on finds out at its next part
        await self._context.threads.disk(ready.place)

    # --- after it -------------------------------------------------------------------------------

    async def look(self, setup_s: float) -> None:
        """Take in what the script has made, before anything uses it."""
        if self._wanted is None:
            return
        folders, most = self._wanted.folders, self._wanted.max_bytes
        try:
            items = await self._context.threads.disk(
                lambda: snapshot(self._context.paths.work, folders, most_bytes=most)
            )
        except (NotKept, OSError) as error:
            self._not_kept(error)
            return
        self._made = _Made(items=items, setup_s=setup_s)

    async def keep(self, busy: Callable[[], bool]) -> None:
        """Pack and send it while the process trains; returns when that is done or given up.
        `busy` is asked in any thread: whether anything else is to be saved."""
        if self._made is None:
            return
        began, ended = self._context.now(), threading.Event()

        def still_wanted() -> None:
            if ended.is_set() or self._noticed or busy():
                raise Interrupted

        try:
            kept = await self._keep(self._made, busy, still_wanted)
        except (NotKept, StorageError, OSError) as error:
            self._not_kept(error)
            return
        finally:
            ended.set()
        if kept is not None:
            took_s = self._context.now() - began
            self._context.tell_user(
                f"setup_cache: kept {_described(kept)}, as {in_units(kept.stored)}, in"
                f" {took_s:.1f} s; the job's next VM unpacks it"
            )

    async def _keep(
        self, made: _Made, busy: Callable[[], bool], still_wanted: Callable[[], None]
    ) -> Manifest | None:
        """None where a notice came first, or another VM. Raises NotKept, StorageError, OSError."""
        store, work = self._context.checkpoint_store, self._context.paths.work
        attempt = self._context.attempt
        keeping = await self._context.threads.idle(
            lambda: store.environments.begin(work, made.items, attempt)
        )
        tries = 0
        while await self._quiet(busy):
            try:
                await self._context.threads.idle(keeping.send, still_wanted)
                # a long list is encoded at once: not with low priority (see `threads`)
                manifest = await self._context.threads.storage(
                    self._manifest, keeping, made, still_wanted
                )
                published = await self._context.threads.storage(self._publish, manifest)
                return manifest if published else None
            except Interrupted:
                continue
            except (NotKept, StorageError, OSError) as error:
                tries += 1
                if not retryable(error) or tries == TRIES:
                    await self._discard(keeping)
                    raise
            await self._context.retrier.pause_slowly(tries)
        return None

    def _manifest(
        self, keeping: Keeping, made: _Made, still_wanted: Callable[[], None]
    ) -> Manifest:
        assert self._wanted is not None
        still_wanted()
        bound, free = self._keys()
        return keeping.manifest(
            bound if keeping.packing.bound else free,
            self._wanted.folders,
            setup_s=made.setup_s,
            made=self._wall(),
        )

    def _publish(self, manifest: Manifest) -> bool:
        shelf = self._context.checkpoint_store.environments
        if not shelf.publish(manifest):
            return False
        shelf.prune(ours=manifest.folder, attempt=self._context.attempt, now=self._wall())
        return True

    async def _discard(self, keeping: Keeping) -> None:
        """What nobody will ever find takes room; where this fails, a later VM's `prune` does it."""
        try:
            await self._context.threads.idle(
                lambda: self._context.checkpoint_store.environments.discard(keeping.folder)
            )
        except (StorageError, OSError):
            return

    async def _quiet(self, busy: Callable[[], bool]) -> bool:
        """Wait until the process trains and nothing is to be saved; False after a notice."""
        while self._context.state.phase < Phase.STARTED or busy():
            if self._noticed:
                break
            await asyncio.sleep(LOOK_S)
        return not self._noticed

    @property
    def _noticed(self) -> bool:
        return self._context.state.notice is not None

    def _not_kept(self, error: Exception) -> None:
        self._context.tell_user(f"setup_cache: nothing is kept: {_why(error)}", level="warning")

    # --- at the end of the job ------------------------------------------------------------------

    async def clear(self) -> None:
        """The job has succeeded: no VM of it comes any more."""
        if self._wanted is None:
            return
        store = self._context.checkpoint_store
        try:
            await asyncio.wait_for(
                self._context.threads.storage(lambda: store.environments.clear()), LEAST_PATIENCE_S
            )
        except (StorageError, OSError, asyncio.TimeoutError) as error:
            self._context.note(f"setup_cache: not deleted: {_why(error)}")


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, (Damaged, NotKept)) else in_words(error)


def _described(manifest: Manifest) -> str:
    names = ", ".join(manifest.folders)
    return f"{names} ({in_units(manifest.size)} in {manifest.files:,} files)"
