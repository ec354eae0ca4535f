"""The policies of deploy/aws under enforced IAM: all that the programs do is allowed, and what they
must not do is denied.

Only the layer of the emulator evaluates resources and conditions of EC2, FIS and SSM (fakes/aws/
iam.py), by AWS's documentation; a real account has the last word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from fakes.aws import Emulator
from fakes.aws.iam import Need, allows
from fakes.aws_rig import DEPLOY, policy, set_up
from spothop.wire import AgentConfig, Dialect, Pool, Verdict
from spothop_master.clouds.aws.calls import AwsCalls
from spothop_master.clouds.aws.config import load
from spothop_master.clouds.aws.driver import AwsCloud
from spothop_master.clouds.base import OWNER_TAG, AuthFailed, CloudVmState, LaunchSpec
from spothop_master.core.evidence import EndCause

POOL = Pool(cloud="aws", region="us-east-1", zone="us-east-1a", vm="t3.micro")
BUCKET = "runs"


@pytest.fixture
def account(aws: Emulator) -> Emulator:
    """As an administrator has made it, before IAM is enforced."""
    set_up(aws)
    iam = aws.client("iam")
    for role, name in (("spothop-vm", "vm.json"), ("spothop-fis", "fis.json")):
        iam.put_role_policy(
            RoleName=role, PolicyName="spothop", PolicyDocument=policy(name, bucket=BUCKET)
        )
    for bucket in (BUCKET, "somebody-elses"):
        aws.client("s3").create_bucket(Bucket=bucket)
        aws.client("s3").put_object(Bucket=bucket, Key="there", Body=b"x")
    return aws


def keys_of(aws: Emulator, name: str) -> dict[str, str]:
    """A user with this policy, and from here on IAM decides."""
    iam = aws.client("iam")
    iam.create_user(UserName="program")
    iam.put_user_policy(
        UserName="program", PolicyName="p", PolicyDocument=policy(name, bucket=BUCKET)
    )
    made = iam.create_access_key(UserName="program")["AccessKey"]
    aws.enforce_iam()
    return {
        "aws_access_key_id": made["AccessKeyId"],
        "aws_secret_access_key": made["SecretAccessKey"],
    }


def denied(call: Any, **params: Any) -> None:
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as raised:
        call(**params)
    code = raised.value.response["Error"]["Code"]
    assert code in ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"), code


def driver(aws: Emulator, keys: dict[str, str], folder: Path, *, role: str = "") -> AwsCloud:
    file = folder / "aws.yaml"
    file.write_text(
        f"regions: [us-east-1]\nendpoint_url: {aws.endpoint}\n"
        f"vm_types: {{t3.micro: {{price: 0.5}}}}\n{role}\n"
    )
    calls = AwsCalls(endpoint_url=aws.endpoint, session=lambda: aws.session(**keys))
    return AwsCloud(load(file), calls=calls)


def launch(cloud: AwsCloud, token: str, *, spot: bool = True, **tags: str) -> str:
    config = AgentConfig(
        master="http://127.0.0.1:9", token="t", vm="v", dialect=Dialect.AWS, directory="/x"
    )
    wanted = LaunchSpec(
        pool=POOL.model_copy(update={"spot": spot}),
        user_data=config,
        script="#!/bin/sh\n",
        tags=tags,
    )
    return cloud.launch(wanted, token).id


def left_over(aws: Emulator, **tags: str) -> dict[str, dict[str, str]]:
    """A disk, an address and a network interface; by operation, the parameters that delete each."""
    ec2 = aws.client("ec2")

    def tagged(kind: str) -> list[dict[str, Any]]:
        named = [{"Key": key, "Value": value} for key, value in tags.items()]
        return [{"ResourceType": kind, "Tags": named}]

    volume = ec2.create_volume(
        AvailabilityZone="us-east-1a", Size=8, TagSpecifications=tagged("volume")
    )
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip"))
    interface = ec2.create_network_interface(
        SubnetId=ec2.describe_subnets()["Subnets"][0]["SubnetId"],
        TagSpecifications=tagged("network-interface"),
    )["NetworkInterface"]
    return {
        "delete_volume": {"VolumeId": volume["VolumeId"]},
        "release_address": {"AllocationId": address["AllocationId"]},
        "delete_network_interface": {"NetworkInterfaceId": interface["NetworkInterfaceId"]},
    }


def test_what_others_left_over_can_not_be_deleted(account: Emulator) -> None:
    theirs = left_over(account, project="other")
    ec2 = account.client("ec2", **keys_of(account, "master.json"))
    for operation, params in theirs.items():
        denied(getattr(ec2, operation), **params)


def test_the_masters_policy_allows_all_that_the_driver_does(
    account: Emulator, tmp_path: Path
) -> None:
    left_over(account, **{OWNER_TAG: "them"})
    made = driver(account, {}, tmp_path).remains("them")
    assert len(made) == 3
    cloud = driver(account, keys_of(account, "master.json"), tmp_path)
    assert POOL in {info.pool for info in cloud.pools()}
    ours = {OWNER_TAG: "us"}
    spot, on_demand = launch(cloud, "t1", **ours), launch(cloud, "t2", spot=False, **ours)
    assert {vm.id for vm in cloud.list("us")} == {spot, on_demand}
    assert cloud.gap(POOL.region) is None, "DescribeSpotInstanceRequests was refused"
    cloud.preempt(spot)
    cloud.terminate(on_demand)
    account.clock.advance(120)
    ended = {vm.id: (vm.state, vm.cause) for vm in cloud.list("us")}
    assert ended == {
        spot: (CloudVmState.TERMINATED, EndCause.PREEMPTED),
        on_demand: (CloudVmState.TERMINATED, EndCause.TERMINATED),
    }
    assert cloud.end_cause(spot) is EndCause.PREEMPTED
    assert cloud.remains("us") == []
    for remain in made:
        cloud.remove(remain)
    assert not {*made} & {*cloud.remains("them")}


def test_the_masters_policy_lets_the_doctor_look(account: Emulator) -> None:
    keys = keys_of(account, "master.json")
    assert account.client("sts", **keys).get_caller_identity()["Account"] == "123456789012"
    quotas = account.client("service-quotas", **keys)
    assert quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]
    ec2 = account.client("ec2", **keys)
    assert ec2.describe_vpcs()["Vpcs"]
    assert ec2.describe_security_groups()["SecurityGroups"]
    assert ec2.describe_instance_types(InstanceTypes=["t3.micro"])["InstanceTypes"]


def test_under_the_masters_policy_the_doctor_finds_nothing_denied(
    account: Emulator, tmp_path: Path
) -> None:
    cloud = driver(account, keys_of(account, "master.json"), tmp_path)
    checks = {check.subject: check for check in cloud.diagnose(f"s3://{BUCKET}/runs")}
    assert [check for check in checks.values() if check.verdict is Verdict.FAILED] == []
    # nothing is told of the profile: of IAM's own calls moto decides by the action alone, and takes
    # the resource in our policy for a denial
    assert "no rule ends them" in checks["bucket: unfinished uploads"].fact, "it could look"
    assert "vCPUs" in checks["us-east-1: quota"].fact
    assert account.fleet.lives() == []


def test_under_another_policy_the_doctor_names_what_is_denied(
    account: Emulator, tmp_path: Path
) -> None:
    cloud = driver(account, keys_of(account, "vm.json"), tmp_path)
    checks = {check.subject: check for check in cloud.diagnose(f"s3://{BUCKET}/runs")}
    assert checks["credentials"].verdict is Verdict.OK
    for subject in ("look at EC2", "subnets", "image"):
        found = checks[f"us-east-1: {subject}"]
        assert found.verdict is Verdict.FAILED
        assert found.hint


def test_without_an_owner_nothing_is_launched(account: Emulator, tmp_path: Path) -> None:
    cloud = driver(account, keys_of(account, "master.json"), tmp_path)
    with pytest.raises(AuthFailed, match="ec2:RunInstances"):
        launch(cloud, "t1", project="other")
    assert account.fleet.lives() == []


def test_vms_of_others_can_be_neither_ended_nor_tagged(account: Emulator, tmp_path: Path) -> None:
    admin = driver(account, {}, tmp_path)
    theirs = launch(admin, "t1", project="other")
    ec2 = account.client("ec2", **keys_of(account, "master.json"))
    denied(ec2.terminate_instances, InstanceIds=[theirs])
    denied(ec2.get_console_output, InstanceId=theirs)
    denied(ec2.create_tags, Resources=[theirs], Tags=[{"Key": OWNER_TAG, "Value": "us"}])
    denied(ec2.stop_instances, InstanceIds=[theirs])
    assert [life.state for life in account.fleet.lives()] == ["running"]


def test_an_experiment_interrupts_no_vm_of_others(account: Emulator, tmp_path: Path) -> None:
    theirs = launch(driver(account, {}, tmp_path), "t1", project="other")
    cloud = driver(account, keys_of(account, "master.json"), tmp_path)
    cloud.preempt(theirs)
    account.clock.advance(200)
    assert [life.state for life in account.fleet.lives()] == ["running"]


def test_a_vm_gets_no_role_but_its_own(account: Emulator, tmp_path: Path) -> None:
    iam = account.client("iam")
    iam.create_role(RoleName="admin", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="admin")
    iam.add_role_to_instance_profile(InstanceProfileName="admin", RoleName="admin")
    keys = keys_of(account, "master.json")
    cloud = driver(account, keys, tmp_path, role="instance_profile: admin")
    with pytest.raises(AuthFailed, match="iam:PassRole"):
        launch(cloud, "t1", **{OWNER_TAG: "us"})
    cloud = driver(account, keys, tmp_path, role="interruption_role: admin")
    spot = launch(cloud, "t2", **{OWNER_TAG: "us"})
    with pytest.raises(AuthFailed, match="iam:PassRole"):
        cloud.preempt(spot)


def test_the_master_administers_nothing(account: Emulator) -> None:
    keys = keys_of(account, "master.json")
    denied(account.client("iam", **keys).create_user, UserName="x")
    denied(account.client("s3", **keys).create_bucket, Bucket="another")
    denied(account.client("ec2", **keys).create_vpc, CidrBlock="10.0.0.0/16")
    denied(account.client("ssm", **keys).get_parameter, Name="/secrets/of/others")


def vm_store(aws: Emulator, bucket: str) -> S3Store:
    """As a VM opens it: with what STS gives for the role of its profile."""
    role = "arn:aws:iam::123456789012:role/spothop-vm"
    given = aws.client("sts").assume_role(RoleArn=role, RoleSessionName="i-1")["Credentials"]
    return S3Store(
        bucket,
        endpoint=aws.endpoint,
        region="us-east-1",
        access_key_id=given["AccessKeyId"],
        secret_access_key=given["SecretAccessKey"],
        session_token=given["SessionToken"],
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def test_a_vm_keeps_checkpoints_in_the_bucket_and_does_nothing_else(account: Emulator) -> None:
    store, other = vm_store(account, BUCKET), vm_store(account, "somebody-elses")
    account.enforce_iam()
    obstore.put(store, "jobs/j/chain/0.json", b"{}", mode="create")
    obstore.put(store, "jobs/j/data/0", b"1" * 6_000_000, use_multipart=True, chunk_size=5 << 20)
    assert obstore.get(store, "jobs/j/data/0").bytes() == b"1" * 6_000_000
    listed = [row["path"] for page in obstore.list(store, "jobs") for row in page]
    assert sorted(listed) == ["jobs/j/chain/0.json", "jobs/j/data/0"]
    obstore.delete(store, "jobs/j/data/0")
    for refused in (
        lambda: obstore.get(other, "there"),
        lambda: obstore.put(other, "mine", b"x"),
        lambda: list(obstore.list(other)),
        lambda: obstore.get(store, "master/backup/newest.zip"),  # of `spothop bootstrap`
        lambda: obstore.put(store, "master/software/it.zip", b"x"),
    ):
        with pytest.raises(BaseError, match="403"):
            refused()


def test_a_vms_role_may_not_call_ec2() -> None:
    for action in ("ec2:RunInstances", "ec2:TerminateInstances", "iam:PassRole", "sts:AssumeRole"):
        assert not allows([policy("vm.json", bucket=BUCKET)], Need(action=action))
    assert not allows(
        [policy("vm.json", bucket=BUCKET)],
        Need(action="s3:DeleteBucket", resource=f"arn:aws:s3:::{BUCKET}"),
    )


@pytest.mark.parametrize("name", ["master.json", "vm.json", "fis.json"])
def test_each_statement_says_what_it_is_for(name: str) -> None:
    statements = json.loads((DEPLOY / name).read_text())["Statement"]
    names = [statement["Sid"] for statement in statements]
    assert len(set(names)) == len(names)
    assert all("*" not in str(statement["Action"]) for statement in statements)
