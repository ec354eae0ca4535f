"""Code bundles in a bucket, for masters that share no disk.

Which bundles there are says a table (`bundle_files`), and where each lies: below a name that is
used once. So a bundle that is sent again while it is deleted gets another object, and the deletion
takes the old one only. The order: object first, row last; and the row goes first, the object last.
An object without a row is from a master that died between the two; `tidy` drops it after a day.

Each master keeps those that it was asked for lately in a folder of its own.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import CursorResult, delete, func, select, update
from sqlalchemy.orm import Session

from spothop.storage import ObjectMissing, ObjectStore, StorageError
from spothop_master.bundles import BundleFile, BundleMismatch, BundleStore, Upload, checked
from spothop_master.problems import files_away
from spothop_master.store import dialects
from spothop_master.store.db import Database
from spothop_master.store.file_rows import BundleFileRow

CACHED = 2_000_000_000
"""Bytes of a master's own copies."""
FORGOTTEN = timedelta(days=1)

log = logging.getLogger(__name__)


class BucketBundles(BundleStore):
    """Its methods may wait for the bucket: call them from a thread."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        cache: Path,
        *,
        limit: int,
        clock: Callable[[], datetime],
        cached: int = CACHED,
    ) -> None:
        """`limit`: bytes of one bundle. `cache`: the folder of this master's copies, made."""
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._db, self._store, self._cache, self._clock = db, store, cache, clock
        self._limit, self._cached = limit, cached
        self._dropped: list[str] = []

    def path(self, sha256: str) -> Path | None:
        """Raises ApiError, where the bucket does not give it now."""
        with self._db.read() as session:
            row = session.get(BundleFileRow, checked(sha256))
        if row is None:
            return None
        copy = self._cache / sha256
        if not copy.is_file():
            self._fetch(row, copy)
        with suppress(FileNotFoundError):
            os.utime(copy)
        return copy

    def _fetch(self, row: BundleFileRow, copy: Path) -> None:
        aside = self._cache / f".{row.sha256}.{secrets.token_hex(4)}"
        try:
            got = self._store.fetch(row.key, aside, size=row.bytes, on_bytes=_nobody, sync=False)
            if got.sha256 != row.sha256:
                raise BundleMismatch(f"{row.key} in the master's bucket has SHA-256 {got.sha256}")
            aside.replace(copy)
        except StorageError as error:
            raise files_away(error.message) from None
        finally:
            aside.unlink(missing_ok=True)
        self._forget_copies(but=copy)

    def _forget_copies(self, *, but: Path) -> None:
        """The oldest, where there are too many."""
        copies = []
        for path in self._cache.iterdir():
            with suppress(FileNotFoundError):
                copies.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if total > self._cached and path != but:
                path.unlink(missing_ok=True)
                total -= size

    def use(self, sha256: str) -> bool:
        statement = update(BundleFileRow).where(BundleFileRow.sha256 == checked(sha256))
        with self._db.begin() as session:
            return _changed(session, statement.values(used_at=self._clock())) == 1

    def files(self) -> dict[str, BundleFile]:
        with self._db.read() as session:
            rows = session.scalars(select(BundleFileRow))
            return {row.sha256: BundleFile(bytes=row.bytes, used_at=row.used_at) for row in rows}

    def remove(self, session: Session, name: str, known: BundleFile) -> bool:
        row = session.get(BundleFileRow, name)
        if row is None:
            return False
        same = BundleFileRow.sha256 == name, BundleFileRow.used_at == known.used_at
        if not _changed(session, delete(BundleFileRow).where(*same)):
            return False
        self._dropped.append(row.key)
        return True

    def tidy(self) -> None:
        """Drop the objects of bundles that were removed, and those that never got a row."""
        with self._db.read() as session:
            known = set(session.scalars(select(BundleFileRow.key)))
        oldest = _moment(self._clock() - FORGOTTEN)
        try:
            lost = [
                info.key
                for info in self._store.scan("bundles")
                if info.key not in known and info.key.rpartition("/")[2] < oldest
            ]
            self._store.delete([*{*self._dropped, *lost} - known])
            self._dropped.clear()
        except StorageError as error:
            log.warning("code bundles stay in the bucket: %s", error)

    def bytes_of(self, names: Iterable[str]) -> int:
        which = BundleFileRow.sha256.in_([checked(name) for name in names])
        with self._db.read() as session:
            total = session.scalar(select(func.sum(BundleFileRow.bytes)).where(which))
            return int(total or 0)

    def upload(self, sha256: str, *, most: int | None = None) -> Upload:
        limit = self._limit if most is None else min(most, self._limit)
        return _Upload(self, self._cache, checked(sha256), limit)

    def keep(self, sha256: str, file: Path, size: int) -> None:
        """Put it into the bucket, and write it down. Raises ApiError."""
        now = self._clock()
        key = f"bundles/{sha256}/{_moment(now)}-{secrets.token_hex(4)}"
        try:
            self._store.send(key, file, size=size, on_bytes=_nobody)
        except StorageError as error:
            raise files_away(error.message) from None
        with self._db.begin() as session:
            made = dialects.insert(session.connection(), BundleFileRow)
            values = made.values(sha256=sha256, key=key, bytes=size, used_at=now)
            # who was faster has it in the bucket; ours is dropped, and theirs was used just now
            on_conflict = values.on_conflict_do_update(
                index_elements=[BundleFileRow.sha256], set_={"used_at": now}
            )
            session.execute(on_conflict)
            kept = session.scalar(select(BundleFileRow.key).where(BundleFileRow.sha256 == sha256))
        if kept != key:
            with suppress(StorageError, ObjectMissing):  # `tidy` would find it
                self._store.delete([key])


class _Upload(Upload):
    """Whole in the folder first, then in the bucket."""

    def __init__(self, bundles: BucketBundles, folder: Path, sha256: str, limit: int) -> None:
        super().__init__(folder, sha256, limit)
        self._bundles = bundles

    def _publish(self, aside: Path, target: Path, size: int) -> None:
        self._bundles.keep(target.name, aside, size)
        aside.replace(target)


def _changed(session: Session, statement: object) -> int:
    result = session.execute(
        statement,  # type: ignore[call-overload]
        execution_options={"synchronize_session": False},
    )
    return result.rowcount if isinstance(result, CursorResult) else 0


def _moment(at: datetime) -> str:
    """Milliseconds, so that texts sort as moments do."""
    return f"{int(at.timestamp() * 1000):014d}"


def _nobody(count: int) -> None:
    """Nobody watches how far it is."""
