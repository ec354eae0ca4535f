"""A tree becomes parts: read, looked through for the job's path, compressed and hashed.

`Packing` can be interrupted between two parts and gone on with: a part depends on nothing but the
list and its number.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from spothop.storage.base import MIB, Piece, part_key
from spothop_agent.environment.index import Segment, Stream
from spothop_agent.environment.manifest import PART, Codec, Part
from spothop_agent.environment.tree import Item, Kind, NotKept, looks

LEVEL = 1
"""Of zlib: the next one takes twice as long for a tenth less."""
WORTH = 0.95
"""What hardly shrinks is kept as it is: wheels hold compressed files."""


class Packing:
    """Of the snapshot `items` below `root`; `folder` is the key of the folder for the parts."""

    def __init__(self, root: Path, items: list[Item], folder: str, *, part: int = PART) -> None:
        self._root = root
        self._folder = folder
        self._stream = Stream(items, part)
        self._names_path = os.fsencode(str(root))
        self._sent: set[int] = set()
        self._made: dict[int, Part] = {}
        self.bound = any(
            item.kind is Kind.LINK and item.target.startswith(str(root)) for item in items
        )
        """Whether it holds the job's path, so that it is of use on the same path only."""

    @property
    def parts(self) -> list[Part]:
        """All of them, once everything is sent."""
        return [self._made[index] for index in range(self._stream.parts)]

    @property
    def size(self) -> int:
        return self._stream.size

    def pieces(self) -> Iterator[Piece]:
        """What is not sent yet. Raises NotKept where a file is not what it was."""
        for index in range(self._stream.parts):
            if index not in self._sent:
                data = self._data(index)
                yield Piece(part_key(self._folder, index), data, self._made[index].sha256)

    def sent(self, piece: Piece) -> None:
        self._sent.add(int(piece.key.rpartition("/")[2]))

    def _data(self, index: int) -> bytes:
        raw = b"".join(self._read(segment) for segment in self._stream.segments(index))
        data = zlib.compress(raw, LEVEL)
        codec: Codec = "zlib"
        if len(data) > WORTH * len(raw):
            data, codec = raw, "raw"
        sha256 = hashlib.sha256(data).hexdigest()
        self._made[index] = Part(sha256=sha256, size=len(data), codec=codec)
        return data

    def _read(self, segment: Segment) -> bytes:
        item = segment.item
        path = self._root / item.path
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise NotKept(f"{item.path!r} cannot be read any more: {error.strerror}") from error
        try:
            _check(item, handle)
            # a little more, so that a path which lies across the end of a part is found, too
            more = min(item.size - segment.start - segment.length, len(self._names_path))
            data = _pread(handle, segment.length + more, segment.start)
            _check(item, handle)
        finally:
            os.close(handle)
        if len(data) != segment.length + more:
            raise NotKept(f"{item.path!r} became shorter while it was packed")
        if not self.bound and not _compiled(item.path):
            self.bound = self._names_path in data
        return data[: segment.length]


def _check(item: Item, handle: int) -> None:
    if looks(os.fstat(handle)) != item.seen:
        raise NotKept(f"{item.path!r} was changed after `setup:`, before it was packed")


def _compiled(path: str) -> bool:
    return path.endswith(".pyc") and path.rpartition("/")[0].endswith("__pycache__")


def _pread(handle: int, count: int, start: int) -> bytes:
    blocks = []
    while count and (block := os.pread(handle, min(count, 16 * MIB), start)):
        blocks.append(block)
        count, start = count - len(block), start + len(block)
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)
