"""When a VM ends itself, because nobody else will: its master is gone, or has forgotten it.

A VM costs money until somebody ends it. That is the master's work, so this is for the case that
there is no master any more: it was away for a day (settable), or the job's `max_duration` has been
over for a while, at which a master that lives has ended the job. Then the agent saves, leaves with
an exit code of its own, and whoever started it shuts the VM down. Pure.
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
SAVE_S = 3600.0
"""For the last save and all that is left to upload."""


def why_alone(*, now: float, heard: float, away_s: float, ends_at: float | None) -> str | None:
    """Why this VM ends itself now; None while it does not. All in seconds of CLOCK_BOOTTIME:
    `heard` is when the master last answered, `ends_at` when the job is to be over."""
    if now - heard >= away_s:
        return (
            f"the master has not answered for {duration(away_s)}: saving, then this VM ends itself"
        )
    if ends_at is not None and now >= ends_at + LATE_S:
        return (
            "the job's max_duration is over, and its master has not ended this VM: it ends itself"
        )
    return None
