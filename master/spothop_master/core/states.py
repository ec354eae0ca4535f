"""The life cycles of job, attempt and VM as tables: the only place that knows what may follow what.

The states themselves are the wire's (`spothop.wire`); here are the events and the steps. A job's
active states (`JOB_ACTIVE`) mirror its newest attempt (`core/follow.py`), and attempts of one job
overlap while a replacement prepares; so every active state may follow every other one. What the
table guards is the rest: nothing leaves a terminal state, and only `RESUME` leaves a pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from spothop.statemachine import Machine
from spothop.wire import JOB_ACTIVE, AttemptState, JobState, VmState


class JobEvent(str, Enum):
    WAIT = "wait"  # no attempt lives
    ALLOCATE = "allocate"
    PREPARE = "prepare"
    RUN = "run"
    DRAIN = "drain"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


class AttemptEvent(str, Enum):
    RUN = "run"  # first steps
    NOTICE = "notice"
    END = "end"


class VmEvent(str, Enum):
    LAUNCH = "launch"  # the cloud took the request
    REFUSE = "refuse"  # the cloud refused it, or does not know its token
    JOIN = "join"
    RUN = "run"
    NOTICE = "notice"
    TERMINATE = "terminate"  # we want it gone
    GONE = "gone"  # the cloud says it is


_ENDS = {
    JobEvent.SUCCEED: JobState.SUCCEEDED,
    JobEvent.FAIL: JobState.FAILED,
    JobEvent.CANCEL: JobState.CANCELLED,
}
_FOLLOWS = {
    JobEvent.WAIT: JobState.QUEUED,
    JobEvent.ALLOCATE: JobState.ALLOCATING,
    JobEvent.PREPARE: JobState.PREPARING,
    JobEvent.RUN: JobState.RUNNING,
    JobEvent.DRAIN: JobState.DRAINING,
}

JOB: Mapping[JobState, Mapping[JobEvent, JobState]] = {
    **{state: {**_FOLLOWS, **_ENDS, JobEvent.PAUSE: JobState.PAUSED} for state in JOB_ACTIVE},
    JobState.PAUSED: {
        JobEvent.RESUME: JobState.QUEUED,
        JobEvent.FAIL: JobState.FAILED,
        JobEvent.CANCEL: JobState.CANCELLED,
    },
    JobState.SUCCEEDED: {},
    JobState.FAILED: {},
    JobState.CANCELLED: {},
}

ATTEMPT: Mapping[AttemptState, Mapping[AttemptEvent, AttemptState]] = {
    AttemptState.PREPARING: {
        AttemptEvent.RUN: AttemptState.RUNNING,
        AttemptEvent.NOTICE: AttemptState.DRAINING,
        AttemptEvent.END: AttemptState.ENDED,
    },
    AttemptState.RUNNING: {
        AttemptEvent.NOTICE: AttemptState.DRAINING,
        AttemptEvent.END: AttemptState.ENDED,
    },
    AttemptState.DRAINING: {AttemptEvent.END: AttemptState.ENDED},
    AttemptState.ENDED: {},
}

_VM_ENDS = {VmEvent.TERMINATE: VmState.TERMINATING, VmEvent.GONE: VmState.TERMINATED}

VM: Mapping[VmState, Mapping[VmEvent, VmState]] = {
    VmState.REQUESTED: {
        VmEvent.LAUNCH: VmState.BOOTING,
        VmEvent.REFUSE: VmState.TERMINATED,
        # A fast VM's agent joins before the answer to its launch is written down.
        VmEvent.JOIN: VmState.READY,
        **_VM_ENDS,
    },
    VmState.BOOTING: {
        VmEvent.JOIN: VmState.READY,
        # Two of three clouds accept a launch before they look for capacity.
        VmEvent.REFUSE: VmState.TERMINATED,
        **_VM_ENDS,
    },
    VmState.READY: {
        VmEvent.RUN: VmState.RUNNING,
        VmEvent.NOTICE: VmState.DRAINING,
        **_VM_ENDS,
    },
    VmState.RUNNING: {VmEvent.NOTICE: VmState.DRAINING, **_VM_ENDS},
    VmState.DRAINING: _VM_ENDS,
    VmState.TERMINATING: {
        VmEvent.REFUSE: VmState.TERMINATED,
        VmEvent.GONE: VmState.TERMINATED,
    },
    VmState.TERMINATED: {},
}

JOBS = Machine(JOB)
ATTEMPTS = Machine(ATTEMPT)
VMS = Machine(VM)
