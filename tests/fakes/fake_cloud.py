"""A cloud in memory, in fake time: raises what a real one raises, forgets and delays on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from spothop.wire import ANY_ZONE, AgentConfig, Dialect, Pool
from spothop_master.clouds.base import (
    OWNER_TAG,
    Ambiguous,
    BadRequest,
    CloudError,
    CloudLimits,
    CloudVmState,
    LaunchSpec,
    PoolInfo,
    PriceTooHigh,
    Unavailable,
    Vm,
)
from spothop_master.core.evidence import EndCause


class FakeClock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass(kw_only=True)
class Machine:
    """One VM of the fake cloud; what it is follows from the time."""

    id: str
    token: str
    pool: Pool
    tags: dict[str, str]
    user_data: AgentConfig
    requested_at: datetime
    running_at: datetime
    seen_from: datetime
    """Listings before this do not have it."""
    ends_at: datetime | None = None
    cause: EndCause | None = None
    notice_at: datetime | None = None
    deadline_at: datetime | None = None
    error: CloudError | None = None
    """The launch was accepted, and fails where the VM would begin to run."""
    stays: bool = False
    """It is still listed then, until it is terminated."""

    def failed(self, now: datetime) -> bool:
        return self.error is not None and now >= self.running_at

    def state(self, now: datetime) -> CloudVmState:
        if self.ends_at is not None and now >= self.ends_at:
            return CloudVmState.TERMINATED
        if self.cause is EndCause.TERMINATED:
            return CloudVmState.STOPPING
        if self.failed(now) and not self.stays:
            return CloudVmState.TERMINATED
        starts = now < self.running_at or self.error is not None
        return CloudVmState.PENDING if starts else CloudVmState.RUNNING

    def is_up(self, now: datetime) -> bool:
        return self.running_at <= now and (self.ends_at is None or now < self.ends_at)

    def end(self, at: datetime, cause: EndCause) -> None:
        if self.ends_at is None or at < self.ends_at:
            self.ends_at, self.cause = at, cause


class AmbiguousAfter(Exception):
    """In the script: make the VM, then answer unclearly."""


@dataclass
class FailsLater(Exception):
    """In the script: accept the launch, and refuse it inside the operation."""

    error: CloudError
    stays: bool = False


@dataclass(kw_only=True)
class FakeCloud:
    """Implements `clouds.base.Cloud`; the script's next entry answers the next launch."""

    clock: FakeClock
    name: str = "fake"
    list_every_s: float = 1.0
    settle_s: float = 5.0
    launches_per_s: float | None = None
    launches_in_burst: int = 1
    separates_users: bool = True
    boots_images: bool = False
    zones: tuple[str, ...] = ("a", "b", "c")
    on_demand: bool = False
    """It offers its zones on demand too."""
    allocation_s: float = 2.0
    termination_s: float = 1.0
    grace_s: float = 30.0
    hidden_s: float = 0.0
    """How long a new VM is missing from listings."""
    script: deque[Exception | None] = field(default_factory=deque)
    refusing: dict[str, CloudError] = field(default_factory=dict)
    """Zone -> what every launch there answers."""
    region_of: Callable[[str], str] = lambda zone: "r"
    away: CloudError | None = None
    """What listings, offers and terminations answer while the cloud is away."""
    failing: dict[str, FailsLater] = field(default_factory=dict)
    """Zone -> what becomes of every launch that is accepted there."""
    looks_in: frozenset[str] | None = None
    """It looks at no VMs elsewhere, and ends none; None: everywhere."""
    lists_preempted: bool = True
    """False: what was preempted vanishes from listings."""
    tells_early: bool = False
    """Its listing says from the notice on that it takes a VM."""
    keeps_records: bool = False
    """It says afterwards why a VM ended."""
    asked_for_records: list[str] = field(default_factory=list)
    consoles: dict[str, str] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    launches: list[LaunchSpec] = field(default_factory=list)

    @property
    def limits(self) -> CloudLimits:
        return CloudLimits(
            regions=self.looks_in,
            list_every_s=self.list_every_s,
            boots_images=self.boots_images,
            settle_s=self.settle_s,
            launches_per_s=self.launches_per_s,
            launches_in_burst=self.launches_in_burst,
        )

    def pools(self) -> Sequence[PoolInfo]:
        self._answer()
        return [
            PoolInfo(
                pool=self.pool(zone).model_copy(update={"spot": spot}),
                price=1.0 + i / 10 if spot else 3.0,
                on_demand_price=3.0,
                grace_s=self.grace_s,
                dialect=Dialect.AWS,
            )
            for i, zone in enumerate(self.zones)
            for spot in ((True, False) if self.on_demand else (True,))
        ]

    def pool(self, zone: str) -> Pool:
        return Pool(cloud=self.name, region=self.region_of(zone), zone=zone, vm="gpu")

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        known = next((m for m in self.machines.values() if m.token == token), None)
        if known is not None:
            if known.pool != spec.pool:
                raise BadRequest(f"token {token!r} was used for {known.pool}, not for {spec.pool}")
            return self._view(known)
        self._check(spec)
        self.launches.append(spec)
        planned = self.script.popleft() if self.script else None
        if isinstance(planned, CloudError):
            raise planned
        if spec.pool.zone in self.refusing:
            raise self.refusing[spec.pool.zone]
        now = self.clock()
        machine = Machine(
            id=f"i-{len(self.machines) + 1}",
            token=token,
            pool=self._given(spec.pool),
            tags=dict(spec.tags),
            user_data=spec.user_data,
            requested_at=now,
            running_at=now + timedelta(seconds=self.allocation_s),
            seen_from=now + timedelta(seconds=self.hidden_s),
        )
        planned = planned or self.failing.get(spec.pool.zone)
        if isinstance(planned, FailsLater):
            machine.error, machine.stays = planned.error, planned.stays
        self.machines[machine.id] = machine
        if isinstance(planned, AmbiguousAfter):
            raise Ambiguous("connection lost after the request was sent")
        return self._view(machine)

    def _check(self, spec: LaunchSpec) -> None:
        if spec.pool.zone not in self.zones:
            raise BadRequest(f"no zone {spec.pool.zone}")
        price = 1.0 + self.zones.index(spec.pool.zone) / 10
        if spec.pool.spot and spec.max_price is not None and spec.max_price < price:
            raise PriceTooHigh(f"{spec.pool} costs {price:g} USD/h")

    def _given(self, pool: Pool) -> Pool:
        """Where it is left to the cloud, the zone is always the same one."""
        return pool.model_copy(update={"zone": "given"}) if pool.zone == ANY_ZONE else pool

    def list(self, owner: str) -> Sequence[Vm]:
        self._answer()
        return [
            self._view(machine)
            for machine in self.machines.values()
            if machine.tags.get(OWNER_TAG) == owner and self.clock() >= machine.seen_from
            if self.lists_preempted or not self._was_preempted(machine)
            if self.limits.covers(machine.pool.region)
        ]

    def end_cause(self, vm_id: str) -> EndCause | None:
        self._answer()
        self.asked_for_records.append(vm_id)
        machine = self.machines[vm_id]
        over = machine.state(self.clock()) is CloudVmState.TERMINATED
        return machine.cause if self.keeps_records and over else None

    def _was_preempted(self, machine: Machine) -> bool:
        over = machine.state(self.clock()) is CloudVmState.TERMINATED
        return over and machine.cause is EndCause.PREEMPTED

    def terminate(self, vm_id: str) -> None:
        self._answer()
        machine = self.machines.get(vm_id)
        if machine is None or not self.limits.covers(machine.pool.region):
            return
        if machine.state(self.clock()) is not CloudVmState.TERMINATED:
            at = self.clock() + timedelta(seconds=self.termination_s)
            machine.end(at, EndCause.TERMINATED)

    def preempt(self, vm_id: str, notice_s: float | None = None) -> None:
        machine, now = self.machines.get(vm_id), self.clock()
        if machine is None:
            raise BadRequest(f"no VM {vm_id}")
        if not machine.pool.spot:
            raise BadRequest(f"VM {vm_id} is on demand; only spot VMs are preempted")
        if machine.state(now) is CloudVmState.TERMINATED:
            raise BadRequest(f"VM {vm_id} has ended")
        left = timedelta(seconds=self.grace_s if notice_s is None else notice_s)
        if left:
            machine.notice_at, machine.deadline_at = now, now + left
        machine.end(now + left, EndCause.PREEMPTED)

    def console(self, vm_id: str) -> str:
        self._answer()
        return self.consoles.get(vm_id, "")

    def kill(self, vm_id: str, cause: EndCause) -> None:
        """At once, whatever the reason."""
        self.machines[vm_id].end(self.clock(), cause)

    def alive(self) -> Sequence[Machine]:
        """Neither over nor on the way out."""
        wanted = (CloudVmState.PENDING, CloudVmState.RUNNING)
        return [m for m in self.machines.values() if m.state(self.clock()) in wanted]

    def _answer(self) -> None:
        if self.away is not None:
            raise self.away

    def _view(self, machine: Machine) -> Vm:
        now = self.clock()
        state = machine.state(now)
        over = state is CloudVmState.TERMINATED
        early = self.tells_early and machine.cause is EndCause.PREEMPTED and not over
        runs = now >= machine.running_at and machine.error is None
        return Vm(
            id=machine.id,
            token=machine.token,
            pool=machine.pool,
            state=state,
            cause=machine.cause if over or early else None,
            told="no-capacity" if early else "",
            requested_at=machine.requested_at,
            running_at=machine.running_at if runs else None,
            error=machine.error if machine.failed(now) else None,
            ended_at=(machine.ends_at or machine.running_at) if over else None,
            tags=machine.tags,
        )


@dataclass(kw_only=True)
class RegionalCloud(FakeCloud):
    """Each zone is a region of its own, `r-a` and so on; regions are listed one by one."""

    zones: tuple[str, ...] = ("a", "b")
    region_of: Callable[[str], str] = lambda zone: f"r-{zone}"
    silent: set[str] = field(default_factory=set)
    """Regions that do not answer when they are asked for their VMs."""
    gaps: dict[str, CloudError] = field(default_factory=dict)
    """By region: why its listing lacks a part."""

    def gap(self, region: str) -> CloudError | None:
        return self.gaps.get(region)

    def regions(self) -> Sequence[str]:
        return [self.region_of(zone) for zone in self.zones]

    def list(self, owner: str) -> Sequence[Vm]:
        return [vm for region in self.regions() for vm in self.list_region(region, owner)]

    def list_region(self, region: str, owner: str) -> Sequence[Vm]:
        if region in self.silent:
            raise Unavailable(f"{region} is away")
        return [vm for vm in super().list(owner) if vm.pool.region == region]
