"""Which places in storage a job may name: not the master's own, and not those of other users' jobs.

A job reads and writes with the VM's rights, or with credentials that it shares with other jobs; so
what one user's job may not touch has to be refused before it runs. What this cannot see are names
that look different and mean the same bucket, such as an `https://` address of an `s3://` one, and
what a script does by itself: users who do not trust each other need credentials of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop import storageoptions
from spothop.jobspec import JobSpec
from spothop.wire import StorageSpec
from spothop_master import files
from spothop_master.problems import ApiError
from spothop_master.security import Principal
from spothop_master.settings import MasterSettings
from spothop_master.store.schema import Job

ROOTS = "SPOTHOP_MASTER_STORAGE_ROOTS"
JOBS = "jobs"
"""Below a storage: the folder of all jobs' folders."""
_SAME = {"s3a": "s3", "azure": "az", "adl": "az", "abfs": "az", "abfss": "az"}


_BUCKETS = ("s3", "s3a", "gs")


def _names(path: str) -> tuple[str, ...]:
    """Of the folders on the way, as obstore finds them: `.` and `..` as in URLs."""
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return tuple(names)


@dataclass(frozen=True)
class Place:
    """A folder of a store, its name without what means nothing."""

    store: str
    path: tuple[str, ...]

    @classmethod
    def of(cls, url: str) -> Place:
        folder = storageoptions.folder_of(url)
        if folder is not None:  # links are followed: they lead to one place
            return cls.of_folder(Path(folder))
        parts = urlsplit(url)
        host = parts.netloc.lower()
        if parts.scheme in _BUCKETS:  # obstore reads neither a user nor a port there
            host = host.rpartition("@")[2].partition(":")[0]
        return cls(f"{_SAME.get(parts.scheme, parts.scheme)}://{host}", _names(unquote(parts.path)))

    @classmethod
    def as_written(cls, url: str) -> Place:
        """As `of`, but no link is followed: whoever owns a folder on the way may set it anew."""
        folder = storageoptions.folder_of(url)
        return cls.of(url) if folder is None else cls("file://", _names(folder))

    @classmethod
    def of_folder(cls, folder: Path) -> Place:
        return cls("file://", tuple(part for part in os.path.realpath(folder).split("/") if part))

    @property
    def is_folder(self) -> bool:
        return self.store == "file://"

    def below(self, *names: str) -> Place:
        return Place(self.store, (*self.path, *names))

    def holds(self, other: Place) -> bool:
        """The other one is this one, or inside it."""
        return self.store == other.store and other.path[: len(self.path)] == self.path


def check_places(
    session: Session, user: Principal, spec: JobSpec, settings: MasterSettings
) -> None:
    """Raises ApiError for the first place that this user's job may not name."""
    for field, storage in storages(spec):
        url = storage.url
        place = Place.of(url)
        _check_root(field, url, place, settings)
        for each in (place, Place.as_written(url)):
            if _own_folders(session, each, settings) is not None:
                raise _refusal(field, url, "is inside a job's folder")
    for field, url in inputs(spec):
        place = Place.of(url)
        _check_root(field, url, place, settings)
        _check_read(session, user, field, url, place, settings)


def storages(spec: JobSpec) -> Iterator[tuple[str, StorageSpec]]:
    """Those that the job file names, each with its field; the first holds the chain."""
    given = spec.checkpoint.storage
    for at, each in enumerate(given.all() if given is not None else ()):
        number = f"[{at}]" if given is not None and given.others else ""
        yield f"checkpoint.storage{number}", each.spec()


def inputs(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """What a job reads, with the field that names it."""
    for folder, url in spec.data.items():
        yield f"data.{folder}", url
    source = spec.checkpoint.init_from
    if source is not None and not source.startswith("job:"):
        yield "checkpoint.init_from", source


def _check_root(field: str, url: str, place: Place, settings: MasterSettings) -> None:
    if not place.is_folder:
        own = Place.of(files.spec_of(settings.files_url).url) if settings.files_url else None
        if own is not None and (place.holds(own) or own.holds(place)):
            raise _refusal(field, url, "is where the master keeps its own files, or holds it")
        return
    roots = [Place.of_folder(root) for root in settings.storage_roots]
    if not any(root.holds(place) for root in roots):
        shown = ", ".join(str(root) for root in settings.storage_roots)
        raise ApiError(
            422,
            "bad_storage",
            f"{field}: {_shown(url)} is below no folder that this master gives to jobs ({shown})",
            f"use a folder below these, or ask the admin to name more in {ROOTS}",
            field=field,
        )
    shared = [Place.of_folder(settings.home / "storage"), Place.of(settings.storage_url)]
    for own in (Place.of_folder(settings.home), Place.of_folder(settings.files)):
        if place.holds(own) or (own.holds(place) and not any(s.holds(place) for s in shared)):
            raise _refusal(field, url, "is the master's own folder, or holds it")


def _check_read(
    session: Session,
    user: Principal,
    field: str,
    url: str,
    place: Place,
    settings: MasterSettings,
) -> None:
    """Of what a job reads. Who may see all jobs may read all."""
    if user.sees_owner is None:
        return
    named = _own_folders(session, place, settings)
    if named is not None and (named.job is None or not user.may_see(named.job.owner_id)):
        raise _refusal(field, url, "is inside the folder of another job, or of all jobs")
    for storage in {settings.storage_url, *_storages_of_others(session, user)}:
        if place.holds(Place.of(storage).below(JOBS)):
            raise _refusal(field, url, "holds the folders of other users' jobs")


@dataclass(frozen=True)
class _Named:
    """A place that is a job's folder, or inside one. `job` None: of all jobs, or of one unknown."""

    job: Job | None


def _own_folders(session: Session, place: Place, settings: MasterSettings) -> _Named | None:
    """Whose folder it is in; None where it is in no job's."""
    if Place.of(settings.storage_url).below(JOBS).holds(place):
        rest = place.path[len(Place.of(settings.storage_url).path) + 1 :]
        return _Named(session.get(Job, rest[0]) if rest else None)
    for above, name in zip(place.path, place.path[1:], strict=False):
        if above == JOBS and (job := session.get(Job, name)) is not None:
            return _Named(job)
    return None


def _storages_of_others(session: Session, user: Principal) -> set[str]:
    """URLs of the storages that jobs of other users have named."""
    storage = Job.spec["checkpoint"]["storage"]
    found: set[str] = set()
    for column in (storage, storage["url"]):
        column_text = column.as_string()
        others = (Job.owner_id != user.user_id, column_text.is_not(None))
        asked = select(column_text).where(*others).distinct()
        for text in session.scalars(asked):
            if text and text.startswith("["):
                items = json.loads(text)
                found.update(each if isinstance(each, str) else each["url"] for each in items)
            elif text and not text.startswith("{"):
                found.add(text)
    return found


def _shown(url: str) -> str:
    return repr(storageoptions.without_password(url))


def _refusal(field: str, url: str, fact: str) -> ApiError:
    return ApiError(
        422,
        "bad_storage",
        f"{field}: {_shown(url)} {fact}",
        "name another folder; `init_from: job:<id>` begins with a checkpoint of a job that you see",
        field=field,
    )
