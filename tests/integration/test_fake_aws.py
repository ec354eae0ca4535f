"""The AWS emulator does what EC2 is documented to do, through the real SDK.

What is from moto and what only from our layer is told in tests/fakes/aws/__init__.py.
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from fakes.aws import FOR_EVER, Emulator

UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
SPOT = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}


def request(aws: Emulator, token: str, *, spot: bool = True, **more: Any) -> dict[str, Any]:
    image = aws.client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    market = {"InstanceMarketOptions": SPOT} if spot else {}
    return {
        "ImageId": image,
        "InstanceType": "t3.micro",
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": token,
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": [{"Key": "spothop-owner", "Value": "us"}]}
            for kind in ("instance", "volume")
        ],
        **market,
        **more,
    }


def launch(aws: Emulator, token: str = "t1", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = aws.client("ec2").run_instances(**request(aws, token, **more))
    return dict(made["Instances"][0])


def listed(aws: Emulator, **filters: str) -> list[dict[str, Any]]:
    wanted = [
        {"Name": name.replace("_", "-"), "Values": [value]} for name, value in filters.items()
    ]
    pages = aws.client("ec2").get_paginator("describe_instances").paginate(Filters=wanted)
    return [vm for page in pages for row in page["Reservations"] for vm in row["Instances"]]


def code_of(call: Any, *args: Any, **params: Any) -> str:
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as raised:
        call(*args, **params)
    return str(raised.value.response["Error"]["Code"])


def spot_status(aws: Emulator, vm_id: str) -> tuple[str, str]:
    wanted = [{"Name": "instance-id", "Values": [vm_id]}]
    [row] = aws.client("ec2").describe_spot_instance_requests(Filters=wanted)[
        "SpotInstanceRequests"
    ]
    return row["State"], row["Status"]["Code"]


def raw(aws: Emulator, **form: str) -> httpx.Response:
    """As a client that checks nothing before it sends."""
    scope = "AKIA/20261122/us-east-1/ec2/aws4_request"
    headers = {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    body = urlencode({"Version": "2016-11-15", **form})
    return httpx.post(aws.endpoint, content=body, headers=headers, trust_env=False)


def test_the_same_client_token_makes_one_vm(aws: Emulator) -> None:
    first, again = launch(aws), launch(aws)
    assert first["InstanceId"] == again["InstanceId"]
    assert (first["State"]["Name"], again["State"]["Name"]) == ("pending", "running")
    assert len(listed(aws)) == 1
    other = request(aws, "t1", spot=False)
    assert code_of(aws.client("ec2").run_instances, **other) == "IdempotentParameterMismatch"
    assert launch(aws, "t2")["InstanceId"] != first["InstanceId"]


def test_launches_of_one_token_at_once_make_one_vm(aws: Emulator) -> None:
    asked, ec2 = request(aws, "t1"), aws.client("ec2")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ec2.run_instances(**asked), range(8)))
    assert len({vm["InstanceId"] for answer in made for vm in answer["Instances"]}) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("InsufficientInstanceCapacity", 500),
        ("MaxSpotInstanceCountExceeded", 400),
        ("VcpuLimitExceeded", 400),
        ("RequestLimitExceeded", 503),
        ("RequestExpired", 400),
        ("AuthFailure", 401),
        ("UnauthorizedOperation", 403),
    ],
)
def test_errors_by_script_name_the_pool(aws: Emulator, code: str, status: int) -> None:
    from botocore.exceptions import ClientError

    aws.script.fail("RunInstances", code, zone="us-east-1a", times=FOR_EVER)
    there = {"Placement": {"AvailabilityZone": "us-east-1a"}}
    with pytest.raises(ClientError) as raised:
        launch(aws, "t1", **there)
    assert raised.value.response["Error"]["Code"] == code
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    launch(aws, "t2", Placement={"AvailabilityZone": "us-east-1b"})
    aws.script.heal()
    launch(aws, "t1", **there)
    assert aws.count("RunInstances") == 3


def test_a_launch_whose_answer_is_lost_has_made_its_vm(aws: Emulator) -> None:
    from botocore.exceptions import ConnectionClosedError

    aws.script.cut("RunInstances", after=True)
    with pytest.raises(ConnectionClosedError):
        launch(aws)
    [vm] = listed(aws, client_token="t1")
    assert launch(aws)["InstanceId"] == vm["InstanceId"]


def test_a_launch_may_be_accepted_and_refused_later(aws: Emulator) -> None:
    aws.fleet.boot_s = 5.0
    aws.fleet.doomed.append("Server.InsufficientInstanceCapacity")
    assert launch(aws)["State"]["Name"] == "pending"
    aws.clock.advance(5)
    [vm] = listed(aws)
    assert vm["State"]["Name"] == "terminated"
    assert vm["StateReason"]["Code"] == "Server.InsufficientInstanceCapacity"


def test_the_token_of_a_vm_that_ended_is_refused(aws: Emulator) -> None:
    vm, ec2 = launch(aws), aws.client("ec2")
    ec2.terminate_instances(InstanceIds=[vm["InstanceId"]])
    assert code_of(ec2.run_instances, **request(aws, "t1")) == "IdempotentInstanceTerminated"


def test_an_image_may_be_named_by_its_parameter(aws: Emulator) -> None:
    named = launch(aws, ImageId=f"resolve:ssm:{UBUNTU}")
    assert named["ImageId"] == request(aws, "t2")["ImageId"]


def test_a_launch_that_is_cut_before_has_made_none(aws: Emulator) -> None:
    from botocore.exceptions import ConnectionClosedError

    aws.script.cut("RunInstances")
    with pytest.raises(ConnectionClosedError):
        launch(aws)
    assert listed(aws) == []


def test_a_new_vm_is_unknown_for_a_while(aws: Emulator) -> None:
    aws.fleet.hidden_s = 30.0
    vm = launch(aws)
    describe = aws.client("ec2").describe_instances
    assert code_of(describe, InstanceIds=[vm["InstanceId"]]) == "InvalidInstanceID.NotFound"
    assert listed(aws) == []
    aws.clock.advance(30)
    assert [one["InstanceId"] for one in listed(aws)] == [vm["InstanceId"]]


def test_filters_that_moto_answers_500_to(aws: Emulator) -> None:
    spot, on_demand = launch(aws), launch(aws, "t2", spot=False)
    assert [vm["InstanceId"] for vm in listed(aws, instance_lifecycle="spot")] == [
        spot["InstanceId"]
    ]
    assert [vm["InstanceId"] for vm in listed(aws, client_token="t2")] == [on_demand["InstanceId"]]
    asked = listed(aws, spot_instance_request_id=spot["SpotInstanceRequestId"])
    assert [vm["InstanceId"] for vm in asked] == [spot["InstanceId"]]
    assert "SpotInstanceRequestId" not in on_demand
    filters = [{"Name": "nonsense", "Values": ["1"]}]
    assert code_of(aws.client("ec2").describe_instances, Filters=filters) == "InvalidParameterValue"


def test_lists_come_in_pages(aws: Emulator) -> None:
    ids = {launch(aws, f"t{number}")["InstanceId"] for number in range(5)}
    pages = aws.client("ec2").get_paginator("describe_instances")
    rows = list(pages.paginate(PaginationConfig={"PageSize": 5}))
    assert len(rows) == 1
    first = aws.client("ec2").describe_instances(MaxResults=2)
    rest = aws.client("ec2").describe_instances(MaxResults=5, NextToken=first["NextToken"])
    found = [
        vm for page in (first, rest) for row in page["Reservations"] for vm in row["Instances"]
    ]
    assert {vm["InstanceId"] for vm in found} == ids


def test_termination_takes_its_time(aws: Emulator) -> None:
    aws.fleet.shutdown_s = 40.0
    vm = launch(aws)
    ec2 = aws.client("ec2")
    [change] = ec2.terminate_instances(InstanceIds=[vm["InstanceId"]])["TerminatingInstances"]
    assert change["CurrentState"]["Name"] == "shutting-down"
    assert listed(aws)[0]["State"]["Name"] == "shutting-down"
    assert ec2.describe_volumes()["Volumes"]
    aws.clock.advance(40)
    [ended] = listed(aws)
    assert ended["State"]["Name"] == "terminated"
    assert ended["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert ended["StateTransitionReason"].startswith("User initiated (20")
    assert spot_status(aws, vm["InstanceId"]) == ("closed", "instance-terminated-by-user")
    assert ec2.describe_volumes()["Volumes"] == []
    assert ec2.describe_network_interfaces()["NetworkInterfaces"] == []
    aws.clock.advance(3600)
    assert listed(aws) == []
    gone = code_of(ec2.terminate_instances, InstanceIds=[vm["InstanceId"]])
    assert gone == "InvalidInstanceID.NotFound"
    assert code_of(ec2.terminate_instances, InstanceIds=["i-1"]) == "InvalidInstanceID.Malformed"


def experiment(aws: Emulator, vm_id: str, duration: str = "PT2M") -> None:
    fis = aws.client("fis")
    made = fis.create_experiment_template(
        clientToken="token",
        description="eviction",
        stopConditions=[{"source": "none"}],
        roleArn="arn:aws:iam::123456789012:role/fis",
        targets={
            "vm": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [f"arn:aws:ec2:us-east-1:123456789012:instance/{vm_id}"],
                "selectionMode": "ALL",
            }
        },
        actions={
            "interrupt": {
                "actionId": "aws:ec2:send-spot-instance-interruptions",
                "parameters": {"durationBeforeInterruption": duration},
                "targets": {"SpotInstances": "vm"},
            }
        },
    )
    fis.start_experiment(experimentTemplateId=made["experimentTemplate"]["id"], clientToken="t")


@pytest.mark.parametrize("vanish", [False, True])
def test_an_experiment_interrupts_after_its_notice(aws: Emulator, vanish: bool) -> None:
    aws.fleet.vanish = vanish
    vm = launch(aws)
    assert spot_status(aws, vm["InstanceId"]) == ("active", "fulfilled")
    experiment(aws, vm["InstanceId"], "PT3M")
    aws.clock.advance(59)
    assert spot_status(aws, vm["InstanceId"]) == ("active", "fulfilled")
    aws.clock.advance(1)
    assert spot_status(aws, vm["InstanceId"]) == ("active", "instance-terminated-by-experiment")
    assert listed(aws)[0]["State"]["Name"] == "running"
    aws.clock.advance(120)
    assert spot_status(aws, vm["InstanceId"]) == ("closed", "instance-terminated-by-experiment")
    if vanish:
        assert listed(aws) == []
    else:
        assert listed(aws)[0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_a_guest_that_shuts_down_ends_its_vm(aws: Emulator) -> None:
    vm = launch(aws, InstanceInitiatedShutdownBehavior="terminate")
    aws.fleet.shut_down_from_inside(vm["InstanceId"])
    assert listed(aws)[0]["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_console_output_is_what_the_test_wrote(aws: Emulator) -> None:
    vm = launch(aws)
    ec2 = aws.client("ec2")
    assert "Output" not in ec2.get_console_output(InstanceId=vm["InstanceId"])
    aws.fleet.life(vm["InstanceId"]).console = "boot: no route\n"
    assert ec2.get_console_output(InstanceId=vm["InstanceId"])["Output"] == "boot: no route\n"


def test_spot_prices_have_a_history_and_bound_the_launch(aws: Emulator) -> None:
    aws.fleet.prices["t3.micro", "us-east-1a"] = 0.0042
    ec2 = aws.client("ec2")
    now = ec2.describe_spot_price_history(
        InstanceTypes=["t3.micro"],
        ProductDescriptions=["Linux/UNIX"],
        AvailabilityZone="us-east-1a",
    )["SpotPriceHistory"]
    assert [row["SpotPrice"] for row in now] == ["0.004200"]
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        StartTime=now[0]["Timestamp"] - timedelta(hours=5), InstanceTypes=["t3.micro"]
    )
    zones = {row["AvailabilityZone"] for page in pages for row in page["SpotPriceHistory"]}
    assert {"us-east-1a", "us-east-1b"} <= zones
    low = {**SPOT, "SpotOptions": {"MaxPrice": "0.001"}}
    asked = request(aws, "t1", InstanceMarketOptions=low)
    assert code_of(ec2.run_instances, **asked) == "SpotMaxPriceTooLow"
    asked = request(
        aws, "t1", InstanceType="p4d.24xlarge", Placement={"AvailabilityZone": "us-east-1e"}
    )
    assert code_of(ec2.run_instances, **asked) == "Unsupported"


def test_quotas_are_listed_and_set_by_the_test(aws: Emulator) -> None:
    aws.quotas["L-34B43A08"] = 64.0
    service = aws.client("service-quotas")
    rows = service.list_service_quotas(ServiceCode="ec2")["Quotas"]
    assert {row["QuotaCode"]: row["Value"] for row in rows}["L-34B43A08"] == 64.0
    one = service.get_service_quota(ServiceCode="ec2", QuotaCode="L-3819A6DF")["Quota"]
    assert (one["Value"], one["QuotaName"]) == (0.0, "All G and VT Spot Instance Requests")


def test_images_must_exist(aws: Emulator) -> None:
    assert code_of(launch, aws, ImageId="ami-00000000000000000") == "InvalidAMIID.NotFound"


def test_a_dry_run_changes_nothing(aws: Emulator) -> None:
    ec2 = aws.client("ec2")
    assert code_of(ec2.run_instances, **request(aws, "t1", DryRun=True)) == "DryRunOperation"
    assert code_of(ec2.describe_spot_price_history, DryRun=True) == "DryRunOperation"
    assert listed(aws) == []
    launch(aws)


def test_user_data_and_tokens_have_limits(aws: Emulator) -> None:
    run = aws.client("ec2").run_instances
    assert code_of(run, **request(aws, "t1", UserData="x" * 16385)) == "InvalidParameterValue"
    assert code_of(run, **request(aws, "t" * 65)) == "InvalidParameterValue"
    vm = launch(aws, UserData="#!/bin/sh\n")
    life = aws.fleet.life(vm["InstanceId"])
    assert base64.b64decode(life.params["UserData"]) == b"#!/bin/sh\n"


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ({"Action": "RunInstance"}, "InvalidAction"),
        ({"Action": "DescribeInstances", "Filters.1.Name": "x"}, "UnknownParameter"),
        ({"Action": "DescribeInstances", "MaxResults": "many"}, "InvalidParameterValue"),
        ({"Action": "DescribeInstances", "DryRun": "perhaps"}, "InvalidParameterValue"),
        ({"Action": "TerminateInstances"}, "MissingParameter"),
        (
            {"Action": "RunInstances", "MinCount": "1", "MaxCount": "1", "InstanceType": "t9.huge"},
            "InvalidParameterValue",
        ),
        (
            {
                "Action": "RunInstances",
                "MinCount": "1",
                "MaxCount": "1",
                "InstanceMarketOptions.SpotOptions.Behaviour": "terminate",
            },
            "UnknownParameter",
        ),
        (
            {
                "Action": "RunInstances",
                "MinCount": "1",
                "MaxCount": "1",
                "MetadataOptions.HttpTokens": "always",
            },
            "InvalidParameterValue",
        ),
    ],
)
def test_what_botocores_model_does_not_know_is_refused_on_the_wire(
    aws: Emulator, form: dict[str, str], code: str
) -> None:
    answer = raw(aws, **form)
    assert (answer.status_code, f"<Code>{code}</Code>" in answer.text) == (400, True), answer.text


def test_every_call_is_recorded_with_its_parameters(aws: Emulator) -> None:
    launch(aws, Placement={"AvailabilityZone": "us-east-1b"})
    call = aws.calls[-1]
    assert (call.service, call.action, call.region) == ("ec2", "RunInstances", "us-east-1")
    assert (call.zone, call.vm_type, call.spot) == ("us-east-1b", "t3.micro", True)
    assert call.params["ClientToken"] == "t1"
    assert call.params["TagSpecifications"][0]["Tags"] == [{"Key": "spothop-owner", "Value": "us"}]


def test_a_subnet_names_the_zone_of_a_launch(aws: Emulator) -> None:
    ec2 = aws.client("ec2")
    [subnet] = ec2.describe_subnets(
        Filters=[{"Name": "availability-zone", "Values": ["us-east-1c"]}]
    )["Subnets"]
    vm = launch(aws, SubnetId=subnet["SubnetId"])
    assert vm["Placement"]["AvailabilityZone"] == "us-east-1c"
    assert aws.calls[-1].zone == "us-east-1c"
