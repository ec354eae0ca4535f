"""Which jobs other masters changed: written in the transaction of the change, read every second.

What it guarantees: a reader hears of every committed change, however late its transaction commits,
and also when the master that made it dies at once. How:

1. A transaction that changes jobs adds a row for each, with its own transaction id. It only inserts
   and so waits for nobody, whatever locks it holds. (A version in the job's row was the other way:
   a transaction that wrote a VM first would have waited for the job's row, and the other one for
   the VM.)
2. Sequences and transaction ids are taken before the commit, so "above the last one" would skip
   what commits late. A reader therefore goes on from the oldest transaction that still ran when it
   looked (`dialects.oldest_running`), and leaves out what it has seen from there on.
3. Rows go after `KEPT`. Who has not read for half of that has to take everything for changed.

Nothing of it is used on SQLite, where there is one master.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import delete, insert, literal, select
from sqlalchemy.orm import Session

from spothop_master.store import dialects
from spothop_master.store.master_rows import JobChange

KEPT = timedelta(minutes=10)


def publish(session: Session, jobs: Collection[str], *, master: str, now: datetime) -> None:
    """This transaction of this master changes these jobs."""
    xid = session.scalar(select(dialects.transaction_id()))
    rows = [{"xid": xid, "job_id": job, "master_id": master, "at": now} for job in sorted(jobs)]
    if rows:
        session.connection().execute(insert(JobChange), rows)


@dataclass
class Reader:
    """Of one master; what it wrote itself is left out."""

    master: str
    _from: int | None = None
    _seen: set[int] = field(default_factory=set)

    def read(self, session: Session) -> frozenset[str]:
        """The jobs that others changed since it was last asked."""
        low = select(dialects.oldest_running().label("low")).subquery()
        since = literal(self._from) if self._from is not None else low.c.low
        rows = session.execute(
            select(low.c.low, JobChange.xid, JobChange.job_id, JobChange.master_id).select_from(
                low.outerjoin(JobChange, JobChange.xid >= since)
            )
        ).all()
        found = [row for row in rows if row.xid is not None and row.xid not in self._seen]
        self._from = rows[0].low
        self._seen = {row.xid for row in rows if row.xid is not None and row.xid >= rows[0].low}
        return frozenset(row.job_id for row in found if row.master_id != self.master)


def trim(session: Session, *, now: datetime) -> None:
    """Drop what everybody has read."""
    session.execute(delete(JobChange).where(JobChange.at < now - KEPT))
