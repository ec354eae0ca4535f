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

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.figures import size
from spothop_master.logs import Logs
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
    """Bytes of each job's logs; of jobs without a quota nothing is counted."""

    @property
    def limit(self) -> int | None:
        return self.quota.quota.log_bytes


class LogQuotas:
    """Its methods may wait for the disk: call them from a thread. Thread-safe."""

    def __init__(
        self, db: Database, logs: Logs, default: Quota, clock: Callable[[], datetime]
    ) -> None:
        self._db, self._logs, self._default, self._clock = db, logs, default, clock
        self._owners: dict[int, _Owner] = {}
        self._owner_of: dict[str, int] = {}
        self._told: dict[str, datetime] = {}
        self._lock = threading.Lock()

    def append(self, job: str, attempt: int, node: int, *, offset: int, data: bytes) -> int:
        """As `Logs.append`, within the quota of the job's owner. Raises as that does."""
        owner = self._owner(job)
        before = self._logs.size(job, attempt, node)
        adding = max(0, offset + len(data) - before)
        most = self._most(owner, job, adding)
        found = self._logs.append(job, attempt, node, offset=offset, data=data, most=most)
        if owner is None or owner.limit is None:
            return found
        with self._lock:
            if most is None:
                owner.sizes[job] = owner.sizes.get(job, 0) + max(0, found - before)
                return found
        kept = self._logs.bytes_of(job)
        with self._lock:
            owner.sizes[job] = kept
        self._tell(owner, job, kept)
        return found

    def _most(self, owner: _Owner | None, job: str, adding: int) -> int | None:
        """Bytes that the log may have; None: its quota is no reason to cut it."""
        if owner is None or owner.limit is None:
            return None
        with self._lock:
            own, total = owner.sizes.get(job, 0), sum(owner.sizes.values())
        left = owner.limit - total
        return None if adding <= left else max(2 * FLOOR, own + left)  # of which half stays

    def _owner(self, job: str) -> _Owner | None:
        now = self._clock()
        with self._lock:
            owner = self._owners.get(self._owner_of.get(job, 0))
            if owner is not None and timedelta() <= now - owner.counted_at < COUNT:
                return owner
        with self._db.read() as session:
            owner_id = session.scalar(select(Job.owner_id).where(Job.id == job))
            if owner_id is None:
                return None
            with self._lock:  # another job of the same owner may have been counted just now
                owner = self._owners.get(owner_id)
            if owner is None or not timedelta() <= now - owner.counted_at < COUNT:
                owner = self._count(session, owner_id, now)
        with self._lock:
            self._owner_of[job] = owner_id
            self._owners[owner_id] = owner
        return owner

    def _count(self, session: Session, owner_id: int, now: datetime) -> _Owner:
        owner = _Owner(quotas.of_id(session, owner_id, self._default), now)
        jobs = quotas.jobs_of(session, owner_id) if owner.limit is not None else []
        owner.sizes = {job_id: found for job_id in jobs if (found := self._logs.bytes_of(job_id))}
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
