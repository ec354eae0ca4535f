"""The logs that agents send: each chunk goes to the file of its place, by offset.

A chunk comes by itself (`POST /agent/v1/logs`: long backlogs, the end of an attempt, and while
somebody reads along) or rides in a sync. One that rides and cannot be kept costs the sync nothing:
its reports count, and the chunk is asked for again.
"""

from __future__ import annotations

import logging

from spothop.wire import LogChunk, LogState, VmState
from spothop_master.agents.log_quotas import LogQuotas
from spothop_master.agents.sessions import Sessions, VmSession, vm_is_over
from spothop_master.logs import LogFull
from spothop_master.problems import ApiError
from spothop_master.store import attempts
from spothop_master.store.db import Database
from spothop_master.store.schema import VmRow

log = logging.getLogger(__name__)


class AgentLogs:
    """One per master. Its methods wait for a disk: call them from a thread."""

    def __init__(self, db: Database, sessions: Sessions, logs: LogQuotas) -> None:
        self._db = db
        self._sessions = sessions
        self._logs = logs

    def append(self, known: VmSession, attempt: int, offset: int, data: bytes) -> int:
        """The offset at which the next chunk has to begin. Raises OSError, and `ApiError`: 403 for
        an attempt that the VM does not have, 410 when the VM is over, 507 for a log at its limit.
        """
        node = self._sessions.node_of(known.vm, attempt)
        if node is None:
            node = self._look_up(known, attempt)
        try:
            return self._logs.append(
                known.job, attempt, node, owner_id=known.owner, offset=offset, data=data
            )
        except LogFull as error:
            hint = "keep it; max_log_bytes is a setting of the master"
            raise ApiError(507, "log_full", str(error), hint) from None

    def ride(self, known: VmSession, chunk: LogChunk, *, follow: bool) -> LogState:
        """Of a chunk that came with a sync."""
        wanted: int | None = None
        try:
            wanted = self.append(known, chunk.attempt, chunk.offset, chunk.content())
        except (ApiError, OSError, ValueError) as error:
            log.warning("log of VM %s, attempt %d: %s", known.vm, chunk.attempt, error)
        return LogState(attempt=chunk.attempt, next_offset=wanted, follow=follow)

    def _look_up(self, known: VmSession, attempt: int) -> int:
        with self._db.read() as session:
            row = session.get(VmRow, known.vm)
            if row is None or row.state == VmState.TERMINATED.value:
                raise vm_is_over(known.vm)
            place = attempts.place_of(session, row.id, attempt)
            if place is None:
                text = f"VM {known.vm!r} has no attempt {attempt}"
                raise ApiError(403, "wrong_attempt", text, "drop its log")
            node = place.node
        self._sessions.allow_log(known.vm, attempt, node)
        return node
