"""The master's settings: one frozen object, read once in ``program`` and passed on.

Every field can be set as ``SPOTHOP_MASTER_<FIELD>`` (upper case); options of the command line win
over that. All durations are seconds.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from spothop import storageoptions

PREFIX = "SPOTHOP_MASTER_"
FILES_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "memory")

CallsAtOnce = Annotated[int, Field(ge=1, le=256)]
MeanLife = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SettingsError(Exception):
    """A setting cannot be used; the message names the field, its value and the hint."""

    def __init__(self, field: str, value: object, problem: str, hint: str) -> None:
        super().__init__(f"{field} = {value!s}: {problem}; {hint}")
        self.field = field
        self.value = value
        self.hint = hint


class Retention(BaseModel):
    """What is kept for how long, and how much of it. What a job needs that has not ended is kept
    whatever these say. Ages in seconds, sizes in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every_s: float = Field(default=21_600, gt=0)
    """How often it is looked for what may go."""
    metrics_full_s: float = Field(default=86_400, gt=0)
    """Up to this age every value of a metric stays, then one in ten."""
    metrics_tenth_s: float = Field(default=2_592_000, gt=0)
    """From this age on one in a hundred: 30 days."""
    events_s: float = Field(default=2_592_000, gt=0)
    """Events of work that goes on (saves, phases, messages): 30 days. Changes of states stay."""
    observations_s: float = Field(default=2_592_000, gt=0)
    """Measured figures that are in the sums: 30 days, or longer while the statistics read them."""
    logs_s: float = Field(default=7_776_000, gt=0)
    """Logs of a job, from its end: 90 days."""
    logs_bytes: float = Field(default=20e9, gt=0)
    """Of all logs; beyond it those go first whose jobs ended first."""
    bundles_s: float = Field(default=2_592_000, gt=0)
    """Code bundles, from the end of the last job that used one, or its last upload: 30 days."""
    bundles_bytes: float = Field(default=20e9, gt=0)
    """Of all bundles; beyond it the ones that were used longest ago go first."""
    prices_s: float = Field(default=31_536_000, gt=0)
    """Prices as they were; the newest of each pool stays: a year."""
    refusals_s: float = Field(default=7_776_000, gt=0)
    """What pools refused to a job, from its end, and VMs that nobody owned in clouds that are not
    configured any more: 90 days."""
    jobs_s: float | None = Field(default=None, gt=0)
    """Whole jobs with all that is known of them, from their end. None: they stay."""


class Quota(BaseModel):
    """What one user may take of the master; None is no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: int | None = Field(default=None, ge=0)
    """That have not ended. A submit over it is refused."""
    vms: int | None = Field(default=None, ge=0)
    """At once. A job that needs one more waits."""
    bundle_bytes: int | None = Field(default=None, ge=0)
    """Of code bundles. An upload over it is refused."""
    log_bytes: int | None = Field(default=None, ge=0)
    """Of logs. The log that grows over it loses its oldest lines."""


class MasterSettings(BaseModel):
    """How one master runs. Durations in seconds, sizes in bytes, prices in USD an hour."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    home: Path
    """Database, logs, bundles, the admin token and the lock live here."""
    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs TLS, or `insecure_public`."""
    port: int = Field(default=8900, ge=1, le=65535)
    tls: Literal["off", "auto"] = "off"
    """`auto`: serve TLS with a certificate of an authority of our own, made at the first start."""
    tls_ca: Path | None = None
    """PEM file of who vouches for a proxy in front, if the VMs' system does not know it."""
    insecure_public: bool = False
    """Listen on an address that others can reach, without TLS of our own."""
    database_url: str = ""
    """SQLAlchemy URL; SQLite under `home` by default."""
    public_url: str = ""
    """Base URL at which users and VMs reach this master; `http://127.0.0.1:<port>` by default."""
    agents_port: int | None = Field(default=None, ge=1, le=65535)
    """A port for agents alone, with connections of their own: a crowd at `port` costs them none."""
    agents_url: str = ""
    """Base URL at which VMs reach it; by default `public_url`, with `agents_port` where there is
    one."""
    key_file: Path = Path()
    """The master key (`keys`); `<home>/master.key`, made at the first start, by default. Masters
    that share a database are given the same file."""
    files: Path = Path()
    """Folder of code bundles, logs and the agent's files; the home by default. Several masters are
    given one that all of them see, such as a network disk, or the URL of a place in a bucket
    (docs/several_masters.md)."""
    files_url: str = ""
    """That URL; set by `files` alone."""
    storage_url: str = ""
    """Where checkpoints go when the job file names no storage; `file://<home>/storage`."""
    storage_roots: tuple[Path, ...] = ()
    """Folders below which jobs may name `file://` places, separated by colons in the environment;
    `<home>/storage`, and that of `storage_url`, by default."""
    clouds: tuple[str, ...] = Field(default=("local",), min_length=1)
    """Those that this master works with: `local,aws`."""
    aws_cloud: Path | None = None
    """Configuration of the AWS cloud: its regions, images and networks (docs/aws.md)."""
    gcp_cloud: Path | None = None
    """Configuration of the GCP cloud: its project, regions and networks (docs/gcp.md)."""
    azure_cloud: Path | None = None
    """Configuration of the Azure cloud: its resource group and regions (docs/azure.md)."""
    local_cloud: Path | None = None
    """Configuration of the local cloud; a built-in one with three zones by default."""
    catalog: Path | None = None
    """VM types with sizes and on-demand prices that correct or complete the packaged catalogue
    (docs/resources.md)."""
    allow_shared_local_cloud: bool = False
    """Let other users than the first submit to a local cloud whose VMs run as the master's user:
    each of them can read all that this master can."""
    loops: bool = True
    """Look after jobs and clouds, too; a master without them only answers users and agents, and
    needs another one beside it (docs/several_masters.md)."""
    beside_url: str = ""
    """At which other masters of the same database reach this one; `public_url` by default."""
    owner: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,63}$")
    """Name of this installation in the tags of its VMs; made at the first start. Letters, digits
    and `_.-`, which every cloud takes in a tag and none takes for a pattern; for GCP capitals, `_`
    and `.` count as three characters of the 63."""

    sync_every_s: float = Field(default=5, gt=0)
    """How often an agent reports."""
    supervise_every_s: float = Field(default=0.5, gt=0)
    sweep_every_s: float = Field(default=15, gt=0)
    """How often the clouds' own listings are compared with our rows."""
    stray_share: float = Field(default=0.5, gt=0, le=1)
    """VMs of ours that no row owns are ended, unless they are this share of those that a cloud
    lists: then they are held until an admin says so."""
    strays_at_least: int = Field(default=3, ge=1)
    """Fewer than this are never held for their share."""
    prices_every_s: float = Field(default=60, gt=0)
    suspect_after_syncs: int = Field(default=3, ge=1)
    """Missed syncs before the cloud is asked about a VM."""
    silent_after_s: float = Field(default=60, gt=0)
    """Silence that ends a VM."""
    silent_together_s: float = Field(default=3600, gt=0)
    """The same while more than half of all VMs, five at least, are silent together: it is then
    more likely that nobody reaches the master."""
    join_timeout_s: float | None = Field(default=None, gt=0)
    """From the moment a VM runs to its agent's first call; what its cloud says by default, which is
    300 for the local one and 900 for AWS."""
    alarm_webhook: str = ""
    """Where alarms of all jobs are told (docs/alarms.md); nowhere by default."""
    alarm_webhook_secret: str = Field(default="", repr=False)
    """Signs them; not signed by default."""
    alarm_webhook_format: Literal["json", "slack"] = "json"
    """`slack`: a text that Slack, Mattermost and the like show."""
    alarm_private_targets: bool = False
    """Webhooks of users may be in private networks."""
    alarms_every_s: float = Field(default=15, gt=0)
    """How often it is looked for alarms, and what waits is told."""
    dead_man_s: float = Field(default=86_400, gt=0)
    """A VM that hears nothing of this master for so long saves, and ends itself."""
    fence_margin_s: float = Field(default=2, ge=0)
    """Kept after an old VM's deadline before the next attempt may fence."""
    stop_timeout_s: float = Field(default=30, gt=0)
    """From a stop directive to the termination of the VM, if no exit is reported."""
    stop_save_s: float = Field(default=900, ge=0)
    """Added to it where a pause or a cancel saves first; more where the saves before took more."""

    prior_mttp_s: MeanLife = Field(default=10800)
    """Mean time to preemption assumed where no life was seen."""
    prior_mttp_local_s: MeanLife = Field(default=20)
    """The same for the local cloud, whose preemptions are there to try things out."""
    prior_mttp_on_demand_s: MeanLife = Field(default=2_592_000)
    """The same for on-demand VMs: never preempted, but 30 days until a host fails."""
    prior_mttp_pools: dict[str, MeanLife] = Field(default_factory=dict)
    """Other ones by pattern of the pool's name: `aws/us-east-1?/p3.*/spot=7200,local/*=60`."""
    mttp_half_life_s: float = Field(default=86_400, gt=0, allow_inf_nan=False)
    """A life that ended so long ago counts half."""
    prior_restart_s: float = Field(default=120, gt=0)
    """Allocation plus preparation assumed where none was seen."""
    prior_save_s: float = Field(default=1, gt=0)
    prior_backup_s: float = Field(default=2, gt=0)
    prior_step_s: float = Field(default=1, gt=0)

    cloud_calls: dict[str, CallsAtOnce] = Field(default_factory=dict)
    """By cloud, how many launches may be under way there at the same time, and how many
    terminations, where what its driver says (16) is not right: `local=32,other=8`."""

    backoff_base_s: float = Field(default=1, gt=0)
    """First wait after a full round of refusals or a failure; doubles, with jitter."""
    backoff_max_s: float = Field(default=600, gt=0)

    avoid_s: float = Field(default=120, ge=0)
    """How long a zone that preempted, or a pool that refused, is tried last."""

    max_bundle_bytes: int = Field(default=256 * 1024**2, gt=0)
    max_reports_per_s: float = Field(default=1000, gt=0)
    """Of one VM, each value of a metric counted; 30 seconds' worth may come at once. Above it steps
    and metrics wait on their VM and are thinned there."""
    max_log_bytes_per_s: float = Field(default=10_000_000, gt=0)
    """Of one VM's log; 30 seconds' worth may come at once. What is above it waits on its VM."""
    max_syncs_per_s: float = Field(default=20, gt=0)
    """Of one VM, each 16 KiB of one counted; 30 seconds' worth may come at once. Above it answers
    are held back, but for those to what a job's fate depends on."""
    max_log_bytes: int = Field(default=1_000_000_000, ge=1_000_000)
    """Of each log, one a VM and attempt, that stay here: the newest."""
    max_body_bytes: int = Field(default=8 * 1024**2, gt=0)
    """Limit of every request but a bundle's."""

    retention: Retention = Field(default_factory=Retention)
    """From the environment as `name=number,name=number`, such as `logs_s=864000`."""

    quota: Quota = Field(default_factory=Quota)
    """Of each user who has none of their own; from the environment as `jobs=20,vms=8`."""

    chaos: str = ""
    """For tests of this program only: `<point>=kill`, see `chaos`; each strikes once per home."""

    @field_validator("prior_mttp_pools", mode="before")
    @classmethod
    def _patterns(cls, value: Any) -> Any:
        """From the environment it comes as text: `pattern=seconds`, separated by commas."""
        return _pairs(value, "write pattern=seconds,pattern=seconds, such as local/*=60")

    @field_validator("cloud_calls", mode="before")
    @classmethod
    def _counts(cls, value: Any) -> Any:
        """From the environment it comes as text: `cloud=count`, separated by commas."""
        return _pairs(value, "write cloud=count,cloud=count, such as local=16")

    def calls_at_once(self, cloud: str, otherwise: int) -> int:
        """Launches, or terminations, under way at this cloud at the same time."""
        return self.cloud_calls.get(cloud, otherwise)

    @field_validator("clouds", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    @field_validator("storage_roots", mode="before")
    @classmethod
    def _folders(cls, value: Any) -> Any:
        parts = value.split(":") if isinstance(value, str) else value
        folders = [Path(part).expanduser() for part in parts if str(part).strip()]
        for folder in folders:
            if not folder.is_absolute():
                raise ValueError(f"{folder} is no absolute path")
        return tuple(folders)

    @field_validator("retention", "quota", mode="before")
    @classmethod
    def _section(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        fields = (Quota if info.field_name == "quota" else Retention).model_fields
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        unknown = {name.strip() for name, _, _ in pairs} - set(fields)
        if unknown:
            known = ", ".join(fields)
            raise ValueError(f"no {sorted(unknown)[0]!r} in it; it has {known}")
        return {name.strip(): number.strip() for name, _, number in pairs}

    @model_validator(mode="before")
    @classmethod
    def _defaults_from_home(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not values.get("home"):
            return values
        home = Path(values["home"]).expanduser().absolute()
        filled = {**values, "home": home}
        filled["key_file"] = Path(values.get("key_file") or home / "master.key").expanduser()
        filled["files"], filled["files_url"] = _files(values.get("files"), home)
        filled["database_url"] = values.get("database_url") or f"sqlite:///{home}/master.db"
        filled["storage_url"] = values.get("storage_url") or f"file://{home}/storage"
        shared = storageoptions.folder_of(str(filled["storage_url"]))
        filled["storage_roots"] = values.get("storage_roots") or list(
            dict.fromkeys([f"{home}/storage", *([shared] if shared else [])])
        )
        scheme = "https" if values.get("tls") == "auto" else "http"
        filled["public_url"] = (
            values.get("public_url") or f"{scheme}://127.0.0.1:{values.get('port') or 8900}"
        ).rstrip("/")
        filled["beside_url"] = str(values.get("beside_url") or filled["public_url"]).rstrip("/")
        agents_url = values.get("agents_url") or _with_port(
            filled["public_url"], values.get("agents_port")
        )
        filled["agents_url"] = agents_url.rstrip("/")
        return filled


def _files(value: object, home: Path) -> tuple[Path, str]:
    """The folder, and the URL where it is a bucket; the folder then holds what is this master's
    alone. Raises ValueError."""
    text = str(value or home)
    if "://" not in text:
        return Path(text).expanduser().absolute(), ""
    folder = storageoptions.folder_of(text)
    if folder is not None:
        return Path(folder), ""
    if urlsplit(text).scheme not in FILES_SCHEMES:
        raise ValueError(
            "files: use a folder, s3://bucket/path, gs://bucket/path or file:///folder"
        )
    return home, text


def _with_port(url: str, port: object) -> str:
    """The same host at another port; None: as it is."""
    parts = urlsplit(url)
    if port is None or parts.hostname is None:
        return url
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts._replace(netloc=f"{host}:{port}").geturl()


def _pairs(value: Any, hint: str) -> Any:
    """`key=value,key=value` as a mapping; what is no text stays. Raises ValueError(hint)."""
    if not isinstance(value, str):
        return value
    pairs = [part.rpartition("=") for part in value.split(",") if part.strip()]
    if any(not key.strip() for key, _, _ in pairs):
        raise ValueError(hint)
    return {key.strip(): each.strip() for key, _, each in pairs}


def read_settings(environ: Mapping[str, str], options: Mapping[str, object]) -> MasterSettings:
    """Merge environment and options (None = not given). Raises `SettingsError`."""
    fields = MasterSettings.model_fields
    values: dict[str, object] = {"home": Path("~/.spothop/master")}
    for key, value in environ.items():
        if not key.startswith(PREFIX):
            continue
        name = key[len(PREFIX) :].lower()
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {PREFIX}{near[0].upper()}?" if near else "remove it"
            raise SettingsError(key, value, "is no setting of ours", hint)
        values[name] = value
    values.update({k: v for k, v in options.items() if v is not None})
    try:
        return MasterSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        hint = f"correct {PREFIX}{name.upper()}, or the option that sets it"
        raise SettingsError(name, first["input"], first["msg"].lower(), hint) from None
