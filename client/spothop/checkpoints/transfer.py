"""Whole trees without a chain: a job's outputs, data sets, and input checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spothop.checkpoints import keys
from spothop.checkpoints.chain import Chain
from spothop.checkpoints.parallel import OnProgress, Progress, for_each
from spothop.checkpoints.restore import Restored, restore
from spothop.checkpoints.upload import Source, list_sources, send_file
from spothop.storage import ObjectInfo, ObjectMissing, ObjectStore, StorageError, open_store
from spothop.storage.folder import TEMPORARY
from spothop.wire import StorageSpec


def upload_outputs(
    store: ObjectStore, job: str, directory: Path, *, on_progress: OnProgress | None = None
) -> list[str]:
    """Copy every file below `directory` to the job's outputs; return their paths, sorted.

    Files of the same name are replaced, others stay. No directory means no outputs. Empty
    directories are not kept. Raises like `upload`.
    """
    if not directory.is_dir():
        return []
    sources = [item for item in list_sources(directory) if item.file is not None]
    progress = Progress(on_progress, sum(item.size for item in sources))
    folder = keys.outputs_folder(job)

    def send(item: Source) -> None:
        send_file(store, f"{folder}/{keys.quote(item.path)}", item, progress)

    for_each(sources, send, lambda item: item.size)
    return [item.path for item in sources]


def download_outputs(
    store: ObjectStore, job: str, target: Path, *, on_progress: OnProgress | None = None
) -> list[str]:
    """Copy the job's outputs below `target`; return their paths, sorted."""
    folder = keys.outputs_folder(job) + "/"
    wanted = [
        (info, keys.unquote(info.key.removeprefix(folder))) for info in store.scan(folder[:-1])
    ]
    return _fetch_all(store, wanted, target, on_progress)


def fetch_tree(
    spec: StorageSpec, target: Path, *, on_progress: OnProgress | None = None
) -> list[str]:
    """Copy everything below `spec.url`, or the one object that it names, below `target`.

    Returns the relative paths, sorted. A file that is there with the right size is not fetched
    again, so a killed call can be repeated. Raises `ObjectMissing` when there is nothing at the
    URL.
    """
    store, found = _look(spec)
    if not found:
        raise ObjectMissing(f"nothing at {spec.url!r}", cure="check the URL of the data")
    return _fetch_all(store, [(info, info.key) for info in found], target, on_progress)


def restore_from_job(
    spec: StorageSpec, job: str, target: Path, *, on_progress: OnProgress | None = None
) -> Restored:
    """The newest intact checkpoint of `job` below `target`: `init_from`, and `spothop download`."""
    store = open_store(spec, create=False)
    return restore(store, Chain(store, job).newest_first(), target, on_progress=on_progress)


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
        return store, [ObjectInfo(name, store.size(name))]
    except StorageError as error:
        if error.retryable:
            raise
        raise ObjectMissing(
            f"nothing at {spec.url!r}: {(missing or error).message}", cure="check the URL"
        ) from error


def _fetch_all(
    store: ObjectStore,
    wanted: Sequence[tuple[ObjectInfo, str]],
    target: Path,
    on_progress: OnProgress | None,
) -> list[str]:
    progress = Progress(on_progress, sum(info.size for info, _ in wanted))
    target.mkdir(parents=True, exist_ok=True)

    def fetch(item: tuple[ObjectInfo, str]) -> None:
        info, path = item
        _fetch(store, info, keys.inside(target, path), progress)

    for_each(wanted, fetch, lambda item: item[0].size)
    return sorted(path for _, path in wanted)


def _fetch(store: ObjectStore, info: ObjectInfo, place: Path, progress: Progress) -> None:
    if place.is_file() and place.stat().st_size == info.size:
        progress.add(info.size)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
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
