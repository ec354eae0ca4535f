"""Logs of places: files `<home>/logs/<job>/<attempt>-<node>.log`, written and read by byte offset.

Node 0 goes on in `<attempt>.log` where there is one: the release before knew one VM an attempt.

The agent sends chunks with the offset at which they begin. A chunk that begins beyond the end
leaves a gap and is refused (the answer is the expected offset); one that was written before is
skipped, so that resending is harmless.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Bytes of a log and the offset after them."""

    data: bytes
    next_offset: int


class Logs:
    """All logs that this master keeps."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()

    def append(self, job: str, attempt: int, node: int = 0, *, offset: int, data: bytes) -> int:
        """Write what is new of a chunk; the offset at which the next one has to begin."""
        path = self._path(job, attempt, node)
        with self._lock:
            path.parent.mkdir(exist_ok=True)
            size = self.size(job, attempt, node)
            if offset > size:
                return size
            new = data[size - offset :]
            if new:
                with path.open("ab") as file:
                    file.write(new)
            return size + len(new)

    def size(self, job: str, attempt: int, node: int = 0) -> int:
        try:
            return self._path(job, attempt, node).stat().st_size
        except FileNotFoundError:
            return 0

    def read(
        self, job: str, attempt: int, node: int = 0, *, offset: int, limit: int = 256 * 1024
    ) -> Piece:
        """At most `limit` bytes from `offset` on; a multi-byte character is never cut in two."""
        if offset >= self.size(job, attempt, node):  # far beyond, some file systems refuse the seek
            return Piece(data=b"", next_offset=offset)
        try:
            with self._path(job, attempt, node).open("rb") as file:
                file.seek(offset)
                data = file.read(limit)
        except FileNotFoundError:
            return Piece(data=b"", next_offset=offset)
        if len(data) == limit:
            data = _whole_characters(data)
        return Piece(data=data, next_offset=offset + len(data))

    def tail(
        self, job: str, attempt: int, node: int = 0, *, lines: int = 40, limit: int = 16 * 1024
    ) -> str:
        """The last lines, for people."""
        start = max(0, self.size(job, attempt, node) - limit)
        piece = self.read(job, attempt, node, offset=start, limit=limit)
        text = piece.data.decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-lines:])

    def _path(self, job: str, attempt: int, node: int = 0) -> Path:
        if not _SAFE.fullmatch(job):
            raise ValueError(f"{job!r} cannot name a log folder")
        old = self._folder / job / f"{attempt:d}.log"
        return old if node == 0 and old.exists() else old.with_name(f"{attempt:d}-{node:d}.log")


def _whole_characters(data: bytes) -> bytes:
    """Drop the beginning of a character at the end (UTF-8, RFC 3629: at most 3 such bytes)."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back and back < len(data) else data
    return data
