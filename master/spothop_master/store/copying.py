"""A whole database into another one, such as SQLite into PostgreSQL.

What it must guarantee: the other one has every row afterwards, or none at all. All of it is one
transaction there; rows are counted in both before it commits. What masters tell each other while
they run (who is there, which loop is whose, what changed last) stays behind: nobody runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from spothop_master.store import dialects, elections
from spothop_master.store.db import Database
from spothop_master.store.dialects import DatabaseRefused
from spothop_master.store.master_rows import JobChange, Loop, Master
from spothop_master.store.migrating import newest_revision
from spothop_master.store.schema import Base

AT_ONCE = 1000
"""Rows of a batch."""

LEFT_BEHIND = frozenset({Master.__tablename__, Loop.__tablename__, JobChange.__tablename__})

Tell = Callable[[str, int], None]
"""Gets a table's name, and how many rows of it are through, after each batch."""


def copy(source: Database, target: Database, *, tell: Tell = lambda _table, _rows: None) -> int:
    """Every row; how many there were. The target gets its tables when it has none. Nobody may write
    into either meanwhile. Raises `DatabaseRefused`; then the target holds no row."""
    newest, found = newest_revision(), source.revision()
    if found != newest:
        raise DatabaseRefused(
            f"the database that is to be copied is at revision {found or 'none'}, and this program "
            f"works with {newest}; start the master on it once, which migrates it, and stop it"
        )
    if target.revision() not in (None, newest):
        raise DatabaseRefused("the target is not empty; give it a database of its own")
    target.migrate()
    with source.engine.connect() as reading, target.engine.begin() as writing:
        dialects.be_patient(writing)
        for table in tables():
            if has_rows(writing, table):
                raise DatabaseRefused(
                    f"the target is not empty (its table {table.name} has rows), and nothing in it "
                    "was changed; give it a database of its own"
                )
        copied = {table.name: _copy_table(table, reading, writing, tell) for table in tables()}
        dialects.count_on(writing, tables())
        for table in tables():
            there = writing.scalar(sa.select(sa.func.count()).select_from(table))
            here = reading.scalar(sa.select(sa.func.count()).select_from(table))
            if not here == there == copied[table.name]:
                raise DatabaseRefused(
                    f"table {table.name} has {here} rows here and {there} there, so nothing was "
                    "kept; see that nobody writes into either, and try again"
                )
    return sum(copied.values())


def tables() -> list[sa.Table]:
    """Those that are copied, each after those that it refers to."""
    return [table for table in Base.metadata.sorted_tables if table.name not in LEFT_BEHIND]


def has_rows(connection: sa.Connection, table: sa.Table) -> bool:
    return connection.scalar(sa.select(sa.literal(1)).select_from(table).limit(1)) is not None


def refuse_masters(db: Database, *, now: datetime | None = None) -> None:
    """Raises `DatabaseRefused` when a master works on this database."""
    if db.revision() != newest_revision():  # empty, or refused for that
        return
    with db.read() as session:
        found = elections.masters(session, now=now or db.now(session))
    if found:
        raise DatabaseRefused(
            f"the master {found[0].name} works on it; stop that one, and try again "
            f"{elections.TTL.total_seconds():.0f} s later"
        )


def _copy_table(table: sa.Table, reading: sa.Connection, writing: sa.Connection, tell: Tell) -> int:
    rows = reading.execution_options(yield_per=AT_ONCE).execute(
        sa.select(*map(_raw, table.columns))
    )
    taken = {column.name: _taken(writing, column) for column in table.columns}
    insert, count = table.insert().values(taken), 0
    for batch in rows.mappings().partitions(AT_ONCE):
        writing.execute(insert, [{_value(n): _clean(v) for n, v in row.items()} for row in batch])
        count += len(batch)
        tell(table.name, count)
    return count


def _raw(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """JSON as its text: NULL and JSON's own null stay different."""
    if isinstance(column.type, sa.JSON):
        return sa.cast(column, sa.Text).label(column.name)
    return column


def _taken(connection: sa.Connection, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """The other way round."""
    is_json = isinstance(column.type, sa.JSON)
    value = sa.bindparam(_value(column.name), type_=sa.Text() if is_json else column.type)
    return dialects.json_of_text(connection, value) if is_json else value


def _value(column: str) -> str:
    return f"v_{column}"


def _clean(value: object) -> object:
    """PostgreSQL has no text with a NUL in it."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
