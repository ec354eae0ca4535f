"""The model of a job: the keys of the job file, their types, limits and defaults.

Durations are `timedelta`s here and text (`1h30m`) in the file and on the wire. Master and client
both read a spec through `spothop.jobfile.parse`, which turns what is wrong into readable problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import InitErrorDetails

from spothop.durations import PATTERN, format_duration
from spothop.jobfields import Duration, Section, Size, Text, checked_text, duration, inside, refuse
from spothop.jobresources import PoolChoice, ResourcesSpec
from spothop.jobsetup import SetupCacheOrOff, SetupCacheSection
from spothop.jobstorage import (
    ACCEPTED,
    URL,
    StorageOrUrl,
    StorageSection,
    StorageUrl,
    checked_url,
    no_secret_in,
)
from spothop.wire import Alarm

MAX_TEXT_BYTES = 100_000
"""Of a script, and of one variable with its name: Linux starts no program with an argument or
variable of more than 128 KiB (MAX_ARG_STRLEN), and the agent adds a little."""
MAX_ENV_BYTES = 500_000
"""Of all variables together: arguments and environment share a quarter of the stack's 8 MiB."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def _hang_after(value: object) -> object:
    """A duration, or `off`, which YAML reads as false."""
    return "off" if value is False or value == "off" else duration(value)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise refuse(
            "is not a job name",
            "use 1 to 48 lower-case letters, digits and hyphens, such as mnist-small",
        )
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise refuse("is empty", "write the command, such as: python train.py")
    return text


def _script(text: str) -> str:
    if (size := len(text.encode())) > MAX_TEXT_BYTES:
        raise refuse(
            f"has {size:,} bytes, more than {MAX_TEXT_BYTES:,}",
            "put it into a file of the code directory, and run that",
        )
    return text


def _env(variables: dict[str, str]) -> dict[str, str]:
    sizes = {name: len(f"{name}={value}".encode()) for name, value in variables.items()}
    hint = "put it into a file of the code directory, and read that"
    too_long = [
        InitErrorDetails(
            type=refuse(f"has {size:,} bytes with its name, more than {MAX_TEXT_BYTES:,}", hint),
            loc=(name,),
            input=variables[name],
        )
        for name, size in sizes.items()
        if size > MAX_TEXT_BYTES
    ]
    if too_long:
        raise ValidationError.from_exception_data("env", too_long)
    if (total := sum(sizes.values())) > MAX_ENV_BYTES:
        fact = f"has {total:,} bytes in {len(sizes)} variables, more than {MAX_ENV_BYTES:,}"
        raise refuse(fact, hint)
    return variables


def _env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise refuse(
            "is not a variable name", "use letters, digits and underscores, no digit first"
        )
    if name.startswith("SPOTHOP_"):
        raise refuse("is set by spothop itself", "choose a name that does not begin with SPOTHOP_")
    return name


def _env_value(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise refuse("is not text", 'put it in quotes, such as "true"')
    return value


def _source(text: str, info: ValidationInfo) -> str:
    if text.startswith("job:") and not text.startswith("job://"):
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,80}", text[len("job:") :]):
            raise refuse("names no job", "write job: and the job's id, such as job:mnist-3f2a")
        return text
    if not URL.fullmatch(text):
        raise refuse("is neither a URL nor a job", "write s3://bucket/path or job:<id>")
    return no_secret_in(checked_url(text), info)


Script = Annotated[Text, AfterValidator(_script)]
EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[str, BeforeValidator(_env_value), AfterValidator(checked_text)]
HangAfter = Annotated[
    timedelta | Literal["off"],
    BeforeValidator(_hang_after),
    PlainSerializer(lambda v: v if v == "off" else format_duration(v), return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "off"},
                {"type": "string", "pattern": f"^{PATTERN.pattern}$", "minLength": 2},
            ]
        }
    ),
]
DataFolder = Annotated[Text, AfterValidator(inside)]

# --- the model ----------------------------------------------------------------------------------


def _include(pattern: str) -> str:
    """A pattern as in a `.gitignore`; `spothop.sdk.codefiles` reads it."""
    if not pattern.strip() or "\n" in pattern:
        raise refuse("is no pattern", "write one in each item, such as data/vocab.json")
    if pattern.startswith(("!", "#")):
        hint = f"leave the {pattern[0]} out; for a name that begins with it write \\{pattern[0]}"
        raise refuse(f"begins with {pattern[0]}, which includes nothing", hint)
    parts = pattern.rstrip("/ ").split("/")
    if parts[-1] in ("", ".", "\\") or ".." in parts or parts[0] == ".":
        hint = "write it relative to the code directory, such as data/vocab.json or *.bin"
        raise refuse("names nothing below the code directory", hint)
    return pattern


class CodeSection(Section):
    """What is packed and sent to the VMs."""

    path: Text = Field(
        ".", min_length=1, description="code directory, relative to the job file", examples=["."]
    )
    include: tuple[Annotated[Text, AfterValidator(_include)], ...] = Field(
        (),
        description="patterns, as in a .gitignore, of what goes in although one leaves it out",
        examples=["[data/vocab.json]"],
    )


def _code(value: object) -> object:
    """A plain path is one without patterns; what is wrong with it is told of the key itself."""
    if not isinstance(value, str):
        return value
    if not value:
        raise refuse("is empty", "write the code directory, relative to the job file: code: .")
    return {"path": checked_text(value)}


def _code_as_written(code: CodeSection) -> str | dict[str, Any]:
    return {"path": code.path, "include": list(code.include)} if code.include else code.path


CodeOrPath = Annotated[
    CodeSection,
    BeforeValidator(_code),
    PlainSerializer(_code_as_written),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "minLength": 1},
                        "include": {"type": "array", "items": {"type": "string"}},
                    },
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class CheckpointSpec(Section):
    storage: StorageOrUrl | None = Field(
        None,
        description="where checkpoints go, a URL or {url, options}, or a list of these, the first"
        " of which holds the chain; default: master's",
    )
    init_from: Annotated[Text, AfterValidator(_source)] | None = Field(
        None, description="an input checkpoint: a URL, or job:<id> for that job's newest one"
    )
    keep: int = Field(2, ge=1, strict=True, description="periodic checkpoints that stay")
    policy: Literal["none", "static", "thesis", "notice-aware"] = Field(
        "notice-aware", description="when insurance saves come; docs/checkpointing.md explains"
    )
    static_every: int | None = Field(
        None,
        ge=1,
        le=10**12,
        strict=True,
        validate_default=True,
        description="steps between insurance saves; with `policy: static` only",
        examples=[500],
    )

    min_interval: Duration = Field(
        timedelta(seconds=10),
        description="from a save to the next insurance save, at least; not with `policy: static`",
    )
    release_before: Duration = Field(
        timedelta(seconds=2),
        description="after a notice, once all is saved: so long before the deadline the cloud is"
        " told that it may take the VM (Azure); `1h`: as soon as all is saved",
    )
    unprotected_after: Duration = Field(
        timedelta(minutes=5),
        description="how long the script may train without what protects it before jobs shows that",
        examples=["10m"],
    )

    @field_validator("static_every")
    @classmethod
    def _with_static_only(cls, every: int | None, info: ValidationInfo) -> int | None:
        policy = info.data.get("policy")  # absent where it is wrong itself
        if policy == "static" and every is None:
            raise refuse("is missing", "policy static needs it: write the steps between saves")
        if policy not in (None, "static") and every is not None:
            raise refuse(f"means nothing with policy {policy}", "leave it out, or policy: static")
        return every

    @property
    def policy_name(self) -> str:
        """As `spothop.policy` takes it: `static:500`, `thesis`..."""
        return f"static:{self.static_every}" if self.policy == "static" else self.policy


class RetriesSpec(Section):
    """Failures in a row that are retried, by kind; a new checkpoint resets the counts."""

    user: int = Field(
        3, ge=0, strict=True, description="so many failures of the script are tried again"
    )
    infrastructure: int = Field(
        10, ge=0, strict=True, description="so many failures of VMs and services are tried again"
    )
    hang: int = Field(
        3, ge=0, strict=True, description="so many hangs are tried again; see hang_after"
    )


class LogsSpec(Section):
    max: Size = Field(
        100_000_000,
        ge=100_000,
        le=10**12,
        description="of an attempt's output on its VM's disk, the newest; 500KB, 100MB, 2GB",
        examples=["100MB"],
    )


class AlarmsSpec(Section):
    """Who hears of the job's alarms, beside the master's own webhook."""

    webhook: str = Field(
        "",
        max_length=2000,
        description="URL that is told when an alarm begins and when it is over; kept secret",
        examples=["https://hooks.example.com/spothop"],
    )
    secret: str = Field(
        "", max_length=500, description="signs what is told (docs/alarms.md); kept secret"
    )
    format: Literal["json", "slack"] = Field(
        "json", description="slack: a text that Slack, Mattermost and the like show"
    )
    mute: list[Alarm] = Field(
        default_factory=list, max_length=20, description="alarms of which nobody wants to hear"
    )

    @field_validator("webhook")
    @classmethod
    def _an_address(cls, url: str, info: ValidationInfo) -> str:
        accepted = info.context is ACCEPTED  # it may be masked
        if url and not accepted and not re.fullmatch(r"https?://[^\s/?#@]+(?:[/?][^\s]*)?", url):
            raise refuse(
                "is no address of a webhook", "write https://host/path, without a password"
            )
        return url

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("format", self.format), ("mute", self.mute)]


class JobSpec(Section):
    """One training job."""

    name: Annotated[str, AfterValidator(_name)] = Field(examples=["mnist-small"])
    code: CodeOrPath = Field(
        CodeSection(),
        description="code directory, relative to the job file: a path or {path, include}",
        examples=["."],
    )
    setup: Script = Field("", description="shell script before `run`, such as pip install")
    setup_cache: SetupCacheOrOff = Field(
        None,
        validate_default=False,
        description="folders that hold all that setup makes: kept in storage, and unpacked by the"
        " job's next VMs in place of running setup; or off, the default",
        examples=["[.venv]"],
    )
    run: Annotated[Script, AfterValidator(_not_blank)] = Field(
        description="shell script that trains", examples=["python train.py"]
    )
    image: Text | None = Field(
        None,
        min_length=1,
        description="what the VM boots, in the cloud's own words; default: the cloud's image for "
        "GPUs on VM types with one, its plain Ubuntu else",
        examples=["ami-0123456789abcdef0"],
    )
    env: Annotated[dict[EnvName, EnvValue], AfterValidator(_env)] = Field(
        default_factory=dict, examples=[{"EPOCHS": "3"}]
    )
    data: dict[DataFolder, StorageUrl] = Field(
        default_factory=dict,
        description="folder below data/ -> URL it is filled from",
        examples=[{"train": "s3://bucket/train"}],
    )
    checkpoint: CheckpointSpec = CheckpointSpec()
    resources: ResourcesSpec = ResourcesSpec()
    nodes: Literal[1] = Field(1, description="VMs of the job; only 1 works yet")
    retries: RetriesSpec = RetriesSpec()
    hang_after: HangAfter | None = Field(
        None,
        description="silence of the script (no step, save or metric) after which it is started "
        "again, or off; default: 10m and 20 times the longest one, from the first step on",
        examples=["30m"],
    )
    logs: LogsSpec = LogsSpec()
    alarms: AlarmsSpec = AlarmsSpec()
    max_duration: Duration | None = Field(
        None,
        description="from the submit on, through all attempts, without its pauses; the job saves "
        "and fails after it",
        examples=["2h"],
    )

    master_away: Duration | None = Field(
        None,
        description="a VM that hears nothing of its master for so long saves, and ends itself; "
        "default: as the installation says, a day",
        examples=["2h"],
    )

    @field_validator("setup_cache")
    @classmethod
    def _of_a_setup(
        cls, cache: SetupCacheSection | None, info: ValidationInfo
    ) -> SetupCacheSection | None:
        if cache is not None and not info.data.get("setup", "x").strip():
            raise refuse("means nothing without setup", "leave it out, or write setup")
        return cache

    def as_mapping(self) -> dict[str, Any]:
        """The JSON form that `parse` reads back to an equal spec."""
        return self.model_dump(mode="json")

    def as_written(self) -> dict[str, Any]:
        """The same, without what nobody has set. So an older master takes a job that needs none of
        the keys that it does not know; and the defaults are those of the master that runs the job.
        What stands in the file is sent even where it is our default: theirs may be another."""
        return self.model_dump(mode="json", exclude_unset=True)

    @classmethod
    def of_accepted(cls, mapping: Mapping[str, Any]) -> JobSpec:
        """A job that was accepted, perhaps by an earlier version, goes on: what may not stand in a
        URL any more is a reason to refuse a new job, not to leave the VMs of this one alone."""
        return cls.model_validate(mapping, context=ACCEPTED)


SECTIONS: Mapping[str, type[Section]] = {
    "": JobSpec,
    "code": CodeSection,
    "setup_cache": SetupCacheSection,
    "checkpoint": CheckpointSpec,
    "checkpoint.storage": StorageSection,
    "resources": ResourcesSpec,
    "resources.any_of": PoolChoice,
    "retries": RetriesSpec,
    "logs": LogsSpec,
    "alarms": AlarmsSpec,
}

NOT_YET: Mapping[str, tuple[str, ...]] = {
    "": ("python", "secrets", "deadline", "budget"),
}
"""Known keys, by section, whose feature does not work yet."""
