"""Azure's driver through the real SDK against the fake (tests/fakes/azure)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest

from fakes.azure import Emulator
from fakes.azure.group import GROUP_ID
from fakes.azure.retail import meters
from fakes.azure.schema import Wrong, check
from fakes.azure.server import IDENTITY, subnet
from fakes.azure_driver import D2, ON_DEMAND, POOL, cloud_at, listed, running, spec
from fakes.azure_rig import cloud_of
from spothop.wire import ANY_ZONE, Dialect, Pool
from spothop_master.clouds import inventory
from spothop_master.clouds.azure.config import AzureConfig
from spothop_master.clouds.azure.driver import AzureCloud
from spothop_master.clouds.base import (
    OWNER_TAG,
    Ambiguous,
    BadRequest,
    CloudVmState,
    NoCapacity,
    QuotaExceeded,
    TellsConsole,
    TellsRemains,
    Throttled,
    Unavailable,
    Vm,
)
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope
from support.ports import free_port

MakeCloud = Callable[..., AzureCloud]


@pytest.fixture
def make_cloud(azure: Emulator) -> MakeCloud:
    return partial(cloud_at, azure)


@pytest.fixture
def cloud(make_cloud: MakeCloud) -> AzureCloud:
    return make_cloud()


# --- what is sent -------------------------------------------------------------------------------


def test_a_launch_is_one_request_for_a_spot_vm_that_takes_all_with_it(
    azure: Emulator, cloud: AzureCloud
) -> None:
    vm = cloud.launch(spec(max_price=0.5, disk_gb=50), "spothop-1")
    [call] = azure.calls
    body = json.loads(call.body)
    properties = body["properties"]
    assert (call.what, call.name) == ("PUT virtualMachines", "spothop-1")
    assert call.headers["if-none-match"] == "*"
    assert {key: properties[key] for key in ("priority", "evictionPolicy", "billingProfile")} == {
        "priority": "Spot",
        "evictionPolicy": "Delete",
        "billingProfile": {"maxPrice": 0.5},
    }
    disk = properties["storageProfile"]["osDisk"]
    assert (disk["deleteOption"], disk["diskSizeGB"]) == ("Delete", 47)
    [card] = properties["networkProfile"]["networkInterfaceConfigurations"]
    [config] = card["properties"]["ipConfigurations"]
    address = config["properties"]["publicIPAddressConfiguration"]
    assert card["properties"]["deleteOption"] == "Delete"
    assert address["properties"]["deleteOption"] == "Delete"
    assert [each["tags"][OWNER_TAG] for each in (body, card, address)] == ["us"] * 3
    assert base64.b64decode(properties["osProfile"]["customData"]) == b"#!/bin/sh\n"
    assert body["zones"] == ["1"]
    assert body["identity"]["userAssignedIdentities"] == {IDENTITY: {}}
    assert (vm.state, vm.token, vm.pool) == (CloudVmState.PENDING, "spothop-1", POOL)


def test_without_a_cap_the_price_on_demand_is_the_highest(
    azure: Emulator, cloud: AzureCloud
) -> None:
    cloud.launch(spec(), "t1")
    properties = json.loads(azure.calls[0].body)["properties"]
    assert properties["billingProfile"] == {"maxPrice": -1}


def test_the_same_launch_has_the_same_bytes_and_no_address_where_there_is_a_gateway(
    azure: Emulator, make_cloud: MakeCloud
) -> None:
    for _ in range(2):
        make_cloud(public_address=False).launch(spec(), "t1")
    first, second = (call.body for call in azure.calls if call.method == "PUT")
    assert first == second
    assert b"publicIPAddress" not in first
    assert len(azure.group.lives) == 1


def test_the_fake_refuses_what_the_sdks_types_do_not_have() -> None:
    with pytest.raises(Wrong, match="Could not find member 'evictPolicy'"):
        check({"location": "eastus", "properties": {"evictPolicy": "Delete"}}, "VirtualMachine")
    disk = {"storageProfile": {"osDisk": {"name": "d"}}}
    with pytest.raises(Wrong, match="'createOption' is missing"):
        check({"location": "eastus", "properties": disk}, "VirtualMachine")
    with pytest.raises(Wrong, match="is none of regular, low, spot"):
        check({"location": "eastus", "properties": {"priority": "spott"}}, "VirtualMachine")


def test_a_vm_made_by_another_request_under_the_same_name_is_not_taken_for_ours(
    cloud: AzureCloud, make_cloud: MakeCloud
) -> None:
    cloud.launch(spec(), "t1")
    with pytest.raises(Ambiguous, match="another request"):
        make_cloud(disk_gb=200).launch(spec(), "t1")


def test_a_zone_left_to_azure_and_a_region_without_zones_are_named_by_the_region(
    azure: Emulator, make_cloud: MakeCloud
) -> None:
    regions = {each: {"subnet": subnet(each)} for each in ("eastus", "westus")}
    azure.meters = meters({D2: (0.02, 0.096)}, "eastus") + meters({D2: (0.03, 0.1)}, "westus")
    cloud = make_cloud(regions=regions)
    zones = {info.pool.zone for info in cloud.pools()}
    assert zones == {"eastus-1", "eastus-2", "eastus-3", "westus"}
    anywhere = cloud.launch(spec(POOL.model_copy(update={"zone": ANY_ZONE})), "t1")
    assert anywhere.pool.zone == "eastus"
    there = cloud.launch(spec(Pool(cloud="azure", region="westus", zone="westus", vm=D2)), "t2")
    assert there.pool.zone == "westus"
    assert [json.loads(call.body).get("zones") for call in azure.calls if call.method == "PUT"] == [
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("change", "token", "message"),
    [
        ({"script": ""}, "t1", "no user data"),
        ({"script": "x" * 70_000}, "t1", "70000 bytes; Azure takes 65535"),
        ({}, "", "client token"),
        ({"image": "ubuntu-22.04"}, "t1", "expected PUBLISHER:OFFER:SKU:VERSION"),
    ],
)
def test_what_azure_would_not_take_is_not_sent(
    azure: Emulator, cloud: AzureCloud, change: dict[str, Any], token: str, message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        cloud.launch(replace(spec(), **change), token)
    assert azure.calls == []


# --- offers -------------------------------------------------------------------------------------


def test_prices_are_those_of_linux_by_the_retail_prices_api(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.page = 2  # so that pages are followed
    infos = {info.pool: info for info in cloud.pools()}
    assert len(infos) == 6
    spot, on_demand = infos[POOL], infos[ON_DEMAND]
    assert (spot.price, spot.on_demand_price, spot.grace_s) == (0.02, 0.096, 30.0)
    assert (on_demand.price, on_demand.dialect) == (0.096, Dialect.AZURE)


def test_what_the_subscription_may_not_have_is_not_offered(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.skus[D2] = {"vcpus": 2, "not_in": ["2"], "spot": False}
    assert {(info.pool.zone, info.pool.spot) for info in cloud.pools()} == {
        ("eastus-1", False),
        ("eastus-3", False),
    }


def test_what_is_offered_is_read_rarely(azure: Emulator, cloud: AzureCloud) -> None:
    for _ in range(12 * 60):
        cloud.pools()
        azure.clock.advance(60)
    assert azure.count("GET skus") == 2
    assert azure.count("GET prices") == 12


def test_without_the_right_to_see_vm_types_those_of_the_catalogue_are_offered(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.fail("GET skus", 403, "AuthorizationFailed")
    assert {info.pool.zone for info in cloud.pools()} == {"eastus-1", "eastus-2", "eastus-3"}


def test_prices_that_cannot_be_had_keep_those_from_before(
    azure: Emulator, cloud: AzureCloud
) -> None:
    before = cloud.pools()
    azure.clock.advance(7200)
    azure.fail("GET prices", 500, "", times=9)
    assert cloud.pools() == before


def test_without_any_price_from_azure_only_on_demand_is_offered(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.fail("GET prices", 500, "", times=9)
    assert {(info.pool.spot, info.price) for info in cloud.pools()} == {(False, 1.0)}


def test_an_image_of_the_job_is_taken_by_name_or_by_id(azure: Emulator, cloud: AzureCloud) -> None:
    image = f"{GROUP_ID}/providers/Microsoft.Compute/images/mine"
    cloud.launch(spec(image=image), "t1")
    cloud.launch(spec(image="debian:debian-12:12-gen2:latest"), "t2")
    sent = [
        json.loads(call.body)["properties"]["storageProfile"]["imageReference"]
        for call in azure.calls
    ]
    assert sent == [
        {"id": image},
        {"publisher": "debian", "offer": "debian-12", "sku": "12-gen2", "version": "latest"},
    ]


# --- refusals -----------------------------------------------------------------------------------


def test_a_quota_is_told_by_its_words(azure: Emulator, cloud: AzureCloud) -> None:
    azure.quota = 3
    cloud.launch(spec(), "t1")
    with pytest.raises(QuotaExceeded, match="LowPriorityCores") as raised:
        cloud.launch(spec(), "t2")
    assert raised.value.scope is Scope.REGION


def test_a_vm_type_that_the_zone_has_not_is_no_capacity(azure: Emulator, cloud: AzureCloud) -> None:
    azure.skus[D2]["not_in"] = ["1"]
    with pytest.raises(NoCapacity) as raised:
        cloud.launch(spec(), "t1")
    assert (raised.value.scope, raised.value.code) == (Scope.POOL, "SkuNotAvailable")


def test_throttling_says_how_long(azure: Emulator, cloud: AzureCloud) -> None:
    azure.fail("PUT *", 429, "OperationNotAllowed", headers={"Retry-After": "17"})
    left = "Microsoft.Compute/PutVM3Min;0,Microsoft.Compute/PutVM30Min;12"
    azure.fail("PUT *", 429, "TooManyRequests", headers={"x-ms-ratelimit-remaining-resource": left})
    waits = []
    for _ in range(2):
        with pytest.raises(Throttled) as raised:
            cloud.launch(spec(), "t1")
        waits.append(raised.value.retry_after_s)
    assert waits == [17.0, 30.0]
    assert azure.count("PUT *") == 2, "the SDK repeats nothing"


def test_a_fault_of_azure_leaves_a_launch_unclear_and_a_listing_undone(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.fail("PUT *", 500, "InternalServerError", after=True)
    with pytest.raises(Ambiguous):
        cloud.launch(spec(), "t1")
    azure.fail("GET virtualMachines", 500, "InternalServerError")
    with pytest.raises(Unavailable):
        cloud.list("us")
    azure.cut("GET virtualMachines")
    with pytest.raises(Unavailable):
        cloud.list("us")
    assert [vm.token for vm in cloud.list("us")] == ["t1"]


def test_nobody_at_home_is_not_an_unclear_launch(make_cloud: MakeCloud) -> None:
    cloud = make_cloud(endpoint_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable):
        cloud.launch(spec(), "t1")


@pytest.mark.parametrize(
    ("code", "kind", "scope"),
    [
        ("AllocationFailed", NoCapacity, Scope.POOL),
        ("OverconstrainedZonalAllocationRequest", NoCapacity, Scope.POOL),
        ("OperationNotAllowed", Unavailable, Scope.POOL),
        ("InternalExecutionError", Unavailable, Scope.POOL),
        ("PublicIPCountLimitReached", QuotaExceeded, Scope.REGION),
        ("InvalidParameter", BadRequest, Scope.POOL),
    ],
)
def test_a_creation_that_fails_later_is_told_once_and_leaves_nothing(
    azure: Emulator, cloud: AzureCloud, code: str, kind: type[Exception], scope: Scope
) -> None:
    azure.group.doomed.append(code)
    vm = cloud.launch(spec(), "t1")
    azure.clock.advance(azure.group.boot_s)
    for _ in range(3):
        failed = listed(cloud, vm)
    assert type(failed.error) is kind
    assert (failed.error.scope, failed.error.code) == (scope, code)
    assert (failed.state, failed.running_at) == (CloudVmState.PENDING, None)
    assert sum("instanceView" in call.query.get("$expand", "") for call in azure.calls) == 1
    assert len(azure.group.left()) == 4, "VM, disk, address and network interface"
    cloud.terminate(vm.id)
    azure.clock.advance(azure.group.delete_s)
    assert azure.group.left() == []
    over = listed(cloud, vm)
    assert (over.state, over.cause, over.error) == (
        CloudVmState.TERMINATED,
        EndCause.TERMINATED,
        failed.error,
    )


def test_a_failed_creation_that_goes_before_it_told_why_did_not_run(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.group.doomed.append("AllocationFailed")
    vm = cloud.launch(spec(), "t1")
    azure.clock.advance(azure.group.boot_s)
    azure.fail("GET virtualMachines", 404, "ResourceNotFound", skip=1)
    assert (listed(cloud, vm).state, listed(cloud, vm).running_at) == (CloudVmState.PENDING, None)


# --- listings -----------------------------------------------------------------------------------


def test_a_listing_follows_pages(azure: Emulator, cloud: AzureCloud) -> None:
    azure.page = 2
    for number in range(5):
        cloud.launch(spec(), f"t{number}")
    assert len(cloud.list("us")) == 5
    assert azure.count("GET virtualMachines") == 3


def test_a_launch_that_the_listing_lacks_is_looked_for_by_its_name(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.group.hidden_s = 60.0
    vm = cloud.launch(spec(), "t1")
    assert cloud.launch(spec(), "t1") == vm
    assert listed(cloud, vm).state is CloudVmState.PENDING
    cloud.terminate(vm.id)
    assert listed(cloud, vm).state is CloudVmState.STOPPING
    azure.clock.advance(azure.group.delete_s)
    assert listed(cloud, vm).cause is EndCause.TERMINATED


def test_many_that_vanish_at_once_are_looked_for_in_turn(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.quota = 1000
    for number in range(40):
        cloud.launch(spec(), f"t{number:02d}")
    azure.clock.advance(azure.group.boot_s)
    cloud.list("us")
    for name in [*azure.group.lives]:
        azure.group.delete(name)  # by somebody else
    azure.clock.advance(azure.group.delete_s)
    states = [vm.state for vm in cloud.list("us")]
    assert (states.count(CloudVmState.TERMINATED), states.count(CloudVmState.RUNNING)) == (25, 15)
    azure.clock.advance(6)
    assert {vm.cause for vm in cloud.list("us")} == {EndCause.TERMINATED}


def test_a_master_that_comes_anew_knows_vms_by_their_tags(
    azure: Emulator, make_cloud: MakeCloud
) -> None:
    before = running(azure, make_cloud())
    azure.clock.advance(3600)
    [vm] = make_cloud().list("us")
    assert (vm.id, vm.token, vm.pool, vm.tags) == (
        before.id,
        before.token,
        before.pool,
        before.tags,
    )
    assert vm.running_at == vm.requested_at == before.requested_at


def test_what_ended_an_hour_ago_is_forgotten(azure: Emulator, cloud: AzureCloud) -> None:
    vm = running(azure, cloud)
    cloud.terminate(vm.id)
    azure.clock.advance(azure.group.delete_s)
    assert listed(cloud, vm).state is CloudVmState.TERMINATED
    azure.clock.advance(3601)
    assert cloud.list("us") == []


def test_a_clock_that_is_behind_azures_makes_no_vm_run_before_it_was_made(
    azure: Emulator,
) -> None:
    config = AzureConfig.model_validate(azure.config())
    behind = cloud_of(azure, config, behind_s=600.0)
    vm = running(azure, behind)
    assert vm.running_at == vm.requested_at
    behind.terminate(vm.id)
    azure.clock.advance(azure.group.delete_s)
    over = listed(behind, vm)
    assert over.ended_at == vm.running_at


def test_the_inventory_tells_vms_and_what_is_left_over(
    azure: Emulator, make_cloud: MakeCloud
) -> None:
    vm = running(azure, make_cloud())
    row = {"name": "d", "location": "eastus", "tags": {OWNER_TAG: "us"}, "properties": {}}
    azure.group.resources["disks"]["d"] = row
    found = inventory.read(make_cloud(), "us")
    assert [each.id for each in found.vms] == [vm.id]
    assert [remain.id for remain in found.remains] == ["d"]
    assert (found.errors, found.answered("eastus")) == ([], True)


# --- why a VM is gone ---------------------------------------------------------------------------


def evicted(azure: Emulator, cloud: AzureCloud) -> Vm:
    vm = running(azure, cloud)
    azure.group.evict(vm.id)
    azure.clock.advance(60)
    return vm


def test_an_eviction_is_told_by_the_activity_log_when_it_has_come_that_far(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.group.log_lag_s = 300
    vm = evicted(azure, cloud)
    assert cloud.list("us") == []
    azure.clock.advance(6)
    assert cloud.end_cause(vm.id) is None
    azure.clock.advance(300)
    assert cloud.end_cause(vm.id) is EndCause.PREEMPTED
    assert listed(cloud, vm).cause is EndCause.PREEMPTED


def test_the_log_is_asked_once_for_all_that_are_asked_about(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.group.log_lag_s = 1e6
    vm = evicted(azure, cloud)
    cloud.list("us")
    for _ in range(5):
        cloud.end_cause(vm.id)
    assert azure.count("GET values") == 1


def test_one_answer_of_the_log_serves_all_that_are_asked_about(
    azure: Emulator, make_cloud: MakeCloud
) -> None:
    cloud = make_cloud()
    names = [running(azure, cloud, f"t{number}").id for number in range(3)]
    for name in names:
        azure.group.evict(name)
    azure.clock.advance(60)
    anew = make_cloud()  # a master that never saw them
    assert {anew.end_cause(name) for name in names} == {EndCause.PREEMPTED}
    assert anew.end_cause("never-was") is None
    assert azure.count("GET values") == 1


def test_the_log_is_asked_since_the_first_that_is_missed(
    azure: Emulator, cloud: AzureCloud
) -> None:
    evicted(azure, cloud)
    cloud.list("us")
    [asked] = [call for call in azure.calls if call.kind == "values"]
    since = datetime.fromtimestamp(azure.clock() - 15 * 60, timezone.utc)
    assert f"eventTimestamp ge '{since:%Y-%m-%dT%H:%M:%SZ}'" in asked.query["$filter"]


def test_without_the_right_to_read_the_log_nobody_knows(azure: Emulator, cloud: AzureCloud) -> None:
    azure.fail("GET values", 403, "AuthorizationFailed", times=9)
    vm = evicted(azure, cloud)
    assert cloud.list("us") == []
    assert cloud.end_cause(vm.id) is EndCause.UNKNOWN
    assert azure.count("GET values") == 1


def test_a_log_that_fails_does_not_make_a_listing_fail(azure: Emulator, cloud: AzureCloud) -> None:
    azure.fail("GET values", 500, "InternalServerError")
    vm = evicted(azure, cloud)
    assert cloud.list("us") == []
    azure.clock.advance(6)
    assert listed(cloud, vm).cause is EndCause.PREEMPTED


def test_a_vm_that_somebody_deleted_was_not_preempted(azure: Emulator, cloud: AzureCloud) -> None:
    vm = running(azure, cloud)
    azure.group.delete(vm.id)
    azure.clock.advance(azure.group.delete_s)
    assert listed(cloud, vm).cause is EndCause.TERMINATED


def test_asking_for_the_end_of_one_that_is_gone_makes_it_no_end_of_ours(
    azure: Emulator, cloud: AzureCloud
) -> None:
    vm = evicted(azure, cloud)
    cloud.terminate(vm.id)
    assert listed(cloud, vm).cause is EndCause.PREEMPTED


def test_the_eviction_test_takes_no_other_notice(azure: Emulator, cloud: AzureCloud) -> None:
    vm = running(azure, cloud)
    with pytest.raises(BadRequest, match="notice of 30 s"):
        cloud.preempt(vm.id, 5.0)
    assert azure.count("POST *") == 0


# --- consoles -----------------------------------------------------------------------------------


def test_the_end_of_a_console_is_read_where_azure_says_it_lies(
    azure: Emulator, cloud: AzureCloud
) -> None:
    assert isinstance(cloud, TellsConsole)
    vm = running(azure, cloud)
    assert cloud.console(vm.id) == ""
    azure.group.lives[vm.id].console = "x" * 70_000 + "no python3"
    assert cloud.console(vm.id).endswith("no python3")
    assert len(cloud.console(vm.id)) == 65_536
    assert (cloud.console("gone"), cloud.console("../etc")) == ("", "")


def test_a_console_that_cannot_be_read_tells_no_address(azure: Emulator, cloud: AzureCloud) -> None:
    vm = running(azure, cloud)
    azure.group.lives[vm.id].console = "text"
    azure.fail("GET consoles", 403, "AuthenticationFailed")
    with pytest.raises(Unavailable) as raised:
        cloud.console(vm.id)
    assert "sig=" not in str(raised.value), "whoever has the address may read"


# --- what is left over --------------------------------------------------------------------------


def test_what_no_vm_has_is_found_by_the_tag_and_removed(azure: Emulator, cloud: AzureCloud) -> None:
    assert isinstance(cloud, TellsRemains)
    vm = running(azure, cloud)
    for kind in azure.group.resources:
        row = {"name": f"left-{kind}", "location": "eastus", "properties": {}}
        azure.group.resources[kind][row["name"]] = {**row, "tags": {OWNER_TAG: "us"}}
        azure.group.resources[kind][f"other-{kind}"] = {**row, "name": f"other-{kind}"}
    found = cloud.remains("us")
    assert sorted(remain.kind for remain in found) == ["address", "disk", "network interface"]
    for remain in found:
        cloud.remove(remain)
        cloud.remove(remain)
    assert cloud.remains("us") == []
    assert len(azure.group.left()) == 4 + 3, f"{vm.id} keeps what it has, and so do others"
