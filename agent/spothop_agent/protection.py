"""Whether anything protects the work of the training process. Pure: time is an argument.

A job that trains well, and whose work nobody could restore, looks healthy until its VM is taken. So
the agent, which hears every call, judges four things, the most urgent first:

1. the storage takes no save (`STORAGE_S`);
2. the script makes no call of ours at all;
3. it trains and never calls `check_save()`: no emergency save can be asked for;
4. a save that was asked for is not handed over.

The last three are judged after `after_s`, which the job file may set; a slow step and a slow save
have more time. The answer is a state, not an event: it goes away when the reason does.
"""

from __future__ import annotations

from dataclasses import dataclass

from spothop.durations import duration
from spothop.wire import Unprotected

STORAGE_S = 30.0
"""What fails for so long is more than a request that is tried again."""
PATIENCE = 4
"""So many times a step and a save, before a save that was asked for is late; and so many steps
before a script that has not called `check_save()` is believed not to."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is missing, and why we think so."""

    cause: Unprotected
    reason: str


@dataclass
class Protection:
    """What is known of one process. Times are CLOCK_MONOTONIC, seconds; None: not yet."""

    after_s: float
    started_at: float
    heard: bool = False
    """It has made a call of ours."""
    trains_since: float | None = None
    """Its first completed step, metric or save."""
    checked: bool = False
    """It has called `check_save()`."""
    asked_at: float | None = None
    """Since when a save is asked for, and none came."""

    def heard_of(self, kind: str, now: float) -> None:
        """A message of the process, of this kind (`spothop.training.pipes`)."""
        self.heard = True
        if kind in ("trains", "saving") and not self.checked:
            self.checked, self.asked_at = True, None  # from now on it can hear what it is asked
        if kind in ("steps", "metrics", "backup") and self.trains_since is None:
            self.trains_since = now

    def restarted(self, now: float) -> None:
        """The process, or the script inside it, begins; it may be another version."""
        self.started_at, self.trains_since, self.asked_at = now, None, None
        self.heard = self.checked = False

    def asks(self, waiting: bool, now: float) -> None:
        """Whether a request for a save waits for its answer now."""
        if not waiting:
            self.asked_at = None
        elif self.asked_at is None:
            self.asked_at = now

    def judge(
        self, now: float, *, failing_since: float | None, trouble: str, step_s: float, save_s: float
    ) -> Verdict | None:
        """`failing_since`: when the storage took a save last, if it takes none now."""
        if failing_since is not None and now - failing_since >= STORAGE_S:
            text = f"no save could be stored for {duration(now - failing_since)}: {trouble}"
            return Verdict(cause=Unprotected.STORAGE, reason=text)
        if not self.heard:
            return self._after(
                now - self.started_at,
                Unprotected.NO_CALLS,
                "the script has made no spothop call for {} and more",
            )
        if self.trains_since is not None and not self.checked:
            trained_s = now - self.trains_since
            return self._after(
                trained_s if trained_s >= PATIENCE * step_s else 0.0,
                Unprotected.NO_CHECK,
                "the script has trained for {} and more without calling check_save()",
            )
        if self.asked_at is not None and now - self.asked_at >= PATIENCE * (step_s + save_s):
            return self._after(
                now - self.asked_at,
                Unprotected.NO_SAVE,
                "a save was due {} ago and longer, and none was handed over with backup()",
            )
        return None

    def _after(self, waited_s: float, cause: Unprotected, fact: str) -> Verdict | None:
        if waited_s < self.after_s:
            return None
        return Verdict(cause=cause, reason=fact.format(duration(self.after_s)))
