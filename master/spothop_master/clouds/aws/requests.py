"""What is sent to EC2. Pure: the same launch makes the same request to the byte, because one with a
token that was used is compared with the one before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spothop.wire import ANY_ZONE
from spothop_master.clouds.base import OWNER_TAG, BadRequest, LaunchSpec

MAX_USER_DATA = 16_384
"""Bytes, before they are encoded."""
MAX_TOKEN = 64
"""ASCII characters."""
PAGE = 1000
"""The most that EC2 gives in one answer."""
OUR_TAGS = frozenset({"Name"})
"""What we set beside the tags of the launch, for people in AWS's console."""
INTERRUPTION_S = (120.0, 900.0)
"""From FIS's order to the interruption: what it takes, in seconds."""
_ROOT = "/dev/sda1"


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a launch has to know of the image that it boots."""

    id: str
    root: str = _ROOT
    """Name of the device of its first disk."""
    min_gib: int = 0
    """The size of that disk's snapshot."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a region a VM comes."""

    zone: str
    subnet: str | None = None
    """None: the default one of its zone."""
    security_groups: tuple[str, ...] = ()


def run_instances(
    spec: LaunchSpec,
    token: str,
    *,
    image: Image,
    place: Place,
    profile: str,
    disk_gb: int,
) -> dict[str, Any]:
    """Raises BadRequest for what EC2 would not take."""
    _check(spec, token)
    request: dict[str, Any] = {
        "ClientToken": token,
        "ImageId": image.id,
        "InstanceType": spec.pool.vm,
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": spec.script,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 2,  # so that containers on the VM reach it
        },
        "BlockDeviceMappings": [_disk(image, spec.disk_gb or disk_gb)],
        "TagSpecifications": _tags(spec),
    }
    if profile:
        request["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    if place.subnet is not None:
        request["SubnetId"] = place.subnet
    elif place.zone != ANY_ZONE:
        request["Placement"] = {"AvailabilityZone": place.zone}
    if place.security_groups:
        request["SecurityGroupIds"] = list(place.security_groups)
    if spec.pool.spot:
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": _spot(spec)}
    return request


def _check(spec: LaunchSpec, token: str) -> None:
    if not token or len(token) > MAX_TOKEN or not token.isascii():
        raise BadRequest(f"client token {token!r}: EC2 takes 1 to {MAX_TOKEN} ASCII characters")
    if not spec.script:
        raise BadRequest(f"{spec.pool}: no user data, so nothing would run on the VM")
    size = len(spec.script.encode())
    if size > MAX_USER_DATA:
        raise BadRequest(f"user data of {size} bytes; EC2 takes {MAX_USER_DATA}")


def _spot(spec: LaunchSpec) -> dict[str, Any]:
    """Without a limit of the user's the price on demand is the highest that is paid."""
    options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    return options if spec.max_price is None else {**options, "MaxPrice": f"{spec.max_price:.6f}"}


def _disk(image: Image, gb: int) -> dict[str, Any]:
    gib = max(math.ceil(gb * 1e9 / 2**30), image.min_gib)
    disk = {"VolumeSize": gib, "VolumeType": "gp3", "DeleteOnTermination": True}
    return {"DeviceName": image.root, "Ebs": disk}


def _tags(spec: LaunchSpec) -> list[dict[str, Any]]:
    name = spec.tags.get("spothop-vm", "")
    tags = {**({"Name": f"spothop {name}"} if name else {}), **spec.tags}
    kinds = ["instance", "volume", "network-interface"]
    kinds += ["spot-instances-request"] if spec.pool.spot else []
    written = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    return [{"ResourceType": kind, "Tags": written} for kind in kinds]


REMOVALS: Mapping[str, tuple[str, str]] = {
    "volume": ("delete_volume", "VolumeId"),
    "address": ("release_address", "AllocationId"),
    "network interface": ("delete_network_interface", "NetworkInterfaceId"),
}
"""By the kind of what is left over: the call, and how it names it."""


def of_owner(owner: str, **more: Iterable[str]) -> dict[str, Any]:
    """A question for what carries our tag."""
    filters = {f"tag:{OWNER_TAG}": [owner], **{k.replace("_", "-"): [*v] for k, v in more.items()}}
    return {"Filters": [{"Name": name, "Values": values} for name, values in filters.items()]}


def spot_prices(vm_types: Iterable[str], *, now: datetime) -> dict[str, Any]:
    """Those that hold now: the newest before `StartTime` of each type and zone."""
    return {
        "InstanceTypes": sorted(vm_types),
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": now,
        "MaxResults": PAGE,
    }


def interruption(
    vm_arn: str, *, role_arn: str, after_s: float, token: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """FIS's template of the eviction of one VM."""
    low, high = INTERRUPTION_S
    minutes = round(min(max(after_s, low), high) / 60)
    return {
        "clientToken": token,
        "description": "spothop: interrupt one spot VM",
        "roleArn": role_arn,
        "stopConditions": [{"source": "none"}],
        "targets": {
            "vm": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [vm_arn],
                "selectionMode": "ALL",
            }
        },
        "actions": {
            "interrupt": {
                "actionId": "aws:ec2:send-spot-instance-interruptions",
                "parameters": {"durationBeforeInterruption": f"PT{minutes}M"},
                "targets": {"SpotInstances": "vm"},
            }
        },
        "tags": dict(tags),
    }
