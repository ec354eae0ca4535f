"""Which actions a call needs, as roles name them, and whether a role has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from fakes.azure.wire import Call

PROVIDERS = {
    "virtualMachines": "Microsoft.Compute/virtualMachines",
    "disks": "Microsoft.Compute/disks",
    "skus": "Microsoft.Compute/skus",
    "versions": "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions",
    "usages": "Microsoft.Compute/locations/usages",
    "networkInterfaces": "Microsoft.Network/networkInterfaces",
    "publicIPAddresses": "Microsoft.Network/publicIPAddresses",
    "virtualNetworks": "Microsoft.Network/virtualNetworks",
    "userAssignedIdentities": "Microsoft.ManagedIdentity/userAssignedIdentities",
    "permissions": "Microsoft.Authorization/permissions",
    "values": "Microsoft.Insights/eventtypes/values",
}
_VERBS = {"GET": "read", "PUT": "write", "DELETE": "delete"}


def actions(call: Call) -> list[str]:
    kind = PROVIDERS.get(call.kind, call.kind)
    return [f"{kind}/{call.rest}/action" if call.rest else f"{kind}/{_VERBS[call.method]}"]


def linked(body: Mapping[str, Any]) -> list[str]:
    """What the caller needs for what is made with the VM, and for what it refers to."""
    found = [
        "Microsoft.Compute/disks/write",
        "Microsoft.Network/networkInterfaces/write",
        "Microsoft.Network/networkInterfaces/join/action",
        "Microsoft.Network/virtualNetworks/subnets/join/action",
    ]
    if "publicIPAddressConfiguration" in json.dumps(body):
        found += [
            f"Microsoft.Network/publicIPAddresses/{each}" for each in ("write", "join/action")
        ]
    if body.get("identity"):
        found.append("Microsoft.ManagedIdentity/userAssignedIdentities/assign/action")
    return found


def allows(role: Mapping[str, Any], action: str) -> bool:
    def has(key: str) -> bool:
        return any(fnmatchcase(action.lower(), each.lower()) for each in role.get(key, ()))

    return has("Actions") and not has("NotActions")
