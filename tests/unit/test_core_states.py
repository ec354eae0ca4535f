"""The life cycles: any sequence of events leaves a known state, refused ones change nothing."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.statemachine import IllegalTransition, Machine
from spothop.wire import JOB_ACTIVE, AttemptState, JobState, VmState
from spothop_master.core.follow import EVENT_OF, Living, job_state
from spothop_master.core.states import (
    ATTEMPTS,
    JOB,
    JOBS,
    VMS,
    AttemptEvent,
    JobEvent,
    VmEvent,
)
from support.examples import examples

MACHINES = [
    (JOBS, JobState.QUEUED, JobEvent),
    (ATTEMPTS, AttemptState.PREPARING, AttemptEvent),
    (VMS, VmState.REQUESTED, VmEvent),
]


@pytest.mark.parametrize(("machine", "state", "events"), MACHINES)
def test_every_state_has_its_row(machine: Machine[Any, Any], state: Enum, events: Any) -> None:
    assert set(machine.table) == set(type(state))
    used = {event for row in machine.table.values() for event in row}
    assert used == set(events), "an event that no state takes"


@pytest.mark.parametrize(("machine", "state", "events"), MACHINES)
@given(data=st.data())
@examples(60)
def test_any_events_leave_a_known_state(
    machine: Machine[Any, Any], state: Enum, events: Any, data: st.DataObject
) -> None:
    for event in data.draw(st.lists(st.sampled_from(list(events)), max_size=20)):
        was_over = state in machine.terminal
        if event not in machine.table[state]:
            with pytest.raises(IllegalTransition, match=str(event.value)):
                machine.after(state, event)
            continue
        after = machine.after(state, event)
        assert not was_over
        assert state in machine.sources(event)
        state = after
    assert state in machine.table


def test_terminal_states_are_derived() -> None:
    assert JOBS.terminal == {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
    assert ATTEMPTS.terminal == {AttemptState.ENDED}
    assert VMS.terminal == {VmState.TERMINATED}


@pytest.mark.parametrize(("machine", "state", "events"), MACHINES)
def test_a_terminal_state_can_be_reached_from_everywhere(
    machine: Machine[Any, Any], state: Enum, events: Any
) -> None:
    for start in machine.table:
        reached, grown = {start}, True
        while grown:
            wider = reached | {s for r in reached for s in machine.table[r].values()}
            grown, reached = wider != reached, wider
        assert reached & machine.terminal


def test_only_a_resume_leaves_a_pause_alive() -> None:
    alive = {e for e, to in JOB[JobState.PAUSED].items() if to in JOB_ACTIVE}
    assert alive == {JobEvent.RESUME}


def test_a_vm_is_terminated_only_after_the_cloud_spoke() -> None:
    to_the_end = {
        event for row in VMS.table.values() for event, to in row.items() if to is VmState.TERMINATED
    }
    assert to_the_end == {VmEvent.GONE, VmEvent.REFUSE}


LIVING = st.builds(
    Living,
    number=st.integers(1, 9),
    state=st.sampled_from([s for s in AttemptState if s is not AttemptState.ENDED]),
    joined=st.lists(st.booleans(), min_size=1, max_size=3).map(tuple),
)


@given(living=st.lists(LIVING, max_size=2, unique_by=lambda attempt: attempt.number))
@examples(100)
def test_a_jobs_state_can_follow_its_attempts_from_every_active_state(
    living: list[Living],
) -> None:
    target = job_state(living)
    for state in JOB_ACTIVE:
        assert JOBS.after(state, EVENT_OF[target]) is target


@pytest.mark.parametrize(
    ("old", "new", "joined", "expected"),
    [
        (AttemptState.DRAINING, AttemptState.PREPARING, False, JobState.DRAINING),
        (AttemptState.DRAINING, AttemptState.PREPARING, True, JobState.PREPARING),
        (AttemptState.DRAINING, AttemptState.RUNNING, True, JobState.RUNNING),
        (AttemptState.DRAINING, AttemptState.DRAINING, True, JobState.DRAINING),
        (None, AttemptState.PREPARING, False, JobState.ALLOCATING),
        (None, AttemptState.RUNNING, True, JobState.RUNNING),
    ],
)
def test_the_newest_attempt_speaks_for_the_job(
    old: AttemptState | None, new: AttemptState, joined: bool, expected: JobState
) -> None:
    living = [Living(number=2, state=new, joined=(joined,))]
    if old is not None:
        living.append(Living(number=1, state=old, joined=(True,)))
    assert job_state(living) is expected
