"""GCP's driver against the fake of Compute Engine (tests/fakes/gcp), which takes no body, parameter
or field that the API's discovery document does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.gcp import Gce
from fakes.gcp.compute import ACCOUNT, Fault
from fakes.gcp_rig import FILE, driver
from spothop.wire import AgentConfig, Dialect, Pool, Verdict
from spothop_master.clouds import inventory
from spothop_master.clouds.base import (
    OWNER_TAG,
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    CloudVmState,
    LaunchSpec,
    ListsByRegion,
    NoCapacity,
    PriceTooHigh,
    QuotaExceeded,
    Throttled,
    Unavailable,
    Vm,
)
from spothop_master.clouds.gcp.config import GcpConfig
from spothop_master.clouds.gcp.doctor import PERMISSIONS
from spothop_master.clouds.gcp.driver import GcpCloud
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope

POOL = Pool(cloud="gcp", region="us-central1", zone="us-central1-a", vm="g2-standard-4")
ROLE = Path(__file__).parents[2] / "deploy" / "gcp" / "master.yaml"
MakeCloud = Callable[..., GcpCloud]


@pytest.fixture
def gce() -> Gce:
    return Gce()


@pytest.fixture
def make_cloud(gce: Gce) -> MakeCloud:
    def make(**more: Any) -> GcpCloud:
        return driver(gce, GcpConfig.model_validate({**yaml.safe_load(FILE), **more}))

    return make


@pytest.fixture
def cloud(make_cloud: MakeCloud) -> GcpCloud:
    return make_cloud()


def spec(pool: Pool = POOL, **more: Any) -> LaunchSpec:
    user_data = AgentConfig(
        master="http://m", token="j", vm="vm-1", dialect=Dialect.GCP, directory="/x"
    )
    tags = {OWNER_TAG: "us", "spothop-vm": "vm-1"}
    return LaunchSpec(pool=pool, user_data=user_data, script="#!/bin/sh\n", tags=tags, **more)


def listed(cloud: GcpCloud, vm: Vm) -> Vm:
    [found] = [each for each in cloud.list("us") if each.id == vm.id]
    return found


# --- pools ----------------------------------------------------------------------------------------


def test_what_zones_have_is_offered_at_known_prices(gce: Gce, cloud: GcpCloud) -> None:
    infos = {info.pool: info for info in cloud.pools()}
    assert {pool.vm for pool in infos} == {"e2-standard-2", "g2-standard-4", "n1-standard-8+t4x1"}
    zones = {pool.zone for pool in infos if pool.vm != "e2-standard-2"}
    assert zones == {"us-central1-a", "us-central1-b", "us-central1-c"}, "f has no GPUs"
    cheap = POOL.model_copy(update={"vm": "e2-standard-2"})
    assert (infos[cheap].price, infos[cheap].on_demand_price, infos[cheap].grace_s) == (
        0.02,
        0.067,
        120,
    )
    assert infos[POOL].price == 0.707, "an unknown spot price is taken to be that on demand"
    assert infos[POOL].dialect is Dialect.GCP


def test_what_is_offered_is_read_rarely_and_kept_when_gcp_is_away(
    gce: Gce, cloud: GcpCloud
) -> None:
    first = cloud.pools()
    for _ in range(60):
        gce.clock.advance(60)
        assert cloud.pools() == first
    assert (gce.count("machineTypes.*"), gce.count("acceleratorTypes.*")) == (1, 1)
    gce.clock.advance(6 * 3600)
    gce.fail("machineTypes.aggregatedList", 503, "backendError")
    assert cloud.pools() == first


def test_when_it_never_answered_that_is_an_error(gce: Gce, cloud: GcpCloud) -> None:
    gce.fail("machineTypes.aggregatedList", 403, "forbidden")
    with pytest.raises(AuthFailed):
        cloud.pools()


def test_a_zone_that_does_not_answer_keeps_its_pools_and_is_asked_again_soon(
    gce: Gce, cloud: GcpCloud
) -> None:
    first = cloud.pools()
    gce.clock.advance(6 * 3600)
    gce.silent.add("us-central1-b")
    assert cloud.pools() == first
    gce.silent = {"us-central1-b", "europe-west4-a"}
    asked = gce.count("machineTypes.*")
    for _ in range(4):
        gce.clock.advance(60)
        assert cloud.pools() == first
    assert gce.count("machineTypes.*") == asked + 2
    gce.silent = {"europe-west4-a"}
    for _ in range(60):
        gce.clock.advance(60)
        assert cloud.pools() == first
    assert gce.count("machineTypes.*") == asked + 3, "a zone that is not ours delays nothing"


def test_only_the_zones_of_the_configuration_are_used(make_cloud: MakeCloud) -> None:
    cloud = make_cloud(regions={"us-central1": {"zones": ["us-central1-b"]}})
    assert {info.pool.zone for info in cloud.pools()} == {"us-central1-b"}
    with pytest.raises(BadRequest, match="us-central1-b"):
        cloud.launch(spec(), "t")


# --- launch ---------------------------------------------------------------------------------------


def test_a_vm_from_its_insert_to_its_end(gce: Gce, cloud: GcpCloud) -> None:
    gce.insert_s, gce.delete_s = 20, 30
    vm = cloud.launch(spec(), "Token_1")
    assert (vm.state, vm.running_at, vm.token) == (CloudVmState.PENDING, None, "Token_1")
    assert listed(cloud, vm).state is CloudVmState.PENDING
    gce.clock.advance(21)
    up = listed(cloud, vm)
    assert (up.state, up.token, up.tags) == (CloudVmState.RUNNING, "Token_1", spec().tags)
    assert up.running_at is not None
    assert 19 <= (up.running_at - up.requested_at).total_seconds() <= 21
    cloud.terminate(vm.id)
    assert (listed(cloud, vm).state, listed(cloud, vm).cause) == (
        CloudVmState.STOPPING,
        EndCause.TERMINATED,
    )
    gce.clock.advance(31)
    over = listed(cloud, vm)
    assert (over.state, over.cause, over.told) == (
        CloudVmState.TERMINATED,
        EndCause.TERMINATED,
        "delete",
    )
    assert cloud.end_cause(vm.id) is EndCause.TERMINATED
    gce.clock.advance(3601)
    assert cloud.list("us") == []


def test_a_listing_is_one_request_as_long_as_nothing_ends(gce: Gce, cloud: GcpCloud) -> None:
    for number in range(5):
        cloud.launch(spec(), f"t{number}")
    asked = len(gce.calls)
    assert len(cloud.list("us")) == 5
    assert len(gce.calls) == asked + 1
    for vm in cloud.list("us"):
        cloud.terminate(vm.id)
    before = gce.count("globalOperations.*")
    assert {vm.cause for vm in cloud.list("us")} == {EndCause.TERMINATED}
    cloud.list("us")
    assert gce.count("globalOperations.*") == before + 1, "one for all of them, and once"


def test_user_data_is_not_fetched_with_every_listing(gce: Gce, cloud: GcpCloud) -> None:
    cloud.launch(spec(), "t")
    cloud.list("us")
    [call] = [call for call in gce.calls if call.action == "instances.aggregatedList"]
    assert "metadata" not in call.query["fields"]


def test_without_a_notice_where_the_project_may_have_none(gce: Gce, make_cloud: MakeCloud) -> None:
    gce.gives_notice = False
    cloud = make_cloud()
    assert {info.grace_s for info in cloud.pools()} == {120}
    vm = cloud.launch(spec(), "t")
    assert vm.grace_s == 30, "its row was written by the offer of before"
    assert gce.life(vm.id).notice_s == 0
    assert gce.count("instances.insert") == 2
    assert {info.grace_s for info in cloud.pools() if info.pool.spot} == {30}
    assert cloud.launch(spec(), "t2").grace_s == 30
    assert cloud.launch(spec(POOL.model_copy(update={"spot": False})), "t3").grace_s is None
    assert make_cloud(preemption_notice=False).launch(spec(), "t4").grace_s is None
    assert gce.count("instances.insert") == 5, "it is asked for no more"
    assert make_cloud().launch(spec(), "t").id == vm.id, "another master finds the same VM"
    assert len(gce.lives()) == 4


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (503, "ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacity),
        (403, "quotaExceeded", QuotaExceeded),
        (403, "rateLimitExceeded", Throttled),
        (429, "", Throttled),
        (403, "forbidden", AuthFailed),
        (503, "backendError", Ambiguous),
        (0, "", Ambiguous),
    ],
)
def test_a_refused_launch_is_one_request(
    gce: Gce, cloud: GcpCloud, status: int, reason: str, kind: type[CloudError]
) -> None:
    gce.fail("instances.insert", status, reason, times=9)
    with pytest.raises(CloudError) as raised:
        cloud.launch(spec(), "t")
    assert type(raised.value) is kind
    assert gce.count("instances.insert") == 1


@pytest.mark.parametrize(
    ("code", "message", "kind", "scope"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "full", NoCapacity, Scope.POOL),
        ("QUOTA_EXCEEDED", "Quota X exceeded: 1.0 in region r", QuotaExceeded, Scope.REGION),
        ("UNSUPPORTED_OPERATION", "preempted", NoCapacity, Scope.POOL),
    ],
)  # fmt: skip
def test_a_refusal_inside_the_operation_is_told_by_the_listing(
    gce: Gce, cloud: GcpCloud, code: str, message: str, kind: type[CloudError], scope: Scope
) -> None:
    gce.insert_s = 10
    gce.doomed.append((code, message))
    vm = cloud.launch(spec(), "t")
    assert listed(cloud, vm).error is None
    gce.clock.advance(11)
    refused = listed(cloud, vm)
    assert type(refused.error) is kind
    assert (refused.error.scope, refused.error.code) == (scope, code)
    assert (refused.state, refused.running_at) == (CloudVmState.TERMINATED, None)
    assert gce.living() == []


def test_an_operation_that_has_failed_at_once_is_a_refusal_and_the_token_stays_good(
    gce: Gce, cloud: GcpCloud
) -> None:
    gce.doomed.append(("ZONE_RESOURCE_POOL_EXHAUSTED", "full"))
    with pytest.raises(NoCapacity):
        cloud.launch(spec(), "t")
    assert cloud.list("us") == []
    assert cloud.launch(spec(), "t").state is CloudVmState.RUNNING


def test_a_master_that_was_started_again_hears_of_the_first_inserts_refusal(
    gce: Gce, make_cloud: MakeCloud
) -> None:
    gce.insert_s = 10
    gce.doomed.append(("ZONE_RESOURCE_POOL_EXHAUSTED", "full"))
    make_cloud().launch(spec(), "t")
    gce.clock.advance(11)
    with pytest.raises(NoCapacity):
        make_cloud().launch(spec(), "t")
    assert gce.living() == []


def test_a_repeated_insert_is_the_same_to_the_byte(gce: Gce, make_cloud: MakeCloud) -> None:
    gce.cut("instances.insert", after=True)
    with pytest.raises(Ambiguous):
        make_cloud().launch(spec(), "t")
    vm = make_cloud().launch(spec(), "t")
    first, second = [call for call in gce.calls if call.action == "instances.insert"]
    assert first == second
    assert [life.id for life in gce.lives()] == [vm.id]


def test_a_request_id_that_gcp_has_forgotten_makes_no_second_vm(gce: Gce, cloud: GcpCloud) -> None:
    vm = cloud.launch(spec(), "t")
    gce._requests.clear()
    assert cloud.launch(spec(), "t").id == vm.id
    assert len(gce.lives()) == 1


@pytest.mark.parametrize("insert_s", [0, 20])
def test_the_token_of_another_launch_is_refused(gce: Gce, cloud: GcpCloud, insert_s: float) -> None:
    gce.insert_s = insert_s
    cloud.launch(spec(), "t")
    with pytest.raises(BadRequest, match="g2-standard-4/spot"):
        cloud.launch(spec(POOL.model_copy(update={"vm": "e2-standard-2"})), "t")


def test_a_vm_with_an_attached_gpu_is_listed_as_what_it_was_asked_for(
    gce: Gce, cloud: GcpCloud
) -> None:
    pool = POOL.model_copy(update={"vm": "n1-standard-8+t4x1"})
    vm = cloud.launch(spec(pool), "t")
    assert listed(cloud, vm).pool == pool
    items = {item["key"]: item["value"] for item in gce.life(vm.id).body["metadata"]["items"]}
    assert items == {"startup-script": "#!/bin/sh\n", "install-nvidia-driver": "True"}


def test_a_cap_is_kept_by_us_and_an_unknown_price_is_above_it(cloud: GcpCloud) -> None:
    cheap = POOL.model_copy(update={"vm": "e2-standard-2"})
    assert cloud.launch(spec(cheap, max_price=0.02), "t").id
    with pytest.raises(PriceTooHigh, match=r"0\.707"):
        cloud.launch(spec(max_price=0.5), "t2")
    with pytest.raises(PriceTooHigh, match="not known"):
        cloud.launch(spec(POOL.model_copy(update={"vm": "a2-highgpu-1g"}), max_price=9.0), "t3")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"service_account": "nobody"}, "serviceAccount"),
        ({"network": "other"}, "networkInterfaces"),
        ({"gpu_image": "projects/x/global/images/family/y"}, "not found"),
    ],
)
def test_a_mistake_of_the_configuration_is_a_bad_request(
    make_cloud: MakeCloud, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        make_cloud(**more).launch(spec(), "t")


def test_an_image_that_a_job_may_not_have_is_that_jobs_mistake(gce: Gce, cloud: GcpCloud) -> None:
    theirs = "projects/somebody/global/images/theirs"
    words = f"Required 'compute.images.useReadOnly' permission for '{theirs}'"
    gce.fail("instances.insert", 403, "forbidden", message=words, times=2)
    with pytest.raises(BadRequest, match="image projects/somebody") as caught:
        cloud.launch(replace(spec(), image=theirs), "t1")
    assert caught.value.scope is Scope.POOL, "other jobs go on"
    with pytest.raises(AuthFailed):  # the configuration's: for an admin to mend
        cloud.launch(spec(), "t2")
    gce.fail("instances.insert", 403, "forbidden", message="Required 'compute.instances.create'")
    with pytest.raises(AuthFailed):
        cloud.launch(replace(spec(), image=theirs), "t3")


def test_the_fake_takes_nothing_that_the_api_does_not_know(gce: Gce) -> None:
    from spothop_master.clouds.gcp import requests

    config = GcpConfig.model_validate(yaml.safe_load(FILE))
    image = config.gpu_image
    body = requests.instance(spec(), "t", config=config, image=image, gpu=True, notice=True)
    calls = driver(gce, config)._calls
    path = "/projects/my-project/zones/us-central1-a/instances"
    for wrong in (
        {"machine_type": "x"},
        {"scheduling": {**body["scheduling"], "provisioningModel": "CHEAP"}},
        {"scheduling": {**body["scheduling"], "maxRunDuration": {"seconds": "week"}}},
        {"scheduling": {**body["scheduling"], "automaticRestart": True}},
        {"labels": {"A": "b"}},
        {"status": "RUNNING"},
        {"name": "Upper"},
    ):
        with pytest.raises(BadRequest):
            calls.call("POST", path, body={**body, **wrong})
    for params in ({"requestId": "t"}, {"clientToken": "t"}):
        with pytest.raises(BadRequest):
            calls.call("POST", path, params=params, body=body)
    for params in ({"filter": "labels.x=1 OR y"}, {"fields": "items/*/instances(user)"}):
        with pytest.raises(BadRequest):
            calls.call("GET", "/projects/my-project/aggregated/instances", params=params)
    assert gce.lives() == []


# --- listing --------------------------------------------------------------------------------------


def test_a_zone_that_does_not_answer_is_not_empty(gce: Gce, make_cloud: MakeCloud) -> None:
    cloud = make_cloud(regions=["us-central1", "europe-west4"])
    west = Pool(cloud="gcp", region="europe-west4", zone="europe-west4-b", vm="e2-standard-2")
    here, there = cloud.launch(spec(), "t1"), cloud.launch(spec(west), "t2")
    gce.silent.add("us-central1-c")
    with pytest.raises(Unavailable, match="us-central1-c"):
        cloud.list("us")
    assert isinstance(cloud, ListsByRegion)
    assert [vm.id for vm in cloud.list_region("europe-west4", "us")] == [there.id]
    found = inventory.read(cloud, "us")
    assert ([vm.id for vm in found.vms], found.silent) == ([there.id], {"us-central1"})
    gce.silent.clear()
    assert {vm.id for vm in cloud.list("us")} == {here.id, there.id}


def test_lists_are_asked_for_a_part_only_where_that_is_known(gce: Gce, cloud: GcpCloud) -> None:
    vm = cloud.launch(spec(), "t")
    gce.takes_partial = False
    assert [[each.id for each in cloud.list("us")] for _ in range(3)] == [[vm.id]] * 3
    assert gce.count("instances.aggregatedList") == 4
    gce.silent.add("europe-west4-a")
    with pytest.raises(Unavailable):
        cloud.list("us")


def test_a_preemption_is_known_by_its_operation_and_by_another_master_too(
    gce: Gce, make_cloud: MakeCloud
) -> None:
    cloud = make_cloud()
    vm = cloud.launch(spec(), "t")
    cloud.preempt(vm.id)
    assert listed(cloud, vm).state is CloudVmState.RUNNING, "it has 120 s"
    assert cloud.end_cause(vm.id) is None
    gce.delete_s = 30
    gce.clock.advance(121)
    assert (listed(cloud, vm).state, listed(cloud, vm).cause) == (
        CloudVmState.STOPPING,
        EndCause.PREEMPTED,
    )
    gce.clock.advance(31)
    over = listed(cloud, vm)
    assert (over.state, over.told) == (
        CloudVmState.TERMINATED,
        "compute.instances.preempted: Instance was taken.",
    )
    stranger = make_cloud()
    assert stranger.list("us") == []
    assert stranger.end_cause(vm.id) is EndCause.PREEMPTED


def test_without_the_permission_to_see_operations_the_listing_still_works(
    gce: Gce, cloud: GcpCloud
) -> None:
    vm = cloud.launch(spec(), "t")
    gce.fail("globalOperations.aggregatedList", 403, "forbidden", times=9)
    cloud.terminate(vm.id)
    assert cloud.list("us") == []
    assert cloud.end_cause(vm.id) is None


def test_a_guest_that_shuts_down_is_not_over_until_it_is_deleted(gce: Gce, cloud: GcpCloud) -> None:
    vm = cloud.launch(spec(), "t")
    gce.shut_down_from_inside(vm.id)
    stopped = listed(cloud, vm)
    assert (stopped.state, stopped.cause) == (CloudVmState.STOPPING, EndCause.TERMINATED)
    cloud.terminate(vm.id)
    assert listed(cloud, vm).state is CloudVmState.TERMINATED


def test_what_the_console_has(gce: Gce, cloud: GcpCloud) -> None:
    vm = cloud.launch(spec(), "t")
    gce.life(vm.id).console = "spothop vm-1 boot: agent installed"
    assert cloud.console(vm.id) == "spothop vm-1 boot: agent installed"
    assert cloud.console("us-central1-a/other") == cloud.console("what?") == ""


def test_the_eviction_test_takes_no_other_notice(gce: Gce, make_cloud: MakeCloud) -> None:
    cloud = make_cloud()
    vm = cloud.launch(spec(), "t")
    with pytest.raises(BadRequest, match="120 s"):
        cloud.preempt(vm.id, 60)
    gce.gives_notice = False
    other = make_cloud(preemption_notice=False).launch(spec(), "t2")
    with pytest.raises(BadRequest, match="30 s"):
        cloud.preempt(other.id, 10)
    cloud.preempt(other.id, 30)
    assert gce.state(other.id) == "GONE"


def test_a_disk_that_was_left_behind_is_told_and_removed(gce: Gce, cloud: GcpCloud) -> None:
    cloud.launch(spec(), "t")
    assert cloud.remains("us") == [], "a VM's disk goes with it"
    place = "https://www.googleapis.com/compute/v1/projects/my-project/zones/us-central1-b"
    row = {"name": "old", "zone": place, "labels": {OWNER_TAG: "us"}, "sizeGb": "94"}
    gce.loose_disks.append(row)
    [remain] = cloud.remains("us", region="us-central1")
    assert (remain.kind, remain.id, remain.detail) == (
        "disk",
        "us-central1-b/old",
        "94 GiB, unattached",
    )
    assert cloud.remains("them") == []
    gce.silent.add("us-central1-b")
    assert cloud.remains("us", region="europe-west4") == []
    with pytest.raises(Unavailable, match="us-central1-b"):
        cloud.remains("us")
    gce.silent.clear()
    for _ in range(2):
        cloud.remove(remain)
    assert cloud.remains("us") == []


# --- the role of deploy/gcp -----------------------------------------------------------------------


def role() -> frozenset[str]:
    return frozenset(yaml.safe_load(ROLE.read_text(encoding="utf-8"))["includedPermissions"])


def everything(gce: Gce, cloud: GcpCloud) -> None:
    """All that the driver ever asks for."""
    cloud.pools()
    vm = cloud.launch(spec(), "t")
    cloud.preempt(vm.id)
    cloud.console(vm.id)
    cloud.terminate(vm.id)
    cloud.list("us")
    assert listed(cloud, vm).cause is EndCause.TERMINATED
    place = "https://www.googleapis.com/compute/v1/projects/my-project/zones/us-central1-b"
    gce.loose_disks.append({"name": "old", "zone": place, "labels": {OWNER_TAG: "us"}})
    for remain in cloud.remains("us"):
        cloud.remove(remain)
    assert gce.loose_disks == []


def test_the_role_of_the_master_is_enough_and_not_more(gce: Gce, make_cloud: MakeCloud) -> None:
    allowed = role()
    gce.granted = allowed | {"iam.serviceAccounts.actAs"}
    everything(gce, make_cloud())
    checks = make_cloud().diagnose("")
    assert [check.fact for check in checks if check.verdict is Verdict.FAILED] == []
    assert set(PERMISSIONS) <= allowed
    looked_at = {"compute.networks.get", "compute.projects.get", "compute.regions.get"}
    more = {"compute.images.getFromFamily", "compute.images.useReadOnly", "compute.subnetworks.get"}
    polled = {"compute.zoneOperations.get"}
    assert allowed - set(PERMISSIONS) <= looked_at | more | polled


@pytest.mark.parametrize(
    "lacking",
    [
        "compute.instances.create",
        "compute.instances.delete",
        "compute.instances.list",
        "compute.instances.simulateMaintenanceEvent",
        "compute.disks.delete",
        "iam.serviceAccounts.actAs",
    ],
)
def test_without_one_of_its_permissions_something_is_denied(
    gce: Gce, cloud: GcpCloud, lacking: str
) -> None:
    gce.granted = (role() | {"iam.serviceAccounts.actAs"}) - {lacking}
    with pytest.raises(AuthFailed, match=lacking):
        everything(gce, cloud)


def test_faults_of_one_zone_leave_others_alone(gce: Gce, cloud: GcpCloud) -> None:
    gce.add(Fault(action="instances.insert", zone="us-central1-a", status=429, times=9))
    with pytest.raises(Throttled):
        cloud.launch(spec(), "t")
    elsewhere = POOL.model_copy(update={"zone": "us-central1-b"})
    assert cloud.launch(replace(spec(), pool=elsewhere), "t2").pool == elsewhere
    assert gce.life(cloud.list("us")[0].id).body["serviceAccounts"][0]["email"] == ACCOUNT
