"""A file or directory becomes data objects. They are no checkpoint until the chain names them."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spothop.checkpoints import keys
from spothop.checkpoints.entry import FileRecord
from spothop.checkpoints.parallel import OnProgress, Progress, for_each
from spothop.storage import ObjectStore, SourceChanged, UnsafePath
from spothop.wire import SaveKind

OnSkipped = Callable[[str], None]
"""Called with the reason when something is left out."""

EMPTY_SHA256 = hashlib.sha256().hexdigest()


@dataclass(frozen=True)
class Source:
    """One thing to upload: a file, an empty directory (`file` None, path ending in `/`), or a link
    (`file` None, and where it leads, relative to its own folder)."""

    path: str
    file: Path | None
    size: int
    link: str = ""


def upload(
    store: ObjectStore,
    job: str,
    attempt: int,
    step: int,
    kind: SaveKind,
    source: Path,
    *,
    on_progress: OnProgress | None = None,
    upload_id: str | None = None,
) -> list[FileRecord]:
    """Upload `source`; when this returns, every object is durable.

    The same `upload_id` (such as the id in the outbox) writes the same keys again, so that a
    repeated upload replaces a broken one; two saves of one step must have different ones. Raises
    `SourceChanged`, `UnsafePath` and the errors of storage; nothing is retried here.
    """
    folder = (
        f"{keys.data_folder(job, step, attempt, kind)}/{keys.quote(upload_id or uuid.uuid4().hex)}"
    )
    sources = list_sources(source, keep_links=True)
    progress = Progress(on_progress, sum(item.size for item in sources))
    records: dict[str, FileRecord] = {}

    def send(item: Source) -> None:
        key = "" if item.file is None else f"{folder}/{keys.quote(item.path)}"
        records[item.path] = send_file(store, key, item, progress)

    for_each(sources, send, lambda item: item.size)
    return [records[item.path] for item in sources]


def send_file(store: ObjectStore, key: str, item: Source, progress: Progress) -> FileRecord:
    """Upload one file to `key`. Empty folders and links send nothing. Raises `SourceChanged`."""
    if item.file is None:
        return FileRecord(item.path, 0, EMPTY_SHA256, "", item.link)
    before = _stat(item.file)
    sha256 = store.send(key, item.file, size=item.size, on_bytes=progress.add)
    after = _stat(item.file)
    if (item.size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SourceChanged(
            f"{str(item.file)!r} changed during its upload: {item.size} bytes before, "
            f"{after.st_size} after",
            hint="save under another name and hand that to backup()",
        )
    return FileRecord(item.path, item.size, sha256, key)


def _stat(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except OSError as error:
        raise SourceChanged(f"{str(file)!r} cannot be read: {error.strerror}") from error


def list_sources(
    source: Path, *, skipped: OnSkipped | None = None, keep_links: bool = False
) -> list[Source]:
    """Every file and empty directory of `source`, in order of their paths.

    Links that stay inside are followed; with `keep_links` they stay links. Raises `UnsafePath` for
    other links, for cycles that would be followed, for dangling links, and for pipes, sockets and
    devices; with `skipped` these are left out, and it is called for each. Raises `SourceChanged`
    when `source` is not there.
    """
    try:
        real = source.resolve(strict=True)
    except OSError as error:
        raise SourceChanged(f"{str(source)!r} cannot be read: {error.strerror}") from error
    if not real.is_dir():
        return [_file(source.name, real)]
    return sorted(_walk(real, real, "", skipped, keep_links), key=lambda item: item.path)


def _walk(
    top: Path, folder: Path, prefix: str, skipped: OnSkipped | None, keep_links: bool
) -> Iterator[Source]:
    children = sorted(folder.iterdir())
    if prefix and not children:
        yield Source(prefix, None, 0)
    for child in children:
        path = prefix + child.name
        try:
            found = _child(top, folder, child, path, keep_links)
        except UnsafePath as error:
            if skipped is None:
                raise
            skipped(str(error))
            continue
        if isinstance(found, Source):
            yield found
        else:
            yield from _walk(top, found, path + "/", skipped, keep_links)


def _child(top: Path, folder: Path, child: Path, path: str, keep_links: bool) -> Source | Path:
    """A file or link, or the directory to go on with. Raises `UnsafePath`."""
    real = _resolved(top, child)
    if keep_links and child.is_symlink():
        return Source(path, None, 0, link=os.path.relpath(real, child.parent))
    if not real.is_dir():
        return _file(path, real)
    if folder.is_relative_to(real):
        raise UnsafePath(f"the link {str(child)!r} leads to a directory around itself")
    return real


def _resolved(top: Path, path: Path) -> Path:
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise UnsafePath(f"{str(path)!r} leads nowhere: {error}") from error
    if not real.is_relative_to(top):
        raise UnsafePath(
            f"the link {str(path)!r} leads out of {str(top)!r}", hint="copy what it points to"
        )
    return real


def _file(path: str, file: Path) -> Source:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UnsafePath(f"{str(file)!r} is neither a file nor a directory", hint="save files only")
    return Source(path, file, status.st_size)
