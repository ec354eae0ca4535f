"""From what is wanted and what is found to steps, each with its reason. Pure.

A step whose parameters are not known yet (the id of a group that has to be made first) has no calls
in this round; the next round has them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from spothop_master.bootstrap import desired, user_data
from spothop_master.bootstrap.desired import MASTER, TAG, Wanted
from spothop_master.bootstrap.found import (
    AddressFound,
    Call,
    Do,
    Found,
    MasterFound,
    Refused,
    Step,
)
from spothop_master.bootstrap.on_vm import VmConfig

SLACK = timedelta(seconds=60)
"""By which a stop may be stamped later than the backup that it caused."""


def plan(wanted: Wanted, found: Found, *, now: datetime) -> list[Step]:
    """Raises Refused."""
    refuse(wanted, found)
    steps = [step for name in desired.ROLES for step in _role(name, wanted, found)]
    steps += [_bucket(wanted, found), _software(wanted, found)]
    steps += [_group(name, wanted, found) for name in desired.GROUPS]
    return [*steps, *_addresses(wanted, found), *_masters(wanted, found, now=now)]


def refuse(wanted: Wanted, found: Found) -> None:
    """What has one of our names and is not ours, and other things that no step can mend."""
    problems = [
        (f"{what} exists and was not made by bootstrap", way)
        for what, tags, way in _tagged(found)
        if TAG not in tags
    ]
    for what, tags, _ in _tagged(found):
        if tags.get(TAG, found.region) != found.region:
            hint = f"use --region {tags[TAG]}, or remove that one first with --delete"
            problems.append((f"{what} belongs to the installation in {tags[TAG]}", hint))
    problems += _bucket_problems(wanted, found)
    if not found.vpc:
        hint = f"aws ec2 create-default-vpc --region {found.region}"
        problems.append((f"{found.region} has no default VPC", hint))
    if problems:
        raise Refused(*problems)


def _tagged(found: Found) -> Iterator[tuple[str, Mapping[str, str], str]]:
    hand = f"--tags Key={TAG},Value={found.region}"
    for name, role in found.roles.items():
        way = f"aws iam tag-role --role-name {name} {hand}"
        yield f"role {name}", role.tags, f"remove it, or hand it over: {way}"
    for name, profile in found.profiles.items():
        way = f"aws iam tag-instance-profile --instance-profile-name {name} {hand}"
        yield f"instance profile {name}", profile.tags, f"remove it, or hand it over: {way}"
    for name, group in found.groups.items():
        way = f"aws ec2 create-tags --resources {group.id} {hand}"
        yield f"security group {name}", group.tags, f"remove it, or hand it over: {way}"


def _bucket_problems(wanted: Wanted, found: Found) -> Iterator[tuple[str, str]]:
    bucket = found.bucket
    if bucket is None:
        return
    if bucket.theirs:
        yield f"bucket {wanted.bucket} belongs to another account", "choose another --bucket NAME"
    elif TAG not in bucket.tags and not (bucket.empty and not bucket.tags):
        hint = f"choose another --bucket NAME, or tag it with {TAG}={found.region} to hand it over"
        yield f"bucket {wanted.bucket} exists and was not made by bootstrap", hint


# --- identities ---------------------------------------------------------------------------------


def _role(name: str, wanted: Wanted, found: Found) -> Iterator[Step]:
    role, known = desired.ROLES[name], found.roles.get(name)
    more = {desired.BUCKET_TAG: wanted.bucket} if name == MASTER else {}
    tags = desired.tag_list(wanted.tags, **more)
    trust = desired.trust(role.service)
    calls, reasons = [], []

    def add(operation: str, reason: str, **params: Any) -> None:
        calls.append(_iam(operation, RoleName=name, **params))
        reasons.append(reason)

    if known is None:
        document = json.dumps(trust)
        add("create_role", "", AssumeRolePolicyDocument=document, Tags=tags)
    else:
        if known.trust != trust:
            document = json.dumps(trust)
            add("update_assume_role_policy", "who may have it differs", PolicyDocument=document)
        if {tag["Key"]: tag["Value"] for tag in tags}.items() - known.tags.items():
            add("tag_role", "its tags differ", Tags=tags)
    for policy, file in role.policies.items():
        document = desired.policy(file, wanted.bucket)
        if known is None or known.policies.get(policy) != document:
            text = json.dumps(document)
            lacks = known is None or policy not in known.policies
            reason = f"policy {policy} {'is missing' if lacks else 'differs'}"
            add("put_role_policy", reason, PolicyName=policy, PolicyDocument=text)
    yield _step(f"role {name}", known is not None, calls, reasons)
    if role.profile:
        yield _profile(name, wanted, found)


def _profile(name: str, wanted: Wanted, found: Found) -> Step:
    known, calls, reasons = found.profiles.get(name), [], []
    if known is None:
        tags = desired.tag_list(wanted.tags)
        calls.append(_iam("create_instance_profile", InstanceProfileName=name, Tags=tags))
    if known is None or name not in known.roles:
        named = {"InstanceProfileName": name, "RoleName": name}
        calls.append(_iam("add_role_to_instance_profile", **named))
        reasons.append("it lacks its role")
    return _step(f"instance profile {name}", known is not None, calls, reasons)


# --- bucket -------------------------------------------------------------------------------------


def _bucket(wanted: Wanted, found: Found) -> Step:
    known, calls, reasons = found.bucket, [], []

    def add(operation: str, reason: str, **params: Any) -> None:
        calls.append(_s3(operation, Bucket=wanted.bucket, **params))
        reasons.append(reason)

    if known is None:
        place = {"CreateBucketConfiguration": {"LocationConstraint": found.region}}
        add("create_bucket", "", **({} if found.region == "us-east-1" else place))
    if known is None or TAG not in known.tags:
        tags = {"TagSet": desired.tag_list(wanted.tags)}
        add("put_bucket_tagging", "its tag is missing", Tagging=tags)
    if known is None or known.access_block != desired.ACCESS_BLOCK:
        block = {"PublicAccessBlockConfiguration": desired.ACCESS_BLOCK}
        add("put_public_access_block", "public access is not blocked", **block)
    if known is None or not known.encryption:
        encryption = {"ServerSideEncryptionConfiguration": desired.ENCRYPTION}
        add("put_bucket_encryption", "it is not encrypted", **encryption)
    rules = [*known.rules] if known is not None else []
    if not any(_ends_parts(rule) for rule in rules):
        others = [rule for rule in rules if rule.get("ID") != desired.PARTS_RULE]
        life = {"LifecycleConfiguration": {"Rules": [*others, desired.PARTS]}}
        reason = "nothing ends unfinished uploads"
        add("put_bucket_lifecycle_configuration", reason, **life)
    return _step(f"bucket {wanted.bucket}", known is not None, calls, reasons)


def _ends_parts(rule: Mapping[str, Any]) -> bool:
    """S3 may write the filter of our rule in another way."""
    names = ("ID", "Status", "AbortIncompleteMultipartUpload")
    return all(rule.get(name) == desired.PARTS[name] for name in names)


def _software(wanted: Wanted, found: Found) -> Step:
    """The file itself is added where the call is made."""
    key = f"{desired.SOFTWARE}{wanted.software}.zip"
    subject = "software in the bucket"
    known = found.bucket.software if found.bucket is not None else ()
    if key in known:
        return Step(subject=subject, do=Do.KEEP)
    call = _s3("put_object", Bucket=wanted.bucket, Key=key)
    do = Do.CHANGE if known else Do.MAKE
    return Step(subject=subject, do=do, reason="of this version" if known else "", calls=[call])


# --- network ------------------------------------------------------------------------------------


def _group(name: str, wanted: Wanted, found: Found) -> Step:
    """Rules of others stay; so who narrows the master's port keeps that."""
    subject, known = f"security group {name}", found.groups.get(name)
    if known is None:
        params = {
            "GroupName": name,
            "Description": desired.GROUPS[name],
            "VpcId": found.vpc,
            "TagSpecifications": _specification("security-group", wanted, name),
        }
        call = _ec2("create_security_group", **params)
        return Step(subject=subject, do=Do.MAKE, calls=[call])
    if name != MASTER or desired.PORT in known.ports:
        return Step(subject=subject, do=Do.KEEP)
    rule = {
        "IpProtocol": "tcp",
        "FromPort": desired.PORT,
        "ToPort": desired.PORT,
        "IpRanges": [{"CidrIp": desired.ANYWHERE, "Description": "spothop master, TLS"}],
    }
    params = {"GroupId": known.id, "IpPermissions": [rule]}
    call = _ec2("authorize_security_group_ingress", **params)
    reason = f"port {desired.PORT} is closed"
    return Step(subject=subject, do=Do.CHANGE, reason=reason, calls=[call])


def _addresses(wanted: Wanted, found: Found) -> Iterator[Step]:
    kept = the_address(found)
    if kept is None:
        tags = _specification("elastic-ip", wanted, MASTER)
        call = _ec2("allocate_address", Domain="vpc", TagSpecifications=tags)
        yield Step(subject="elastic address", do=Do.MAKE, calls=[call])
        return
    vm = next((vm.id for vm in found.masters if vm.state == "running"), "")
    if not vm or kept.vm == vm:
        do = Do.KEEP if kept.vm or not found.masters else Do.WAIT
        yield Step(subject=f"elastic address {kept.ip}", do=do)
    else:
        which = {"AllocationId": kept.allocation, "InstanceId": vm}
        call = _ec2("associate_address", **which, AllowReassociation=True)
        subject, reason = f"elastic address {kept.ip}", "it is not the master's"
        yield Step(subject=subject, do=Do.CHANGE, reason=reason, calls=[call])
    for other in found.addresses:
        if other is not kept:
            call = _ec2("release_address", AllocationId=other.allocation)
            subject, reason = f"elastic address {other.ip}", "one is enough"
            yield Step(subject=subject, do=Do.REMOVE, reason=reason, calls=[call])


def the_address(found: Found) -> AddressFound | None:
    """Of several, the one in use."""
    ranked = sorted(found.addresses, key=lambda each: (not each.vm, each.allocation))
    return ranked[0] if ranked else None


# --- the VM -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UserData:
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def user_data_of(wanted: Wanted, found: Found) -> UserData | None:
    """None: what it names is not made yet."""
    address, group = the_address(found), found.groups.get(desired.VM)
    if address is None or group is None:
        return None
    config = VmConfig(
        region=found.region,
        bucket=wanted.bucket,
        owner=desired.owner(found.account, found.region),
        address=address.ip,
        port=desired.PORT,
        software=wanted.software,
        vm_group=group.id,
        endpoint=wanted.endpoint,
    )
    return UserData(user_data.render(config))


def _masters(wanted: Wanted, found: Found, *, now: datetime) -> Iterator[Step]:
    told = user_data_of(wanted, found)
    if not found.masters:
        yield _launch(wanted, found, told, now=now)
        return
    first, *others = sorted(found.masters, key=lambda vm: (vm.state == "shutting-down", vm.id))
    for other in others:  # two runs side by side
        if other.state != "shutting-down":
            step = _on(other, "terminate_instances", Do.REMOVE, "one is enough")
            yield step
    yield _master(first, wanted, found, told)


def _master(vm: MasterFound, wanted: Wanted, found: Found, told: UserData | None) -> Step:
    reason = ""
    if told is None or vm.user_data != told.sha256:
        reason = "its software or configuration differs: a new VM takes its place"
    elif wanted.vm_type and vm.vm_type != wanted.vm_type:
        reason = f"it is a {vm.vm_type}: a {wanted.vm_type} takes its place"
    if vm.state == "shutting-down":
        return _waiting(vm, "it ends, and a new one takes its place")
    if reason:
        return retire(vm, wanted, found, reason)
    if vm.state == "stopped":
        return _on(vm, "start_instances", Do.CHANGE, "it is stopped")
    return _waiting(vm, vm.state) if vm.state != "running" else Step(subject=_name(vm), do=Do.KEEP)


def retire(vm: MasterFound, wanted: Wanted, found: Found, reason: str) -> Step:
    """Stop it, which makes the last backup; then terminate it. Raises Refused where a backup is
    there, and none was made at the stop."""
    if vm.state in ("pending", "stopping"):
        return _waiting(vm, reason)
    if vm.state == "running":
        return _on(vm, "stop_instances", Do.CHANGE, reason)
    at, stopped = found.backup_at, vm.stopped_at
    if at is not None and stopped is not None and at < stopped - SLACK and not wanted.lose_backup:
        raise Refused(
            (
                f"{_name(vm)} was stopped at {stopped:%Y-%m-%d %H:%M:%S} UTC, but its last backup "
                f"is of {at:%Y-%m-%d %H:%M:%S}",
                f"start it, so that it makes one: aws ec2 start-instances --instance-ids {vm.id}; "
                "or do without what came after, with --lose-last-backup",
            )
        )
    return _on(vm, "terminate_instances", Do.CHANGE, reason)


def _launch(wanted: Wanted, found: Found, told: UserData | None, *, now: datetime) -> Step:
    subject = "VM of the master"
    group = found.groups.get(MASTER)
    if told is None or group is None:
        return Step(subject=subject, do=Do.MAKE)
    tags = desired.tag_list(wanted.tags, Name=MASTER, **{desired.SOFTWARE_TAG: told.sha256})
    disk = {"VolumeSize": desired.DISK_GB, "VolumeType": "gp3", "DeleteOnTermination": True}
    params = {
        "ImageId": found.image,
        "InstanceType": wanted.vm_type or desired.VM_TYPE,
        "MinCount": 1,
        "MaxCount": 1,
        "SecurityGroupIds": [group.id],
        "IamInstanceProfile": {"Name": MASTER},
        "UserData": told.text,
        **_credits(wanted.vm_type or desired.VM_TYPE),
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required"},
        "BlockDeviceMappings": [
            {"DeviceName": found.image_root, "Ebs": {**disk, "Encrypted": True}}
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")
        ],
    }
    # The hour, and those before it: who repeats an unclear launch makes no second VM, and one that
    # ended long ago, whose token EC2 remembers longer than it shows it, is not asked for again.
    seen = json.dumps([params, sorted(found.ended), f"{now:%Y%m%d%H}"], sort_keys=True)
    token = f"spothop-{hashlib.sha256(seen.encode()).hexdigest()[:32]}"
    call = _ec2("run_instances", **params, ClientToken=token)
    return Step(subject=subject, do=Do.MAKE, calls=[call])


def _credits(vm_type: str) -> dict[str, Any]:
    """Types that save CPU credits up cost more where they may spend what they have not."""
    return {"CreditSpecification": {"CpuCredits": "standard"}} if vm_type[0] == "t" else {}


# --- what steps have in common ------------------------------------------------------------------


def _step(subject: str, known: bool, calls: list[Call], reasons: list[str]) -> Step:
    if not calls:
        return Step(subject=subject, do=Do.KEEP)
    told = ", ".join(filter(None, reasons)) if known else ""
    return Step(subject=subject, do=Do.CHANGE if known else Do.MAKE, reason=told, calls=calls)


def _on(vm: MasterFound, operation: str, do: Do, reason: str) -> Step:
    call = _ec2(operation, InstanceIds=[vm.id])
    return Step(subject=_name(vm), do=do, reason=reason, calls=[call])


def _waiting(vm: MasterFound, reason: str) -> Step:
    return Step(subject=_name(vm), do=Do.WAIT, reason=reason)


def _name(vm: MasterFound) -> str:
    return f"VM of the master {vm.id}"


def _specification(kind: str, wanted: Wanted, name: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": desired.tag_list(wanted.tags, Name=name)}]


def _ec2(operation: str, **params: Any) -> Call:
    return Call(service="ec2", operation=operation, params=params)


def _iam(operation: str, **params: Any) -> Call:
    return Call(service="iam", operation=operation, params=params)


def _s3(operation: str, **params: Any) -> Call:
    return Call(service="s3", operation=operation, params=params)
