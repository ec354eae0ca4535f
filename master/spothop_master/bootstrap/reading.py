"""What an account has of an installation: some 30 requests that change nothing, and some 5 of them
again and again while a VM is waited for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from spothop.catalog.table import packaged
from spothop_master.bootstrap import desired
from spothop_master.bootstrap.backup import NEWEST
from spothop_master.bootstrap.desired import TAG, Wanted
from spothop_master.bootstrap.found import (
    AddressFound,
    BucketFound,
    Found,
    GroupFound,
    MasterFound,
    ProfileFound,
    RoleFound,
)
from spothop_master.bootstrap.on_vm import PARAMETERS
from spothop_master.clouds.aws import reading
from spothop_master.clouds.aws.calls import Caller
from spothop_master.clouds.aws.config import AwsConfig, RegionConfig
from spothop_master.clouds.aws.requests import Image
from spothop_master.clouds.base import OWNER_TAG, CloudError

MISSING = frozenset(
    {
        "404",
        "NoSuchBucket",
        "NoSuchEntity",
        "NoSuchKey",
        "NoSuchLifecycleConfiguration",
        "NoSuchPublicAccessBlockConfiguration",
        "NoSuchTagSet",
        "ParameterNotFound",
        "ServerSideEncryptionConfigurationNotFoundError",
    }
)
THEIRS = frozenset({"403", "AccessDenied", "Forbidden"})
ALIVE = ("pending", "running", "stopping", "stopped", "shutting-down")
_STOPPED = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


class Reader:
    """Of one account in one region. Every method raises CloudError."""

    def __init__(self, calls: Caller, region: str) -> None:
        self._calls = calls
        self.region = region

    def account(self) -> str:
        return str(self._call("sts", "get_caller_identity")["Account"])

    def bucket_name(self) -> str:
        """Of the installation there is; "" where there is none."""
        role = self._role(desired.MASTER)
        return role.tags.get(desired.BUCKET_TAG, "") if role is not None else ""

    def parameter(self, name: str) -> str:
        """ "" where there is none."""
        answer = self._maybe("ssm", "get_parameter", Name=name, WithDecryption=True)
        return str(answer["Parameter"]["Value"]) if answer is not None else ""

    def found(
        self,
        account: str,
        wanted: Wanted,
        *,
        removing: bool = False,
        before: Found | None = None,
        touched: Collection[str] = (),
    ) -> Found:
        """Everything; or with `before`, what a plan was made of, only what may have changed by
        itself, and what the services `touched` since have."""
        if before is None:
            before, touched = Found(account=account, region=self.region), ("iam", "s3")
            before = replace(before, vpc=self._vpc())
        if "iam" in touched:
            before = replace(before, **self._identities())
        if "s3" in touched:
            before = replace(before, bucket=self._bucket(wanted.bucket, account))
        before = replace(before, **self._of_ec2(wanted, before.bucket is not None))
        return replace(before, **self._to_remove(account)) if removing else before

    def _identities(self) -> dict[str, Any]:
        names = desired.ROLES
        roles = {name: role for name in names if (role := self._role(name)) is not None}
        profiles = {
            name: profile
            for name, role in names.items()
            if role.profile and (profile := self._profile(name)) is not None
        }
        return {"roles": roles, "profiles": profiles}

    def _of_ec2(self, wanted: Wanted, bucket: bool) -> dict[str, Any]:
        rows = [*self._instances(TAG, self.region)]
        masters = [_master(row) for row in rows if row["State"]["Name"] in ALIVE]
        image, root = ("", "") if masters else self._image(wanted.vm_type or desired.VM_TYPE)
        stopped = bucket and any(vm.state == "stopped" for vm in masters)
        return {
            "masters": masters,
            "ended": [row["InstanceId"] for row in rows if row["State"]["Name"] not in ALIVE],
            "image": image,
            "image_root": root,
            "groups": self._groups(),
            "addresses": [*self._addresses()],
            "backup_at": self._backup_at(wanted.bucket) if stopped else None,
        }

    def _to_remove(self, account: str) -> dict[str, Any]:
        owner = desired.owner(account, self.region)
        rows = self._instances(OWNER_TAG, owner)
        return {
            "vms": [row["InstanceId"] for row in rows if row["State"]["Name"] in ALIVE],
            "volumes": [*self._volumes(owner)],
            "parameters": [name for name in PARAMETERS if self.parameter(name)],
        }

    # --- identities -----------------------------------------------------------------------------

    def _role(self, name: str) -> RoleFound | None:
        answer = self._maybe("iam", "get_role", RoleName=name)
        if answer is None:
            return None
        listed = self._call("iam", "list_role_policies", RoleName=name)["PolicyNames"]
        attached = self._call("iam", "list_attached_role_policies", RoleName=name)
        policies = {}
        for policy in listed:
            how = {"RoleName": name, "PolicyName": policy}
            policies[policy] = self._call("iam", "get_role_policy", **how)["PolicyDocument"]
        role = answer["Role"]
        return RoleFound(
            tags=_tags(role),
            trust=role["AssumeRolePolicyDocument"],
            policies=policies,
            attached=[each["PolicyArn"] for each in attached["AttachedPolicies"]],
        )

    def _profile(self, name: str) -> ProfileFound | None:
        answer = self._maybe("iam", "get_instance_profile", InstanceProfileName=name)
        if answer is None:
            return None
        profile = answer["InstanceProfile"]
        roles = [role["RoleName"] for role in profile["Roles"]]
        return ProfileFound(tags=_tags(profile), roles=roles)

    # --- bucket ---------------------------------------------------------------------------------

    def _bucket(self, name: str, account: str) -> BucketFound | None:
        """Somebody may have made a bucket of a name that can be guessed, and let us write to it:
        our keys would go there."""
        where = {"Bucket": name}
        try:
            owned = {**where, "ExpectedBucketOwner": account}
            if self._maybe("s3", "head_bucket", **owned) is None:
                return None
        except CloudError as error:
            if error.code in THEIRS:
                return BucketFound(theirs=True)
            raise
        tags = self._maybe("s3", "get_bucket_tagging", **where) or {}
        block = self._maybe("s3", "get_public_access_block", **where) or {}
        encryption = self._maybe("s3", "get_bucket_encryption", **where) or {}
        life = self._maybe("s3", "get_bucket_lifecycle_configuration", **where) or {}
        listed = self._call("s3", "list_objects_v2", **where, Prefix=desired.SOFTWARE)
        software = [row["Key"] for row in listed.get("Contents", ())]
        some = self._call("s3", "list_objects_v2", **where, MaxKeys=len(software) + 1)
        return BucketFound(
            tags=_tags(tags, "TagSet"),
            access_block=block.get("PublicAccessBlockConfiguration"),
            encryption=encryption.get("ServerSideEncryptionConfiguration"),
            rules=life.get("Rules", ()),
            software=software,
            empty={row["Key"] for row in some.get("Contents", ())} <= set(software),
        )

    def _backup_at(self, bucket: str) -> datetime | None:
        answer = self._maybe("s3", "head_object", Bucket=bucket, Key=NEWEST)
        return _moment(answer["LastModified"]) if answer is not None else None

    # --- EC2 ------------------------------------------------------------------------------------

    def _vpc(self) -> str:
        default = [{"Name": "is-default", "Values": ["true"]}]
        vpcs = self._call("ec2", "describe_vpcs", Filters=default)["Vpcs"]
        return str(vpcs[0]["VpcId"]) if vpcs else ""

    def _image(self, vm_type: str) -> tuple[str, str]:
        """Ubuntu of the newest build, for this VM type; and its first disk."""
        shape = packaged().shape("aws", vm_type)
        arch = shape.arch if shape is not None else "x86_64"
        config = AwsConfig(regions={self.region: RegionConfig()})
        name = config.image_for(self.region, gpu=False, arch=arch).removeprefix("resolve:ssm:")
        image = str(self._call("ssm", "get_parameter", Name=name)["Parameter"]["Value"])
        told = reading.image(self._call("ec2", "describe_images", ImageIds=[image]))
        return image, told.root if told is not None else Image.root

    def _groups(self) -> dict[str, GroupFound]:
        named = [{"Name": "group-name", "Values": [*desired.GROUPS]}]
        rows = self._call("ec2", "describe_security_groups", Filters=named)["SecurityGroups"]
        return {
            row["GroupName"]: GroupFound(
                id=row["GroupId"],
                tags=_tags(row),
                ports=frozenset(rule.get("FromPort", 0) for rule in row["IpPermissions"]),
            )
            for row in rows
        }

    def _addresses(self) -> Iterator[AddressFound]:
        rows = self._call("ec2", "describe_addresses", **_tagged(TAG, self.region))
        for row in rows["Addresses"]:
            yield AddressFound(
                allocation=row["AllocationId"],
                ip=row["PublicIp"],
                vm=row.get("InstanceId") or "",
                association=row.get("AssociationId") or "",
            )

    def _instances(self, tag: str, value: str) -> Iterator[Mapping[str, Any]]:
        for page in self._calls.pages(
            "ec2", self.region, "describe_instances", **_tagged(tag, value)
        ):
            for reservation in page["Reservations"]:
                yield from reservation["Instances"]

    def _volumes(self, owner: str) -> Iterator[str]:
        asked = _tagged(OWNER_TAG, owner)
        asked["Filters"].append({"Name": "status", "Values": ["available"]})
        for page in self._calls.pages("ec2", self.region, "describe_volumes", **asked):
            yield from (row["VolumeId"] for row in page["Volumes"])

    def _call(self, service: str, operation: str, **params: Any) -> Any:
        return self._calls.call(service, self.region, operation, **params)

    def _maybe(self, service: str, operation: str, **params: Any) -> Any:
        """None: there is no such thing."""
        try:
            return self._call(service, operation, **params)
        except CloudError as error:
            if error.code in MISSING:
                return None
            raise


def _master(row: Mapping[str, Any]) -> MasterFound:
    stopped = _STOPPED.search(row.get("StateTransitionReason") or "")
    return MasterFound(
        id=row["InstanceId"],
        state=row["State"]["Name"],
        vm_type=row["InstanceType"],
        user_data=_tags(row).get(desired.SOFTWARE_TAG, ""),
        stopped_at=datetime.fromisoformat(f"{stopped[1]}+00:00") if stopped is not None else None,
    )


def _tags(row: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    rows: Iterable[Mapping[str, str]] = row.get(key) or ()
    return {tag["Key"]: tag["Value"] for tag in rows}


def _tagged(tag: str, value: str) -> dict[str, Any]:
    return {"Filters": [{"Name": f"tag:{tag}", "Values": [value]}]}


def _moment(value: datetime) -> datetime:
    return value.astimezone(timezone.utc)
