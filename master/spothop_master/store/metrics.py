"""What training scripts logged: the curve of one metric, and the newest value of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

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


def newest_metrics(session: Session, ids: Sequence[str]) -> dict[str, dict[str, float]]:
    newest = (
        select(func.max(Metric.id))
        .where(Metric.job_id.in_(ids))
        .group_by(Metric.job_id, Metric.name)
    )
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for job_id, name, value in session.execute(
        select(Metric.job_id, Metric.name, Metric.value).where(Metric.id.in_(newest))
    ):
        # JSON has no NaN; and jobs of releases before may have any number of names
        if math.isfinite(value) and len(values[job_id]) < MAX_NAMES:
            values[job_id][name] = value
    return values
