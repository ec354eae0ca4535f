"""Jobs by what a user types: an id, or a name that only one of them has."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from spothop.wire import JOB_ENDED
from spothop_master.store.schema import Job


class NoSuchJob(LookupError):
    """No job of this id or name that the asker may see."""


class AmbiguousName(LookupError):
    """Several jobs have this name."""


def find_job(session: Session, ref: str, *, owner_id: int | None) -> Job:
    """By id, or by a name that only one job (or one unfinished job) has; `owner_id` None sees all.

    Raises `NoSuchJob`, `AmbiguousName`.
    """
    visible = select(Job).where(*visible_to(owner_id))
    exact = session.scalar(visible.where(Job.id == ref))
    if exact is not None:
        return exact
    named = visible.where(Job.name == ref).order_by(Job.submitted_at.desc()).limit(50)
    matches = list(session.scalars(named))
    active = [job for job in matches if job.state not in JOB_ENDED]
    for chosen in (matches, active):
        if len(chosen) == 1:
            return chosen[0]
    if not matches:
        raise NoSuchJob(f"no job {ref!r}")
    ids = ", ".join(sorted(job.id for job in matches)[:5])
    raise AmbiguousName(f"{len(matches)} jobs have the name {ref!r}: {ids}")


def visible_to(owner_id: int | None) -> list[ColumnElement[bool]]:
    return [] if owner_id is None else [Job.owner_id == owner_id]
