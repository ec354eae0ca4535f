"""What GCP's driver remembers of VMs that Compute Engine forgets."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from spothop.wire import Pool
from spothop_master.clouds.base import OWNER_TAG, CloudVmState, NoCapacity, Vm
from spothop_master.clouds.gcp.lives import KEPT, Lives
from spothop_master.clouds.gcp.reading import Fate
from spothop_master.core.evidence import EndCause

NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
REGION = "us-central1"
VM = Vm(
    id="us-central1-a/x",
    token="t",
    pool=Pool(cloud="gcp", region=REGION, zone="us-central1-a", vm="e2-standard-2"),
    state=CloudVmState.RUNNING,
    requested_at=NOW,
    running_at=NOW + timedelta(seconds=5),
    tags={OWNER_TAG: "us"},
)
DELETED = Fate(cause=EndCause.TERMINATED, told="delete", over_at=NOW + timedelta(seconds=60))


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lives(clock: Clock) -> Lives:
    made = Lives(clock)
    made.saw([VM])
    return made


def test_one_that_is_listed_is_not_over_whatever_its_operations_say(lives: Lives) -> None:
    lives.tell({VM.id: DELETED}, listed=[VM.id])
    [vm] = lives.get([VM.id])
    assert (vm.state, vm.cause, vm.ended_at) == (CloudVmState.RUNNING, EndCause.TERMINATED, None)
    assert lives.over(REGION, "us") == []


def test_one_that_is_over_never_comes_back(lives: Lives) -> None:
    lives.tell({VM.id: DELETED}, listed=[])
    [over] = lives.over(REGION, "us")
    assert (over.state, over.ended_at, over.running_at) == (
        CloudVmState.TERMINATED,
        DELETED.over_at,
        VM.running_at,
    )
    assert lives.saw([VM]) == [over], "an older listing"
    assert lives.unclear(REGION, "us", []) == []


def test_what_is_listed_no_more_is_unclear_until_its_operations_tell(lives: Lives) -> None:
    assert lives.unclear(REGION, "us", [VM.id]) == []
    assert lives.unclear(REGION, "us", []) == [VM.id]
    lives.tell({}, listed=[])
    assert lives.unclear(REGION, "us", []) == [VM.id]
    assert lives.unclear("europe-west4", "us", []) == lives.unclear(REGION, "them", []) == []


def test_what_comes_to_its_end_is_unclear_until_somebody_says_why(lives: Lives) -> None:
    stopping = replace(VM, state=CloudVmState.STOPPING)
    lives.saw([stopping])
    assert lives.unclear(REGION, "us", [VM.id]) == [VM.id]
    lives.tell({VM.id: Fate(cause=EndCause.PREEMPTED, told="taken")}, listed=[VM.id])
    assert lives.unclear(REGION, "us", [VM.id]) == []
    [vm] = lives.saw([stopping])
    assert (vm.cause, vm.told) == (EndCause.PREEMPTED, "taken"), "it stays told"


def test_one_that_was_refused_never_ran(lives: Lives) -> None:
    refused = NoCapacity("full")
    fate = Fate(cause=EndCause.FAILED, refused=refused, over_at=NOW)
    lives.tell({VM.id: fate}, listed=[])
    [vm] = lives.over(REGION, "us")
    assert (vm.error, vm.running_at) == (refused, None)


def test_nothing_is_kept_for_ever_and_nothing_unknown_is_told(lives: Lives, clock: Clock) -> None:
    lives.tell({"us-central1-a/other": DELETED, VM.id: DELETED}, listed=[])
    assert [vm.id for vm in lives.over(REGION, "us")] == [VM.id]
    clock.now += KEPT + timedelta(seconds=1)
    lives.unclear(REGION, "us", [])
    assert lives.over(REGION, "us") == []
