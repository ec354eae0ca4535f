"""Attempts of several places through the same rules as those of one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.wire import AttemptState, EndReason, JobState, Pool, VmReason, VmState, Wanted
from spothop_master.core import gang
from spothop_master.core.actions import (
    Action,
    AllowFence,
    AskTermination,
    AssignSame,
    EndAttempt,
    LaunchVm,
    ReleaseVm,
    StopAttempt,
    Wait,
)
from spothop_master.core.decide import decide
from spothop_master.core.facts import (
    AttemptFacts,
    JobFacts,
    PlaceFacts,
    Requirements,
    Snapshot,
    VmFacts,
)
from spothop_master.core.follow import Living, job_state
from spothop_master.core.refusals import PoolRefusal
from support.examples import examples

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
POOL = Pool(cloud="x", region="r", zone="a", vm="gpu")
OTHER = POOL.model_copy(update={"zone": "b"})


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def vm(name: str, state: VmState = VmState.RUNNING, **facts: object) -> VmFacts:
    made = VmFacts(
        id=name,
        pool=POOL,
        state=state,
        requested_at=ago(500),
        launched_at=ago(499),
        running_at=ago(490),
        joined_at=ago(480),
        cloud_id=f"i-{name}",
    )
    return replace(made, **facts)  # type: ignore[arg-type]


def attempt(number: int, *places: PlaceFacts, **facts: object) -> AttemptFacts:
    numbered = tuple(replace(place, node=node) for node, place in enumerate(places))
    made = AttemptFacts(number=number, places=numbered, state=AttemptState.RUNNING)
    return replace(made, **facts)  # type: ignore[arg-type]


def snapshot(
    attempts: list[AttemptFacts], vms: list[VmFacts], *, nodes: int = 2, **job: object
) -> Snapshot:
    facts = JobFacts(
        id="job",
        state=JobState.RUNNING,
        wanted=Wanted.RUNNING,
        submitted_at=ago(500),
        requirements=Requirements(nodes=nodes),
    )
    return Snapshot(
        job=replace(facts, **job),  # type: ignore[arg-type]
        attempts=tuple(attempts),
        vms=tuple(vms),
        offers={POOL: 1.0, OTHER: 2.0},
        now=NOW,
    )


def only(actions: list[Action], kind: type[Action]) -> list[Any]:
    assert all(isinstance(action, kind) for action in actions), actions
    return actions


FENCED = {"fenced_at": ago(400), "may_fence": True}
A, B, C, D = (PlaceFacts(vm=name, prepared_at=ago(450)) for name in "abcd")


def noticed(place: PlaceFacts, *, deadline_in_s: float = 60) -> PlaceFacts:
    return replace(place, notice_at=ago(10), deadline_at=ago(-deadline_in_s))


def test_all_well_is_nothing_to_do() -> None:
    assert decide(snapshot([attempt(1, A, B, **FENCED)], [vm("a"), vm("b")])) == []


def test_a_new_job_asks_for_all_its_vms_in_one_pool() -> None:
    launches = only(decide(snapshot([], [], state=JobState.QUEUED)), LaunchVm)
    assert [(x.attempt, x.node, x.pool) for x in launches] == [(1, 0, POOL), (1, 1, POOL)]


def test_only_the_node_whose_launch_was_refused_gets_another_vm() -> None:
    refused = vm("b", VmState.TERMINATED, reason=VmReason.LAUNCH_FAILED,
                 ended_at=ago(1), joined_at=None)  # fmt: skip
    full = PoolRefusal(pool=POOL, error="NoCapacity", last_at=ago(1), until=ago(-60))
    preparing = attempt(1, A, B, state=AttemptState.PREPARING)
    facts = replace(snapshot([preparing], [vm("a"), refused]), refusals=(full,))
    (launch,) = only(decide(facts), LaunchVm)
    assert (launch.attempt, launch.node, launch.pool) == (1, 1, OTHER)


@pytest.mark.parametrize("over", ["a", "b"])
def test_an_attempt_ends_when_any_of_its_vms_is_over(over: str) -> None:
    gone = vm(over, VmState.TERMINATED, reason=VmReason.AGENT_LOST)
    vms = [gone if name == over else vm(name) for name in "ab"]
    (end,) = only(decide(snapshot([attempt(1, A, B, **FENCED)], vms)), EndAttempt)
    assert (end.attempt, end.why) == (1, EndReason.INFRASTRUCTURE)


def test_a_preemption_explains_the_end_before_anything_else_does() -> None:
    vms = [
        vm("a", VmState.TERMINATED, reason=VmReason.AGENT_LOST),
        vm("b", VmState.TERMINATED, reason=VmReason.PREEMPTED),
    ]
    (end,) = only(decide(snapshot([attempt(1, A, B, **FENCED)], vms)), EndAttempt)
    assert end.why is EndReason.PREEMPTED


def test_the_vms_that_an_ended_attempt_leaves_behind_are_released() -> None:
    ended = attempt(1, A, B, state=AttemptState.ENDED, reason=EndReason.PREEMPTED, ended_at=NOW)
    vms = [vm("a", VmState.TERMINATED, reason=VmReason.PREEMPTED), vm("b"), vm("c"), vm("d")]
    new = attempt(2, C, D, state=AttemptState.PREPARING, may_fence=True)
    (release,) = only(decide(snapshot([ended, new], vms)), ReleaseVm)
    assert release.vm == "b"


def test_a_notice_to_any_place_asks_for_a_whole_replacement() -> None:
    draining = attempt(1, A, noticed(B), state=AttemptState.DRAINING, **FENCED)
    vms = [vm("a"), vm("b", VmState.DRAINING, notice_at=ago(10), deadline_at=ago(-60))]
    launches = only(decide(snapshot([draining], vms, state=JobState.DRAINING)), LaunchVm)
    assert [(x.attempt, x.node) for x in launches] == [(2, 0), (2, 1)]


def overlapping(
    *old: PlaceFacts, new: tuple[PlaceFacts, ...] = (C, D), **facts: object
) -> Snapshot:
    draining = attempt(1, *old, state=AttemptState.DRAINING, **FENCED, **facts)
    vms = [vm(name) for name in "abcd"]
    return snapshot([draining, attempt(2, *new, state=AttemptState.PREPARING)], vms)


def test_no_fence_while_one_older_place_may_still_commit() -> None:
    over = noticed(A, deadline_in_s=-30)
    assert decide(overlapping(over, B)) == []
    assert decide(overlapping(over, noticed(B))) == []


def test_a_fence_once_every_older_place_is_past_its_deadline() -> None:
    both = (noticed(A, deadline_in_s=-30), noticed(B, deadline_in_s=-3))
    (fence,) = only(decide(overlapping(*both)), AllowFence)
    assert fence.attempt == 2


def test_a_fence_after_the_last_save_waits_until_every_new_place_is_prepared() -> None:
    old = (A, noticed(B))
    waits = overlapping(*old, new=(C, PlaceFacts(vm="d")), saved_since_notice=True)
    assert decide(waits) == []
    (fence,) = only(decide(overlapping(*old, saved_since_notice=True)), AllowFence)
    assert fence.attempt == 2


def test_a_failed_attempt_goes_on_on_its_vms_only_when_all_are_fit() -> None:
    failed = attempt(1, A, B, state=AttemptState.ENDED, reason=EndReason.USER_FAILURE,
                     ended_at=ago(10))  # fmt: skip
    waited = {"not_before": ago(1), "user_failures": 1}
    same = only(decide(snapshot([failed], [vm("a"), vm("b")], **waited)), AssignSame)
    assert [(x.vm, x.attempt, x.node) for x in same] == [("a", 2, 0), ("b", 2, 1)]
    silent = [vm("a"), vm("b", silent_s=18, suspect_at=ago(2))]
    assert len(only(decide(snapshot([failed], silent, **waited)), LaunchVm)) == 2


def test_a_stop_goes_to_an_attempt_that_any_agent_can_hear() -> None:
    both = attempt(1, A, B, state=AttemptState.PREPARING)
    half = [vm("a", VmState.BOOTING, joined_at=None, running_at=ago(9)), vm("b")]
    (stop,) = only(decide(snapshot([both], half, wanted=Wanted.CANCELLED)), StopAttempt)
    assert stop.why is EndReason.CANCELLED
    none = [replace(half[0], id=name) for name in "ab"]
    only(decide(snapshot([both], none, wanted=Wanted.CANCELLED)), EndAttempt)


def test_without_a_pool_a_whole_attempt_with_a_notice_goes_on() -> None:
    draining = attempt(1, A, noticed(B), state=AttemptState.DRAINING, **FENCED)
    facts = snapshot([draining], [vm("a"), vm("b")], state=JobState.DRAINING)
    full = [
        PoolRefusal(pool=pool, error="NoCapacity", last_at=ago(1), until=ago(-60))
        for pool in (POOL, OTHER)
    ]
    only(decide(replace(facts, refusals=tuple(full))), Wait)


def test_every_vm_on_its_way_out_is_asked_for_again() -> None:
    ended = attempt(1, A, B, state=AttemptState.ENDED, reason=EndReason.CANCELLED, ended_at=NOW)
    vms = [vm(name, VmState.TERMINATING, reason=VmReason.RELEASED) for name in "ab"]
    asked = only(decide(snapshot([ended], vms, state=JobState.CANCELLED)), AskTermination)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("joined", "state"),
    [
        ((False, False), JobState.ALLOCATING),
        ((True, False), JobState.ALLOCATING),
        ((True, True), JobState.PREPARING),
    ],
)
def test_a_job_prepares_once_all_agents_have_joined(
    joined: tuple[bool, ...], state: JobState
) -> None:
    assert job_state([Living(number=1, state=AttemptState.PREPARING, joined=joined)]) is state


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([], None),
        ([None], None),
        ([EndReason.SUCCEEDED], EndReason.SUCCEEDED),
        ([EndReason.SUCCEEDED, None], None),
        ([EndReason.SUCCEEDED, EndReason.SUCCEEDED], EndReason.SUCCEEDED),
        ([None, EndReason.USER_FAILURE], EndReason.USER_FAILURE),
        ([EndReason.SUCCEEDED, EndReason.OUT_OF_MEMORY], EndReason.OUT_OF_MEMORY),
        ([EndReason.PREEMPTED, None], EndReason.PREEMPTED),
        ([EndReason.PAUSED, None], None),
        ([EndReason.PAUSED, EndReason.PAUSED], EndReason.PAUSED),
        ([EndReason.SUCCEEDED, EndReason.CANCELLED], EndReason.CANCELLED),
    ],
)
def test_one_failure_ends_an_attempt_and_success_is_everybodys(
    reasons: list[EndReason | None], expected: EndReason | None
) -> None:
    assert gang.end_of(reasons) is expected


@given(reason=st.none() | st.sampled_from(EndReason))
def test_a_gang_of_one_ends_as_its_only_place(reason: EndReason | None) -> None:
    assert gang.end_of([reason]) is reason


MOMENTS = st.none() | st.integers(0, 99).map(ago)


@given(moments=st.lists(MOMENTS, max_size=4))
@examples(200)
def test_reached_needs_all_and_happened_needs_one(moments: list[datetime | None]) -> None:
    known = [moment for moment in moments if moment is not None]
    all_have = bool(moments) and len(known) == len(moments)
    assert gang.reached(moments) == (max(known) if all_have else None)
    assert gang.happened(moments) == (min(known) if known else None)


@given(steps=st.lists(st.none() | st.integers(0, 99), max_size=4))
@examples(200)
def test_the_newest_step_is_the_highest_that_any_place_told_of(steps: list[int | None]) -> None:
    known = [step for step in steps if step is not None]
    assert gang.newest(steps) == (max(known) if known else None)
