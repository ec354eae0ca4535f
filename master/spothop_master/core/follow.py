"""The state of an active job, from its attempts. Pure.

A job's state is never decided, it follows: so it cannot disagree with its attempts, whatever the
order in which reports and listings arrive. At most two attempts live at a time. While the
older one drains, the job is `draining`, until the newer one has all its VMs; then the newer one
speaks for the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spothop.wire import AttemptState, JobState
from spothop_master.core.states import JobEvent


@dataclass(frozen=True, kw_only=True)
class Living:
    """One attempt that has not ended."""

    number: int
    state: AttemptState
    joined: tuple[bool, ...]
    """Of each place: the agent of its VM has joined."""


EVENT_OF = {
    JobState.QUEUED: JobEvent.WAIT,
    JobState.ALLOCATING: JobEvent.ALLOCATE,
    JobState.PREPARING: JobEvent.PREPARE,
    JobState.RUNNING: JobEvent.RUN,
    JobState.DRAINING: JobEvent.DRAIN,
}


def job_state(living: Sequence[Living]) -> JobState:
    """What the newest attempt does, once all of its VMs have joined; `draining` until then, while
    an older one drains."""
    if not living:
        return JobState.QUEUED
    newest = max(living, key=lambda attempt: attempt.number)
    if newest.state is AttemptState.DRAINING:
        return JobState.DRAINING
    if newest.state is AttemptState.RUNNING:
        return JobState.RUNNING
    if all(newest.joined):
        return JobState.PREPARING
    return JobState.ALLOCATING if len(living) == 1 else JobState.DRAINING
