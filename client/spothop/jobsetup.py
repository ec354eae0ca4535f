"""`setup_cache` in the job file: which folders `setup:` makes (docs/setup_cache.md)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from spothop.jobfields import Section, Size, Text, inside, refuse


def _made_by_setup(folder: str) -> str:
    """Not what others write meanwhile, and not the whole."""
    folder = str(PurePosixPath(inside(folder)))
    if PurePosixPath(folder).parts[0] in ("data", "outputs"):
        raise refuse("is not made by setup", "name a folder of its own, such as .venv")
    return folder


def _apart(folders: tuple[str, ...]) -> tuple[str, ...]:
    for folder in folders:
        if folders.count(folder) > 1:
            raise refuse(f"names {folder} twice", "name each folder once")
        for above in map(str, PurePosixPath(folder).parents):
            if above in folders:
                raise refuse(f"names {folder}, which lies in {above}", f"leave {folder} out")
    return folders


class SetupCacheSection(Section):
    """What `setup:` makes, kept in storage for the job's next VMs."""

    folders: Annotated[
        tuple[Annotated[Text, AfterValidator(_made_by_setup)], ...], AfterValidator(_apart)
    ] = Field(
        min_length=1,
        max_length=20,
        description="folders below the job's directory with all that setup makes",
        examples=["[.venv]"],
    )
    max: Size = Field(
        20_000_000_000,
        ge=1_000_000,
        le=10**12,
        description="of all files in them; what is larger is not kept",
        examples=["20GB"],
    )


def _setup_cache(value: object) -> object:
    """`off`, which YAML reads as false, or folders alone; what is wrong with them is told of the
    key itself."""
    if value is False or value == "off":
        return None
    if isinstance(value, str):
        raise refuse("is neither off nor a list of folders", "for example setup_cache: [.venv]")
    return {"folders": value} if isinstance(value, (list, tuple)) else value


def _setup_cache_as_written(cache: SetupCacheSection | None) -> str | dict[str, Any]:
    return "off" if cache is None else {"folders": list(cache.folders), "max": cache.max}


_FOLDERS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 20}
SetupCacheOrOff = Annotated[
    SetupCacheSection | None,
    BeforeValidator(_setup_cache),
    PlainSerializer(_setup_cache_as_written),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "off"},
                _FOLDERS,
                {
                    "type": "object",
                    "properties": {
                        "folders": _FOLDERS,
                        "max": {"type": ["string", "integer"]},
                    },
                    "required": ["folders"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
