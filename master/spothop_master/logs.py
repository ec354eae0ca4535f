"""Logs of places: files `logs/<job>/<attempt>-<node>.log`, written and read by byte offset.

Node 0 goes on in `<attempt>.log` where there is one: the release before knew one VM an attempt.

The agent sends chunks with the offset at which they begin. A chunk that begins beyond the end
leaves a gap and is refused (the answer is the expected offset); one that was written before is
skipped, so that resending is harmless.

Several masters may have the same folder: whoever appends holds a lock on the file (flock(2)). It is
not waited for, as a master that is stopped would hold it on: the agent sends the chunk again.

A log that is longer than its limit loses its beginning: that is given back to the disk as a hole
(fallocate(2)), so that all offsets stay what they were. Whoever reads there gets one line that says
how much is missing, and the offset behind the hole.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096
KEEP_SIZE, PUNCH_HOLE = 1, 2  # <linux/falloc.h>, Linux 2.6.38

_REMOVED = "removed"
"""The file in a job's folder that says why its logs are gone."""

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Bytes of a log and the offset after them."""

    data: bytes
    next_offset: int


class LogFull(Exception):
    """A log has reached its limit, and the file system cannot give its beginning back."""


class LogStore(ABC):
    """All logs that an installation keeps: in files (`Logs`), or in a bucket (`bucket_logs`)."""

    @abstractmethod
    def append(
        self,
        job: str,
        attempt: int,
        node: int = 0,
        *,
        offset: int,
        data: bytes,
        most: int | None = None,
    ) -> int:
        """Write what is new of a chunk; the offset at which the next one has to begin. The log may
        have `most` bytes, where that is less than the limit of all and the file system can give
        its beginning back. Raises LogFull; and OSError, when another master writes it now."""

    @abstractmethod
    def size(self, job: str, attempt: int, node: int = 0) -> int:
        """The offset after its last byte; 0 where there is none."""

    @abstractmethod
    def read(
        self, job: str, attempt: int, node: int = 0, *, offset: int, limit: int = 256 * 1024
    ) -> Piece:
        """At most `limit` bytes from `offset` on; a multi-byte character is never cut in two."""

    @abstractmethod
    def folders(self) -> dict[str, int]:
        """Bytes of each job's logs; 0 for those that were removed."""

    @abstractmethod
    def bytes_of(self, job: str) -> int:
        """Of all logs of a job, as far as they are kept."""

    @abstractmethod
    def remove(self, job: str, text: str) -> None:
        """All logs of a job; `text` is what is shown in their place."""

    @abstractmethod
    def forget(self, job: str) -> None:
        """All logs of a job that is deleted."""

    @abstractmethod
    def removed(self, job: str) -> str:
        """Why the logs of this job are gone, in words; empty while they are not."""

    def settle(self) -> None:
        """What can wait, now and then."""
        return

    def tail(
        self, job: str, attempt: int, node: int = 0, *, lines: int = 40, limit: int = 16 * 1024
    ) -> str:
        """The last lines, for people."""
        start = max(0, self.size(job, attempt, node) - limit)
        piece = self.read(job, attempt, node, offset=start, limit=limit)
        text = piece.data.decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-lines:])

    def newest_tail(self, job: str, attempts: Iterable[int]) -> str:
        """Of the newest attempt that wrote any, or why there is none any more."""
        tails = (self.tail(job, attempt) for attempt in sorted(attempts, reverse=True))
        return next((tail for tail in tails if tail), "") or self.removed(job)


def not_kept(offset: int, there: int) -> Piece:
    """What is told where a log has lost its beginning; it goes on at `there`."""
    line = f"spothop: {there - offset} bytes of output are not kept any more\n"
    return Piece(data=line.encode(), next_offset=there)


class Logs(LogStore):
    """All logs that this master keeps, at most `limit` bytes of each, the newest."""

    def __init__(
        self,
        folder: Path,
        *,
        limit: int = 1_000_000_000,
        on_append: Callable[[str], None] = lambda job: None,
    ) -> None:
        """`on_append` hears which job's log has grown; it must be quick and never raise."""
        folder.mkdir(parents=True, exist_ok=True)
        self._on_append = on_append
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()

    def append(
        self,
        job: str,
        attempt: int,
        node: int = 0,
        *,
        offset: int,
        data: bytes,
        most: int | None = None,
    ) -> int:
        limit = self._limit if most is None else min(most, self._limit)
        path = self._path(job, attempt, node)
        with self._lock:
            path.parent.mkdir(exist_ok=True)
            size = self.size(job, attempt, node)
            if offset > size:
                return size
            new = data[size - offset :]
            if new:
                with path.open("ab") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if (size := os.fstat(file.fileno()).st_size) < offset:
                        return size
                    new = data[size - offset :]
                    fits = _trim(file.fileno(), limit - len(new))
                    if not fits and size + len(new) > self._limit:
                        raise LogFull(f"the log has {size} bytes; {self._limit} are the most")
                    file.write(new)
        if new:
            self._on_append(job)
        return size + len(new)

    def size(self, job: str, attempt: int, node: int = 0) -> int:
        try:
            return self._path(job, attempt, node).stat().st_size
        except FileNotFoundError:
            return 0

    def read(
        self, job: str, attempt: int, node: int = 0, *, offset: int, limit: int = 256 * 1024
    ) -> Piece:
        if offset >= self.size(job, attempt, node):  # far beyond, some file systems refuse the seek
            return Piece(data=b"", next_offset=offset)
        try:
            with self._path(job, attempt, node).open("rb") as file:
                there = _first_data(file.fileno(), offset)
                if there > offset:
                    return not_kept(offset, there)
                file.seek(offset)
                data = file.read(limit)
        except FileNotFoundError:
            return Piece(data=b"", next_offset=offset)
        if len(data) == limit:
            data = whole_characters(data)
        return Piece(data=data, next_offset=offset + len(data))

    def folders(self) -> dict[str, int]:
        """Bytes of each job's logs; 0 for those that were removed. What no job has is left alone,
        such as a file system's `lost+found`."""
        names = [path.name for path in self._folder.iterdir()]
        return {name: self.bytes_of(name) for name in names if SAFE.fullmatch(name)}

    def bytes_of(self, job: str) -> int:
        """Of all logs of a job, as they are on the disk."""
        total = 0
        for path in self._of(job).glob("*.log"):
            with contextlib.suppress(FileNotFoundError):
                known = path.stat()  # where the beginning was dropped, the file has a hole
                total += min(known.st_size, 512 * known.st_blocks)
        return total

    def remove(self, job: str, text: str) -> None:
        """All logs of a job; `text` is what is shown in their place."""
        folder = self._of(job)
        with self._lock:
            aside = folder / f".{_REMOVED}"
            aside.write_text(f"{text}\n", encoding="utf-8")
            aside.replace(folder / _REMOVED)  # first: a log that is half gone says so too
            for path in folder.glob("*.log"):
                path.unlink(missing_ok=True)

    def forget(self, job: str) -> None:
        """All logs of a job that is deleted."""
        with self._lock:
            shutil.rmtree(self._of(job), ignore_errors=True)

    def removed(self, job: str) -> str:
        """Why the logs of this job are gone, in words; empty while they are not."""
        try:
            return (self._of(job) / _REMOVED).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def _of(self, job: str) -> Path:
        if not SAFE.fullmatch(job):
            raise ValueError(f"{job!r} cannot name a log folder")
        return self._folder / job

    def _path(self, job: str, attempt: int, node: int = 0) -> Path:
        old = self._of(job) / f"{attempt:d}.log"
        return old if node == 0 and old.exists() else old.with_name(f"{attempt:d}-{node:d}.log")


def _trim(descriptor: int, limit: int) -> bool:
    """Make a hole of the beginning where more than `limit` bytes are there; half of them stay.
    False when it is too long and the file system cannot do that."""
    size = os.fstat(descriptor).st_size
    if size <= limit:
        return True
    first = _first_data(descriptor, 0)
    end = (size - limit // 2) // BLOCK * BLOCK
    return size - first <= limit or end <= first or _punch(descriptor, first, end)


def _first_data(descriptor: int, start: int) -> int:
    """The first offset from `start` on that is no hole; the end of the file where none is left."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except (OSError, AttributeError):  # nothing behind `start`; or a system that knows no holes
        return start


def _punch(descriptor: int, start: int, end: int) -> bool:
    """Give these bytes back to the disk; False where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if fallocate is None:  # not Linux
        return False
    offset, length = ctypes.c_int64(start), ctypes.c_int64(end - start)
    return bool(fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, offset, length) == 0)


def whole_characters(data: bytes) -> bytes:
    """Drop the beginning of a character at the end (UTF-8, RFC 3629: at most 3 such bytes)."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back and back < len(data) else data
    return data
