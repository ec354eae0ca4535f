"""What an agent tells its master, in the order in which it happened.

Every value is bounded (`common`), on both sides: the agent makes no report that its master would
not take, and of one that somebody else made the master takes what is within the bounds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spothop.wire.common import (
    MAX_METRICS,
    MAX_SECONDS,
    Extended,
    Finite,
    MetricName,
    SaveKind,
    Seconds,
    Small,
    Strict,
    Text,
    Whole,
)
from spothop.wire.lifecycle import Unprotected

MOST_REJECTED = 20


def _newest(rejected: Any) -> Any:
    return rejected[:MOST_REJECTED] if isinstance(rejected, list) else rejected


def _cut(seconds: Any) -> Any:
    """A deadline in the year 9999 must not lose the notice."""
    return min(seconds, MAX_SECONDS) if isinstance(seconds, float) else seconds


class PhaseReport(Strict):
    """A part of preparation is over: join | bundle | setup | data | waiting | restore |
    starting (from the start of the process to its first step)."""

    kind: Literal["phase"] = "phase"
    phase: Text
    duration_s: Seconds


class PreparedReport(Strict):
    """Everything but fence and restore is done; the agent waits for the `fence` directive."""

    kind: Literal["prepared"] = "prepared"


class FencedInReport(Strict):
    """This attempt's fence is in the chain."""

    kind: Literal["fenced_in"] = "fenced_in"
    n: Whole


class RestoredReport(Strict):
    """What was restored; `step` 0 and no `n` when the chain held no checkpoint."""

    kind: Literal["restored"] = "restored"
    step: Whole
    n: Whole | None = None
    rejected: Annotated[list[Text], BeforeValidator(_newest)] = Field(default_factory=list)
    """One message per newer chain entry that failed verification; of many, the newest."""


class StartedReport(Strict):
    """The training process runs."""

    kind: Literal["started"] = "started"
    pid: Small


class StepsReport(Strict):
    """Progress since the last such report; coalesced, the newest one wins."""

    kind: Literal["steps"] = "steps"
    step: Whole
    count: Whole
    step_s: Seconds
    """Mean time inside a step."""
    load_s: Seconds
    """Mean time between steps, less saves."""


class MetricsReport(Strict):
    kind: Literal["metrics"] = "metrics"
    step: Whole
    values: dict[MetricName, Finite] = Field(max_length=MAX_METRICS)


class SaveRequestedReport(Strict):
    kind: Literal["save_requested"] = "save_requested"
    request: Text
    save: SaveKind
    reason: Text


class CommittedReport(Extended):
    """A checkpoint exists: its chain entry `n` was created."""

    NEWER = ("delta_exact",)

    kind: Literal["committed"] = "committed"
    n: Whole
    step: Whole
    save: SaveKind
    bytes: Whole
    delta_s: Seconds
    """Synchronous dump time in the training process; 0: not known, so it is no measurement."""
    delta_exact: bool = True
    """False: nobody marked where the save began, so that it took at most `delta_s`, which runs from
    the last step."""
    beta_s: Seconds
    """From `backup()` to the commit."""
    since_notice_s: Seconds | None = None
    """From the agent seeing the notice to the commit, for the first commit after a notice."""


class NoticeReport(Strict):
    kind: Literal["notice"] = "notice"
    event: Text
    """The cloud's own id of the event, or its text."""
    deadline_in_s: Annotated[Finite, BeforeValidator(_cut)] | None = None
    """Seconds from the report's making to the announced kill; None when the cloud names none."""
    fits: bool = True
    reason: Text = ""


class AtRiskReport(Strict):
    """The cloud recommends to leave this VM: it is likelier than others to be taken soon (AWS:
    rebalance recommendation). No end is announced, and nothing was saved for it."""

    kind: Literal["at_risk"] = "at_risk"
    event: Text
    """The cloud's own words."""


class AcknowledgedReport(Strict):
    """The agent told the cloud that it may take the VM now."""

    kind: Literal["acknowledged"] = "acknowledged"
    event: Text


class ExitedReport(Extended):
    """The training process is over and every accepted backup is committed or given up."""

    NEWER = ("hang",)

    kind: Literal["exited"] = "exited"
    code: Small | None = None
    signal: Small | None = None
    done: bool = False
    """The script called `done()`."""
    stopped: bool = False
    """The agent ended it, because the master or an emergency save asked for that."""
    out_of_memory: bool = False
    hang: bool = False
    """The agent ended it because it gave no sign of life."""
    step: Whole | None = None
    uncommitted: Whole = 0
    """Accepted backups that could not be committed."""
    outputs_lost: Text = ""
    """Why the outputs could not be uploaded; empty when they were."""
    message: Text = ""


class PreparationFailedReport(Strict):
    """Bundle, setup, data or restore failed; `user` when the job's own setup is at fault."""

    kind: Literal["preparation_failed"] = "preparation_failed"
    phase: Text
    message: Text
    user: bool = False


class FencedReport(Strict):
    """A newer attempt is fenced in: this one stopped."""

    kind: Literal["fenced"] = "fenced"
    by: Whole
    """The own number, where another VM runs the same attempt."""


class MessageReport(Strict):
    """Something the user should see in the job's events."""

    kind: Literal["message"] = "message"
    level: Literal["info", "warning", "error"] = "info"
    text: Text


class ProtectionReport(Strict):
    """Nothing protects the job's work any more, or (without a cause) something does again. Sent
    when that changes; a job that is well never sends one."""

    kind: Literal["protection"] = "protection"
    cause: Unprotected | None = None
    reason: Text = ""


class UseReport(Strict):
    """The process begins to use next to nothing of the VM's GPUs or CPU, or does so no more. Sent
    when that changes, to a master whose assignment says that it wants to know."""

    kind: Literal["use"] = "use"
    idle_s: Seconds | None = None
    """For so long by now; None: it uses them."""
    reason: Text = ""


AnyReport = Annotated[
    PhaseReport
    | PreparedReport
    | FencedInReport
    | RestoredReport
    | StartedReport
    | StepsReport
    | MetricsReport
    | SaveRequestedReport
    | CommittedReport
    | NoticeReport
    | AtRiskReport
    | AcknowledgedReport
    | ExitedReport
    | PreparationFailedReport
    | FencedReport
    | MessageReport
    | ProtectionReport
    | UseReport,
    Field(discriminator="kind"),
]
