"""Why an attempt ended, judged by how its process ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spothop.wire import EndReason, ExitedReport, PreparationFailedReport

SIGKILL, SIGTERM = 9, 15


@dataclass(frozen=True, kw_only=True)
class Verdict:
    reason: EndReason
    text: str


def of_exit(report: ExitedReport, *, noticed: bool, stop_wanted: EndReason | None) -> Verdict:
    """I8: exit code 0 after a notice is success only after `done()`, and nothing may be pending."""
    how = _how(report)
    after_done = report.done and report.hang  # it had only to end
    ended = report.code == 0 or after_done
    if ended and report.uncommitted:
        return Verdict(
            reason=EndReason.INFRASTRUCTURE,
            text=f"{how}, but {report.uncommitted} accepted backups could not be committed",
        )
    if ended and report.outputs_lost:
        return Verdict(
            reason=EndReason.INFRASTRUCTURE,
            text=f"{how}, but its outputs could not be uploaded: {report.outputs_lost}",
        )
    if after_done:
        return Verdict(reason=EndReason.SUCCEEDED, text=report.message or how)
    if report.code == 0 and report.done:
        return Verdict(reason=EndReason.SUCCEEDED, text=f"{how} after done()")
    if stop_wanted is not None and (report.stopped or report.code == 0):
        if stop_wanted is EndReason.PREEMPTED:
            return Verdict(
                reason=stop_wanted, text="it was stopped because its replacement is ready"
            )
        return Verdict(reason=stop_wanted, text=f"{_asked(report, how)}, as asked: {stop_wanted}")
    if report.out_of_memory:
        return Verdict(
            reason=EndReason.OUT_OF_MEMORY,
            text=f"killed by the system: out of memory ({_how(report, told=False)}); "
            "use a smaller batch or a VM with more memory",
        )
    if report.hang and not noticed:
        return Verdict(reason=EndReason.HANG, text=report.message or how)
    if noticed and (report.stopped or report.code == 0 or _signalled(report)):
        return Verdict(
            reason=EndReason.PREEMPTED, text=f"{_asked(report, how)} after a preemption notice"
        )
    if report.code == 0 and not report.stopped:
        return Verdict(reason=EndReason.SUCCEEDED, text=how)
    if report.stopped:
        return Verdict(reason=EndReason.INFRASTRUCTURE, text=f"{how}, stopped by the agent")
    return Verdict(reason=EndReason.USER_FAILURE, text=how)


def of_preparation(report: PreparationFailedReport, *, noticed: bool) -> Verdict:
    """A preemption during the preparation is nobody's failure."""
    text = f"{report.phase} failed: {report.message}"
    if noticed:
        return Verdict(reason=EndReason.PREEMPTED, text=text)
    reason = EndReason.USER_FAILURE if report.user else EndReason.INFRASTRUCTURE
    return Verdict(reason=reason, text=text)


def _signalled(report: ExitedReport) -> bool:
    """By a signal, or with the shell's 128 + n for the two that a shutdown sends."""
    return report.signal is not None or report.code in (128 + SIGKILL, 128 + SIGTERM)


def _asked(report: ExitedReport, how: str) -> str:
    """Without the agent's word for why it stopped the process, where that is a reason itself."""
    is_reason = report.stopped and report.message in set(EndReason)
    return _how(report, told=False) if is_reason else how


def _how(report: ExitedReport, *, told: bool = True) -> str:
    """What the process said last comes first: that is what a reader looks for."""
    if report.signal is None and report.code is None and report.message:
        return report.message
    if report.signal is not None:
        text = f"the process was ended by signal {report.signal}"
    elif report.code is not None:
        text = f"the process exited with code {report.code}"
    else:
        text = "the process ended, and how is not known"
    if not (told and report.message):
        return text
    return f"{text}: {report.message}" if report.stopped else f"{report.message} ({text})"
