"""Lists of jobs: pages of light views, and how many there are in each state.

A page costs a fixed number of queries, whatever its jobs went through: the keys (one query, or two
where what ended long ago is left out), the rows, and the numbers by state. Everything in a view
comes from the job's row, its summary (`summaries`) and the newest figures of one attempt; they are
the same as those of `job_views`, which a test walks through random lives to prove.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlalchemy.orm import Session

from spothop.wire import JobState, JobView
from spothop_master.store import job_views
from spothop_master.store.keyset import Cursor, Key, Page, beyond, order, page
from spothop_master.store.lookup import visible_to
from spothop_master.store.schema import Attempt, Job, Place, Summary, User

_STEP = (
    select(func.max(Place.last_step)).where(Place.attempt_id == Summary.ran_id).scalar_subquery()
)
_COLUMNS = (Job, User.name, Summary, Attempt.restored_step, Attempt.step_s, Attempt.metrics, _STEP)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which jobs a list is of; None takes all."""

    owner_id: int | None = None
    """What the asker may see."""
    owner: str | None = None
    """A user's name."""
    state: str | None = None
    prefix: str = ""
    """Of the name."""
    ended_since: datetime | None = None
    """Without those that ended before."""

    def conditions(self, *, any_state: bool = False) -> list[ColumnElement[bool]]:
        """But for `ended_since`, see `parts`."""
        found = visible_to(self.owner_id)
        if self.owner is not None:
            mine = select(User.id).where(User.name == self.owner).scalar_subquery()
            found.append(Job.owner_id == mine)
        if self.state is not None and not any_state:
            found.append(Job.state == self.state)
        if self.prefix:
            same = func.substr(Job.name, 1, len(self.prefix)) == self.prefix
            found += [Job.name >= self.prefix, same]  # the first one may use the index
        return found

    def parts(self) -> list[list[ColumnElement[bool]]]:
        """Their union is what is wanted, and each has its index. In one condition with OR, the jobs
        of years would be walked through for the few that have not ended."""
        if self.ended_since is None:
            return [[]]
        return [[Job.ended_at.is_(None)], [Job.ended_at >= self.ended_since]]


@dataclass(frozen=True, kw_only=True)
class Listing:
    page: Page[JobView]
    counts: dict[JobState, int]
    """In every state, whichever is asked for."""
    total: int
    """In the state that is asked for."""


def job_page(
    session: Session,
    wanted: Wanted,
    *,
    now: datetime,
    storage_url: str,
    cursor: Cursor | None = None,
    limit: int,
) -> Listing:
    """Newest first; `storage_url` where a job names none."""
    counts = _counts(session, wanted)
    found = page(_keys(session, wanted, cursor, limit + 1), _same, cursor=cursor, limit=limit)
    by_id = {
        row[0].id: row
        for row in session.execute(_rows().where(Job.id.in_([key.id for key in found.items])))
    }
    views = [
        _view(by_id[key.id], now=now, storage_url=storage_url)
        for key in found.items
        if key.id in by_id
    ]
    return Listing(
        page=Page(items=views, next=found.next, previous=found.previous),
        counts=counts,
        total=sum(n for state, n in counts.items() if wanted.state in (None, state.value)),
    )


def job_view(session: Session, job_id: str, *, now: datetime, storage_url: str) -> JobView:
    row = session.execute(_rows().where(Job.id == job_id)).one()
    return _view(row, now=now, storage_url=storage_url)


def ids_of(
    session: Session, wanted: Wanted, also: Sequence[ColumnElement[bool]], *, limit: int
) -> list[str]:
    """Of those that are wanted, the newest of which `also` holds."""
    query = select(Job.id).where(*wanted.conditions(), *also)
    newest = query.order_by(Job.submitted_at.desc(), Job.id.desc()).limit(limit)
    return list(session.scalars(newest))


def count_of(session: Session, wanted: Wanted, also: Sequence[ColumnElement[bool]]) -> int:
    """Of those that `ids_of` finds."""
    return session.scalar(select(func.count(Job.id)).where(*wanted.conditions(), *also)) or 0


def seen_of(view: JobView) -> str:
    """The same for two views that say the same, but for what grows with time alone."""
    said = view.model_dump_json(exclude={"cost", "on_demand_cost"})
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _keys(session: Session, wanted: Wanted, cursor: Cursor | None, limit: int) -> list[Key]:
    found: list[Key] = []
    for part in wanted.parts():
        query = (
            select(Job.submitted_at, Job.id)
            .where(*wanted.conditions(), *part, *beyond(cursor, Job.submitted_at, Job.id))
            .order_by(*order(cursor, Job.submitted_at, Job.id))
            .limit(limit)
        )
        found += [Key(row[0], row[1]) for row in session.execute(query)]
    back = cursor is not None and cursor.back
    return sorted(found, reverse=not back)[:limit]


def _same(key: Key) -> Key:
    return key


def _rows() -> Select[Any]:
    return (
        select(*_COLUMNS)
        .join(User, User.id == Job.owner_id)
        .outerjoin(Summary, Summary.job_id == Job.id)
        .outerjoin(Attempt, Attempt.id == Summary.ran_id)
    )


def _counts(session: Session, wanted: Wanted) -> dict[JobState, int]:
    found: dict[JobState, int] = {}
    for part in wanted.parts():
        # the bare column would have the jobs of years walked through in the order of their states
        state_of = func.coalesce(Job.state, "") if part else Job.state
        query = select(state_of, func.count()).where(*wanted.conditions(any_state=True), *part)
        for state, count in session.execute(query.group_by(state_of)):
            found[JobState(state)] = found.get(JobState(state), 0) + count
    return found


def _view(row: Row[Any], *, now: datetime, storage_url: str) -> JobView:
    job, owner, summary, restored, step_s, metrics, last = tuple(row)
    summary = summary or _NOTHING
    known = [step for step in (last, restored) if step is not None]
    step = max(known, default=None)
    return JobView.model_validate(
        {
            **job_views.own_fields(job, owner, storage_url),
            "starting": job.state == JobState.PREPARING.value and summary.starting,
            "attempt": summary.attempt,
            "vm": summary.vm_id,
            "pool": summary.pool,
            "step": step,
            "metrics": {**summary.metrics, **(metrics or {})},
            "preemptions": summary.preemptions,
            "saves": summary.saves,
            "cost": _cost(summary, now),
            "on_demand_cost": _on_demand(summary, restored or 0, last, step_s or 0.0),
            "unprotected": job_views.unprotected_view(summary.unprotected)
            if job.ended_at is None
            else None,
        }
    )


_NOTHING = Summary(
    attempt=0,
    starting=False,
    preemptions=0,
    saves={},
    metrics={},
    cost=0.0,
    rate=0.0,
    useful=0.0,
    start=0.0,
    ran_rate=0.0,
    any_spot=False,
)
"""Of a job that never had an attempt."""


def _cost(summary: Summary, now: datetime) -> float:
    """USD so far."""
    if summary.cost_at is None:
        return summary.cost
    return summary.cost + summary.rate * max(0.0, (now - summary.cost_at).total_seconds()) / 3600


def _on_demand(summary: Summary, begin: int, last: int | None, step_s: float) -> float | None:
    """As `figures.bill` says it: the newest attempt's steps are all useful so far."""
    newest = max(0, (begin if last is None else last) - begin)
    useful = summary.useful + newest * step_s * summary.ran_rate
    return useful + summary.start if useful > 0 and summary.any_spot else None
