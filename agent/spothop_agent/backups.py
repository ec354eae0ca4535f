"""One worker turns accepted backups into checkpoints, one after the other, and reports each.

For each: upload, commit, report, delete from the outbox. A crash between any two repeats the
unfinished rest and doubles nothing: uploads and commits carry the backup's id, the report a key.
Which entry is next, and what is given up for it, is decided in `outbox`; what waits is in
`backup_queue`, the calls of the store in `transfer`, and the end in `draining`.

A commit whose answer was lost may be in the chain, or come to it late. So nothing is committed on
top of an entry that we do not know of: the chain says what there is (`UnknownCommits`), that is
taken in first, and what it has overtaken is dropped.

A save that the store does not take has its turn again, in rounds: others may be taken, and the
store may refuse this one alone, for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spothop.storage.errors import SourceChanged, StorageError, UnsafePath
from spothop.wire import CommittedReport, FencedReport
from spothop_agent.abort import Abort, Superseded
from spothop_agent.backup_queue import BackupQueue
from spothop_agent.context import Context
from spothop_agent.draining import Draining
from spothop_agent.notice_states import NoticeEvent
from spothop_agent.outbox import Entry, Saved
from spothop_agent.refusals import Refusals
from spothop_agent.resume import Resume
from spothop_agent.retry import in_words
from spothop_agent.saves import Saves
from spothop_agent.state import NoticeSeen
from spothop_agent.tasks import cancel_all
from spothop_agent.transfer import Transfer

if TYPE_CHECKING:
    from spothop_agent.transfer import ChainEntry

TURN_TRIES = 4
"""So many failures in a row, and a newer save that waits is tried first: the store may refuse this
one alone, for ever."""
PRUNE_S = 30.0
"""How long the end of an attempt waits for the deletion of old checkpoints."""

_log = logging.getLogger(__name__)


class PassedOver(Exception):
    """The store does not take this one; another one has its turn."""


class Backups:
    """`look` puts new entries into the queue and never waits; `run` works on the queue.

    `on_covered` is called when a backup that covers the notice is committed; `on_fenced` when a
    newer attempt is in the chain: nothing is committed any more then.
    """

    def __init__(
        self,
        context: Context,
        saves: Saves,
        *,
        on_covered: Callable[[], None],
        on_fenced: Callable[[], None],
    ) -> None:
        self._context = context
        self._saves = saves
        self._on_covered = on_covered
        self._on_fenced = on_fenced
        self._transfer = Transfer(context)
        self._queue = BackupQueue(context, saves, self._transfer, on_covered=on_covered)
        self._refusals = Refusals(context)
        self._draining = Draining(context, self._queue, self._transfer, self._refusals)
        self._errands = context.errands()
        self._pruning: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Accepted and not committed yet."""
        return len(self._queue.entries)

    @property
    def trouble(self) -> tuple[float | None, str]:
        """Since when no save can be stored, and what the last error says; None: all is well, or
        nothing waits any more."""
        return self._refusals.failing_since if self.waiting else None, self._refusals.trouble

    @property
    def resume(self) -> Resume:
        """What a script that is started again goes on from."""
        return self._queue.resume

    def look(self) -> bool:
        """Queue new entries, in order. False when one cannot be read now: look again."""
        return self._queue.look()

    def restarted(self, at: float) -> None:
        """The script was started again, at `at` (CLOCK_MONOTONIC): no shard from before gets its
        others any more."""
        self._queue.drop_shards(before=at)

    async def drain(self) -> None:
        """The process is over: wait until every accepted backup is committed or given up."""
        await self._draining.wait()
        if self._pruning is not None:
            await asyncio.wait({self._pruning}, timeout=PRUNE_S)

    # --- the worker -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work on the queue for ever; ends by cancellation, or when this attempt is fenced."""
        try:
            await self._work()
        finally:
            self._queue.close()

    async def _work(self) -> None:
        queue = self._queue
        if self._context.assignment.stores:
            self._errands.start("the stores could not be measured", self._measure())
        await self._recognise()
        while self._context.state.fenced_by is None:
            queue.wake.clear()
            plan = queue.plan()
            if plan.next is not None:
                await self._back_up(plan.next)
                continue
            if queue.entries:
                await self._next_round()
                continue
            queue.passed.clear()
            queue.idle.set()
            await queue.wake.wait()
        queue.idle.set()

    async def _measure(self) -> None:
        """Which store is the nearest; until that is known, region and order decide."""
        await self._context.threads.storage(self._context.checkpoint_store.measure)
        self._transfer.tell_news()

    async def _recognise(self) -> None:
        """What an agent before us has committed comes first: an older save that still waits must
        not be committed behind it."""
        for _ in range(len(self._queue.found_at_start) + 1):
            if self._queue.look() or not self._queue.is_measuring:
                break
            await self._queue.measured()
        found = sorted(self._queue.found_at_start & self._queue.entries.keys(), reverse=True)
        if len(found) < 2:
            return  # the one is asked for when it has its turn
        store = self._context.checkpoint_store
        for name in found:
            try:
                there = await self._context.retrier.call(store.committed, name)
            except StorageError as error:  # the upload will say so, and is told
                _log.info("looking for %s in the chain: %s", name, error)
                return
            if there is not None and name in self._queue.entries:
                self._committed(self._queue.entries[name], there)

    async def _next_round(self) -> None:
        """The store has refused each: a pause, which a new one ends."""
        pause = asyncio.create_task(
            self._context.retrier.pause_slowly(max(1, self._refusals.count))
        )
        new = asyncio.create_task(self._queue.wake.wait())
        try:
            await asyncio.wait({pause, new}, return_when=asyncio.FIRST_COMPLETED)
            if pause.done():
                self._queue.passed.clear()
        finally:
            await cancel_all([pause, new])

    # --- one backup -----------------------------------------------------------------------------

    async def _back_up(self, entry: Entry) -> None:
        from spothop.checkpoints import Fenced

        self._queue.current, self._queue.abort = entry, Abort()
        self._transfer.begin()
        try:
            made = await self._until_committed(entry, self._queue.abort)
        except Superseded:
            _log.info("upload of %s ended for a more urgent one", entry.id)
        except PassedOver:
            self._queue.passed.add(entry.id)
        except Fenced as fenced:
            self._fenced(fenced.by)
        except Exception as error:  # trying again is over, whatever it is
            self._queue.give_up(
                f"the save of step {entry.meta.step} could not be backed up: {in_words(error)}"
            )
            self._queue.forget(entry)
        else:  # a failure of ours from here on ends the agent, and the next one finds the commit
            self._committed(entry, made)
            self._prune()
        finally:
            self._queue.current = None

    async def _until_committed(self, entry: Entry, abort: Abort) -> ChainEntry:
        """As long as trying again can help, and at a slow pace longer than that: the payload is the
        only copy (I12). Raises what is wrong with the payload itself, Fenced, Superseded, and
        PassedOver where others wait that the store may take.

        An error of no known class is tried again slowly too. An agent that ended for it would be
        started again and meet the same payload, for ever, and nothing else would be backed up."""
        from spothop.checkpoints import Fenced

        failures = 0

        async def once() -> ChainEntry:
            nonlocal failures
            try:
                return await self._once(entry, abort)
            except StorageError as error:
                failures += 1
                self._refusals.failed(error)
                newer = any(name > entry.id for name in self._queue.entries)
                if error.retryable and failures >= TURN_TRIES and newer:
                    raise PassedOver from error
                raise

        while True:
            try:
                return await self._context.retrier.repeat(once)
            except (SourceChanged, UnsafePath, Fenced, Superseded, PassedOver):
                raise
            except Exception as error:  # of no known class, too: see above
                if self._refusals.is_final(error, of=entry.id):
                    raise
            self._refusals.count += 1
            if len(self._queue.entries) > 1:
                raise PassedOver
            pause = asyncio.create_task(self._context.retrier.pause_slowly(self._refusals.count))
            await abort.unless(pause)

    async def _once(self, entry: Entry, abort: Abort) -> ChainEntry:
        from spothop.checkpoints import UnknownCommits

        if entry.id in self._queue.found_at_start:
            there = await self._transfer.find(entry, abort)
            if there is not None:
                return there
        while True:
            try:
                return await self._transfer.store(entry, abort)
            except UnknownCommits as unknown:
                own = self._take_in(entry, unknown.entries)
            if own is not None:
                return own
            abort.check()  # it may be older than one of them

    def _take_in(self, entry: Entry, found: Sequence[ChainEntry]) -> ChainEntry | None:
        """What of ours is in the chain although we were told that it had failed, the oldest first;
        returns what is there of `entry` itself."""
        own = None
        for there in found:
            _log.warning("entry %d of the chain is %s, whose commit had failed", there.n, there.id)
            if there.id == entry.id:
                own = there
            elif there.id in self._queue.entries:
                self._committed(self._queue.entries[there.id], there)
            else:  # given up meanwhile
                self._know(there.n, Saved(there.id, there.step or 0, None))
                self._queue.drop_overtaken()
        return own

    def _committed(self, entry: Entry, made: ChainEntry) -> None:
        now, meta = self._context.now(), entry.meta
        self._refusals.clear()
        self._transfer.committed()
        beta_s = max(now - meta.mono, 0.0)
        self._saves.committed(beta_s)
        covered = self._queue.notice_of(meta, NoticeEvent.COMMIT)
        report = CommittedReport(
            n=made.n,
            step=meta.step,
            save=meta.kind,
            bytes=entry.size,
            delta_s=meta.delta_s,
            delta_exact=meta.exact,
            beta_s=beta_s,
            since_notice_s=None if covered is None else now - covered.seen,
        )
        self._context.report(report, key=f"committed-{made.n}", urgent=True)
        self._context.chaos.reach("after_report")
        self._context.note(
            f"checkpoint {made.n}: step {meta.step}, {meta.kind.value},"
            f" {entry.size} bytes, saved in {'' if meta.exact else 'at most '}{meta.delta_s:.2f} s,"
            f" backed up in {beta_s:.2f} s"
        )
        # Before the entry goes: without it the next agent could not know.
        self._know(made.n, Saved.of(entry), notice=covered)
        self._queue.forget(entry, committed=True)
        if covered is not None:
            self._on_covered()
        self._queue.drop_overtaken()

    def _know(self, n: int, saved: Saved, *, notice: NoticeSeen | None = None) -> None:
        state = self._context.state
        newest = state.committed
        self._context.state_file.set(
            notice=notice or state.notice,
            committed=newest if newest is not None and saved.older_than(newest) else saved,
            committed_n=max(n, state.committed_n or 0),
            save_s=self._saves.save_s,
            backup_s=self._saves.backup_s,
        )

    def _fenced(self, by: int) -> None:
        self._context.state_file.set(fenced_by=by)
        self._context.report(FencedReport(by=by), key="fenced", urgent=True)
        self._context.note(f"attempt {by} has taken over; this one ends")
        self._on_fenced()

    def _prune(self) -> None:
        """In the background, so that the next backup does not wait for it; not after a notice."""
        if self._context.state.notice is not None:
            return
        if self._pruning is None or self._pruning.done():
            what = "old checkpoints could not be deleted"
            self._pruning = self._errands.start(what, self._prune_once())

    async def _prune_once(self) -> None:
        """A failure is left to the next commit: nothing depends on the deletion."""
        try:
            await self._context.threads.storage(self._context.checkpoint_store.prune)
        except (StorageError, OSError) as error:
            _log.info("prune: %s", error)
