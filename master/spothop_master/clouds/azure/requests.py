"""What is sent to Azure. Pure: the same launch makes the same request to the byte, so that what is
there under its name can be compared with it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from spothop.wire import ANY_ZONE
from spothop_master.clouds.azure.config import AzureConfig
from spothop_master.clouds.base import BadRequest, LaunchSpec

MAX_USER_DATA = 65_535
"""Bytes, before they are encoded."""
NETWORK_VERSION = "2022-11-01"
"""Of the network API, with which the VM's network interface is made."""
TOKEN_TAG, DIGEST_TAG = "spothop-token", "spothop-request"
OUR_TAGS = frozenset({TOKEN_TAG, DIGEST_TAG})
"""What we set beside the tags of the launch."""
USER = "spothop"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?")


def is_name(text: str) -> bool:
    """Of a VM that we may have made, or somebody else by hand; it becomes part of a URL."""
    return _NAME.fullmatch(text) is not None


def name_of(token: str) -> str:
    """Of the VM that this token makes."""
    if is_name(token):
        return token
    return f"spothop-{hashlib.sha256(token.encode()).hexdigest()[:32]}"


def zone_name(region: str, zone: str | None) -> str:
    """As pools name it: Azure's zones are numbers. What is in none is in one of the region's
    name."""
    return f"{region}-{zone}" if zone else region


def zone_number(region: str, zone: str) -> str | None:
    """None: in no zone, or left to Azure. Raises BadRequest."""
    if zone in (region, ANY_ZONE):
        return None
    prefix, number = zone[: len(region) + 1], zone[len(region) + 1 :]
    if prefix != f"{region}-" or number not in ("1", "2", "3"):
        raise BadRequest(f"no zone {zone} in {region}; its zones are {region}-1 to {region}-3")
    return number


def virtual_machine(
    spec: LaunchSpec, token: str, *, config: AzureConfig, image: str
) -> dict[str, Any]:
    """The body of the PUT. Raises BadRequest for what Azure would not take."""
    _check(spec, token)
    pool, name = spec.pool, name_of(token)
    zone = zone_number(pool.region, pool.zone)
    body: dict[str, Any] = {
        "location": pool.region,
        "tags": {**spec.tags, TOKEN_TAG: token},
        "properties": {
            "hardwareProfile": {"vmSize": pool.vm},
            "storageProfile": {
                "imageReference": _image(image),
                "osDisk": _disk(name, spec.disk_gb or config.disk_gb, config.disk_type),
            },
            "osProfile": _system(name, spec.script, config.ssh_public_key),
            "networkProfile": _network(name, spec, config),
            "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
            **(_spot(spec) if pool.spot else {"priority": "Regular"}),
        },
    }
    if zone is not None:
        body["zones"] = [zone]
    if config.identity:
        body["identity"] = {
            "type": "UserAssigned",
            "userAssignedIdentities": {config.identity: {}},
        }
    body["tags"][DIGEST_TAG] = digest(body)
    return body


def digest(body: Mapping[str, Any]) -> str:
    """By which a launch knows the VM that it made before."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


def _check(spec: LaunchSpec, token: str) -> None:
    if not token or len(token) > 200 or not token.isascii():
        raise BadRequest(f"client token {token!r}: 1 to 200 ASCII characters")
    if not spec.script:
        raise BadRequest(f"{spec.pool}: no user data, so nothing would run on the VM")
    size = len(spec.script.encode())
    if size > MAX_USER_DATA:
        raise BadRequest(f"user data of {size} bytes; Azure takes {MAX_USER_DATA}")


def _spot(spec: LaunchSpec) -> dict[str, Any]:
    """Without a limit of the user's the price on demand is the highest that is paid (-1)."""
    price = -1 if spec.max_price is None else round(spec.max_price, 5)
    return {
        "priority": "Spot",
        "evictionPolicy": "Delete",
        "billingProfile": {"maxPrice": price},
    }


def _image(image: str) -> dict[str, str]:
    if image.startswith("/"):
        return {"id": image}
    names, parts = ("publisher", "offer", "sku", "version"), image.split(":")
    if len(parts) != len(names) or not all(parts):
        raise BadRequest(f"image {image!r}: expected PUBLISHER:OFFER:SKU:VERSION, or an image's id")
    return dict(zip(names, parts, strict=True))


def _disk(name: str, gb: int, kind: str) -> dict[str, Any]:
    return {
        "name": f"{name}-disk",
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": math.ceil(gb * 1e9 / 2**30),
        "managedDisk": {"storageAccountType": kind},
    }


def _system(name: str, script: str, key: str) -> dict[str, Any]:
    path = f"/home/{USER}/.ssh/authorized_keys"
    return {
        "computerName": name,
        "adminUsername": USER,
        "customData": base64.b64encode(script.encode()).decode(),
        "linuxConfiguration": {
            "disablePasswordAuthentication": True,
            "ssh": {"publicKeys": [{"path": path, "keyData": key}]},
        },
    }


def _network(name: str, spec: LaunchSpec, config: AzureConfig) -> dict[str, Any]:
    region, tags = config.regions[spec.pool.region], dict(spec.tags)
    address: dict[str, Any] = {
        "name": "ip",
        "properties": {"primary": True, "subnet": {"id": region.subnet}},
    }
    if config.public_address:
        address["properties"]["publicIPAddressConfiguration"] = {
            "name": f"{name}-address",
            "sku": {"name": "Standard", "tier": "Regional"},
            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
            "tags": tags,
        }
    card: dict[str, Any] = {
        "primary": True,
        "deleteOption": "Delete",
        "ipConfigurations": [address],
    }
    if region.security_group is not None:
        card["networkSecurityGroup"] = {"id": region.security_group}
    return {
        "networkApiVersion": NETWORK_VERSION,
        "networkInterfaceConfigurations": [
            {"name": f"{name}-card", "properties": card, "tags": tags}
        ],
    }
