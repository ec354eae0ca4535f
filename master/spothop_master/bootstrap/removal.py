"""From what is found to the steps that end an installation. Pure.

In this order: the master, so that it launches nothing more; then the VMs of jobs, so that nobody
pays for them; then what they used. Only what carries our tag is touched, and the bucket stays while
it holds anything but the master's software, unless the data may go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from spothop_master.bootstrap import desired, plan
from spothop_master.bootstrap.desired import TAG, Wanted
from spothop_master.bootstrap.found import Call, Do, Found, MasterFound, Step

AT_ONCE = 100
"""VMs in one request."""


def removal(wanted: Wanted, found: Found) -> list[Step]:
    """Raises Refused: see `plan.retire`."""
    masters = [_master(vm, wanted, found) for vm in found.masters]
    vms = _vms(found.vms, ready=not masters)
    rest = [*_volumes(found), *_network(found), *_parameters(found)]
    rest += [*_bucket(wanted, found), *_identities(found)]  # a role knows the bucket's name
    if masters or vms:  # what they use is in use
        rest = [_later(step) for step in rest]
    return [*masters, *vms, *rest]


def _later(step: Step) -> Step:
    return Step(subject=step.subject, do=step.do, reason=step.reason)


def _master(vm: MasterFound, wanted: Wanted, found: Found) -> Step:
    subject, reason = f"VM of the master {vm.id}", "with a last backup"
    if vm.state == "shutting-down":
        return Step(subject=subject, do=Do.WAIT, reason="it ends")
    if wanted.with_data:
        return _remove(subject, "ec2", "terminate_instances", InstanceIds=[vm.id])
    step = plan.retire(vm, wanted, found, reason)
    do = Do.REMOVE if step.do is Do.CHANGE else step.do
    return Step(subject=subject, do=do, reason=reason, calls=step.calls)


def _vms(ids: Sequence[str], *, ready: bool) -> list[Step]:
    steps, left = [], iter(sorted(ids))
    while chunk := list(islice(left, AT_ONCE)):
        step = _remove(
            _count(len(chunk), "VM of jobs", "VMs of jobs"),
            "ec2",
            "terminate_instances",
            InstanceIds=chunk,
        )
        steps.append(step if ready else _later(step))
    return steps


def _count(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number} {many}"


def _volumes(found: Found) -> Iterator[Step]:
    for volume in found.volumes:
        yield _remove(f"volume {volume}", "ec2", "delete_volume", VolumeId=volume)


def _network(found: Found) -> Iterator[Step]:
    for address in found.addresses:
        subject = f"elastic address {address.ip}"
        yield _remove(subject, "ec2", "release_address", AllocationId=address.allocation)
    for name, group in found.groups.items():
        if _is_ours(group.tags, found):
            yield _remove(
                f"security group {name}", "ec2", "delete_security_group", GroupId=group.id
            )


def _parameters(found: Found) -> Iterator[Step]:
    for name in found.parameters:
        yield _remove(f"parameter {name}", "ssm", "delete_parameter", Name=name)


def _identities(found: Found) -> Iterator[Step]:
    for name, profile in found.profiles.items():
        if not _is_ours(profile.tags, found):
            continue
        named = {"InstanceProfileName": name}
        calls = [
            _iam("remove_role_from_instance_profile", RoleName=role, **named)
            for role in profile.roles
        ]
        calls.append(_iam("delete_instance_profile", **named))
        yield Step(subject=f"instance profile {name}", do=Do.REMOVE, calls=calls)
    for name, role in sorted(found.roles.items(), key=lambda each: each[0] == desired.MASTER):
        if not _is_ours(role.tags, found):
            continue
        calls = [
            _iam("delete_role_policy", RoleName=name, PolicyName=each) for each in role.policies
        ]
        calls += [_iam("detach_role_policy", RoleName=name, PolicyArn=arn) for arn in role.attached]
        calls.append(_iam("delete_role", RoleName=name))
        yield Step(subject=f"role {name}", do=Do.REMOVE, calls=calls)


def _bucket(wanted: Wanted, found: Found) -> list[Step]:
    bucket = found.bucket
    if bucket is None or bucket.theirs or not _is_ours(bucket.tags, found):
        return []
    subject, where = f"bucket {wanted.bucket}", {"Bucket": wanted.bucket}
    steps = [
        _remove("software in the bucket", "s3", "delete_object", Key=key, **where)
        for key in bucket.software
    ]
    if bucket.empty or wanted.with_data:
        empty = [] if bucket.empty else [Call(service="s3", operation=EMPTY, params=where)]
        calls = [*empty, Call(service="s3", operation="delete_bucket", params=where)]
        reason = "" if bucket.empty else "with everything in it"
        return [*steps, Step(subject=subject, do=Do.REMOVE, reason=reason, calls=calls)]
    reason = "it holds checkpoints or backups; --with-data removes them"
    return [*steps, Step(subject=subject, do=Do.KEEP, reason=reason)]


def _is_ours(tags: Mapping[str, str], found: Found) -> bool:
    return tags.get(TAG) == found.region


EMPTY = "empty_bucket"
"""No request of S3's, but as many as are needed (`acting`)."""


def _remove(subject: str, service: str, operation: str, **params: object) -> Step:
    call = Call(service=service, operation=operation, params=params)
    return Step(subject=subject, do=Do.REMOVE, calls=[call])


def _iam(operation: str, **params: object) -> Call:
    return Call(service="iam", operation=operation, params=params)
