"""The database: sessions in transactions. How it is migrated is in `migrating`.

SQLite (WAL) takes its write lock at the beginning of `begin()`: a transaction that reads first and
writes later would otherwise fail when another one wrote between. `read()` takes no lock.
"""

from __future__ import annotations

import heapq
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy.orm import Session

from spothop_master.clock import utc_now
from spothop_master.keys import Keys
from spothop_master.store import changes, dialects, feed, migrating, sealing, summaries

CONNECTIONS, KEPT = 80, 5
"""More than there are threads that ask (40 of the server's, 12 of the agents', and those of the
loops and clouds), so that nobody waits for one that somebody slow holds; and so many stay open."""

Listener: TypeAlias = Callable[[frozenset[str]], None]


class Turns:
    """Whose turn it is to write: one at a time, in the order in which they came, urgent ones first.
    Hardly anything is urgent, so that nobody waits for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[bool, int, threading.Lock]] = []
        self._count = 0
        self._taken = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        with self._lock:
            return len(self._waiting)

    @contextmanager
    def one(self, *, urgent: bool = False) -> Iterator[None]:
        self._wait(urgent)
        try:
            yield
        finally:
            self._pass_on()

    def _wait(self, urgent: bool) -> None:
        mine = threading.Lock()
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine.acquire()
            self._count += 1
            heapq.heappush(self._waiting, (not urgent, self._count, mine))
        mine.acquire()  # until it is passed on

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                heapq.heappop(self._waiting)[2].release()
            else:
                self._taken = False


class Database:
    """One engine; `url` is any of SQLAlchemy's for SQLite (a file) or PostgreSQL. `keys` are what
    secrets in it are encrypted with; without them none can be written or read. Raises
    `DatabaseRefused`."""

    def __init__(self, url: str, keys: Keys | None = None) -> None:
        self.engine = dialects.engine(url, kept=KEPT, most=CONNECTIONS)
        self.single_master = dialects.is_sqlite(self.engine)
        """Nobody else runs a master on this database."""
        self.master_id = str(uuid.uuid4())
        """Of this process among all that use the database."""
        self.clock: Callable[[], datetime] | None = utc_now if self.single_master else None
        """What `now` asks; None: the database's server."""
        self._info = {sealing.KEYS: keys}
        self._writes = dialects.writer(self.engine)
        self._lock = threading.Lock()
        self._listeners: list[tuple[Callable[[Session], frozenset[str]], Listener]] = []
        # SQLite's own busy wait is not fair: under load a writer starves until BUSY_S is over.
        self._turns = Turns() if self.single_master else None

    @contextmanager
    def begin(self, *, urgent: bool = False) -> Iterator[Session]:
        """A transaction that may write: commits at the end, rolls back on an exception. On SQLite
        an `urgent` one comes before all that wait and are not."""
        with (
            self._turn(urgent=urgent),
            Session(self._writes, expire_on_commit=False, info=self._info) as session,
            session.begin(),
        ):
            yield session
            summaries.keep(session)
            if dialects.is_shared(session) and (changed := changes.changed_jobs(session)):
                now = self.now(session)
                feed.publish(session, changed, master=self.master_id, now=now)
        for of_whom, listener in self._listeners:
            if jobs := of_whom(session):
                listener(jobs)

    def now(self, session: Session) -> datetime:
        """The time that all masters of this database share; leases are measured in it."""
        return dialects.now(session, self.clock)

    def _turn(self, *, urgent: bool = False) -> AbstractContextManager[Any]:
        return nullcontext() if self._turns is None else self._turns.one(urgent=urgent)

    def on_change(self, listener: Listener) -> None:
        """Call it with the ids of the jobs that a transaction of this process changed, after each
        commit, in the thread that committed. It must be quick and never raise."""
        self._listeners.append((changes.changed_jobs, listener))

    def on_hurry(self, listener: Listener) -> None:
        """As `on_change`, and after it, with the jobs of which a notice was written."""
        self._listeners.append((changes.hurried_jobs, listener))

    def on_closed(self, listener: Listener) -> None:
        """As `on_change`, with the clouds of which a transaction of this process closed something
        (`store.refusals`)."""
        self._listeners.append((changes.closed_clouds, listener))

    def on_news(self, rows: Listener, progress: Listener) -> None:
        """As `on_change`: `rows` for the jobs that changed or have new events, `progress` for all
        of which anything was written, be it a step."""
        self._listeners.append((changes.noted_jobs, rows))
        self._listeners.append((changes.moved_jobs, progress))

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads; SQLite lets it run beside a writer."""
        with (
            Session(self.engine, expire_on_commit=False, info=self._info) as session,
            session.begin(),
        ):
            yield session

    def migrate(self, revision: str = "head") -> None:
        """Up to this revision; harmless when it is there already.

        Raises `MigrationRefused` when a revision refuses what it finds, or when the database is of
        a newer master or of another program.
        """
        target = migrating.newest_revision() if revision == "head" else revision
        dialects.check(self.engine)
        with self._lock:
            migrating.migrate(self._writes, target)

    def downgrade(self, revision: str) -> None:
        """Back down to this revision: for tests only. People have the copy from before. Raises as
        `migrate` does."""
        with self._lock:
            migrating.migrate(self._writes, revision, way="downgrade")

    def revision(self) -> str | None:
        """The migration that this database is at; None when it is empty. Raises
        `MigrationRefused` as `migrate` does."""
        return migrating.revision(self.engine)

    def can_shrink(self) -> bool:
        """SQLite's file has free pages that `shrink` gives back. Files that were made before it
        could use them for what comes, and keep their size."""
        with self.engine.connect() as connection:
            return dialects.can_shrink(connection)

    def shrink(self, pages: int) -> None:
        """Give so many free pages of SQLite's file back."""
        with self._turn(), self._writes.begin() as connection:
            dialects.shrink(connection, pages)

    def forget_log(self) -> None:
        """SQLite's log (WAL) holds pages as they were: empty it."""
        if self.single_master:
            with self._turn(), self.engine.connect() as connection:
                dialects.forget_log(connection)

    def copies(self) -> list[Path]:
        """Files with this database as it was before its newest migrations."""
        return migrating.copies_of(migrating.file_of(self.engine))

    def bytes(self) -> tuple[int, int]:
        """What the database takes, and how much of that is free for what comes; 0 where it cannot
        say."""
        with self.engine.connect() as connection:
            return dialects.size(connection)

    def close(self) -> None:
        self.engine.dispose()
