"""New databases for tests: a migrated one is made once per process, and then copied."""

from __future__ import annotations

import functools
import tempfile
import threading
from pathlib import Path

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
    return _opened[-1]


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
