"""The list of a tree's items as bytes, and what of a list from storage is believed. Pure.

The contents of all files, one after the other in the order of the list, are one stream; it is cut
into parts of equal length. So the list alone says which bytes of which part go into which file.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePosixPath

from spothop_agent.environment.tree import MOST_ITEMS, Item, Kind

MOST_INDEX = 1 << 30
"""Bytes of a list: a small object may hold very much."""


class Damaged(Exception):
    """What the store gave back is not what was kept; the message says what of it."""


def encoded(items: Iterable[Item]) -> bytes:
    rows = [(i.path, i.kind.value, i.mode, i.mtime_ns, i.size, i.target) for i in items]
    return zlib.compress(json.dumps(rows).encode(), 1)


def decoded(data: bytes, folders: Sequence[str]) -> list[Item]:
    """Raises Damaged for a list that `encoded` did not write, or that leads out of `folders`."""
    try:
        unzip = zlib.decompressobj()
        text = unzip.decompress(data, MOST_INDEX)
        if unzip.unconsumed_tail or not unzip.eof:
            raise Damaged("the list of its files is cut short, or too long")
        items = [_item(row) for row in json.loads(text)]
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"the list of its files cannot be read: {error}") from error
    _check(items, folders)
    return items


def _item(row: object) -> Item:
    if not isinstance(row, list) or len(row) != 6:
        raise ValueError("a row of another form")
    path, kind, mode, mtime_ns, size, target = row
    texts = isinstance(path, str) and isinstance(target, str)
    if not texts or not all(type(n) is int for n in (mode, mtime_ns, size)):
        raise ValueError("a row of another form")
    if not (0 <= mode <= 0o7777 and size >= 0 and abs(mtime_ns) < 2**63):
        raise ValueError(f"impossible numbers of {path!r}")
    return Item(path, Kind(kind), mode, mtime_ns, size, target)


def _check(items: Sequence[Item], folders: Sequence[str]) -> None:
    """Every name lies in a folder that is listed before it, and no name is there twice: so no path
    leads through a link, or out."""
    if len(items) > MOST_ITEMS:
        raise Damaged("it lists too many files")
    known: dict[str, Kind] = {}
    for item in items:
        parts = PurePosixPath(item.path).parts
        plain = "/".join(parts) == item.path and ".." not in parts and "\0" not in item.path
        if not plain or not parts or parts[0] == "/" or item.path in known:
            raise Damaged(f"it lists an impossible path: {item.path!r}")
        above = item.path.rpartition("/")[0]
        if known.get(above) is not Kind.FOLDER and item.path not in folders:
            raise Damaged(f"it lists {item.path!r}, which lies in none of its folders")
        if item.path in folders and item.kind is not Kind.FOLDER:
            raise Damaged(f"it lists {item.path!r} as no folder")
        if item.kind is Kind.SAME and known.get(item.target) is not Kind.FILE:
            raise Damaged(f"it lists {item.path!r} as another name of no file")
        if item.size and item.kind is not Kind.FILE:
            raise Damaged(f"it lists contents of {item.path!r}, which is no file")
        if "\0" in item.target or (item.kind is Kind.LINK and not item.target):
            raise Damaged(f"it lists an impossible link: {item.path!r}")
        known[item.path] = item.kind


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a file's content."""

    item: Item
    start: int
    """Of the file."""
    length: int
    offset: int
    """In its part."""

    @property
    def whole(self) -> bool:
        return self.length == self.item.size


class Stream:
    """The contents of the files with some, cut into parts of `part` bytes."""

    def __init__(self, items: Iterable[Item], part: int) -> None:
        self.part = part
        self.files = [item for item in items if item.kind is Kind.FILE and item.size]
        self._ends = [*accumulate(item.size for item in self.files)]
        self.size = self._ends[-1] if self._ends else 0
        self.parts = -(-self.size // part)

    def length(self, index: int) -> int:
        """Bytes of a part; only the last one is shorter."""
        return min(self.part, self.size - index * self.part)

    def segments(self, index: int) -> Iterator[Segment]:
        """What the part `index` holds, in order."""
        begin, end = index * self.part, index * self.part + self.length(index)
        place = bisect_right(self._ends, begin)
        at = begin
        while at < end:
            item, stop = self.files[place], self._ends[place]
            start = at - (stop - item.size)
            length = min(end, stop) - at
            yield Segment(item, start, length, at - begin)
            at, place = at + length, place + 1
