"""What a cloud is to us: one Protocol, its typed errors, one contract suite over all drivers.

Implementations are synchronous, keep no state of their own that matters (the cloud's listing is the
truth), and map every failure of theirs to one of the errors below. None of them retries a launch:
what to do after a refusal is the supervise loop's decision. Three rules make clouds alike that
answer in different ways:

1. A launch returns as soon as the cloud has accepted it; no request waits for its provider longer
   than `CALL_DEADLINE_S`. What is refused inside the provider's operation is told by the listing
   (`Vm.error`).
2. An answer that is not clear is `Ambiguous`. Whoever asked repeats the very same launch, with the
   same token and the same bytes of user data; then the listing decides, once a VM has to be in it
   (`CloudLimits.settle_s`).
3. A pool may leave the zone to the cloud (`wire.ANY_ZONE`). The VM that comes back names the zone
   that it was given, and from then on that is its zone, in its row and in all statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol, runtime_checkable

from spothop.catalog.needs import Shape
from spothop.wire import AgentConfig, Dialect, Pool, Verdict
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Refused, Scope

#   CloudError
#                           scope, unless the driver names another one
#   |-- NoCapacity          pool      try another pool at once
#   |-- QuotaExceeded       region    frees minutes after a termination; another region may do
#   |-- PriceTooHigh        pool      above the job's cap
#   |-- Throttled           account   back off; where the cloud counts by region, the region
#   |-- Unavailable         region    the cloud's fault: back off
#   |-- Ambiguous           pool      it may or may not have happened: resolve by token in list()
#   |-- BadRequest          pool      ours or the user's fault: never retried
#   `-- AuthFailed          account   credentials: nothing is launched until they are mended


CALL_DEADLINE_S = 60.0
"""Longer than this no request of a driver waits for its provider."""


class CloudError(Exception):
    """A refusal or failure of a cloud; the message is for people and names the pool or VM.

    `scope` is what it is about, and so what is left alone for a while. `retry_after_s`: the
    provider wants to be asked no earlier (seconds). `code` is the provider's own name for it, such
    as InsufficientInstanceCapacity. Two of the same kind and content are equal: a listing that
    holds one has not changed.
    """

    scope: Scope = Scope.POOL

    def __init__(
        self,
        message: str = "",
        *,
        scope: Scope | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        if scope is not None:
            self.scope = scope
        self.retry_after_s = retry_after_s
        self.code = code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CloudError) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[object, ...]:
        return type(self), self.args, self.scope, self.retry_after_s, self.code


class NoCapacity(CloudError): ...


class QuotaExceeded(CloudError):
    scope = Scope.REGION


class PriceTooHigh(CloudError): ...


class Throttled(CloudError):
    scope = Scope.ACCOUNT


class Unavailable(CloudError):
    scope = Scope.REGION


class Ambiguous(CloudError): ...


class BadRequest(CloudError): ...


class AuthFailed(CloudError):
    scope = Scope.ACCOUNT


def refused_by(error: CloudError) -> Refused:
    """The same answer as a fact for decisions and rows."""
    return Refused(
        error=type(error).__name__,
        scope=error.scope,
        detail=str(error),
        code=error.code,
        retry_after_s=error.retry_after_s,
    )


class CloudVmState(str, Enum):
    """What the cloud itself says of a VM."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"


@dataclass(frozen=True, kw_only=True)
class PoolInfo:
    """One pool as the cloud offers it."""

    pool: Pool
    price: float
    """USD an hour."""
    on_demand_price: float
    grace_s: float
    """Promised time from the notice to the kill."""
    dialect: Dialect
    shape: Shape | None = None
    """What the VM type has, where the provider tells it; None: what the catalogue knows of it."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """Everything a launch needs; `tags` are set at creation (I3). On the spot market or on demand
    as the pool says. The same launch said twice is equal to the byte: providers compare them."""

    pool: Pool
    """Its zone may be `wire.ANY_ZONE`."""
    user_data: AgentConfig
    """For a cloud whose VMs are started by us."""
    script: str = ""
    """User data, ready to be sent: what a VM that boots an image runs first. A driver whose VMs do
    so refuses a launch without it."""
    tags: Mapping[str, str]
    max_price: float | None = None
    """USD an hour."""
    image: str | None = None
    """In the provider's own words; None: the driver's choice for this VM type."""
    disk_gb: int | None = None
    """Of the disk that the VM boots from, in GB (10^9 bytes); None: the driver's choice."""
    reads: Sequence[str] = ()
    """Folders of this machine that the job reads; for a cloud whose VMs are on it."""
    writes: Sequence[str] = ()
    """And those in which it keeps its checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Vm:
    """One VM as the cloud lists it."""

    id: str
    token: str
    """The client token of its launch."""
    pool: Pool
    """With the zone that the cloud has given."""
    state: CloudVmState
    cause: EndCause | None = None
    """Why it ended, or, where the cloud tells so much earlier, why it is about to."""
    told: str = ""
    """The same in the provider's own words, such as Server.SpotInstanceTermination."""
    requested_at: datetime
    running_at: datetime | None = None
    """Billing starts."""
    ended_at: datetime | None = None
    error: CloudError | None = None
    """A refusal that came after the launch was accepted, inside the provider's operation. Of one
    that is terminated nothing is left; in any other state it stays until we terminate it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    grace_s: float | None = None
    """Of one that was just launched: from its notice to its end, where its pool promised more."""


OWNER_TAG = "spothop-owner"
"""Its value names the master's installation; the sweep ends VMs that carry it and have no row."""


@dataclass(frozen=True, kw_only=True)
class CloudLimits:
    """How one cloud wants to be asked, and how fast it is."""

    list_every_s: float
    """How often `list` may be asked: what its answer costs, and the provider's limit on requests.
    The end of a VM without a notice is seen so late at most."""
    regions: frozenset[str] | None = None
    """It looks at no VMs elsewhere, and ends none; None: it knows all of its VMs."""
    boots_images: bool = True
    """Its VMs boot an image, and start an agent by `LaunchSpec.script`."""
    settle_s: float = 0.0
    """From a launch until a listing has to show the VM. Up to then one that is missing is not
    known, instead of gone."""
    join_timeout_s: float = 300.0
    """From the moment a VM runs to its agent's first call; the settings' `join_timeout_s` wins."""
    calls_at_once: int = 16
    """Launches and terminations under way; the settings' `cloud_calls` wins."""
    launches_per_s: float | None = None
    """So many launches a second for longer; None: as fast as they come."""
    launches_in_burst: int = 1
    """So many may come at once, after a rest."""

    def covers(self, region: str) -> bool:
        return self.regions is None or region in self.regions


class Cloud(Protocol):
    """One cloud account."""

    name: str

    @property
    def limits(self) -> CloudLimits:
        """The same at every call."""

    @property
    def separates_users(self) -> bool:
        """Whether a job can read neither the master's files nor those of other users' jobs."""

    def pools(self) -> Sequence[PoolInfo]:
        """Every pool offered now, with its price."""

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        """Ask for one VM; returns when the cloud has accepted. The same token never makes a second
        one."""

    def list(self, owner: str) -> Sequence[Vm]:
        """All VMs whose owner tag has this value, those that ended lately included."""

    def terminate(self, vm_id: str) -> None:
        """Ask for the end; harmless when it has ended or never was. list() tells when it is so."""

    def preempt(self, vm_id: str, notice_s: float | None = None) -> None:
        """The provider's own eviction test; `notice_s` None is the promised grace, 0 no notice."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that a cloud account needs before jobs run on it."""

    subject: str
    verdict: Verdict
    fact: str
    hint: str = ""


@runtime_checkable
class Diagnoses(Protocol):
    """A cloud that can be asked what its account lacks. Optional beside `Cloud`."""

    def diagnose(self, storage_url: str) -> Sequence[Check]:
        """Makes nothing and raises no CloudError; `storage_url` is where checkpoints go. Takes a
        few seconds a region."""


@runtime_checkable
class KeepsRecords(Protocol):
    """A cloud whose VMs may vanish from its listing, and that can say afterwards what became of
    them (GCP's operations, Azure's activity log). Optional beside `Cloud`."""

    def end_cause(self, vm_id: str) -> EndCause | None:
        """Why this VM ended; None while there is no record of its end."""


@runtime_checkable
class TellsConsole(Protocol):
    """A cloud that keeps what its VMs write to their console. Optional beside `Cloud`."""

    def console(self, vm_id: str) -> str:
        """As much as the cloud has, which may be a minute behind; "" where it has nothing. Raises
        CloudError."""


@runtime_checkable
class ListsByRegion(Protocol):
    """A cloud whose regions can be listed one by one, so that one that does not answer hides no
    other one; it is then asked so, side by side, and each region every `CloudLimits.list_every_s`.
    Optional beside `Cloud`."""

    def regions(self) -> Sequence[str]:
        """Where VMs of ours may be."""

    def list_region(self, region: str, owner: str) -> Sequence[Vm]:
        """What `Cloud.list` has of this region. Raises CloudError."""


@runtime_checkable
class TellsGaps(Protocol):
    """A cloud whose listing of a region takes several questions, and tells the VMs though one of
    the others was refused. Optional beside `ListsByRegion`."""

    def gap(self, region: str) -> CloudError | None:
        """Why the newest listing of this region lacks something that it has else; None: it has
        all, or nobody was asked."""


@dataclass(frozen=True, kw_only=True)
class Remain:
    """Something of ours beside VMs that costs money or stands in the way."""

    kind: str
    """volume, address, network interface."""
    id: str
    region: str
    detail: str
    """For people: its size, or the address."""


@runtime_checkable
class TellsRemains(Protocol):
    """A cloud in which more than VMs may carry our tag, and be left over. Optional beside
    `Cloud`."""

    def remains(self, owner: str, *, region: str | None = None) -> Sequence[Remain]:
        """What carries this owner's tag and no VM uses, of one region or of all. Raises
        CloudError."""

    def remove(self, remain: Remain) -> None:
        """For good; harmless when it is gone. Raises CloudError."""
