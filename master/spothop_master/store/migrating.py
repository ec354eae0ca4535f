"""Bringing a database to this program's revision: one at a time, with a copy, or not at all.

What it guarantees: whatever happens on the way, the database is at its old revision with its old
rows, or at the new one with all of them. Four rules:

1. One migrates at a time, among all processes that open the database: a lock is held from the look
   at the revision to the commit. It is a file lock beside a SQLite file, an advisory lock in
   PostgreSQL; both go with a process that dies.
2. A revision that this program does not know is not touched: neither a newer one's, nor another
   program's tables. There is no way back but a copy.
3. Of a SQLite file a copy is kept beside it, made inside the transaction that migrates, so that
   nothing is written between the two. The newest two stay.
4. SQLite alters a table by copying it and dropping the old one, which would delete or refuse what
   refers to its rows. So its foreign keys are off meanwhile, which they can only be outside a
   transaction, and what they would have found is looked for before the commit.

Alembic is half a second of a master's start. It is imported when there is something to migrate.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path

import sqlalchemy as sa

from spothop.figures import size as size_text
from spothop_master.store.dialects import DatabaseRefused, is_sqlite

log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).resolve().parent.parent / "_migrations"
"""A relative link to `migrations/` in the repository; a real folder in a wheel."""

COPIES = 2
"""Of a SQLite file, from before its newest migrations."""

ROOM = 2
"""A copy is made where the disk has this many times its size: the migration needs room, too."""

PATIENCE_S = 900.0
"""How long another process may take to migrate."""

_ASK_AGAIN_S = 0.2
_ADVISORY_LOCK = 0x73706F74  # any number that is always the same: "spot"
_OURS = "vms"
"""A table that every revision has."""


class MigrationRefused(DatabaseRefused):
    """Nothing was changed; the message says why, and the way out."""


def known_revisions() -> list[str]:
    """From the names of the migrations' files: `v0004_places.py` holds revision 0004."""
    return sorted(path.name[1:5] for path in (MIGRATIONS / "versions").glob("v*.py"))


def newest_revision() -> str:
    return known_revisions()[-1]


def revision(engine: sa.Engine) -> str | None:
    """The migration that this database is at; None when it is empty.

    Raises `MigrationRefused` for one of a newer program, and for tables that are not ours.
    """
    with engine.connect() as connection:
        tables = set(sa.inspect(connection).get_table_names())
        found: str | None = None
        if "alembic_version" in tables:
            found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    known = known_revisions()
    if found in known and _OURS in tables:
        return found
    if found is None and not tables - {"alembic_version"}:
        return None
    if found is not None and _OURS in tables and found.isdigit() and found > known[-1]:
        raise MigrationRefused(_is_newer(engine, found))
    some = ", ".join(sorted(tables - {"alembic_version"})[:3]) or "none"
    raise MigrationRefused(
        f"it is not a database of spothop (its tables: {some}; its revision: {found or 'none'}), "
        "and nothing in it was changed; give the master a database of its own"
    )


def _is_newer(engine: sa.Engine, found: str) -> str:
    before = [path for path in copies_of(file_of(engine)) if path.suffix[-4:] > newest_revision()]
    way_back = f", or put the copy from before back in its place: {before[-1]}" if before else ""
    return (
        f"it is at revision {found}, of a newer spothop: this one ({version('spothop')}) knows "
        f"revisions up to {newest_revision()}, and nothing in it was changed; install the newer "
        f"one again{way_back}"
    )


def migrate(
    engine: sa.Engine, target: str, *, way: str = "upgrade", patience_s: float = PATIENCE_S
) -> None:
    """To this revision; harmless when it is there already. Raises `MigrationRefused`."""
    if revision(engine) == target:
        return
    with _locked(engine, patience_s):
        before = revision(engine)  # another process may have done it meanwhile
        if before != target:
            _run(engine, way, before, target)


def file_of(engine: sa.Engine) -> Path | None:
    """Of a SQLite database that is in a file."""
    name = engine.url.database
    if not is_sqlite(engine) or not name or name == ":memory:":
        return None
    return Path(name).absolute()


def copies_of(path: Path | None) -> list[Path]:
    """From before migrations, newest revision first."""
    if path is None:
        return []
    return sorted(path.parent.glob(f"{path.name}.before-[0-9][0-9][0-9][0-9]"), reverse=True)


def _run(engine: sa.Engine, way: str, before: str | None, target: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    path = file_of(engine)
    with engine.connect() as connection, _unguarded(connection), connection.begin():
        if path is not None and before is not None:
            _keep_copy(path, target)
        config.attributes["connection"] = connection
        try:
            getattr(command, way)(config, target)
        except CommandError as error:
            raise MigrationRefused(str(error)) from error
        if is_sqlite(engine):
            _check_foreign_keys(connection)


# --- one at a time ------------------------------------------------------------------------------


@contextmanager
def _locked(engine: sa.Engine, patience_s: float) -> Iterator[None]:
    """Raises `MigrationRefused` when another process holds it for longer than `patience_s`."""
    path = file_of(engine)
    if path is not None:
        with path.with_name(f"{path.name}.migrating").open("a") as file:
            _wait(lambda: _lock_file(file.fileno()), patience_s)
            yield
    elif not is_sqlite(engine):
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            lock = sa.func.pg_try_advisory_lock(_ADVISORY_LOCK)
            _wait(lambda: bool(connection.scalar(sa.select(lock))), patience_s)
            try:
                yield
            finally:  # the connection goes back to the pool, and would keep it
                connection.execute(sa.select(sa.func.pg_advisory_unlock(_ADVISORY_LOCK)))
    else:  # in memory: nobody else has it
        yield


def _lock_file(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _wait(is_mine: Callable[[], bool], patience_s: float) -> None:
    until, told = time.monotonic() + patience_s, False
    while not is_mine():
        if not told:
            log.warning("another master is migrating this database; waiting until it is done")
            told = True
        if time.monotonic() > until:
            raise MigrationRefused(
                f"another master has been migrating it for over {patience_s:g} s; "
                "see what that one does, and start this one again"
            )
        time.sleep(_ASK_AGAIN_S)


# --- SQLite -------------------------------------------------------------------------------------


@contextmanager
def _unguarded(connection: sa.Connection) -> Iterator[None]:
    """Without foreign keys. The switch does nothing inside a transaction."""
    if not is_sqlite(connection):
        yield
        return
    _foreign_keys(connection, "OFF")
    try:
        yield
    finally:
        _foreign_keys(connection, "ON")


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


def _keep_copy(path: Path, target: str) -> None:
    """Beside the file, as `<file>.before-<revision>`; whole, or not there. The caller's transaction
    holds the write lock, so nothing changes while it is made."""
    copy = path.with_name(f"{path.name}.before-{target}")
    needed = path.stat().st_size + _size(path.with_name(f"{path.name}-wal"))
    free = shutil.disk_usage(path.parent).free
    if free < ROOM * needed:
        log.warning(
            "no copy of %s before its migration to %s: it has %s, and its disk %s left",
            *(path, target, size_text(needed), size_text(free)),
        )
        return
    aside = path.with_name(f".{copy.name}.{os.getpid()}")
    try:
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))  # it holds secrets
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(aside)) as made:
            source.backup(made)
        aside.replace(copy)
    except (OSError, sqlite3.Error) as error:
        raise MigrationRefused(
            f"no copy of it could be made before its migration ({error}); make room beside it"
        ) from error
    finally:
        aside.unlink(missing_ok=True)
    log.info("kept a copy of the database before its migration: %s (%s)", copy, size_text(needed))
    for older in copies_of(path)[COPIES:]:
        older.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
