"""What training scripts logged: the curve of one metric."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, literal, select
from sqlalchemy.orm import Session

from spothop_master.store.schema import Job, Metric

MAX_NAMES = 1_000
"""Of one job: each list of jobs shows the newest value of every name."""


def names(session: Session, job_ids: Sequence[str]) -> dict[str, list[str]]:
    """The first `MAX_NAMES` of each of these jobs, by name. One look into the index for each: a job
    has few names, and as many rows as steps (a loose index scan, as the wiki of PostgreSQL has
    it)."""
    first = select(func.min(Metric.name)).where(Metric.job_id == Job.id).scalar_subquery()
    found = (
        select(Job.id, first.label("name"), literal(1).label("count"))
        .where(Job.id.in_(job_ids))
        .cte("names", recursive=True)
    )
    following = (
        select(func.min(Metric.name))
        .where(Metric.job_id == found.c.id, Metric.name > found.c.name)
        .scalar_subquery()
    )
    more = select(found.c.id, following, found.c.count + 1)
    found = found.union_all(more.where(found.c.name.is_not(None), found.c.count < MAX_NAMES))
    query = select(found.c.id, found.c.name).where(found.c.name.is_not(None))
    by_job: dict[str, list[str]] = {job_id: [] for job_id in job_ids}
    for job_id, name in session.execute(query):
        by_job[job_id].append(name)
    return by_job


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
