"""The insurance of a job, from its rows: loads the facts, asks `core.insurance`, writes it down.

`directive` is asked at every sync that no memory answers, so that what other jobs measured reaches
a running one. With reports that are written by themselves, or when it is quite another one
(`is_noted`), `refresh` writes the same answer into the job's row and, when it changed materially,
into its events.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.policy.periodic import KEPT as OWN_SAVES
from spothop.wire import Insurance, PolicyParams, SaveKind
from spothop_master.core import insurance
from spothop_master.core.insurance import InsuranceFacts
from spothop_master.store import policy_inputs, transitions
from spothop_master.store.jobs import spec_of
from spothop_master.store.schema import Attempt, Checkpoint, Event, Job, VmRow
from spothop_master.store.statistics import Statistics
from spothop_master.store.vms import pool_of


def directive(
    session: Session, vm: VmRow, attempt: Attempt, statistics: Statistics, *, now: datetime
) -> Insurance | None:
    """None: no insurance save, now or ever, or the first step time is not known yet."""
    job = session.get_one(Job, attempt.job_id)
    return insurance.directive(
        insurance.decide(_facts(session, job, vm, attempt, statistics, now=now))
    )


def refresh(
    session: Session, vm: VmRow, attempt: Attempt, statistics: Statistics, *, now: datetime
) -> Insurance | None:
    """The same, noted in the job and, where it changed materially, in its events."""
    job = session.get_one(Job, attempt.job_id)
    decision = insurance.decide(_facts(session, job, vm, attempt, statistics, now=now))
    new = insurance.directive(decision)
    data = new.model_dump(mode="json") if new else None
    if data == job.insurance and data is not None:
        return new
    job.insurance = data
    if insurance.is_material(_last_tau_s(session, job), new):
        text = f"next insurance save at step {new.at_step}: " if new else "no insurance saves: "
        transitions.record(
            session,
            "insurance",
            text + decision.reason,
            now=now,
            row=job,
            attempt=attempt.number,
            data=data or {},
        )
    return new


def is_noted(session: Session, attempt: Attempt, new: Insurance | None) -> bool:
    """Whether the job's row says about the same. If so, `refresh` can wait for the next report that
    is written by itself, such as a commit; the row does not follow meanwhile, so that a slow drift
    is noticed, too."""
    told = session.get_one(Job, attempt.job_id).insurance
    last_tau_s = float(told["tau_s"]) if told else insurance.NO_SAVES
    return not insurance.is_material(last_tau_s, new)


def first_params(
    session: Session, vm: VmRow, job: Job, statistics: Statistics, *, now: datetime
) -> PolicyParams:
    """What the agent of a new attempt begins with."""
    age_s = _age_s(vm, now)
    facts = _facts_at(session, job, vm, statistics, step=0, age_s=age_s, now=now)
    before = spec_of(job).checkpoint.release_before
    return insurance.params(facts).model_copy(update={"release_before_s": before.total_seconds()})


def _facts(
    session: Session,
    job: Job,
    vm: VmRow,
    attempt: Attempt,
    statistics: Statistics,
    *,
    now: datetime,
) -> InsuranceFacts:
    step, at = _newest_saved(session, attempt)
    age_s = _age_s(vm, at or now)
    return _facts_at(session, job, vm, statistics, step=step, age_s=age_s, now=now)


def _facts_at(
    session: Session,
    job: Job,
    vm: VmRow,
    statistics: Statistics,
    *,
    step: int,
    age_s: float,
    now: datetime,
) -> InsuranceFacts:
    checkpoint = spec_of(job).checkpoint
    policy = checkpoint.policy_name
    inputs = policy_inputs.read(
        session, pool_of(vm), job.id, statistics, policy=policy, now=now, grace_s=vm.grace_s
    )
    return InsuranceFacts(
        policy=policy,
        measures=replace(inputs.measures, min_interval_s=checkpoint.min_interval.total_seconds()),
        hazard=inputs.hazard,
        saves_measured=inputs.saves_measured,
        step=step,
        age_s=age_s,
        own_saves=_own_saves(session, job.id) if policy == "notice-aware" else (),
    )


def _own_saves(session: Session, job_id: str) -> tuple[int, ...]:
    """The newest steps at which the script saved by itself, over all attempts."""
    return tuple(
        session.scalars(
            select(Checkpoint.step)
            .where(Checkpoint.job_id == job_id, Checkpoint.kind == SaveKind.PERIODIC.value)
            .order_by(Checkpoint.n.desc())
            .limit(OWN_SAVES)
        )
    )


def _age_s(vm: VmRow, at: datetime) -> float:
    """Of the VM at that moment; 0 before it ran."""
    return max(0.0, (at - vm.running_at).total_seconds()) if vm.running_at is not None else 0.0


def _newest_saved(session: Session, attempt: Attempt) -> tuple[int, datetime | None]:
    """Where and when the interval begins: every save begins a new one, and so does a restore."""
    saved = session.execute(
        select(Checkpoint.step, Checkpoint.committed_at)
        .where(Checkpoint.job_id == attempt.job_id, Checkpoint.attempt == attempt.number)
        .order_by(Checkpoint.n.desc())
        .limit(1)
    ).first()
    if saved is None:
        return attempt.restored_step or 0, attempt.started_at
    return max(saved.step, attempt.restored_step or 0), saved.committed_at


def _last_tau_s(session: Session, job: Job) -> float | None:
    """As `insurance.is_material` takes it."""
    data = session.scalar(
        select(Event.data)
        .where(Event.job_id == job.id, Event.kind == "insurance")
        .order_by(Event.id.desc())
        .limit(1)
    )
    return None if data is None else float(data.get("tau_s", insurance.NO_SAVES))
