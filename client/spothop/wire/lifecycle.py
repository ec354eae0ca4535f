"""The states of job, attempt and VM, and why they ended: the one vocabulary of master and users.

What may follow what is the master's affair (`spothop_master.core.states`). On the wire and in the
database a state is its value: plain text. The sets below say once what several readers ask.
"""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """An enum that prints, formats and compares as its text, on every version of Python."""

    def __str__(self) -> str:
        return str(self.value)


class JobState(Word):
    QUEUED = "queued"
    ALLOCATING = "allocating"
    PREPARING = "preparing"
    RUNNING = "running"
    DRAINING = "draining"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Wanted(Word):
    """What the user wants of a job; the master makes it so."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class AttemptState(Word):
    PREPARING = "preparing"
    RUNNING = "running"
    DRAINING = "draining"
    ENDED = "ended"


class VmState(Word):
    REQUESTED = "requested"
    BOOTING = "booting"
    READY = "ready"
    RUNNING = "running"
    DRAINING = "draining"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


class EndReason(Word):
    """Why an attempt ended."""

    SUCCEEDED = "succeeded"
    PREEMPTED = "preempted"
    USER_FAILURE = "user_failure"
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    INFRASTRUCTURE = "infrastructure"
    FENCED = "fenced"
    CANCELLED = "cancelled"
    PAUSED = "paused"


class VmReason(Word):
    """Why a VM ended."""

    PREEMPTED = "preempted"
    RELEASED = "released"
    LAUNCH_FAILED = "launch_failed"
    NEVER_JOINED = "never_joined"
    AGENT_LOST = "agent_lost"
    FAILED = "failed"  # the cloud ended it, and says it was no preemption
    ORPHAN = "orphan"


class Unprotected(Word):
    """What is missing where nothing protects the work of a job that trains."""

    NO_CALLS = "no_calls"
    NO_CHECK = "no_check"
    NO_SAVE = "no_save"
    STORAGE = "storage"


class Alarm(Word):
    """What somebody should look at."""

    STALE = "stale"  # the newest commit is older than it should be
    STORAGE = "storage"  # the storage takes no save
    UNPROTECTED = "unprotected"  # nothing protects the work, for another reason
    HANG = "hang"  # the script hung, and has not trained since
    NO_CAPACITY = "no_capacity"  # no cloud gives a VM
    UNCONFIRMED = "unconfirmed"  # a cloud does not confirm a launch, or an end
    RETRIES = "retries"  # a budget of `retries` is nearly used
    IDLE = "idle"  # GPU or CPU are hardly used
    NOTICE_LOST = "notice_lost"  # a preemption notice led to no commit


JOB_ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
"""States that a job never leaves."""

JOB_ACTIVE = frozenset(JobState) - JOB_ENDED - {JobState.PAUSED}
"""The master works on it."""

VM_LEAVING = frozenset({VmState.TERMINATING, VmState.TERMINATED})
"""Over, or on its way out: nobody waits for such a VM any more."""

USER_FAILURES = frozenset({EndReason.USER_FAILURE, EndReason.OUT_OF_MEMORY, EndReason.HANG})
"""Ends of the process that its VM has no part in: the next attempt may have the same one."""
