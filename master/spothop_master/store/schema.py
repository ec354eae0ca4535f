"""The tables. Dialect-neutral: SQLite and PostgreSQL run the same migrations and the same SQL.

Every state column is guarded thrice: the life cycle's table in `core/states.py` decides, a guarded
`UPDATE ... WHERE state = (the one read)` in `store/transitions.py` enforces it, and a CHECK admits
nothing but the states that there are. The same holds for reasons, for what users want, and for
kinds. The one exception is `events.kind`: a log's kinds grow with every release, and its readers
skip those they do not know.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from spothop.wire import (
    AttemptState,
    Dialect,
    EndReason,
    JobState,
    SaveKind,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.core import gang
from spothop_master.core.evidence import Evidence
from spothop_master.core.refusals import REFUSALS, Scope
from spothop_master.store.alarm_rows import AlarmRow as AlarmRow
from spothop_master.store.alarm_rows import Delivery as Delivery
from spothop_master.store.columns import Base as Base  # the tables' users find it here, too
from spothop_master.store.columns import BigId, Whole, one_of
from spothop_master.store.file_rows import BundleFileRow as BundleFileRow
from spothop_master.store.file_rows import LogPiece as LogPiece
from spothop_master.store.file_rows import LogRow as LogRow
from spothop_master.store.master_rows import Installation as Installation
from spothop_master.store.master_rows import JobChange as JobChange
from spothop_master.store.master_rows import Loop as Loop
from spothop_master.store.master_rows import Master as Master
from spothop_master.store.user_rows import BundleUpload as BundleUpload
from spothop_master.store.user_rows import Login as Login
from spothop_master.store.user_rows import Token as Token
from spothop_master.store.user_rows import User as User

OBSERVATIONS = ("life", "allocation", "preparation", "save", "backup", "step", "emergency")
"""What is measured."""

SUMMED_BY_ZONE = ("life", "allocation", "preparation", "emergency")
SUMMED_BY_JOB = ("save", "backup")

_EVIDENCE = ("", *Evidence, "no_notice")

REGION = ("cloud", "region", "vm_type", "spot")
"""The columns of a region: the unit of statistics."""


class Job(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        # of the lists, newest first (`job_lists`): all, in a state, of an owner, not ended
        Index("ix_jobs_submitted_at_id", "submitted_at", "id"),
        Index("ix_jobs_state_submitted_at_id", "state", "submitted_at", "id"),
        Index("ix_jobs_owner_id_submitted_at_id", "owner_id", "submitted_at", "id"),
        Index("ix_jobs_owner_id_state_submitted_at_id", "owner_id", "state", "submitted_at", "id"),
        Index("ix_jobs_ended_at_submitted_at_id", "ended_at", "submitted_at", "id"),
        Index(
            "ix_jobs_not_sealed",  # those that `store/sealing` has to look at when a master starts
            "id",
            sqlite_where=text("sealed IS NULL"),
            postgresql_where=text("sealed IS NULL"),
        ),
        one_of("state", JobState),
        one_of("wanted", Wanted),
    )
    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), index=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    submit_token: Mapped[str] = mapped_column(String(64), unique=True)
    spec: Mapped[dict[str, Any]]
    """The job file without its secrets."""
    sealed: Mapped[str | None] = mapped_column(Text)
    """These, encrypted (`store/sealing`)."""
    bundle: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16), index=True)
    wanted: Mapped[str] = mapped_column(String(16), default=Wanted.RUNNING.value)
    wanted_why: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Who wants it and why, for people; empty: not told."""
    at_once: Mapped[bool] = mapped_column(default=False, server_default=false())
    """It is to end without another save."""
    paused_at: Mapped[datetime | None]
    """Since when it is paused."""
    paused_s: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """In pauses that are over."""
    reason: Mapped[str] = mapped_column(Text, default="")
    submitted_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    user_failures: Mapped[int] = mapped_column(default=0)
    infrastructure_failures: Mapped[int] = mapped_column(default=0)
    refusals: Mapped[int] = mapped_column(default=0)
    """Capacity refusals in a row; feeds the back-off."""
    not_before: Mapped[datetime | None]
    """No launch before this moment (back-off)."""
    insurance: Mapped[dict[str, Any] | None]
    """The newest `wire.Insurance`."""
    alarms: Mapped[dict[str, Any] | None]
    """`reason` and `since` of each that lasts, by kind; as in `alarm_rows`, for lists."""


class SealingKey(Base):
    """A master key with which something in this database is encrypted; never the key itself."""

    __tablename__ = "sealing_keys"
    id: Mapped[str] = mapped_column(String(16), primary_key=True)


class Attempt(Base):
    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index(
            "uq_attempts_one_fenced_in",  # I2: one attempt of a job is fenced in
            "job_id",
            unique=True,
            sqlite_where=text("fenced_in"),
            postgresql_where=text("fenced_in"),
        ),
        one_of("state", AttemptState),
        one_of("reason", EndReason),
        one_of("stop_wanted", EndReason),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    number: Mapped[int]
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str | None] = mapped_column(String(24))
    detail: Mapped[str] = mapped_column(Text, default="")
    fenced_in: Mapped[bool] = mapped_column(default=False)
    may_fence: Mapped[bool] = mapped_column(default=False)
    fenced_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    restored_step: Mapped[int | None] = mapped_column(Whole)
    stop_wanted: Mapped[str | None] = mapped_column(String(64))
    """Why the agent was told to stop it."""
    stop_at: Mapped[datetime | None]
    save_s: Mapped[float | None]
    backup_s: Mapped[float | None]
    step_s: Mapped[float | None]
    metrics: Mapped[dict[str, Any] | None]
    """The newest value of each that it logged."""
    places: Mapped[list[Place]] = relationship(
        back_populates="attempt", order_by="Place.node", lazy="selectin"
    )

    # What the attempt has or is, from its places: `core/gang.py` says which needs all of them.

    @property
    def leader(self) -> Place:
        """Node 0's; a gang of one has no other."""
        return self.places[0]

    @property
    def prepared_at(self) -> datetime | None:
        return gang.reached(place.prepared_at for place in self.places)

    @property
    def started_at(self) -> datetime | None:
        return gang.reached(place.started_at for place in self.places)

    @property
    def first_step_at(self) -> datetime | None:
        return gang.reached(place.first_step_at for place in self.places)

    @property
    def notice_at(self) -> datetime | None:
        return gang.happened(place.notice_at for place in self.places)

    @property
    def notice_fits(self) -> bool | None:
        """Of all places that had a notice; None while none had."""
        known = [place.notice_fits for place in self.places if place.notice_fits is not None]
        return all(known) if known else None

    @property
    def step_at_notice(self) -> int | None:
        return gang.newest(place.step_at_notice for place in self.places)

    @property
    def last_step(self) -> int | None:
        return gang.newest(place.last_step for place in self.places)

    @property
    def last_step_at(self) -> datetime | None:
        times = [place.last_step_at for place in self.places if place.last_step_at is not None]
        return max(times, default=None)


class Place(Base):
    """One node of an attempt, and the VM that fills it. A job of one VM is a gang of one."""

    __tablename__ = "places"
    __table_args__ = (
        UniqueConstraint("attempt_id", "node"),
        Index(
            "uq_places_one_living",  # a VM has one place at most in an attempt that lives
            "vm_id",
            unique=True,
            sqlite_where=text("living"),
            postgresql_where=text("living"),
        ),
        one_of("reason", EndReason),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"))
    node: Mapped[int] = mapped_column(default=0)
    vm_id: Mapped[str] = mapped_column(ForeignKey("vms.id"), index=True)
    living: Mapped[bool] = mapped_column(default=True)
    """Its attempt has not ended."""
    address: Mapped[str | None] = mapped_column(String(255))
    """Where the agent joined from."""
    prepared_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    first_step_at: Mapped[datetime | None]
    notice_at: Mapped[datetime | None]
    deadline_at: Mapped[datetime | None]
    notice_fits: Mapped[bool | None]
    step_at_notice: Mapped[int | None] = mapped_column(Whole)
    last_step: Mapped[int | None] = mapped_column(Whole)
    last_step_at: Mapped[datetime | None]
    exit_code: Mapped[int | None]
    exit_signal: Mapped[int | None]
    reason: Mapped[str | None] = mapped_column(String(24))
    """Why its process ended, by the agent's own report."""
    unprotected: Mapped[dict[str, Any] | None]
    """`cause`, `reason` and `since`, while nothing protects its work."""
    idle: Mapped[dict[str, Any] | None]
    """`reason` and `since`, while its process uses next to nothing of the GPU or CPU."""
    attempt: Mapped[Attempt] = relationship(back_populates="places")


class VmRow(Base):
    __tablename__ = "vms"
    __table_args__ = (
        Index(
            "ix_vms_not_ended",  # those alive in a region, however many there were before
            *("cloud", "region", "vm_type", "spot", "zone", "running_at"),
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index(
            "ix_vms_at_risk",  # few, however many VMs there were
            *("cloud", "region", "vm_type", "spot", "at_risk_at"),
            sqlite_where=text("at_risk_at IS NOT NULL"),
            postgresql_where=text("at_risk_at IS NOT NULL"),
        ),
        Index("ix_vms_requested_at_id", "requested_at", "id"),
        Index("ix_vms_state_requested_at_id", "state", "requested_at", "id"),
        Index("ix_vms_job_id_requested_at_id", "job_id", "requested_at", "id"),
        one_of("dialect", Dialect),
        one_of("state", VmState),
        one_of("reason", VmReason),
        one_of("refusal", REFUSALS),
    )
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    token: Mapped[str] = mapped_column(String(64), unique=True)
    """Client token of the launch, committed before the cloud is called (I3)."""
    cloud_id: Mapped[str | None] = mapped_column(String(128))
    cloud: Mapped[str] = mapped_column(String(32), index=True)
    region: Mapped[str] = mapped_column(String(64))
    zone: Mapped[str] = mapped_column(String(64))
    vm_type: Mapped[str] = mapped_column(String(64))
    spot: Mapped[bool]
    dialect: Mapped[str] = mapped_column(String(16))
    grace_s: Mapped[float]
    price: Mapped[float]
    on_demand_price: Mapped[float]
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str | None] = mapped_column(String(24))
    detail: Mapped[str] = mapped_column(Text, default="")
    hint: Mapped[str] = mapped_column(Text, default="", server_default="")
    """What somebody has to do about it, such as when its cloud is not configured any more."""
    refusal: Mapped[str | None] = mapped_column(String(24))
    """The `clouds.base` error that refused its launch, one of `REFUSALS`. Such a row stays until
    its place has another VM; how many there were is in `refusals`."""
    requested_at: Mapped[datetime]
    launched_at: Mapped[datetime | None]
    running_at: Mapped[datetime | None]
    joined_at: Mapped[datetime | None]
    last_contact_at: Mapped[datetime | None]
    suspect_at: Mapped[datetime | None]
    notice_at: Mapped[datetime | None]
    deadline_at: Mapped[datetime | None]
    """Of the notice: announced, or the notice plus the promised grace period."""
    at_risk_at: Mapped[datetime | None]
    """Since then its cloud recommends to leave it."""
    ended_at: Mapped[datetime | None]
    join_hash: Mapped[str | None] = mapped_column(String(64), index=True)
    """SHA-256 of the one-time join token; null once used."""
    session_hash: Mapped[str | None] = mapped_column(String(64), unique=True)
    protocol: Mapped[int | None]
    """The version that its agent is spoken to in, agreed on at the join; null: the oldest."""
    acked_seq: Mapped[int] = mapped_column(Whole, default=0)
    boot: Mapped[str | None] = mapped_column(Text)
    """JSON: the agent's configuration, without its token, and the zips that its user data names
    (`loops.booting`). Null where the VM boots none."""
    user_data_sha256: Mapped[str | None] = mapped_column(String(64))
    """Of the script that the launch says."""
    lease_token: Mapped[str | None] = mapped_column(String(64))
    """Of whoever calls the cloud about it now (`store.leases`)."""
    lease_until: Mapped[datetime | None]
    """When that lease ends, or, without one, when the newest call was over."""


class Refusal(Base):
    """How often one pool refused launches of one job, and when it is asked again."""

    __tablename__ = "refusals"
    __table_args__ = (
        UniqueConstraint("job_id", "cloud", "region", "zone", "vm_type", "spot"),
        one_of("error", REFUSALS),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    cloud: Mapped[str] = mapped_column(String(32))
    region: Mapped[str] = mapped_column(String(64))
    zone: Mapped[str] = mapped_column(String(64))
    vm_type: Mapped[str] = mapped_column(String(64))
    spot: Mapped[bool]
    count: Mapped[int]
    in_row: Mapped[int]
    """Since the pool last gave a VM; feeds the back-off."""
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]
    until: Mapped[datetime | None]
    """Closed for this job; None: open, or what refused was more than the pool (`backoffs`)."""
    error: Mapped[str] = mapped_column(String(24))
    code: Mapped[str | None] = mapped_column(String(128))
    """The provider's own name for it."""
    detail: Mapped[str] = mapped_column(Text, default="")


class BackOffRow(Base):
    """A zone, region or account of a cloud that refused: left alone by the jobs of all masters."""

    __tablename__ = "backoffs"
    __table_args__ = (one_of("scope", Scope), one_of("error", REFUSALS))
    cloud: Mapped[str] = mapped_column(String(32), primary_key=True)
    scope: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(160), primary_key=True)
    """As `core.refusals.name_of` makes it; empty for an account."""
    until: Mapped[datetime]
    refusals: Mapped[int]
    """In a row; feeds the back-off."""
    last_at: Mapped[datetime]
    error: Mapped[str] = mapped_column(String(24))
    code: Mapped[str | None] = mapped_column(String(128))
    detail: Mapped[str] = mapped_column(Text, default="")


class Stray(Base):
    """A VM with our tag that no row owns, as the sweep last saw it."""

    __tablename__ = "strays"
    cloud: Mapped[str] = mapped_column(String(32), primary_key=True)
    cloud_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    region: Mapped[str] = mapped_column(String(64))
    zone: Mapped[str] = mapped_column(String(64))
    vm_type: Mapped[str] = mapped_column(String(64))
    spot: Mapped[bool]
    launched_at: Mapped[datetime]
    found_at: Mapped[datetime]
    held: Mapped[str] = mapped_column(Text, default="")
    """Why it is not ended; empty: it is."""
    end_wanted_at: Mapped[datetime | None]
    """When an admin said that it goes, whatever speaks against it."""
    failures: Mapped[int] = mapped_column(default=0)
    """In a row, of asking for its end; feeds the back-off."""
    next_at: Mapped[datetime | None]
    """Not asked again before this moment."""
    error: Mapped[str] = mapped_column(Text, default="")
    """What the cloud answered last."""

    def may_end(self, now: datetime) -> bool:
        allowed = not self.held or self.end_wanted_at is not None
        return allowed and (self.next_at is None or self.next_at <= now)


class Summary(Base):
    """What a list shows of a job, so that it reads no attempts, VMs, metrics or events of it.

    Written by `store/summaries` alone, in the transaction that changes what it is made of. What
    changes with every sync is not in it: the newest step, step time and metrics are in the rows
    that the sync writes anyway. A job that never had an attempt has no row.
    """

    __tablename__ = "summaries"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(default=0)
    """Number of the one that trains, or else of the newest."""
    vm_id: Mapped[str | None] = mapped_column(String(64))
    pool: Mapped[dict[str, Any] | None]
    starting: Mapped[bool] = mapped_column(default=False)
    unprotected: Mapped[dict[str, Any] | None]
    preemptions: Mapped[int] = mapped_column(default=0)
    saves: Mapped[dict[str, Any]] = mapped_column(default=dict)
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The newest of all attempts before `ran_id`."""
    ran_id: Mapped[int | None] = mapped_column(BigId)
    """The newest attempt that has a step."""
    cost: Mapped[float] = mapped_column(default=0.0)
    """USD at `cost_at`, or for good where no VM runs."""
    cost_at: Mapped[datetime | None]
    rate: Mapped[float] = mapped_column(default=0.0)
    """USD an hour of what runs."""
    useful: Mapped[float] = mapped_column(default=0.0)
    """USD on demand of the useful steps before `ran_id`."""
    start: Mapped[float] = mapped_column(default=0.0)
    """USD on demand of one start."""
    ran_rate: Mapped[float] = mapped_column(default=0.0)
    """USD a second on demand of the VMs of `ran_id`."""
    any_spot: Mapped[bool] = mapped_column(default=False)


class Checkpoint(Base):
    """A copy of what the chain in storage says; the chain is the truth (I1)."""

    __tablename__ = "checkpoints"
    __table_args__ = (
        UniqueConstraint("job_id", "n"),
        Index("ix_checkpoints_job_id_attempt_n", "job_id", "attempt", "n"),
        Index("ix_checkpoints_job_id_kind_n", "job_id", "kind", "n"),
        one_of("kind", SaveKind),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt: Mapped[int]
    n: Mapped[int] = mapped_column(Whole)
    step: Mapped[int] = mapped_column(Whole)
    kind: Mapped[str] = mapped_column(String(16))
    bytes: Mapped[int] = mapped_column(BigInteger)
    delta_s: Mapped[float]
    beta_s: Mapped[float]
    since_notice_s: Mapped[float | None]
    committed_at: Mapped[datetime]


class Event(Base):
    """The one event log: written in the same transaction as the change it tells of."""

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_job_id_id", "job_id", "id"),
        Index("ix_events_job_id_kind_id", "job_id", "kind", "id"),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    at: Mapped[datetime]
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    vm_id: Mapped[str | None] = mapped_column(ForeignKey("vms.id"))
    attempt: Mapped[int | None]
    kind: Mapped[str] = mapped_column(String(32))
    text: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)


class Metric(Base):
    __tablename__ = "metrics"
    __table_args__ = (Index("ix_metrics_job_name_step", "job_id", "name", "step"),)
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt: Mapped[int]
    step: Mapped[int] = mapped_column(Whole)
    name: Mapped[str] = mapped_column(String(64))
    value: Mapped[float]
    at: Mapped[datetime]


class Observation(Base):
    """One measured figure of a pool: a life, an allocation, a preparation, a save, a step.

    `kind` is one of `OBSERVATIONS`. Lives carry whether
    they are censored and the evidence of their end (I7); emergencies carry 1 when the save became
    durable in time and 0 when not.
    """

    __tablename__ = "observations"
    __table_args__ = (
        Index("ix_observations_region_at", *("kind", *REGION, "at")),
        Index("ix_observations_job_id_kind", "job_id", "kind"),
        UniqueConstraint("kind", "vm_id", "attempt", "n"),
        one_of("kind", OBSERVATIONS),
        one_of("evidence", _EVIDENCE),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    cloud: Mapped[str] = mapped_column(String(32))
    region: Mapped[str] = mapped_column(String(64))
    zone: Mapped[str] = mapped_column(String(64))
    vm_type: Mapped[str] = mapped_column(String(64))
    spot: Mapped[bool]
    value: Mapped[float]
    censored: Mapped[bool] = mapped_column(default=False)
    evidence: Mapped[str] = mapped_column(String(24), default="")
    job_id: Mapped[str | None] = mapped_column(String(80))
    vm_id: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int] = mapped_column(default=0)
    n: Mapped[int] = mapped_column(Whole, default=0)
    """Chain number for saves and backups: makes a replay harmless."""
    at: Mapped[datetime]


class ZoneSum(Base):
    """The observations of one kind in one zone, added up as they were written: reading them costs
    the same after a year, and old rows may go. Kinds: `SUMMED_BY_ZONE`."""

    __tablename__ = "zone_sums"
    __table_args__ = (one_of("kind", SUMMED_BY_ZONE), one_of("evidence", _EVIDENCE))
    cloud: Mapped[str] = mapped_column(String(32), primary_key=True)
    region: Mapped[str] = mapped_column(String(64), primary_key=True)
    vm_type: Mapped[str] = mapped_column(String(64), primary_key=True)
    spot: Mapped[bool] = mapped_column(primary_key=True)
    zone: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    censored: Mapped[bool] = mapped_column(primary_key=True)
    evidence: Mapped[str] = mapped_column(String(24), primary_key=True)
    count: Mapped[int]
    total: Mapped[float]
    newest_at: Mapped[datetime]


class JobSum(Base):
    """The same of one job. Kinds: `SUMMED_BY_JOB`."""

    __tablename__ = "job_sums"
    __table_args__ = (one_of("kind", SUMMED_BY_JOB),)
    job_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    censored: Mapped[bool] = mapped_column(primary_key=True)
    count: Mapped[int]
    total: Mapped[float]


class Injection(Base):
    """Planned preemptions of one job, or of one VM of it, for tests. One at a time a job."""

    __tablename__ = "injections"
    __table_args__ = (
        Index(
            "uq_injections_one_under_way",
            "job_id",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    vm_id: Mapped[str | None] = mapped_column(ForeignKey("vms.id"))
    """Only this VM; None is whichever trains."""
    plan: Mapped[dict[str, Any]]
    """The `wire.InjectRequest`."""
    started_at: Mapped[datetime]
    done: Mapped[int] = mapped_column(default=0)
    """Preemptions so far."""
    last_vm_id: Mapped[str | None] = mapped_column(String(64))
    """The newest VM that was taken: not taken twice while its notice is on the way to us."""
    claimed_until: Mapped[datetime | None]
    """A master is calling the cloud; after this another call may be made."""
    ended_at: Mapped[datetime | None]
    reason: Mapped[str] = mapped_column(Text, default="")


class Price(Base):
    __tablename__ = "prices"
    __table_args__ = (Index("ix_prices_pool_at", "cloud", "zone", "vm_type", "spot", "at"),)
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    cloud: Mapped[str] = mapped_column(String(32))
    region: Mapped[str] = mapped_column(String(64))
    zone: Mapped[str] = mapped_column(String(64))
    vm_type: Mapped[str] = mapped_column(String(64))
    spot: Mapped[bool]
    price: Mapped[float]
    at: Mapped[datetime]
