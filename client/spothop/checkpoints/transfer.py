"""Whole trees without a chain: a job's outputs, data sets, and input checkpoints."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from spothop.checkpoints import keys
from spothop.checkpoints.chain import Chain
from spothop.checkpoints.parallel import OnProgress, Progress, for_each
from spothop.checkpoints.restore import Restored, restore
from spothop.checkpoints.staged import Staged
from spothop.checkpoints.stores import Stores
from spothop.checkpoints.upload import OnSkipped, Source, list_sources, send_file
from spothop.storage import (
    NothingRestores,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    SourceUnreadable,
    StorageError,
    StorageUnavailable,
    open_store,
)
from spothop.storage.folder import TEMPORARY
from spothop.wire import StorageSpec

MAX_LISTINGS = 20


def upload_outputs(
    store: ObjectStore,
    job: str,
    attempt: int,
    directory: Path,
    *,
    skipped: OnSkipped | None = None,
    on_progress: OnProgress | None = None,
) -> list[str]:
    """Copy every file below `directory` to this attempt's outputs; return their paths, sorted.

    Each attempt has a folder of its own, so that a late one, which was fenced meanwhile, overwrites
    nothing of its successor (I2). No directory means no outputs. Empty directories are not kept.
    Raises like `upload`; with `skipped`, unsafe links are reported to it and the rest is copied.
    """
    if not _is_there(directory):
        return []
    sources = [i for i in list_sources(directory, skipped=skipped) if i.file is not None]
    progress = Progress(on_progress, sum(item.size for item in sources))
    folder = f"{keys.outputs_folder(job)}/{attempt}"

    def send(item: Source) -> None:
        send_file(store, f"{folder}/{keys.quote(item.path)}", item, progress)

    for_each(sources, send, lambda item: item.size)
    return [item.path for item in sources]


def _is_there(directory: Path) -> bool:
    """Raises SourceUnreadable: an input error is no answer, and `Path.is_dir` may hide it."""
    try:
        return stat.S_ISDIR(os.stat(directory).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise SourceUnreadable(f"{directory} cannot be read: {error}") from error


def download_outputs(
    store: ObjectStore, job: str, target: Path, *, on_progress: OnProgress | None = None
) -> list[str]:
    """Copy the job's outputs below `target`; return their paths, sorted.

    Of files of the same name that of the newest attempt. A job that ends meanwhile writes them:
    what has changed since it was listed is listed again. Raises `ObjectMissing` when it goes on.
    """
    for _ in range(MAX_LISTINGS - 1):
        try:
            return _download_outputs(store, job, target, on_progress)
        except ObjectMissing:
            continue
    return _download_outputs(store, job, target, on_progress)


def _download_outputs(
    store: ObjectStore, job: str, target: Path, on_progress: OnProgress | None
) -> list[str]:
    folder = keys.outputs_folder(job) + "/"
    found: list[tuple[int, str, ObjectInfo]] = []
    for info in store.scan(folder[:-1]):
        attempt, _, key = info.key.removeprefix(folder).partition("/")
        if attempt.isdecimal() and key:  # else it is not ours
            found.append((int(attempt), keys.unquote(key), info))
    files: dict[str, ObjectInfo] = {}
    folders: set[str] = set()
    for _, path, info in sorted(found, key=lambda item: -item[0]):
        above = {str(parent) for parent in PurePosixPath(path).parents}
        if path not in files and path not in folders and above.isdisjoint(files):
            files[path] = info
            folders |= above
    wanted = [(info, path) for path, info in files.items()]
    return _fetch_all(store, wanted, target, on_progress, again=True)


def fetch_tree(
    spec: StorageSpec,
    target: Path,
    *,
    on_progress: OnProgress | None = None,
    staged: Staged | None = None,
) -> list[str]:
    """Copy everything below `spec.url`, or the one object that it names, below `target`.

    Returns the relative paths, sorted. A file that is there with the right size is not fetched
    again, so a killed call can be repeated; nor is one that `staged` has of an attempt before.
    Raises `ObjectMissing` when there is nothing at the URL.
    """
    store, found = _look(spec)
    if not found:
        raise ObjectMissing(f"nothing at {spec.url!r}", hint="check the URL of the data")
    wanted = [(info, info.key) for info in found]
    return _fetch_all(store, wanted, target, on_progress, again=False, staged=staged)


def restore_from_job(
    spec: StorageSpec,
    job: str,
    target: Path,
    *,
    others: Sequence[StorageSpec] = (),
    on_progress: OnProgress | None = None,
) -> Restored:
    """The newest intact checkpoint of `job` below `target`: `init_from`, and `spothop download`.

    `spec` holds the job's chain, `others` may hold data; one that an entry names and that is not
    among them is opened with the options of the first of these that has its provider.

    The job may be training: what it prunes while it is read here is missing, and then a newer
    checkpoint is in the chain. So the chain is listed again as long as it has grown meanwhile; an
    older checkpoint is taken only where the chain stands still, or after `MAX_LISTINGS`.
    """
    store = open_store(spec, create=False)
    stores = Stores(store, (spec, *others))
    found: Restored | None = None
    for _ in range(MAX_LISTINGS):
        chain = Chain(store, job)
        newest = chain.newest_number()
        try:
            entries = chain.newest_first()
            found = restore(store, entries, target, on_progress=on_progress, stores=stores)
            if not found.rejected:
                return found
        except NothingRestores:
            if Chain(store, job).newest_number() == newest:
                raise
        else:
            if Chain(store, job).newest_number() == newest:
                return found
    if found is not None:
        return found
    raise StorageUnavailable(f"job {job!r} prunes its checkpoints faster than they can be read")


def _look(spec: StorageSpec) -> tuple[ObjectStore, list[ObjectInfo]]:
    """What is below the URL; else the URL's last segment as an object."""
    missing: StorageError | None = None
    try:
        store = open_store(spec, create=False)
        if found := list(store.scan("")):
            return store, found
    except StorageError as error:
        if error.retryable:
            raise
        missing = error
    parent, _, name = spec.url.rstrip("/").rpartition("/")
    try:
        store = open_store(spec.model_copy(update={"url": parent + "/"}), create=False)
        return store, [store.info(name)]
    except StorageError as error:
        if error.retryable:
            raise
        raise ObjectMissing(
            f"nothing at {spec.url!r}: {(missing or error).message}", hint="check the URL"
        ) from error


def _fetch_all(
    store: ObjectStore,
    wanted: Sequence[tuple[ObjectInfo, str]],
    target: Path,
    on_progress: OnProgress | None,
    *,
    again: bool,
    staged: Staged | None = None,
) -> list[str]:
    """`again`: fetch also files that exist with the right size: their content may differ."""
    progress = Progress(on_progress, sum(info.size for info, _ in wanted))
    if wanted:
        target.mkdir(parents=True, exist_ok=True)

    def fetch(item: tuple[ObjectInfo, str]) -> None:
        info, path = item
        place = keys.inside(target, path)
        if not again and place.is_file() and place.stat().st_size == info.size:
            progress.add(info.size)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        if staged is not None and staged.take(store.url, info, place):
            progress.add(info.size)
            return
        _fetch(store, info, place, progress)
        if staged is not None:
            staged.fetched(store.url, info, place)

    for_each(wanted, fetch, lambda item: item[0].size)
    return sorted(path for _, path in wanted)


def _fetch(store: ObjectStore, info: ObjectInfo, place: Path, progress: Progress) -> None:
    aside = place.with_name(TEMPORARY + place.name[:100])
    try:
        aside.unlink(missing_ok=True)
        store.fetch(info.key, aside, size=info.size, on_bytes=progress.add, sync=False)
        written = aside.stat().st_size
        if written != info.size:
            raise ObjectMissing(f"{info.key!r} in {store.url} was cut short while it was read")
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)
