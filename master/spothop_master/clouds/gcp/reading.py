"""What Compute Engine's answers say of VMs, their operations, and what zones have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from spothop.wire import Pool
from spothop_master.clouds.base import CloudError, CloudVmState, Remain, Unavailable, Vm
from spothop_master.clouds.gcp import errors, labels
from spothop_master.clouds.gcp.config import region_of
from spothop_master.clouds.gcp.requests import VmId, vm_type
from spothop_master.core.evidence import EndCause

Answer = Mapping[str, Any]

_STATES: Mapping[str, CloudVmState] = {
    **dict.fromkeys(("PENDING", "PROVISIONING", "STAGING"), CloudVmState.PENDING),
    **dict.fromkeys(("RUNNING", "REPAIRING", "PENDING_STOP"), CloudVmState.RUNNING),
}
"""https://cloud.google.com/compute/docs/instances/instance-life-cycle. In any other state it comes
to its end, or has stopped (TERMINATED there) and is over once it is deleted."""

PREEMPTED, DELETED, INSERTED = "compute.instances.preempted", "delete", "insert"
ENDS: Mapping[str, EndCause] = {
    PREEMPTED: EndCause.PREEMPTED,
    DELETED: EndCause.TERMINATED,
    "stop": EndCause.TERMINATED,
    "compute.instances.guestTerminate": EndCause.TERMINATED,
    "compute.instances.hostError": EndCause.FAILED,
    "compute.instances.terminateOnHostMaintenance": EndCause.FAILED,
}
"""Operations that end a VM, those of Compute Engine's own included
(https://cloud.google.com/compute/docs/logging/audit-logging#system_event)."""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What the operations on one VM say of it."""

    cause: EndCause | None = None
    """Of its end, or of what it comes to; None: nothing ends it."""
    told: str = ""
    refused: CloudError | None = None
    over_at: datetime | None = None
    """It was deleted, or never made; None: not yet, as far as they tell."""


def instances(pages: Iterable[Answer]) -> tuple[list[Answer], set[str]]:
    """Of an aggregated list: the instances, and the zones that did not answer."""
    found: list[Answer] = []
    silent: set[str] = set()
    for page in pages:
        silent |= silent_in(page)
        for scoped in page.get("items", {}).values():
            found += scoped.get("instances", ())
    return found, silent


def silent_in(page: Answer) -> set[str]:
    """The zones that did not answer, in one page of an aggregated list."""
    items = page.get("items", {}).items()
    warned = {
        place
        for place, scoped in items
        if (scoped.get("warning") or {}).get("code", _EMPTY) != _EMPTY
    }
    return {_last(place) for place in (*warned, *page.get("unreachables", ()))}


_EMPTY = "NO_RESULTS_ON_PAGE"
"""The one warning that says nothing is wrong."""


def vm(instance: Answer, *, ahead: timedelta = timedelta()) -> Vm:
    """One VM as it is listed. Its moments are of our clock, which is `ahead` of Google's."""
    known = instance.get("labels") or {}
    state = _STATES.get(str(instance.get("status")), CloudVmState.STOPPING)
    started = instance.get("lastStartTimestamp")
    zone = _last(instance["zone"])
    return Vm(
        id=str(VmId(zone, instance["name"])),
        token=labels.decoded(known.get(labels.TOKEN, "")),
        pool=pool(instance, zone),
        state=state,
        requested_at=moment(instance["creationTimestamp"]) + ahead,
        running_at=(
            moment(started) + ahead if started and state is not CloudVmState.PENDING else None
        ),
        tags=labels.tags_of(known),
    )


def pool(instance: Answer, zone: str) -> Pool:
    model = (instance.get("scheduling") or {}).get("provisioningModel")
    kind = _last(instance["machineType"])
    return Pool(
        cloud="gcp",
        region=region_of(zone),
        zone=zone,
        vm=vm_type(kind, instance.get("guestAccelerators") or ()),
        spot=model == "SPOT",
    )


def target(operation: Answer) -> str:
    """The id of the VM that an operation is about."""
    parts = str(operation.get("targetLink", "")).split("/")
    return str(VmId(parts[-3], parts[-1])) if len(parts) > 3 else ""


def operations(pages: Iterable[Answer]) -> dict[str, list[Answer]]:
    """By the id of the VM, the oldest first."""
    found: dict[str, list[Answer]] = {}
    for page in pages:
        for scoped in page.get("items", {}).values():
            for operation in scoped.get("operations", ()):
                found.setdefault(target(operation), []).append(operation)
    for each in found.values():
        each.sort(key=lambda operation: moment(operation["insertTime"]))
    return found


def fate(operations: Sequence[Answer], *, ahead: timedelta = timedelta()) -> Fate:
    """Of one VM, its operations the oldest first. What asked for its end first is its cause."""
    found = _fate(operations)
    return found if found.over_at is None else replace(found, over_at=found.over_at + ahead)


def _fate(operations: Sequence[Answer]) -> Fate:
    for operation in operations:
        refused = errors.of_operation(operation)
        if operation.get("operationType") == INSERTED and refused is not None:
            if refused.code in errors.TAKEN:
                continue  # a second insert: the VM of the first one lives on
            return Fate(
                cause=EndCause.FAILED,
                refused=refused,
                over_at=_ended(operation),
                told=refused.code or "",
            )
    ends = [each for each in operations if each.get("operationType") in ENDS and not _failed(each)]
    if not ends:
        return Fate()
    kind = str(ends[0]["operationType"])
    gone = [each for each in ends if each["operationType"] in (DELETED, PREEMPTED)]
    done = [each for each in gone if each.get("status") == "DONE"]
    return Fate(cause=ENDS[kind], told=_told(ends[0]), over_at=_ended(done[0]) if done else None)


def _failed(operation: Answer) -> bool:
    return errors.of_operation(operation) is not None


def _told(operation: Answer) -> str:
    kind, message = str(operation["operationType"]), str(operation.get("statusMessage") or "")
    return f"{kind}: {message}" if message else kind


def _ended(operation: Answer) -> datetime | None:
    if operation.get("status") != "DONE":
        return None
    return moment(operation.get("endTime") or operation["insertTime"])


def in_zones(pages: Iterable[Answer], what: str) -> tuple[set[tuple[str, str]], set[str]]:
    """`machineTypes`, or `acceleratorTypes`, which can be attached: their names with the zones that
    have them, and the zones that did not answer."""
    found: set[tuple[str, str]] = set()
    silent: set[str] = set()
    for page in pages:
        silent |= silent_in(page)
        for place, scoped in page.get("items", {}).items():
            rows = (row for row in scoped.get(what, ()) if "deprecated" not in row)
            found.update((row["name"], _last(place)) for row in rows)
    return found, silent


def loose_disks(
    pages: Iterable[Answer], *, regions: Collection[str]
) -> Iterator[tuple[str, Remain]]:
    """Disks that no VM has, each with its region: those of VMs go with them. Raises Unavailable
    where a zone of these regions does not answer."""
    for page in pages:
        if away := sorted(zone for zone in silent_in(page) if region_of(zone) in regions):
            raise Unavailable(f"{', '.join(away)}: no listing of disks", code="UNREACHABLE")
        for scoped in page.get("items", {}).values():
            for row in scoped.get("disks", ()):
                if row.get("users") or "zone" not in row:
                    continue
                zone = _last(row["zone"])
                yield (
                    region_of(zone),
                    Remain(
                        kind="disk",
                        id=str(VmId(zone, row["name"])),
                        region=region_of(zone),
                        detail=f"{row.get('sizeGb', '?')} GiB, unattached",
                    ),
                )


def moment(text: str) -> datetime:
    """RFC 3339, with any offset, as aware UTC."""
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))  # 3.10 does not know Z
    return found.astimezone(timezone.utc)


def _last(link: str) -> str:
    return str(link).rpartition("/")[2]
