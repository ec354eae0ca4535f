"""What the configuration files of all clouds have in common, and what a cloud is made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from spothop.catalog.table import Catalogue, packaged
from spothop.figures import as_written


class ConfigError(Exception):
    """The configuration cannot be used; the message names file, field and value."""


class Strict(BaseModel):
    """A section of such a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, kw_only=True)
class CloudContext:
    """What a cloud is made from."""

    home: Path
    """The master's."""
    master_url: str
    """Where VMs reach it."""
    file: Path | None = None
    """The cloud's own configuration."""
    hidden: Iterable[Path] = ()
    """What no VM under another user sees, beside `home`; for a cloud whose VMs are here."""
    catalogue: Catalogue = field(default_factory=packaged)
    """What VM types there are, and what they cost on demand."""


Config = TypeVar("Config", bound=BaseModel)


def read(
    file: Path, model: type[Config], *, what: str, defaults: Mapping[str, Any] | None = None
) -> Config:
    """The YAML file as `model`; `what` is its name for people. Raises ConfigError."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{what} {file}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{what} {file}: expected keys and values, such as `{next(iter(model.model_fields))}:`"
        )
    try:
        return model.model_validate({**(defaults or {}), **content})
    except ValidationError as error:
        raise ConfigError(f"{what} {file}: {_describe(error)}") from error


def _describe(error: ValidationError) -> str:
    """Field, value and complaint of every mistake."""
    mistakes = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        value = "" if item["type"] == "missing" else f" (it is {as_written(item['input'])})"
        mistakes.append(f"{field}: {item['msg']}{value}")
    return "; ".join(mistakes)
