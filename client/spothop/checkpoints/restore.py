"""Puts the newest intact checkpoint back where the user saved it.

Each candidate is downloaded beside its place, verified (size and SHA-256) as it comes, synced, and
only then renamed. What fails its verification is read once more, because a transfer can go
wrong. If it is damaged twice, it is rejected, the caller is told, and the one before it is tried.

Damage is a wrong checksum, a wrong size, or an entry that cannot be parsed, and nothing else (I1).
A store that refuses or does not answer damages nothing: its error goes to the caller, because an
older checkpoint would cost steps. And if there are checkpoints, but none is whole, that is an
error: to begin from nothing would lose the job's work silently. An entry that a newer release has
written is no damage either: that release can restore it, and an older one would cost steps.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spothop.checkpoints import keys
from spothop.checkpoints.ahead import Ahead
from spothop.checkpoints.entry import AnyEntry, BadEntry, Entry, FileRecord
from spothop.checkpoints.parallel import OnProgress, Progress, for_each
from spothop.checkpoints.stores import Stores
from spothop.storage import (
    NothingRestores,
    ObjectMissing,
    ObjectStore,
    StorageUnsupported,
    UnsafePath,
)
from spothop.storage.folder import sync_folder

READERS = 64
"""Small files under way at once: each waits for its answer far longer than it takes to write."""
_ASIDE = ".spothop-restore-"
FIRST_FENCE = 1
"""The number of the first entry of every chain. It is a fence, readable or not (`chain`): with it
alone a job has no checkpoint that could be lost."""


class Damaged(Exception):
    """This checkpoint cannot be restored; `gone` when an object is missing altogether."""

    def __init__(self, why: str, *, gone: bool = False) -> None:
        super().__init__(why)
        self.gone = gone


@dataclass(frozen=True)
class Restored:
    """What was restored; `entry` and `path` are None when there was nothing intact."""

    entry: Entry | None
    path: Path | None
    rejected: list[str] = field(default_factory=list)
    """One message for each newer entry that failed."""

    @property
    def step(self) -> int:
        """Completed steps in the restored checkpoint; 0 without one."""
        return (self.entry.step or 0) if self.entry else 0


def restore(
    store: ObjectStore,
    entries: Iterable[AnyEntry],
    target: Path,
    *,
    on_progress: OnProgress | None = None,
    stores: Stores | None = None,
    ahead: Ahead | None = None,
) -> Restored:
    """Put the newest intact checkpoint among `entries` below `target`.

    `stores` opens those that entries name beside `store`, which holds the chain. Files with a
    content that is in `ahead` are taken from there.

    `entries` are those before this attempt's fence: a collection in any order, or an iterator that
    is newest first (`Chain.newest_first(before=fence.n)` reads no more of them than needed).
    Checkpoints whose data was pruned are skipped silently. Raises `NothingRestores` when there
    are checkpoints, or entries that may have been some, and each was rejected, any other
    `StorageError` when a store refuses or does not answer, `StorageUnsupported` for an entry of a
    newer release, OSError when the disk here does not
    work.
    """
    rejected: list[str] = []
    lost = False
    _clear_leftovers(target)
    stores = stores or Stores(store)
    for entry, maybe_pruned in _candidates(entries):
        if isinstance(entry, BadEntry):
            if entry.newer:
                raise _newer(store, entry)
            rejected.append(f"{entry}; trying the one before")
            lost = lost or entry.n != FIRST_FENCE
            continue
        try:
            path = _restore_twice(stores, entry, target, on_progress, ahead)
        except Damaged as damage:
            if not (damage.gone and maybe_pruned):
                rejected.append(f"{entry} is damaged: {damage}; trying the one before")
                lost = True
            continue
        return Restored(entry, path, rejected)
    if lost:
        raise NothingRestores(
            f"none of the {len(rejected)} newest checkpoints in {store.url} is whole: "
            + "; ".join(reason.removesuffix("; trying the one before") for reason in rejected),
            hint="put the missing objects back (an older version of the bucket may have them) and "
            "resume; or submit a new job, with init_from if another checkpoint can be used",
        )
    return Restored(None, None, rejected)


def _newer(store: ObjectStore, entry: BadEntry) -> StorageUnsupported:
    return StorageUnsupported(
        f"chain entry {entry.n} in {store.url} was written by a newer release of spothop"
        f" ({entry.why})",
        hint="update spothop here; a VM gets its agent from the master, so update that and resume",
    )


def _restore_twice(
    stores: Stores,
    entry: Entry,
    target: Path,
    on_progress: OnProgress | None,
    ahead: Ahead | None,
) -> Path:
    """A second read, unless an object is missing altogether."""
    try:
        return _restore_one(stores, entry, target, on_progress, ahead)
    except Damaged as damage:
        if damage.gone:
            raise
    return _restore_one(stores, entry, target, on_progress)


def _candidates(entries: Iterable[AnyEntry]) -> Iterator[tuple[AnyEntry, bool]]:
    """Checkpoints newest first, and whether each may have been pruned.

    Pruning keeps the newest two that are in the line of the newest one (`prune.to_prune`), so the
    others may lack data without any fault.
    """
    newest_first = (
        entries
        if isinstance(entries, Iterator)
        else sorted(entries, key=lambda entry: entry.n, reverse=True)
    )
    kept = 0
    line: int | None = None  # entries above this number were given up by the attempt after them
    for entry in newest_first:
        if isinstance(entry, BadEntry):
            yield entry, False
        elif not entry.fence:
            given_up = line is not None and entry.n > line
            yield entry, given_up or kept >= 2
            if not given_up:
                kept += 1
                line = entry.parent


def _restore_one(
    stores: Stores,
    entry: Entry,
    target: Path,
    on_progress: OnProgress | None,
    ahead: Ahead | None = None,
) -> Path:
    try:
        place = keys.inside(target, entry.root)
    except UnsafePath as error:
        raise Damaged(str(error)) from error
    target.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=target))
    try:
        fresh = aside / "new"
        try:
            _download(stores, entry, fresh, Progress(on_progress, entry.size), ahead)
        except (FileExistsError, NotADirectoryError) as error:  # two records for one place
            raise Damaged(f"its files contradict each other: {error}") from error
        place.parent.mkdir(parents=True, exist_ok=True)
        _swap(fresh, place, aside / "old")
        sync_folder(place.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return place


def _download(
    stores: Stores, entry: Entry, fresh: Path, progress: Progress, ahead: Ahead | None
) -> None:
    def fetch(record: FileRecord, place: Path, *, sync: bool) -> None:
        if ahead is not None and ahead.take(record, place):
            progress.add(record.size)
        else:
            fetch_file(stores.at(record.url), record, place, progress, sync=sync)

    if not entry.is_dir:
        if len(entry.files) != 1 or entry.files[0].is_folder:
            raise Damaged(f"a single file was saved, but {len(entry.files)} are recorded")
        fetch(entry.files[0], fresh, sync=True)
        return
    fresh.mkdir()
    places = _places(fresh, entry.files)
    for_each(
        [record for record in entry.files if not record.is_folder and not record.link],
        lambda record: fetch(record, places[record.path], sync=False),
        lambda record: record.size,
        workers=READERS,
    )
    for record in entry.files:
        if record.link:
            _link(record, places[record.path])
    for record in entry.files:
        if record.link:
            _stays_inside(record, places[record.path], fresh)
    for name, _, _ in os.walk(fresh):
        sync_folder(Path(name))


def _link(record: FileRecord, place: Path) -> None:
    leads_to = posixpath.normpath(posixpath.join(posixpath.dirname(record.path), record.link))
    if posixpath.isabs(record.link) or leads_to.split("/")[0] == ".." or "\0" in record.link:
        raise Damaged(f"the link {record.path!r} leads out of the checkpoint, to {record.link!r}")
    place.symlink_to(record.link)


def _stays_inside(record: FileRecord, place: Path, fresh: Path) -> None:
    """By the way of another link it may lead out even where its text does not."""
    try:
        real = place.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop, before Python 3.13
        raise Damaged(f"the link {record.path!r} leads nowhere: {error}") from error
    if not real.is_relative_to(fresh.resolve()):
        raise Damaged(f"the link {record.path!r} leads out of the checkpoint, to {record.link!r}")


def _places(fresh: Path, files: Iterable[FileRecord]) -> dict[str, Path]:
    """Where each file goes; the folders are made. Each is looked at once, however many files it
    has: that they stay inside takes several calls of the system."""
    known = {"": fresh}
    places: dict[str, Path] = {}
    for record in files:
        path = record.path.removesuffix("/")
        parent, _, name = path.rpartition("/")
        if parent not in known:
            known[parent] = _place(fresh, path).parent  # an error names the whole path
            known[parent].mkdir(parents=True, exist_ok=True)
        plain = name not in {"", ".", ".."} and "\0" not in name
        places[record.path] = known[parent] / name if plain and parent else _place(fresh, path)
        if record.is_folder:
            places[record.path].mkdir(parents=True, exist_ok=True)
    return places


def _place(fresh: Path, path: str) -> Path:
    try:
        return keys.inside(fresh, path)
    except UnsafePath as error:
        raise Damaged(str(error)) from error


def fetch_file(
    store: ObjectStore, record: FileRecord, place: Path, progress: Progress, *, sync: bool = True
) -> None:
    """Download one verified file, in one request where it is small. Raises `Damaged`."""
    which = f"(object {record.key!r})"
    if not keys.is_key(record.key):
        raise Damaged(f"{record.path!r} has an impossible key {which}")
    try:
        found = store.fetch(
            record.key,
            place,
            size=record.size,
            on_bytes=progress.add,
            sync=sync,
            part=record.part,
        )
        if found.size != record.size:
            raise Damaged(
                f"{record.path!r} has {found.size} bytes instead of {record.size} {which}"
            )
        if found.sha256 != record.sha256:
            raise Damaged(f"the content of {record.path!r} does not match its SHA-256 {which}")
    except ObjectMissing as error:
        raise Damaged(f"{record.path!r} is missing from storage {which}", gone=True) from error


def _swap(fresh: Path, place: Path, old: Path) -> None:
    """Rename over files; a directory that is in the way moves aside first."""
    if os.path.lexists(place) and not (place.is_file() and fresh.is_file()):
        os.rename(place, old)
    os.rename(fresh, place)


def _clear_leftovers(target: Path) -> None:
    """Remove leftovers of a killed restore; only one runs in a directory at a time."""
    for leftover in target.glob(_ASIDE + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
