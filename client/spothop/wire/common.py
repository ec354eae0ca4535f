"""What the messages of both agents and users are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from spothop import storageoptions

OLDEST_PROTOCOL, PROTOCOL = 1, 2
"""Versions of the agent protocol that are spoken here. 1 is that of release 0.1.0; with 2 an
assignment may have every key that there is. A message says 1, which every peer takes, and a header
at the join says which ones the agent speaks (`wire.agent`)."""


class SaveKind(str, Enum):
    """Who wanted a save: the user, the policy, or a notice."""

    PERIODIC = "periodic"
    INSURANCE = "insurance"
    EMERGENCY = "emergency"


class Dialect(str, Enum):
    """Which cloud's metadata endpoint a VM has."""

    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"


class Strict(BaseModel):
    # no input in errors: it may hold the secrets of a storage
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Extended(Strict):
    """Peers refuse keys that they do not know. So what is newer than version 0.1.0 (`NEWER`) is
    left out where it says nothing: then an older peer reads the rest."""

    NEWER: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _for_older_peers(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        silent = {name for name in self.NEWER if found.get(name) == fields[name].default}
        return {name: value for name, value in found.items() if name not in silent}


PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# What reports hold. Numbers are bounded by what every database takes and refused beyond that;
# `strict`, because `false` is not 0 seconds. Text is never a reason to refuse: it is for people,
# so that it is cut, and what no database holds is replaced.

MAX_INTEGER = 2**63 - 1
MAX_SECONDS = 1e9
"""Some 30 years; dates can be reckoned with it."""
MAX_TEXT = 10_000
"""Characters."""
MAX_METRIC_NAME = 64
MAX_METRICS = 256
"""Names in one report of metrics."""

Whole = Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]
"""A step, a count, a number of bytes."""
Small = Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31)]
"""What an operating system numbers: processes, exits."""
Seconds = Annotated[float, Field(strict=True, ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
MetricName = Annotated[str, Field(pattern="^[^\\x00]*$", max_length=MAX_METRIC_NAME)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


def plain_text(text: str, most: int = MAX_TEXT) -> str:
    """At most so many characters, and none that UTF-8 or PostgreSQL's text lacks: lone surrogates
    and NUL are replaced."""
    if not text.isascii():
        text = text[: most + 1].encode("utf-8", "replace").decode()
    text = text.replace("\0", "\ufffd")
    return text if len(text) <= most else text[: most - 3] + "..."


def _fitting(value: Any) -> Any:
    return plain_text(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_fitting)]


ANY_ZONE = "any"
"""In place of a pool's zone: the cloud chooses one in the region."""


class Pool(Strict):
    """The unit of statistics and prices."""

    cloud: str
    region: str
    zone: str
    vm: str
    spot: bool = True

    def __str__(self) -> str:
        zone = f"{self.region}-{ANY_ZONE}" if self.zone == ANY_ZONE else self.zone
        return f"{self.cloud}/{zone}/{self.vm}/{'spot' if self.spot else 'on-demand'}"


class StorageSpec(Strict):
    url: str
    """Any URL of obstore; the chain lives under `jobs/<job>/` in it."""
    options: dict[str, str] = Field(default_factory=dict)
    """As obstore takes them. Secrets among them are for the agent alone: what users are shown is
    `masked()`, and neither `repr` nor `str` tells them."""

    def masked(self) -> StorageSpec:
        """As users may see it."""
        url, options = (
            storageoptions.without_password(self.url),
            storageoptions.masked(self.options),
        )
        return self.model_copy(update={"url": url, "options": options})

    def without_masked(self) -> StorageSpec:
        """Of a masked one what can be used: the address, without the credentials."""
        there = {k: v for k, v in self.options.items() if storageoptions.MASK not in v}
        return self.model_copy(update={"options": there})

    def at(self, url: str) -> StorageSpec:
        """Another URL with the options of this one, where they are of the same provider."""
        return spec_at([self], url)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("url", self.url), ("options", storageoptions.masked(self.options))]


def spec_at(specs: Sequence[StorageSpec], url: str) -> StorageSpec:
    """How to open `url` beside these stores: with the options of the one that has this URL, else of
    the first one of its provider, else with none."""
    for spec in specs:
        if spec.url == url:
            return spec
    provider = storageoptions.provider_of(url)
    same = [spec for spec in specs if storageoptions.provider_of(spec.url) == provider]
    return StorageSpec(url=url, options=same[0].options if same else {})


class Insurance(Strict):
    """When the next insurance save is due; replaces the one before."""

    at_step: int
    tau_s: float
    """The agent goes on from this after each save while the master is away."""
    reason: str


class Problem(BaseModel):
    """Body of every error answer: what is wrong, and what to do about it."""

    error: str
    """Stable machine-readable name, such as `no_such_job`."""
    message: str
    hint: str = ""
    field: str | None = None
