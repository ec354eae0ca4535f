"""What the supervise loop makes of a listing and of silence: facts in, actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spothop.wire import VmReason, VmState
from spothop_master.core import watch
from spothop_master.core.actions import (
    Action,
    Adopt,
    LaunchLost,
    LaunchRefused,
    MarkRunning,
    MarkSuspect,
    ReleaseVm,
    RepeatLaunch,
    VmOver,
)
from spothop_master.core.decide import decide
from spothop_master.core.evidence import EndCause
from spothop_master.core.facts import (
    Sighting,
)
from spothop_master.core.refusals import Refused, Scope
from support.core_facts import POOL, ago, attempt, seen, vm

# --- what the cloud says --------------------------------------------------------------------------


def listed(**facts: object) -> Sighting:
    return Sighting(**{"cloud_id": "i-a", "over": False, **facts})  # type: ignore[arg-type]


TAKEN = listed(cause=EndCause.PREEMPTED, told="marked-for-termination")
TAKEN_BACK = "the cloud takes it back: preempted (marked-for-termination)"
UNSEEN = {"listed_at": ago(1), "sighting": None}
UNLAUNCHED = {
    **UNSEEN,
    "state": VmState.REQUESTED,
    "cloud_id": None,
    "launched_at": None,
    "joined_at": None,
}
BOOTS = {"state": VmState.BOOTING, "joined_at": None, "running_at": None}
FULL = Refused(error="NoCapacity", scope=Scope.POOL, detail="the zone is full")
LATE = f"{POOL} refused after it had accepted: the zone is full"


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
        # what its own record says of one that vanished is the end of it, and is waited for
        (
            {**UNSEEN, "record": EndCause.PREEMPTED},
            VmOver(vm="a", reason="the cloud's own record says: preempted"),
        ),
        ({**UNSEEN, "silent_s": 59.9, "awaits_record": True}, None),
        (
            {**UNSEEN, "silent_s": 60.0, "awaits_record": True},
            VmOver(vm="a", reason="the cloud does not know it any more"),
        ),
        # refused after it was accepted
        (
            {**BOOTS, "sighting": listed(refused=FULL, over=True)},
            LaunchRefused(vm="a", refused=FULL, kept=False, reason=LATE),
        ),
        (
            {**BOOTS, "sighting": listed(refused=FULL)},
            LaunchRefused(vm="a", refused=FULL, kept=True, reason=LATE),
        ),
        ({**BOOTS, "state": VmState.TERMINATING, "sighting": listed(refused=FULL)}, None),
        (
            {"sighting": listed(refused=FULL, over=True)},  # its agent had joined
            VmOver(vm="a", reason="the cloud says it is over: unknown"),
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
        # a launch that is under way, and 5 s after the end of the call for it
        ({**UNLAUNCHED, "in_flight": True, "effect_until": ago(-30)}, None),
        ({**UNLAUNCHED, "state": VmState.TERMINATING, "in_flight": True}, None),
        ({**UNLAUNCHED, "effect_until": ago(5.9)}, None),
        (
            {**UNLAUNCHED, "effect_until": ago(6)},
            LaunchLost(vm="a", reason="the cloud has no VM with its token"),
        ),
        (
            {**UNLAUNCHED, "in_flight": True, "sighting": listed()},
            Adopt(vm="a", reason="the cloud has its token as i-a"),
        ),
        (  # a termination that is under way
            {**UNSEEN, "state": VmState.TERMINATING, "in_flight": True, "effect_until": ago(-30)},
            VmOver(vm="a", reason="the cloud does not know it any more"),
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
        # the cloud takes it: it is not waited for, but for a sign that it is silent at all
        ({"silent_s": 14.9, "sighting": TAKEN}, None),
        (
            {"silent_s": 15.0, "sighting": TAKEN},
            ReleaseVm(vm="a", why=VmReason.PREEMPTED, reason=TAKEN_BACK),
        ),
        ({"silent_s": 15.0, "suspect_at": ago(9), "sighting": TAKEN, "deadline_at": ago(1)}, None),
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


@pytest.mark.parametrize(
    ("facts", "again"),
    [
        ({}, True),
        ({"listed_at": None}, True),
        ({"called_here": True}, False),
        ({"in_flight": True}, False),
        ({"settle_s": 0, "listed_at": None}, False),
        ({"requested_at": ago(3600), "listed_at": None}, False),
        ({"state": VmState.TERMINATING, "listed_at": None}, False),
    ],
)
def test_a_launch_of_a_process_that_is_gone_is_repeated(
    facts: dict[str, object], again: bool
) -> None:
    known = {**UNLAUNCHED, "requested_at": ago(9), "called_here": False, **facts}
    left = vm("a", **known)  # type: ignore[arg-type]
    actions = watch.cloud_says(seen(vms=(left,)))
    assert any(isinstance(action, RepeatLaunch) for action in actions) == again


def test_a_vm_that_is_taken_before_its_agent_joined_is_not_waited_for() -> None:
    booting = vm("a", VmState.BOOTING, running_at=ago(5), sighting=TAKEN)
    assert watch.silence(seen(attempt(), vms=(booting,))) == [
        ReleaseVm(vm="a", why=VmReason.PREEMPTED, reason=TAKEN_BACK)
    ]


def test_how_long_to_wait_is_a_fact_of_each_vms_cloud() -> None:
    slow, quick = (
        vm(
            name,
            VmState.BOOTING,
            silent_s=999.0,
            running_at=ago(400),
            join_timeout_s=join_timeout_s,
        )
        for name, join_timeout_s in (("slow", 900), ("quick", 300))
    )
    vms = (vm("up"), slow, quick)
    assert [action.vm for action in watch.silence(seen(attempt(), vms=vms))] == ["quick"]  # type: ignore[union-attr]
    missing = [
        replace(each, sighting=None, listed_at=ago(0), launched_at=ago(60), settle_s=settle_s)
        for each, settle_s in ((slow, 120), (quick, 0))
    ]
    assert [action.vm for action in watch.cloud_says(seen(vms=(vm("up"), *missing)))] == ["quick"]  # type: ignore[union-attr]


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


def test_of_many_that_fell_silent_together_none_is_ended_for_an_hour() -> None:
    """It is more likely that nobody reaches the master."""
    for silent_s, ends in ((60.0, False), (3599.0, False), (3600.0, True)):
        facts = seen(attempt(), vms=(vm(silent_s=silent_s, suspect_at=ago(1)),))
        found = watch.silence(replace(facts, silent_together=True))
        assert bool(found) == ends
        assert watch.silence(facts)


@pytest.mark.parametrize(
    ("silent", "known", "is_so"),
    [(4, 4, False), (5, 5, True), (5, 10, False), (6, 10, True), (500, 1001, False), (0, 0, False)],
)
def test_together_is_more_than_half_and_more_than_a_few(
    silent: int, known: int, is_so: bool
) -> None:
    assert watch.together(silent, known) is is_so


def test_past_the_deadline_of_its_notice_a_silent_vm_is_over_all_the_same() -> None:
    facts = seen(attempt(), vms=(vm(silent_s=20, deadline_at=ago(2)),))
    (found,) = watch.silence(replace(facts, silent_together=True))
    assert isinstance(found, ReleaseVm)
