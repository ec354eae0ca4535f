"""Steps of `spothop bootstrap`: done once in a run, and again only if AWS did not take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spothop_master.bootstrap.acting import Failed, Runner
from spothop_master.bootstrap.desired import Wanted
from spothop_master.bootstrap.found import Call, Do, Found, Refused, Step
from spothop_master.bootstrap.removal import removal
from spothop_master.clouds.base import AuthFailed, BadRequest, CloudError, Unavailable

EMPTY = Found(account="1", region="us-east-1")
WANTED = Wanted(region="us-east-1", bucket="b-1", software="")


class Scripted:
    """Raises what was scripted for an operation, in this order."""

    def __init__(self, **errors: list[CloudError]) -> None:
        self.errors = errors
        self.done: list[dict[str, Any]] = []

    def call(self, service: str, region: str, operation: str, **params: Any) -> Any:
        if self.errors.get(operation):
            raise self.errors[operation].pop(0)
        self.done.append(params)
        return {}

    def pages(self, service: str, region: str, operation: str, **params: Any) -> Iterator[Any]:
        raise NotImplementedError


def runner(calls: Scripted, found: list[Found], plan: Any, told: list[str]) -> Runner:
    """`found`: what is read, round by round; the last for ever."""
    return Runner(
        calls=calls,
        region="us-east-1",
        found=found.pop(0),
        read=lambda before, touched: found.pop(0) if len(found) > 1 else found[0],
        plan=plan,
        software=b"",
        tell=told.append,
        sleep=lambda seconds: None,
    )


def test_all_vms_of_many_are_ended() -> None:
    ids = [f"i-{number:03}" for number in range(250)]
    found = Found(account="1", region="us-east-1", vms=ids)
    calls = Scripted()
    runner(calls, [found, found, EMPTY], lambda now: removal(WANTED, now), []).run()
    assert [len(params["InstanceIds"]) for params in calls.done] == [100, 100, 50]
    assert sorted(vm for params in calls.done for vm in params["InstanceIds"]) == ids


def make(now: Found) -> list[Step]:
    """A group, unless it is there."""
    call = Call(service="ec2", operation="make", params={"ClientToken": str(len(now.ended))})
    return [] if now.vpc else [Step(subject="group", do=Do.MAKE, calls=[call])]


def test_what_aws_does_not_show_yet_is_waited_for_and_not_done_again() -> None:
    later = Found(account="1", region="us-east-1", ended=["i-1"])
    there = Found(account="1", region="us-east-1", vpc="there")
    calls, told = Scripted(), list[str]()
    assert runner(calls, [EMPTY, EMPTY, later, there, there], make, told).run() == there
    assert len(calls.done) == 1
    assert told == ["make group (ec2:Make)", "wait for group"]


def test_what_is_busy_or_not_there_yet_is_tried_again() -> None:
    profile = "Value (spothop-master) for parameter iamInstanceProfile.name is invalid"
    errors: list[CloudError] = [
        Unavailable("busy"),
        BadRequest("in use", code="DependencyViolation"),
        BadRequest(profile, code="InvalidParameterValue"),
    ]
    there = Found(account="1", region="us-east-1", vpc="there")
    calls = Scripted(make=errors)
    runner(calls, [EMPTY] * 5 + [there, there], make, []).run()
    assert len(calls.done) == 1


def test_a_refusal_names_the_thing_the_call_and_the_way_out() -> None:
    calls = Scripted(make=[AuthFailed("You are not authorized")])
    with pytest.raises(Failed, match="group: ec2:Make: You are not authorized") as caught:
        runner(calls, [EMPTY, EMPTY], make, []).run()
    assert "goes on from here" in caught.value.hint


def test_the_wait_has_an_end() -> None:
    with pytest.raises(Refused, match="not done after 10 minutes: group"):
        runner(Scripted(), [EMPTY, EMPTY], make, []).run()
