"""Measured figures: each is written in the transaction of the event that it measures.

They are read in `zone_observations.py`. Durations are seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Protocol

from sqlalchemy import Connection, case, event, insert, select
from sqlalchemy.orm import Session

from spothop.wire import Pool, SaveKind
from spothop_master.store import dialects
from spothop_master.store.schema import (
    REGION,
    SUMMED_BY_JOB,
    SUMMED_BY_ZONE,
    Attempt,
    Checkpoint,
    JobSum,
    Observation,
    Place,
    VmRow,
    ZoneSum,
)


class Priors(Protocol):
    """What is assumed where nothing was measured yet; seconds. `MasterSettings` is one."""

    @property
    def prior_mttp_s(self) -> float: ...
    @property
    def prior_mttp_local_s(self) -> float: ...
    @property
    def prior_mttp_on_demand_s(self) -> float: ...
    @property
    def prior_mttp_pools(self) -> Mapping[str, float]: ...
    @property
    def mttp_half_life_s(self) -> float: ...
    @property
    def prior_restart_s(self) -> float: ...
    @property
    def prior_save_s(self) -> float: ...
    @property
    def prior_backup_s(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class StatedPriors:
    """The defaults of the settings."""

    prior_mttp_s: float = 10800
    prior_mttp_local_s: float = 20
    """Of the local cloud, whose preemptions are there to try things out."""
    prior_mttp_on_demand_s: float = 2_592_000
    """30 days: on-demand VMs are not preempted, but their hosts fail."""
    prior_mttp_pools: Mapping[str, float] = field(default_factory=dict)
    mttp_half_life_s: float = 86_400
    prior_restart_s: float = 120
    prior_save_s: float = 1
    prior_backup_s: float = 2


STATED: Priors = StatedPriors()


def prior_mttp_s(pool: Pool, priors: Priors) -> float:
    """The first pattern that matches the pool's name (`aws/us-east-1a/p3.2xlarge/spot`) counts."""
    for pattern, mttp_s in priors.prior_mttp_pools.items():
        if fnmatchcase(str(pool), pattern):
            return mttp_s
    if not pool.spot:
        return priors.prior_mttp_on_demand_s
    return priors.prior_mttp_local_s if pool.cloud == "local" else priors.prior_mttp_s


def add(
    session: Session,
    vm: VmRow,
    kind: str,
    value: float,
    *,
    now: datetime,
    attempt: int = 0,
    n: int = 0,
    censored: bool = False,
    evidence: str = "",
) -> None:
    """One figure of the VM's pool; a second one with the same key changes nothing."""
    known = select(Observation.id).where(
        Observation.kind == kind,
        Observation.vm_id == vm.id,
        Observation.attempt == attempt,
        Observation.n == n,
    )
    if session.scalar(known) is not None:
        return
    row = Observation(
        kind=kind,
        cloud=vm.cloud,
        region=vm.region,
        zone=vm.zone,
        vm_type=vm.vm_type,
        spot=vm.spot,
        value=value,
        censored=censored,
        evidence=evidence,
        job_id=vm.job_id,
        vm_id=vm.id,
        attempt=attempt,
        n=n,
        at=now,
    )
    session.add(row)
    session.flush()


def add_saves(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """What saves and backups took (`SUMMED_BY_JOB`): columns of observations that are new, and
    their sums, in a statement for each. Raises IntegrityError for one that is not new."""
    sums: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for row in rows:
        sums[row["job_id"], row["kind"], row["censored"]].append(row["value"])
    connection = session.connection()
    connection.execute(insert(Observation), [*rows])
    statement = dialects.insert(connection, JobSum)
    later = {
        "count": JobSum.count + statement.excluded.count,
        "total": JobSum.total + statement.excluded.total,
    }
    connection.execute(
        statement.on_conflict_do_update(index_elements=["job_id", "kind", "censored"], set_=later),
        [
            {
                "job_id": job_id,
                "kind": kind,
                "censored": censored,
                "count": len(values),
                "total": sum(values),
            }
            for (job_id, kind, censored), values in sorted(sums.items())
        ],
    )


@event.listens_for(Observation, "after_insert")
def _sum_up(_mapper: object, connection: Connection, row: Observation) -> None:
    """In the transaction of the observation, so that sums and rows agree, whoever wrote it."""
    if row.kind in SUMMED_BY_ZONE:
        key = {
            name: getattr(row, name) for name in (*REGION, "zone", "kind", "censored", "evidence")
        }
        newest_at = case((ZoneSum.newest_at < row.at, row.at), else_=ZoneSum.newest_at)
        _add_to(connection, ZoneSum, key, row, newest_at=(row.at, newest_at))
    elif row.kind in SUMMED_BY_JOB and row.job_id is not None:
        _add_to(
            connection,
            JobSum,
            {name: getattr(row, name) for name in ("job_id", "kind", "censored")},
            row,
        )


def _add_to(
    connection: Connection,
    model: type[ZoneSum] | type[JobSum],
    key: Mapping[str, object],
    row: Observation,
    **more: tuple[object, object],
) -> None:
    """One statement: on PostgreSQL another transaction may make the same row at the same moment.
    `more`: a column's first value, and its later one."""
    first = {
        **key,
        "count": 1,
        "total": row.value,
        **{name: each[0] for name, each in more.items()},
    }
    later = {
        "count": model.count + 1,
        "total": model.total + row.value,
        **{name: each[1] for name, each in more.items()},
    }
    statement = dialects.insert(connection, model).values(first)
    connection.execute(statement.on_conflict_do_update(index_elements=[*key], set_=later))


def preparation(session: Session, vm: VmRow, *, now: datetime) -> None:
    """From running to the first step of the VM's first attempt, less the wait for the fence."""
    first = session.scalar(
        select(Place)
        .join(Attempt, Attempt.id == Place.attempt_id)
        .where(Place.vm_id == vm.id)
        .order_by(Attempt.number)
        .limit(1)
    )
    if first is None or first.first_step_at is None or vm.running_at is None:
        return
    took = (first.first_step_at - vm.running_at).total_seconds()
    fenced_at = first.attempt.fenced_at
    if fenced_at is not None and first.prepared_at is not None:
        took -= max(0.0, (fenced_at - first.prepared_at).total_seconds())
    add(session, vm, "preparation", max(0.0, took), attempt=first.attempt.number, now=now)


def saved_since_notice(session: Session, attempt: Attempt) -> bool:
    """Its emergency save is committed.

    Other saves do not count: one that was on its way when the notice came is followed by a better
    one. (A save of the user that answers the emergency's request is of the kind `emergency`.)
    """
    saved = select(Checkpoint.id).where(
        Checkpoint.job_id == attempt.job_id,
        Checkpoint.attempt == attempt.number,
        Checkpoint.kind == SaveKind.EMERGENCY.value,
    )
    return session.scalar(saved.limit(1)) is not None


def emergency(session: Session, vm: VmRow, place: Place, *, now: datetime) -> None:
    """Of a VM that was taken from an attempt while it trained: 1 when the emergency save became
    durable, 0 when not, or no notice came.

    Censored where that save was not to fit anyway: then it says something of the job and nothing of
    the pool's notices, and the policy reckons with the job's figures by itself.
    """
    attempt = place.attempt
    noticed = place.notice_at is not None
    kept = noticed and saved_since_notice(session, attempt)
    add(
        session,
        vm,
        "emergency",
        1.0 if kept else 0.0,
        attempt=attempt.number,
        now=now,
        censored=not _was_to_fit(vm, attempt),
        evidence="notice" if noticed else "no_notice",
    )


def _was_to_fit(vm: VmRow, attempt: Attempt) -> bool:
    """Within the grace period that the pool promises, as `policy.fit_share` reckons: a notice that
    came later than promised is the pool's fault, and counts. In doubt it was to fit: a lost notice
    is then not overlooked."""
    figures = (attempt.step_s or 0.0, attempt.save_s or 0.0, attempt.backup_s or 0.0)
    return sum(figures) < vm.grace_s
