"""`file://`: objects are files below one folder; standard library only.

Why not obstore's LocalStore: it does not sync what it writes (0.12), so a chain entry could survive
a power cut that its data did not. Here a write goes to `.spothop-tmp-*` beside its place, is
synced, then renamed (`put`, `send`) or hard-linked (`create`: link(2) fails when the name exists,
on every machine that shares the folder), and the folder is synced last.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from spothop.storage.base import Fetched, ObjectInfo, OnBytes, Piece, part_key, parts_of
from spothop.storage.errors import (
    StorageBadUrl,
    StorageError,
    StorageUnavailable,
)
from spothop.storage.hashing import copy_hashed, write_all
from spothop.storage.mapping import mapped, reading

T = TypeVar("T")
TEMPORARY = ".spothop-tmp-"
_TRIES = 5  # a delete may remove an empty folder between our mkdir and our open


class FolderStore:
    """An `ObjectStore` in a folder that exists."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def create(self, key: str, data: bytes) -> None:
        with self._mapped(key, writing=True):
            self._publish(key, lambda handle: write_all(handle, data), os.link)

    def put(self, key: str, data: bytes) -> None:
        with self._mapped(key, writing=True):
            self._publish(key, lambda handle: write_all(handle, data), os.replace)

    def send(self, key: str, file: Path, *, size: int, on_bytes: OnBytes) -> str:
        with _opened(file) as source:

            def fill(handle: int) -> str:
                return copy_hashed(source, handle, size=size, on_bytes=on_bytes, sync=True)

            with self._mapped(key, writing=True):
                return self._publish(key, fill, os.replace)

    def get(self, key: str) -> bytes:
        with self._mapped(key):
            return self._path(key).read_bytes()

    def size(self, key: str) -> int:
        with self._mapped(key):
            status = self._path(key).stat()
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return status.st_size

    def info(self, key: str) -> ObjectInfo:
        size = self.size(key)
        with self._mapped(key):
            return ObjectInfo(key, size, _tag(self._path(key).stat()))

    def part_size(self, size: int) -> int:
        return 0  # the kernel copies, and nothing of it hangs alone

    def send_pieces(
        self,
        pieces: Iterator[Piece],
        *,
        on_sent: Callable[[Piece], None],
        still_wanted: Callable[[], object],
        left_s: Callable[[], float | None],
    ) -> None:
        for piece in pieces:
            still_wanted()
            self.put(piece.key, piece.data)
            on_sent(piece)

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
        if part:
            return self._fetch_parts(key, file, size, part, on_bytes)
        with self._mapped(key):
            source = self._path(key).open("rb", buffering=0)
        with source, file.open("xb", buffering=0) as target:
            sha256 = copy_hashed(
                source.fileno(), target.fileno(), size=size, on_bytes=on_bytes, sync=sync
            )
            return Fetched(sha256, os.fstat(source.fileno()).st_size)

    def _fetch_parts(
        self, key: str, file: Path, size: int, part: int, on_bytes: OnBytes
    ) -> Fetched:
        """Of a bucket that was copied into a folder; nothing here writes parts."""
        digest, found = hashlib.sha256(), 0
        with file.open("xb", buffering=0) as target:
            for index in range(parts_of(size, part)):
                block = self.get(part_key(key, index))
                found += len(block)
                digest.update(block)
                write_all(target.fileno(), block)
                on_bytes(len(block))
            os.fsync(target.fileno())
        return Fetched(digest.hexdigest(), found)

    def scan(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        with self._mapped(prefix):
            for folder, names, files in os.walk(
                self._path(prefix), onerror=_unless_missing, followlinks=True
            ):
                names.sort()
                # plain text: a chain of 20,000 entries is listed at each commit
                above = Path(folder).relative_to(self._root).as_posix()
                start = "" if above == "." else above + "/"
                for name in sorted(files):
                    key = start + name
                    if name.startswith(TEMPORARY) or (after is not None and key <= after):
                        continue
                    with suppress(FileNotFoundError):  # deleted since it was listed
                        status = os.stat(os.path.join(folder, name))
                        yield ObjectInfo(key, status.st_size, _tag(status))
            if not self._root.is_dir():
                raise self._away()

    def folders(self, prefix: str) -> list[str]:
        with self._mapped(prefix):
            try:
                return sorted(
                    entry.name for entry in self._path(prefix).iterdir() if entry.is_dir()
                )
            except FileNotFoundError:
                if not self._root.is_dir():
                    raise
                return []

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with self._mapped(key):
                path.unlink(missing_ok=True)
                self._drop_empty(path.parent)

    def discard_partial(self, prefix: str) -> None:
        with self._mapped(prefix):
            for path in list(self._path(prefix).rglob(TEMPORARY + "*")):
                path.unlink(missing_ok=True)
                self._drop_empty(path.parent)
            self._drop_empty(self._path(prefix))

    @contextmanager
    def _mapped(self, key: str, *, writing: bool = False) -> Iterator[None]:
        """Raises where the root folder is gone, such as a share that is not mounted: an object is
        then not missing, nor a folder empty. The root existed when this object was made."""
        try:
            with mapped(self.url, key, writing=writing):
                yield
        except StorageError as error:
            was_away = writing and isinstance(error.__cause__, FileNotFoundError)
            if self._root.is_dir() and not was_away:
                raise
            raise self._away() from error

    def _away(self) -> StorageUnavailable:
        return StorageUnavailable(
            f"the folder of {self.url} is gone", hint="mount it, or put it back"
        )

    def _path(self, key: str) -> Path:
        parts = [part for part in key.split("/") if part]
        if any(part in {".", ".."} or "\0" in part for part in parts):
            raise StorageBadUrl(f"{key!r} is no key of {self.url}")
        return self._root.joinpath(*parts)

    def _publish(
        self, key: str, fill: Callable[[int], T], place: Callable[[Path, Path], None]
    ) -> T:
        path = self._path(key)
        handle, aside = self._open_aside(path.parent)
        try:
            try:
                result = fill(handle)
                os.fsync(handle)
            finally:
                os.close(handle)
            place(aside, path)
            sync_folder(path.parent)
        finally:
            aside.unlink(missing_ok=True)
        return result

    def _open_aside(self, folder: Path) -> tuple[int, Path]:
        aside = folder / (TEMPORARY + secrets.token_hex(8))
        for left in reversed(range(_TRIES)):
            try:  # whoever deletes the last object beside it takes the folder with it
                self._make(folder)
                return os.open(
                    aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666
                ), aside
            except FileNotFoundError:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _make(self, folder: Path) -> None:
        """Like mkdir -p, and the names of new folders survive a power cut."""
        if folder == self._root or folder.is_dir():
            return
        self._make(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
            sync_folder(folder.parent)

    def _drop_empty(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone already
                return
            folder = folder.parent


def _unless_missing(error: OSError) -> None:
    """A folder that cannot be listed is no empty folder: os.walk would pass over it."""
    if not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    """So that a fault of the source is not taken for one of the store."""
    with reading(file):
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync names by themselves
            raise
    finally:
        os.close(handle)


def _tag(status: os.stat_result) -> str:
    """Objects are renamed into their place: a new one has another inode."""
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}"
