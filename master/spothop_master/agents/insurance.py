"""The insurance of a job: when the policy wants the next save, from what is known now.

`directive` is asked at every sync, so that what other jobs measured reaches a running one;
`refresh` writes the same answer into the job's row and, when it changed materially, into its
events.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.policy import InsuranceDecision, next_insurance
from spothop.wire import Insurance
from spothop_master.store import policy_inputs, transitions
from spothop_master.store.jobs import spec_of
from spothop_master.store.observations import Priors
from spothop_master.store.policy_inputs import Known
from spothop_master.store.schema import Attempt, Checkpoint, Event, Job, VmRow
from spothop_master.store.vms import pool_of

UNMEASURED = "no save was measured yet"
MATERIAL = 0.25
"""A relative change of tau, against what was last told, that is worth an event."""


def directive(
    session: Session, vm: VmRow, attempt: Attempt, priors: Priors, *, now: datetime
) -> Insurance | None:
    """None: no insurance save, now or ever, or the first step time is not known yet."""
    job = session.get_one(Job, attempt.job_id)
    return _as_sent(_decide(session, job, vm, attempt, priors, now=now))


def refresh(
    session: Session, vm: VmRow, attempt: Attempt, priors: Priors, *, now: datetime
) -> None:
    """After steps and commits of the attempt that trains."""
    job = session.get_one(Job, attempt.job_id)
    decision = _decide(session, job, vm, attempt, priors, now=now)
    new = _as_sent(decision)
    data = new.model_dump(mode="json") if new else None
    if data == job.insurance and data is not None:
        return
    job.insurance = data
    if _material(_last_sent(session, job), new):
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


def of_job(session: Session, vm: VmRow, job: Job, priors: Priors, *, now: datetime) -> Known:
    """What the job's policy is given, on this VM."""
    return policy_inputs.known(
        session,
        pool_of(vm),
        job.id,
        priors,
        policy=policy_of(job),
        now=now,
        grace_s=vm.grace_s,
    )


def policy_of(job: Job) -> str:
    """As `spothop.policy` names it."""
    return spec_of(job).checkpoint.policy_name


def _decide(
    session: Session, job: Job, vm: VmRow, attempt: Attempt, priors: Priors, *, now: datetime
) -> InsuranceDecision:
    step, at = _newest_saved(session, attempt)
    known = of_job(session, vm, job, priors, now=now)
    return decide(policy_of(job), known, step=step, age_s=age_s(vm, at or now))


def decide(policy: str, known: Known, *, step: int, age_s: float) -> InsuranceDecision:
    """The policy's answer. `thesis` cannot tell that an emergency save fits before one was
    measured: until then it insures, and says so."""
    if policy == "thesis" and not known.saved:
        answer = next_insurance("thesis-always", known.measures, step=step)
        return replace(answer, policy=policy, because=answer.because or UNMEASURED)
    return next_insurance(policy, known.measures, step=step, age_s=age_s, hazard=known.hazard)


def age_s(vm: VmRow, at: datetime) -> float:
    """Of the VM at that moment; 0 before it ran."""
    return max(0.0, (at - vm.running_at).total_seconds()) if vm.running_at is not None else 0.0


def _as_sent(decision: InsuranceDecision) -> Insurance | None:
    if decision.at_step is None or decision.tau_s is None:
        return None
    return Insurance(at_step=decision.at_step, tau_s=decision.tau_s, reason=decision.reason)


def _newest_saved(session: Session, attempt: Attempt) -> tuple[int, datetime | None]:
    """Where and when the interval begins: every save re-arms it, and so does a restore."""
    saved = session.execute(
        select(Checkpoint.step, Checkpoint.committed_at)
        .where(Checkpoint.job_id == attempt.job_id, Checkpoint.attempt == attempt.number)
        .order_by(Checkpoint.step.desc())
        .limit(1)
    ).first()
    if saved is None:
        return attempt.restored_step or 0, attempt.started_at
    return max(saved.step, attempt.restored_step or 0), saved.committed_at


def _last_sent(session: Session, job: Job) -> float | None:
    """Tau of the newest event, or -1 for one that said that there is none; None before the first.

    The job's row would not do: it follows every small change, so that a slow drift told nothing.
    """
    data = session.scalar(
        select(Event.data)
        .where(Event.job_id == job.id, Event.kind == "insurance")
        .order_by(Event.id.desc())
        .limit(1)
    )
    return None if data is None else float(data.get("tau_s", -1))


def _material(last_sent: float | None, new: Insurance | None) -> bool:
    if last_sent is None:
        return True
    if new is None or last_sent < 0:
        return (new is None) != (last_sent < 0)
    return abs(new.tau_s - last_sent) > MATERIAL * last_sent
