"""AWS's driver through the real SDK against the emulator (tests/fakes/aws).

What is only in the emulator's layer, not in moto: client tokens, spot requests and their statuses,
prices, FIS, the life of a VM over time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.aws import FOR_EVER, Emulator, Fault
from spothop.wire import AgentConfig, Dialect, Pool
from spothop_master.clouds import inventory
from spothop_master.clouds.aws.calls import AwsCalls
from spothop_master.clouds.aws.config import AwsConfig
from spothop_master.clouds.aws.driver import AwsCloud
from spothop_master.clouds.aws.known import AGAIN_BASE_S
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
    TellsRemains,
    Throttled,
    Unavailable,
    Vm,
)
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope

REGION = "us-east-1"
POOL = Pool(cloud="aws", region=REGION, zone="us-east-1a", vm="g5.xlarge")
MakeCloud = Callable[..., AwsCloud]


@pytest.fixture(scope="module")
def calls(_aws_server: Emulator) -> AwsCalls:
    """Its clients take a third of a second each."""
    return AwsCalls(endpoint_url=_aws_server.endpoint, session=_aws_server.session)


@pytest.fixture
def make_cloud(aws: Emulator, calls: AwsCalls) -> MakeCloud:
    def make(**more: Any) -> AwsCloud:
        config = AwsConfig.model_validate(
            {
                "regions": [REGION],
                "instance_profile": "",
                "vm_types": {
                    "g5.xlarge": {"price": 1.006, "gpu": True},
                    "m5.large": {"price": 0.1},
                },
                **more,
            }
        )
        return AwsCloud(
            config, calls=calls, now=lambda: datetime.fromtimestamp(aws.clock(), timezone.utc)
        )

    return make


@pytest.fixture
def cloud(make_cloud: MakeCloud) -> AwsCloud:
    return make_cloud()


def spec(pool: Pool = POOL, **more: Any) -> LaunchSpec:
    user_data = AgentConfig(
        master="http://m", token="j", vm="vm-1", dialect=Dialect.AWS, directory="/x"
    )
    tags = {OWNER_TAG: "us", "spothop-vm": "vm-1"}
    return LaunchSpec(pool=pool, user_data=user_data, script="#!/bin/sh\n", tags=tags, **more)


def listed(cloud: AwsCloud, vm: Vm) -> Vm:
    [found] = [each for each in cloud.list("us") if each.id == vm.id]
    return found


def test_every_type_and_zone_that_there_is_is_offered_with_its_prices(
    aws: Emulator, cloud: AwsCloud
) -> None:
    aws.fleet.prices["g5.xlarge", "us-east-1a"] = 0.44
    infos = {info.pool: info for info in cloud.pools()}
    assert {pool.vm for pool in infos} == {"g5.xlarge", "m5.large"}
    assert (infos[POOL].price, infos[POOL].on_demand_price, infos[POOL].grace_s) == (
        0.44,
        1.006,
        120,
    )
    assert infos[POOL.model_copy(update={"spot": False})].price == 1.006
    assert infos[POOL].dialect is Dialect.AWS


def test_what_is_offered_is_read_rarely(aws: Emulator, cloud: AwsCloud) -> None:
    for _ in range(60):  # an hour of asking every minute
        cloud.pools()
        aws.clock.advance(60)
    assert aws.count("DescribeSubnets") == 1
    assert aws.count("DescribeInstanceTypeOfferings") == 1
    assert aws.count("DescribeSpotPriceHistory") == 12


def test_prices_on_demand_are_those_of_the_price_list_once_it_was_read(
    aws: Emulator, cloud: AwsCloud
) -> None:
    aws.prices = {
        REGION: {"m5.large": 0.096, "g5.xlarge": 1.5, "r5.large": 0.126},
        "us-west-2": {"g5.xlarge": 7.0},
    }
    spot, on_demand = POOL, POOL.model_copy(update={"spot": False})

    def told() -> tuple[float, float, float]:
        infos = {info.pool: info for info in cloud.pools()}
        return infos[on_demand].price, infos[on_demand].on_demand_price, infos[spot].on_demand_price

    assert told() == (1.006, 1.006, 1.006), "the first answer waits for no list"
    assert aws.count("GetProducts") == 0
    assert told() == (1.5, 1.5, 1.5), "neither that of Windows nor that of another region"
    for _ in range(48):
        aws.clock.advance(1800)
        assert told() == (1.5, 1.5, 1.5)
    assert aws.count("GetProducts") == 2 * 2, "two pages, once a day"


def test_without_the_price_list_the_catalogues_prices_stay(aws: Emulator, cloud: AwsCloud) -> None:
    aws.script.fail("GetProducts", "AccessDeniedException", times=9)
    first, second = cloud.pools(), cloud.pools()
    assert first == second
    assert aws.count("GetProducts") == 1, "asked again on another day"


def test_a_region_that_is_away_keeps_what_it_offered(aws: Emulator, make_cloud: MakeCloud) -> None:
    cloud = make_cloud(regions=[REGION, "us-west-2"])
    before = cloud.pools()
    assert {info.pool.region for info in before} == {REGION, "us-west-2"}
    aws.clock.advance(3600)
    aws.script.add(Fault(action="DescribeSpotPriceHistory", region=None, code="InternalError"))
    assert cloud.pools() == before


def test_when_no_region_answers_that_is_an_error(aws: Emulator, cloud: AwsCloud) -> None:
    aws.script.fail("DescribeSubnets", "UnauthorizedOperation")
    with pytest.raises(AuthFailed, match="UnauthorizedOperation"):
        cloud.pools()


def test_what_arrives_at_ec2(aws: Emulator, cloud: AwsCloud) -> None:
    vm = cloud.launch(spec(disk_gb=200), "token-1")
    [life] = aws.fleet.lives()
    assert (vm.id, vm.token, vm.pool) == (life.id, "token-1", POOL)
    assert life.params["UserData"]
    disk = life.params["BlockDeviceMappings"][0]["Ebs"]
    assert (int(disk["VolumeSize"]), disk["DeleteOnTermination"]) == (187, True)
    assert life.params["MetadataOptions"]["HttpTokens"] == "required"
    [volume] = aws.client("ec2").describe_volumes()["Volumes"]
    assert {"Key": OWNER_TAG, "Value": "us"} in volume["Tags"]


def test_a_vm_from_pending_to_its_end(aws: Emulator, cloud: AwsCloud) -> None:
    aws.fleet.boot_s, aws.fleet.shutdown_s = 20, 30
    vm = cloud.launch(spec(), "t")
    assert (vm.state, vm.running_at) == (CloudVmState.PENDING, None)
    aws.clock.advance(21)
    up = listed(cloud, vm)
    assert up.state is CloudVmState.RUNNING
    assert up.running_at is not None
    assert 20 <= (up.running_at - up.requested_at).total_seconds() < 23
    cloud.terminate(vm.id)
    assert listed(cloud, vm).state is CloudVmState.STOPPING
    aws.clock.advance(31)
    over = listed(cloud, vm)
    assert (over.state, over.cause) == (CloudVmState.TERMINATED, EndCause.TERMINATED)
    assert over.told == "Client.UserInitiatedShutdown"
    assert over.ended_at is not None
    assert aws.client("ec2").describe_volumes()["Volumes"] == []


@pytest.mark.parametrize("ahead_s", [240, -240])
def test_a_life_is_as_long_as_ec2_says_though_our_clock_is_off(
    aws: Emulator, calls: AwsCalls, make_cloud: MakeCloud, ahead_s: float
) -> None:
    def now() -> datetime:
        return datetime.fromtimestamp(aws.clock() + ahead_s, timezone.utc)

    aws.fleet.boot_s = 20
    cloud = AwsCloud(make_cloud()._config, calls=calls, now=now)
    cloud.list("us")  # a master lists all the time
    asked_at = now()
    vm = cloud.launch(spec(), "t")
    assert abs((vm.requested_at - asked_at).total_seconds()) < 2, "in our time"
    assert listed(cloud, vm).state is CloudVmState.PENDING
    aws.clock.advance(20)
    assert listed(cloud, vm).state is CloudVmState.RUNNING
    aws.clock.advance(60)
    cloud.terminate(vm.id)
    aws.clock.advance(60)
    over = listed(cloud, vm)
    assert over.running_at is not None
    assert over.ended_at is not None
    assert 58 <= (over.ended_at - over.running_at).total_seconds() <= 63
    assert asked_at <= over.running_at
    assert over.ended_at <= now()


def test_an_on_demand_vm(aws: Emulator, cloud: AwsCloud) -> None:
    pool = POOL.model_copy(update={"spot": False})
    vm = cloud.launch(spec(pool), "t")
    assert listed(cloud, vm).pool == pool
    assert aws.count("DescribeSpotInstanceRequests") == 0
    with pytest.raises(BadRequest, match="on demand"):
        cloud.preempt(vm.id)


def test_the_same_token_makes_one_vm_and_with_other_words_it_is_unclear(
    aws: Emulator, cloud: AwsCloud
) -> None:
    first = cloud.launch(spec(), "t")
    assert cloud.launch(spec(), "t").id == first.id
    other = replace(spec(), script="#!/bin/sh\n# another\n")
    with pytest.raises(Ambiguous, match="IdempotentParameterMismatch"):
        cloud.launch(other, "t")
    assert len(aws.fleet.lives()) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", NoCapacity),
        ("RequestLimitExceeded", Throttled),
        ("ExpiredToken", AuthFailed),
        ("Unavailable", Unavailable),
        ("InternalError", Ambiguous),
        ("", Ambiguous),  # the connection is cut
    ],
)
def test_a_refused_launch_is_one_request(
    aws: Emulator, cloud: AwsCloud, code: str, kind: type[CloudError]
) -> None:
    aws.script.add(Fault(action="RunInstances", code=code, times=FOR_EVER))
    with pytest.raises(CloudError) as raised:
        cloud.launch(spec(), "t")
    assert type(raised.value) is kind
    assert aws.count("RunInstances") == 1


def test_an_answer_that_was_lost_is_found_by_the_same_token(aws: Emulator, cloud: AwsCloud) -> None:
    aws.script.cut("RunInstances", after=True)
    with pytest.raises(Ambiguous):
        cloud.launch(spec(), "t")
    again = cloud.launch(spec(), "t")
    assert [life.id for life in aws.fleet.lives()] == [again.id]
    assert [vm.token for vm in cloud.list("us")] == ["t"]


def test_a_price_above_the_users_limit_is_not_asked_for(aws: Emulator, cloud: AwsCloud) -> None:
    with pytest.raises(PriceTooHigh):  # EC2 itself says so before we know the price
        cloud.launch(spec(max_price=0.05), "t")
    cloud.pools()
    asked = aws.count("RunInstances")
    with pytest.raises(PriceTooHigh, match=r"costs 0\.1 USD/h"):
        cloud.launch(spec(max_price=0.05), "t")
    assert aws.count("RunInstances") == asked
    assert cloud.launch(spec(max_price=0.2), "t2").id


def test_an_unknown_region_and_an_unknown_image_are_bad_requests(
    aws: Emulator, cloud: AwsCloud
) -> None:
    with pytest.raises(BadRequest, match="us-east-1"):
        cloud.launch(spec(POOL.model_copy(update={"region": "mars-1"})), "t")
    with pytest.raises(BadRequest, match="InvalidAMIID"):
        cloud.launch(spec(image="ami-00000000000000000"), "t")


def test_the_interruption_of_a_spot_vm_is_seen_from_its_notice_on(
    aws: Emulator, cloud: AwsCloud
) -> None:
    """In the layer only: FIS evicts, and the spot request tells of it."""
    vm = cloud.launch(spec(), "t")
    cloud.preempt(vm.id)
    noticed = listed(cloud, vm)
    assert (noticed.state, noticed.cause) == (CloudVmState.RUNNING, EndCause.PREEMPTED)
    assert noticed.told.startswith("instance-terminated-by-experiment")
    aws.clock.advance(121)
    over = listed(cloud, vm)
    assert (over.state, over.cause) == (CloudVmState.TERMINATED, EndCause.PREEMPTED)
    assert aws.client("fis").list_experiment_templates()["experimentTemplates"] == []
    with pytest.raises(BadRequest, match="has ended"):
        cloud.preempt(vm.id)


def test_aws_gives_no_shorter_notice_than_its_own(cloud: AwsCloud) -> None:
    with pytest.raises(BadRequest, match="120 s"):
        cloud.preempt("i-1", 0)
    with pytest.raises(BadRequest, match="no VM i-00000001"):
        cloud.preempt("i-00000001")


def test_a_vm_that_vanished_is_explained_by_its_spot_request(
    aws: Emulator, cloud: AwsCloud
) -> None:
    aws.fleet.vanish = True
    vm = cloud.launch(spec(), "t")
    assert cloud.end_cause(vm.id) is None
    aws.fleet.interrupt(vm.id, after_s=0)
    assert cloud.list("us") == []
    assert cloud.end_cause(vm.id) is EndCause.PREEMPTED


def test_without_the_permission_to_see_spot_requests_the_listing_still_works(
    aws: Emulator, cloud: AwsCloud
) -> None:
    vm = cloud.launch(spec(), "t")
    aws.script.fail("DescribeSpotInstanceRequests", "UnauthorizedOperation", times=FOR_EVER)
    for _ in range(3):
        assert listed(cloud, vm).state is CloudVmState.RUNNING
    assert aws.count("DescribeSpotInstanceRequests") == 1


def test_throttled_spot_requests_hide_no_vm(aws: Emulator, cloud: AwsCloud) -> None:
    vm = cloud.launch(spec(), "t")
    cloud.preempt(vm.id)
    assert listed(cloud, vm).cause is EndCause.PREEMPTED
    aws.script.fail("DescribeSpotInstanceRequests", "RequestLimitExceeded", times=FOR_EVER)
    [again] = cloud.list_region(REGION, "us")
    assert (again.id, again.cause) == (vm.id, EndCause.PREEMPTED), "what was announced stays true"
    gap = cloud.gap(REGION)
    assert isinstance(gap, Throttled)
    assert gap.scope is Scope.REGION
    asked = aws.count("DescribeSpotInstanceRequests")
    cloud.list_region(REGION, "us")
    assert (cloud.gap(REGION), aws.count("DescribeSpotInstanceRequests")) == (None, asked)
    aws.script.heal()
    aws.clock.advance(AGAIN_BASE_S)
    cloud.list_region(REGION, "us")
    assert (cloud.gap(REGION), aws.count("DescribeSpotInstanceRequests")) == (None, asked + 1)


def test_a_listing_lacks_no_region(aws: Emulator, make_cloud: MakeCloud) -> None:
    cloud = make_cloud(regions=[REGION, "us-west-2"])
    west = Pool(cloud="aws", region="us-west-2", zone="us-west-2b", vm="g5.xlarge")
    vms = {cloud.launch(spec(), "t1").id, cloud.launch(spec(west), "t2").id}
    assert {vm.id for vm in cloud.list("us")} == vms
    aws.script.fail("DescribeInstances", "InternalError", skip=1)
    with pytest.raises(Unavailable):
        cloud.list("us")


def test_another_master_ends_a_vm_wherever_it_is(aws: Emulator, make_cloud: MakeCloud) -> None:
    west = Pool(cloud="aws", region="us-west-2", zone="us-west-2b", vm="g5.xlarge")
    vm = make_cloud(regions=["us-west-2"]).launch(spec(west), "t")
    stranger = make_cloud(regions=[REGION, "us-west-2"])
    stranger.terminate(vm.id)
    assert aws.fleet.living() == []
    stranger.terminate("i-00000000000000000")


def test_right_after_its_launch_a_vm_may_be_unknown(aws: Emulator, cloud: AwsCloud) -> None:
    aws.fleet.hidden_s = 60
    vm = cloud.launch(spec(), "t")
    assert cloud.list("us") == []
    cloud.terminate(vm.id)
    assert aws.fleet.living(), "whoever wants its end asks again"
    aws.clock.advance(61)
    cloud.terminate(vm.id)
    assert aws.fleet.living() == []
    assert cloud.limits.settle_s >= 60


def test_disks_and_addresses_that_nobody_uses_are_told(aws: Emulator, cloud: AwsCloud) -> None:
    cloud.launch(spec(), "t")
    assert cloud.remains("us") == [], "a VM's disk goes with it"
    tags = [{"Key": OWNER_TAG, "Value": "us"}]
    ec2 = aws.client("ec2")
    volume = ec2.create_volume(
        AvailabilityZone="us-east-1a",
        Size=8,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )
    address = ec2.allocate_address(
        Domain="vpc", TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": tags}]
    )
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    interface = ec2.create_network_interface(
        SubnetId=subnet,
        TagSpecifications=[{"ResourceType": "network-interface", "Tags": tags}],
    )["NetworkInterface"]["NetworkInterfaceId"]
    remains = cloud.remains("us")
    assert {(each.kind, each.id) for each in remains} == {
        ("volume", volume["VolumeId"]),
        ("address", address["AllocationId"]),
        ("network interface", interface),
    }
    assert cloud.remains("them") == []
    for each in [*remains, *remains]:  # one that is gone does not matter
        cloud.remove(each)
    assert cloud.remains("us") == []


def test_regions_are_listed_one_by_one(aws: Emulator, make_cloud: MakeCloud) -> None:
    cloud = make_cloud(regions=[REGION, "us-west-2"])
    assert isinstance(cloud, ListsByRegion)
    assert isinstance(cloud, TellsRemains)
    west = Pool(cloud="aws", region="us-west-2", zone="us-west-2b", vm="g5.xlarge")
    east, other = cloud.launch(spec(), "t1").id, cloud.launch(spec(west), "t2").id
    assert cloud.regions() == [REGION, "us-west-2"]
    assert [vm.id for vm in cloud.list_region(REGION, "us")] == [east]
    assert [vm.id for vm in cloud.list_region("us-west-2", "us")] == [other]
    aws.client("ec2").create_volume(
        AvailabilityZone="us-east-1a",
        Size=8,
        TagSpecifications=[{"ResourceType": "volume", "Tags": [{"Key": OWNER_TAG, "Value": "us"}]}],
    )
    assert len(cloud.remains("us", region=REGION)) == 1
    assert cloud.remains("us", region="us-west-2") == []


def test_everything_ends_though_the_database_knows_nothing(
    aws: Emulator, make_cloud: MakeCloud
) -> None:
    cloud = make_cloud(regions=[REGION, "us-west-2"])
    west = Pool(cloud="aws", region="us-west-2", zone="us-west-2b", vm="g5.xlarge")
    cloud.launch(spec(), "t1")
    cloud.launch(spec(west), "t2")
    aws.script.fail("DescribeInstances", "InternalError")
    found = inventory.read(cloud, "us")
    assert len(found.vms) == 1
    assert len(found.errors) == 1
    assert "does not list its VMs" in found.errors[0]
    stranger = make_cloud(regions=[REGION, "us-west-2"])
    ended, errors_ = inventory.end(stranger, inventory.read(stranger, "us").vms)
    assert (len(ended), errors_) == (2, [])
    aws.clock.advance(120)
    assert aws.fleet.living() == []
    assert inventory.read(stranger, "us") == inventory.Inventory(
        vms=[], remains=[], errors=[], silent=frozenset()
    )


def test_fifty_launches_cost_hardly_more_than_fifty_calls(aws: Emulator, cloud: AwsCloud) -> None:
    cloud.pools()
    for number in range(50):
        cloud.launch(spec(), f"t{number}")
    assert len(cloud.list("us")) == 50
    assert aws.count("RunInstances") == 50
    assert aws.count() <= 60


def test_watching_500_vms_for_a_minute_costs_less_than_thirty_calls(
    aws: Emulator, cloud: AwsCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = [
        {
            "InstanceId": f"i-{number:08x}",
            "ClientToken": f"t{number}",
            "InstanceType": "g5.xlarge",
            "InstanceLifecycle": "spot",
            "LaunchTime": datetime(2030, 1, 1, tzinfo=timezone.utc),
            "Placement": {"AvailabilityZone": "us-east-1a"},
            "State": {"Name": "running"},
            "Tags": [{"Key": OWNER_TAG, "Value": "us"}],
        }
        for number in range(500)
    ]
    asked: list[str] = []

    def pages(service: str, region: str, operation: str, **params: Any) -> Any:
        assert params["MaxResults"] >= 500, "or there were more requests than one"
        asked.append(operation)
        rows = {"describe_instances": [{"Instances": page}]}
        return [{"Reservations": rows.get(operation, []), "SpotInstanceRequests": []}]

    monkeypatch.setattr(cloud, "_calls", SimpleNamespace(pages=pages))
    for _ in range(int(60 / cloud.limits.list_every_s)):
        assert len(cloud.list("us")) == 500
    assert len(asked) <= 30


def test_a_console_is_read_where_there_is_one(aws: Emulator, cloud: AwsCloud) -> None:
    vm = cloud.launch(spec(), "token-1")
    assert cloud.console(vm.id) == ""
    aws.fleet.life(vm.id).console = "spothop vm-1 boot: \u00e4"
    assert cloud.console(vm.id) == "spothop vm-1 boot: \u00e4"
    assert cloud.console("i-0123456789abcdef0") == ""
    aws.script.fail("GetConsoleOutput", "UnauthorizedOperation")
    with pytest.raises(AuthFailed):
        cloud.console(vm.id)


class Failing:
    """Calls of which some fail; `fails` gives the error, by region and operation."""

    def __init__(self, calls: AwsCalls, fails: Mapping[tuple[str, str], CloudError]) -> None:
        self._calls, self.fails = calls, fails

    def call(self, service: str, region: str, operation: str, **params: Any) -> Any:
        if (region, operation) in self.fails:
            raise self.fails[region, operation]
        return self._calls.call(service, region, operation, **params)

    def pages(self, service: str, region: str, operation: str, **params: Any) -> Iterator[Any]:
        if (region, operation) in self.fails:
            raise self.fails[region, operation]
        yield from self._calls.pages(service, region, operation, **params)


def test_a_region_that_is_away_keeps_no_vm_of_another_alive(
    aws: Emulator, calls: AwsCalls, make_cloud: MakeCloud
) -> None:
    """Of a master that has just been started, and does not know where the VM is."""
    vm = make_cloud().launch(spec(), "t-1")
    again = make_cloud(regions=["eu-west-1", REGION])
    again._calls = Failing(calls, {("eu-west-1", "terminate_instances"): Unavailable("away")})
    again.terminate(vm.id)
    assert listed(make_cloud(), vm).state is not CloudVmState.RUNNING


def test_a_region_that_is_away_hides_nothing_of_another_ones_vm(
    aws: Emulator, calls: AwsCalls, make_cloud: MakeCloud
) -> None:
    """Nor may it keep the reason of an end from a master that has just been started."""
    vm = make_cloud().launch(spec(), "t-1")
    aws.fleet.life(vm.id).console = "boot"
    away = [
        "describe_instances",
        "describe_spot_instance_requests",
        "get_console_output",
    ]
    fails: dict[tuple[str, str], CloudError]
    fails = {("eu-west-1", operation): Unavailable("away") for operation in away}

    def started() -> AwsCloud:
        again = make_cloud(regions=["eu-west-1", REGION])
        again._calls = Failing(calls, fails)
        return again

    assert started().console(vm.id) == "boot"
    started().preempt(vm.id)
    aws.clock.advance(3600)
    assert started().end_cause(vm.id) is EndCause.PREEMPTED
    with pytest.raises(Unavailable):
        started().end_cause("i-0123456789abcdef0")


def test_a_session_that_expires_does_not_end_asking_for_notices(
    aws: Emulator, cloud: AwsCloud, calls: AwsCalls
) -> None:
    cloud.launch(spec(), "t-1")
    what = REGION, "describe_spot_instance_requests"
    cloud._calls = Failing(calls, {what: AuthFailed("expired", code="RequestExpired")})
    with pytest.raises(AuthFailed):
        cloud.list("us")
    cloud._calls = calls
    cloud.list("us")
    assert aws.count("DescribeSpotInstanceRequests") == 1, "it is asked again"


def test_an_owner_is_no_pattern(aws: Emulator, cloud: AwsCloud) -> None:
    """EC2 takes `*` in a filter for anything: the VMs of others would be listed as ours."""
    cloud.launch(spec(), "t")
    assert len(cloud.list("us")) == 1
    assert cloud.list("u*") == cloud.list("??") == []
