"""Disks that are full: a small real one, and one that only says so."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs of `size` (as mount(8) takes it) at `folder`; needs the right to mount."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "spothop-test", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room there is; delete it to have room again."""
    filler = folder / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler


class FullDisk:
    """While `full`, regular files below `root` can be neither made nor written; pipes can."""

    def __init__(
        self, patch: pytest.MonkeyPatch, root: Path, *, number: int = errno.ENOSPC
    ) -> None:
        self.full = False
        self._root = str(root)
        self._number = number
        open_, write, allocate = os.open, os.write, os.posix_fallocate

        def opening(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            writes = flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            below = writes and str(os.fspath(path)).startswith(self._root)
            if below and not (os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)):
                self._refuse()
            return open_(path, flags, *rest, **more)

        def writing(descriptor: int, data: bytes) -> int:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                self._refuse()
            return write(descriptor, data)

        def allocating(descriptor: int, offset: int, size: int) -> None:
            self._refuse()
            allocate(descriptor, offset, size)

        patch.setattr(os, "open", opening)
        patch.setattr(os, "write", writing)
        patch.setattr(os, "posix_fallocate", allocating)

    def _refuse(self) -> None:
        if self.full:
            raise OSError(self._number, os.strerror(self._number))


@contextmanager
def read_only(patch: pytest.MonkeyPatch, root: Path) -> Iterator[None]:
    """Below `root` nothing can be made, written, moved or removed, as when the kernel has mounted a
    disk with errors read-only. What is there can be read; pipes can be written."""
    with patch.context() as patched:
        disk = FullDisk(patched, root, number=errno.EROFS)
        for name in ("replace", "rename", "mkdir", "rmdir", "unlink", "symlink", "utime", "mkfifo"):
            patched.setattr(os, name, _refusing(getattr(os, name), name, str(root)))
        disk.full = True
        yield


def _refusing(call: Any, name: str, root: str) -> Any:
    def refuse(*paths: Any, **options: Any) -> Any:
        path = next((str(p) for p in paths if str(p).startswith(root)), None)
        if path is None:
            return call(*paths, **options)
        if name == "mkdir" and os.path.lexists(path):  # the kernel, too, says this first
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    return refuse
