"""An agent's sync: its reports, answered when they are committed, and the directives that hold now.

Nearly all calls of a master are these, so each costs as little as it can:

1. A heartbeat is answered in the event loop from memory: no thread, no database.
2. What needs the database runs in threads that belong to the agents (`threads`); what is only
   read, of VMs in the plain case, is read for all that wait at the same time (`answers`).
3. Steps, metrics and saves are written for many VMs at once (`progress`), and so are notices, which
   come first; all else by itself.
4. A part of the log that rides in a sync is written beside it, in another thread.
5. When the next sync is wanted depends on how slow the answers are (`pace`).
6. An answer from memory is put together from directives that were encoded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from spothop.wire import Envelope, LogChunk, LogState, SyncRequest, VmState
from spothop_master.agents import answers, protocol
from spothop_master.agents import limits as bounds
from spothop_master.agents.agent_logs import AgentLogs
from spothop_master.agents.directive_cache import MAX_AGE, DirectiveCache, encode
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.limits import VmLimits
from spothop_master.agents.pace import Pace
from spothop_master.agents.progress import URGENT, ProgressWriter, is_progress
from spothop_master.agents.sessions import Sessions, VmSession, vm_is_over
from spothop_master.agents.threads import AgentThreads
from spothop_master.agents.together import Together
from spothop_master.followers import Followers
from spothop_master.problems import ApiError
from spothop_master.settings import MasterSettings
from spothop_master.store import leases, transitions
from spothop_master.store.db import Database
from spothop_master.store.schema import VmRow
from spothop_master.store.statistics import KeptStatistics

WAITING_SYNC_S = 0.2
"""Between syncs of a VM that is ready and waits until it may go on."""
DRAINING_SYNC_S = 1.0
"""Between syncs of a VM with a notice: it hears in time that its replacement is ready."""

SLOWED = 2
"""So many times its interval a VM may be told to wait: after three it would be suspect."""
REPORTS_SLOWED = (
    "the VM reports more than the master takes from one (max_reports_per_s): steps and metrics come"
    " late and thinned; log fewer names, or less often"
)
SYNCS_SLOWED = (
    "the VM speaks to the master more than that takes from one (max_syncs_per_s): its answers are"
    " held back"
)
LOG_SLOWED = (
    "the VM prints more than the master takes from one (max_log_bytes_per_s): its log comes late;"
    " print less"
)


class Syncs:
    """One per master."""

    def __init__(
        self,
        db: Database,
        settings: MasterSettings,
        *,
        sessions: Sessions,
        heartbeats: Heartbeats,
        directives: DirectiveCache,
        statistics: KeptStatistics,
        threads: AgentThreads,
        progress: ProgressWriter,
        notices: ProgressWriter,
        limits: VmLimits,
        logs: AgentLogs,
        followers: Followers,
        pace: Pace,
        clock: Callable[[], datetime],
        knows_all: Callable[[], bool] | None = None,
    ) -> None:
        """`knows_all`: what others changed is known here; by default where there is one master."""
        self._db = db
        self._every_s = settings.sync_every_s
        self._sessions = sessions
        self._heartbeats = heartbeats
        self._directives = directives
        self._statistics = statistics
        self._threads = threads
        self._progress = progress
        self._notices = notices
        self._limits = limits
        self._logs = logs
        self._followers = followers
        self._pace = pace
        self._clock = clock
        self._knows_all = knows_all or (lambda: db.single_master)
        self._firsts: set[str] = set()
        """VMs that were heard for the first time, until their answer."""
        self._lookups = Together("agents-lookups", sessions.look_up_all)
        self._answers = Together("agents-answers", self._read_plain)
        self._notes = Together("agents-notes", self._note_plain)

    async def session(self, token: str) -> VmSession:
        """Whose it is. Raises `ApiError`, as `Sessions.look_up` does."""
        known = self._sessions.remembered(token)
        if known is not None:
            return known
        found = await asyncio.wrap_future(self._lookups.ask(token))
        if not isinstance(found, VmSession):
            raise found or vm_is_over("")
        return found

    async def read(self, read: Callable[[bytes], SyncRequest], body: bytes) -> SyncRequest:
        """A body that takes time to read, in a thread."""
        return await self._threads.plain.run(read, body)

    async def read_long(self, read: Callable[[bytes], SyncRequest], body: bytes) -> SyncRequest:
        """The same for a body of which few are sent: one VM that sends many holds up no other's
        heartbeat."""
        return await self._threads.bulk.run(read, body)

    async def hold_back(self, known: VmSession, message: SyncRequest, size: int) -> None:
        """Let a VM wait that sends too many syncs, or too large ones; `size` is this one's."""
        units, now, buckets = 1 + size // bounds.SYNC_BYTES, self._clock(), self._limits.syncs
        wait_s = buckets.take(known.vm, units, now=now)
        if wait_s == 0.0:
            return
        buckets.take(known.vm, units, now=now, owed=True)
        await self.tell_slowed(known, SYNCS_SLOWED)
        if bounds.waits(message.reports):
            await asyncio.sleep(min(wait_s, self._every_s))

    async def answer(self, known: VmSession, message: SyncRequest, *, rides: bool) -> bytes:
        """A `wire.SyncReply` as JSON; what it says of logs only for an agent that understands that
        (`rides`). Raises `ApiError`: 403 for another VM's name, 410 when the VM is over."""
        if message.vm != known.vm:
            text = f"this session is of VM {known.vm!r}, not {message.vm!r}"
            raise ApiError(403, "wrong_vm", text, "join again")
        if self._heartbeats.heard(known.vm, self._clock()):
            self._firsts.add(known.vm)
        if not rides and message.log is None:
            return await self._answer(known, message)
        follow = self._followers.follow(known.job, self._clock())
        if message.log is None:
            log = LogState(attempt=message.attempt, follow=follow)
            return with_log(await self._answer(known, message), log)
        reply, log = await asyncio.gather(
            self._answer(known, message), self._ride(known, message.log, follow=follow)
        )
        return with_log(reply, log)

    async def _ride(self, known: VmSession, chunk: LogChunk, *, follow: bool) -> LogState:
        size = len(chunk.data)
        if self._limits.logs.take(known.vm, size, now=self._clock()) > 0.0:
            await self.tell_slowed(known, LOG_SLOWED)
            return LogState(attempt=chunk.attempt, follow=follow)
        return await self._threads.bulk.run(partial(self._logs.ride, known, chunk, follow=follow))

    async def _answer(self, known: VmSession, message: SyncRequest) -> bytes:
        wait_s = 0.0
        if message.reports:
            message, wait_s = self._within_limits(known, message)
            if wait_s > 0.0:
                await self.tell_slowed(known, REPORTS_SLOWED)
        if not message.reports:
            max_age = None if self._knows_all() else MAX_AGE
            if (reply := self._from_memory(known, max_age, wait_s)) is not None:
                return reply
        began = self._clock()
        reply = await self._from_database(known, message, wait_s)
        now = self._clock()
        self._pace.answered(now - began, now)
        return reply

    async def _from_database(self, known: VmSession, message: SyncRequest, wait_s: float) -> bytes:
        if not message.reports:
            if (plain := await self._read_together(known, wait_s)) is not None:
                return plain[0]
            return await self._threads.plain.run(self._by_rows, known, (), wait_s)
        if is_progress(message.reports):
            writer, lane = self._progress, self._threads.plain
        elif is_progress(message.reports, URGENT):
            writer, lane = self._notices, self._threads.urgent
        else:
            return await self._threads.urgent.run(self._by_rows, known, message.reports)
        written = await asyncio.wrap_future(writer.write(known.vm, message.reports))
        if written is not None:  # committed: a change of states has made the answer void
            self._sessions.acknowledge(known.vm, written.acked_seq)
            if written.step_s is not None:
                self._directives.steps_take(known.vm, written.step_s)
            if written.answer is not None:
                directives = encode(written.answer.directives)
                return encoded(written.acked_seq, directives, self._next_s(known.vm, self._every_s))
            if (reply := self._from_memory(known)) is not None:
                return reply
            return await self._look_anew(known, message.reports)
        return await lane.run(self._by_rows, known, message.reports)

    def _told(
        self, known: VmSession, acked: int, answer: protocol.Answer, wait_s: float = 0.0
    ) -> bytes:
        delay_s = self._every_s
        if answer.draining:
            delay_s, wait_s = min(delay_s, DRAINING_SYNC_S), 0.0
        next_s = self._next_s(known.vm, delay_s, wait_s)
        return encoded(acked, encode(answer.directives), next_s)

    def _within_limits(self, known: VmSession, message: SyncRequest) -> tuple[SyncRequest, float]:
        """What of the message may be taken in now, and the seconds until the VM may say more.
        Reports that may wait stay with the agent, which sends them again."""
        said, now, buckets = message.reports, self._clock(), self._limits.reports
        wait_s = buckets.take(known.vm, bounds.units(said), now=now)
        if wait_s == 0.0:
            return message, 0.0
        taken = [] if bounds.waits(said) else bounds.thinned(said)
        buckets.take(known.vm, len(taken), now=now, owed=True)
        return message.model_copy(update={"reports": taken}), min(wait_s, SLOWED * self._every_s)

    async def tell_slowed(self, known: VmSession, text: str) -> None:
        """The user, once an hour."""
        now, key = self._clock(), f"{known.vm}: {text}"
        if self._limits.quarantine.may_tell(key, now=now, most=1) is not None:
            await self._threads.plain.run(self._note, known, text, now)

    def _note(self, known: VmSession, text: str, now: datetime) -> None:
        with self._db.begin() as session:
            row = self.refuse_over(session, known.vm)
            data = {"level": "warning"}
            transitions.record(session, "message", text, now=now, row=row, data=data)

    def close(self) -> None:
        """What waits is written first."""
        self._notices.close()
        self._progress.close()
        self._lookups.close()
        self._answers.close()
        self._notes.close()

    def refuse_over(self, session: Session, vm_id: str) -> VmRow:
        """The VM's row. Raises `ApiError`: 410 once the cloud says that the VM is gone."""
        row = session.get(VmRow, vm_id)
        if row is None or row.state == VmState.TERMINATED.value:
            self._sessions.forget(vm_id)
            self._heartbeats.forget(vm_id)
            self._directives.forget(vm_id)
            self._firsts.discard(vm_id)
            raise vm_is_over(vm_id)
        return row

    def _next_s(self, vm_id: str, usual_s: float, wait_s: float = 0.0) -> float:
        """When the VM's next sync is wanted, after `wait_s` at the soonest: seconds from now."""
        now = self._clock()
        if usual_s == self._every_s and vm_id in self._firsts:
            self._firsts.discard(vm_id)
            usual_s = self._pace.first_delay_s(usual_s)
        delay_s = max(self._pace.delay_s(usual_s, now), wait_s)
        more_s = delay_s - self._every_s
        self._heartbeats.expect(vm_id, now + timedelta(seconds=more_s) if more_s > 0 else None)
        return delay_s

    def _from_memory(
        self, known: VmSession, max_age: timedelta | None = None, wait_s: float = 0.0
    ) -> bytes | None:
        directives = self._directives.encoded(known.vm, now=self._clock(), max_age=max_age)
        acked = self._sessions.acked(known.vm)
        if directives is None or acked is None:
            return None
        return encoded(acked, directives, self._next_s(known.vm, self._every_s, wait_s))

    async def _look_anew(self, known: VmSession, reports: Sequence[Envelope]) -> bytes:
        """After these reports were written. A transaction that may write only where there is
        something to note."""
        found = await self._read_together(known)
        if found is None:
            found = await self._threads.plain.run(self._read_rows, known, ())
        reply, noted = found
        if noted:
            return reply
        written = await asyncio.wrap_future(self._notes.ask(known))
        if written is not None:
            return self._told(known, written.acked_seq, written.answer)
        return await self._threads.plain.run(self._by_rows, known, reports)

    async def _read_together(
        self, known: VmSession, wait_s: float = 0.0
    ) -> tuple[bytes, bool] | None:
        """As `_read_rows` does without reports, for all that wait at the same time; None: the VM is
        not in the plain case."""
        version, now = self._directives.version(known.vm, known.job), self._clock()
        found = await asyncio.wrap_future(self._answers.ask(known))
        if found is None:
            return None
        answer = found.answer
        self._sessions.acknowledge(known.vm, found.acked_seq)
        if not answer.draining:
            self._directives.keep(version, answer.directives, now=now, step_s=answer.step_s)
        return self._told(known, found.acked_seq, answer, wait_s), answer.noted

    def _note_plain(self, known: Sequence[VmSession]) -> dict[VmSession, answers.Found]:
        """As `_read_plain`; what it says of the insurance is noted in jobs and events."""
        now, vms = self._clock(), [each.vm for each in known]
        with self._db.begin() as session:
            leases.lock_those_of(session, vms)
            found = answers.read(session, vms, self._statistics, now=now, writes=True)
        return {each: found[each.vm] for each in known if each.vm in found}

    def _read_plain(self, known: Sequence[VmSession]) -> dict[VmSession, answers.Found]:
        now = self._clock()
        self._statistics.warm_all({each.pool for each in known}, now=now)
        with self._db.read() as session:
            found = answers.read(session, [k.vm for k in known], self._statistics, now=now)
        return {each: found[each.vm] for each in known if each.vm in found}

    def _by_rows(self, known: VmSession, reports: Sequence[Envelope], wait_s: float = 0.0) -> bytes:
        """Reports that were applied already change nothing."""
        return self._read_rows(known, reports, wait_s)[0]

    def _read_rows(
        self, known: VmSession, reports: Sequence[Envelope], wait_s: float = 0.0
    ) -> tuple[bytes, bool]:
        """The answer, and whether its insurance is noted. With reports they are applied first."""
        now, writes = self._clock(), bool(reports)
        self._statistics.warm(known.pool, now=now)
        version = self._directives.version(known.vm, known.job)
        with self._db.begin() if writes else self._db.read() as session:
            row = self.refuse_over(session, known.vm)
            if writes:
                protocol.apply(session, known.vm, reports, now=now, limits=self._limits)
            acked = row.acked_seq
            answer = protocol.answer(
                session, known.vm, now=now, statistics=self._statistics, writes=writes
            )
        self._sessions.acknowledge(known.vm, acked)
        delay_s = self._every_s
        if answer.waiting:  # every second that it waits is one without training
            delay_s, wait_s = min(delay_s, WAITING_SYNC_S), 0.0
        elif answer.draining:
            delay_s, wait_s = min(delay_s, DRAINING_SYNC_S), 0.0
        else:
            self._directives.keep(version, answer.directives, now=now, step_s=answer.step_s)
        next_s = self._next_s(known.vm, delay_s, wait_s)
        return encoded(acked, encode(answer.directives), next_s), answer.noted


def encoded(ack_seq: int, directives: bytes, next_delay_s: float) -> bytes:
    """A `wire.SyncReply` as JSON, of directives that are encoded already."""
    head = b'{"ack_seq":%d,"directives":' % ack_seq
    return b'%b%b,"next_delay_s":%b}' % (head, directives, repr(float(next_delay_s)).encode())


def with_log(reply: bytes, log: LogState) -> bytes:
    """The same `wire.SyncReply`, with what the master has of the log."""
    return b'%b,"log":%b}' % (reply[:-1], log.model_dump_json().encode())
