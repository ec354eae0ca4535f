"""The rules of ends, fences and VMs, each by itself: facts in, actions with their reasons out."""

from __future__ import annotations

from datetime import datetime

import pytest

from spothop.wire import AttemptState, EndReason, JobState, VmReason, VmState, Wanted
from spothop_master.core import decide as rules
from spothop_master.core import replace as replacing
from spothop_master.core.actions import (
    Action,
    AllowFence,
    AskTermination,
    EndAttempt,
    FinishJob,
    ReleaseVm,
    StopAttempt,
)
from spothop_master.core.decide import decide
from spothop_master.core.facts import (
    Requirements,
)
from support.core_facts import ago, attempt, ended, seen, vm

# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"reason": VmReason.PREEMPTED}, EndReason.PREEMPTED),
        ({"reason": VmReason.AGENT_LOST}, EndReason.INFRASTRUCTURE),
        ({"reason": VmReason.AGENT_LOST, "notice_at": ago(9)}, EndReason.PREEMPTED),
        ({"reason": VmReason.RELEASED}, EndReason.INFRASTRUCTURE),
        ({"reason": VmReason.LAUNCH_FAILED}, None),
        ({"reason": None}, None),
        ({"reason": VmReason.PREEMPTED, "state": VmState.RUNNING}, None),
    ],
)
def test_what_the_end_of_a_vm_means(facts: dict[str, object], why: EndReason | None) -> None:
    over = vm(**{"state": VmState.TERMINATING, **facts})  # type: ignore[arg-type]
    expected: list[Action] = []
    if why is not None and over.reason is not None:
        text = f"its VM is over: {over.reason.value}"
        expected = [EndAttempt(attempt=1, why=why, reason=text)]
    assert rules.ends_of_vms(seen(attempt(), vms=(over,))) == expected


def test_one_success_ends_the_job_and_what_still_runs() -> None:
    first = ended(1, EndReason.PREEMPTED)
    won = ended(2, EndReason.SUCCEEDED, detail="all done")
    noticed, fresh = attempt(3, notice_at=ago(5)), attempt(4)
    assert rules.success(seen(first)) == []
    text = "the job is over: succeeded"
    assert rules.success(seen(first, won, noticed, fresh)) == [
        EndAttempt(attempt=3, why=EndReason.PREEMPTED, reason=text),
        EndAttempt(attempt=4, why=EndReason.CANCELLED, reason=text),
        FinishJob(state=JobState.SUCCEEDED, reason="all done"),
    ]


def test_an_attempt_with_a_notice_is_cancelled_with_its_job() -> None:
    actions = replacing.finish(seen(attempt(notice_at=ago(5))), JobState.FAILED, "why")
    assert actions == [
        EndAttempt(attempt=1, why=EndReason.CANCELLED, reason="the job is over: failed"),
        FinishJob(state=JobState.FAILED, reason="why"),
    ]


PAUSE = {"wanted": Wanted.PAUSED}


@pytest.mark.parametrize(
    ("job", "state", "text"),
    [
        ({"wanted": Wanted.CANCELLED}, JobState.CANCELLED, "cancelled by the user"),
        ({"wanted": Wanted.PAUSED}, JobState.PAUSED, "paused by the user"),
        (
            {"requirements": Requirements(max_duration_s=500)},
            JobState.FAILED,
            "max_duration of 500 s is over",
        ),
    ],
)
def test_a_job_without_an_attempt_ends_at_once(
    job: dict[str, object], state: JobState, text: str
) -> None:
    assert rules.wanted_end(seen(**job)) == [FinishJob(state=state, reason=text)]  # type: ignore[arg-type]
    assert rules.stopping(seen(**job))  # type: ignore[arg-type]


def test_nothing_ends_that_is_wanted_and_has_time_left() -> None:
    snapshot = seen(requirements=Requirements(max_duration_s=500.1))
    assert rules.wanted_end(snapshot) == []
    assert not rules.stopping(snapshot)


@pytest.mark.parametrize(
    ("facts", "vm_facts", "expected"),
    [
        ({}, {}, StopAttempt(attempt=1, why=EndReason.PAUSED, reason="paused by the user")),
        (
            {},
            {"joined_at": None},
            EndAttempt(attempt=1, why=EndReason.PAUSED, reason="paused by the user"),
        ),
        (
            {},
            {"state": VmState.TERMINATING},
            EndAttempt(attempt=1, why=EndReason.PAUSED, reason="paused by the user"),
        ),
        ({"stop_wanted": EndReason.PAUSED}, {}, None),
        ({"stop_wanted": EndReason.PAUSED, "stop_at": ago(929.9)}, {}, None),
        (
            {"stop_wanted": EndReason.PAUSED, "stop_at": ago(930)},
            {},
            EndAttempt(
                attempt=1,
                why=EndReason.PAUSED,
                reason="paused by the user; no exit reported within 930 s",
            ),
        ),
        ({"stop_wanted": EndReason.PAUSED, "stop_at": ago(29.9), "hurried": True}, {}, None),
        (
            {"stop_wanted": EndReason.PAUSED, "stop_at": ago(30), "hurried": True},
            {},
            EndAttempt(
                attempt=1,
                why=EndReason.PAUSED,
                reason="paused by the user; no exit reported within 30 s",
            ),
        ),
    ],
)
def test_a_stop_is_asked_for_and_then_waited_for(
    facts: dict[str, object], vm_facts: dict[str, object], expected: Action | None
) -> None:
    snapshot = seen(attempt(**facts), vms=(vm(**vm_facts),), **PAUSE)  # type: ignore[arg-type]
    assert rules.wanted_end(snapshot) == ([expected] if expected else [])
    assert decide(snapshot)[:1] == rules.wanted_end(snapshot)[:1]


def test_every_attempt_is_stopped() -> None:
    snapshot = seen(attempt(1), attempt(2, "b"), vms=(vm("a"), vm("b")), **PAUSE)
    assert [type(action) for action in rules.wanted_end(snapshot)] == [StopAttempt, StopAttempt]


@pytest.mark.parametrize(
    ("notice_at", "why"), [(None, EndReason.FENCED), (ago(9), EndReason.PREEMPTED)]
)
def test_a_fence_ends_every_older_attempt(notice_at: datetime | None, why: EndReason) -> None:
    old = attempt(1, notice_at=notice_at)
    assert rules.superseded(seen(old, attempt(2))) == []
    assert rules.superseded(seen(old, attempt(2, fenced_at=ago(1)))) == [
        EndAttempt(attempt=1, why=why, reason="attempt 2 is fenced in")
    ]
    assert rules.superseded(seen(attempt(1, fenced_at=ago(1)), attempt(2))) == []
    assert rules.superseded(seen(attempt(1, fenced_at=ago(1)))) == []


def test_a_replacement_with_a_notice_of_its_own_makes_room() -> None:
    old, new = attempt(1, state=AttemptState.DRAINING), attempt(2, state=AttemptState.DRAINING)
    text = "a notice came before it had anything to save"
    gone = [EndAttempt(attempt=2, why=EndReason.PREEMPTED, reason=text)]
    assert rules.hopeless(seen(old, new)) == gone
    assert rules.hopeless(seen(old, attempt(2))) == []
    assert rules.hopeless(seen(ended(1), new)) == []
    assert rules.hopeless(seen()) == []


# --- fences ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "prepared", "reason"),
    [
        (
            {"notice_at": ago(5), "saved_since_notice": True},
            True,
            "attempt 1 has committed its last save",
        ),
        (
            {"notice_at": ago(5), "saved_since_notice": True},
            False,
            None,
        ),  # it trains on until the new one is ready
        ({"deadline_at": ago(2)}, False, "the deadline of attempt 1 is over"),
        ({"deadline_at": ago(1.9)}, True, None),
        ({}, True, None),
        ({"state": AttemptState.ENDED}, False, "no older attempt can commit any more"),
    ],
)
def test_when_the_newest_may_fence(
    old: dict[str, object], prepared: bool, reason: str | None
) -> None:
    new = attempt(2, state=AttemptState.PREPARING, prepared_at=ago(1) if prepared else None)
    expected = [AllowFence(attempt=2, reason=reason)] if reason else []
    snapshot = seen(attempt(1, **old), new)  # type: ignore[arg-type]
    assert rules.fences(snapshot) == expected


def test_only_a_living_newest_fences_and_once() -> None:
    assert rules.fences(seen()) == []
    assert rules.fences(seen(ended())) == []
    assert rules.fences(seen(attempt(may_fence=True))) == []
    assert rules.fences(seen(attempt())) == [
        AllowFence(attempt=1, reason="no older attempt can commit any more")
    ]


# --- VMs ------------------------------------------------------------------------------------------


def test_vms_that_nobody_needs_are_released() -> None:
    vms = (vm("a"), vm("b"), vm("c", VmState.TERMINATING))
    released = [ReleaseVm(vm="b", why=VmReason.RELEASED, reason="no attempt needs it")]
    assert rules.tidy(seen(attempt(on="a"), vms=vms)) == released
    # after a failure of the user the same VM is used again
    assert rules.tidy(seen(ended(why=EndReason.USER_FAILURE), vms=vms)) == released
    assert len(rules.tidy(seen(ended(), vms=vms))) == 2


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"asked_s": None}, "not needed"),
        ({"asked_s": None, "reason": VmReason.AGENT_LOST}, "agent_lost"),
        ({"asked_s": 4.9}, None),
        ({"asked_s": 5.0}, "not over yet"),
        ({"asked_s": None, "cloud_id": None}, None),
        ({"asked_s": None, "state": VmState.RUNNING}, None),
    ],
)
def test_a_termination_is_asked_for_until_the_cloud_agrees(
    facts: dict[str, object], reason: str | None
) -> None:
    over = vm(**{"state": VmState.TERMINATING, **facts})  # type: ignore[arg-type]
    expected = [AskTermination(vm="a", reason=reason)] if reason else []
    assert rules.ask(seen(vms=(over,))) == expected


def test_a_job_that_is_to_end_gets_no_attempt_and_no_fence() -> None:
    stopped = attempt(stop_wanted=EndReason.PAUSED, stop_at=ago(1))
    assert decide(seen(stopped, **PAUSE)) == []
    assert decide(seen(stopped)) == [
        AllowFence(attempt=1, reason="no older attempt can commit any more")
    ]


def test_a_vm_that_waits_for_another_attempt_takes_none_away() -> None:
    old, failed = attempt(1, "b"), ended(2, EndReason.USER_FAILURE)
    vms = (vm("a"), vm("b"), vm("c"))
    assert rules.tidy(seen(old, failed, vms=vms)) == [
        ReleaseVm(vm="c", why=VmReason.RELEASED, reason="no attempt needs it")
    ]
