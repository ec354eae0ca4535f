"""What is sent to Compute Engine. Pure: the same launch makes the same request to the byte, because
a repeated one is to be recognized as such."""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spothop.wire import ANY_ZONE
from spothop_master.clouds.base import OWNER_TAG, BadRequest, LaunchSpec
from spothop_master.clouds.gcp import labels
from spothop_master.clouds.gcp.config import GcpConfig, region_of

MAX_USER_DATA = 262_144
"""Bytes of one value of metadata."""
NOTICE_S = 120
"""The longest, and the only, notice that can be asked for."""
HYPERDISK = frozenset({"a4", "a4x", "c4", "c4a", "c4d", "g4", "n4", "n4a", "n4d", "x4"})
"""Machine families that boot from no persistent disk
(https://cloud.google.com/compute/docs/disks/hyperdisks#machine-type-support)."""
ATTACHED: Mapping[str, str] = {
    "t4": "nvidia-tesla-t4",
    "v100": "nvidia-tesla-v100",
    "p100": "nvidia-tesla-p100",
    "p4": "nvidia-tesla-p4",
}
"""GPUs that an n1 gets beside its machine type, as our names of VM types have them:
`n1-standard-8+t4x2`. Those of other families (a2, a3, g2, g4) belong to their machine types."""

LISTED = (
    "items/*/instances(name,zone,status,machineType,guestAccelerators,scheduling,labels,"
    "creationTimestamp,lastStartTimestamp),items/*/warning,unreachables,nextPageToken"
)
"""The fields of a listing: without user data, which is most of an instance."""
PAGE = "500"
NAMES_AT_ONCE = 25
"""VMs in one question about operations: a filter has its limits."""

_NAMESPACE = uuid.UUID("6f4b7a1e-8a43-5d0c-9a53-0d3c5c1f2b7e")
_ATTACHED = re.compile(r"(?P<machine>n1-[-a-z0-9]+)\+(?P<gpu>[a-z0-9]+)x(?P<count>[1-8])")
_ID = re.compile(r"(?P<zone>[a-z]+(-[a-z0-9]+)+)/(?P<name>[a-z]([-a-z0-9]{0,61}[a-z0-9])?)")


@dataclass(frozen=True)
class VmId:
    """How a VM is named here: its zone, and its name in it."""

    zone: str
    name: str

    def __str__(self) -> str:
        return f"{self.zone}/{self.name}"


def parse_id(text: str) -> VmId | None:
    """None: that is no id of a VM of GCP."""
    found = _ID.fullmatch(text)
    return VmId(found["zone"], found["name"]) if found else None


def name_of(token: str) -> str:
    """Of the VM that this token makes, and of no other one."""
    return f"spothop-{hashlib.sha256(token.encode()).hexdigest()[:32]}"


def request_id(token: str, body: Mapping[str, Any], *, refusals: int = 0) -> str:
    """A UUID. Compute Engine answers a used one with the operation of its first use, whatever else
    is asked for then. So other words under the same token, and what was refused for good, have
    another one: then the name is taken, or free."""
    words = json.dumps(body, sort_keys=True)
    return str(uuid.uuid5(_NAMESPACE, f"{token} {refusals} {words}"))


@dataclass(frozen=True)
class Machine:
    """A VM type in GCP's terms."""

    type: str
    gpu: str = ""
    """Accelerator type, where it is attached."""
    gpus: int = 0

    @property
    def family(self) -> str:
        return self.type.partition("-")[0]


def machine(vm: str) -> Machine:
    """Raises BadRequest for a GPU that cannot be attached."""
    found = _ATTACHED.fullmatch(vm)
    if found is None:
        if "+" in vm:
            raise BadRequest(f"VM type {vm!r}: GPUs are attached as in n1-standard-8+t4x1")
        return Machine(vm)
    gpu = ATTACHED.get(found["gpu"])
    if gpu is None:
        raise BadRequest(f"VM type {vm!r}: GPUs that can be attached are {', '.join(ATTACHED)}")
    return Machine(found["machine"], gpu, int(found["count"]))


def vm_type(machine_type: str, accelerators: Iterable[Mapping[str, Any]]) -> str:
    """Our name for a machine type with what is attached to it."""
    for each in accelerators:
        kind = str(each.get("acceleratorType", "")).rpartition("/")[2]
        for short, known in ATTACHED.items():
            if kind == known and machine_type.startswith("n1-"):
                return f"{machine_type}+{short}x{each.get('acceleratorCount', 1)}"
    return machine_type


def instance(
    spec: LaunchSpec, token: str, *, config: GcpConfig, image: str, gpu: bool, notice: bool
) -> dict[str, Any]:
    """The body of instances.insert. Raises BadRequest for what Compute Engine would not take."""
    pool = spec.pool
    _check(spec, config)
    zone, asked = f"zones/{pool.zone}", machine(pool.vm)
    items = [{"key": "startup-script", "value": spec.script}]
    if gpu:
        # Google's images without a driver of their own install one then.
        items.append({"key": "install-nvidia-driver", "value": "True"})
    body: dict[str, Any] = {
        "name": name_of(token),
        "description": f"spothop {spec.tags.get('spothop-vm', '')}".strip(),
        "machineType": f"{zone}/machineTypes/{asked.type}",
        "disks": [_disk(asked, f"{zone}/diskTypes", image, spec, config)],
        "networkInterfaces": [_interface(config, pool.region)],
        "labels": labels.of_tags(spec.tags, token=token),
        "metadata": {"items": items},
        "scheduling": _scheduling(config, spot=pool.spot, gpu=gpu, notice=notice),
    }
    if asked.gpus:
        kind = f"{zone}/acceleratorTypes/{asked.gpu}"
        body["guestAccelerators"] = [{"acceleratorType": kind, "acceleratorCount": asked.gpus}]
    if account := config.account():
        # All rights of its roles: the default is a scope that may only read from storage.
        scope = "https://www.googleapis.com/auth/cloud-platform"
        body["serviceAccounts"] = [{"email": account, "scopes": [scope]}]
    return body


def _check(spec: LaunchSpec, config: GcpConfig) -> None:
    pool = spec.pool
    region = config.regions.get(pool.region)
    if pool.cloud != "gcp" or region is None:
        raise BadRequest(f"{pool}: its region is none of {', '.join(config.regions)}")
    if pool.zone == ANY_ZONE:
        raise BadRequest(f"{pool}: GCP launches into a zone; name one")
    if region_of(pool.zone) != pool.region or (region.zones and pool.zone not in region.zones):
        known = ", ".join(region.zones) or f"{pool.region}-a and so on"
        raise BadRequest(f"{pool}: zone {pool.zone} is none of {known}")
    if not spec.script:
        raise BadRequest(f"{pool}: no user data, so nothing would run on the VM")
    size = len(spec.script.encode())
    if size > MAX_USER_DATA:
        raise BadRequest(f"user data of {size} bytes; GCP takes {MAX_USER_DATA}")


def _disk(
    asked: Machine, types: str, image: str, spec: LaunchSpec, config: GcpConfig
) -> dict[str, Any]:
    kind = "hyperdisk-balanced" if asked.family in HYPERDISK else "pd-balanced"
    gib = math.ceil((spec.disk_gb or config.disk_gb) * 1e9 / 2**30)
    made = {
        "sourceImage": image,
        "diskSizeGb": str(gib),  # GCP counts GiB, and writes 64-bit numbers as text
        "diskType": f"{types}/{kind}",
        "labels": {labels.encoded(OWNER_TAG): labels.encoded(spec.tags.get(OWNER_TAG, ""))},
    }
    return {"boot": True, "autoDelete": True, "initializeParams": made}


def _interface(config: GcpConfig, region: str) -> dict[str, Any]:
    named = config.regions[region].subnet
    found: dict[str, Any] = {}
    if "/" not in config.network:
        found["network"] = f"global/networks/{config.network}"
    else:
        found["network"] = config.network
    if named:
        short = f"regions/{region}/subnetworks/{named}"
        found = {"subnetwork": named if "/" in named else short}
    if config.external_ip:
        found["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return found


def _scheduling(config: GcpConfig, *, spot: bool, gpu: bool, notice: bool) -> dict[str, Any]:
    most = round(config.max_run_days * 86_400)
    found: dict[str, Any] = {
        "provisioningModel": "SPOT" if spot else "STANDARD",
        "instanceTerminationAction": "DELETE",
        "automaticRestart": False,
        "maxRunDuration": {"seconds": str(most)},
    }
    if spot or gpu:  # others are moved to another host, and train on
        found["onHostMaintenance"] = "TERMINATE"
    if spot and notice:
        found["preemptionNoticeDuration"] = {"seconds": str(NOTICE_S)}
    return found


def of_owner(owner: str) -> dict[str, str]:
    """A question for the VMs that carry our label."""
    label = f'labels.{labels.encoded(OWNER_TAG)}="{labels.encoded(owner)}"'
    return {"filter": label, "fields": LISTED, "maxResults": PAGE}


def disks_of(owner: str) -> dict[str, str]:
    label = f'labels.{labels.encoded(OWNER_TAG)}="{labels.encoded(owner)}"'
    return {"filter": label, "maxResults": PAGE}


def operations_on(names: Iterable[str]) -> dict[str, str]:
    """A question for all that happened to VMs of these names."""
    pattern = "|".join(sorted(names))
    return {"filter": f'targetLink eq ".*/instances/({pattern})"', "maxResults": PAGE}


def machine_types(names: Iterable[str]) -> dict[str, str]:
    return {"filter": f'name eq "({"|".join(sorted(names))})"', "maxResults": PAGE}
