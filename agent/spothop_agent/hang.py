"""Whether the training process hangs. Pure: time is an argument (CLOCK_MONOTONIC, seconds).

A process that trains gives signs of life in the pipe: steps, saves, metrics. One that gave none for
`AT_LEAST_S`, and for `STEPS` times a step and the longest that lay between two signs before, hangs.
The agent decides that by itself: it sees the signs, and the master may be away.

By default nothing is judged before the first step: a script may download or compile for hours, and
one that makes no step at all cannot be told from one that hangs. The first step itself, which may
compile, and of which nobody knows yet how long it takes, has `FIRST_S`. An evaluation of a quarter
of an hour looks like a hang, and would do so in each attempt: so each hang in a row doubles
`AT_LEAST_S` for the next attempt, up to `DOUBLINGS` times. Who names a `hang_after` in the
job file means every silence from the start of the process on. After `done()` the work is done:
who does not end then has `FIRST_S` (or `hang_after`), and is ended; the job has succeeded.

What does not work: to measure by the clock alone. A VM that was frozen (a live migration) wakes up
to a long silence that nobody kept: time in which we did not look ourselves is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from spothop.durations import duration

AT_LEAST_S = 600.0
FIRST_S = 3600.0
"""As long as no step is completed."""
DOUBLINGS = 3
STEPS = 20
"""So many times a step, or the longest silence so far."""
GAP_S = 30.0
"""A longer time between two looks of ours: the VM, or the agent, stood still."""


@dataclass
class Hang:
    """`after_s`: what the job file says; None: as above; 0: never."""

    after_s: float | None
    heard_at: float
    """The newest sign of life; before the first, when the process started."""
    hangs: int = 0
    """Attempts before this one that ended with one, in a row."""
    began: bool = False
    """The first step."""
    stepped: bool = False
    """It is completed."""
    longest_s: float = 0.0
    """Between two signs of life, from the first step on."""
    step_s: float = 0.0
    """What a step takes, as far as it is known."""
    done: bool = False
    _looked_at: float | None = None

    def heard(self, now: float, kind: str) -> None:
        """A message of the process, of this kind (`spothop.training.pipes`)."""
        if kind in ("hello", "resume"):
            return  # of a process that only begins
        if self.began:
            self.longest_s = max(self.longest_s, now - self.heard_at)
        self.heard_at = now
        self.stepped = self.stepped or kind == "steps"
        self.began = self.began or self.stepped or kind == "phase"
        self.done = self.done or kind == "done"

    def restarted(self, now: float) -> None:
        """The process, or the script inside it, begins."""
        self.heard_at, self.began, self.stepped, self.done = now, False, False, False

    @property
    def limit_s(self) -> float | None:
        """The silence that is a hang; None: there is none now."""
        if self.after_s == 0:
            return None
        if self.after_s is not None:
            return self.after_s
        if self.done:
            return FIRST_S
        if not self.began:
            return None
        doubled_s = AT_LEAST_S * 2.0 ** min(self.hangs, DOUBLINGS)
        least_s = doubled_s if self.stepped else FIRST_S
        return max(least_s, STEPS * max(self.longest_s, self.step_s))

    def judge(self, now: float) -> str | None:
        """Why it hangs; None where it does not. Called several times a second."""
        if self._looked_at is not None and now - self._looked_at > GAP_S:
            self.heard_at += now - self._looked_at
        self._looked_at = now
        silent_s, limit_s = now - self.heard_at, self.limit_s
        if limit_s is None or silent_s < limit_s:
            return None
        if self.done:
            return f"the script has not ended {duration(silent_s)} after done(): it is ended now"
        return (
            f"no step, phase or save for {duration(silent_s)}; if that is as it should be,"
            " set hang_after in the job file"
        )
