"""One worker turns accepted backups into checkpoints, one after the other, and reports each.

For each: upload, commit, report, delete from the outbox. A crash between any two repeats the
unfinished rest and doubles nothing: uploads and commits carry the backup's id, the report a key.
Which entry is next, and what is given up for it, is decided in `outbox`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spothop.storage.errors import (
    SourceChanged,
    SourceUnreadable,
    StorageError,
    StorageUnavailable,
    UnsafePath,
)
from spothop.wire import CommittedReport, FencedReport
from spothop_agent import outbox
from spothop_agent.abort import Abort, Superseded
from spothop_agent.context import Context
from spothop_agent.notice_states import NoticeEvent
from spothop_agent.outbox import Entry, Meta, Saved, Torn
from spothop_agent.resume import Resume
from spothop_agent.saves import Saves
from spothop_agent.shards import Shards
from spothop_agent.state import NoticeSeen
from spothop_agent.tasks import cancel_all

T = TypeVar("T")

if TYPE_CHECKING:
    from spothop.checkpoints import Entry as Written
    from spothop.checkpoints import FileRecord, Outline

    ChainEntry = Written | Outline

RESERVE = 1 << 20
"""Bytes of the disk kept for our own state and spool."""
TURN_TRIES = 4
"""So many failures in a row, and a newer save that waits is tried first: the store may refuse this
one alone, for ever."""
FINAL_AFTER_S = 300.0
"""A store that refuses for so long after the process has ended has the last word: the save is
given up, and the job is no success. While the process trains, no refusal gives a save up."""
DRAIN_S = 3600.0
"""Nothing has gone through for so long after the process has ended, whatever the store says: the
saves that wait are given up, because a VM that only waits costs money for ever."""
DRAIN_LOOK_S = 30.0
REMIND_EVERY_S = 600.0
"""A refusal that lasts is told again."""
LOOKS, LOOK_AGAIN_S = 300, 1.0
"""For a backup that could not be read, when the process is over and nobody else looks."""
SHARE, LEAST_ANSWER_S = 4, 2.0
"""After a notice a call of the chain may take this part of the time left, and no less than so long,
doubled each time that it did not suffice: a hanging request must leave time for another one."""
MAX_DOUBLINGS = 6
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
        self._queue: dict[str, Entry] = {}
        self._current: Entry | None = None
        self._abort = Abort()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._pruning: asyncio.Task[None] | None = None
        self._passed: set[str] = set()  # had their turn in this round, in vain
        self._uploaded: dict[str, list[FileRecord]] = {}  # complete, and not committed yet
        self._done_bytes = 0  # of the upload under way
        self._moved_at = 0.0  # when something of the backup under way last went through
        self._stalled_s: dict[str, float] = {}  # the longest that nothing of a backup moved
        self._bytes_per_s: float | None = None
        self._refused_at: float | None = None  # since when the store refuses
        self._refusals = 0  # in a row
        self._reminded_at = 0.0
        self._draining_at: float | None = None
        self._trouble = ""  # the last error, while nothing goes through
        self._furthest: dict[str, int] = {}  # bytes of each upload that ever went through
        self._advanced_at = 0.0  # when something went further than before
        self._unanswered = 0  # calls of the chain that were given up, in a row
        self._measuring: asyncio.Task[None] | None = None
        self._deleting: set[asyncio.Task[None]] = set()
        for leftover in outbox.leftovers(context.paths.outbox):
            self._delete(leftover)
        self.resume = Resume(context, self.look)
        """What a script that is started again goes on from."""
        self._shards = Shards(context.paths.outbox)
        self._found_at_start = set(outbox.names(context.paths.outbox))

    @property
    def waiting(self) -> int:
        """Accepted and not committed yet."""
        return len(self._queue)

    # --- the queue ------------------------------------------------------------------------------

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
            if name in self._queue or name in parts:
                continue
            if outbox.is_tree(folder, name):
                self._measuring = asyncio.create_task(self._measure(name))
                return False
            found = outbox.read(folder, name)
            if found is None:
                readable = False
            else:
                self._take(found)
        self._after_look()
        return readable

    async def _measure(self, name: str) -> None:
        """A tree may have 100,000 files. Those behind it wait, so that the order stays."""
        folder = self._context.paths.outbox
        found = await self._context.threads.disk(outbox.read, folder, name)
        if found is not None and name not in self._queue:
            self._take(found)
            self._measuring = None
            self.look()

    def _after_look(self) -> None:
        self._make_room()
        if self._current is not None and self._current in self._plan().superseded:
            self._abort.set()
            self._wake.set()

    def _take(self, entry: Entry | Torn) -> None:
        if isinstance(entry, Torn):
            self._give_up(entry.message)
            return
        meta = entry.meta
        self._queue[entry.id] = entry
        self.resume.accepted(entry)
        self._saves.accepted(
            meta.kind, meta.step, request=meta.request, delta_s=meta.delta_s, now=meta.mono
        )
        answered = self._notice_of(meta, NoticeEvent.ANSWER)
        self._context.state_file.set(
            notice=answered or self._context.state.notice,
            saved_step=self._saves.saved_step,
            last_step=self._saves.step,
        )
        self._idle.clear()
        self._wake.set()
        self._drop_overtaken()
        self._drop_shards(step=meta.step - 1)

    def restarted(self, at: float) -> None:
        """The script was started again, at `at` (CLOCK_MONOTONIC): no shard from before gets its
        others any more."""
        self._drop_shards(before=at)

    def _drop_shards(self, *, step: int | None = None, before: float | None = None) -> None:
        told = self._shards.drop(step=step, before=before)
        for text in told:
            self._context.tell_user(text, level="warning")
        for leftover in outbox.leftovers(self._context.paths.outbox) if told else ():
            self._delete(leftover)

    def _notice_of(self, meta: Meta, event: NoticeEvent) -> NoticeSeen | None:
        """The notice after `event`, where this backup brings it that step further."""
        notice = self._context.state.notice
        if notice is None or not notice.takes(event):
            return None
        covers = notice.covered_by(meta.kind, meta.mono, began=meta.began)
        return notice.after(event) if covers else None

    def _make_room(self) -> None:
        if self._deleting:
            return  # there will be more room in a moment
        free = shutil.disk_usage(self._context.paths.outbox).free - RESERVE
        if self.resume.make_room(free):
            return
        queue = [entry for entry in self._ordered() if entry is not self._current]
        victim = outbox.to_evict(queue, free=free)
        if victim is not None:
            meta = victim.meta
            self._give_up(
                f"the disk is nearly full ({max(free, 0) >> 20} MiB free): the {meta.kind.value}"
                f" save of step {meta.step} was given up before its backup; a larger disk helps"
            )
            self._forget(victim)

    def _ordered(self) -> list[Entry]:
        return [self._queue[name] for name in sorted(self._queue)]

    def _left_s(self) -> float | None:
        """To the announced end of this VM; None without a notice. From any thread."""
        notice = self._context.state.notice
        return None if notice is None else notice.deadline - self._context.now()

    def _plan(self) -> outbox.Plan:
        current = None
        if self._current is not None:
            current = outbox.Upload(id=self._current.id, done=self._done_bytes)
            hung_s = self._context.now() - self._moved_at
            self._stalled_s[current.id] = max(hung_s, self._stalled_s.get(current.id, 0.0))
        return outbox.plan(
            [entry for entry in self._ordered() if entry.id not in self._passed],
            left_s=self._left_s(),
            backup_s=self._saves.backup_s,
            bytes_per_s=self._bytes_per_s,
            current=current,
            stalled_s=self._stalled_s,
        )

    def _give_up(self, message: str) -> None:
        self._context.state_file.set(given_up=self._context.state.given_up + 1)
        self._context.tell_user(message, level="error")

    def _forget(self, entry: Entry, *, committed: bool = False) -> None:
        kept = committed and self.resume.keep(entry)
        if not kept:
            self._delete(entry.set_aside())
        self._furthest.pop(entry.id, None)
        self._queue.pop(entry.id, None)
        self._uploaded.pop(entry.id, None)
        self._stalled_s.pop(entry.id, None)

    def _delete(self, tree: Path) -> None:
        """In the background; what an end interrupts the next agent goes on with."""

        async def delete() -> None:
            await self._context.threads.disk(shutil.rmtree, tree, ignore_errors=True)

        task = asyncio.create_task(delete())
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    # --- the worker -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work on the queue for ever; ends by cancellation, or when this attempt is fenced."""
        try:
            await self._work()
        finally:
            if self._measuring is not None:
                self._measuring.cancel()

    async def _work(self) -> None:
        await self._recognise()
        while self._context.state.fenced_by is None:
            self._wake.clear()
            plan = self._plan()
            if plan.next is not None:
                await self._back_up(plan.next)
                continue
            if self._queue:
                await self._next_round()
                continue
            self._passed.clear()
            self._idle.set()
            await self._wake.wait()
        self._idle.set()

    async def _recognise(self) -> None:
        """What an agent before us has committed comes first: an older save that still waits must
        not be committed behind it."""
        for _ in range(len(self._found_at_start) + 1):
            if self.look() or self._measuring is None:
                break
            await asyncio.wait({self._measuring})
        found = sorted(self._found_at_start & self._queue.keys(), reverse=True)
        if len(found) < 2:
            return  # the one is asked for when it has its turn
        store = self._context.checkpoint_store
        for name in found:
            try:
                there = await self._context.retrier.call(store.committed, name)
            except StorageError as error:  # the upload will say so, and is told
                _log.info("looking for %s in the chain: %s", name, error)
                return
            if there is not None and name in self._queue:
                self._committed(self._queue[name], there)

    async def _next_round(self) -> None:
        """The store has refused each: a pause, which a new one ends."""
        pause = asyncio.create_task(self._context.retrier.pause_slowly(max(1, self._refusals)))
        new = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait({pause, new}, return_when=asyncio.FIRST_COMPLETED)
            if pause.done():
                self._passed.clear()
        finally:
            await cancel_all([pause, new])

    async def drain(self) -> None:
        """The process is over: wait until every accepted backup is committed or given up."""
        self._draining_at = self._context.now()
        looks = 0
        while looks < LOOKS and not self.look():
            looks += 1
            if self._measuring is not None:
                await asyncio.wait({self._measuring}, timeout=LOOK_AGAIN_S)
            else:
                await asyncio.sleep(LOOK_AGAIN_S)
        self._drop_shards()
        if looks == LOOKS:
            self._give_up_unread()
        if self._queue and self._context.state.fenced_by is None:
            self._idle.clear()
            self._wake.set()
            await self._idle_in_time(self._draining_at)
        if self._pruning is not None:
            await asyncio.wait({self._pruning}, timeout=PRUNE_S)

    def _give_up_unread(self) -> None:
        """They were accepted, so the job is no success without them (I8)."""
        for name in outbox.names(self._context.paths.outbox):
            if name not in self._queue:
                self._give_up(
                    f"backup {name} could not be read from this VM's disk for {LOOKS:d} s after the"
                    " end of the process: it is not committed"
                )

    async def _idle_in_time(self, since: float) -> None:
        """Trying again may help for ever; the wait ends when nothing at all goes through."""
        told_at = -REMIND_EVERY_S
        while not self._idle.is_set():
            now = self._context.now()
            left_s = max(since, self._advanced_at) + DRAIN_S - now
            if left_s <= 0:
                self._give_all_up()
                return
            if self._trouble and now - told_at >= REMIND_EVERY_S:
                told_at = now
                self._context.tell_user(
                    f"the process has ended, and {len(self._queue)} of its saves wait for the"
                    f" storage: {self._trouble}; trying on for {left_s / 60:.0f} min",
                    level="warning",
                )
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), min(left_s, DRAIN_LOOK_S))

    def _give_all_up(self) -> None:
        for entry in self._ordered():
            self._give_up(
                f"the save of step {entry.meta.step} was given up: nothing went through to the"
                f" storage for {DRAIN_S / 60:.0f} min after the process had ended: "
                f"{self._trouble or 'it does not answer'}"
            )
            self._forget(entry)
        self._abort.set()

    async def _back_up(self, entry: Entry) -> None:
        from spothop.checkpoints import Fenced

        self._current, self._abort, self._done_bytes = entry, Abort(), 0
        self._moved_at = self._context.now()
        try:
            made = await self._until_committed(entry, self._abort)
        except Superseded:
            _log.info("upload of %s ended for a more urgent one", entry.id)
        except PassedOver:
            self._passed.add(entry.id)
        except Fenced as fenced:
            self._fenced(fenced.by)
        except (StorageError, OSError) as error:
            self._give_up(f"the save of step {entry.meta.step} could not be backed up: {error}")
            self._forget(entry)
        else:  # a failure of ours from here on ends the agent, and the next one finds the commit
            self._committed(entry, made)
            self._prune()
        finally:
            self._current = None

    async def _until_committed(self, entry: Entry, abort: Abort) -> ChainEntry:
        """As long as trying again can help, and at a slow pace longer than that: the payload is the
        only copy (I12). Raises what is wrong with the payload itself, Fenced, Superseded, and
        PassedOver where others wait that the store may take."""
        failures = 0

        async def once() -> ChainEntry:
            nonlocal failures
            try:
                return await self._once(entry, abort)
            except StorageError as error:
                failures += 1
                self._trouble = str(error)
                newer = any(name > entry.id for name in self._queue)
                if error.retryable and failures >= TURN_TRIES and newer:
                    raise PassedOver from error
                raise

        while True:
            try:
                return await self._context.retrier.repeat(once)
            except (SourceChanged, UnsafePath):
                raise
            except (StorageError, OSError) as error:
                if self._is_final(error):
                    raise
            self._refusals += 1
            if len(self._queue) > 1:
                raise PassedOver
            pause = asyncio.create_task(self._context.retrier.pause_slowly(self._refusals))
            await abort.unless(pause)

    def _is_final(self, error: StorageError | OSError) -> bool:
        """Whether to give up now; tells the user what the store or the disk says, first and then
        from time to time."""
        now = self._context.now()
        if self._refused_at is None:
            self._refused_at, self._reminded_at = now, -REMIND_EVERY_S
        since = self._refused_at
        over_at = self._draining_at
        if over_at is not None and now - max(since, over_at) >= FINAL_AFTER_S:
            return True
        if now - self._reminded_at >= REMIND_EVERY_S:
            self._reminded_at = now
            own = isinstance(error, (SourceUnreadable, OSError))
            what = "a save cannot be read" if own else "the storage refuses this job's saves"
            self._context.tell_user(
                f"{what}: {error}; it is kept on this VM and tried again, but a preemption now"
                " would lose it",
                level="error",
            )
        return False

    async def _once(self, entry: Entry, abort: Abort) -> ChainEntry:
        """Upload what is not uploaded yet, then commit; each is repeated by itself."""
        store, chaos = self._context.checkpoint_store, self._context.chaos
        if entry.id in self._found_at_start:
            there = await self._answer(abort, lambda wanted: store.committed(entry.id))
            if there is not None:
                return there
        if entry.id not in self._uploaded:
            self._uploaded[entry.id] = await self._upload(entry, abort)
        chaos.reach("before_commit")
        files = self._uploaded[entry.id]
        restored_n = self._context.state.restored_n
        made = await self._answer(
            abort, lambda wanted: store.commit(entry, files, restored_n, wanted)
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
            left_s = self._left_s()
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
                self._furthest[entry.id], self._advanced_at = done, self._moved_at
            abort.check()

        began = self._context.now()
        upload = self._context.threads.storage(
            store.upload, entry, on_progress, abort.check, self._left_s
        )
        files = await abort.unless(asyncio.create_task(upload))
        self._bytes_per_s = max(entry.size, 1) / max(self._context.now() - began, 1e-3)
        chaos.reach("after_upload")
        return files

    def _committed(self, entry: Entry, made: ChainEntry) -> None:
        now, meta = self._context.now(), entry.meta
        self._refused_at, self._refusals, self._unanswered = None, 0, 0
        self._trouble, self._advanced_at = "", now
        beta_s = max(now - meta.mono, 0.0)
        self._saves.committed(beta_s)
        covered = self._notice_of(meta, NoticeEvent.COMMIT)
        report = CommittedReport(
            n=made.n,
            step=meta.step,
            save=meta.kind,
            bytes=entry.size,
            delta_s=meta.delta_s,
            beta_s=beta_s,
            since_notice_s=None if covered is None else now - covered.seen,
        )
        self._context.report(report, key=f"committed-{made.n}", urgent=True)
        self._context.chaos.reach("after_report")
        self._context.note(
            f"checkpoint {made.n}: step {meta.step}, {meta.kind.value},"
            f" {entry.size} bytes, saved in {meta.delta_s:.2f} s, backed up in {beta_s:.2f} s"
        )
        newest, saved = self._context.state.committed, Saved.of(entry)
        # Before the entry goes: without it the next agent could not know.
        self._context.state_file.set(
            notice=covered or self._context.state.notice,
            committed=newest if newest is not None and saved.older_than(newest) else saved,
            committed_n=max(made.n, self._context.state.committed_n or 0),
        )
        self._forget(entry, committed=True)
        if covered is not None:
            self._on_covered()
        self._drop_overtaken()

    def _drop_overtaken(self) -> None:
        """What is older than a checkpoint must not be committed behind it, and is not needed. It
        closes a notice as its own commit would."""
        newest = self._context.state.committed
        for entry in self._ordered() if newest is not None else []:
            if newest is None or not Saved.of(entry).older_than(newest):
                continue
            if (covered := self._notice_of(entry.meta, NoticeEvent.COMMIT)) is not None:
                self._context.state_file.set(notice=covered)
                self._on_covered()
            self._context.tell_user(
                f"the save of step {entry.meta.step} is not backed up: step {newest.step} is",
                level="warning",
            )
            if entry is self._current:
                self._abort.set()
            self._forget(entry)

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
            self._pruning = asyncio.create_task(self._prune_once())

    async def _prune_once(self) -> None:
        """A failure is left to the next commit: nothing depends on the deletion."""
        try:
            await self._context.threads.storage(self._context.checkpoint_store.prune)
        except (StorageError, OSError) as error:
            _log.info("prune: %s", error)
