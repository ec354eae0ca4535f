"""Logs of places in a bucket, for masters that share no disk.

A bucket's objects cannot grow, and a chunk of a few lines comes every few seconds from each VM. So:

1. A chunk is a row of the database, under the lock of its log's row: whoever asks any master next
   sees it, and two masters that get one chunk write it once.
2. Segments of `SEGMENT` bytes that are full go to the bucket soon, by whoever filled them, in a
   thread of its own: no VM waits for the bucket. What is left of a log that rests goes there later
   (`settle`). An object's name says which bytes it holds, and
   a byte of a log never changes: so whoever writes it writes the same, and twice is harmless.
   Only after that the row says that they are there, and their pieces go.
3. While the bucket is away logs are taken, and wait in the database: at most what a log may have.

A log that is longer than its limit loses its beginning, whole segments of it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Lock

from sqlalchemy.orm import Session

from spothop.storage import ObjectMissing, ObjectStore, StorageError
from spothop_master.logs import SAFE, LogStore, Piece, not_kept, whole_characters
from spothop_master.problems import files_away
from spothop_master.store import log_rows
from spothop_master.store.db import Database
from spothop_master.store.file_rows import LogPiece, LogRow
from spothop_master.store.log_rows import LogKey

SEGMENT = 1 << 20
"""Bytes of an object of a log."""
REMEMBERED = 16
"""Segments that were read lately are kept in memory: followers ask for pieces of them."""
RESTS = timedelta(minutes=10)
"""A log that has not grown for so long goes to the bucket wholly."""
AT_ONCE = 200

log = logging.getLogger(__name__)


class BucketLogs(LogStore):
    """All logs of the installation, at most `limit` bytes of each, the newest."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        *,
        clock: Callable[[], datetime],
        limit: int = 1_000_000_000,
        on_append: Callable[[str], None] = lambda job: None,
        segment: int = SEGMENT,
        later: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        """`on_append` hears which job's log has grown; it must be quick and never raise. `later`
        runs what waits for the bucket."""
        self._db, self._store, self._clock = db, store, clock
        self._limit = limit
        self._on_append = on_append
        self._segment = segment
        self._read: OrderedDict[str, bytes] = OrderedDict()
        self._later = later
        self._full: set[LogKey] = set()
        """Logs with segments for the bucket."""
        self._gone: set[str] = set()
        """Objects that nobody reads any more."""
        self._is_putting = False
        self._lock = Lock()

    # --- writing --------------------------------------------------------------------------------

    def append(
        self,
        job: str,
        attempt: int,
        node: int = 0,
        *,
        offset: int,
        data: bytes,
        most: int | None = None,
    ) -> int:
        limit = self._limit if most is None else min(most, self._limit)
        key = _key(job, attempt, node)
        with self._db.begin() as session:
            row = log_rows.locked(session, key, now=self._clock())
            new = data[row.size - offset :] if offset <= row.size else b""
            if not new:
                return row.size
            for begin, part in _parts(row.size, new, self._segment):
                piece = LogPiece(job_id=job, attempt=attempt, node=node, begin=begin, data=part)
                session.add(piece)
            row.size += len(new)
            row.grown_at = self._clock()
            size, gone = row.size, self._trim(session, key, row, limit)
            is_full = size // self._segment * self._segment > row.stored
        if gone or is_full:
            self._put_later({key} if is_full else set(), gone)
        self._on_append(job)
        return size

    def _put_later(self, full: set[LogKey], gone: list[str]) -> None:
        with self._lock:
            self._full |= full
            self._gone |= {*gone}
            if self._is_putting:
                return
            self._is_putting = True
        self._later(self._put_full)

    def _put_full(self) -> None:
        """Until nothing is left, or the bucket is away: the next chunk of any log tries again."""
        try:
            while (todo := self._next()) is not None and self._put_by(*todo):
                pass
        except Exception:  # such as a database that is away: nobody waits for this
            log.exception("logs wait in the database")
        finally:
            with self._lock:
                self._is_putting = False

    def _next(self) -> tuple[LogKey | None, list[str]] | None:
        with self._lock:
            if not self._full and not self._gone:
                return None
            gone = [*self._gone]
            self._gone.clear()
            return self._full.pop() if self._full else None, gone

    def settle(self) -> None:
        """Put what is left of logs that rest into the bucket."""
        with self._db.read() as session:
            found = log_rows.resting(session, before=self._clock() - RESTS, most=AT_ONCE)
        for key in found:
            if not self._put_by(key, [], rest=True):
                return  # the next run tries again

    def _trim(self, session: Session, key: LogKey, row: LogRow, limit: int) -> list[str]:
        """Where it is too long half of the limit stays; the objects that go."""
        if row.size - row.first <= limit:
            return []
        before, stored = row.first, row.stored
        row.first = max(before, (row.size - limit // 2) // self._segment * self._segment)
        row.stored = max(stored, row.first)
        log_rows.drop_pieces(session, key, before=row.first)
        return [
            self._name(key, begin, min(self._segment, stored - begin))
            for begin in range(before, min(row.first, stored), self._segment)
        ]

    def _put_by(self, key: LogKey | None, gone: list[str], *, rest: bool = False) -> bool:
        """Into the bucket: what is full, or all. False where the bucket is away."""
        try:
            if gone:
                self._store.delete(gone)
            while key is not None and self._put_next(key, rest=rest):
                pass
        except StorageError as error:
            log.warning("logs wait in the database: %s", error)
            with self._lock:
                self._gone |= {*gone}
            return False
        return True

    def _put_next(self, key: LogKey, *, rest: bool) -> bool:
        """One segment; False when there was none."""
        with self._db.read() as session:
            row = log_rows.get(session, key)
            if row is None:
                return False
            before = row.stored
            begin = before // self._segment * self._segment
            end = min(begin + self._segment, row.size)
            if end == before or (end < begin + self._segment and not rest):
                return False
            found = log_rows.pieces(session, key, begin=before, end=end)
        head = self._object(self._name(key, begin, before - begin)) if before > begin else b""
        self._store.put(self._name(key, begin, end - begin), head + b"".join(d for _, d in found))
        with self._db.begin() as session:
            was_first = log_rows.stored(session, key, before=before, now=end)
        if was_first and before > begin:
            self._delete([self._name(key, begin, before - begin)])
        return True

    # --- reading --------------------------------------------------------------------------------

    def size(self, job: str, attempt: int, node: int = 0) -> int:
        with self._db.read() as session:
            row = log_rows.get(session, _key(job, attempt, node))
            return 0 if row is None else row.size

    def read(
        self, job: str, attempt: int, node: int = 0, *, offset: int, limit: int = 256 * 1024
    ) -> Piece:
        """Raises ApiError, where the bucket does not give it now."""
        key = _key(job, attempt, node)
        with self._db.read() as session:
            row = log_rows.get(session, key)
            if row is None or offset >= row.size:
                return Piece(data=b"", next_offset=offset)
            begin = max(offset, row.stored) // self._segment * self._segment
            found = log_rows.pieces(session, key, begin=begin, end=offset + limit)
        if offset < row.first:
            return not_kept(offset, row.first)
        data = b""
        while len(data) < limit and offset + len(data) < row.stored:
            try:
                data += self._of_segment(key, row.stored, offset + len(data))
            except ObjectMissing:  # removed at this moment
                return Piece(data=b"", next_offset=offset)
            except StorageError as error:
                raise files_away(error.message) from None
        for begin, part in found:
            at = offset + len(data)
            if begin <= at < begin + len(part):
                data += part[at - begin :]
        data = data[:limit]
        if offset + len(data) < row.size:
            data = whole_characters(data)
        return Piece(data=data, next_offset=offset + len(data))

    def _of_segment(self, key: LogKey, stored: int, offset: int) -> bytes:
        begin = offset // self._segment * self._segment
        name = self._name(key, begin, min(self._segment, stored - begin))
        return self._object(name)[offset - begin :]

    def _object(self, name: str) -> bytes:
        with self._lock:
            if name in self._read:
                self._read.move_to_end(name)
                return self._read[name]
        data = self._store.get(name)
        with self._lock:
            self._read[name] = data
            while len(self._read) > REMEMBERED:
                self._read.popitem(last=False)
        return data

    # --- what there is --------------------------------------------------------------------------

    def folders(self) -> dict[str, int]:
        with self._db.read() as session:
            return log_rows.bytes_by_job(session)

    def bytes_of(self, job: str) -> int:
        with self._db.read() as session:
            return log_rows.bytes_by_job(session, [job]).get(job, 0)

    def remove(self, job: str, text: str) -> None:
        with self._db.begin() as session:  # first: a log that is half gone says so too
            log_rows.locked(session, _key(job, 0, 0), now=self._clock()).removed = text
        self._delete_all(job)
        with self._db.begin() as session:
            log_rows.forget(session, job, but_why=True)

    def forget(self, job: str) -> None:
        self._delete_all(job)
        with self._db.begin() as session:
            log_rows.forget(session, job)

    def removed(self, job: str) -> str:
        with self._db.read() as session:
            row = log_rows.get(session, _key(job, 0, 0))
            return "" if row is None else row.removed or ""

    def _delete_all(self, job: str) -> None:
        try:
            found = [info.key for info in self._store.scan(f"logs/{_key(job, 0, 0).job}")]
            self._store.delete(found)
        except StorageError as error:
            log.warning("log of job %s stays in the bucket: %s", job, error)

    def _delete(self, names: list[str]) -> None:
        try:
            self._store.delete(names)
        except StorageError as error:
            log.warning("objects of a log stay in the bucket: %s", error)

    def _name(self, key: LogKey, begin: int, length: int) -> str:
        place = f"{key.attempt}-{key.node}"
        return f"logs/{key.job}/{place}/{begin // self._segment:08d}-{length:07d}"


def _key(job: str, attempt: int, node: int) -> LogKey:
    if not SAFE.fullmatch(job):
        raise ValueError(f"{job!r} cannot name a log folder")
    return LogKey(job=job, attempt=attempt, node=node)


def _parts(begin: int, data: bytes, segment: int) -> list[tuple[int, bytes]]:
    """Cut where segments end."""
    found = []
    while data:
        length = segment - begin % segment
        found.append((begin, data[:length]))
        begin, data = begin + length, data[length:]
    return found
