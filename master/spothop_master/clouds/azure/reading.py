"""What Azure's answers say of VMs and of what is left over. Pure: answers are JSON, as dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from spothop.wire import Pool
from spothop_master.clouds.azure import errors
from spothop_master.clouds.azure.requests import OUR_TAGS, TOKEN_TAG, zone_name
from spothop_master.clouds.base import OWNER_TAG, CloudError, CloudVmState, Remain, Vm
from spothop_master.core.evidence import EndCause

Answer = Mapping[str, Any]

EVICTED, DELETED, SIMULATED = 3, 2, 1
"""Which of several operations of the activity log tells why a VM is gone: an eviction makes a
deletion, and one that was only simulated may leave no other trace."""


def state_of(row: Answer, *, ran: bool) -> CloudVmState:
    """`ran`: it was seen running before."""
    match str(row["properties"].get("provisioningState", "")).lower():
        case "succeeded":
            return CloudVmState.RUNNING
        case "deleting":
            return CloudVmState.STOPPING
        case _:  # creating, updating, failed, migrating
            return CloudVmState.RUNNING if ran else CloudVmState.PENDING


def has_failed(row: Answer) -> bool:
    return str(row["properties"].get("provisioningState", "")).lower() == "failed"


def vm(
    row: Answer,
    *,
    state: CloudVmState,
    requested_at: datetime,
    running_at: datetime | None,
    error: CloudError | None = None,
    cause: EndCause | None = None,
) -> Vm:
    """One VM as Azure lists it."""
    tags = row.get("tags") or {}
    return Vm(
        id=row["name"],
        token=tags.get(TOKEN_TAG, ""),
        pool=pool(row),
        state=state,
        cause=cause,
        told=error.code or "" if error is not None else "",
        requested_at=requested_at,
        running_at=running_at,
        error=error,
        tags={key: value for key, value in tags.items() if key not in OUR_TAGS},
    )


def pool(row: Answer) -> Pool:
    properties, region = row["properties"], region_of(row["location"])
    zones = row.get("zones") or [None]
    return Pool(
        cloud="azure",
        region=region,
        zone=zone_name(region, zones[0]),
        vm=properties["hardwareProfile"]["vmSize"],
        spot=str(properties.get("priority", "")).lower() == "spot",
    )


def region_of(location: str) -> str:
    """Azure writes `East US` in some answers."""
    return location.replace(" ", "").lower()


def created_at(row: Answer) -> datetime | None:
    return moment(row["properties"].get("timeCreated"))


def owner(row: Answer) -> str | None:
    return (row.get("tags") or {}).get(OWNER_TAG)


def refusal(row: Answer) -> CloudError | None:
    """Of a VM whose creation failed, with its instance view; None for one that runs all the same,
    as after a guest that did not tell in time that it is up."""
    statuses = (row["properties"].get("instanceView") or {}).get("statuses") or ()
    codes = [str(status.get("code", "")) for status in statuses]
    if "PowerState/running" in codes:
        return None
    for status, code in zip(statuses, codes, strict=True):
        if name := errors.of_status(code):
            return errors.of_operation(name, errors.details(str(status.get("message", ""))))
    return errors.of_operation("", "its creation failed; Azure tells no reason")


def ends(pages: Iterable[Answer]) -> dict[str, EndCause]:
    """What the activity log says of VMs that are gone, by name in lower case."""
    found: dict[str, int] = {}
    for page in pages:
        for event in page.get("value", ()):
            name = str(event.get("resourceId", "")).rpartition("/")[2].lower()
            found[name] = max(_rank(event), found.get(name, 0))
    return {
        name: EndCause.TERMINATED if rank == DELETED else EndCause.PREEMPTED
        for name, rank in found.items()
        if rank
    }


def _rank(event: Answer) -> int:
    """0: it ends no VM. An eviction is `.../evictSpotVM/action`: Azure's documentation does not
    name it, logs of users do."""
    operation = _name(event, "operationName").lower()
    if _name(event, "status").lower() not in ("succeeded", "active", "accepted", "started", ""):
        return 0
    if "simulateeviction" in operation:
        return SIMULATED
    if "evict" in operation or "preempt" in operation:
        return EVICTED
    return DELETED if operation.endswith("virtualmachines/delete") else 0


def _name(event: Answer, key: str) -> str:
    value = event.get(key) or {}
    return str(value.get("value", "")) if isinstance(value, Mapping) else str(value)


def moment(text: object) -> datetime | None:
    """Azure writes seven digits of a second, which Python 3.10 does not read."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc)
    except ValueError:
        return None


# --- what is left over ------------------------------------------------------------------------


def disks(rows: Iterable[Answer], owner_name: str) -> Iterator[Remain]:
    for row in rows:
        if _is_ours(row, owner_name) and not row.get("managedBy"):
            size = (row.get("properties") or {}).get("diskSizeGB", "?")
            yield _remain("disk", row, f"{size} GiB, unattached")


def cards(rows: Iterable[Answer], owner_name: str) -> Iterator[Remain]:
    for row in rows:
        if _is_ours(row, owner_name) and not (row.get("properties") or {}).get("virtualMachine"):
            yield _remain("network interface", row, "unattached")


def addresses(rows: Iterable[Answer], owner_name: str) -> Iterator[Remain]:
    for row in rows:
        properties = row.get("properties") or {}
        if _is_ours(row, owner_name) and not properties.get("ipConfiguration"):
            yield _remain("address", row, str(properties.get("ipAddress", "")))


def _is_ours(row: Answer, owner_name: str) -> bool:
    return owner(row) == owner_name


def _remain(kind: str, row: Answer, detail: str) -> Remain:
    return Remain(kind=kind, id=row["name"], region=region_of(row["location"]), detail=detail)
