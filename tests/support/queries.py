"""What the statements of a database cost: how SQLite goes about each, and how much it does.

Nothing here measures time. `captured` takes the statements while the real functions run, so that a
new one is looked at without being listed anywhere; `work` counts the instructions of SQLite's
virtual machine, which are the same on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from spothop_master.store.db import Database

_STEP = 10
"""Instructions between two calls of SQLite's progress handler."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One that was executed, with its (first) values."""

    text: str
    values: Any


@contextmanager
def captured(db: Database) -> Iterator[dict[str, Statement]]:
    """Everything that reads rows while the block runs, by its text; filled until its end."""
    found: dict[str, Statement] = {}

    def note(
        _connection: sa.Connection, _cursor: Any, text: str, values: Any, _context: Any, many: bool
    ) -> None:
        if text.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            found.setdefault(text, Statement(text=text, values=values[0] if many else values))

    sa.event.listen(db.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(db.engine, "before_cursor_execute", note)


@contextmanager
def counted(db: Database) -> Iterator[list[str]]:
    """Every statement while the block runs, each time it is executed; filled until its end."""
    found: list[str] = []

    def note(_connection: sa.Connection, _cursor: Any, text: str, *_: Any) -> None:
        found.append(text)

    sa.event.listen(db.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(db.engine, "before_cursor_execute", note)


def full_scans(db: Database, statement: Statement, tables: set[str]) -> list[str]:
    """The steps of its plan that read one of these tables from end to end.

    A partial index holds only what matters (living VMs), so that going through it is no full scan;
    nor is going along an index, or along all rows, in the order that is asked for, up to a LIMIT.
    """
    with db.engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        plan = [
            str(row[3])
            for row in raw.execute(f"EXPLAIN QUERY PLAN {statement.text}", statement.values)
        ]
        partial = {
            str(row[0])
            for row in raw.execute(
                "SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
            )
        }
    sorts = any("TEMP B-TREE FOR ORDER BY" in step for step in plan)
    limited = "LIMIT" in statement.text.upper() and not sorts
    found = []
    for step in plan:
        scan = re.match(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?", step)
        if scan is None or re.sub(r"_\d+$", "", scan[1]) not in tables:
            continue
        ends = limited and (scan[2] is not None or "WHERE" not in statement.text.upper())
        if scan[2] not in partial and not ends:
            found.append(step)
    return found


def work(db: Database, act: Callable[[], object]) -> int:
    """How many instructions of SQLite `act` takes, in whatever threads; to the nearest ten."""
    steps = 0
    watched: list[Any] = []

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def begin(connection: Any, _record: object, _proxy: object) -> None:
        connection.set_progress_handler(count, _STEP)
        watched.append(connection)

    sa.event.listen(db.engine, "checkout", begin)
    try:
        act()
    finally:
        sa.event.remove(db.engine, "checkout", begin)
        for connection in watched:
            connection.set_progress_handler(None, 0)
    return steps * _STEP
