"""A part of the disk that is kept free for the agent's own files.

A full disk must not take the agent's memory from it: its state, the reports that it still owes, how
the process ended. So some room is taken at the start, really allocated (posix_fallocate: a sparse
file would reserve nothing), and given back to the disk by the first write of ours that finds none.

Rules: room is made once, and what it was made for is written at once; what still cannot be written
stays in memory and is tried again from time to time (`StateFile.flush`, `Spool.flush`). The
reserve is taken again only when the disk has several times as much, so that it is not the next
thing to fill it. Not taken: quotas and file systems of our own; they need rights that an agent may
not have.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a disk says that has no room, or a user who has no more of it."""
AGAIN = 4
"""So many times its size must be free before the reserve is taken again."""

_log = logging.getLogger(__name__)

MakeRoom = Callable[[], bool]
"""Gives room back to the disk; False when there is none to give."""


def no_room() -> bool:
    """The `MakeRoom` of those who have no reserve."""
    return False


def with_room(write: Callable[[], T], make_room: MakeRoom) -> T:
    """What `write` returns; after a full disk it is called again when room could be made. Raises
    OSError."""
    try:
        return write()
    except OSError as error:
        if error.errno not in FULL or not make_room():
            raise
    return write()


class Reserve:
    """`size` in bytes, 0 for none. One file, which is there as long as the reserve is held."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._news: list[str] = []
        self.held = self._take()
        if size and not self.held:
            self._news.append("the disk is full: there is no room for the agent's reserve")

    def release(self) -> bool:
        """Give the room back to the disk; False when that was done before. A `MakeRoom`."""
        if not self.held:
            return False
        self.held = False
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:  # such as a disk that was mounted anew, read-only
            _log.warning("reserve %s: %s", self._path, error)
            return False
        self._news.append(
            f"the disk is full: the agent's reserve of {self._size >> 10} KiB is used for its own"
            " state; saves may fail until there is room"
        )
        return True

    def tend(self) -> None:
        """Take the reserve again where there is room for it; harmless at any time."""
        if self.held or not self._size:
            return
        try:
            free = shutil.disk_usage(self._path.parent).free
        except OSError as error:
            _log.warning("reserve %s: %s", self._path, error)
            return
        if free > AGAIN * self._size and self._take():
            self.held = True
            self._news.append("the disk has room again: the agent's reserve is back")

    def news(self) -> list[str]:
        """What to tell the user since the last time. Not told at once: telling is writing, too."""
        news, self._news = self._news, []
        return news

    def _take(self) -> bool:
        if not self._size:
            return False
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.warning("reserve %s: %s", self._path, error)
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return False
        return True
