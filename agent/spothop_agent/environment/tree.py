"""What lies in the folders that `setup:` made: taken in at once, before anything uses them.

A file that training changes while it is packed is no result of `setup:` any more: each is compared
with its looks here (`Item.seen`) before and after it is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spothop.figures import size as in_units

MOST_ITEMS = 2_000_000
Looks = tuple[int, int, int, int]


class NotKept(Exception):
    """This tree cannot be kept; the message says why, for the user."""


class Kind(str, Enum):
    FOLDER = "d"
    FILE = "f"
    LINK = "l"
    """A symbolic one. It may lead anywhere: a venv's leads to the interpreter."""
    SAME = "h"
    """A further name (hard link) of a file that is listed before."""


@dataclass(frozen=True, slots=True)
class Item:
    """One name; `path` is relative to the job's directory."""

    path: str
    kind: Kind
    mode: int = 0
    """Permission bits, with set-id and sticky."""
    mtime_ns: int = 0
    size: int = 0
    """Bytes; of files only."""
    target: str = ""
    """Where a link leads; the path of the other name of a file."""
    seen: Looks | None = None
    """Of a file on this disk: inode, size, times of change."""


def looks(found: os.stat_result) -> Looks:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def snapshot(root: Path, folders: Sequence[str], *, most_bytes: int) -> list[Item]:
    """Folders come before what is in them. Raises NotKept, and OSError where the disk does not let
    something be read."""
    items: list[Item] = []
    first: dict[tuple[int, int], str] = {}
    total = 0
    for folder in folders:
        for item, found in _walk(root, folder):
            again = first.setdefault((found.st_dev, found.st_ino), item.path)
            if item.kind is Kind.FILE and again != item.path:
                item = Item(item.path, Kind.SAME, target=again)
            total += item.size
            if total > most_bytes:
                raise NotKept(
                    f"{', '.join(folders)}: more than {in_units(most_bytes)}, which is"
                    " `setup_cache.max`"
                )
            if len(items) == MOST_ITEMS:
                raise NotKept(f"{', '.join(folders)}: more than {MOST_ITEMS:,} files")
            items.append(item)
    return items


def _walk(root: Path, folder: str) -> Iterator[tuple[Item, os.stat_result]]:
    above = root
    for part in Path(folder).parts[:-1]:
        above = above / part
        if above.is_symlink():
            raise NotKept(f"{folder!r} lies behind a symbolic link")
    try:
        top = os.lstat(root / folder)
    except (FileNotFoundError, NotADirectoryError):
        raise NotKept(f"`setup:` made no folder {folder!r}") from None
    if not stat.S_ISDIR(top.st_mode):
        raise NotKept(f"{folder!r} is no folder")
    yield _item(folder, top, ""), top
    waiting = [folder]
    while waiting:
        below = waiting.pop()
        with os.scandir(root / below) as entries:
            children = sorted(entries, key=lambda entry: entry.name)
        for child in children:
            path, found = f"{below}/{child.name}", child.stat(follow_symlinks=False)
            item = _item(path, found, os.readlink(child.path) if child.is_symlink() else "")
            if item.kind is Kind.FOLDER:
                waiting.append(path)
            yield item, found


def _item(path: str, found: os.stat_result, target: str) -> Item:
    if found.st_uid != os.geteuid():
        raise NotKept(f"{path!r} belongs to another user (id {found.st_uid})")
    mode, mtime_ns = stat.S_IMODE(found.st_mode), found.st_mtime_ns
    if stat.S_ISDIR(found.st_mode):
        return Item(path, Kind.FOLDER, mode, mtime_ns)
    if stat.S_ISLNK(found.st_mode):
        return Item(path, Kind.LINK, 0, mtime_ns, target=target)
    if stat.S_ISREG(found.st_mode):
        return Item(path, Kind.FILE, mode, mtime_ns, found.st_size, seen=looks(found))
    raise NotKept(f"{path!r} is a pipe, a socket or a device")
