"""The interface to object storage. Keys are `/`-separated, without `.` and `..` segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
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
    etag: str = field(default="", compare=False)
    """Changes with the content; empty where the store tells none."""


@dataclass(frozen=True)
class Fetched:
    """What was copied, and how large the object is: more than was asked for, or less."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Piece:
    """A small file, or one part of a large one, in memory and on its way."""

    key: str
    data: bytes
    sha256: str
    """Of the file from its beginning to the end of this piece."""


def part_key(key: str, index: int) -> str:
    """Where the part `index` (from 0) of the file at `key` lies, when it is stored in parts. No
    object has the name `key` itself then."""
    return f"{key}/{index:06d}"


def parts_of(size: int, part: int) -> int:
    """In how many objects `size` bytes lie, of `part` bytes each; 1 where `part` is 0."""
    return max(1, -(-size // part)) if part else 1


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
        `SourceChanged` or `SourceUnreadable`.
        """

    def get(self, key: str) -> bytes:
        """A small object, whole. `ObjectMissing` when there is none."""

    def size(self, key: str) -> int:
        """Size in bytes. `ObjectMissing` when there is none."""

    def info(self, key: str) -> ObjectInfo:
        """Size and tag. `ObjectMissing` when there is none."""

    def part_size(self, size: int) -> int:
        """Bytes of each of the objects in which a file of `size` bytes is best stored, to be sent
        with `send_pieces`; 0: in one object, with `send`."""

    def send_pieces(
        self,
        pieces: Iterator[Piece],
        *,
        on_sent: Callable[[Piece], None],
        still_wanted: Callable[[], object],
        left_s: Callable[[], float | None],
    ) -> None:
        """Write objects, over old ones too, several at once; each is asked for when there is room.

        `on_sent` is called in the caller's thread when one is durable. `still_wanted` is called
        several times a second and may raise: that ends it, whatever hangs. `left_s` is the time
        to the announced end of this VM; None without a notice.
        """

    def fetch(
        self,
        key: str,
        file: Path,
        *,
        size: int,
        on_bytes: OnBytes,
        sync: bool = True,
        part: int = 0,
    ) -> Fetched:
        """Copy the first `size` bytes into a new file, synced or not, in one request where `size`
        is small. With `part`, what lies in objects of so many bytes below `key` (`part_key`).

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
