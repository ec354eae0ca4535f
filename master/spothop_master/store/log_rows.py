"""Logs that are kept in a bucket, as far as the database knows them (`bucket_logs`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, CursorResult, delete, func, select, update
from sqlalchemy.orm import Session

from spothop_master.store import dialects
from spothop_master.store.file_rows import LogPiece, LogRow


@dataclass(frozen=True, kw_only=True)
class LogKey:
    """The log of one place."""

    job: str
    attempt: int
    node: int

    @property
    def row(self) -> tuple[str, int, int]:
        return self.job, self.attempt, self.node


def get(session: Session, key: LogKey) -> LogRow | None:
    return session.get(LogRow, key.row)


def locked(session: Session, key: LogKey, *, now: datetime) -> LogRow:
    """The row, made if there is none; nobody else appends until the commit."""
    connection = session.connection()
    empty = {"size": 0, "stored": 0, "first": 0, "grown_at": now, "removed": None}
    made = dialects.insert(connection, LogRow).values(**_named(key), **empty)
    session.execute(made.on_conflict_do_nothing())
    return session.get_one(LogRow, key.row, with_for_update=True, populate_existing=True)


def pieces(session: Session, key: LogKey, *, begin: int, end: int) -> list[tuple[int, bytes]]:
    """Those that begin in this range, with their offsets, in order."""
    query = select(LogPiece.begin, LogPiece.data).where(*_of(LogPiece, key))
    query = query.where(LogPiece.begin >= begin, LogPiece.begin < end)
    return [(row[0], row[1]) for row in session.execute(query.order_by(LogPiece.begin))]


def stored(session: Session, key: LogKey, *, before: int, now: int) -> bool:
    """The bytes up to `now` are in the bucket; False when somebody else was faster."""
    mine = update(LogRow).where(*_of(LogRow, key), LogRow.stored == before)
    result = session.execute(mine.values(stored=now).execution_options(synchronize_session=False))
    if not isinstance(result, CursorResult) or result.rowcount != 1:
        return False
    drop_pieces(session, key, before=now)
    return True


def drop_pieces(session: Session, key: LogKey, *, before: int) -> None:
    gone = delete(LogPiece).where(*_of(LogPiece, key), LogPiece.begin < before)
    session.execute(gone.execution_options(synchronize_session=False))


def resting(session: Session, *, before: datetime, most: int) -> list[LogKey]:
    """Those that have not grown since, and are not in the bucket wholly."""
    query = select(LogRow.job_id, LogRow.attempt, LogRow.node)
    query = query.where(LogRow.stored < LogRow.size, LogRow.grown_at < before).limit(most)
    return [LogKey(job=row[0], attempt=row[1], node=row[2]) for row in session.execute(query)]


def bytes_by_job(session: Session, jobs: Iterable[str] | None = None) -> dict[str, int]:
    """Of the logs of each of these jobs, or of all that have any."""
    kept = func.sum(LogRow.size - LogRow.first)
    query = select(LogRow.job_id, kept).group_by(LogRow.job_id)
    if jobs is not None:
        query = query.where(LogRow.job_id.in_([*jobs]))
    return {row[0]: int(row[1] or 0) for row in session.execute(query)}


def of_job(session: Session, job: str) -> Sequence[LogRow]:
    return session.scalars(select(LogRow).where(LogRow.job_id == job)).all()


def forget(session: Session, job: str, *, but_why: bool = False) -> None:
    """All that is known of the job's logs, or all `but` why they are gone."""
    rows = delete(LogRow).where(LogRow.job_id == job)
    session.execute(rows.where(LogRow.attempt > 0) if but_why else rows)
    session.execute(delete(LogPiece).where(LogPiece.job_id == job))


def _named(key: LogKey) -> dict[str, object]:
    return {"job_id": key.job, "attempt": key.attempt, "node": key.node}


def _of(model: type[LogRow] | type[LogPiece], key: LogKey) -> list[ColumnElement[bool]]:
    return [model.job_id == key.job, model.attempt == key.attempt, model.node == key.node]
