"""What every cloud does alike; one rig per implementation, real or fake, runs the same tests.

A rig makes the cloud, names one spot and one on-demand pool of it, and knows how to let its time
pass. What only one cloud can do (scripts, metadata, processes) is tested elsewhere.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from spothop.wire import AgentConfig, Dialect, Pool
from spothop_master.clouds.base import (
    OWNER_TAG,
    BadRequest,
    Cloud,
    CloudVmState,
    LaunchSpec,
    PriceTooHigh,
    Vm,
)
from spothop_master.clouds.local.config import LocalConfig
from spothop_master.clouds.local.driver import LocalCloud
from spothop_master.core.evidence import EndCause
from support.waiting import WITHIN_S

RUN = uuid.uuid4().hex


def token(name: str) -> str:
    """Of this process alone: VMs of one token have one id, and whoever buries one of them ends the
    processes of all, wherever they were launched."""
    return f"{name}-{RUN}"


class Rig(Protocol):
    """One implementation under test."""

    cloud: Cloud
    spot: Pool
    on_demand: Pool

    def pass_time(self) -> None:
        """A little of the cloud's time: waits for a real one, moves a fake one's clock."""

    def close(self) -> None: ...


class LocalRig:
    """The local cloud with agents that do nothing."""

    def __init__(self, folder: Path) -> None:
        config = LocalConfig.model_validate(
            {
                "directory": folder / "cloud",
                "isolation": "processes",
                "agent_command": ["/bin/sh", "-c", "sleep 600"],
                "pools": [
                    {
                        "region": "r",
                        "zone": "z",
                        "vm": "small",
                        "dialect": "gcp",
                        "price": 0.2,
                        "on_demand_price": 0.6,
                        "grace_s": 0.5,
                        "allocation_s": [0, 0.05],
                        "boot_s": [0, 0.05],
                    }
                ],
            }
        )
        self.cloud: Cloud = LocalCloud(config)
        self.spot = Pool(cloud="local", region="r", zone="z", vm="small")
        self.on_demand = self.spot.model_copy(update={"spot": False})

    def pass_time(self) -> None:
        time.sleep(0.01)

    def close(self) -> None:
        owners = ("us", "them")
        for owner in owners:
            for vm in self.cloud.list(owner):
                self.cloud.terminate(vm.id)
        for owner in owners:
            wait(self, lambda owner=owner: all(vm.ended_at for vm in self.cloud.list(owner)))  # type: ignore[misc]


RIGS: dict[str, Callable[[Path], Rig]] = {"local": LocalRig}


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = RIGS[request.param](tmp_path)
    yield made
    made.close()


def wait(rig: Rig, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        rig.pass_time()


def spec(pool: Pool, *, owner: str = "us", max_price: float | None = None) -> LaunchSpec:
    user_data = AgentConfig(
        master="http://127.0.0.1:9", token="join", vm="vm-1", dialect=Dialect.GCP, directory="/x"
    )
    tags = {OWNER_TAG: owner, "job": "j1"}
    return LaunchSpec(pool=pool, user_data=user_data, tags=tags, max_price=max_price)


def listed(rig: Rig, vm: Vm, *, owner: str = "us") -> Vm:
    [found] = [item for item in rig.cloud.list(owner) if item.id == vm.id]
    return found


def running(rig: Rig, pool: Pool, name: str = "t1") -> Vm:
    vm = rig.cloud.launch(spec(pool), token(name))
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.RUNNING)
    return listed(rig, vm)


def test_pools_are_the_clouds_own_and_priced(rig: Rig) -> None:
    infos = {info.pool: info for info in rig.cloud.pools()}
    assert {rig.spot, rig.on_demand} <= set(infos)
    assert all(pool.cloud == rig.cloud.name for pool in infos)
    assert all(info.price > 0 and info.grace_s > 0 for info in infos.values())
    assert infos[rig.on_demand].price == infos[rig.on_demand].on_demand_price


def test_a_launch_is_pending_then_running_with_times_and_tags(rig: Rig) -> None:
    vm = rig.cloud.launch(spec(rig.spot), token("t1"))
    assert vm.state in (CloudVmState.PENDING, CloudVmState.RUNNING)
    assert (vm.token, vm.pool, vm.cause, vm.ended_at) == (token("t1"), rig.spot, None, None)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.RUNNING)
    up = listed(rig, vm)
    assert up.running_at is not None
    assert up.running_at.tzinfo is not None
    assert up.requested_at <= up.running_at
    assert up.tags == {OWNER_TAG: "us", "job": "j1"}


def test_the_same_token_never_makes_a_second_vm(rig: Rig) -> None:
    first = rig.cloud.launch(spec(rig.spot), token("t1"))
    assert rig.cloud.launch(spec(rig.spot), token("t1")).id == first.id
    assert [vm.id for vm in rig.cloud.list("us")] == [first.id]
    assert rig.cloud.launch(spec(rig.spot), token("t2")).id != first.id


def test_the_same_token_for_something_else_is_a_bad_request(rig: Rig) -> None:
    rig.cloud.launch(spec(rig.spot), token("t1"))
    with pytest.raises(BadRequest, match="t1"):
        rig.cloud.launch(spec(rig.on_demand), token("t1"))


def test_an_unknown_pool_is_a_bad_request_and_leaves_nothing(rig: Rig) -> None:
    unknown = rig.spot.model_copy(update={"zone": "nowhere"})
    with pytest.raises(BadRequest, match="nowhere"):
        rig.cloud.launch(spec(unknown), token("t1"))
    assert list(rig.cloud.list("us")) == []


def test_a_price_above_the_cap_is_refused(rig: Rig) -> None:
    with pytest.raises(PriceTooHigh):
        rig.cloud.launch(spec(rig.spot, max_price=0.0001), token("t1"))
    assert list(rig.cloud.list("us")) == []


def test_owners_see_their_own_vms_only(rig: Rig) -> None:
    ours = rig.cloud.launch(spec(rig.spot), token("t1"))
    theirs = rig.cloud.launch(spec(rig.spot, owner="them"), "t2")
    assert [vm.id for vm in rig.cloud.list("us")] == [ours.id]
    assert [vm.id for vm in rig.cloud.list("them")] == [theirs.id]
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
    assert rig.cloud.launch(spec(rig.spot), token("t1")).state is CloudVmState.TERMINATED


@pytest.mark.parametrize("vm_id", ["", "lvm-0000000000000000", "../vms", "i-1", "/etc"])
def test_terminating_what_never_was_is_harmless(rig: Rig, vm_id: str) -> None:
    rig.cloud.terminate(vm_id)


def test_a_vm_can_be_terminated_before_it_runs(rig: Rig) -> None:
    vm = rig.cloud.launch(spec(rig.spot), token("t1"))
    rig.cloud.terminate(vm.id)
    wait(rig, lambda: listed(rig, vm).state is CloudVmState.TERMINATED)
    assert listed(rig, vm).cause is EndCause.TERMINATED


@pytest.mark.parametrize("notice_s", [None, 0.0, 0.1])
def test_the_eviction_test_ends_a_spot_vm_as_preempted(rig: Rig, notice_s: float | None) -> None:
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
