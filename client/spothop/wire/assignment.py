"""One attempt of a job, as the master describes it to its VM."""

from __future__ import annotations

from pydantic import Field

from spothop.wire.common import PROTOCOL, Extended, StorageSpec, Strict


class PolicyParams(Extended):
    """What the agent's own decisions need, from the pool and the job."""

    NEWER = ("min_interval_s", "release_before_s")

    policy: str = "thesis"
    grace_s: float
    """The grace period that the pool promises."""
    margin_s: float = 0.5
    """Kept free before a deadline."""
    save_s: float | None = None
    """Delta of earlier attempts; None when none was measured."""
    backup_s: float | None = None
    step_s: float | None = None
    first_tau_s: float = 60.0
    """Interval until the first insurance directive arrives."""
    min_interval_s: float = 10.0
    """Least time from a save to the next insurance save, but for policy static."""
    release_before_s: float = 2.0
    """After a notice: so long before the deadline the cloud may be told, where it takes such a
    word, that it may take the VM."""


class PlacedStorage(Strict):
    """One of several storages, and where it lies; empty where that is not known."""

    storage: StorageSpec
    cloud: str = ""
    region: str = ""


class InitFrom(Extended):
    """An input checkpoint: the newest one of another job, or plain files at a URL."""

    NEWER = ("others",)

    storage: StorageSpec
    job: str | None = None
    others: list[StorageSpec] | None = None
    """Of that job, beside the one that holds its chain; None: none."""


class SetupCache(Strict):
    """What of the result of `setup:` is kept in storage for the job's next VMs."""

    folders: tuple[str, ...] = Field(min_length=1)
    """Below the job's directory."""
    max_bytes: int = Field(ge=0)
    """Of all files in them; what is larger is not kept."""
    image: str = ""
    """What the VM booted, where the job names it."""


class Assignment(Extended):
    """One attempt of one job, for one VM; which may have been started before its master was
    replaced, with an older agent."""

    NEWER = (
        *("log_max", "hang_after_s", "hangs", "unprotected_after_s", "ends_in_s", "wants_use"),
        *("stores", "cloud", "region"),
        "setup_cache",
    )

    job: str
    name: str
    attempt: int
    bundle: str
    """SHA-256 of the code bundle (a tar.gz), fetched from `/agent/v1/bundles/<sha256>`."""
    setup: str = ""
    """A shell script; its failure is the user's."""
    setup_cache: SetupCache | None = None
    """None: `setup:` runs on every VM."""
    run: str
    env: dict[str, str] = Field(default_factory=dict)
    data: dict[str, str] = Field(default_factory=dict)
    """Folder below `data/` of the job's directory -> storage URL."""
    storage: StorageSpec
    """Holds the chain."""
    stores: list[PlacedStorage] | None = None
    """All that may hold data, `storage` the first of them; None: `storage` alone."""
    cloud: str = ""
    region: str = ""
    """Where this VM is; told only where there are several `stores`."""
    init_from: InitFrom | None = None
    keep: int = 2
    """Periodic checkpoints that stay."""
    log_max: int = Field(100_000_000, ge=1)
    """Bytes of the attempt's log that stay on the VM's disk, the newest."""
    hang_after_s: float | None = Field(None, ge=0)
    """Silence of the process that is a hang; None: from what was measured; 0: never."""
    hangs: int = Field(0, ge=0)
    """Attempts before this one that ended with a hang, in a row."""
    unprotected_after_s: float = Field(300.0, gt=0)
    """How long the script may lack what protects it, before that is told."""
    ends_in_s: float | None = None
    """Until the job's `max_duration` is over; None without one."""
    wants_use: bool = False
    """The master understands reports of kind `use`."""
    fence_now: bool = False
    """No earlier attempt can still commit: fence without waiting for the directive."""
    resumes: bool = False
    """An earlier attempt wrote its fence: a storage without its folder is not mounted, not new."""
    policy: PolicyParams

    def spoken(self, protocol: int) -> Assignment:
        """As an agent of this version of the protocol reads it: without the keys that it would
        refuse, and with them the whole assignment."""
        if protocol >= PROTOCOL:
            return self
        began = self.init_from and self.init_from.model_copy(update={"others": None})
        several = {"stores": None, "cloud": "", "region": "", "init_from": began}
        later = {"ends_in_s": None, "wants_use": False, "setup_cache": None}
        return self.model_copy(update={**later, **several})
