"""What names the parts of a kept environment: one small object, written last. Pure."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spothop.storage.base import MIB
from spothop_agent.environment.index import Damaged

PART = 4 * MIB
"""Bytes of the stream in a part. Several are in memory at once while they are unpacked; and
smaller ones would cost a request each."""
MOST_PART = 64 * MIB
Codec = Literal["zlib", "raw"]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Part(BaseModel):
    """One object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Sha256
    """Of the object as it lies in the store."""
    size: int = Field(ge=0, le=2 * MOST_PART)
    codec: Codec


class Manifest(BaseModel):
    """Of one environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    key: Sha256
    folder: str = Field(pattern="^[0-9]{1,12}-[0-9a-f]{16}$")
    """Below the folder of all parts; begins with the number of the attempt that made it."""
    folders: tuple[str, ...]
    part: int = Field(gt=0, le=MOST_PART)
    parts: tuple[Part, ...]
    index: Part
    size: int = Field(ge=0)
    """Bytes of all files."""
    files: int
    setup_s: float = Field(ge=0)
    """What `setup:` took."""
    made: float
    """Seconds since 1970."""

    @property
    def stored(self) -> int:
        """Bytes in the store."""
        return sum(part.size for part in self.parts) + self.index.size

    @property
    def attempt(self) -> int:
        return int(self.folder.partition("-")[0])

    def to_bytes(self) -> bytes:
        body = self.model_dump_json().encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Manifest:
        """Raises Damaged for anything but what `to_bytes` wrote for this key."""
        check, _, body = data.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != check:
            raise Damaged("its manifest does not match its SHA-256")
        try:
            found = cls.model_validate_json(body)
        except ValidationError as error:
            raise Damaged(f"its manifest cannot be read: {error.errors()[0]['msg']}") from error
        if found.key != key:
            raise Damaged("its manifest is that of another environment")
        return found
