"""What is sent to EC2 and what its answers mean, without the SDK."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from spothop.wire import ANY_ZONE, AgentConfig, Dialect, Pool
from spothop_master.clouds.aws import errors, reading, requests
from spothop_master.clouds.aws.config import AwsConfig, load
from spothop_master.clouds.base import (
    OWNER_TAG,
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    CloudVmState,
    LaunchSpec,
    NoCapacity,
    PriceTooHigh,
    QuotaExceeded,
    Throttled,
    Unavailable,
)
from spothop_master.clouds.configuration import ConfigError
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope

NOW = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
POOL = Pool(cloud="aws", region="us-east-1", zone="us-east-1a", vm="g5.xlarge")
SPEC = LaunchSpec(
    pool=POOL,
    user_data=AgentConfig(
        master="http://m", token="j", vm="vm-1", dialect=Dialect.AWS, directory="/x"
    ),
    script="#!/bin/sh\n",
    tags={OWNER_TAG: "us", "spothop-vm": "vm-1"},
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def answer(code: str, status: int = 400, message: str = "words", **headers: str) -> dict[str, Any]:
    return {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }


@pytest.mark.parametrize(
    ("code", "status", "kind", "scope"),
    [
        ("InsufficientInstanceCapacity", 500, NoCapacity, Scope.POOL),
        ("UnfulfillableCapacity", 500, NoCapacity, Scope.POOL),
        ("InsufficientFreeAddressesInSubnet", 400, NoCapacity, Scope.ZONE),
        ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded, Scope.REGION),
        ("VcpuLimitExceeded", 400, QuotaExceeded, Scope.REGION),
        ("SpotMaxPriceTooLow", 400, PriceTooHigh, Scope.POOL),
        ("RequestLimitExceeded", 503, Throttled, Scope.REGION),
        ("UnauthorizedOperation", 403, AuthFailed, Scope.ACCOUNT),
        ("ExpiredToken", 403, AuthFailed, Scope.ACCOUNT),
        ("RequestExpired", 400, AuthFailed, Scope.ACCOUNT),
        ("OptInRequired", 403, AuthFailed, Scope.REGION),
        ("Unavailable", 503, Unavailable, Scope.REGION),
        ("Unsupported", 400, BadRequest, Scope.POOL),
        ("InvalidAMIID.NotFound", 400, BadRequest, Scope.POOL),
        ("WhatNobodyHasHeardOf", 400, BadRequest, Scope.POOL),
        ("InternalError", 500, Ambiguous, Scope.POOL),
        ("IdempotentParameterMismatch", 400, Ambiguous, Scope.POOL),
        ("WhatNobodyHasHeardOf", 502, Ambiguous, Scope.POOL),
        ("", 504, Ambiguous, Scope.POOL),
    ],
)
def test_what_a_refusal_of_a_launch_means(
    code: str, status: int, kind: type[CloudError], scope: Scope
) -> None:
    error = errors.of_answer(answer(code, status), launch=True)
    assert type(error) is kind
    assert (error.scope, error.code) == (scope, code or None)
    assert "words" in str(error)
    if kind is Ambiguous:
        assert type(errors.of_answer(answer(code, status))) is Unavailable, "it may be asked again"


def test_the_providers_words_are_told_without_what_only_machines_read() -> None:
    told = "You are not authorized. Encoded authorization failure message: AbCd" + 999 * "x"
    error = errors.of_answer(answer("UnauthorizedOperation", 403, told))
    assert str(error) == "You are not authorized. (UnauthorizedOperation)"
    assert len(str(errors.of_answer(answer("Odd", 400, 9_999 * "y")))) < 600


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("Wed, 21 Oct 2015", None)])
def test_what_the_provider_wants_us_to_wait(header: str, seconds: float | None) -> None:
    error = errors.of_answer(answer("RequestLimitExceeded", 503, **{"retry-after": header}))
    assert error.retry_after_s == seconds


def sent(
    spec: LaunchSpec = SPEC, token: str = "t", place: requests.Place | None = None
) -> dict[str, Any]:
    return requests.run_instances(
        spec,
        token,
        image=requests.Image(id="ami-1", root="/dev/xvda", min_gib=30),
        place=place or requests.Place(zone=spec.pool.zone),
        profile="spothop-vm",
        disk_gb=100,
    )


def test_a_launch_of_a_spot_vm() -> None:
    request = sent()
    assert request == sent(), "the same to the byte"
    tags = request.pop("TagSpecifications")
    assert request == {
        "ClientToken": "t",
        "ImageId": "ami-1",
        "InstanceType": "g5.xlarge",
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": "#!/bin/sh\n",
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 2,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/xvda",
                "Ebs": {"VolumeSize": 94, "VolumeType": "gp3", "DeleteOnTermination": True},
            }
        ],
        "IamInstanceProfile": {"Name": "spothop-vm"},
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "InstanceMarketOptions": {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
            },
        },
    }
    kinds = {each["ResourceType"]: {t["Key"]: t["Value"] for t in each["Tags"]} for each in tags}
    assert set(kinds) == {"instance", "volume", "network-interface", "spot-instances-request"}
    assert all(found[OWNER_TAG] == "us" for found in kinds.values())


def test_an_on_demand_vm_in_a_network_of_ones_own_with_a_disk_that_fits_the_image() -> None:
    spec = replace(SPEC, pool=POOL.model_copy(update={"spot": False}), disk_gb=10)
    place = requests.Place(zone="us-east-1a", subnet="subnet-1", security_groups=("sg-1",))
    request = sent(spec, place=place)
    assert "InstanceMarketOptions" not in request
    assert "Placement" not in request, "the subnet has a zone"
    assert (request["SubnetId"], request["SecurityGroupIds"]) == ("subnet-1", ["sg-1"])
    assert request["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 30
    kinds = [each["ResourceType"] for each in request["TagSpecifications"]]
    assert "spot-instances-request" not in kinds, "EC2 refuses it on demand"


def test_a_price_limit_and_a_zone_that_is_left_to_the_cloud() -> None:
    anywhere = POOL.model_copy(update={"zone": ANY_ZONE})
    request = sent(replace(SPEC, pool=anywhere, max_price=0.5))
    assert request["InstanceMarketOptions"]["SpotOptions"]["MaxPrice"] == "0.500000"
    assert "Placement" not in request


@pytest.mark.parametrize(
    ("spec", "token"),
    [
        (replace(SPEC, script=""), "t"),
        (replace(SPEC, script=16_385 * "x"), "t"),
        (SPEC, 65 * "t"),
        (SPEC, "\u00e4"),
    ],
)
def test_what_ec2_would_not_take_is_not_sent(spec: LaunchSpec, token: str) -> None:
    with pytest.raises(BadRequest):
        sent(spec, token)


def instance(state: str = "running", reason: str = "", **more: Any) -> dict[str, Any]:
    return {
        "InstanceId": "i-1",
        "ClientToken": "t",
        "InstanceType": "g5.xlarge",
        "InstanceLifecycle": "spot",
        "LaunchTime": ago(300),
        "Placement": {"AvailabilityZone": "us-east-1b"},
        "State": {"Name": state},
        "StateReason": {"Code": reason, "Message": f"{reason}: told"} if reason else {},
        "Tags": [{"Key": "Name", "Value": "x"}, {"Key": OWNER_TAG, "Value": "us"}],
        **more,
    }


def seen(
    row: dict[str, Any],
    status: str | None = None,
    moments: reading.Moments | None = None,
    now: datetime = NOW,
) -> Any:
    known = reading.SpotStatus(code=status) if status else None
    return reading.vm(row, "us-east-1", known, moments or reading.Moments(), now=now)


@pytest.mark.parametrize(
    ("state", "reason", "status", "expected", "cause"),
    [
        ("pending", "pending", "fulfilled", CloudVmState.PENDING, None),
        ("running", "", "fulfilled", CloudVmState.RUNNING, None),
        ("running", "", None, CloudVmState.RUNNING, None),
        # the notice, seen from outside
        ("running", "", "marked-for-termination", CloudVmState.RUNNING, EndCause.PREEMPTED),
        (
            "running",
            "",
            "instance-terminated-no-capacity",
            CloudVmState.RUNNING,
            EndCause.PREEMPTED,
        ),
        # we were faster than the kill: it was taken all the same
        (
            "terminated",
            "Client.UserInitiatedShutdown",
            "instance-terminated-no-capacity",
            CloudVmState.TERMINATED,
            EndCause.PREEMPTED,
        ),
        (
            "shutting-down",
            "Server.SpotInstanceTermination",
            None,
            CloudVmState.STOPPING,
            EndCause.PREEMPTED,
        ),
        (
            "terminated",
            "Server.SpotInstanceTermination",
            None,
            CloudVmState.TERMINATED,
            EndCause.PREEMPTED,
        ),
        (
            "terminated",
            "Client.UserInitiatedShutdown",
            "instance-terminated-by-user",
            CloudVmState.TERMINATED,
            EndCause.TERMINATED,
        ),
        ("terminated", "Server.InternalError", None, CloudVmState.TERMINATED, EndCause.FAILED),
        ("terminated", "Client.New", None, CloudVmState.TERMINATED, EndCause.UNKNOWN),
        (
            "stopped",
            "Client.UserInitiatedShutdown",
            None,
            CloudVmState.STOPPING,
            EndCause.TERMINATED,
        ),
    ],
)
def test_state_and_cause_of_an_end(
    state: str, reason: str, status: str | None, expected: CloudVmState, cause: EndCause | None
) -> None:
    vm = seen(instance(state, reason), status)
    assert (vm.state, vm.cause) == (expected, cause)
    assert (vm.token, vm.pool.zone, vm.pool.spot) == ("t", "us-east-1b", True)
    assert vm.tags == {OWNER_TAG: "us"}
    if cause is EndCause.PREEMPTED:
        assert vm.told


def test_the_clouds_own_words_are_kept() -> None:
    row = instance("terminated", "Server.SpotInstanceTermination")
    assert seen(row, "instance-terminated-no-capacity").told == (
        "instance-terminated-no-capacity; Server.SpotInstanceTermination"
    )


def test_a_launch_that_fails_after_it_was_accepted_is_a_refusal() -> None:
    vm = seen(instance("terminated", "Server.InsufficientInstanceCapacity"))
    assert isinstance(vm.error, NoCapacity)
    assert vm.error.code == "InsufficientInstanceCapacity"
    moments = reading.Moments()
    seen(instance("running"), moments=moments)
    late = seen(instance("terminated", "Server.InsufficientInstanceCapacity"), moments=moments)
    assert late.error is None, "it ran"


def test_when_it_ran_is_when_a_listing_showed_it_first() -> None:
    moments = reading.Moments()
    seen(instance("pending"), moments=moments, now=ago(20))
    assert seen(instance(), moments=moments, now=ago(10)).running_at == ago(10)
    assert seen(instance(), moments=moments).running_at == ago(10), "and stays so"
    moments.forget(["i-1"])
    disk = {"Ebs": {"AttachTime": ago(290)}}
    after_a_restart = seen(instance(BlockDeviceMappings=[disk]), moments=moments)
    assert after_a_restart.running_at == ago(290)


def test_when_it_ended_is_in_words_or_else_when_a_listing_showed_it_first() -> None:
    words = "User initiated (2030-01-01 11:59:00 GMT)"
    told = instance("terminated", "Client.UserInitiatedShutdown", StateTransitionReason=words)
    assert seen(told).ended_at == ago(60)
    moments = reading.Moments()
    row = instance("terminated", "Server.SpotInstanceTermination")
    assert seen(row, moments=moments, now=ago(5)).ended_at == ago(5)
    assert seen(row, moments=moments).ended_at == ago(5)


def test_a_vm_does_not_end_before_it_ran_though_a_clock_is_set() -> None:
    moments = reading.Moments()
    seen(instance("pending"), moments=moments, now=ago(20))
    seen(instance(), moments=moments, now=ago(10))
    words = "User initiated (2030-01-01 11:59:00 GMT)"
    row = instance("terminated", "Client.UserInitiatedShutdown", StateTransitionReason=words)
    assert seen(row, moments=moments).ended_at == ago(10)


def test_of_several_prices_the_newest_counts() -> None:
    rows = [
        {
            "InstanceType": "g5.xlarge",
            "AvailabilityZone": "us-east-1a",
            "SpotPrice": price,
            "Timestamp": at,
        }
        for price, at in (("0.5", ago(60)), ("0.4", ago(5)), ("0.9", ago(600)))
    ]
    pages = [{"SpotPriceHistory": rows[:1]}, {"SpotPriceHistory": rows[1:]}]
    assert reading.prices(pages) == {("g5.xlarge", "us-east-1a"): 0.4}


def written(folder: Path, text: str) -> Path:
    file = folder / "aws.yaml"
    file.write_text(text)
    return file


def test_a_list_of_regions_is_a_configuration(tmp_path: Path) -> None:
    config = load(written(tmp_path, "regions: [us-east-1, eu-west-1]\nimage: ami-0a\n"))
    assert set(config.regions) == {"us-east-1", "eu-west-1"}
    assert config.image_for("us-east-1", gpu=False, arch="x86_64") == "ami-0a"
    gpu = config.image_for("us-east-1", gpu=True, arch="arm64")
    assert gpu.startswith("resolve:ssm:/aws/service/deeplearning/ami/arm64/")
    plain = AwsConfig.model_validate({"regions": ["us-east-1"]})
    assert "/amd64/" in plain.image_for("us-east-1", gpu=False, arch="x86_64")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("regions: {}", "regions"),
        ("regions: [us-east-1]\nregion: x", "region: Extra"),
        ("regions: [us-east-1]\nimage: ubuntu", "image"),
        ("regions: {us-east-1: {subnet: x}}", "subnet: Extra"),
        ("regions: [us-east-1a]", "'us-east-1a' is no region; one is called like us-east-1"),
        ("regions: {us east 1: {}}", "'us east 1' is no region"),
        ("- us-east-1", "expected keys and values, such as `regions:`"),
    ],
)
def test_mistakes_in_the_configuration_name_the_field(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(written(tmp_path, text))
