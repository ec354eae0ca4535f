"""`spothop doctor`: an AWS account, from one that has nothing to one that is ready.

Quotas and images are only in the emulator's layer; the rest is moto.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import obstore.store
import pytest

from fakes.aws import Emulator
from spothop.wire import Verdict
from spothop_master.bootstrap.on_vm import storage_url
from spothop_master.clouds.aws.calls import AwsCalls
from spothop_master.clouds.aws.config import AwsConfig
from spothop_master.clouds.aws.doctor import bucket_of
from spothop_master.clouds.aws.driver import AwsCloud
from spothop_master.clouds.base import Check, Diagnoses

REGION = "us-east-1"
Diagnose = Callable[..., dict[str, Check]]


@pytest.fixture(scope="module")
def calls(_aws_server: Emulator) -> AwsCalls:
    """Its clients take a third of a second each."""
    return AwsCalls(endpoint_url=_aws_server.endpoint, session=_aws_server.session)


@pytest.fixture
def diagnose(aws: Emulator, calls: AwsCalls) -> Diagnose:
    def ask(
        storage_url: str = "s3://bucket/runs", ahead_s: float = 0, **config: Any
    ) -> dict[str, Check]:
        asked = AwsConfig.model_validate({"regions": [REGION], **config})
        now = lambda: datetime.fromtimestamp(aws.clock() + ahead_s, timezone.utc)  # noqa: E731
        cloud = AwsCloud(asked, calls=calls, now=now)
        assert isinstance(cloud, Diagnoses)
        return {check.subject: check for check in cloud.diagnose(storage_url)}

    return ask


@pytest.fixture
def ready(aws: Emulator) -> Emulator:
    """An account with all that is needed."""
    iam, s3 = aws.client("iam"), aws.client("s3")
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "ec2.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    iam.create_role(RoleName="spothop-vm", AssumeRolePolicyDocument=json.dumps(trust))
    iam.create_instance_profile(InstanceProfileName="spothop-vm")
    iam.add_role_to_instance_profile(InstanceProfileName="spothop-vm", RoleName="spothop-vm")
    s3.create_bucket(Bucket="bucket")
    rule = {
        "ID": "unfinished",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3},
    }
    s3.put_bucket_lifecycle_configuration(Bucket="bucket", LifecycleConfiguration={"Rules": [rule]})
    aws.quotas.update({"L-34B43A08": 64, "L-3819A6DF": 8, "L-7212CCBC": 96, "L-C4BD4855": 192})
    return aws


def test_an_account_that_is_ready_has_nothing_to_mend(ready: Emulator, diagnose: Diagnose) -> None:
    found = diagnose()
    assert {check.verdict for check in found.values()} == {Verdict.OK}
    assert "account 123456789012" in found["credentials"].fact
    assert found["instance profile"].fact == "spothop-vm, with the role spothop-vm"
    assert "us-east-1a" in found["us-east-1: subnets"].fact
    assert found["us-east-1: launch"].fact == "a spot m5.large would have been launched"
    assert found["bucket: unfinished uploads"].fact == "a rule ends them after 3 days"
    assert ready.fleet.seen(REGION) == {}, "nothing is made"


def test_a_new_account_is_told_what_it_lacks(aws: Emulator, diagnose: Diagnose) -> None:
    found = diagnose()
    failed = {s for s, check in found.items() if check.verdict is Verdict.FAILED}
    assert failed == {"instance profile", "bucket"}
    assert "spothop-vm not found" in found["instance profile"].fact
    assert "0 vCPUs" in found["us-east-1: quota"].fact
    assert "request-service-quota-increase" in found["us-east-1: quota"].hint
    assert all(check.hint for check in found.values() if check.verdict is not Verdict.OK)


def test_credentials_that_nobody_takes_are_all_that_is_told(
    ready: Emulator, diagnose: Diagnose
) -> None:
    ready.script.fail("GetCallerIdentity", "InvalidClientTokenId")
    (check,) = diagnose().values()
    assert (check.subject, check.verdict) == ("credentials", Verdict.FAILED)
    assert "InvalidClientTokenId" in check.fact
    assert "AWS_PROFILE" in check.hint


@pytest.mark.parametrize(
    ("action", "code", "subject", "verdict", "told"),
    [
        (
            "DescribeSpotPriceHistory",
            "UnauthorizedOperation",
            "us-east-1: look at EC2",
            Verdict.FAILED,
            "denied: ec2:DescribeSpotPriceHistory",
        ),
        (
            "RunInstances",
            "UnauthorizedOperation",
            "us-east-1: launch",
            Verdict.FAILED,
            "UnauthorizedOperation",
        ),
        ("GetServiceQuota", "AccessDeniedException", "us-east-1: quota", Verdict.LOOK, "Denied"),
        ("GetInstanceProfile", "AccessDenied", "instance profile", Verdict.LOOK, "AccessDenied"),
        ("GetProducts", "AccessDeniedException", "prices on demand", Verdict.LOOK, "catalogue"),
    ],
)
def test_what_is_denied_is_named_with_its_hint(
    ready: Emulator,
    diagnose: Diagnose,
    action: str,
    code: str,
    subject: str,
    verdict: Verdict,
    told: str,
) -> None:
    ready.script.fail(action, code, times=4)
    check = diagnose()[subject]
    assert check.verdict is verdict
    assert told in check.fact
    assert check.hint


def test_without_subnets_or_an_image_no_launch_is_tried(
    ready: Emulator, diagnose: Diagnose
) -> None:
    found = diagnose(image="ami-00000000")
    assert found["us-east-1: image"].verdict is Verdict.FAILED
    assert "`image`" in found["us-east-1: image"].hint
    assert found["us-east-1: launch"].verdict is Verdict.LOOK
    assert ready.count("RunInstances") == 0
    found = diagnose(regions={REGION: {"subnets": {"us-east-1a": "subnet-00000000"}}})
    assert found["us-east-1: subnets"].verdict is Verdict.FAILED
    assert ready.count("RunInstances") == 0


def test_a_subnet_in_another_zone_than_it_is_said_to_be_is_told(
    ready: Emulator, diagnose: Diagnose
) -> None:
    asked = [{"Name": "availability-zone", "Values": ["us-east-1b"]}]
    [subnet] = ready.client("ec2").describe_subnets(Filters=asked)["Subnets"]
    found = diagnose(regions={REGION: {"subnets": {"us-east-1a": subnet["SubnetId"]}}})
    assert found["us-east-1: subnets"].verdict is Verdict.FAILED
    assert "us-east-1a" in found["us-east-1: subnets"].fact


@pytest.mark.parametrize(
    ("url", "bucket"),
    [
        (storage_url("b-1", "us-east-1"), "b-1"),
        (storage_url("b-1", "eu-west-1"), "b-1"),
        ("https://s3.eu-west-1.amazonaws.com/b-1/runs", "b-1"),
        ("https://b-1.s3.amazonaws.com/runs", "b-1"),
        ("s3a://b-1/runs", "b-1"),
        ("https://s3.eu-west-1.amazonaws.com/", None),
        ("https://example.com/b-1", None),
        ("https://b.s3.eu-west-1.amazonaws.com.example.com/runs", None),
        ("gs://b-1/runs", None),
        ("", None),
    ],
)
def test_the_bucket_of_each_url_that_names_one(url: str, bucket: str | None) -> None:
    assert bucket_of(url) == bucket
    if bucket:
        assert f'bucket="{bucket}"' in repr(obstore.store.from_url(url))


def test_the_url_that_the_bootstrap_writes_elsewhere_is_looked_at(
    ready: Emulator, diagnose: Diagnose
) -> None:
    found = diagnose("https://bucket.s3.us-east-1.amazonaws.com/runs")
    assert found["bucket"].fact == "bucket in us-east-1"


def test_storage_that_is_no_bucket_and_uploads_without_a_rule_are_worth_a_look(
    ready: Emulator, diagnose: Diagnose
) -> None:
    assert diagnose("file:///runs")["bucket"].verdict is Verdict.LOOK
    ready.client("s3").delete_bucket_lifecycle(Bucket="bucket")
    found = diagnose()["bucket: unfinished uploads"]
    assert found.verdict is Verdict.LOOK
    assert "AbortIncompleteMultipartUpload" in found.hint


def test_a_bucket_in_another_region_than_the_vms_is_told(
    ready: Emulator, diagnose: Diagnose
) -> None:
    found = diagnose(regions=["us-west-2"])["bucket"]
    assert found.verdict is Verdict.LOOK
    assert "bucket is in us-east-1, where no VM of ours is" in found.fact


def test_without_a_profile_jobs_must_bring_keys(ready: Emulator, diagnose: Diagnose) -> None:
    assert diagnose(instance_profile="")["instance profile"].verdict is Verdict.LOOK


def test_a_clock_that_is_off_is_told_with_its_numbers(diagnose: Diagnose) -> None:
    assert diagnose()["clock"].verdict is Verdict.OK
    found = diagnose(ahead_s=240)["clock"]
    assert found.verdict is Verdict.LOOK
    assert found.fact in [f"this machine's is {s} s ahead of AWS's" for s in (239, 240, 241)]
    assert "NTP" in found.hint
    assert "s behind AWS's" in diagnose(ahead_s=-60)["clock"].fact
