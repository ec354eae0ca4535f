"""The summary of each job, from which lists are made; nobody else writes the table.

What it guarantees: at every commit the row says what `figures` would say of the job's attempts and
VMs. For that `Database.begin` calls `keep` before each commit, with the jobs of which
`store/changes` saw a change; nobody who writes an attempt or a VM has to think of it.

What changes with every sync is left out of it (last step, step time, the newest metrics): a list
reads those by one join from the rows of `ran_id`, which the sync writes anyway, so that a sync has
no further row to update. What each of the two costs was not measured.

Numbers of saves are counted on and not counted again: a job may have tens of thousands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from spothop.wire import AttemptState
from spothop_master.store import changes, figures
from spothop_master.store.schema import Attempt, Checkpoint, Place, Summary, VmRow
from spothop_master.store.vms import pool_of

IN_ONE_QUERY = 200
"""Jobs."""


def keep(session: Session) -> None:
    """Bring the summaries in line with what this transaction has changed."""
    session.flush()
    saved: dict[str, Counter[str]] = defaultdict(Counter)
    for job_id, kind in changes.new_saves(session):
        saved[job_id][kind] += 1
    figured = changes.figured_jobs(session)
    for ids in _portions(sorted(figured | saved.keys())):
        rows = _rows(session, ids)
        if not figured.isdisjoint(ids):
            _refresh(session, {job: row for job, row in rows.items() if job in figured})
        for job_id, row in rows.items():
            if job_id in saved:
                row.saves = dict(Counter(row.saves) + saved[job_id])


def fill(session: Session, *, limit: int = IN_ONE_QUERY) -> int:
    """Write the missing summaries of at most so many jobs; how many it wrote. For the rows of a
    release before there were any."""
    known = select(Summary.job_id).where(Summary.job_id == Attempt.job_id).exists()
    query = select(Attempt.job_id).where(~known).distinct().limit(limit)
    rows = _rows(session, list(session.scalars(query)))
    _refresh(session, rows)
    counted = (
        select(Checkpoint.job_id, Checkpoint.kind, func.count())
        .where(Checkpoint.job_id.in_(rows))
        .group_by(Checkpoint.job_id, Checkpoint.kind)
    )
    for job_id, kind, count in session.execute(counted):
        rows[job_id].saves = {**rows[job_id].saves, kind: count}
    return len(rows)


def _portions(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[first : first + IN_ONE_QUERY] for first in range(0, len(ids), IN_ONE_QUERY))


def _rows(session: Session, ids: Sequence[str]) -> dict[str, Summary]:
    """Of each of these jobs, new where there was none."""
    found = {
        row.job_id: row for row in session.scalars(select(Summary).where(Summary.job_id.in_(ids)))
    }
    for job_id in ids:
        if job_id not in found:
            found[job_id] = Summary(job_id=job_id, saves={}, metrics={})
            session.add(found[job_id])
    return found


def _refresh(session: Session, rows: dict[str, Summary]) -> None:
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    query = select(Attempt).where(Attempt.job_id.in_(rows)).order_by(Attempt.number)
    for attempt in session.scalars(query):
        attempts[attempt.job_id].append(attempt)
    vms: dict[str, list[VmRow]] = defaultdict(list)
    placed = select(Place.vm_id).join(Attempt).where(Attempt.job_id.in_(rows))
    matters = or_(VmRow.running_at.is_not(None), VmRow.id.in_(placed))
    for vm in session.scalars(select(VmRow).where(VmRow.job_id.in_(rows), matters)):
        vms[vm.job_id or ""].append(vm)
    for job_id, row in rows.items():
        _write(row, attempts[job_id], vms[job_id])


def _write(row: Summary, attempts: Sequence[Attempt], vms: Sequence[VmRow]) -> None:
    current, account = figures.current_attempt(attempts), figures.account(attempts, vms)
    vm = next((vm for vm in vms if current is not None and vm.id == current.leader.vm_id), None)
    row.attempt = current.number if current else 0
    row.vm_id = vm.id if vm else None
    row.pool = pool_of(vm).model_dump(mode="json") if vm else None
    row.starting = figures.is_starting(attempts[-1] if attempts else None)
    row.unprotected = unprotected(current)
    row.preemptions = figures.preemptions(attempts)
    row.ran_id = account.ran.id if account.ran else None
    row.metrics = figures.newest_metrics([a for a in attempts if a is not account.ran])
    row.cost, row.cost_at, row.rate = account.settled, account.settled_at, account.rate
    row.useful, row.start = account.useful, account.start
    row.ran_rate, row.any_spot = account.ran_rate, account.any_spot


def unprotected(attempt: Attempt | None) -> dict[str, object] | None:
    """Of the first place that lacks something, while the attempt lives."""
    if attempt is None or attempt.state == AttemptState.ENDED.value:
        return None
    return next((place.unprotected for place in attempt.places if place.unprotected), None)
