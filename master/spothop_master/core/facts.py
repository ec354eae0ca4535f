"""What a decision about one job is made from: frozen facts, no rows and no clock. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spothop.catalog.needs import ANYTHING, Needs, Shape
from spothop.wire import (
    VM_LEAVING,
    AttemptState,
    EndReason,
    JobState,
    Pool,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.core import gang
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import BackOff, Growth, PoolRefusal, Refused

BY_USER = frozenset({EndReason.PAUSED, EndReason.CANCELLED})
"""What an attempt is stopped for because its user wants it, or wanted no more than so much time."""
SAVED_FIRST = BY_USER | {EndReason.PREEMPTED}
"""What an attempt is stopped for after one more save, unless its job is to end at once."""

LAST_SAVES = 2
"""The save at a stop may take so many times what one took before, from request to commit."""
LONGEST_SAVES_S = 3600.0
"""But no longer: what it took before is what its agent says."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The master's own bounds, in seconds."""

    suspect_after_s: float = 15
    silent_after_s: float = 60
    silent_together_s: float = 3600
    """The same while many are silent together."""
    fence_margin_s: float = 2
    stop_timeout_s: float = 30
    stop_save_s: float = 900
    """For the save and the uploads at a stop of the user, beside that; more where the saves before
    took more."""
    backoff_base_s: float = 1
    backoff_max_s: float = 600
    ask_again_s: float = 5
    """Between two requests to terminate the same VM."""
    user_vms: int | None = None
    """At once, of a user without a quota of their own; None: any number."""
    avoid_s: float = 120
    """A zone that preempted, or a pool that refused, is tried last for this long."""

    def growth(self, jitter: float) -> Growth:
        """Of the back-offs after refusals; `jitter` is uniform in [0, 1)."""
        return Growth(base_s=self.backoff_base_s, max_s=self.backoff_max_s, jitter=jitter)


@dataclass(frozen=True, kw_only=True)
class Match:
    """One entry of `any_of`, with what holds for all; None matches all."""

    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    vm: str | None = None
    needs: Needs = ANYTHING


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What the job file asks of the master."""

    any_of: tuple[Match, ...] = ()
    spot: bool = True
    max_price: float | None = None
    user_retries: int = 3
    infrastructure_retries: int = 10
    hang_retries: int = 3
    max_duration_s: float | None = None
    away_s: float | None = None
    """After so long without their master its VMs end themselves; None: as the settings say."""
    nodes: int = 1
    """VMs of one attempt."""
    image: str | None = None
    disk_gb: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    id: str
    state: JobState
    wanted: Wanted
    submitted_at: datetime
    user_failures: int = 0
    infrastructure_failures: int = 0
    hangs: int = 0
    """In a row, since the newest checkpoint."""
    was_prepared: bool = False
    """Code, `setup:` and `data:` of some attempt were put in place."""
    was_trained: bool = False
    """Some attempt made a step."""
    not_before: datetime | None = None
    why: str = ""
    """Why its user wants what they want, for people; empty: nobody said."""
    at_once: bool = False
    """It is to end without another save."""
    paused_s: float = 0.0
    """In pauses that are over: they do not count against `max_duration`."""
    requirements: Requirements = Requirements()

    @property
    def ends_at(self) -> datetime | None:
        """When its `max_duration` is over; None without one."""
        limit_s = self.requirements.max_duration_s
        if limit_s is None:
            return None
        return self.submitted_at + timedelta(seconds=limit_s + self.paused_s)


@dataclass(frozen=True, kw_only=True)
class PlaceFacts:
    """One node of an attempt, and the VM that fills it."""

    vm: str
    node: int = 0
    prepared_at: datetime | None = None
    notice_at: datetime | None = None
    deadline_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptFacts:
    number: int
    places: tuple[PlaceFacts, ...]
    """By node; one at least."""
    state: AttemptState
    reason: EndReason | None = None
    detail: str = ""
    trained: bool = False
    """It made a step."""
    fenced_at: datetime | None = None
    may_fence: bool = False
    saved_since_notice: bool = False
    """Its emergency save is committed."""
    unsaved_s: float = 0
    """What it may have trained since its newest checkpoint."""
    last_save_s: float = 0
    """One more save, from the request to its commit."""
    saved_since_stop: bool = False
    """The save that came with its stop is committed."""
    stop_wanted: EndReason | None = None
    stop_at: datetime | None = None
    hurried: bool = False
    """Its job is to end without another save."""
    ended_at: datetime | None = None

    @property
    def alive(self) -> bool:
        return self.state is not AttemptState.ENDED

    def stop_timeout_s(self, limits: Limits) -> float:
        """From its stop until nobody waits for its end any more. Where it was to end with a save,
        that one has its time beside the rest: cut short it would be work lost."""
        if self.hurried or self.stop_wanted not in SAVED_FIRST:
            return limits.stop_timeout_s
        # this order: a figure that is not finite is bounded, too
        save_s = min(LONGEST_SAVES_S, LAST_SAVES * self.last_save_s)
        if self.stop_wanted in BY_USER:  # nothing else ends the wait, and nothing hurries it
            save_s = max(limits.stop_save_s, save_s)
        return limits.stop_timeout_s + save_s

    @property
    def prepared_at(self) -> datetime | None:
        """Every place is prepared."""
        return gang.reached(place.prepared_at for place in self.places)

    @property
    def notice_at(self) -> datetime | None:
        """A place has a notice."""
        return gang.happened(place.notice_at for place in self.places)


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """One VM in the cloud's newest listing."""

    cloud_id: str
    over: bool
    cause: EndCause | None = None
    """Of its end, or, while it still is there, of the one that the cloud has decided on."""
    told: str = ""
    """The same in the cloud's own words."""
    refused: Refused | None = None
    """What the cloud said after it had accepted the launch."""
    zone: str = ""
    """That the cloud gave it."""
    running_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def taken(self) -> bool:
        """The cloud takes it back: its notice, as it is seen from outside."""
        return not self.over and self.cause is EndCause.PREEMPTED

    @property
    def why(self) -> str:
        """Why it ends, for people."""
        cause = self.cause.value if self.cause else "unknown"
        return f"{cause} ({self.told})" if self.told else cause


@dataclass(frozen=True, kw_only=True)
class VmFacts:
    id: str
    pool: Pool
    state: VmState
    reason: VmReason | None = None
    cloud_id: str | None = None
    requested_at: datetime
    launched_at: datetime | None = None
    running_at: datetime | None = None
    joined_at: datetime | None = None
    suspect_at: datetime | None = None
    notice_at: datetime | None = None
    deadline_at: datetime | None = None
    at_risk_at: datetime | None = None
    """Since then its cloud recommends to leave it."""
    ended_at: datetime | None = None
    listed_at: datetime | None = None
    """When the newest listing of its cloud and region began; None: there is none yet."""
    sighting: Sighting | None = None
    """None: that listing does not have it."""
    record: EndCause | None = None
    """Why it ended, by the cloud's own record of a VM that is not in its listing any more."""
    awaits_record: bool = False
    """It vanished from the listing, and its cloud may still say why."""
    settle_s: float = 5
    """After its launch, how long its cloud's listing may still not know it."""
    join_timeout_s: float = 300
    """From the moment it runs to its agent's first call."""
    silent_s: float = 0
    asked_s: float | None = None
    """Since we last asked the cloud to terminate it; None: never."""
    in_flight: bool = False
    """Somebody calls the cloud about it now, to launch or to terminate it, under a lease."""
    called_here: bool = True
    """This process has asked the cloud for it, or it needs no asking."""
    effect_until: datetime | None = None
    """When that lease ends, or when the newest call was over; None: there was none."""

    @property
    def alive(self) -> bool:
        """Neither over nor on its way out."""
        return self.state not in VM_LEAVING


@dataclass(frozen=True, kw_only=True)
class VmQuota:
    """VMs that the owner of a job may have at once."""

    owner: str
    limit: int
    used: int
    """By all of the owner's jobs; a VM with a notice does not count."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One job at one moment."""

    job: JobFacts
    attempts: tuple[AttemptFacts, ...] = ()
    """By number: those alive, the newest, and one that succeeded."""
    before: AttemptFacts | None = None
    """The one before the newest, whatever became of it; to compare their ends."""
    vms: tuple[VmFacts, ...] = ()
    """Those not terminated, those of the attempts, and those that ended lately."""
    refusals: tuple[PoolRefusal, ...] = ()
    """What pools answered to this job."""
    back_offs: tuple[BackOff, ...] = ()
    """Of zones, regions and accounts, for all jobs."""
    quota: VmQuota | None = None
    """Of the job's owner; None: there is none."""
    offers: Mapping[Pool, float] | None = field(default=None)
    """USD an hour; None while no cloud has answered."""
    shapes: Mapping[Pool, Shape] = field(default_factory=dict)
    """What the VM types on offer have; of one that is missing nobody knows."""
    silent_together: bool = False
    """So many VMs of all jobs fell silent that it may be the master whom nobody reaches."""
    limits: Limits = Limits()
    jitter: float = 0.5
    """Uniform in [0, 1)."""
    now: datetime

    def vm(self, vm_id: str) -> VmFacts:
        return next(vm for vm in self.vms if vm.id == vm_id)

    def vms_of(self, attempt: AttemptFacts) -> list[VmFacts]:
        """By node."""
        return [self.vm(place.vm) for place in attempt.places]

    @property
    def living(self) -> list[AttemptFacts]:
        return [attempt for attempt in self.attempts if attempt.alive]

    @property
    def newest(self) -> AttemptFacts | None:
        return self.attempts[-1] if self.attempts else None
