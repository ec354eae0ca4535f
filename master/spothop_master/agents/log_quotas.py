"""The quota of each user for logs: a log that is over it loses its beginning, and says so.

A chunk that an agent sends is always taken, whatever the quota says: a job is never ended or held
up for what it prints. The log that grows pays, by its oldest lines; `FLOOR` of it always stay.
Retention makes room, from the logs of that user's jobs that ended first.

What a user's logs take is counted on the disk now and then, and added up in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from spothop.figures import size
from spothop_master.logs import LogStore
from spothop_master.settings import Quota
from spothop_master.store import quotas, transitions
from spothop_master.store.db import Database
from spothop_master.store.schema import Job

FLOOR = 1_000_000
"""Bytes of a log that stay whatever the quota is: its newest."""
COUNT = timedelta(minutes=1)
"""How often it is counted anew, and whether the quota has changed is looked at."""
TELL = timedelta(hours=1)
"""How often the user hears that a job's log is cut."""


@dataclass
class _Owner:
    """What is known of one user's logs."""

    quota: quotas.OwnQuota
    counted_at: datetime
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of each job's logs; where there is no quota nothing is counted."""
    total: int = 0
    """Of all of them."""

    def measured(self, job: str, size: int) -> None:
        self.total += size - self.sizes.get(job, 0)
        self.sizes[job] = size

    @property
    def limit(self) -> int | None:
        return self.quota.quota.log_bytes


class LogQuotas:
    """Its methods may wait for the disk: call them from a thread. Thread-safe."""

    def __init__(
        self, db: Database, logs: LogStore, default: Quota, clock: Callable[[], datetime]
    ) -> None:
        self._db, self._logs, self._default, self._clock = db, logs, default, clock
        self._owners: dict[int, _Owner] = {}
        self._told: dict[str, datetime] = {}
        self._lock = threading.Lock()

    def append(
        self, job: str, attempt: int, node: int, *, owner_id: int, offset: int, data: bytes
    ) -> int:
        """As `Logs.append`, within the quota of the job's owner. Raises as that does."""
        owner = self._owner(owner_id)
        if owner.limit is None:
            return self._logs.append(job, attempt, node, offset=offset, data=data)
        before = self._logs.size(job, attempt, node)
        adding = max(0, offset + len(data) - before)
        most = self._most(owner, job, adding)
        found = self._logs.append(job, attempt, node, offset=offset, data=data, most=most)
        with self._lock:
            if most is None:
                owner.measured(job, owner.sizes.get(job, 0) + max(0, found - before))
                return found
        kept = self._logs.bytes_of(job)
        with self._lock:
            owner.measured(job, kept)
        self._tell(owner, job, kept)
        return found

    def _most(self, owner: _Owner, job: str, adding: int) -> int | None:
        """Bytes that the log may have; None: its quota is no reason to cut it."""
        with self._lock:
            own, total = owner.sizes.get(job, 0), owner.total
        left = (owner.limit or 0) - total
        return None if adding <= left else max(2 * FLOOR, own + left)  # of which half stays

    def _owner(self, owner_id: int) -> _Owner:
        now = self._clock()
        with self._lock:
            owner = self._owners.get(owner_id)
            if owner is not None and timedelta() <= now - owner.counted_at < COUNT:
                return owner
        with self._db.read() as session:
            owner = self._count(session, owner_id, now)
        with self._lock:
            self._owners[owner_id] = owner
        return owner

    def _count(self, session: Session, owner_id: int, now: datetime) -> _Owner:
        owner = _Owner(quotas.of_id(session, owner_id, self._default), now)
        for job_id in quotas.jobs_of(session, owner_id) if owner.limit is not None else ():
            if found := self._logs.bytes_of(job_id):
                owner.measured(job_id, found)
        return owner

    def _tell(self, owner: _Owner, job: str, kept: int) -> None:
        now = self._clock()
        with self._lock:
            last = self._told.get(job)
            if last is not None and timedelta() <= now - last < TELL:
                return
            self._told = {key: at for key, at in self._told.items() if now - at < TELL}
            self._told[job] = now
        text = (
            f"the logs of user {owner.quota.name!r} have reached their quota of "
            f"{size(owner.limit or 0)}: the oldest lines of this job's log go, {size(kept)} stay; "
            "print less, or ask an admin for more"
        )
        with self._db.begin() as session:
            row = session.get_one(Job, job)
            data = {"level": "warning"}
            transitions.record(session, "message", text, now=now, row=row, data=data)
