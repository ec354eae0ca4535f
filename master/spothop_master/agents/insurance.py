"""The insurance of jobs, from their rows: loads the facts, asks `core.insurance`, writes it down.

`directive` is asked at every sync that no memory answers, so that what other jobs measured reaches
a running one. With reports that are written by themselves, or when it is quite another one
(`is_noted`), `refresh` writes the same answer into the job's row and, when it changed materially,
into its events. `decisions` decides about many jobs at once, in as many queries as about one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session, aliased

from spothop.jobspec import CheckpointSpec, JobSpec
from spothop.policy import InsuranceDecision
from spothop.policy.periodic import KEPT as OWN_SAVES
from spothop.wire import Insurance, PolicyParams, Pool, SaveKind
from spothop_master.core import insurance
from spothop_master.core.insurance import InsuranceFacts
from spothop_master.store import changes, policy_inputs, transitions
from spothop_master.store.schema import Attempt, Checkpoint, Event, Job, VmRow
from spothop_master.store.statistics import Statistics
from spothop_master.store.vms import pool_of

_saved = aliased(Checkpoint)
_newest_saved = (
    select(_saved.id)
    .where(_saved.job_id == Attempt.job_id, _saved.attempt == Attempt.number)
    .order_by(_saved.n.desc())
    .limit(1)
    .correlate(Attempt)
    .scalar_subquery()
)
_NEWEST_SAVED = (
    select(Attempt.id, Checkpoint.step, Checkpoint.committed_at)
    .join(Checkpoint, Checkpoint.id == _newest_saved)
    .where(Attempt.id.in_(bindparam("attempts", expanding=True)))
)

_own = aliased(Checkpoint)
_oldest_own = (
    select(_own.n)
    .where(_own.job_id == Job.id, _own.kind == SaveKind.PERIODIC.value)
    .order_by(_own.n.desc())
    .limit(1)
    .offset(OWN_SAVES - 1)
    .correlate(Job)
    .scalar_subquery()
)
_OWN_SAVES = (
    select(Checkpoint.job_id, Checkpoint.step)
    .select_from(Job)
    .join(Checkpoint, Checkpoint.job_id == Job.id)
    .where(
        Job.id.in_(bindparam("jobs", expanding=True)),
        Checkpoint.kind == SaveKind.PERIODIC.value,
        Checkpoint.n >= func.coalesce(_oldest_own, 0),
    )
    .order_by(Checkpoint.n.desc())
)

_INSURANCES = update(Job).where(Job.id == bindparam("job")).values(insurance=bindparam("new"))

_told = aliased(Event)
_last_event = (
    select(_told.id)
    .where(_told.job_id == Job.id, _told.kind == "insurance")
    .order_by(_told.id.desc())
    .limit(1)
    .correlate(Job)
    .scalar_subquery()
)
_LAST_EVENTS = (
    select(Event.job_id, Event.data)
    .select_from(Job)
    .join(Event, Event.id == _last_event)
    .where(Job.id.in_(bindparam("jobs", expanding=True)))
)


@dataclass(frozen=True, kw_only=True)
class Insured:
    """One attempt of a job on one of its VMs."""

    job: str
    spec: CheckpointSpec
    pool: Pool
    grace_s: float
    running_at: datetime | None
    """Of the VM."""
    attempt: int | None
    """The row's id; None: an attempt that is only to begin."""
    restored_step: int | None = None
    started_at: datetime | None = None


@lru_cache(maxsize=1024)
def _read_spec(text: str) -> CheckpointSpec:
    spec = {} if text == "null" else {"checkpoint": json.loads(text)}
    return JobSpec.of_accepted({"name": "any", "run": "any", **spec}).checkpoint


def checkpoint_spec(spec: Mapping[str, Any]) -> CheckpointSpec:
    """Of a job's accepted file. Many jobs say the same, which is read once."""
    return _read_spec(json.dumps(spec.get("checkpoint"), sort_keys=True))


def _insured(session: Session, vm: VmRow, attempt: Attempt) -> tuple[Job, Insured]:
    job = session.get_one(Job, attempt.job_id)
    session.flush()  # the queries see rows
    return job, Insured(
        job=job.id,
        spec=checkpoint_spec(job.spec),
        pool=pool_of(vm),
        grace_s=vm.grace_s,
        running_at=vm.running_at,
        attempt=attempt.id,
        restored_step=attempt.restored_step,
        started_at=attempt.started_at,
    )


def directive(
    session: Session, vm: VmRow, attempt: Attempt, statistics: Statistics, *, now: datetime
) -> Insurance | None:
    """None: no insurance save, now or ever, or the first step time is not known yet."""
    _, insured = _insured(session, vm, attempt)
    return insurance.directive(decisions(session, [insured], statistics, now=now)[0])


def refresh(
    session: Session, vm: VmRow, attempt: Attempt, statistics: Statistics, *, now: datetime
) -> Insurance | None:
    """The same, noted in the job and, where it changed materially, in its events."""
    job, insured = _insured(session, vm, attempt)
    decision = decisions(session, [insured], statistics, now=now)[0]
    new = insurance.directive(decision)
    data = _data(new)
    if data == job.insurance and data is not None:
        return new
    job.insurance = data
    if insurance.is_material(_last_tau_s(session, job), new):
        transitions.record(
            session,
            "insurance",
            _text(decision, new),
            now=now,
            row=job,
            attempt=attempt.number,
            data=data or {},
        )
    return new


@dataclass(frozen=True, kw_only=True)
class Noted:
    """What was decided about one job."""

    job: str
    attempt: int
    """Its number."""
    told: Mapping[str, Any] | None
    """What the job's row says."""
    decision: InsuranceDecision


def note_all(session: Session, decided: Sequence[Noted], *, now: datetime) -> None:
    """`refresh` of many jobs whose decisions are made: their rows and events, by statements."""
    changed = [(each, insurance.directive(each.decision)) for each in decided]
    changed = [(each, new) for each, new in changed if new is None or _data(new) != each.told]
    if not changed:
        return
    rows = [{"job": each.job, "new": _data(new)} for each, new in changed]
    session.connection().execute(_INSURANCES, rows)
    changes.tell_progress(session, [each.job for each, _ in changed])
    found = session.execute(_LAST_EVENTS, {"jobs": [each.job for each, _ in changed]})
    last = {row.job_id: _tau_in(row.data) for row in found}
    events = [
        {
            "at": now,
            "job_id": each.job,
            "vm_id": None,
            "attempt": each.attempt,
            "kind": "insurance",
            "text": _text(each.decision, new),
            "data": _data(new) or {},
        }
        for each, new in changed
        if insurance.is_material(last.get(each.job), new)
    ]
    if events:
        transitions.record_all(session, events)


def _data(new: Insurance | None) -> dict[str, Any] | None:
    return new.model_dump(mode="json") if new else None


def _text(decision: InsuranceDecision, new: Insurance | None) -> str:
    text = f"next insurance save at step {new.at_step}: " if new else "no insurance saves: "
    return text + decision.reason


def is_noted(told: Mapping[str, Any] | None, new: Insurance | None) -> bool:
    """Whether the job's row (`told`) says about the same. If so, `refresh` can wait for the next
    report that is written by itself, such as a commit; the row does not follow meanwhile, so that a
    slow drift is noticed, too."""
    last_tau_s = float(told["tau_s"]) if told else insurance.NO_SAVES
    return not insurance.is_material(last_tau_s, new)


def first_params(
    session: Session, vm: VmRow, job: Job, statistics: Statistics, *, now: datetime
) -> PolicyParams:
    """What the agent of a new attempt begins with."""
    insured = Insured(
        job=job.id,
        spec=checkpoint_spec(job.spec),
        pool=pool_of(vm),
        grace_s=vm.grace_s,
        running_at=vm.running_at,
        attempt=None,
    )
    session.flush()
    facts = _facts(session, [insured], statistics, now)[0]
    before_s = insured.spec.release_before.total_seconds()
    return insurance.params(facts).model_copy(update={"release_before_s": before_s})


def decisions(
    session: Session, insured: Sequence[Insured], statistics: Statistics, *, now: datetime
) -> list[InsuranceDecision]:
    """Of each, from the rows as they are in the database."""
    return [insurance.decide(facts) for facts in _facts(session, insured, statistics, now)]


def _facts(
    session: Session, insured: Sequence[Insured], statistics: Statistics, now: datetime
) -> list[InsuranceFacts]:
    asked = [
        policy_inputs.Asked(
            pool=one.pool, job=one.job, policy=one.spec.policy_name, grace_s=one.grace_s
        )
        for one in insured
    ]
    inputs = policy_inputs.read_all(session, asked, statistics, now=now)
    saved = _newest_saves(session, insured)
    own = _own_saves(session, insured)
    found = []
    for one, measured in zip(insured, inputs, strict=True):
        step, at = _began(one, saved)
        interval_s = one.spec.min_interval.total_seconds()
        found.append(
            InsuranceFacts(
                policy=one.spec.policy_name,
                measures=replace(measured.measures, min_interval_s=interval_s),
                hazard=measured.hazard,
                saves_measured=measured.saves_measured,
                step=step,
                age_s=_age_s(one.running_at, at or now),
                own_saves=tuple(own[one.job]),
            )
        )
    return found


def _began(
    insured: Insured, saved: Mapping[int, tuple[int, datetime]]
) -> tuple[int, datetime | None]:
    """Where and when the interval begins: every save begins a new one, and so does a restore."""
    restored = insured.restored_step or 0
    if insured.attempt is None or insured.attempt not in saved:
        return restored, insured.started_at
    step, at = saved[insured.attempt]
    return max(step, restored), at


def _newest_saves(session: Session, insured: Sequence[Insured]) -> dict[int, tuple[int, datetime]]:
    attempts = sorted({one.attempt for one in insured if one.attempt is not None})
    if not attempts:
        return {}
    rows = session.execute(_NEWEST_SAVED, {"attempts": attempts})
    return {attempt: (step, at) for attempt, step, at in rows}


def _own_saves(session: Session, insured: Sequence[Insured]) -> defaultdict[str, list[int]]:
    """The newest steps at which each script saved by itself, over all attempts."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    jobs = sorted({one.job for one in insured if one.spec.policy_name == "notice-aware"})
    if jobs:
        for job_id, step in session.execute(_OWN_SAVES, {"jobs": jobs}):
            found[job_id].append(step)
    return found


def _age_s(running_at: datetime | None, at: datetime) -> float:
    """Of the VM at that moment; 0 before it ran."""
    return max(0.0, (at - running_at).total_seconds()) if running_at is not None else 0.0


def _last_tau_s(session: Session, job: Job) -> float | None:
    """As `insurance.is_material` takes it."""
    data = session.scalar(
        select(Event.data)
        .where(Event.job_id == job.id, Event.kind == "insurance")
        .order_by(Event.id.desc())
        .limit(1)
    )
    return None if data is None else _tau_in(data)


def _tau_in(data: Mapping[str, Any]) -> float:
    return float(data.get("tau_s", insurance.NO_SAVES))
