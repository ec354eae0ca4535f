"""Committed checkpoints of many VMs, written in the transaction of their progress (`progress`).

The same as `reports` writes of each, by one statement a table: the copy of the chain, what it
measured, the event, budgets that begin anew, and the job's insurance, which every save moves on.
One that the database has already is refused by its constraints; then the whole transaction is, and
`progress` finds out which one it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, insert, or_, update
from sqlalchemy.orm import Session

from spothop.wire import CommittedReport
from spothop_master.agents import reports
from spothop_master.store import changes, observations, transitions
from spothop_master.store.schema import Attempt, Checkpoint, Job

_ATTEMPTS = (
    update(Attempt)
    .where(Attempt.id == bindparam("row"))
    .values(
        save_s=func.coalesce(bindparam("saved_s"), Attempt.save_s), backup_s=bindparam("beta_s")
    )
)


@dataclass(frozen=True, kw_only=True)
class Save:
    """One report."""

    facts: Any
    """Of the VM and its attempt: a row of `progress`."""
    report: CommittedReport
    at: datetime


def write(session: Session, saves: Sequence[Save]) -> None:
    """In the order in which they were reported."""
    connection = session.connection()
    connection.execute(insert(Checkpoint), [_checkpoint(save) for save in saves])
    observations.add_saves(session, [row for save in saves for row in _observed(save)])
    connection.execute(_ATTEMPTS, [_times(save) for save in saves])
    jobs = sorted({save.facts.job_id for save in saves})
    failed = or_(Job.user_failures > 0, Job.infrastructure_failures > 0)
    connection.execute(
        update(Job)
        .where(Job.id.in_(jobs), failed)
        .values(user_failures=0, infrastructure_failures=0)
    )
    transitions.record_all(session, [_event(save) for save in saves])
    changes.tell_saves(session, [(save.facts.job_id, save.report.save.value) for save in saves])
    changes.tell_jobs(session, jobs)


def _checkpoint(save: Save) -> dict[str, Any]:
    return reports.checkpoint_values(
        save.report, job_id=save.facts.job_id, attempt=save.facts.number, at=save.at
    )


def _observed(save: Save) -> list[dict[str, Any]]:
    facts = save.facts
    common = {
        "cloud": facts.cloud,
        "region": facts.region,
        "zone": facts.zone,
        "vm_type": facts.vm_type,
        "spot": facts.spot,
        "evidence": "",
        "job_id": facts.job_id,
        "vm_id": facts.vm,
        "attempt": facts.number,
        "n": save.report.n,
        "at": save.at,
    }
    return [
        {**common, "kind": kind, "value": value, "censored": censored}
        for kind, value, censored in reports.measured(save.report)
    ]


def _times(save: Save) -> dict[str, Any]:
    report = save.report
    known = report.delta_s > 0 and report.delta_exact
    return {
        "row": save.facts.attempt,
        "saved_s": report.delta_s if known else None,
        "beta_s": report.beta_s,
    }


def _event(save: Save) -> dict[str, Any]:
    text, data = reports.committed_event(save.report)
    facts = save.facts
    return {
        "at": save.at,
        "job_id": facts.job_id,
        "vm_id": facts.vm,
        "attempt": facts.number,
        "kind": "committed",
        "text": text,
        "data": data,
    }
