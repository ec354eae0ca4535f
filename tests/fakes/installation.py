"""`spothop bootstrap aws` against the emulator: what a test runs, and what the account holds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from spothop_master.bootstrap.desired import ROLES, TAG
from spothop_master.bootstrap.on_vm import CA, READY, STATUS
from spothop_master.bootstrap.program import Asked, World, run
from spothop_master.clouds.aws.calls import AwsCalls

REGION = "us-east-1"
READS = ("get_", "describe_", "list_", "head_")
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


class Killed(BaseException):
    """The program ends here, as by SIGKILL: nothing of it catches this."""


class Counting:
    """Calls go on to the emulator; the program is killed after so many that change something."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls
        self.changes: list[str] = []
        self.left: int | None = None

    def call(self, service: str, region: str, operation: str, **params: Any) -> Any:
        if operation == "head_bucket":
            assert params["ExpectedBucketOwner"] == "123456789012"
        changes = not operation.startswith(READS)
        if changes and self.left == 0:
            raise Killed
        answer = self._calls.call(service, region, operation, **params)
        if changes:
            self.changes.append(operation)
            self.left = None if self.left is None else self.left - 1
        return answer

    def pages(self, service: str, region: str, operation: str, **params: Any) -> Iterator[Any]:
        return self._calls.pages(service, region, operation, **params)


class Bootstrap:
    """Runs of the program in one account. A master that is launched is ready at once."""

    def __init__(self, aws: Any, sdk: dict[str, AwsCalls]) -> None:
        self.aws = aws
        made = sdk.setdefault(
            aws.endpoint, AwsCalls(endpoint_url=aws.endpoint, session=aws.session)
        )
        self.calls = Counting(made)
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.software = b"the software"
        aws.fleet.boot_s = aws.fleet.shutdown_s = 5.0

    def run(self, *, agrees: bool = True, left: int | None = None, **asked: Any) -> int:
        """The exit code. `left`: killed after so many changes."""
        self.lines, self.errors = [], []
        self.calls.changes, self.calls.left = [], left
        world = World(
            calls=self.calls,
            say=self.lines.append,
            ask=lambda question: agrees,
            can_ask=True,
            sleep=self._sleep,
            now=lambda: datetime(2026, 11, 22, 16, tzinfo=timezone.utc),
            build=lambda: self.software,
            answers=lambda url, ca: ca == PEM,
        )
        return run(Asked(**{"region": REGION, **asked}), world, complain=self.errors.append)

    def _sleep(self, seconds: float) -> None:
        self.aws.clock.advance(seconds)
        for vm in self.masters():
            if vm["State"]["Name"] == "running":
                ssm = self.aws.client("ssm")
                how = {"Type": "String", "Overwrite": True}
                ssm.put_parameter(Name=STATUS, Value=f"{vm['InstanceId']} {READY}", **how)
                ssm.put_parameter(Name=CA, Value=PEM, **how)

    def masters(self) -> list[dict[str, Any]]:
        ours = [{"Name": f"tag:{TAG}", "Values": [REGION]}]
        rows = self.aws.client("ec2").describe_instances(Filters=ours)["Reservations"]
        found = [vm for row in rows for vm in row["Instances"]]
        return [vm for vm in found if vm["State"]["Name"] != "terminated"]

    def account(self) -> dict[str, list[str]]:
        """What there is, without what every account has."""
        ec2, iam, s3 = (self.aws.client(name) for name in ("ec2", "iam", "s3"))
        groups = ec2.describe_security_groups()["SecurityGroups"]
        vms = [vm for row in ec2.describe_instances()["Reservations"] for vm in row["Instances"]]
        return {
            "roles": sorted(role["RoleName"] for role in iam.list_roles()["Roles"]),
            "profiles": sorted(
                row["InstanceProfileName"]
                for row in iam.list_instance_profiles()["InstanceProfiles"]
            ),
            "buckets": sorted(row["Name"] for row in s3.list_buckets()["Buckets"]),
            "groups": sorted(g["GroupName"] for g in groups if g["GroupName"] != "default"),
            "addresses": [row["PublicIp"] for row in ec2.describe_addresses()["Addresses"]],
            "vms": sorted(
                vm["InstanceId"] for vm in vms if vm["State"]["Name"] not in ("terminated",)
            ),
            "parameters": sorted(
                row["Name"] for row in self.aws.client("ssm").describe_parameters()["Parameters"]
            ),
        }

    def policies(self) -> dict[str, Any]:
        iam = self.aws.client("iam")
        return {
            f"{role}/{policy}": iam.get_role_policy(RoleName=role, PolicyName=policy)[
                "PolicyDocument"
            ]
            for role in ROLES
            for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]
        }
