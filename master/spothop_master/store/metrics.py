"""What training scripts logged: the curve of one metric."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from spothop_master.store.schema import Metric

MAX_NAMES = 1_000
"""Of one job: each list of jobs shows the newest value of every name."""


def names(session: Session, job_id: str) -> list[str]:
    """The first `MAX_NAMES` by name. One look into the index for each: a job has few names, and as
    many rows as steps (a loose index scan, as the wiki of PostgreSQL has it)."""
    first = select(func.min(Metric.name).label("name")).where(Metric.job_id == job_id)
    found = first.cte("names", recursive=True)
    following = (
        select(func.min(Metric.name))
        .where(Metric.job_id == job_id, Metric.name > found.c.name)
        .scalar_subquery()
    )
    found = found.union_all(select(following).where(found.c.name.is_not(None)))
    query = select(found.c.name).where(found.c.name.is_not(None)).limit(MAX_NAMES)
    return list(session.scalars(query))


def metric_series(
    session: Session, job_id: str, name: str, *, points: int = 400
) -> list[tuple[int, float]]:
    """(step, value) in order of steps, thinned evenly to about `points`; a step computed again
    counts once, with its newest value."""
    newest = (
        select(func.max(Metric.id).label("id"))
        .where(Metric.job_id == job_id, Metric.name == name)
        .group_by(Metric.step)
        .subquery()
    )
    rows = session.execute(
        select(Metric.step, Metric.value)
        .join(newest, newest.c.id == Metric.id)
        .order_by(Metric.step)
    ).all()
    stride = max(1, -(-len(rows) // points))
    kept = [(row[0], row[1]) for row in rows[::stride]]
    if rows and kept[-1][0] != rows[-1][0]:
        kept.append((rows[-1][0], rows[-1][1]))
    return kept
