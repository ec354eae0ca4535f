"""An agent's sync: its reports, answered when they are committed, and the directives that hold now.

Nearly all calls of a master are these, so each costs as little as it can:

1. A heartbeat is answered in the event loop from memory: no thread, no database.
2. What needs the database runs in threads that belong to the agents (`threads`).
3. Steps and metrics are written for many VMs at once (`progress`), all else by itself.
4. An answer from memory is put together from directives that were encoded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from spothop.wire import SyncReply, SyncRequest, VmState
from spothop_master.agents import protocol
from spothop_master.agents.directive_cache import MAX_AGE, DirectiveCache
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.progress import ProgressWriter, is_progress
from spothop_master.agents.quarantine import Quarantine
from spothop_master.agents.sessions import Sessions, VmSession, vm_is_over
from spothop_master.agents.threads import AgentThreads
from spothop_master.problems import ApiError
from spothop_master.settings import MasterSettings
from spothop_master.store.db import Database
from spothop_master.store.schema import VmRow
from spothop_master.store.statistics import KeptStatistics

WAITING_SYNC_S = 0.2
"""Between syncs of a VM that is ready and waits until it may go on."""
DRAINING_SYNC_S = 1.0
"""Between syncs of a VM with a notice: it hears in time that its replacement is ready."""


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
        quarantine: Quarantine,
        clock: Callable[[], datetime],
    ) -> None:
        self._db = db
        self._every_s = settings.sync_every_s
        self._sessions = sessions
        self._heartbeats = heartbeats
        self._directives = directives
        self._statistics = statistics
        self._threads = threads
        self._progress = progress
        self._quarantine = quarantine
        self._clock = clock

    async def session(self, token: str) -> VmSession:
        """Whose it is. Raises `ApiError`, as `Sessions.look_up` does."""
        known = self._sessions.remembered(token)
        if known is None:
            known = await self._threads.plain.run(self._sessions.look_up, token)
        return known

    async def read(self, read: Callable[[bytes], SyncRequest], body: bytes) -> SyncRequest:
        """A body that takes time to read, in a thread."""
        return await self._threads.plain.run(read, body)

    async def answer(self, known: VmSession, message: SyncRequest) -> bytes:
        """A `wire.SyncReply` as JSON. Raises `ApiError`: 403 for another VM's name, 410 when the VM
        is over."""
        if message.vm != known.vm:
            text = f"this session is of VM {known.vm!r}, not {message.vm!r}"
            raise ApiError(403, "wrong_vm", text, "join again")
        self._heartbeats.heard(known.vm, self._clock())
        if not message.reports:
            max_age = None if self._db.single_master else MAX_AGE
            if (reply := self._from_memory(known, max_age)) is not None:
                return reply
            return await self._threads.plain.run(self._by_rows, known, message)
        if not is_progress(message.reports):
            return await self._threads.urgent.run(self._by_rows, known, message)
        written = await asyncio.wrap_future(self._progress.write(known.vm, message.reports))
        if written is not None:  # committed: a change of states has made the answer void
            self._sessions.acknowledge(known.vm, written.acked_seq)
            if written.step_s is not None:
                self._directives.steps_take(known.vm, written.step_s)
            if (reply := self._from_memory(known)) is not None:
                return reply
        return await self._threads.plain.run(self._by_rows, known, message)

    def close(self) -> None:
        """What waits is written first."""
        self._progress.close()

    def refuse_over(self, session: Session, vm_id: str) -> VmRow:
        """The VM's row. Raises `ApiError`: 410 once the cloud says that the VM is gone."""
        row = session.get(VmRow, vm_id)
        if row is None or row.state == VmState.TERMINATED.value:
            self._sessions.forget(vm_id)
            self._heartbeats.forget(vm_id)
            self._directives.forget(vm_id)
            raise vm_is_over(vm_id)
        return row

    def _from_memory(self, known: VmSession, max_age: timedelta | None = None) -> bytes | None:
        directives = self._directives.encoded(known.vm, now=self._clock(), max_age=max_age)
        acked = self._sessions.acked(known.vm)
        if directives is None or acked is None:
            return None
        return encoded(acked, directives, self._every_s)

    def _by_rows(self, known: VmSession, message: SyncRequest) -> bytes:
        """Reports that were applied already change nothing."""
        now = self._clock()
        self._statistics.warm(known.pool, now=now)
        version = self._directives.version(known.vm, known.job)
        with self._db.begin() if message.reports else self._db.read() as session:
            row = self.refuse_over(session, known.vm)
            if message.reports:
                protocol.apply(
                    session, known.vm, message.reports, now=now, quarantine=self._quarantine
                )
            acked = row.acked_seq
            answer = protocol.answer(
                session,
                known.vm,
                now=now,
                statistics=self._statistics,
                writes=bool(message.reports),
            )
        self._sessions.acknowledge(known.vm, acked)
        delay_s = self._every_s
        if answer.waiting:  # every second that it waits is one without training
            delay_s = min(delay_s, WAITING_SYNC_S)
        elif answer.draining:
            delay_s = min(delay_s, DRAINING_SYNC_S)
        else:
            self._directives.keep(version, answer.directives, now=now, step_s=answer.step_s)
        reply = SyncReply(ack_seq=acked, directives=answer.directives, next_delay_s=delay_s)
        return reply.model_dump_json().encode()


def encoded(ack_seq: int, directives: bytes, next_delay_s: float) -> bytes:
    """A `wire.SyncReply` as JSON, of directives that are encoded already."""
    head = b'{"ack_seq":%d,"directives":' % ack_seq
    return b'%b%b,"next_delay_s":%b}' % (head, directives, repr(float(next_delay_s)).encode())
