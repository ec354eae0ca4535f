"""When a VM ends itself, because nobody else will: its master is gone, or has forgotten it.

A VM costs money until somebody ends it. That is the master's work, so this is for the case that
there is no master any more: it was away for a day (settable), it has not known the VM's session for
ten minutes, as one with another database, or the job's `max_duration` has been over for a while, at
which a master that lives has ended the job. The storage is not the master's, so the work counts for
whoever resumes it. Then the agent saves, leaves with
an exit code of its own, and whoever started it shuts the VM down. Pure.

Silence counts only while the VM is awake (CLOCK_MONOTONIC): one that was suspended for a weekend,
as a laptop with its master is, could hear nothing. And the master is asked once more before the
end, because an agent that was stopped for long has heard nothing either.
"""

from __future__ import annotations

from spothop.durations import duration

LATE_S = 600.0
"""After the job's end: until then its master ends it."""
LOOK_S = 10.0
"""How often it is looked at."""
NOTE_S = 600.0
"""How often it is written down when the master last answered: an agent that is started again
counts on."""
LAST_ASK_S = 30.0
"""For the master's answer to the last question."""
SAVE_S = 3600.0
"""For the last save and all that is left to upload."""


def why_silent(*, now: float, heard: float, away_s: float) -> str | None:
    """Why this VM ends itself if the last question is not answered; None while it asks nothing. In
    seconds of CLOCK_MONOTONIC: `heard` is when the master last answered."""
    if now - heard < away_s:
        return None
    return f"the master has not answered for {duration(away_s)}: saving, then this VM ends itself"


def why_lost(*, lost: bool) -> str | None:
    """Why this VM ends itself now; None while its master knows it."""
    if lost:
        return "the master does not know this VM any more: saving, then it ends itself"
    return None


def why_late(*, now: float, ends_at: float | None) -> str | None:
    """Why this VM ends itself now; None while it does not. In seconds of CLOCK_BOOTTIME:
    `ends_at` is when the job is to be over."""
    if ends_at is not None and now >= ends_at + LATE_S:
        return (
            "the job's max_duration is over, and its master has not ended this VM: it ends itself"
        )
    return None
