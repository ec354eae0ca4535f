"""The rest of the project: what its zones have, its disks, images, networks and quotas."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fakes.gcp import rules
from fakes.gcp.answers import NUMBER, PROJECT, ROOT, matching, not_found, scoped

if TYPE_CHECKING:
    from fakes.gcp.compute import Call, Gce


def machine_types(gce: Gce, call: Call) -> Any:
    matches = matching(call.query.get("filter"))
    rows = (
        (zone, {"name": name})
        for zones in rules.ZONES.values()
        for zone in zones
        for name, gpus in rules.MACHINES.items()
        if not (gpus and zone == rules.NO_GPUS_IN)
    )
    return scoped("machineTypes", (each for each in rows if matches(each[1])))


def accelerator_types(gce: Gce, call: Call) -> Any:
    matches = matching(call.query.get("filter"))
    rows = (
        (zone, {"name": name})
        for zones in rules.ZONES.values()
        for zone in zones
        for name in rules.GPUS
        if zone != rules.NO_GPUS_IN
    )
    return scoped("acceleratorTypes", (each for each in rows if matches(each[1])))


def disks(gce: Gce, call: Call) -> Any:
    matches = matching(call.query.get("filter"))
    rows = [*gce.loose_disks]
    for life in gce.there():
        labels = life.body["disks"][0]["initializeParams"].get("labels", {})
        place = f"{ROOT}/zones/{life.zone}"
        row = {"name": life.name, "zone": place, "labels": labels, "sizeGb": "94"}
        rows.append({**row, "users": [f"{place}/instances/{life.name}"]})
    shown = ((row["zone"].rpartition("/")[2], row) for row in rows if matches(row))
    return scoped("disks", shown)


def delete_disk(gce: Gce, call: Call) -> Any:
    for row in gce.loose_disks:
        if row["name"] == call.params["disk"]:
            gce.loose_disks.remove(row)
            return gce.told(gce.operation("delete", call.params["zone"], row["name"]))
    raise not_found(f"disks/{call.params['disk']}")


def image(gce: Gce, call: Call) -> Any:
    family = "family/" if "family" in call.params else ""
    named = call.params.get("family") or call.params["image"]
    path = f"projects/{call.params['project']}/global/images/{family}{named}"
    if path not in rules.IMAGES:
        raise not_found(path)
    return {"name": rules.IMAGES[path]}


def project(gce: Gce, call: Call) -> Any:
    quota = {"metric": "GPUS_ALL_REGIONS", "limit": gce.gpus_in_all_regions, "usage": 0}
    return {"name": PROJECT, "id": NUMBER, "quotas": [quota]}


def region(gce: Gce, call: Call) -> Any:
    zones = rules.ZONES.get(call.params["region"])
    if zones is None:
        raise not_found(f"projects/{PROJECT}/regions/{call.params['region']}")
    quotas = [{"metric": key, "limit": n, "usage": 0} for key, n in gce.regional.items()]
    return {"zones": [f"{ROOT}/zones/{zone}" for zone in zones], "quotas": quotas}


def network(gce: Gce, call: Call) -> Any:
    named = call.params.get("subnetwork") or call.params["network"]
    if named != "default":
        raise not_found(named)
    return {"name": named}


def test_permissions(gce: Gce, call: Call) -> Any:
    account = re.search(r"/serviceAccounts/([^:]+):", call.params["path"])
    if account is not None and account[1] not in gce.accounts:
        raise not_found(account[1])
    asked = call.body["permissions"]
    return {"permissions": [p for p in asked if gce.granted is None or p in gce.granted]}


def storage(gce: Gce, call: Call) -> Any:
    if gce.bucket is None:
        raise not_found("The specified bucket does not exist.")
    return {} if call.params["path"].endswith("/o") else gce.bucket


ANSWERS: Mapping[str, Callable[[Gce, Call], Any]] = {
    "acceleratorTypes.aggregatedList": accelerator_types,
    "disks.aggregatedList": disks,
    "disks.delete": delete_disk,
    "images.get": image,
    "images.getFromFamily": image,
    "machineTypes.aggregatedList": machine_types,
    "networks.get": network,
    "projects.get": project,
    "regions.get": region,
    "subnetworks.get": network,
    "testIamPermissions": test_permissions,
    "storage": storage,
}
ELSEWHERE: Mapping[str, str] = {"/v1/projects": "testIamPermissions", "/storage/v1/b": "storage"}
"""What belongs to other APIs, whose schemas are not here."""
NEEDED: Mapping[str, tuple[str, ...]] = {
    "acceleratorTypes.aggregatedList": ("compute.acceleratorTypes.list",),
    "disks.aggregatedList": ("compute.disks.list",),
    "disks.delete": ("compute.disks.delete",),
    "globalOperations.aggregatedList": ("compute.globalOperations.list",),
    "instances.aggregatedList": ("compute.instances.list",),
    "instances.delete": ("compute.instances.delete",),
    "instances.get": ("compute.instances.get",),
    "instances.getSerialPortOutput": ("compute.instances.getSerialPortOutput",),
    "instances.insert": (
        "compute.instances.create",
        "compute.disks.create",
        "compute.disks.setLabels",
        "compute.instances.setLabels",
        "compute.instances.setMetadata",
        "compute.instances.setServiceAccount",
        "compute.subnetworks.use",
        "compute.subnetworks.useExternalIp",
        "iam.serviceAccounts.actAs",
    ),
    "instances.simulateMaintenanceEvent": ("compute.instances.simulateMaintenanceEvent",),
    "machineTypes.aggregatedList": ("compute.machineTypes.list",),
    "networks.get": ("compute.networks.get",),
    "projects.get": ("compute.projects.get",),
    "regions.get": ("compute.regions.get",),
    "subnetworks.get": ("compute.subnetworks.get",),
}
"""https://cloud.google.com/iam/docs/permissions-reference, and the pages of the methods."""
