"""What EC2's answers say of VMs, spot requests and pools. Pure: answers are the SDK's, as dicts.

EC2 does not tell when a VM began to run, and in words only when it ended. So the moments come from
where they are exact, and else from when a listing showed the change first (`Moments`); they stay
as they are from then on, because a VM that differs from the listing before counts as news.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from spothop.wire import Pool
from spothop_master.clouds.aws import errors
from spothop_master.clouds.aws.requests import OUR_TAGS, Image
from spothop_master.clouds.base import OWNER_TAG, CloudVmState, Remain, Vm
from spothop_master.core.evidence import EndCause

Answer = Mapping[str, Any]

_STATES = {
    "pending": CloudVmState.PENDING,
    "running": CloudVmState.RUNNING,
    "shutting-down": CloudVmState.STOPPING,
    "stopping": CloudVmState.STOPPING,
    "stopped": CloudVmState.STOPPING,  # by somebody else: it costs its disk until it is ended
    "terminated": CloudVmState.TERMINATED,
}

_CAUSES = {
    "Server.SpotInstanceTermination": EndCause.PREEMPTED,
    "Server.SpotInstanceShutdown": EndCause.PREEMPTED,
    "Client.UserInitiatedShutdown": EndCause.TERMINATED,
    "Client.InstanceInitiatedShutdown": EndCause.TERMINATED,
    "Client.InstanceTerminated": EndCause.TERMINATED,
    "Server.InsufficientInstanceCapacity": EndCause.FAILED,
    "Server.InternalError": EndCause.FAILED,
    "Server.ScheduledStop": EndCause.FAILED,
    "Client.InternalError": EndCause.FAILED,
    "Client.InvalidSnapshot.NotFound": EndCause.FAILED,
    "Client.VolumeLimitExceeded": EndCause.FAILED,
}
"""https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html"""

_TAKING = ("marked-for-", "instance-terminated-", "instance-stopped-")
_BY_US = frozenset(
    {
        "instance-terminated-by-user",
        "instance-terminated-by-schedule",
        "instance-stopped-by-user",
        "instance-terminated-launch-group-constraint",
    }
)
"""Of the statuses of a spot request those that begin like `_TAKING` say that EC2 takes the VM, some
of them from the notice on; these do not:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html"""

_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")


@dataclass(frozen=True, kw_only=True)
class SpotStatus:
    """What a spot request says of its VM."""

    code: str
    message: str = ""
    at: datetime | None = None

    @property
    def words(self) -> str:
        return self.code if self.message in ("", self.code) else f"{self.code}: {self.message}"

    @property
    def ended(self) -> bool:
        """There is no VM any more."""
        return self.code.startswith(("instance-terminated-", "instance-stopped-"))

    @property
    def takes(self) -> bool:
        """EC2 takes the VM back, or has done so."""
        return self.code.startswith(_TAKING) and self.code not in _BY_US


@dataclass
class Moments:
    """When listings first showed that a VM ran, and that it was over."""

    _pending: set[str] = field(default_factory=set)
    _ran: dict[str, datetime] = field(default_factory=dict)
    _over: dict[str, datetime] = field(default_factory=dict)

    def ran(self, vm_id: str, otherwise: datetime, *, now: datetime) -> datetime:
        """`otherwise` for one that was never seen pending: it may have run for long."""
        first = now if vm_id in self._pending else otherwise
        self._pending.discard(vm_id)
        return self._ran.setdefault(vm_id, first)

    def pending(self, vm_id: str) -> None:
        self._pending.add(vm_id)

    def over(self, vm_id: str, *, now: datetime) -> datetime:
        return self._over.setdefault(vm_id, now)

    def ever_ran(self, vm_id: str) -> datetime | None:
        return self._ran.get(vm_id)

    def forget(self, vm_ids: Iterable[str]) -> None:
        for vm_id in vm_ids:
            self._pending.discard(vm_id)
            self._ran.pop(vm_id, None)
            self._over.pop(vm_id, None)


def instances(pages: Iterable[Answer]) -> Iterator[Answer]:
    """Of answers of DescribeInstances, or one of RunInstances."""
    for page in pages:
        for reservation in page["Reservations"]:
            yield from reservation["Instances"]


def is_of(owner: str, instance: Answer) -> bool:
    """By its tag, to the letter: in EC2's filters `*` and `?` stand for anything."""
    tags = instance.get("Tags", ())
    return any(tag["Key"] == OWNER_TAG and tag["Value"] == owner for tag in tags)


def date(answer: Answer) -> str | None:
    """What EC2's clock said."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers["date"]) if "date" in headers else None


def vm(
    instance: Answer,
    region: str,
    status: SpotStatus | None,
    moments: Moments,
    *,
    now: datetime,
    ahead: timedelta = timedelta(),
) -> Vm:
    """One VM as EC2 lists it; `status` is that of its spot request, where it was asked for. Its
    moments are of our clock, which is `ahead` of EC2's."""
    vm_id, state = instance["InstanceId"], _STATES[instance["State"]["Name"]]
    reason, requested_at = (
        instance.get("StateReason") or {},
        _moment(instance["LaunchTime"]) + ahead,
    )
    code = str(reason.get("Code", ""))
    running_at = moments.ever_ran(vm_id)
    if state is CloudVmState.PENDING:
        moments.pending(vm_id)
    elif state is CloudVmState.RUNNING:
        running_at = moments.ran(vm_id, _attached(instance) + ahead, now=now)
    over = state is CloudVmState.TERMINATED
    ended_at = _ended(instance, moments, now=now, ahead=ahead) if over else None
    if ended_at is not None and running_at is not None:
        ended_at = max(ended_at, running_at)  # a clock was set in between
    ending = over or state is CloudVmState.STOPPING
    refused = errors.of_state_reason(code, str(reason.get("Message", ""))) if ending else None
    taken = status is not None and status.takes
    told = [status.words] if status is not None and taken else []
    told += [code] if ending and code else []
    return Vm(
        id=vm_id,
        token=instance.get("ClientToken", ""),
        pool=pool(instance, region),
        state=state,
        cause=_cause(code, taken=taken, ending=ending),
        told="; ".join(told),
        requested_at=requested_at,
        running_at=running_at,
        ended_at=ended_at,
        error=refused if running_at is None else None,
        tags=own_tags(instance),
    )


def pool(instance: Answer, region: str) -> Pool:
    return Pool(
        cloud="aws",
        region=region,
        zone=instance["Placement"]["AvailabilityZone"],
        vm=instance["InstanceType"],
        spot=instance.get("InstanceLifecycle") == "spot",
    )


def _cause(code: str, *, taken: bool, ending: bool) -> EndCause | None:
    """Who asked last is in the state reason; that EC2 was about to take it counts more."""
    if taken:
        return EndCause.PREEMPTED
    return _CAUSES.get(code, EndCause.UNKNOWN) if ending else None


def _ended(instance: Answer, moments: Moments, *, now: datetime, ahead: timedelta) -> datetime:
    found = _WHEN.search(instance.get("StateTransitionReason") or "")
    if found is not None:
        told = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
        return max(told, _moment(instance["LaunchTime"])) + ahead
    return moments.over(instance["InstanceId"], now=now)


def _attached(instance: Answer) -> datetime:
    """When it got its disk: a little before it ran; else when it was launched."""
    times = [
        _moment(disk["Ebs"]["AttachTime"])
        for disk in instance.get("BlockDeviceMappings", ())
        if disk.get("Ebs", {}).get("AttachTime")
    ]
    return max([*times, _moment(instance["LaunchTime"])])


def own_tags(row: Answer) -> dict[str, str]:
    """Those of the launch, without AWS's own and those for people."""
    return {
        tag["Key"]: tag["Value"]
        for tag in row.get("Tags", ())
        if tag["Key"] not in OUR_TAGS and not tag["Key"].startswith("aws:")
    }


def _moment(value: datetime) -> datetime:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    return aware.astimezone(timezone.utc)


def spot_statuses(pages: Iterable[Answer]) -> dict[str, SpotStatus]:
    """By the VM's id; requests without one are left out."""
    found = {}
    for page in pages:
        for request in page["SpotInstanceRequests"]:
            status = request.get("Status") or {}
            if request.get("InstanceId"):
                at = status.get("UpdateTime")
                found[request["InstanceId"]] = SpotStatus(
                    code=status.get("Code", ""),
                    message=status.get("Message", ""),
                    at=_moment(at) if at is not None else None,
                )
    return found


def is_spot_and_alive(instance: Answer) -> bool:
    alive = instance["State"]["Name"] in ("pending", "running", "shutting-down")
    return alive and instance.get("InstanceLifecycle") == "spot"


def prices(pages: Iterable[Answer]) -> dict[tuple[str, str], float]:
    """USD an hour by VM type and zone; of several the newest."""
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for page in pages:
        for row in page["SpotPriceHistory"]:
            key = row["InstanceType"], row["AvailabilityZone"]
            told = _moment(row["Timestamp"]), float(row["SpotPrice"])
            newest[key] = max(newest.get(key, told), told)
    return {key: price for key, (_, price) in newest.items()}


def offerings(pages: Iterable[Answer]) -> frozenset[tuple[str, str]]:
    """VM types and the zones that have them."""
    return frozenset(
        (row["InstanceType"], row["Location"])
        for page in pages
        for row in page["InstanceTypeOfferings"]
    )


def zones_with_subnet(pages: Iterable[Answer]) -> frozenset[str]:
    return frozenset(row["AvailabilityZone"] for page in pages for row in page["Subnets"])


def image(answer: Answer) -> Image | None:
    """None: there is no such image, or we may not see it."""
    for row in answer["Images"]:
        root = row.get("RootDeviceName") or Image.root
        sizes = [
            disk.get("Ebs", {}).get("VolumeSize") or 0
            for disk in row.get("BlockDeviceMappings", ())
            if disk.get("DeviceName") == root
        ]
        return Image(id=row["ImageId"], root=root, min_gib=max(sizes, default=0))
    return None


def volumes(pages: Iterable[Answer], region: str) -> list[Remain]:
    """Disks that no VM has any more: those of VMs go with them."""
    return [
        Remain(
            kind="volume",
            id=row["VolumeId"],
            region=region,
            detail=f"{row['Size']} GiB, unattached",
        )
        for page in pages
        for row in page["Volumes"]
    ]


def addresses(answer: Answer, region: str) -> list[Remain]:
    return [
        Remain(
            kind="address",
            id=row.get("AllocationId") or row["PublicIp"],
            region=region,
            detail=str(row.get("PublicIp", "")),
        )
        for row in answer["Addresses"]
    ]


def network_interfaces(pages: Iterable[Answer], region: str) -> list[Remain]:
    """Those that no VM has: one that is made at a launch goes with its VM."""
    return [
        Remain(
            kind="network interface",
            id=row["NetworkInterfaceId"],
            region=region,
            detail=f"{row.get('PrivateIpAddress', '')}, unattached".lstrip(", "),
        )
        for page in pages
        for row in page["NetworkInterfaces"]
    ]
