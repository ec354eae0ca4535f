"""Whole jobs that are deleted long after their end, where a setting asks for that.

A job's rows are found by the foreign keys of the schema, so that a table that is made later is not
forgotten. What belongs to many jobs stays: sums of zones, and the single figures of VMs, which the
statistics of their region read. The largest tables are emptied first, a portion a transaction; the
job's own row goes last and with all that is left, so that a run may end anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Table, delete, select, update
from sqlalchemy.orm import Session

from spothop_master.store.schema import (
    Attempt,
    Base,
    Checkpoint,
    Event,
    Job,
    JobSum,
    Metric,
    Observation,
    VmRow,
)

PAGE = 500

_LARGE: tuple[type[Base], ...] = (Metric, Event, Checkpoint)

_OF_JOBS = ("save", "backup", "step")
"""Kinds of observations that are of one job."""


def removable(session: Session, *, before: datetime, after: str) -> list[str]:
    """The next ids of jobs that ended before then, and whose VMs are all gone."""
    living = select(VmRow.id).where(VmRow.job_id == Job.id, VmRow.ended_at.is_(None)).exists()
    query = select(Job.id).where(Job.ended_at < before, ~living, Job.id > after)
    return list(session.scalars(query.order_by(Job.id).limit(PAGE)))


def remove(session: Session, job_id: str, *, most: int) -> bool:
    """About so many rows of a job that is `removable`; True when nothing of it is left."""
    for table, ids in _large(session, job_id, most):
        session.execute(delete(table).where(table.c.id.in_(ids)))
        return False
    of_attempts = select(Attempt.id).where(Attempt.job_id == job_id)
    of_vms = select(VmRow.id).where(VmRow.job_id == job_id)
    referred: dict[str, ColumnElement[Any] | Any] = {
        "attempts": of_attempts,
        "vms": of_vms,
        "jobs": [job_id],
    }
    for table in reversed(Base.metadata.sorted_tables):
        for column, target in _references(table):
            if target in referred and not column.nullable:
                session.execute(delete(table).where(column.in_(referred[target])))
        for column, target in _references(table):
            if target == "jobs":
                session.execute(delete(table).where(column == job_id))
            elif target == "vms" and column.nullable:
                session.execute(update(table).where(column.in_(of_vms)).values({column.name: None}))
    session.execute(delete(JobSum).where(JobSum.job_id == job_id))
    session.execute(delete(Job).where(Job.id == job_id))
    return True


def _large(session: Session, job_id: str, most: int) -> Iterator[tuple[Table, list[int]]]:
    for model in _LARGE:
        table = model.__table__
        assert isinstance(table, Table)
        query = select(table.c.id).where(table.c.job_id == job_id).limit(most)
        if ids := list(session.scalars(query)):
            yield table, ids
    table = Observation.__table__
    assert isinstance(table, Table)
    mine = table.c.job_id == job_id, table.c.kind.in_(_OF_JOBS)
    if ids := list(session.scalars(select(table.c.id).where(*mine).limit(most))):
        yield table, ids


def _references(table: Table) -> Iterator[tuple[Column[Any], str]]:
    """Its columns that refer to another table, and that table's name."""
    for key in table.foreign_keys:
        yield key.parent, key.column.table.name
