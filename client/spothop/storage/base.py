"""The interface to object storage. Keys are `/`-separated, without `.` and `..` segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MIB = 1 << 20
Block = bytes | memoryview
OnBytes = Callable[[int], None]
"""Called with the bytes transferred since the last call; from any thread."""


@dataclass(frozen=True)
class ObjectInfo:
    """One listed object; `size` in bytes."""

    key: str
    size: int


@dataclass(frozen=True)
class Fetched:
    """What was copied, and how large the object is: more than was asked for, or less."""

    sha256: str
    size: int


class ObjectStore(Protocol):
    """A bucket, or a prefix of one.

    Every method raises the errors of `spothop.storage.errors` only. When a write returns, the
    object survives a crash of this machine. No reader ever sees a part of an object.
    """

    @property
    def url(self) -> str:
        """For messages; holds no secret."""

    def create(self, key: str, data: bytes) -> None:
        """Write a small object that must not exist; `ObjectExists` when it does.

        After any other error the object may or may not have been written.
        """

    def put(self, key: str, data: bytes) -> None:
        """Write a small object, over an old one if there is one."""

    def send(self, key: str, file: Path, *, size: int, on_bytes: OnBytes) -> str:
        """Write the first `size` bytes of `file`, over an old object too; return their SHA-256.

        A file that is shorter makes a shorter object. OSErrors of the file itself pass through as
        `SourceChanged`.
        """

    def get(self, key: str) -> bytes:
        """A small object, whole. `ObjectMissing` when there is none."""

    def size(self, key: str) -> int:
        """Size in bytes. `ObjectMissing` when there is none."""

    def fetch(
        self, key: str, file: Path, *, size: int, on_bytes: OnBytes, sync: bool = True
    ) -> Fetched:
        """Copy the first `size` bytes into a new file, synced or not, in one request where `size`
        is small.

        OSErrors of the new file (it exists, the disk is full) pass through unchanged.
        """

    def scan(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below the folder `prefix` with keys greater than `after`, in any order."""

    def folders(self, prefix: str) -> list[str]:
        """Names (not keys) of the folders directly below the folder `prefix`, sorted."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects in bulk; those that are missing are no error."""

    def discard_partial(self, prefix: str) -> None:
        """Remove what killed writes left below the folder `prefix`, where a store can list it."""
