"""What an agent tells its master, in the order in which it happened."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from spothop.wire.common import Extended, SaveKind, Strict
from spothop.wire.lifecycle import Unprotected


class PhaseReport(Strict):
    """A part of preparation is over: join | bundle | setup | data | waiting | restore |
    starting (from the start of the process to its first step)."""

    kind: Literal["phase"] = "phase"
    phase: str
    duration_s: float


class PreparedReport(Strict):
    """Everything but fence and restore is done; the agent waits for the `fence` directive."""

    kind: Literal["prepared"] = "prepared"


class FencedInReport(Strict):
    """This attempt's fence is in the chain."""

    kind: Literal["fenced_in"] = "fenced_in"
    n: int


class RestoredReport(Strict):
    """What was restored; `step` 0 and no `n` when the chain held no checkpoint."""

    kind: Literal["restored"] = "restored"
    step: int
    n: int | None = None
    rejected: list[str] = Field(default_factory=list)
    """One message per newer chain entry that failed verification."""


class StartedReport(Strict):
    """The training process runs."""

    kind: Literal["started"] = "started"
    pid: int


class StepsReport(Strict):
    """Progress since the last such report; coalesced, the newest one wins."""

    kind: Literal["steps"] = "steps"
    step: int
    count: int
    step_s: float
    """Mean time inside a step."""
    load_s: float
    """Mean time between steps, less saves."""


class MetricsReport(Strict):
    kind: Literal["metrics"] = "metrics"
    step: int
    values: dict[str, float]


class SaveRequestedReport(Strict):
    kind: Literal["save_requested"] = "save_requested"
    request: str
    save: SaveKind
    reason: str


class CommittedReport(Extended):
    """A checkpoint exists: its chain entry `n` was created."""

    NEWER = ("delta_exact",)

    kind: Literal["committed"] = "committed"
    n: int
    step: int
    save: SaveKind
    bytes: int
    delta_s: float
    """Synchronous dump time in the training process; 0: not known, so it is no measurement."""
    delta_exact: bool = True
    """False: nobody marked where the save began, so that it took at most `delta_s`, which runs from
    the last step."""
    beta_s: float
    """From `backup()` to the commit."""
    since_notice_s: float | None = None
    """From the agent seeing the notice to the commit, for the first commit after a notice."""


class NoticeReport(Strict):
    kind: Literal["notice"] = "notice"
    event: str
    """The cloud's own id of the event, or its text."""
    deadline_in_s: float | None = None
    """Seconds from the report's making to the announced kill; None when the cloud names none."""
    fits: bool = True
    reason: str = ""


class AcknowledgedReport(Strict):
    """The agent told the cloud that it may take the VM now."""

    kind: Literal["acknowledged"] = "acknowledged"
    event: str


class ExitedReport(Extended):
    """The training process is over and every accepted backup is committed or given up."""

    NEWER = ("hang",)

    kind: Literal["exited"] = "exited"
    code: int | None = None
    signal: int | None = None
    done: bool = False
    """The script called `done()`."""
    stopped: bool = False
    """The agent ended it, because the master or an emergency save asked for that."""
    out_of_memory: bool = False
    hang: bool = False
    """The agent ended it because it gave no sign of life."""
    step: int | None = None
    uncommitted: int = 0
    """Accepted backups that could not be committed."""
    outputs_lost: str = ""
    """Why the outputs could not be uploaded; empty when they were."""
    message: str = ""


class PreparationFailedReport(Strict):
    """Bundle, setup, data or restore failed; `user` when the job's own setup is at fault."""

    kind: Literal["preparation_failed"] = "preparation_failed"
    phase: str
    message: str
    user: bool = False


class FencedReport(Strict):
    """A newer attempt is fenced in: this one stopped."""

    kind: Literal["fenced"] = "fenced"
    by: int
    """The own number, where another VM runs the same attempt."""


class MessageReport(Strict):
    """Something the user should see in the job's events."""

    kind: Literal["message"] = "message"
    level: Literal["info", "warning", "error"] = "info"
    text: str


class ProtectionReport(Strict):
    """Nothing protects the job's work any more, or (without a cause) something does again. Sent
    when that changes; a job that is well never sends one."""

    kind: Literal["protection"] = "protection"
    cause: Unprotected | None = None
    reason: str = ""


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
    | AcknowledgedReport
    | ExitedReport
    | PreparationFailedReport
    | FencedReport
    | MessageReport
    | ProtectionReport,
    Field(discriminator="kind"),
]
