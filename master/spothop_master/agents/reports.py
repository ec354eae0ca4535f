"""What each report of an agent changes. One function a kind; `apply_report` picks it.

A report says what has happened, possibly long ago: it waited on the agent's disk while the master
was away, and its attempt may be over by now. So the question is always what it may still change.

1. Facts stay facts (`_ALWAYS`): a notice belongs to the VM, a commit to the chain, a message to the
   log. They count whatever became of the attempt.
2. All else moves a life cycle on, and counts only while the attempt lives and no newer one is
   fenced in (I2). Late reports leave an event; late steps do not, there are too many.
3. Times are `context.at`, the moment of the report by the master's clock, never the moment of
   arrival. What has a first time (`prepared_at`, `notice_at`) keeps it; what only grows
   (`last_step`) never falls.
4. The caller applies each number once. A fact may reach us twice all the same, with a new number:
   from an agent that was killed before it had noted that it reported. Those are known by what they
   are (a commit by its n).

What does not work: asking the attempt's state alone whether a report counts. A replacement that is
fenced in shuts out an attempt whose end nobody has noticed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from spothop.protection import ADD, MENDED
from spothop.wire import (
    AcknowledgedReport,
    AtRiskReport,
    AttemptState,
    CommittedReport,
    EndReason,
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
    ProtectionReport,
    RestoredReport,
    SaveRequestedReport,
    StartedReport,
    StepsReport,
    Unprotected,
    UseReport,
)
from spothop_master.agents.limits import MetricNames
from spothop_master.core import gang, verdict
from spothop_master.store import attempts, observations, transitions
from spothop_master.store.metrics import MAX_NAMES
from spothop_master.store.schema import Attempt, Checkpoint, Job, Metric, Place, VmRow


@dataclass(frozen=True, kw_only=True)
class ReportContext:
    """Where a report came from, and when it was made by the master's clock."""

    session: Session
    job: Job
    vm: VmRow
    place: Place
    at: datetime
    names: MetricNames

    @property
    def attempt(self) -> Attempt:
        return self.place.attempt

    def note(self, kind: str, text: str, **data: Any) -> None:
        transitions.record(self.session, kind, text, now=self.at, row=self.place, data=data)


def apply_report(
    session: Session,
    vm: VmRow,
    place: Place | None,
    envelope: Envelope,
    *,
    at: datetime,
    names: MetricNames,
) -> None:
    """One report, once: the caller checks its number. `place` is the VM's in its attempt, `names`
    those of the jobs' metrics."""
    report = envelope.report
    if place is None:
        text = f"{report.kind} of attempt {envelope.attempt}, which this VM does not have: ignored"
        transitions.record(session, "late", text, now=at, row=vm)
        return
    job = session.get_one(Job, place.attempt.job_id)
    context = ReportContext(session=session, job=job, vm=vm, place=place, at=at, names=names)
    if report.kind in _ALWAYS or _counts(context):
        _APPLY[type(report)](context, report)
    elif report.kind not in _PROGRESS:
        context.note("late", f"{report.kind} of attempt {envelope.attempt}, which is over: ignored")


def _counts(context: ReportContext) -> bool:
    """The attempt lives, and no newer one is fenced in."""
    if context.attempt.state == AttemptState.ENDED.value:
        return False
    newer = select(Attempt.id).where(
        Attempt.job_id == context.job.id,
        Attempt.number > context.attempt.number,
        Attempt.fenced_at.is_not(None),
    )
    return context.session.scalar(newer.limit(1)) is None


def _phase(context: ReportContext, report: PhaseReport) -> None:
    text = f"{report.phase} took {report.duration_s:.2f} s"
    context.note("phase", text, phase=report.phase, duration_s=report.duration_s)


def _prepared(context: ReportContext, report: PreparedReport) -> None:
    context.place.prepared_at = context.place.prepared_at or context.at
    context.note("prepared", f"attempt {context.attempt.number} is prepared in {context.vm.zone}")


def _fenced_in(context: ReportContext, report: FencedInReport) -> None:
    if attempts.fenced_in(context.session, context.attempt, now=context.at):
        text = f"attempt {context.attempt.number} is fenced in"
        context.note("fenced_in", text, n=report.n)


def _restored(context: ReportContext, report: RestoredReport) -> None:
    context.attempt.restored_step = report.step
    if report.n is None:
        text = f"attempt {context.attempt.number} begins at step {report.step}: nothing to restore"
    else:
        text = f"attempt {context.attempt.number} restored step {report.step}"
    for rejected in report.rejected:
        context.note("message", f"checkpoint rejected: {rejected}", level="warning")
    context.note("restored", text, step=report.step, n=report.n)


def _started(context: ReportContext, report: StartedReport) -> None:
    context.place.started_at = context.place.started_at or context.at
    text = f"attempt {context.attempt.number} is starting: its process runs, no step began yet"
    context.note("started", text, pid=report.pid)


def _steps(context: ReportContext, report: StepsReport) -> None:
    attempt, place, took_s = context.attempt, context.place, report.step_s + report.load_s
    attempt.step_s = mean_step_s(attempt.step_s, attempt.restored_step, report)
    place.last_step = max(report.step, place.last_step or 0)
    place.last_step_at = context.at
    if place.first_step_at is None:
        first = context.at - timedelta(seconds=max(0, report.count - 1) * took_s)
        place.first_step_at = max(first, place.started_at or first)
        observations.preparation(context.session, context.vm, now=context.at)
    attempts.first_steps(context.session, context.job, context.vm, attempt, now=context.at)


def mean_step_s(before: float | None, restored_step: int | None, report: StepsReport) -> float:
    """Seconds that a step of the attempt takes: the mean over all of its steps."""
    took_s = report.step_s + report.load_s
    done = max(report.count, report.step - (restored_step or 0), 1)
    share = min(1.0, max(0, report.count) / done)
    before = took_s if before is None else before
    return before + (took_s - before) * share


def _metrics(context: ReportContext, report: MetricsReport) -> None:
    surplus = context.names.surplus(context.session, context.job.id, report.values.keys())
    if surplus:
        if context.names.tell(context.job.id):
            text = (
                f"the script logs more than {MAX_NAMES:,} metrics: {surplus[0]!r} and all further"
                " names are left out; log fewer names with sp.log"
            )
            context.note("message", text, level="warning")
        kept = {name: value for name, value in report.values.items() if name not in surplus}
        report = report.model_copy(update={"values": kept})
    rows = metric_rows(context.job.id, context.attempt.number, report, at=context.at)
    if rows:  # in bulk: there are more of these than of anything else
        context.session.execute(insert(Metric), rows)
        context.attempt.metrics = {**(context.attempt.metrics or {}), **newest_values(rows)}


def metric_rows(
    job_id: str, attempt: int, report: MetricsReport, *, at: datetime
) -> list[dict[str, Any]]:
    common = {"job_id": job_id, "attempt": attempt, "step": report.step, "at": at}
    return [{**common, "name": name, "value": value} for name, value in report.values.items()]


def newest_values(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of `metric_rows`, by name."""
    return {row["name"]: row["value"] for row in rows}


def _save_requested(context: ReportContext, report: SaveRequestedReport) -> None:
    text = f"{report.save.value} save asked for: {report.reason}"
    context.note("save_requested", text, request=report.request, save=report.save.value)


def _committed(context: ReportContext, report: CommittedReport) -> None:
    """The chain has this entry whatever the attempt's state: it was written before any fence."""
    known = select(Checkpoint.id).where(
        Checkpoint.job_id == context.job.id, Checkpoint.n == report.n
    )
    if context.session.scalar(known) is not None:
        return
    values = checkpoint_values(
        report, job_id=context.job.id, attempt=context.attempt.number, at=context.at
    )
    context.session.add(Checkpoint(**values))
    _observe_save(context, report)
    text, data = committed_event(report)
    context.note("committed", text, **data)
    if _counts(context):
        if report.delta_s > 0 and report.delta_exact:
            context.attempt.save_s = report.delta_s
        context.attempt.backup_s = report.beta_s
        context.job.user_failures = context.job.infrastructure_failures = 0


def checkpoint_values(
    report: CommittedReport, *, job_id: str, attempt: int, at: datetime
) -> dict[str, Any]:
    """The row's columns."""
    return {
        "job_id": job_id,
        "attempt": attempt,
        "n": report.n,
        "step": report.step,
        "kind": report.save.value,
        "bytes": report.bytes,
        "delta_s": report.delta_s if report.delta_exact else 0.0,
        "beta_s": report.beta_s,
        "since_notice_s": report.since_notice_s,
        "committed_at": at,
    }


def committed_event(report: CommittedReport) -> tuple[str, dict[str, Any]]:
    """Its text and its data."""
    text = (
        f"{report.save.value} checkpoint of step {report.step} "
        f"({_save_words(report)}, backup {report.beta_s:.2f} s)"
    )
    return text, report.model_dump(mode="json", exclude={"kind"})


def measured(report: CommittedReport) -> list[tuple[str, float, bool]]:
    """Kind, seconds, and whether it is censored: a save time that is only a bound is kept as
    such."""
    found = [("backup", report.beta_s, False)]
    if report.delta_s > 0:
        found.append(("save", report.delta_s, not report.delta_exact))
    return found


def _observe_save(context: ReportContext, report: CommittedReport) -> None:
    for kind, value, censored in measured(report):
        observations.add(
            context.session,
            context.vm,
            kind,
            value,
            attempt=context.attempt.number,
            n=report.n,
            censored=censored,
            now=context.at,
        )


def _save_words(report: CommittedReport) -> str:
    if report.delta_s <= 0:
        return "save time not known"
    most = "" if report.delta_exact else "at most "
    return f"save {most}{report.delta_s:.2f} s"


def _notice(context: ReportContext, report: NoticeReport) -> None:
    """A fact of the VM: it concerns whatever attempt lives on it."""
    vm, first = context.vm, context.vm.notice_at is None
    left = left_s(report, vm.grace_s)
    vm.notice_at = vm.notice_at or context.at
    vm.deadline_at = context.at + timedelta(seconds=left)
    if first:
        context.place.notice_fits = report.fits
    text = notice_text(report, vm.zone, left)
    context.note("notice", text, event=report.event, left_s=left, fits=report.fits)
    attempts.notice(context.session, context.job, vm, text=text, now=context.at)


def left_s(report: NoticeReport, grace_s: float) -> float:
    """Seconds until the deadline, from when it was reported."""
    return grace_s if report.deadline_in_s is None else max(0.0, report.deadline_in_s)


def notice_text(report: NoticeReport, zone: str, left: float) -> str:
    return f"preemption notice in {zone}: {left:.0f} s left; {report.reason or report.event}"


def _at_risk(context: ReportContext, report: AtRiskReport) -> None:
    """A fact of the VM; the first one counts, and after a notice none does."""
    vm = context.vm
    if vm.at_risk_at is None and vm.notice_at is None:
        vm.at_risk_at = context.at
        context.note("at_risk", report.event)


def _acknowledged(context: ReportContext, report: AcknowledgedReport) -> None:
    context.note("acknowledged", "the cloud was told that it may take the VM", event=report.event)


def _exited(context: ReportContext, report: ExitedReport) -> None:
    context.place.exit_code, context.place.exit_signal = report.code, report.signal
    if report.step is not None:
        context.place.last_step = max(report.step, context.place.last_step or 0)
    stop = context.attempt.stop_wanted
    found = verdict.of_exit(
        report,
        noticed=context.vm.notice_at is not None,
        stop_wanted=EndReason(stop) if stop else None,
    )
    _end(context, found.reason, found.text)


def _preparation_failed(context: ReportContext, report: PreparationFailedReport) -> None:
    found = verdict.of_preparation(report, noticed=context.vm.notice_at is not None)
    _end(context, found.reason, found.text)


def _fenced(context: ReportContext, report: FencedReport) -> None:
    why = EndReason.FENCED if context.vm.notice_at is None else EndReason.PREEMPTED
    again = report.by == context.attempt.number
    _end(context, why, f"attempt {report.by} is fenced in" + (" on another VM" if again else ""))


def _message(context: ReportContext, report: MessageReport) -> None:
    context.note("message", report.text, level=report.level)


def _protection(context: ReportContext, report: ProtectionReport) -> None:
    if report.cause is None:
        before, context.place.unprotected = context.place.unprotected, None
        if before is not None:
            mended = MENDED[Unprotected(before["cause"])]
            context.note("protected", f"no longer unprotected: {mended}")
        return
    add = list(ADD[report.cause])
    context.place.unprotected = {
        "cause": report.cause.value,
        "reason": report.reason,
        "since": context.at.isoformat(),
    }
    text = f"unprotected: {report.reason}" + ("; add: " + " | ".join(add) if add else "")
    context.note("unprotected", text, cause=report.cause.value, add=add, level="warning")


def _use(context: ReportContext, report: UseReport) -> None:
    if report.idle_s is None:
        context.place.idle = None
        return
    since = context.at - timedelta(seconds=report.idle_s)
    context.place.idle = {"since": since.isoformat(), "reason": report.reason}


def _end(context: ReportContext, why: EndReason, detail: str) -> None:
    """Of this place's process; the attempt's too, when its places' ends say so."""
    context.place.reason = why.value
    reasons = [place.reason for place in context.attempt.places]
    over = gang.end_of([EndReason(reason) if reason else None for reason in reasons])
    if over is None:
        text = f"node {context.place.node} of attempt {context.attempt.number} is done: {detail}"
        context.note("place", text, reason=why.value)
        return
    attempts.end(context.session, context.job, context.attempt, over, detail=detail, now=context.at)


_ALWAYS = frozenset({"notice", "at_risk", "committed", "message", "acknowledged"})
"""Facts of the VM, the chain and the log: true whatever became of the attempt."""

_PROGRESS = frozenset({"steps", "metrics"})
"""There are many of them, and the next attempt computes the same again: late ones are dropped
without an event."""

_APPLY: Mapping[type, Callable[[ReportContext, Any], None]] = {
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
    AtRiskReport: _at_risk,
    AcknowledgedReport: _acknowledged,
    ExitedReport: _exited,
    PreparationFailedReport: _preparation_failed,
    FencedReport: _fenced,
    MessageReport: _message,
    ProtectionReport: _protection,
    UseReport: _use,
}
