"""What the sections of the job file are made of: text, durations, sizes, refusals."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from spothop.durations import PATTERN, NotADuration, format_duration, parse_duration

_SURROGATE = re.compile("[\ud800-\udfff]")
_SIZE = re.compile(r"([0-9]{1,9})(KB|MB|GB)", re.ASCII)
_UNIT_BYTES = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def refuse(fact: str, hint: str) -> PydanticCustomError:
    # The text travels as context: braces in it must not be read as a template.
    return PydanticCustomError("job_file", "{fact}", {"fact": fact, "hint": hint})


def duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(value)
    except NotADuration as error:
        raise refuse(error.fact, error.hint) from None


def _size(value: object) -> int:
    """Bytes, from text such as 100MB; an int is taken as it is: the wire has bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refuse("is not a size", "write a number with its unit: 500KB, 100MB, 2GB")
    return int(match[1]) * _UNIT_BYTES[match[2]]


def checked_text(text: str) -> str:
    if "\0" in text:
        raise refuse("holds a NUL character", "no command, path or variable may hold one")
    if not text.isascii() and _SURROGATE.search(text):
        raise refuse(
            "holds half of a surrogate pair, which is no character",
            "write the character itself, or as \\U and its eight digits",
        )
    return text


def inside(text: str) -> str:
    """A relative path that stays below where it starts."""
    path = PurePosixPath(text)
    if not text or path.is_absolute() or ".." in path.parts or str(path) == ".":
        raise refuse("is not a folder name", "use a relative path without .., such as train")
    return text


Duration = Annotated[
    timedelta,
    BeforeValidator(duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^{PATTERN.pattern}$", "minLength": 2}),
]
Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"type": ["string", "integer"], "pattern": f"^{_SIZE.pattern}$"}),
]
Text = Annotated[str, AfterValidator(checked_text)]


class Section(BaseModel):
    # no input in errors: it may hold the secrets of a storage
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, hide_input_in_errors=True)
