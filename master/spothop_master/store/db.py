"""The database: sessions in transactions, and the migrations.

SQLite (WAL) takes its write lock at the beginning of `begin()`: a transaction that reads first and
writes later would otherwise fail when another one wrote between. `read()` takes no lock.

Alembic is half a second of a master's start. It is imported when there is something to migrate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from spothop_master.store.changes import changed_jobs

MIGRATIONS = Path(__file__).resolve().parent.parent / "_migrations"
"""A relative link to `migrations/` in the repository; a real folder in a wheel."""

BUSY_S = 5


class MigrationRefused(Exception):
    """Nothing was changed; the message says why."""


class Database:
    """One engine; `url` is any of SQLAlchemy's for SQLite (a file) or PostgreSQL."""

    def __init__(self, url: str) -> None:
        parsed = sa.make_url(url)
        self.single_master = parsed.get_backend_name() == "sqlite"
        """Nobody else runs a master on this database."""
        if parsed.get_backend_name() == "postgresql" and parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        # A failed statement is logged; its values hold what users keep secret.
        self.engine = sa.create_engine(parsed, hide_parameters=True)
        self._writes = self.engine
        self._lock = threading.Lock()
        self._listeners: list[Callable[[frozenset[str]], None]] = []
        self._turn: AbstractContextManager[Any] = nullcontext()
        if self.single_master:
            # SQLite's own busy wait is not fair: under load a writer starves until BUSY_S is over.
            self._turn = threading.Lock()
            sa.event.listen(self.engine, "connect", _configure_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)
            self._writes = self.engine.execution_options(spothop_begin="BEGIN IMMEDIATE")

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """A transaction that may write: commits at the end, rolls back on an exception."""
        with self._turn, Session(self._writes, expire_on_commit=False) as session:
            with session.begin():
                yield session
            changed = changed_jobs(session)
        if changed:
            for listener in self._listeners:
                listener(changed)

    def on_change(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Call it with the ids of the jobs that a transaction of this process changed, after each
        commit, in the thread that committed. It must be quick and never raise."""
        self._listeners.append(listener)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads; SQLite lets it run beside a writer."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def migrate(self, revision: str = "head") -> None:
        """Up to this revision; harmless when it is there already.

        Raises `MigrationRefused` when a revision refuses what it finds, or when the database is of
        a newer master.
        """
        if revision != "head" or self.revision() != newest_revision():
            self._alembic("upgrade", revision)

    def downgrade(self, revision: str) -> None:
        """Back down to this revision: for tests, and for people who know why. Raises as `migrate`
        does."""
        self._alembic("downgrade", revision)

    def revision(self) -> str | None:
        """The migration that this database is at; None when it is at none."""
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            return found if found is None else str(found)

    def _alembic(self, order: str, revision: str) -> None:
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with (
            self._lock,
            self._writes.connect() as connection,
            self._unguarded(connection),
            connection.begin(),
        ):
            config.attributes["connection"] = connection
            try:
                getattr(command, order)(config, revision)
            except CommandError as error:
                raise MigrationRefused(str(error)) from error
            if self.single_master:
                _check_foreign_keys(connection)

    @contextmanager
    def _unguarded(self, connection: sa.Connection) -> Iterator[None]:
        """SQLite alters a table by copying it and dropping the old one, which would delete or
        refuse what refers to its rows. The switch does nothing inside a transaction."""
        if not self.single_master:
            yield
            return
        _foreign_keys(connection, "OFF")
        try:
            yield
        finally:
            _foreign_keys(connection, "ON")

    def close(self) -> None:
        self.engine.dispose()


def newest_revision() -> str:
    """From the names of the migrations' files: `v0004_places.py` holds revision 0004."""
    return max(path.name[1:5] for path in (MIGRATIONS / "versions").glob("v*.py"))


def _foreign_keys(connection: sa.Connection, how: str) -> None:
    """Past SQLAlchemy, which would begin a transaction for it."""
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA foreign_keys={how}")
    cursor.close()


def _check_foreign_keys(connection: sa.Connection) -> None:
    """What the switched-off guard would have found."""
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    if broken:
        tables = ", ".join(sorted({str(row[0]) for row in broken}))
        raise MigrationRefused(f"{len(broken)} rows refer to rows that are not there, in {tables}")


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself; `_begin_sqlite` does
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_S * 1000}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    how = connection.get_execution_options().get("spothop_begin", "BEGIN")
    connection.exec_driver_sql(how)
