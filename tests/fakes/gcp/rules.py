"""What Compute Engine's documents say of an insert in words, and what there is in its zones."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from fakes.gcp.schema import Refused

ZONES: Mapping[str, tuple[str, ...]] = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "europe-west4": ("europe-west4-a", "europe-west4-b", "europe-west4-c"),
}
MACHINES: Mapping[str, int] = {
    "e2-standard-2": 0,
    "e2-standard-4": 0,
    "n1-standard-8": 0,
    "n2-standard-2": 0,
    "n4-standard-2": 0,
    "g2-standard-4": 1,
    "a2-highgpu-1g": 1,
}
"""Machine type -> GPUs that belong to it."""
GPUS = frozenset({"nvidia-tesla-t4", "nvidia-tesla-v100"})
NO_GPUS_IN = "us-central1-f"
HYPERDISK_ONLY = ("n4-",)
IMAGES: Mapping[str, str] = {
    "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts": "ubuntu-2204-jammy-v1",
    "projects/deeplearning-platform-release/global/images/family"
    "/common-cu128-ubuntu-2204-nvidia-570": "common-cu128-v1",
}

_LABEL = re.compile(r"[-a-z0-9_]{0,63}")


def request_id(text: str | None) -> None:
    if text is None:
        return
    try:
        good = uuid.UUID(text).int != 0
    except ValueError:
        good = False
    if not good:
        raise Refused(f"Invalid value for field 'requestId': '{text}'")


def insert(body: Mapping[str, Any], zone: str, *, notice: bool, accounts: frozenset[str]) -> None:
    """Raises Refused. `notice`: whether this project may have one."""
    for key, value in body.get("labels", {}).items():
        if not re.fullmatch(r"[a-z][-a-z0-9_]{0,62}", key) or not _LABEL.fullmatch(value):
            raise Refused(f"Invalid value for field 'resource.labels': '{key}: {value}'")
    gpus = _machine(body, zone)
    _disks(body, zone)
    _network(body)
    _scheduling(body.get("scheduling", {}), gpus=gpus, notice=notice)
    for account in body.get("serviceAccounts", ()):
        if account["email"] not in accounts:
            raise Refused(
                f"The resource '{account['email']}' of type 'serviceAccount' was not found"
            )
        if not account.get("scopes"):
            raise Refused("At least one scope is needed for a service account")


def _machine(body: Mapping[str, Any], zone: str) -> int:
    found = re.fullmatch(rf"zones/{zone}/machineTypes/(.+)", body.get("machineType", ""))
    if found is None or found[1] not in MACHINES:
        raise Refused(
            f"Invalid value for field 'resource.machineType': '{body.get('machineType')}'"
        )
    attached = body.get("guestAccelerators", ())
    for each in attached:
        kind = re.fullmatch(rf"zones/{zone}/acceleratorTypes/(.+)", each["acceleratorType"])
        if kind is None or kind[1] not in GPUS or not found[1].startswith("n1-"):
            raise Refused(f"{each['acceleratorType']} cannot be attached to {found[1]}")
    return MACHINES[found[1]] + sum(each["acceleratorCount"] for each in attached)


def _disks(body: Mapping[str, Any], zone: str) -> None:
    disks = body.get("disks", ())
    if len(disks) != 1 or not disks[0].get("boot"):
        raise Refused("The instance needs one boot disk")
    made = disks[0].get("initializeParams", {})
    if made.get("sourceImage") not in IMAGES:
        raise Refused(
            f"The resource '{made.get('sourceImage')}' was not found", status=404, reason="notFound"
        )
    kind = str(made.get("diskType", "")).removeprefix(f"zones/{zone}/diskTypes/")
    hyper = body["machineType"].rpartition("/")[2].startswith(HYPERDISK_ONLY)
    if kind != ("hyperdisk-balanced" if hyper else "pd-balanced"):
        raise Refused(f"[{kind}] features are not compatible for creating instance.")


def _network(body: Mapping[str, Any]) -> None:
    cards = body.get("networkInterfaces", ())
    if len(cards) != 1:
        raise Refused("At least one network interface is required.")
    if "subnetwork" not in cards[0] and cards[0].get("network") != "global/networks/default":
        raise Refused(f"Invalid value for field 'resource.networkInterfaces[0]': {cards[0]}")


def _scheduling(scheduling: Mapping[str, Any], *, gpus: int, notice: bool) -> None:
    spot = scheduling.get("provisioningModel") == "SPOT"
    asked = scheduling.get("preemptionNoticeDuration")
    if asked is not None and not notice:
        raise Refused(
            "Invalid value for field 'resource.scheduling.preemptionNoticeDuration': not supported"
        )
    if asked is not None and (not spot or asked.get("seconds") not in ("0", "120")):
        raise Refused("preemptionNoticeDuration is 0 or 120 seconds, for Spot VMs only")
    if (spot or gpus) and scheduling.get("onHostMaintenance", "MIGRATE") != "TERMINATE":
        raise Refused(
            "Instances with guest accelerators, and Spot VMs, do not support live migration."
        )
    if spot and scheduling.get("automaticRestart", True):
        raise Refused("Scheduling must have preemptible be false when AutomaticRestart is true.")
    most = scheduling.get("maxRunDuration")
    if most is not None and not 30 <= int(most["seconds"]) <= 120 * 86_400:
        raise Refused("maxRunDuration must be between 30 seconds and 120 days")
    if "instanceTerminationAction" in scheduling and not (spot or most):
        raise Refused("You cannot specify a termination action for a VM that nothing ends")
