"""Every rule of the supervise loop by itself: facts in, actions with their reasons out."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from spothop.wire import AttemptState, EndReason, JobState, Pool, VmReason, VmState, Wanted
from spothop_master.core import decide as rules
from spothop_master.core import replace as replacing
from spothop_master.core import watch
from spothop_master.core.actions import (
    Action,
    Adopt,
    AllowFence,
    AskTermination,
    AssignSame,
    EndAttempt,
    FinishJob,
    LaunchLost,
    LaunchVm,
    MarkRunning,
    MarkSuspect,
    ReleaseVm,
    ResumeJob,
    StopAttempt,
    VmOver,
    Wait,
)
from spothop_master.core.decide import decide
from spothop_master.core.evidence import EndCause
from spothop_master.core.facts import (
    AttemptFacts,
    JobFacts,
    Limits,
    PlaceFacts,
    Requirements,
    Sighting,
    Snapshot,
    VmFacts,
)

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
POOL = Pool(cloud="x", region="r", zone="a", vm="gpu")
OTHER = POOL.model_copy(update={"zone": "b"})
LIMITS = Limits(backoff_base_s=1, backoff_max_s=1000)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def vm(name: str = "a", state: VmState = VmState.RUNNING, **facts: object) -> VmFacts:
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


def attempt(
    number: int = 1, on: str = "a", state: AttemptState = AttemptState.RUNNING, **facts: object
) -> AttemptFacts:
    """On one VM; what is a fact of a place goes there."""
    place = {
        key: facts.pop(key) for key in ("prepared_at", "notice_at", "deadline_at") if key in facts
    }
    places = (PlaceFacts(vm=on, **place),)  # type: ignore[arg-type]
    return AttemptFacts(number=number, places=places, state=state, **facts)  # type: ignore[arg-type]


def ended(number: int = 1, why: EndReason = EndReason.PREEMPTED, **facts: object) -> AttemptFacts:
    fields = {"reason": why, "detail": "why it ended", "ended_at": ago(5), **facts}
    return attempt(number, state=AttemptState.ENDED, **fields)


def seen(*attempts: AttemptFacts, vms: tuple[VmFacts, ...] = (), **job: object) -> Snapshot:
    facts = JobFacts(id="job", state=JobState.RUNNING, wanted=Wanted.RUNNING, submitted_at=ago(500))
    return Snapshot(
        job=replace(facts, **job),  # type: ignore[arg-type]
        attempts=attempts,
        vms=vms or (vm(),),
        offers={POOL: 1.0, OTHER: 2.0},
        limits=LIMITS,
        jitter=0.0,
        now=NOW,
    )


# --- what the cloud says --------------------------------------------------------------------------


def listed(**facts: object) -> Sighting:
    return Sighting(**{"cloud_id": "i-a", "over": False, **facts})  # type: ignore[arg-type]


UNSEEN = {"listed_at": ago(1), "sighting": None}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (
            {"cloud_id": None, "sighting": listed(cloud_id="i-9", over=True)},
            Adopt(vm="a", reason="the cloud has its token as i-9"),
        ),
        (
            {"sighting": listed(over=True, cause=EndCause.PREEMPTED)},
            VmOver(vm="a", reason="the cloud says it is over: preempted"),
        ),
        (
            {"sighting": listed(over=True)},
            VmOver(vm="a", reason="the cloud says it is over: unknown"),
        ),
        (
            {"running_at": None, "sighting": listed(running_at=ago(7))},
            MarkRunning(vm="a", running_at=ago(7), reason="the cloud says it runs"),
        ),
        ({"running_at": None, "sighting": listed()}, None),
        ({"running_at": ago(8), "sighting": listed(running_at=ago(7))}, None),
        ({"state": VmState.TERMINATED, "sighting": listed(over=True)}, None),
        # a listing without it
        ({"listed_at": None, "cloud_id": None, "joined_at": None}, None),
        (
            {**UNSEEN, "cloud_id": None, "joined_at": None},
            LaunchLost(vm="a", reason="the cloud has no VM with its token"),
        ),
        ({**UNSEEN, "cloud_id": None}, None),  # an agent joined: there is one
        ({**UNSEEN, "joined_at": None}, None),
        ({**UNSEEN, "silent_s": 14.9}, None),
        (
            {**UNSEEN, "silent_s": 15.0},
            VmOver(vm="a", reason="the cloud does not know it any more"),
        ),
        (
            {**UNSEEN, "state": VmState.TERMINATING},
            VmOver(vm="a", reason="the cloud does not know it any more"),
        ),
        # 5 s after the launch, or after the request where the launch had no answer
        ({**UNSEEN, "state": VmState.TERMINATING, "launched_at": ago(5.9)}, None),
        (
            {**UNSEEN, "state": VmState.TERMINATING, "launched_at": ago(6)},
            VmOver(vm="a", reason="the cloud does not know it any more"),
        ),
        (
            {**UNSEEN, "state": VmState.TERMINATING, "launched_at": None, "requested_at": ago(5.9)},
            None,
        ),
    ],
)
def test_what_a_listing_says(facts: dict[str, object], expected: Action | None) -> None:
    snapshot = seen(attempt(), vms=(vm(**facts),))  # type: ignore[arg-type]
    assert watch.cloud_says(snapshot) == ([expected] if expected else [])


def test_every_vm_is_looked_up_in_the_listing() -> None:
    vms = (
        vm("a", VmState.TERMINATED),
        vm("b", sighting=listed(over=True)),
        vm("c", cloud_id=None, sighting=listed()),
    )
    actions = watch.cloud_says(seen(vms=vms))
    assert [
        (type(action), action.vm) for action in actions if isinstance(action, VmOver | Adopt)
    ] == [
        (VmOver, "b"),
        (Adopt, "c"),
    ]
    assert decide(seen(attempt(), vms=vms)) == actions


# --- silence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [VmState.READY, VmState.RUNNING, VmState.DRAINING])
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"silent_s": 14.9}, None),
        (
            {"silent_s": 15.0},
            MarkSuspect(vm="a", suspect=True, reason="silent for 15 s; asking the cloud"),
        ),
        ({"silent_s": 59.9, "suspect_at": ago(40)}, None),
        (
            {"silent_s": 1.0, "suspect_at": ago(40)},
            MarkSuspect(vm="a", suspect=False, reason="it reports again"),
        ),
        (
            {"silent_s": 60.0, "suspect_at": ago(40)},
            ReleaseVm(vm="a", why=VmReason.AGENT_LOST, reason="silent for 60 s"),
        ),
        # after a notice its deadline decides, with a margin of 2 s
        ({"silent_s": 60.0, "suspect_at": ago(40), "deadline_at": ago(1.9)}, None),
        (
            {"silent_s": 15.0, "deadline_at": ago(2)},
            ReleaseVm(
                vm="a",
                why=VmReason.PREEMPTED,
                reason="silent for 15 s past the deadline of its notice",
            ),
        ),
        ({"silent_s": 14.9, "deadline_at": ago(100)}, None),
    ],
)
def test_what_silence_says(
    state: VmState, facts: dict[str, object], expected: Action | None
) -> None:
    snapshot = seen(attempt(), vms=(vm(state=state, **facts),))  # type: ignore[arg-type]
    assert watch.silence(snapshot) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("facts", "waited"),
    [
        ({"running_at": ago(300)}, 300),
        ({"running_at": ago(299.9), "launched_at": ago(400)}, None),
        ({"running_at": None, "launched_at": ago(300)}, 300),
        ({"running_at": None, "launched_at": ago(299), "requested_at": ago(400)}, None),
        ({"running_at": None, "launched_at": None, "requested_at": ago(300)}, 300),
    ],
)
def test_an_agent_has_its_time_to_join(facts: dict[str, object], waited: int | None) -> None:
    vms = (vm("up"), vm(state=VmState.BOOTING, silent_s=999.0, **facts))  # type: ignore[arg-type]
    reason = f"its agent did not join within {waited} s"
    expected = [ReleaseVm(vm="a", why=VmReason.NEVER_JOINED, reason=reason)] if waited else []
    assert watch.silence(seen(attempt(), vms=vms)) == expected


def test_silence_of_one_vm_says_nothing_of_another() -> None:
    vms = (
        vm("a", silent_s=60),
        vm("b", VmState.BOOTING),
        vm("c", silent_s=60),
        vm("d", VmState.REQUESTED),
    )
    assert [
        action.vm for action in watch.silence(seen(vms=vms)) if isinstance(action, ReleaseVm)
    ] == ["a", "b", "c"]


def test_a_deadline_is_over_two_seconds_later_and_only_if_there_is_one() -> None:
    assert not watch.past_deadline(seen(), attempt())
    assert not watch.past_deadline(seen(), attempt(deadline_at=ago(1.9)))
    assert watch.past_deadline(seen(), attempt(deadline_at=ago(2)))


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
        ({"stop_wanted": EndReason.PAUSED, "stop_at": ago(29.9)}, {}, None),
        (
            {"stop_wanted": EndReason.PAUSED, "stop_at": ago(30)},
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
    ("newest", "job", "reason"),
    [
        (EndReason.USER_FAILURE, {"user_failures": 3}, None),
        (
            EndReason.USER_FAILURE,
            {"user_failures": 4},
            "why it ended (4 user failures in a row, 3 are retried)",
        ),
        (
            EndReason.OUT_OF_MEMORY,
            {"user_failures": 4},
            "why it ended (4 user failures in a row, 3 are retried)",
        ),
        (EndReason.USER_FAILURE, {"infrastructure_failures": 99}, None),
        (EndReason.INFRASTRUCTURE, {"infrastructure_failures": 10}, None),
        (
            EndReason.INFRASTRUCTURE,
            {"infrastructure_failures": 11},
            "why it ended (11 infrastructure failures in a row, 10 are retried)",
        ),
        (EndReason.INFRASTRUCTURE, {"user_failures": 99}, None),
        (EndReason.PREEMPTED, {"user_failures": 99, "infrastructure_failures": 99}, None),
    ],
)
def test_failures_in_a_row_have_their_own_budgets(
    newest: EndReason, job: dict[str, object], reason: str | None
) -> None:
    expected = [FinishJob(state=JobState.FAILED, reason=reason)] if reason else []
    assert rules.budgets(seen(ended(why=newest), **job)) == expected  # type: ignore[arg-type]
    assert rules.budgets(seen(**job)) == []  # type: ignore[arg-type]
    assert rules.budgets(seen(attempt(), **job)) == []  # type: ignore[arg-type]


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
        ({"saved_since_notice": True}, True, "attempt 1 has committed its last save"),
        ({"saved_since_notice": True}, False, None),  # it trains on until the new one is ready
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


# --- the next attempt -----------------------------------------------------------------------------


def launch(number: int, why: str) -> list[Action]:
    reason = f"{why}; {POOL} at 1 USD/h"
    return [LaunchVm(attempt=number, node=0, pool=POOL, reason=reason)]


def test_when_another_attempt_is_launched() -> None:
    gone = vm(state=VmState.TERMINATED)
    assert replacing.replacement(seen(vms=(gone,))) == launch(1, "first attempt")
    assert replacing.replacement(seen(attempt())) == []
    draining = attempt(state=AttemptState.DRAINING)
    assert replacing.replacement(seen(draining)) == launch(2, "attempt 1 has a notice")
    over = ended(3)
    assert replacing.replacement(seen(over, vms=(gone,))) == launch(4, "attempt 3 ended: preempted")


def test_a_refused_launch_is_made_elsewhere_for_the_same_attempt() -> None:
    refused = vm(
        state=VmState.TERMINATED,
        reason=VmReason.LAUNCH_FAILED,
        refusal="NoCapacity",
        ended_at=ago(1),
    )
    (action,) = replacing.replacement(seen(attempt(2), vms=(refused,), refusals=1))
    assert isinstance(action, LaunchVm)
    assert (action.attempt, action.node, action.pool) == (2, 0, OTHER)
    assert action.reason.startswith("the launch before it was refused; ")


@pytest.mark.parametrize(
    ("job", "wait_s"),
    [
        ({"user_failures": 1}, 1.0),
        ({"user_failures": 3}, 4.0),
        ({"infrastructure_failures": 4, "user_failures": 1}, 8.0),
        ({}, 1.0),
        ({"not_before": ago(5), "user_failures": 2}, 2.0),  # that of an earlier failure
    ],
)
@pytest.mark.parametrize(
    "why", [EndReason.USER_FAILURE, EndReason.INFRASTRUCTURE, EndReason.FENCED]
)
def test_after_a_failure_there_is_a_wait_that_grows(
    why: EndReason, job: dict[str, object], wait_s: float
) -> None:
    (action,) = replacing.replacement(seen(ended(why=why), **job))  # type: ignore[arg-type]
    assert isinstance(action, Wait)
    # half of it is jitter, and that is 0 here
    assert wait_s / 2 <= (action.until - NOW).total_seconds() <= wait_s
    assert action.reason.startswith("why it ended; next try in ")


def test_after_the_wait_the_same_vm_goes_on_if_it_is_fit() -> None:
    over = ended(why=EndReason.USER_FAILURE)
    assert replacing.replacement(seen(over, not_before=ago(-1))) == []
    again = [AssignSame(vm="a", attempt=2, node=0, reason="again after: why it ended")]
    assert replacing.replacement(seen(over, not_before=ago(0))) == again
    other = ended(why=EndReason.INFRASTRUCTURE)
    assert replacing.replacement(seen(other, not_before=ago(0))) == launch(
        2, "attempt 1 ended: infrastructure"
    )


@pytest.mark.parametrize(
    ("facts", "fit"),
    [
        ({}, True),
        ({"state": VmState.READY}, True),
        ({"state": VmState.DRAINING}, False),
        ({"notice_at": ago(1)}, False),
        ({"state": VmState.BOOTING, "notice_at": None}, False),
        ({"silent_s": 14.9}, True),
        ({"silent_s": 15.0}, False),
    ],
)
def test_which_vm_is_used_again(facts: dict[str, object], fit: bool) -> None:
    over = ended(why=EndReason.USER_FAILURE)
    snapshot = seen(over, vms=(vm(**facts),))  # type: ignore[arg-type]
    assert replacing.waits_for_same_vms(snapshot) is fit


def test_no_vm_waits_for_a_job_that_is_not_wanted_or_over() -> None:
    over = ended(why=EndReason.USER_FAILURE)
    assert not replacing.waits_for_same_vms(seen(over, wanted=Wanted.PAUSED))
    assert not replacing.waits_for_same_vms(seen(over, state=JobState.FAILED))
    assert not replacing.waits_for_same_vms(seen(attempt(reason=EndReason.USER_FAILURE)))
    assert not replacing.waits_for_same_vms(seen(ended()))
    assert not replacing.waits_for_same_vms(seen())


def test_nothing_is_launched_while_waiting_or_before_the_clouds_answered() -> None:
    assert replacing.replacement(seen(not_before=ago(-1))) == []
    assert replacing.replacement(replace(seen(), offers=None)) == []


def refused_vm(name: str, pool: Pool, ago_s: float, refusal: str = "NoCapacity") -> VmFacts:
    return vm(
        name,
        VmState.TERMINATED,
        pool=pool,
        reason=VmReason.LAUNCH_FAILED,
        refusal=refusal,
        ended_at=ago(ago_s),
    )


@pytest.mark.parametrize(
    ("refusals", "not_before", "wait_s"),
    [
        (1, None, None),  # the other pool is left
        (2, None, 1.0),
        (4, None, 2.0),
        (3, None, None),
        (2, ago(4), 1.0),
        (2, ago(3), 1.0),  # the refusal came with the end of the wait
        (2, ago(2), None),  # the round after that wait has just begun
    ],
)
def test_a_wait_comes_after_every_pool_has_refused(
    refusals: int, not_before: datetime | None, wait_s: float | None
) -> None:
    vms = (refused_vm("a", POOL, 3), refused_vm("b", OTHER, 4))
    (action,) = replacing.replacement(seen(vms=vms, refusals=refusals, not_before=not_before))
    if wait_s is None:
        assert isinstance(action, LaunchVm)
    else:
        assert isinstance(action, Wait)
        assert wait_s / 2 <= (action.until - NOW).total_seconds() <= wait_s
        assert action.reason.startswith("2 pools refused; next try in ")


def test_no_pool_that_fits_is_waited_for() -> None:
    (action,) = replacing.replacement(replace(seen(), offers={}))
    assert isinstance(action, Wait)
    assert action.reason.startswith("no cloud offers a pool")
    assert (action.until - NOW).total_seconds() >= LIMITS.backoff_max_s / 2


def test_the_job_fails_where_every_pool_refused_for_good() -> None:
    vms = (refused_vm("a", POOL, 3, "BadRequest"), refused_vm("b", OTHER, 4, "AuthFailed"))
    text = f"no pool is left: {OTHER} answered AuthFailed"
    assert replacing.replacement(seen(vms=vms)) == [FinishJob(state=JobState.FAILED, reason=text)]
    whole = attempt(on="c", state=AttemptState.DRAINING)
    (action,) = replacing.replacement(seen(whole, vms=(*vms, vm("c"))))
    assert isinstance(action, Wait)
    assert action.reason.startswith(f"{text}; the attempt with the notice goes on")
    assert (action.until - NOW).total_seconds() >= LIMITS.backoff_max_s / 2


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"state": JobState.PAUSED}, [ResumeJob(reason="resumed by the user")]),
        ({"state": JobState.PAUSED, "wanted": Wanted.PAUSED}, []),
        (
            {"state": JobState.PAUSED, "wanted": Wanted.CANCELLED},
            [FinishJob(state=JobState.CANCELLED, reason="cancelled by the user")],
        ),
        ({"state": JobState.FAILED}, []),
    ],
)
def test_what_leaves_a_pause(job: dict[str, object], expected: list[Action]) -> None:
    snapshot = seen(vms=(vm(state=VmState.TERMINATED),), **job)  # type: ignore[arg-type]
    assert replacing.resume(snapshot) == expected
    assert decide(snapshot) == expected


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
