"""What each report of an agent changes. One function a kind; `take` picks it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.wire import (
    AcknowledgedReport,
    CommittedReport,
    Envelope,
    ExitedReport,
    FencedInReport,
    FencedReport,
    MessageReport,
    MetricsReport,
    NoticeReport,
    PhaseReport,
    PreparationFailedReport,
    PreparedReport,
    RestoredReport,
    SaveRequestedReport,
    StartedReport,
    StepsReport,
)
from spothop_master.core import verdict
from spothop_master.core.states import AttemptState, EndReason
from spothop_master.store import attempts, insurance, life, observations
from spothop_master.store.observations import Priors
from spothop_master.store.schema import Attempt, Checkpoint, Job, Metric, VmRow


@dataclass(frozen=True, kw_only=True)
class Here:
    """Where a report came from, and when it was made by the master's clock."""

    session: Session
    job: Job
    vm: VmRow
    attempt: Attempt
    at: datetime
    priors: Priors

    def note(self, kind: str, text: str, **data: Any) -> None:
        life.record(self.session, kind, text, now=self.at, row=self.attempt, data=data)


def take(session: Session, vm: VmRow, envelope: Envelope, *, at: datetime, priors: Priors) -> None:
    """One report, once: the caller checks its number."""
    report = envelope.report
    attempt = session.scalar(
        select(Attempt).where(Attempt.vm_id == vm.id, Attempt.number == envelope.attempt)
    )
    if attempt is None:
        text = f"{report.kind} of attempt {envelope.attempt}, which this VM does not have: ignored"
        life.record(session, "late", text, now=at, row=vm)
        return
    job = session.get_one(Job, attempt.job_id)
    here = Here(session=session, job=job, vm=vm, attempt=attempt, at=at, priors=priors)
    if report.kind in _ALWAYS or _counts(here):
        _TAKES[type(report)](here, report)
    elif report.kind not in _PROGRESS:
        here.note("late", f"{report.kind} of attempt {attempt.number}, which is over: ignored")
    session.flush()


def _counts(here: Here) -> bool:
    """The attempt lives, and no newer one is fenced in."""
    if here.attempt.state == AttemptState.ENDED.value:
        return False
    newer = select(Attempt.id).where(
        Attempt.job_id == here.job.id,
        Attempt.number > here.attempt.number,
        Attempt.fenced_at.is_not(None),
    )
    return here.session.scalar(newer.limit(1)) is None


def _phase(here: Here, report: PhaseReport) -> None:
    text = f"{report.phase} took {report.duration_s:.2f} s"
    here.note("phase", text, phase=report.phase, duration_s=report.duration_s)


def _prepared(here: Here, report: PreparedReport) -> None:
    here.attempt.prepared_at = here.attempt.prepared_at or here.at
    here.note("prepared", f"attempt {here.attempt.number} is prepared in {here.vm.zone}")


def _fenced_in(here: Here, report: FencedInReport) -> None:
    if attempts.fenced_in(here.session, here.attempt, now=here.at):
        text = f"attempt {here.attempt.number} is fenced in"
        here.note("fenced_in", text, n=report.n)


def _restored(here: Here, report: RestoredReport) -> None:
    here.attempt.restored_step = report.step
    if report.n is None:
        text = f"attempt {here.attempt.number} begins at step {report.step}: nothing to restore"
    else:
        text = f"attempt {here.attempt.number} restored step {report.step}"
    for rejected in report.rejected:
        here.note("message", f"checkpoint rejected: {rejected}", level="warning")
    here.note("restored", text, step=report.step, n=report.n)


def _started(here: Here, report: StartedReport) -> None:
    here.attempt.started_at = here.attempt.started_at or here.at
    here.note("started", f"the process of attempt {here.attempt.number} runs", pid=report.pid)


def _steps(here: Here, report: StepsReport) -> None:
    attempt, took_s = here.attempt, report.step_s + report.load_s
    done = max(report.count, report.step - (attempt.restored_step or 0), 1)
    share = min(1.0, max(0, report.count) / done)
    before = took_s if attempt.step_s is None else attempt.step_s
    attempt.step_s = before + (took_s - before) * share
    attempt.last_step = max(report.step, attempt.last_step or 0)
    attempt.last_step_at = here.at
    if attempt.first_step_at is None:
        first = here.at - timedelta(seconds=max(0, report.count - 1) * took_s)
        attempt.first_step_at = max(first, attempt.started_at or first)
        observations.preparation(here.session, here.vm, now=here.at)
    attempts.first_steps(here.session, here.job, here.vm, attempt, now=here.at)
    _reinsure(here)


def _metrics(here: Here, report: MetricsReport) -> None:
    """Diverged values (NaN, infinite) are left out: no database keeps them alike."""
    here.session.add_all(
        Metric(
            job_id=here.job.id,
            attempt=here.attempt.number,
            step=report.step,
            name=name[:64],
            value=value,
            at=here.at,
        )
        for name, value in report.values.items()
        if math.isfinite(value)
    )


def _save_requested(here: Here, report: SaveRequestedReport) -> None:
    text = f"{report.save.value} save asked for: {report.reason}"
    here.note("save_requested", text, request=report.request, save=report.save.value)


def _committed(here: Here, report: CommittedReport) -> None:
    """The chain has this entry whatever the attempt's state: it was written before any fence."""
    known = select(Checkpoint.id).where(Checkpoint.job_id == here.job.id, Checkpoint.n == report.n)
    if here.session.scalar(known) is not None:
        return
    here.session.add(
        Checkpoint(
            job_id=here.job.id,
            attempt=here.attempt.number,
            n=report.n,
            step=report.step,
            kind=report.save.value,
            bytes=report.bytes,
            delta_s=report.delta_s,
            beta_s=report.beta_s,
            since_notice_s=report.since_notice_s,
            committed_at=here.at,
        )
    )
    for kind, value in (("save", report.delta_s), ("backup", report.beta_s)):
        observations.add(
            here.session,
            here.vm,
            kind,
            value,
            attempt=here.attempt.number,
            n=report.n,
            now=here.at,
        )
    here.note(
        "committed",
        f"{report.save.value} checkpoint of step {report.step} "
        f"(save {report.delta_s:.2f} s, backup {report.beta_s:.2f} s)",
        **report.model_dump(mode="json", exclude={"kind"}),
    )
    if _counts(here):
        here.attempt.save_s, here.attempt.backup_s = report.delta_s, report.beta_s
        here.job.user_failures = here.job.infrastructure_failures = 0
        _reinsure(here)


def _notice(here: Here, report: NoticeReport) -> None:
    """A fact of the VM: it concerns whatever attempt lives on it."""
    vm, first = here.vm, here.vm.notice_at is None
    left_s = vm.grace_s if report.deadline_in_s is None else max(0.0, report.deadline_in_s)
    vm.notice_at = vm.notice_at or here.at
    vm.deadline_at = here.at + timedelta(seconds=left_s)
    if first:
        here.attempt.notice_fits = report.fits
    text = f"preemption notice in {vm.zone}: {left_s:.0f} s left; {report.reason or report.event}"
    here.note("notice", text, event=report.event, left_s=left_s, fits=report.fits)
    attempts.notice(here.session, here.job, vm, text=text, now=here.at)


def _acknowledged(here: Here, report: AcknowledgedReport) -> None:
    here.note("acknowledged", "the cloud was told that it may take the VM", event=report.event)


def _exited(here: Here, report: ExitedReport) -> None:
    here.attempt.exit_code, here.attempt.exit_signal = report.code, report.signal
    if report.step is not None:
        here.attempt.last_step = max(report.step, here.attempt.last_step or 0)
    found = verdict.of_exit(
        report,
        noticed=here.vm.notice_at is not None,
        stop_wanted=here.attempt.stop_wanted,
    )
    _end(here, found.reason, found.text)


def _preparation_failed(here: Here, report: PreparationFailedReport) -> None:
    found = verdict.of_preparation(report, noticed=here.vm.notice_at is not None)
    _end(here, found.reason, found.text)


def _fenced(here: Here, report: FencedReport) -> None:
    why = EndReason.FENCED if here.vm.notice_at is None else EndReason.PREEMPTED
    _end(here, why, f"attempt {report.by} is fenced in")


def _message(here: Here, report: MessageReport) -> None:
    here.note("message", report.text, level=report.level)


def _end(here: Here, why: EndReason, detail: str) -> None:
    attempts.end(here.session, here.job, here.attempt, why, detail=detail, now=here.at)


def _reinsure(here: Here) -> None:
    if here.attempt.state == AttemptState.RUNNING.value:
        insurance.refresh(here.session, here.vm, here.attempt, here.priors, now=here.at)


_ALWAYS = frozenset({"notice", "committed", "message", "acknowledged"})
"""Facts of the VM, the chain and the log: true whatever became of the attempt."""

_PROGRESS = frozenset({"steps", "metrics"})
"""Many, and the next attempt computes the same again: nobody misses those that come late."""

_TAKES: Mapping[type, Callable[[Here, Any], None]] = {
    PhaseReport: _phase,
    PreparedReport: _prepared,
    FencedInReport: _fenced_in,
    RestoredReport: _restored,
    StartedReport: _started,
    StepsReport: _steps,
    MetricsReport: _metrics,
    SaveRequestedReport: _save_requested,
    CommittedReport: _committed,
    NoticeReport: _notice,
    AcknowledgedReport: _acknowledged,
    ExitedReport: _exited,
    PreparationFailedReport: _preparation_failed,
    FencedReport: _fenced,
    MessageReport: _message,
}
