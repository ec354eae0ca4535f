"""New databases for tests: a migrated one is made once per process, and then copied. Statements are
compiled once per process too.

A test that is marked `databases` runs on SQLite and on PostgreSQL (see tests/conftest.py); where it
gets its databases here, and says which one only by a file's name, it need not know on which.
"""

from __future__ import annotations

import functools
import tempfile
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import LRUCache

from spothop_master.keys import Keys
from spothop_master.store.db import Database
from support import postgres

SQLITE, POSTGRESQL = "sqlite", "postgresql"

KEYS = Keys.of(bytes(32))
"""Of the databases of tests."""

_kind: list[str] = [SQLITE]
_otherwise: list[str] = [SQLITE]
"""For tests that are not marked."""
_opened: list[Database] = []
_urls: dict[Path, str] = {}
"""Databases of PostgreSQL by the file that SQLite would have had."""
_one_at_a_time = threading.Lock()


def use(kind: str, *, always: bool = False) -> None:
    """Have this test's databases be of this kind, or those of all tests. Skips the test where
    PostgreSQL is not installed."""
    if kind == POSTGRESQL and not always:
        postgres.server()
    _kind[0] = kind
    if always:
        _otherwise[0] = kind


def on_postgresql() -> bool:
    return _kind[0] == POSTGRESQL


def new_database(path: Path) -> Database:
    """A migrated database, on SQLite in this file, which must not be there yet. The test need not
    close it."""
    write_migrated(path)
    db = open_database(path)
    share_compiled(db)
    sa.event.listen(db.engine, "connect", _sync_nothing)
    return db


def open_database(path: Path, keys: Keys | None = KEYS) -> Database:
    """Whatever is there. The test need not close it."""
    _opened.append(Database(url_of(path), keys))
    return _opened[-1]


def empty(path: Path) -> Path:
    """The same path, below which a database may be made: nothing is there yet, on PostgreSQL but
    for an empty database."""
    path.parent.mkdir(parents=True, exist_ok=True)
    url_of(path)
    return path


def _sync_nothing(connection: Any, _record: object) -> None:
    """Tests survive no power cut; the disk of a test machine may be slow."""
    if not on_postgresql():
        connection.execute("PRAGMA synchronous=OFF")


def url_of(path: Path) -> str:
    """Of the database that has this file on SQLite; on PostgreSQL it is made, empty, when it is
    first asked for."""
    if not on_postgresql():
        return f"sqlite:///{path}"
    if path not in _urls:
        _urls[path] = postgres.server().empty()
    return _urls[path]


_STATEMENTS = 5000
"""More than all tests of a process send; forgetting the oldest looks through all of them."""
_first: dict[str, Database] = {}
_compiled: dict[str, LRUCache[Any, Any]] = {
    kind: LRUCache(_STATEMENTS) for kind in (SQLITE, POSTGRESQL)
}


def share_compiled(db: Database) -> None:
    """Have this database, to which nobody is connected yet, use what others have compiled.

    Each engine compiles a statement when it first sends it. A master does so once; with an engine
    for each test that was a fifth of the CPU time. SQLAlchemy takes a compiled statement only for
    the dialect object that it was compiled for, so all engines get the same one.
    """
    kind = db.engine.dialect.name
    if kind not in _first:
        with db.engine.connect():  # the first connection tells the dialect what there is
            _first[kind] = db
    dialect = _first[kind].engine.dialect
    for engine in (db.engine, db._writes):
        engine.dialect = dialect
        engine._compiled_cache = _compiled[kind]
    db.engine.pool._dialect = dialect


def made() -> frozenset[Path]:
    """The databases of PostgreSQL that there are: those of a module, at the start of a test."""
    return frozenset(_urls)


def close_all(*, but: frozenset[Path] = frozenset()) -> None:
    """Those of a test; `but` are of its module. Closing one twice is harmless. One that is not
    closed warns since Python 3.13: when it is collected, in whatever test runs then."""
    while _opened:
        _opened.pop().close()
    for path in _urls.keys() - but:
        postgres.server().drop(_urls.pop(path))
    _kind[0] = _otherwise[0]


def write_migrated(path: Path, revision: str = "head") -> None:
    """What `Database.migrate` leaves in a new database, in one hundredth of its time."""
    with _one_at_a_time:  # Alembic knows one migration under way in a process
        if on_postgresql():
            _urls[path] = postgres.server().migrated(revision)
            return
        content = _migrated(revision)
    path.write_bytes(content)


def is_there(path: Path) -> bool:
    """A database was made for this file."""
    return path in _urls if on_postgresql() else path.exists()


@functools.cache
def _migrated(revision: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        db = Database(f"sqlite:///{path}")
        db.migrate(revision)
        db.close()  # the last connection writes the log of SQLite (WAL) back into the file
        return path.read_bytes()
