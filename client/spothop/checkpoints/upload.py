"""A file or directory becomes data objects. They are no checkpoint until the chain names them."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from spothop.checkpoints import keys
from spothop.checkpoints.entry import FileRecord
from spothop.checkpoints.journal import Journal, Seen
from spothop.checkpoints.parallel import OnProgress, Progress, for_each
from spothop.storage import ObjectStore, Piece, SourceChanged, UnsafePath
from spothop.storage.mapping import of_source, reading
from spothop.wire import SaveKind

OnSkipped = Callable[[str], None]
"""Called with the reason when something is left out."""

_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
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
    url: str = "",
    journal: Journal | None = None,
    still_wanted: Callable[[], object] = lambda: None,
    left_s: Callable[[], float | None] = lambda: None,
) -> list[FileRecord]:
    """Upload `source`; when this returns, every object is durable.

    The same `upload_id` (such as the id in the outbox) writes the same keys again, so that a
    repeated upload replaces a broken one, and sends only what is not in its `journal`; two saves
    of one step must have different ones. `url` names the store in the records where it is not the
    one that holds the chain. `still_wanted` is called from time to time and may raise;
    `left_s` is the time to this VM's announced end, None without a notice. Raises `SourceChanged`,
    `SourceUnreadable`, `UnsafePath` and the errors of storage; nothing is retried here.
    """
    folder = (
        f"{keys.data_folder(job, step, attempt, kind)}/{keys.quote(upload_id or uuid.uuid4().hex)}"
    )
    sources = list_sources(source, keep_links=True)
    progress = Progress(on_progress, sum(item.size for item in sources))
    work = _Upload(store, folder, progress, journal or Journal())
    if store.part_size(0):
        with closing(work.pieces(sources)) as pieces:  # a file may be open in it
            store.send_pieces(pieces, on_sent=work.sent, still_wanted=still_wanted, left_s=left_s)
        work.check_unchanged()
    else:
        for_each(sources, work.send_whole, lambda item: item.size)
    records = [work.records[item.path] for item in sources]
    return (
        [replace(found, url=url) if found.key else found for found in records] if url else records
    )


class _Upload:
    """One tree on its way; `records` are complete when all of it is sent."""

    def __init__(
        self, store: ObjectStore, folder: str, progress: Progress, journal: Journal
    ) -> None:
        self.records: dict[str, FileRecord] = {}
        self._store = store
        self._folder = folder
        self._progress = progress
        self._journal = journal
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}  # by key, of what is under way
        self._taken: list[tuple[Path, int, Seen]] = []  # read now, or known from the journal

    def send_whole(self, item: Source) -> None:
        """In any thread."""
        key = self._key(item)
        if item.file is not None:
            seen = _seen(item.file, item.size)
            if (sha256 := self._journal.sent(key, seen)) is not None:
                self.records[item.path] = FileRecord(item.path, item.size, sha256, key)
                self._progress.add(item.size)
                return
        record = send_file(self._store, key, item, self._progress)
        self.records[item.path] = record
        if item.file is not None:
            with self._lock:
                self._journal.add(key, seen, record.sha256)

    def pieces(self, sources: Iterable[Source]) -> Generator[Piece, None, None]:
        """What is to be sent, read when it is asked for; nothing is read twice."""
        for item in sources:
            if item.file is None:
                self.records[item.path] = FileRecord(item.path, 0, EMPTY_SHA256, "", item.link)
            else:
                yield from self._pieces_of(item, item.file)

    def _pieces_of(self, item: Source, file: Path) -> Iterator[Piece]:
        key, part = self._key(item), self._store.part_size(item.size)
        seen = _seen(file, item.size)
        self._taken.append((file, item.size, seen))
        record = FileRecord(item.path, item.size, "", key, part=part if item.size > part else 0)
        objects = list(record.objects())
        noted = [self._journal.sent(name, seen) for name, _ in objects]
        if (last := noted[-1]) is not None and None not in noted:
            self.records[item.path] = replace(record, sha256=last)
            self._progress.add(item.size)
            return
        digest = hashlib.sha256()
        with _reading(file) as source:
            for (name, size), before in zip(objects, noted, strict=True):
                data = _read(file, source, size)
                digest.update(data)
                until_here = digest.copy().hexdigest()
                if before is None:
                    self._seen[name] = seen
                    yield Piece(name, data, until_here)
                elif before == until_here:
                    self._progress.add(size)
                else:
                    raise _changed(file, item.size, seen.size)
        self.records[item.path] = replace(record, sha256=digest.hexdigest())

    def sent(self, piece: Piece) -> None:
        self._journal.add(piece.key, self._seen.pop(piece.key), piece.sha256)
        self._progress.add(len(piece.data))

    def check_unchanged(self) -> None:
        """Whoever writes to a file while it is sent may do so between two others of one save."""
        for file, size, seen in self._taken:
            _check_unchanged(file, size, seen)

    def _key(self, item: Source) -> str:
        return "" if item.file is None else f"{self._folder}/{keys.quote(item.path)}"


@contextmanager
def _reading(file: Path) -> Iterator[int]:
    with reading(file):
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _read(file: Path, handle: int, size: int) -> bytes:
    """Exactly so many bytes. Raises `SourceChanged`."""
    blocks, left = [], size
    while left:
        with reading(file):
            block = os.read(handle, left)
        if not block:
            raise SourceChanged(
                f"{str(file)!r} became shorter during its upload",
                hint="save under another name and hand that to backup()",
            )
        blocks.append(block)
        left -= len(block)
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def send_file(store: ObjectStore, key: str, item: Source, progress: Progress) -> FileRecord:
    """Upload one file to `key`. Empty folders and links send nothing. Raises `SourceChanged`."""
    if item.file is None:
        return FileRecord(item.path, 0, EMPTY_SHA256, "", item.link)
    before = Seen.of(_stat(item.file))
    sha256 = store.send(key, item.file, size=item.size, on_bytes=progress.add)
    _check_unchanged(item.file, item.size, before)
    return FileRecord(item.path, item.size, sha256, key)


def _seen(file: Path, size: int) -> Seen:
    """As it is now. Raises `SourceChanged` where it has not the size any more that was listed: what
    is noted of it in the journal would pass for all of it at the next try."""
    seen = Seen.of(_stat(file))
    if seen.size != size:
        raise _changed(file, size, seen.size)
    return seen


def _check_unchanged(file: Path, size: int, before: Seen) -> None:
    after = Seen.of(_stat(file))
    if after != before or after.size != size:
        raise _changed(file, size, after.size)


def _changed(file: Path, before: int, after: int) -> SourceChanged:
    return SourceChanged(
        f"{str(file)!r} changed during its upload: {before} bytes before, {after} after",
        hint="save under another name and hand that to backup()",
    )


def _is_dir(path: Path) -> bool:
    """`Path.is_dir` says no where the system says nothing."""
    return stat.S_ISDIR(_stat(path).st_mode)


def _stat(file: Path) -> os.stat_result:
    with reading(file):
        return os.stat(file)


def list_sources(
    source: Path, *, skipped: OnSkipped | None = None, keep_links: bool = False
) -> list[Source]:
    """Every file and empty directory of `source`, in order of their paths.

    Links that stay inside are followed; with `keep_links` they stay links. Raises `UnsafePath` for
    other links, for cycles that would be followed, for dangling links, and for pipes, sockets and
    devices; with `skipped` these are left out, and it is called for each. Raises `SourceChanged`
    when `source` is not there, `SourceUnreadable` when the system does not let it be read now.
    """
    with reading(source):
        real = source.resolve(strict=True)
    if not _is_dir(real):
        return [_file(source.name, real)]
    return sorted(_walk(real, real, "", skipped, keep_links), key=lambda item: item.path)


def _walk(
    top: Path, folder: Path, prefix: str, skipped: OnSkipped | None, keep_links: bool
) -> Iterator[Source]:
    with reading(folder):
        children = [folder / name for name in sorted(os.listdir(folder))]
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
    if not _is_dir(real):
        return _file(path, real)
    if folder.is_relative_to(real):
        raise UnsafePath(f"the link {str(child)!r} leads to a directory around itself")
    return real


def _resolved(top: Path, path: Path) -> Path:
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        if isinstance(error, OSError) and error.errno not in _NOWHERE:
            raise of_source(error, path) from error
        raise UnsafePath(f"{str(path)!r} leads nowhere: {error}") from error
    if not real.is_relative_to(top):
        raise UnsafePath(
            f"the link {str(path)!r} leads out of {str(top)!r}", hint="copy what it points to"
        )
    return real


def _file(path: str, file: Path) -> Source:
    status = _stat(file)
    if not stat.S_ISREG(status.st_mode):
        raise UnsafePath(f"{str(file)!r} is neither a file nor a directory", hint="save files only")
    return Source(path, file, status.st_size)
