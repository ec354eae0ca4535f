"""When the next attempt is launched, where, and after what wait: facts in, actions out."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from spothop.wire import AttemptState, EndReason, JobState, Pool, VmReason, VmState, Wanted
from spothop_master.core import replace as replacing
from spothop_master.core.actions import (
    Action,
    AssignSame,
    FinishJob,
    LaunchVm,
    ResumeJob,
    Wait,
)
from spothop_master.core.decide import decide
from spothop_master.core.due import due
from spothop_master.core.facts import VmFacts
from spothop_master.core.refusals import BackOff, PoolRefusal, Scope
from support.core_facts import LIMITS, NOW, OTHER, POOL, ago, attempt, ended, seen, vm

GONE = vm(state=VmState.TERMINATED)


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
        ended_at=ago(1),
    )
    snapshot = replace(seen(attempt(2), vms=(refused,)), refusals=(refusal(POOL, 1, until_s=1),))
    (action,) = replacing.replacement(snapshot)
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


def refusal(
    pool: Pool, ago_s: float, error: str = "NoCapacity", *, until_s: float | None = None
) -> PoolRefusal:
    until = None if until_s is None else ago(-until_s)
    return PoolRefusal(pool=pool, error=error, last_at=ago(ago_s), until=until)


def back_off(scope: Scope, name: str, error: str, *, until_s: float) -> BackOff:
    return BackOff(cloud="x", scope=scope, name=name, error=error, until=ago(-until_s))


@pytest.mark.parametrize(
    ("closed", "expected"),
    [
        ({POOL: 5.0}, OTHER),
        ({POOL: 5.0, OTHER: -1.0}, OTHER),
        ({POOL: 0.0, OTHER: 3.0}, POOL),
        ({POOL: 5.0, OTHER: 3.0}, 3.0),
        ({POOL: 2.0, OTHER: 3.0}, 2.0),
    ],
)
def test_a_wait_is_for_the_first_pool_that_opens(
    closed: dict[Pool, float], expected: Pool | float
) -> None:
    refusals = tuple(refusal(pool, 3, until_s=s) for pool, s in closed.items())
    (action,) = replacing.replacement(replace(seen(vms=(GONE,)), refusals=refusals))
    if isinstance(expected, Pool):
        assert isinstance(action, LaunchVm)
        assert action.pool == expected
    else:
        assert isinstance(action, Wait)
        assert (action.until - NOW).total_seconds() == expected
        assert action.reason == f"2 pools refused; next try in {expected:.1f} s"


def test_an_account_that_is_closed_closes_its_pools_and_no_others() -> None:
    shut = back_off(Scope.ACCOUNT, "", "Throttled", until_s=60)
    facts = replace(seen(vms=(GONE,)), back_offs=(shut,))
    (wait,) = replacing.replacement(facts)
    assert isinstance(wait, Wait)
    assert (wait.why, wait.reason) == ("x: throttled", "x: throttled; next try in 60.0 s")
    elsewhere = POOL.model_copy(update={"cloud": "y"})
    (launched,) = replacing.replacement(replace(facts, offers={POOL: 1.0, elsewhere: 9.0}))
    assert isinstance(launched, LaunchVm)
    assert launched.pool == elsewhere
    assert launched.reason.endswith("; left out: x: throttled, until 00:01:00 UTC")


def test_jobs_that_wait_for_one_account_do_not_come_back_at_once() -> None:
    shut = back_off(Scope.ACCOUNT, "", "Throttled", until_s=60)
    facts = replace(seen(vms=(GONE,)), back_offs=(shut,), jitter=0.5)
    (wait,) = replacing.replacement(facts)
    assert isinstance(wait, Wait)
    assert (wait.until - NOW).total_seconds() == 65


def test_no_pool_that_fits_is_waited_for() -> None:
    (action,) = replacing.replacement(replace(seen(), offers={}))
    assert isinstance(action, Wait)
    assert action.reason.startswith("no cloud offers a pool")
    assert (action.until - NOW).total_seconds() >= LIMITS.backoff_max_s / 2


def test_the_job_fails_where_every_pool_refused_for_good() -> None:
    refusals = (refusal(POOL, 3, "BadRequest"), refusal(OTHER, 4, "BadRequest"))
    text = f"no pool is left: {POOL} answered BadRequest"
    facts = replace(seen(vms=(GONE,)), refusals=refusals)
    assert replacing.replacement(facts) == [FinishJob(state=JobState.FAILED, reason=text)]
    whole = attempt(on="c", state=AttemptState.DRAINING)
    facts = replace(seen(whole, vms=(vm("c"),)), refusals=refusals)
    (action,) = replacing.replacement(facts)
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


# --- a VM that its cloud recommends to leave ----------------------------------------------------


def at_risk(**facts: object) -> tuple[VmFacts, ...]:
    return (vm("a", at_risk_at=ago(1), **facts),)


def test_a_vm_at_risk_is_replaced_by_one_of_another_zone() -> None:
    (action,) = replacing.replacement(seen(attempt(), vms=at_risk()))
    assert isinstance(action, LaunchVm)
    assert (action.attempt, action.node, action.pool) == (2, 0, OTHER)
    assert "recommends to leave a" in action.reason


def test_it_is_left_where_it_is_without_another_place_that_is_open_now() -> None:
    facts = seen(attempt(), vms=at_risk())
    assert replacing.replacement(replace(facts, offers={POOL: 1.0})) == []
    until = NOW + timedelta(seconds=30)
    full = PoolRefusal(pool=OTHER, error="NoCapacity", last_at=NOW, until=until)
    refused = replace(facts, refusals=(full,))
    assert replacing.replacement(refused) == []
    waits_for = due(refused)
    assert waits_for is not None
    assert waits_for.at == until


def test_one_replacement_at_a_time_and_none_before_it_trains() -> None:
    vms = (*at_risk(), vm("b", VmState.BOOTING))
    preparing = attempt(2, "b", AttemptState.PREPARING)
    assert replacing.replacement(seen(attempt(), preparing, vms=vms)) == []
    assert replacing.replacement(seen(attempt(state=AttemptState.PREPARING), vms=at_risk())) == []
