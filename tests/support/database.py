"""New databases for tests: a migrated one is made once per process, and then copied. Statements are
compiled once per process too."""

from __future__ import annotations

import functools
import tempfile
import threading
from pathlib import Path
from typing import Any

from sqlalchemy.util import LRUCache

from spothop_master.keys import Keys
from spothop_master.store.db import Database

KEYS = Keys.of(bytes(32))
"""Of the databases of tests."""

_opened: list[Database] = []
_one_at_a_time = threading.Lock()


def new_database(path: Path) -> Database:
    """A migrated SQLite database in this file, which must not be there yet. The test need not close
    it."""
    write_migrated(path)
    _opened.append(Database(f"sqlite:///{path}", KEYS))
    share_compiled(_opened[-1])
    return _opened[-1]


_STATEMENTS = 5000
"""More than all tests of a process send; forgetting the oldest looks through all of them."""
_first: list[Database] = []
_compiled: LRUCache[Any, Any] = LRUCache(_STATEMENTS)


def share_compiled(db: Database) -> None:
    """Have this SQLite database, to which nobody is connected yet, use what others have compiled.

    Each engine compiles a statement when it first sends it. A master does so once; with an engine
    for each test that was a fifth of the CPU time. SQLAlchemy takes a compiled statement only for
    the dialect object that it was compiled for, so all engines get the same one.
    """
    if not _first:
        with db.engine.connect():  # the first connection tells the dialect what SQLite can do
            _first.append(db)
    dialect = _first[0].engine.dialect
    for engine in (db.engine, db._writes):
        engine.dialect = dialect
        engine._compiled_cache = _compiled
    db.engine.pool._dialect = dialect


def close_all() -> None:
    """Closing one twice is harmless. One that is not closed warns since Python 3.13: when it is
    collected, in whatever test runs then."""
    while _opened:
        _opened.pop().close()


def write_migrated(path: Path, revision: str = "head") -> None:
    """What `Database.migrate` leaves in a new file, in one hundredth of its time."""
    with _one_at_a_time:  # Alembic knows one migration under way in a process
        content = _migrated(revision)
    path.write_bytes(content)


@functools.cache
def _migrated(revision: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        db = Database(f"sqlite:///{path}")
        db.migrate(revision)
        db.close()  # the last connection writes the log of SQLite (WAL) back into the file
        return path.read_bytes()
