"""`spothop bootstrap aws`: in an empty account, again, mended, ended, killed between any calls."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fakes.installation import Bootstrap, Killed
from spothop_master.bootstrap import desired
from spothop_master.clouds.aws.calls import AwsCalls
from spothop_master.clouds.base import OWNER_TAG

BUCKET = "spothop-123456789012-us-east-1"
OWNER = "spothop-123456789012-us-east-1"
NEWEST = "master/backup/newest.zip"
_sdk: dict[str, AwsCalls] = {}


@pytest.fixture
def installation(aws: Any) -> Bootstrap:
    return Bootstrap(aws, _sdk)


def test_a_dry_run_shows_the_plan_with_its_cost_and_makes_nothing(installation: Bootstrap) -> None:
    before = installation.account()
    assert installation.run(dry_run=True) == 0, installation.errors
    assert installation.calls.changes == []
    assert installation.account() == before
    told = "\n".join(installation.lines)
    for subject in ("role spothop-master", f"bucket {BUCKET}", "elastic address", "VM of the mas"):
        assert f"make    {subject}" in told
    assert "15.18  VM t3.small, on demand" in told
    assert "20.52  USD in all" in told


def test_who_does_not_agree_changes_nothing(installation: Bootstrap) -> None:
    assert installation.run(agrees=False) == 1
    assert installation.calls.changes == []


def test_from_an_empty_account_to_a_master_and_again(installation: Bootstrap) -> None:
    assert installation.run(yes=True) == 0, installation.errors
    found = installation.account()
    assert found["roles"] == ["spothop-fis", "spothop-master", "spothop-vm"]
    assert found["buckets"] == [BUCKET]
    assert found["groups"] == ["spothop-master", "spothop-vm"]
    [vm] = installation.masters()
    [address] = found["addresses"]
    assert vm["InstanceType"] == "t3.small"
    assert vm["IamInstanceProfile"]["Arn"].endswith("/spothop-master")
    assert vm["MetadataOptions"]["HttpTokens"] == "required"
    ec2, s3 = installation.aws.client("ec2"), installation.aws.client("s3")
    assert ec2.describe_addresses()["Addresses"][0]["InstanceId"] == vm["InstanceId"]
    [group] = ec2.describe_security_groups(GroupNames=["spothop-vm"])["SecurityGroups"]
    assert group["IpPermissions"] == []
    block = s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert all(block.values())
    [rule] = s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    how = {"InstanceId": vm["InstanceId"], "Attribute": "userData"}
    user_data = base64.b64decode(ec2.describe_instance_attribute(**how)["UserData"]["Value"])
    assert user_data.startswith(b"#!/usr/bin/env python3\nCONFIG = ")
    assert b"token" not in user_data.splitlines()[1]
    told = "\n".join(installation.lines)
    assert f"export SPOTHOP_URL=https://{address}:8900 SPOTHOP_CA=sha256:" in told
    assert "/spothop/admin-token" in told

    before = found, installation.policies()
    assert installation.run() == 0, installation.errors  # again
    assert installation.calls.changes == []
    assert (installation.account(), installation.policies()) == before
    assert not [line for line in installation.lines if line.startswith(("  make", "  change"))]
    assert before[1]["spothop-master/spothop"] == desired.policy("master", BUCKET)
    assert "SPOTHOP_BUCKET" not in str(before[1])
    denied = before[1]["spothop-vm/spothop"]["Statement"][-1]
    assert (denied["Effect"], denied["Resource"]) == ("Deny", f"arn:aws:s3:::{BUCKET}/master/*")


def damages(aws: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What somebody may do to an installation, and what the plan says of it then."""
    ec2, iam, s3 = (aws.client(name) for name in ("ec2", "iam", "s3"))
    wide = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [wide]})
    profile = {"InstanceProfileName": "spothop-vm", "RoleName": "spothop-vm"}

    def no_fis() -> None:
        iam.delete_role_policy(RoleName="spothop-fis", PolicyName="spothop")
        iam.delete_role(RoleName="spothop-fis")

    def close() -> None:
        [group] = ec2.describe_security_groups(GroupNames=["spothop-master"])["SecurityGroups"]
        rules = group["IpPermissions"]
        ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=rules)

    def drift() -> None:
        role = {"RoleName": "spothop-vm", "PolicyName": "spothop"}
        iam.put_role_policy(**role, PolicyDocument=document)

    def vms() -> list[str]:
        ours = [{"Name": "tag:spothop-bootstrap", "Values": ["us-east-1"]}]
        rows = ec2.describe_instances(Filters=ours)["Reservations"]
        return [vm["InstanceId"] for row in rows for vm in row["Instances"]]

    yield "make    role spothop-fis", no_fis
    yield "change  role spothop-vm  (policy spothop differs)", drift
    yield f"change  security group spothop-master  (port {desired.PORT} is closed)", close
    yield (
        "change  instance profile spothop-vm  (it lacks its role)",
        lambda: iam.remove_role_from_instance_profile(**profile),
    )
    yield (
        f"change  bucket {BUCKET}  (public access is not blocked)",
        lambda: s3.delete_public_access_block(Bucket=BUCKET),
    )
    yield "(it is stopped)", lambda: ec2.stop_instances(InstanceIds=vms())
    yield "make    VM of the master", lambda: ec2.terminate_instances(InstanceIds=vms())


def test_what_was_changed_by_hand_is_mended(installation: Bootstrap) -> None:
    """All of it at the same time, but for the VM that is gone and so cannot be stopped."""
    installation.run(yes=True)
    whole = {**installation.account(), "vms": []}, installation.policies()
    *harms, (_, end_vm) = damages(installation.aws)
    for _, harm in harms:
        harm()
    mended(installation, [told for told, _ in harms], whole)
    end_vm()
    mended(installation, ["make    VM of the master"], whole)


@pytest.mark.thorough
def test_each_single_change_by_hand_is_mended(installation: Bootstrap) -> None:
    installation.run(yes=True)
    whole = {**installation.account(), "vms": []}, installation.policies()
    for told, harm in damages(installation.aws):
        harm()
        mended(installation, [told], whole)


def mended(installation: Bootstrap, told: list[str], whole: Any) -> None:
    installation.aws.clock.advance(20.0)
    assert installation.run(yes=True) == 0, installation.errors
    for text in told:
        assert text in "\n".join(installation.lines)
    assert len(installation.masters()) == 1
    assert ({**installation.account(), "vms": []}, installation.policies()) == whole, told


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1"])
def test_other_parts_of_aws_are_refused_before_anything_is_asked(
    installation: Bootstrap, region: str
) -> None:
    installation.aws.calls.clear()
    assert installation.run(region=region, dry_run=True) == 1
    [error, hint] = installation.errors
    assert error == f"error: --region = {region}: bootstrap knows AWS's common regions only"
    assert hint.startswith("hint: set it up by hand")
    assert installation.aws.calls == []


def test_another_accounts_bucket_is_not_taken(installation: Bootstrap) -> None:
    aws = installation.aws
    aws.script.fail("HEAD /*", "AccessDenied")
    assert installation.run(yes=True) == 1
    assert installation.calls.changes == []
    [error, hint] = installation.errors
    assert error == f"error: bucket {BUCKET} belongs to another account"
    assert hint == "hint: choose another --bucket NAME"
    assert installation.run(yes=True, bucket="mine-12") == 0, installation.errors
    assert installation.run() == 0, installation.errors  # it is known from then on
    assert installation.account()["buckets"] == ["mine-12"]
    assert installation.run(bucket="other") == 1
    assert "the installation has the bucket mine-12" in installation.errors[0]


def test_what_has_our_names_and_is_not_ours_is_refused(installation: Bootstrap) -> None:
    iam, s3 = installation.aws.client("iam"), installation.aws.client("s3")
    iam.create_instance_profile(InstanceProfileName="spothop-vm")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="mine", Body=b"1")
    assert installation.run(yes=True) == 1
    assert installation.calls.changes == []
    told = [line for line in installation.errors if line.startswith("error")]
    assert told == [
        "error: instance profile spothop-vm exists and was not made by bootstrap",
        f"error: bucket {BUCKET} exists and was not made by bootstrap",
    ]
    assert installation.run(yes=True, delete=True, with_data=True) == 0
    assert installation.calls.changes == []


def test_a_missing_permission_is_one_line_and_the_next_run_goes_on(
    installation: Bootstrap,
) -> None:
    installation.aws.script.fail("AllocateAddress", "UnauthorizedOperation")
    assert installation.run(yes=True) == 1
    [error, hint] = installation.errors
    assert error.startswith("error: elastic address: ec2:AllocateAddress: You are not authorized")
    assert "goes on from here" in hint
    assert installation.run(yes=True) == 0, installation.errors


def test_credentials_that_nobody_takes_are_one_line(installation: Bootstrap) -> None:
    installation.aws.script.fail("GetCallerIdentity", "InvalidClientTokenId")
    assert installation.run() == 1
    [error, hint] = installation.errors
    assert "InvalidClientTokenId" in error
    assert "AWS_PROFILE" in hint


def others(installation: Bootstrap) -> dict[str, list[str]]:
    """What somebody else has in the account."""
    ec2, iam, s3 = (installation.aws.client(name) for name in ("ec2", "iam", "s3"))
    iam.create_role(RoleName="theirs", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="theirs")
    s3.create_bucket(Bucket="theirs-1")
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    ec2.create_security_group(GroupName="theirs", Description="theirs", VpcId=vpc)
    ec2.allocate_address(Domain="vpc")
    launch(installation, {"spothop-owner": "another-master"})
    installation.aws.client("ssm").put_parameter(Name="/theirs", Value="1", Type="String")
    return installation.account()


def launch(installation: Bootstrap, tags: dict[str, str]) -> None:
    name = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
    image = installation.aws.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    written = [{"Key": key, "Value": value} for key, value in tags.items()]
    installation.aws.client("ec2").run_instances(
        ImageId=image,
        InstanceType="c5.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": written}],
    )


def test_delete_ends_the_vms_and_leaves_nothing_of_ours_and_all_else(
    installation: Bootstrap,
) -> None:
    before = others(installation)
    installation.run(yes=True)
    launch(installation, {OWNER_TAG: OWNER})
    assert installation.run(delete=True, dry_run=True) == 0, installation.errors
    assert installation.calls.changes == []
    assert installation.run(yes=True, delete=True) == 0, installation.errors
    assert installation.account() == before
    done = installation.calls.changes
    assert done.index("stop_instances") < done.index("release_address")
    assert installation.run(delete=True) == 0
    assert installation.calls.changes == []


def test_delete_keeps_a_bucket_that_holds_something(installation: Bootstrap) -> None:
    installation.run(yes=True)
    for delete in (False, True):  # of another region
        assert installation.run(yes=True, region="eu-west-1", delete=delete) == 1 - delete
        assert installation.calls.changes == []
    s3 = installation.aws.client("s3")
    for number in range(3):
        s3.put_object(Bucket=BUCKET, Key=f"runs/{number}", Body=b"1")
    assert installation.run(yes=True, delete=True) == 0, installation.errors
    assert installation.account()["buckets"] == [BUCKET]
    assert installation.account()["roles"] == []
    listed = s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert [row["Key"] for row in listed] == [f"runs/{number}" for number in range(3)]
    assert installation.run(yes=True, delete=True, with_data=True) == 0, installation.errors
    assert installation.account()["buckets"] == []


def test_an_upgrade_stops_the_vm_for_its_backup_and_replaces_it(installation: Bootstrap) -> None:
    from moto.s3.models import s3_backends

    installation.run(yes=True)
    [old], [address] = installation.masters(), installation.account()["addresses"]
    installation.aws.client("s3").put_object(Bucket=BUCKET, Key=NEWEST, Body=b"1")
    backups = s3_backends["123456789012"]["aws"].buckets[BUCKET].keys[NEWEST]
    made = backups.last_modified
    backups.last_modified = made.replace(year=2020)
    installation.software = b"the next one"
    assert installation.run(yes=True) == 1
    assert "its last backup is of 2020" in installation.errors[0]
    assert "--lose-last-backup" in installation.errors[1]
    assert installation.calls.changes == ["put_object", "stop_instances"]
    backups.last_modified = made.replace(year=2100)
    assert installation.run(yes=True) == 0, installation.errors
    assert installation.calls.changes[:2] == ["terminate_instances", "run_instances"]
    [new] = installation.masters()
    assert new["InstanceId"] != old["InstanceId"]
    assert installation.account()["addresses"] == [address]


@pytest.mark.parametrize(
    "each", [7, *(pytest.param(each, marks=pytest.mark.thorough) for each in (4, 1))]
)
def test_killed_between_any_calls_and_repeated(installation: Bootstrap, each: int) -> None:
    """Every run makes so many changes and is killed: with one, every state between two calls is
    gone on from."""
    before = others(installation)

    def until_done(**asked: Any) -> int:
        for runs in range(1, 100):
            try:
                assert installation.run(yes=True, left=each, **asked) == 0, installation.errors
                return runs
            except Killed:
                pass
        raise AssertionError(installation.lines)

    assert until_done() * each > 20
    killed = installation.account(), installation.policies()
    assert installation.run() == 0
    assert installation.calls.changes == []
    assert len(installation.masters()) == 1
    assert until_done(delete=True) * each > 15
    assert installation.account() == before
    assert installation.run(yes=True) == 0  # the same as one that nobody killed
    at_once = installation.account(), installation.policies()
    for found in (killed, at_once):
        found[0].pop("vms")
        found[0].pop("addresses")
    assert at_once == killed


def test_answers_that_got_lost_make_nothing_twice(installation: Bootstrap) -> None:
    for action in ("CreateRole", "CreateSecurityGroup", "AllocateAddress", "RunInstances"):
        installation.aws.script.cut(action, after=True)
    assert installation.run(yes=True) == 0, installation.errors
    assert len(installation.masters()) == 1
    found = installation.account()
    assert len(found["addresses"]) == 1
    assert found["groups"] == ["spothop-master", "spothop-vm"]
