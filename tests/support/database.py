"""New databases for tests: a migrated one is made once per process, and then copied."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from spothop_master.store.db import Database


def new_database(path: Path) -> Database:
    """A migrated SQLite database in this file, which must not be there yet."""
    write_migrated(path)
    return Database(f"sqlite:///{path}")


def write_migrated(path: Path) -> None:
    """What `Database.migrate` leaves in a new file, in one hundredth of its time."""
    path.write_bytes(_migrated())


@functools.cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        db = Database(f"sqlite:///{path}")
        db.migrate()
        db.close()  # the last connection writes the log of SQLite (WAL) back into the file
        return path.read_bytes()
