"""Rows of a believable afternoon: one job that hopped twice, one waiting, one done, one failed."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop_master.store.schema import Attempt, Checkpoint, Event, Job, Metric, Place, VmRow

NOW = datetime(2026, 3, 14, 12, 0, 0, tzinfo=timezone.utc)
ZONES = ("us-east-1a", "us-east-1c", "us-east-1b")
GPT = "gpt-small-4f21c9"
HOSTILE = "<script>alert('x')</script>"


def tell(session: Session, *, owner_id: int) -> None:
    """Write all of it. The hopping job is `GPT`."""
    _gpt(session, owner_id)
    session.add(job("resnet-cifar-08bd12", "queued", 2, owner_id, reason="no capacity in 3 pools"))
    done = job("mnist-b77e01", "succeeded", 190, owner_id)
    done.ended_at = NOW - timedelta(minutes=120)
    failed = job("whisper-ft-c0ffee", "failed", 300, owner_id, reason="exit code 1, 3 times")
    failed.ended_at = NOW - timedelta(minutes=280)
    session.add_all([done, failed])
    session.flush()
    session.add(vm(1001, done.id, 0, -189, -120, "released"))
    session.flush()
    session.add(attempt(done.id, 1, 1001, -188, -120, "succeeded", restored=0, last=4000))
    session.add(checkpoint(done.id, 1, 4000, "periodic", -120.1))


def job(job_id: str, state: str, age_min: float, owner_id: int, **more: Any) -> Job:
    name = job_id.rpartition("-")[0]
    return Job(
        **{
            "id": job_id,
            "name": name,
            "owner_id": owner_id,
            "submit_token": f"token-{job_id}",
            "spec": {"name": name, "run": "python train.py", "env": {"NOTE": HOSTILE}},
            "bundle": "0" * 64,
            "state": state,
            "submitted_at": NOW - timedelta(minutes=age_min),
            **more,
        }
    )


def vm(
    number: int, job_id: str, zone: int, start: float, end: float | None, reason: str | None
) -> VmRow:
    """Times in minutes from `NOW`; running 0.8 minutes after its request."""
    return VmRow(
        id=f"vm-{number}",
        job_id=job_id,
        token=f"launch-{number}",
        cloud_id=f"i-0{number:x}c4",
        cloud="local",
        region="us-east-1",
        zone=ZONES[zone],
        vm_type="p3.2xlarge",
        spot=True,
        dialect="aws",
        grace_s=120.0,
        price=0.918 + zone * 0.05,
        on_demand_price=3.06,
        state="terminated" if end is not None else "running",
        reason=reason,
        requested_at=at(start),
        running_at=at(start + 0.8),
        ended_at=None if end is None else at(end),
    )


def attempt(
    job_id: str,
    number: int,
    vm_number: int,
    first_step: float,
    end: float | None,
    reason: str | None,
    *,
    restored: int,
    last: int,
) -> Attempt:
    preempted = reason == "preempted" and end is not None
    place = Place(
        vm_id=f"vm-{vm_number}",
        living=end is None,
        prepared_at=at(first_step - 0.7),
        started_at=at(first_step - 0.3),
        first_step_at=at(first_step),
        notice_at=at((end or 0) - 2) if preempted else None,
        notice_fits=True if preempted else None,
        step_at_notice=last - 40 if preempted else None,
        last_step=last,
    )
    return Attempt(
        job_id=job_id,
        number=number,
        state="running" if end is None else "ended",
        reason=reason,
        fenced_in=end is None,
        created_at=at(first_step - 3),
        ended_at=None if end is None else at(end),
        restored_step=restored,
        step_s=1.1,
        places=[place],
    )


def checkpoint(job_id: str, n: int, step: int, kind: str, minute: float) -> Checkpoint:
    return Checkpoint(
        job_id=job_id,
        attempt=1 if minute < -65 else 2 if minute < -24 else 3,
        n=n,
        step=step,
        kind=kind,
        bytes=498_231_104,
        delta_s=0.41,
        beta_s=6.3,
        since_notice_s=8.9 if kind == "emergency" else None,
        committed_at=at(minute),
    )


def at(minute: float) -> datetime:
    return NOW + timedelta(minutes=minute)


def _gpt(session: Session, owner_id: int) -> None:
    session.add(
        job(
            GPT,
            "running",
            100,
            owner_id,
            reason="attempt 3 trains in us-east-1b",
            insurance={
                "at_step": 5140,
                "tau_s": 412.0,
                "reason": "2 lives of us-east-1b give a mean of 46 min; "
                "sqrt(2 x 6.7 s x (46 min + 3 min)) = 412 s",
            },
        )
    )
    session.flush()
    session.add_all(
        [
            vm(1, GPT, 0, -100, -64, "preempted"),
            vm(2, GPT, 1, -66, -22, "preempted"),
            vm(3, GPT, 2, -24, None, None),
        ]
    )
    session.flush()
    session.add_all(
        [
            attempt(GPT, 1, 1, -97, -64, "preempted", restored=0, last=1800),
            attempt(GPT, 2, 2, -63, -22, "preempted", restored=1760, last=3990),
            attempt(GPT, 3, 3, -20.5, None, None, restored=3950, last=5060),
        ]
    )
    _checkpoints(session)
    _metrics(session)
    _events(session)


def _checkpoints(session: Session) -> None:
    plan: list[tuple[int, str, float]] = [
        (400, "insurance", -90),
        (1000, "periodic", -79),
        (1400, "insurance", -72),
    ]
    plan += [(1760, "emergency", -65.8), (2000, "periodic", -58.6), (2600, "insurance", -48)]
    plan += [(3000, "periodic", -40), (3600, "insurance", -29), (3950, "emergency", -23.8)]
    plan += [(4400, "insurance", -12.4), (5000, "periodic", -1.2)]
    for n, (step, kind, minute) in enumerate(plan, start=2):
        session.add(checkpoint(GPT, n, step, kind, minute))


def _metrics(session: Session) -> None:
    for step in range(10, 5061, 10):
        loss = (
            1.9 + 8.7 * math.exp(-step / 900) + 0.12 * math.sin(step * 1.7) * math.exp(-step / 4e3)
        )
        number = 1 if step < 1800 else 2 if step < 3990 else 3
        session.add(Metric(job_id=GPT, attempt=number, step=step, name="loss", value=loss, at=NOW))
    session.add(Metric(job_id=GPT, attempt=3, step=5060, name="lr", value=2.4e-4, at=NOW))
    newest = select(Attempt).where(Attempt.job_id == GPT, Attempt.number == 3)
    session.scalars(newest).one().metrics = {"loss": loss, "lr": 2.4e-4}


def _events(session: Session) -> None:
    told = [
        (-100, "submitted", "submitted by admin"),
        (-100, "launch", "us-east-1a: the cheapest of 3 pools at $0.92/h"),
        (-97, "running", "first step of attempt 1"),
        (-66, "notice", "rebalance notice; the kill comes in 120 s"),
        (-66, "launch", "us-east-1c: us-east-1a just preempted"),
        (-65.8, "committed", "emergency checkpoint at step 1760, 8.9 s after the notice"),
        (-64, "preempted", "us-east-1a took vm-1"),
        (-63, "running", f"attempt 2 goes on from step 1760 {HOSTILE}"),
        (-24, "notice", "spot interruption; the kill comes in 120 s"),
        (-23.8, "committed", "emergency checkpoint at step 3950, 8.9 s after the notice"),
        (-22, "preempted", "us-east-1c took vm-2"),
        (-20.5, "running", "attempt 3 goes on from step 3950"),
    ]
    for minute, kind, text in told:
        session.add(Event(at=at(minute), job_id=GPT, kind=kind, text=text, data={}))


def log_text() -> str:
    lines = [
        f"step {step:5d}  loss {2.0 + 600 / step:.4f}  lr 2.4e-04  tokens/s 29,{step % 900:03d}"
        for step in range(4700, 5061, 10)
    ]
    return "restored ckpt.pt at step 3950\n" + "\n".join(lines) + f"\n{HOSTILE}\n"
