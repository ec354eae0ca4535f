"""REST between users and master."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel, Field

from spothop.wire.common import (
    Dialect,
    Insurance,
    Pool,
    PositiveSeconds,
    SaveKind,
    StorageSpec,
    Strict,
)
from spothop.wire.lifecycle import (
    Alarm,
    AttemptState,
    EndReason,
    JobState,
    Unprotected,
    VmReason,
    VmState,
    Wanted,
)


class PoolPlan(BaseModel):
    pool: Pool
    spot_price: float
    """USD an hour."""
    on_demand_price: float
    grace_s: float
    dialect: Dialect
    offer_age_s: float = 0.0
    """Since the cloud was asked; it grows while the cloud is away."""
    mttp_s: float
    mttp_assumed: bool = False
    """The stated default outweighs what was seen."""
    lives: int
    """Preemptions ever seen in the region."""
    restart_s: float
    closed: str = ""
    """Why it is left alone now, in words; empty where it is open."""


class ReadPlan(BaseModel):
    """Reading one storage from the VMs of one cloud and region."""

    cloud: str
    region: str
    usd_per_gb: float | None
    """What the cloud of the storage asks for; None: there is no figure, and `why` says so."""
    why: str
    hindrance: str = ""
    """Why these VMs will be refused, in words; empty: nothing says that they will."""


class StorePlan(BaseModel):
    """One storage of the job; cloud and region are empty where they are not known."""

    url: str
    cloud: str = ""
    region: str = ""
    reads: list[ReadPlan] = Field(default_factory=list)


class PlanReply(BaseModel):
    pools: list[PoolPlan]
    """In the order in which they will be tried; those that are left alone now come last."""
    storage: str
    stores: list[StorePlan] = Field(default_factory=list)
    """`storage`, which holds the chain, and the others of its list. Empty: an older master."""


class SubmitRequest(Strict):
    spec: dict[str, Any]
    """The job file as a mapping; validated as `spothop.jobfile.JobSpec`."""
    bundle: str = Field(min_length=1)
    """SHA-256 of a bundle the master already has (PUT `/api/v1/bundles/<sha256>`)."""
    token: str = Field(pattern="^[!-~]{1,64}$")
    """Chosen by the client: submitting twice with the same token makes one job."""


MAX_WHY = 200
"""Characters of why a user pauses, resumes or cancels."""


class ManyJobs(Strict):
    """Which jobs to pause, resume or cancel, of those that have not ended; all that the user may
    change unless it says more."""

    state: str | None = None
    name: str = Field(default="", max_length=200)
    """How names begin."""
    owner: str | None = Field(default=None, max_length=200)
    """A user's name."""
    limit: int = Field(default=500, ge=1, le=500)
    """At most so many with this request, the newest first."""
    why: str = Field(default="", max_length=MAX_WHY)
    """For people."""


class ManyReply(BaseModel):
    changed: int
    left: int
    """Others that fit, for the next request."""


class CancelRequest(ManyJobs):
    now: bool = False
    """Without another save, also of those that are being cancelled."""


class CancelReply(BaseModel):
    cancelled: int
    left: int
    """Others that fit, for the next request."""


class PreemptRequest(Strict):
    """The provider's own eviction test. `notice_s`: None the promised one, 0 none at all; any other
    is announced as such, and is no longer than the promised one."""

    notice_s: float | None = None


class InjectRequest(Strict):
    """Preemptions to come: exponential lives (`mttp_s`), or lives as they were seen (`lives_s`).

    An interval runs from when a VM came up to the eviction call.
    """

    mttp_s: list[PositiveSeconds] = Field(default_factory=list, max_length=1000)
    """Mean lives: the k-th interval uses the k-th, the last repeats."""
    lives_s: list[PositiveSeconds] = Field(default_factory=list, max_length=20_000)
    """One for each VM, in this order; after the last there is no more preemption."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    no_notice: float = Field(default=0.0, ge=0, le=1)
    """Probability that one comes without notice."""


class InjectionView(BaseModel):
    job: str
    vm: str | None
    """Only this VM; None is whichever of the job trains."""
    mttp_s: list[float]
    lives: int
    """How many lives were given; 0 where they are exponential."""
    seed: int
    no_notice: float
    started_at: datetime
    done: int
    """Preemptions so far."""
    ended_at: datetime | None
    reason: str
    """Why it ended."""


class JobDisk(BaseModel):
    """What one job takes of the master's disk."""

    job: str
    log_bytes: int


class DiskView(BaseModel):
    """What the master keeps, in bytes."""

    database: int
    database_free: int
    """Of it, free for what comes: left by what was deleted."""
    logs: int
    bundles: int
    largest: list[JobDisk]
    """The jobs with the largest logs, of those that the asker may see."""


class PoolView(BaseModel):
    """What is known of one pool. Restart and notices are those of its VM type in the region."""

    pool: Pool
    price: float
    """USD an hour."""
    on_demand_price: float
    grace_s: float
    offer_age_s: float = 0.0
    """Since the cloud was asked; it grows while the cloud is away."""
    lives: int
    """Preemptions ever seen in this pool."""
    region_lives: int
    """In all zones of the region: they count too, with less weight."""
    censored: int
    """VMs that ended otherwise; they count as exposure."""
    alive: int
    """VMs that run now; their age counts as exposure."""
    mttp_s: float
    mttp_low_s: float
    """90 % interval."""
    mttp_high_s: float
    mttp_assumed: bool
    """The stated default outweighs what was seen in the region (faded, by events), in preemptions
    and in VM time."""
    median_life_s: float | None
    """Kaplan-Meier; None with fewer than two preemptions, or while most lives are longer."""
    allocation_s: float | None
    preparation_s: float | None
    restart_s: float
    restart_assumed: bool
    notices: int
    """Preemptions that a notice announced and whose emergency save was to fit, ever seen."""
    notices_kept: int
    """Those whose emergency save became durable."""
    unannounced: int = 0
    """Preemptions without a notice whose emergency save would have fitted, ever seen."""
    notice_share: float
    """q: posterior mean of the share of preemptions, unannounced ones included, whose emergency
    save becomes durable; faded, Beta(2, 1) prior."""
    notice_low: float
    """90 % interval."""
    notice_high: float
    refusals: int = 0
    """Launches that it refused, over the jobs that are kept."""
    closed: str = ""
    """Why no job is launched there now, with the moment until which; empty: it is open."""


class VmView(BaseModel):
    id: str
    cloud_id: str | None
    pool: Pool
    state: VmState
    reason: VmReason | None
    dialect: Dialect | None
    attempt: int
    requested_at: datetime
    running_at: datetime | None
    """The cloud said running: billing starts."""
    ended_at: datetime | None
    price: float
    """USD an hour."""
    cost: float
    """USD so far."""
    job: str | None = None
    """Whose it is; masters before this field do not tell."""
    hint: str = ""
    """What somebody has to do about it; empty for nearly all."""


class Verdict(str, Enum):
    """What a check of a cloud account found."""

    OK = "ok"
    LOOK = "look"
    """It could not be told, or it may be meant so."""
    FAILED = "failed"


class CheckView(BaseModel):
    """One thing that a cloud account needs before jobs run on it."""

    cloud: str
    subject: str
    verdict: Verdict
    fact: str
    hint: str = ""


class StrayView(BaseModel):
    """A VM with this installation's tag that no row of the master owns."""

    cloud_id: str
    pool: Pool
    launched_at: datetime
    found_at: datetime
    held: str
    """Why it waits for an admin; empty: it is being ended."""
    next_at: datetime | None
    """Its cloud did not end it, and is asked again then."""
    error: str
    """What the cloud answered."""


class ListedAs(str, Enum):
    """What the master knows of a VM that it or its cloud tells of."""

    KNOWN = "known"
    """A living row of the master owns it."""
    ORPHAN = "orphan"
    """It carries the master's tag, and no living row owns it."""
    UNLISTED = "unlisted"
    """A row is alive, and the cloud does not list its VM."""


class InventoryVm(BaseModel):
    """One VM of this installation, of the cloud's own listing or of the master's rows."""

    cloud_id: str | None
    """None: it has none yet, as far as the master knows."""
    pool: Pool
    state: str
    """As the cloud says: pending, running, stopping; of one that is not listed the row's."""
    listed_as: ListedAs
    requested_at: datetime
    vm: str | None
    """The row's id."""
    job: str | None
    price: float | None
    """USD an hour; None: not known."""
    note: str
    """What becomes of it, where that is not plain."""


class RemainView(BaseModel):
    """What carries this installation's tag and no VM uses."""

    kind: str
    """volume, address, network interface."""
    id: str
    region: str
    detail: str


class InventoryView(BaseModel):
    """What one cloud itself says of this installation, beside the master's rows. VMs that are over
    are left out."""

    cloud: str
    vms: list[InventoryVm]
    remains: list[RemainView]
    jobs: int
    """So many may run here, have not ended, and are not being cancelled."""
    errors: list[str]
    """What could not be seen or done; then the rest may be incomplete."""

    @property
    def price(self) -> float:
        """USD an hour of the VMs that the cloud lists and whose price is known."""
        listed = [vm for vm in self.vms if vm.listed_as is not ListedAs.UNLISTED]
        return sum(vm.price or 0.0 for vm in listed)


class RefusalView(BaseModel):
    """How often one pool refused VMs of a job."""

    pool: Pool
    count: int
    first_at: datetime
    last_at: datetime
    until: datetime | None
    """It is not asked before, nor is its zone, region or account; None: it may be asked."""
    error: str
    """Of the last one: NoCapacity, QuotaExceeded, ..."""
    code: str | None
    """What the provider calls it."""
    detail: str


class VmPage(BaseModel):
    """A part of a list of VMs, newest first."""

    vms: list[VmView]
    next: str | None = None
    """Cursor of the page that follows; None: this is the last."""
    previous: str | None = None


class PlaceView(BaseModel):
    """One node of an attempt."""

    node: int
    vm: str
    prepared_at: datetime | None = None
    notice_at: datetime | None = None
    last_step: int | None = None
    exit_code: int | None = None
    """Of the training process; None while it runs, and when a signal ended it."""
    exit_signal: int | None = None
    """The Linux signal that ended it."""


class AttemptView(BaseModel):
    number: int
    vm: str
    """Of node 0."""
    places: list[PlaceView] = Field(default_factory=list)
    """By node; those of masters before places were known are not told."""
    state: AttemptState
    reason: EndReason | None
    detail: str
    started_at: datetime | None
    """First step or start of the training process."""
    starting: bool = False
    """`preparing`, and its process runs: it imports and loads, before its first step."""
    ended_at: datetime | None
    restored_step: int | None
    last_step: int | None
    notice_at: datetime | None
    prepared_at: datetime | None = None
    first_step_at: datetime | None = None
    step_at_notice: int | None = None
    """Newest step the agent knew of when it saw the notice."""
    notice_fits: bool | None = None
    """The emergency save was expected to fit the time left."""


class CheckpointView(BaseModel):
    n: int
    step: int
    attempt: int
    kind: SaveKind
    bytes: int
    delta_s: float
    """0: not measured, because nobody marked where the save began."""
    beta_s: float
    committed_at: datetime
    since_notice_s: float | None = None


class CheckpointPage(BaseModel):
    """A part of a job's checkpoints, newest first."""

    checkpoints: list[CheckpointView]
    next: str | None = None
    """Cursor of the page that follows; None: this is the last."""


class UnprotectedView(BaseModel):
    """Why nothing protects a job's work, and what mends that."""

    cause: Unprotected
    reason: str
    since: datetime
    add: list[str] = Field(default_factory=list)
    """Lines for the script."""


class AlarmView(BaseModel):
    """What somebody should look at."""

    kind: Alarm
    reason: str
    since: datetime


class JobView(BaseModel):
    id: str
    name: str
    owner: str
    state: JobState
    starting: bool = False
    """`preparing`, and the process runs: it imports and loads, before its first step."""
    wanted: Wanted
    reason: str
    """Why it is in this state, for people."""
    submitted_at: datetime
    ended_at: datetime | None
    paused_at: datetime | None = None
    """Since when it is paused; None: it is not, or its master is older than this field."""
    attempt: int
    vm: str | None
    pool: Pool | None
    step: int | None
    metrics: dict[str, float]
    """The newest value of each, `loss` among them if the script logs it."""
    preemptions: int
    saves: dict[SaveKind, int]
    cost: float
    on_demand_cost: float | None
    """USD: the useful steps and one start, at the on-demand price of the VMs that ran them. Lost
    steps, later starts and saves are not in it. None before the first step, and where nothing ran
    on spot."""
    storage: StorageSpec
    insurance: Insurance | None
    unprotected: UnprotectedView | None = None
    """None: something protects it, or nothing is known to the contrary."""
    alarms: list[AlarmView] = Field(default_factory=list)
    """Those that last, the oldest first."""


class JobPage(BaseModel):
    """A part of a list of jobs, newest first."""

    jobs: list[JobView]
    next: str | None = None
    """Cursor of the page that follows; None: this is the last."""
    previous: str | None = None
    counts: dict[JobState, int]
    """Of all pages, by state, also in the states that were not asked for."""
    total: int
    """Of all pages."""


class JobDetail(JobView):
    spec: dict[str, Any]
    other_storages: list[StorageSpec] = Field(default_factory=list)
    """Beside `storage`, which holds the chain: where the data of checkpoints may lie."""
    attempts: list[AttemptView]
    vms: list[VmView]
    ends_at: datetime | None = None
    """When its `max_duration` is over, if it is not paused before; None without one."""
    refusals: list[RefusalView] = Field(default_factory=list)
    """The newest first."""
    checkpoints: list[CheckpointView]
    """The newest 200, oldest first; `saves` counts them all."""
    useful_s: float
    """Wall time inside steps that were not computed again."""
    recomputed_steps: int
    lost_s: float
    """Wall time inside the steps that were lost (seconds)."""
    lost_cost: float
    """What that time cost (USD)."""
    injection: InjectionView | None = None
    """The newest one, under way or over."""
    log_tail: str
    """The last lines of the newest attempt's log, or why there is none any more."""
    log_bytes: int = 0
    """What the logs of all attempts take of the master's disk."""


class LogView(BaseModel):
    """A part of one attempt's log."""

    attempt: int
    data: str
    """The bytes, in base64."""
    next_offset: int
    complete: bool
    """The attempt is over and this is the end of its log."""


class JobNews(BaseModel):
    """What is new about a job, for who follows it."""

    job: JobView
    events: list[EventView]
    """At most 500, oldest first."""
    log: LogView | None
    """None where no attempt's log was asked for."""
    seen: str
    """Changes with what `job` says, but for its cost."""


class EventView(BaseModel):
    id: int
    at: datetime
    job: str | None
    vm: str | None
    attempt: int | None
    kind: str
    text: str
    data: dict[str, Any]
