"""Code bundles: content-addressed files `bundles/<sha256>`.

Published atomically: written aside under a name of its own, verified, synced, renamed. A name that
exists is complete, and two uploads of one bundle at the same time are harmless.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from sqlalchemy.orm import Session

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BundleError(Exception):
    """Base of the errors below."""


class BadBundleName(BundleError):
    """Not a SHA-256 in lower-case hexadecimal."""


class BundleTooLarge(BundleError):
    """More bytes than the master accepts."""


class BundleMismatch(BundleError):
    """The bytes that came have another SHA-256 than the name says."""


class Upload:
    """One upload under way: `write` chunks, then `finish`; leaving without it drops everything."""

    def __init__(self, folder: Path, sha256: str, limit: int) -> None:
        self._target = folder / sha256
        self._aside = folder / f".{sha256}.{secrets.token_hex(4)}"
        self._sha256 = sha256
        self._limit = limit
        self._size = 0
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Upload:
        self._file = self._aside.open("xb")
        return self

    def write(self, chunk: bytes) -> None:
        """Raises `BundleTooLarge` at the first byte over the limit."""
        assert self._file is not None
        self._size += len(chunk)
        if self._size > self._limit:
            raise BundleTooLarge(f"bundle {self._sha256[:12]} has more than {self._limit} bytes")
        self._hash.update(chunk)
        self._file.write(chunk)

    def finish(self) -> None:
        """Verify and publish. Raises `BundleMismatch`."""
        assert self._file is not None
        if self._hash.hexdigest() != self._sha256:
            raise BundleMismatch(
                f"the {self._size} bytes received have SHA-256 {self._hash.hexdigest()}, "
                f"the name says {self._sha256}"
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._publish(self._aside, self._target, self._size)

    def _publish(self, aside: Path, target: Path, size: int) -> None:
        aside.replace(target)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._aside.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class BundleFile:
    """One file, and when it was uploaded or asked for last."""

    bytes: int
    used_at: datetime


class BundleStore(ABC):
    """All bundles of an installation: in a folder (`Bundles`), or a bucket (`bucket_bundles`)."""

    @abstractmethod
    def path(self, sha256: str) -> Path | None:
        """The file of a bundle, or None. Raises `BadBundleName`."""

    @abstractmethod
    def use(self, sha256: str) -> bool:
        """Whether it is there; if so it stays for a while, because whoever asks may be about to
        submit a job that needs it. Raises `BadBundleName`."""

    @abstractmethod
    def files(self) -> dict[str, BundleFile]:
        """By SHA-256; uploads that nobody finished count too, under their own names."""

    @abstractmethod
    def remove(self, session: Session, name: str, known: BundleFile) -> bool:
        """One of `files`, as it was there; not if somebody used it meanwhile. It goes for good with
        the commit, or with `tidy` after that."""

    @abstractmethod
    def bytes_of(self, names: Iterable[str]) -> int:
        """Of those of these that are there."""

    @abstractmethod
    def upload(self, sha256: str, *, most: int | None = None) -> Upload:
        """Of `most` bytes, where that is less than the limit of all. Raises `BadBundleName`."""

    def tidy(self) -> None:
        """Drop what nothing names any more."""
        return


class Bundles(BundleStore):
    """In a folder, which several masters may share."""

    def __init__(self, folder: Path, *, limit: int) -> None:
        """`limit`: bytes of one bundle. Makes the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._limit = limit

    def path(self, sha256: str) -> Path | None:
        path = self._folder / checked(sha256)
        return path if path.is_file() else None

    def use(self, sha256: str) -> bool:
        path = self.path(sha256)
        if path is None:
            return False
        try:
            os.utime(path)
        except FileNotFoundError:  # removed at this moment
            return False
        return True

    def files(self) -> dict[str, BundleFile]:
        """By SHA-256; uploads that nobody finished count too, under their own names. What is no
        file is none of ours, such as a file system's `lost+found`."""
        found: dict[str, BundleFile] = {}
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # renamed or removed at this moment
                if path.is_file():
                    found[path.name] = _file(path)
        return found

    def remove(self, session: Session, name: str, known: BundleFile) -> bool:
        path = self._folder / name
        try:
            if _file(path) != known:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def bytes_of(self, names: Iterable[str]) -> int:
        total = 0
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (self._folder / checked(name)).stat().st_size
        return total

    def upload(self, sha256: str, *, most: int | None = None) -> Upload:
        limit = self._limit if most is None else min(most, self._limit)
        return Upload(self._folder, checked(sha256), limit)


def _file(path: Path) -> BundleFile:
    known = path.stat()
    used_at = datetime.fromtimestamp(known.st_mtime, timezone.utc)
    return BundleFile(bytes=known.st_size, used_at=used_at)


def checked(sha256: str) -> str:
    """Raises `BadBundleName`."""
    if not _SHA256.fullmatch(sha256):
        raise BadBundleName(f"{sha256[:80]!r} is no SHA-256 in lower-case hexadecimal")
    return sha256
