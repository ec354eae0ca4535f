"""What every cloud does alike; one rig per implementation, real or fake, runs the same tests.

The rigs, and what one of them cannot do, are in tests/fakes/cloud_rigs.py. What only one cloud can
do (scripts, metadata, processes) is tested elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fakes.cloud_rigs import CANNOT, RIGS, Rig
from spothop.wire import Pool
from spothop_master.clouds.base import (
    OWNER_TAG,
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudVmState,
    KeepsRecords,
    NoCapacity,
    PriceTooHigh,
    Throttled,
    Vm,
)
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test over the rigs that can do what it needs."""
    if "rig" in metafunc.fixturenames:
        needed = [name for mark in metafunc.definition.iter_markers("needs") for name in mark.args]
        able = [name for name in RIGS if not set(needed) & set(CANNOT.get(name, {}))]
        metafunc.parametrize("rig", able, indirect=True)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = RIGS[request.param](tmp_path, request.getfixturevalue)
    yield made
    made.close()


def wait(rig: Rig, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + rig.within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        rig.pass_time()


def listed(rig: Rig, vm: Vm) -> Vm:
    [found] = [item for item in rig.cloud.list(rig.us) if item.id == vm.id]
    return found


def ids(rig: Rig) -> list[str]:
    return [vm.id for vm in rig.cloud.list(rig.us)]


def running(rig: Rig, pool: Pool, name: str = "t1") -> Vm:
    vm = rig.cloud.launch(rig.spec(pool), rig.token(name))
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.RUNNING)
    return listed(rig, vm)


def test_pools_are_the_clouds_own_and_priced(rig: Rig) -> None:
    infos = {info.pool: info for info in rig.cloud.pools()}
    assert {rig.spot, rig.on_demand} <= set(infos)
    assert all(pool.cloud == rig.cloud.name for pool in infos)
    assert all(info.price > 0 and info.grace_s > 0 for info in infos.values())
    assert infos[rig.on_demand].price == infos[rig.on_demand].on_demand_price


def test_a_launch_is_pending_then_running_with_times_and_tags(rig: Rig) -> None:
    vm = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert vm.state in (CloudVmState.PENDING, CloudVmState.RUNNING)
    assert (vm.token, vm.pool, vm.cause, vm.ended_at) == (rig.token("t1"), rig.spot, None, None)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.RUNNING)
    up = listed(rig, vm)
    assert up.running_at is not None
    assert up.running_at.tzinfo is not None
    assert up.requested_at <= up.running_at
    assert up.tags == {OWNER_TAG: rig.us, "job": "j1"}


def test_the_same_token_never_makes_a_second_vm(rig: Rig) -> None:
    first = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert rig.cloud.launch(rig.spec(rig.spot), rig.token("t1")).id == first.id
    assert [vm.id for vm in rig.cloud.list(rig.us)] == [first.id]
    assert rig.cloud.launch(rig.spec(rig.spot), rig.token("t2")).id != first.id


def test_the_same_token_for_something_else_makes_nothing(rig: Rig) -> None:
    """Ours is the mistake; or the cloud says only that there was another launch, which the listing
    has to show."""
    vm = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    with pytest.raises((BadRequest, Ambiguous)):
        rig.cloud.launch(rig.spec(rig.on_demand), rig.token("t1"))
    assert ids(rig) == [vm.id]


def test_an_unknown_pool_is_a_bad_request_and_leaves_nothing(rig: Rig) -> None:
    unknown = rig.spot.model_copy(update={"zone": "nowhere"})
    with pytest.raises(BadRequest, match="nowhere"):
        rig.cloud.launch(rig.spec(unknown), rig.token("t1"))
    assert list(rig.cloud.list(rig.us)) == []


def test_a_price_above_the_cap_is_refused(rig: Rig) -> None:
    with pytest.raises(PriceTooHigh):
        rig.cloud.launch(rig.spec(rig.spot, max_price=0.0001), rig.token("t1"))
    assert list(rig.cloud.list(rig.us)) == []


def test_owners_see_their_own_vms_only(rig: Rig) -> None:
    ours = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    theirs = rig.cloud.launch(rig.spec(rig.spot, owner=rig.them), rig.token("t2"))
    assert [vm.id for vm in rig.cloud.list(rig.us)] == [ours.id]
    assert [vm.id for vm in rig.cloud.list(rig.them)] == [theirs.id]
    assert list(rig.cloud.list("nobody")) == []


def test_termination_is_over_when_the_listing_says_so_and_may_be_repeated(rig: Rig) -> None:
    vm = running(rig, rig.spot)
    rig.cloud.terminate(vm.id)
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    ended = listed(rig, vm)
    assert ended.cause is EndCause.TERMINATED
    assert ended.running_at is not None
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.running_at
    rig.cloud.terminate(vm.id)
    assert listed(rig, vm) == ended
    assert rig.left() == []


@pytest.mark.needs("relaunch_ended")
def test_the_token_of_a_vm_that_ended_answers_with_it(rig: Rig) -> None:
    vm = running(rig, rig.spot)
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    assert rig.cloud.launch(rig.spec(rig.spot), rig.token("t1")).state is CloudVmState.TERMINATED


def test_the_token_of_a_vm_that_ended_makes_no_other(rig: Rig) -> None:
    vm = running(rig, rig.spot)
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    with suppress(Ambiguous):  # then the listing decides
        assert rig.cloud.launch(rig.spec(rig.spot), rig.token("t1")).id == vm.id
    assert ids(rig) == [vm.id]


@pytest.mark.parametrize("vm_id", ["", "lvm-0000000000000000", "../vms", "i-1", "/etc"])
def test_terminating_what_never_was_is_harmless(rig: Rig, vm_id: str) -> None:
    rig.cloud.terminate(vm_id)


def test_a_vm_can_be_terminated_before_it_runs(rig: Rig) -> None:
    vm = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    assert listed(rig, vm).cause is EndCause.TERMINATED


def test_the_eviction_test_ends_a_spot_vm_as_preempted(rig: Rig) -> None:
    vm = running(rig, rig.spot)
    rig.cloud.preempt(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    assert listed(rig, vm).cause is EndCause.PREEMPTED
    assert rig.left() == []


@pytest.mark.needs("short_notice")
@pytest.mark.parametrize("notice_s", [0.0, 0.1])
def test_the_eviction_test_takes_less_notice_than_promised(rig: Rig, notice_s: float) -> None:
    vm = running(rig, rig.spot)
    rig.cloud.preempt(vm.id, notice_s)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    assert listed(rig, vm).cause is EndCause.PREEMPTED


def test_only_living_spot_vms_can_be_preempted(rig: Rig) -> None:
    vm = running(rig, rig.on_demand)
    with pytest.raises(BadRequest, match="on demand"):
        rig.cloud.preempt(vm.id)
    with pytest.raises(BadRequest):
        rig.cloud.preempt("lvm-0000000000000000")
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    with pytest.raises(BadRequest):
        rig.cloud.preempt(vm.id)


def test_a_termination_during_a_notice_counts_as_asked_for(rig: Rig) -> None:
    vm = running(rig, rig.spot)
    rig.cloud.preempt(vm.id)
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    assert listed(rig, vm).cause is EndCause.TERMINATED


# --- a cloud that refuses ---------------------------------------------------------------------


@pytest.mark.needs("refuse")
def test_a_launch_that_is_refused_leaves_nothing(rig: Rig) -> None:
    rig.refuse()
    with pytest.raises(NoCapacity) as raised:
        rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert raised.value.scope is Scope.POOL
    assert ids(rig) == []
    assert rig.cloud.launch(rig.spec(rig.spot), rig.token("t2")).token == rig.token("t2")


@pytest.mark.needs("refuse")
def test_a_refused_token_may_be_used_again(rig: Rig) -> None:
    rig.refuse()
    with pytest.raises(NoCapacity):
        rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    vm = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert ids(rig) == [vm.id]


@pytest.mark.needs("refuse_later")
def test_a_refusal_that_comes_later_is_told_by_the_listing(rig: Rig) -> None:
    rig.refuse_later()
    vm = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert vm.error is None
    wait(rig, lambda: listed(rig, vm).error is not None)
    refused = listed(rig, vm)
    assert isinstance(refused.error, NoCapacity)
    assert refused.running_at is None
    assert refused.cause is not EndCause.PREEMPTED
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    assert rig.left() == []


@pytest.mark.needs("throttle")
def test_a_launch_that_is_one_too_many_is_throttled_where_the_cloud_counts(rig: Rig) -> None:
    rig.throttle()
    with pytest.raises(Throttled) as raised:
        rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert (raised.value.scope, raised.value.code) == (rig.throttled_scope, rig.throttled)
    assert ids(rig) == []


@pytest.mark.needs("expire")
def test_with_expired_credentials_every_call_says_so(rig: Rig) -> None:
    vm = running(rig, rig.spot)
    rig.expire()
    with pytest.raises(AuthFailed) as raised:
        rig.cloud.launch(rig.spec(rig.spot), rig.token("t2"))
    assert raised.value.scope is Scope.ACCOUNT
    with pytest.raises(AuthFailed):
        rig.cloud.list(rig.us)
    with pytest.raises(AuthFailed):
        rig.cloud.terminate(vm.id)
    rig.renew()
    assert ids(rig) == [vm.id]


# --- answers that are not clear -----------------------------------------------------------------


@pytest.mark.needs("lose_answer")
def test_a_launch_whose_answer_is_lost_is_found_by_its_token(rig: Rig) -> None:
    rig.lose_answer()
    with pytest.raises(Ambiguous):
        rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    [made] = rig.cloud.list(rig.us)
    assert made.token == rig.token("t1")
    assert rig.cloud.launch(rig.spec(rig.spot), rig.token("t1")).id == made.id
    assert ids(rig) == [made.id]


@pytest.mark.needs("lose_request")
def test_a_launch_that_never_arrived_looks_the_same_and_may_be_repeated(rig: Rig) -> None:
    rig.lose_request()
    with pytest.raises(Ambiguous):
        rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert ids(rig) == []
    vm = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert ids(rig) == [vm.id]


@pytest.mark.needs("hide")
def test_a_new_vm_may_be_missing_from_listings_no_longer_than_the_cloud_says(rig: Rig) -> None:
    rig.hide()
    vm = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    assert ids(rig) == []
    assert rig.cloud.launch(rig.spec(rig.spot), rig.token("t1")).id == vm.id
    assert rig.cloud.limits.settle_s > 0
    wait(rig, lambda: ids(rig) == [vm.id])


@pytest.mark.needs("hide")
def test_a_vm_that_the_listing_does_not_show_yet_can_be_terminated(rig: Rig) -> None:
    """At once, or, where the cloud does not know it yet either, once it is listed."""
    rig.hide()
    vm = rig.cloud.launch(rig.spec(rig.spot), rig.token("t1"))
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: ids(rig) == [vm.id])
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    assert rig.left() == []


# --- ends that nobody sees ----------------------------------------------------------------------


@pytest.mark.needs("vanish_preempted")
def test_a_preempted_vm_may_vanish_from_the_listing(rig: Rig) -> None:
    rig.vanish_preempted()
    vm = running(rig, rig.spot)
    other = running(rig, rig.spot, "t2")
    rig.cloud.preempt(vm.id)
    wait(rig, lambda: ids(rig) == [other.id])
    rig.cloud.terminate(vm.id)
    if isinstance(rig.cloud, KeepsRecords):
        assert rig.cloud.end_cause(vm.id) in (EndCause.PREEMPTED, None)


@pytest.mark.needs("stray")
def test_vms_with_our_tag_are_found_wherever_they_come_from(rig: Rig) -> None:
    vm_id = rig.stray()
    assert ids(rig) == [vm_id]
    rig.cloud.terminate(vm_id)
    wait(rig, lambda: all(vm.state is CloudVmState.TERMINATED for vm in rig.cloud.list(rig.us)))
    assert rig.left() == []
