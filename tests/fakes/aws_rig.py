"""The rigs of the contract suite for AWS: the emulator, or an account of yours.

`SPOTHOP_AWS_LIVE=1 pytest tests/contract/test_cloud_contract.py` runs the suite against the account
that the SDK finds credentials for, in us-east-1 or `SPOTHOP_AWS_LIVE_REGION`; what only the
emulator can be made to do is left out. `deploy/aws/master.json` has the permissions that it needs,
and the role `spothop-fis` must exist. Never in CI.

Spending is capped: at most `LIVE_VMS` VMs of `LIVE_TYPE` are launched, each ends with its test, and
if that fails by itself after ten minutes. 40 VMs, 10 minutes, at 0.0052 USD an hour for the VM,
0.005 for its address and 0.001 for 8 GB of disk (us-east-1, on demand): less than 0.08 USD.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fakes.cloud_rigs import Named
from spothop.wire import Pool
from spothop_master.clouds.aws.calls import AwsCalls
from spothop_master.clouds.aws.config import load
from spothop_master.clouds.aws.driver import AwsCloud
from spothop_master.clouds.base import OWNER_TAG, Cloud, LaunchSpec, Vm
from spothop_master.core.refusals import Scope

LIVE_TYPE = "t3.nano"
LIVE_VMS = 40

_calls: dict[str, AwsCalls] = {}
"""By endpoint: clients of the SDK take a third of a second each."""

ROLE = """{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole",
 "Principal": {"Service": "%s.amazonaws.com"}}]}"""


def set_up(aws: Any) -> None:
    """What an administrator makes before the first VM: roles, and the VMs' profile."""
    iam = aws.client("iam")
    for name, service in (("spothop-vm", "ec2"), ("spothop-fis", "fis")):
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=ROLE % service)
    iam.create_instance_profile(InstanceProfileName="spothop-vm")
    iam.add_role_to_instance_profile(InstanceProfileName="spothop-vm", RoleName="spothop-vm")


DEPLOY = Path(__file__).parents[2] / "deploy" / "aws"


def policy(name: str, *, bucket: str) -> str:
    """One of deploy/aws."""
    return (DEPLOY / name).read_text(encoding="utf-8").replace("SPOTHOP_BUCKET", bucket)


def grant(aws: Any, *, bucket: str, to_master: str = "master.json") -> dict[str, str]:
    """Give the policies of deploy/aws to the roles, and to a user for the master, whose keys come
    back as environment variables; from here on IAM decides."""
    iam = aws.client("iam")
    for role, name in (("spothop-vm", "vm.json"), ("spothop-fis", "fis.json")):
        document = policy(name, bucket=bucket)
        iam.put_role_policy(RoleName=role, PolicyName="spothop", PolicyDocument=document)
    iam.create_user(UserName="spothop-master")
    iam.put_user_policy(
        UserName="spothop-master",
        PolicyName="spothop",
        PolicyDocument=policy(to_master, bucket=bucket),
    )
    made = iam.create_access_key(UserName="spothop-master")["AccessKey"]
    aws.enforce_iam()
    return {
        "AWS_ACCESS_KEY_ID": made["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def left_of(aws: Any) -> list[str]:
    """What the account holds of VMs, disks, addresses and network interfaces, whoever's."""
    from moto.backends import get_backend

    ec2 = get_backend("ec2")["123456789012"]["us-east-1"]
    return [
        *(life.id for life in aws.fleet.living()),
        *ec2.volumes,
        *ec2.addresses,
        *ec2.enis,
    ]


class AwsRig(Named):
    """EC2 in the emulator: its time goes by as the suite says."""

    throttled_scope = Scope.REGION

    def __init__(self, folder: Path, make_aws: Callable[[], Any]) -> None:
        super().__init__()
        self.aws = make_aws()
        set_up(self.aws)
        self.aws.fleet.boot_s, self.aws.fleet.shutdown_s = 20.0, 30.0
        file = folder / "aws.yaml"
        file.write_text(
            "regions: [us-east-1]\n"
            f"endpoint_url: {self.aws.endpoint}\n"
            "vm_types: {t3.micro: {price: 0.5}}\n"
        )
        calls = _calls.setdefault(
            self.aws.endpoint, AwsCalls(endpoint_url=self.aws.endpoint, session=self.aws.session)
        )
        # The suite moves the emulator's time; the master's goes with it, as clocks do.
        self.cloud: Cloud = AwsCloud(
            load(file),
            calls=calls,
            now=lambda: datetime.fromtimestamp(self.aws.clock(), timezone.utc),
        )
        self.spot = Pool(cloud="aws", region="us-east-1", zone="us-east-1a", vm="t3.micro")
        self.on_demand = self.spot.model_copy(update={"spot": False})

    def pass_time(self) -> None:
        self.aws.clock.advance(10.0)

    def refuse(self) -> None:
        self.aws.script.fail("RunInstances", "InsufficientInstanceCapacity", zone="us-east-1a")

    def refuse_later(self) -> None:
        self.aws.fleet.doomed.append("Server.InsufficientInstanceCapacity")

    def hide(self) -> None:
        self.aws.fleet.hidden_s = 60.0

    def throttle(self) -> None:
        self.aws.script.fail("RunInstances", "RequestLimitExceeded")

    def expire(self) -> None:
        self.aws.script.fail("*", "RequestExpired", times=1 << 30)

    def renew(self) -> None:
        self.aws.script.heal()

    def lose_answer(self) -> None:
        self.aws.script.cut("RunInstances", after=True)

    def lose_request(self) -> None:
        self.aws.script.cut("RunInstances")

    def vanish_preempted(self) -> None:
        self.aws.fleet.vanish = True

    def stray(self) -> str:
        ec2, ssm = self.aws.client("ec2"), self.aws.client("ssm")
        name = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
        made = ec2.run_instances(
            ImageId=ssm.get_parameter(Name=name)["Parameter"]["Value"],
            InstanceType="c5.large",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": OWNER_TAG, "Value": self.us}]}
            ],
        )
        return str(made["Instances"][0]["InstanceId"])

    def left(self) -> list[str]:
        return list(_left(self.aws.client("ec2"), self.us))

    def close(self) -> None: ...


def _left(ec2: Any, owner: str) -> Iterator[str]:
    ours = [{"Name": f"tag:{OWNER_TAG}", "Values": [owner]}]
    for row in ec2.describe_instances(Filters=ours)["Reservations"]:
        yield from (
            vm["InstanceId"] for vm in row["Instances"] if vm["State"]["Name"] != "terminated"
        )
    for volume in ec2.describe_volumes(Filters=ours)["Volumes"]:
        yield volume["VolumeId"]
    for address in ec2.describe_addresses(Filters=ours)["Addresses"]:
        yield address["PublicIp"]
    for card in ec2.describe_network_interfaces(Filters=ours)["NetworkInterfaces"]:
        yield card["NetworkInterfaceId"]


class LiveRig(Named):
    """A real account. A method that is missing here is one of `CANNOT`."""

    within_s = 900.0

    def __init__(self, folder: Path, make_aws: Callable[[], Any]) -> None:
        super().__init__()
        region = os.environ.get("SPOTHOP_AWS_LIVE_REGION", "us-east-1")  # noqa: TID251  a switch
        file = folder / "aws.yaml"
        file.write_text(
            f"regions: [{region}]\ninstance_profile: ''\ndisk_gb: 8\n"
            f"vm_types: {{{LIVE_TYPE}: {{price: 0.0052}}}}\n"
        )
        self.region = region
        self.cloud: Cloud = _Capped(load(file))
        self.spot = Pool(cloud="aws", region=region, zone=f"{region}a", vm=LIVE_TYPE)
        self.on_demand = self.spot.model_copy(update={"spot": False})

    def pass_time(self) -> None:
        time.sleep(5.0)

    def left(self) -> list[str]:
        import boto3

        return list(_left(boto3.client("ec2", region_name=self.region), self.us))

    def close(self) -> None:
        for owner in (self.us, self.them):
            for vm in self.cloud.list(owner):
                self.cloud.terminate(vm.id)


class _Capped(AwsCloud):
    """Launches so many VMs and no more."""

    launches = 0

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        _Capped.launches += 1
        assert _Capped.launches <= LIVE_VMS, f"more than {LIVE_VMS} launches; see LIVE_VMS"
        return super().launch(spec, token)
