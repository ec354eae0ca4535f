"""All that differs between SQLite and PostgreSQL; everything else of `store` is the same for both.

SQLite locks the whole database for a writer, so it needs no locks of rows; PostgreSQL locks rows.
What its drivers raise is told in words here: they name hosts and databases, never a password.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

SQLITE, POSTGRESQL = "sqlite", "postgresql"

OLDEST = 13
"""The first release of PostgreSQL that is tried; 12 is not maintained any more."""

BUSY_S = 5

CONNECT = {
    # Whoever holds rows and says nothing any more (a stopped process, a host that is gone) gives
    # them back before its leases are over, or whoever takes its place would wait for them.
    "options": "-c idle_in_transaction_session_timeout=8s"
    " -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3",
    "connect_timeout": 5,
    # The same from this side: a server that is gone without a word is noticed in 20 s.
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "client_encoding": "utf8",
    "application_name": "spothop",
}
"""How PostgreSQL is connected to; what the URL says comes before it."""

_INCREMENTAL = 2
"""SQLite's number for the mode in which free pages can be given back."""

_AGAIN = frozenset({"40001", "40P01", "55P03"})
"""Conflicts of transactions: serialization, deadlock, a lock that is taken."""

_AWAY = ("08", "57P", "53300", "25006")
"""Lost connections, a server that ends or starts, no room for a connection, a standby."""

_HIDDEN = ("password", "sslpassword")


class DatabaseRefused(Exception):
    """It cannot be used; the message says why, and the way out."""


# --- opening --------------------------------------------------------------------------------------


def parse(url: str) -> sa.URL:
    """With the driver that we use. Raises `DatabaseRefused`."""
    try:
        parsed = sa.make_url(url.replace("postgres://", "postgresql://", 1))
    except ArgumentError:  # its text may hold the URL, and that a password
        raise DatabaseRefused(
            "it is no URL of a database; write sqlite:////folder/master.db, or "
            "postgresql://user@host/database (signs such as @ and / in a password as %40 and %2F)"
        ) from None
    if parsed.get_backend_name() == POSTGRESQL:
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != SQLITE:
        raise DatabaseRefused(
            f"{parsed.get_backend_name()} is neither SQLite nor PostgreSQL; "
            "write sqlite:////folder/master.db, or postgresql://user@host/database"
        )
    return parsed


def shown(url: str) -> str:
    """Without a password, wherever it stands."""
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        return "***"
    hidden = {name: "***" for name in _HIDDEN if name in parsed.query}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def engine(url: str, *, kept: int, most: int) -> sa.Engine:
    """Nobody is connected yet. At most so many connections are open, and so many stay. Raises
    `DatabaseRefused`."""
    parsed = parse(url)
    more: dict[str, Any] = {}
    if parsed.get_backend_name() == POSTGRESQL:
        # Asked before each transaction: a connection that died with its server is replaced.
        more = {"pool_pre_ping": True}
        ours = {name: value for name, value in CONNECT.items() if name not in parsed.query}
        options = f"{CONNECT['options']} {parsed.query.get('options', '')}"
        more["connect_args"] = {**ours, "options": options}
    try:
        # A failed statement is logged; its values hold what users keep secret.
        made = sa.create_engine(
            parsed, hide_parameters=True, pool_size=kept, max_overflow=most - kept, **more
        )
    except (ModuleNotFoundError, ImportError, NoSuchModuleError):
        raise DatabaseRefused(
            "the driver for PostgreSQL is not installed; pip install 'spothop[postgres]'"
        ) from None
    if is_sqlite(made):
        sa.event.listen(made, "connect", _configure_sqlite)
        sa.event.listen(made, "begin", _begin_sqlite)
    return made


def writer(engine: sa.Engine) -> sa.Engine:
    """The same, for transactions that may write: SQLite takes its lock at their beginning."""
    return (
        engine.execution_options(spothop_begin="BEGIN IMMEDIATE") if is_sqlite(engine) else engine
    )


def check(engine: sa.Engine) -> None:
    """A server can be connected to, and is new enough. Raises `DatabaseRefused`."""
    if is_sqlite(engine):
        return
    try:
        with engine.connect() as connection:
            number = connection.exec_driver_sql("SHOW server_version_num").scalar()
            version = connection.exec_driver_sql("SHOW server_version").scalar()
            encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    except SQLAlchemyError as error:
        raise DatabaseRefused(in_words(error)) from None
    if int(number or 0) // 10_000 < OLDEST:
        raise DatabaseRefused(
            f"its server is PostgreSQL {version}, and {OLDEST} is the oldest that spothop works "
            "with; upgrade that server"
        )
    if encoding != "UTF8":
        raise DatabaseRefused(
            f"its encoding is {encoding}, which cannot keep every text; "
            "make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


_HINTS = {
    "password authentication failed": "correct the user's name and password",
    "no password supplied": "give a password, in SPOTHOP_MASTER_DATABASE_URL or in ~/.pgpass",
    "pg_hba.conf": "let this machine in, in the server's pg_hba.conf",
    'FATAL:  role "': "make that user with CREATE ROLE ... LOGIN, or correct its name",
    'FATAL:  database "': "make it with CREATE DATABASE, or correct its name",
    "too many clients": "raise the server's max_connections: a master opens up to 80",
    "permission denied": "give the user the rights to it: GRANT ALL ON SCHEMA public TO ...",
    "could not translate host name": "correct the host's name",
    "failed to resolve host": "correct the host's name",
    "refused": "see whether that server runs, and at this port",
    "No such file or directory": "see whether that server runs, and has its socket there",
    "timeout": "see whether that server runs, and lets this machine in",
}
"""By what the server or its driver says."""


def in_words(error: BaseException) -> str:
    """What a driver says, in one line without a password, and the way out."""
    origin = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    lines = [line.strip() for line in origin.splitlines() if line.strip()]
    telling = [line for line in lines if "FATAL:" in line or "ERROR:" in line]
    fact = (telling or lines or [type(error).__name__])[0]
    hint = next(
        (hint for sign, hint in _HINTS.items() if sign in fact),
        "see whether that database runs and may be written",
    )
    return f"{fact}; {hint}"


# --- what went wrong ------------------------------------------------------------------------------


def is_away(error: BaseException) -> bool:
    """Nobody answers, or the connection was lost: a commit under way may have been written."""
    if isinstance(error, sa.exc.TimeoutError):  # every connection is in use
        return True
    if not isinstance(error, DBAPIError) or isinstance(error.orig, _sqlite_errors()):
        return False
    state = getattr(error.orig, "sqlstate", None) or ""
    no_answer = isinstance(error, sa.exc.OperationalError) and not state
    return error.connection_invalidated or no_answer or state.startswith(_AWAY)


def is_conflict(error: BaseException) -> bool:
    """Transactions were in each other's way. Nothing of this one was written: doing the whole of
    it again is right."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _AGAIN


def _sqlite_errors() -> type[BaseException]:
    import sqlite3

    return sqlite3.Error


# --- statements -----------------------------------------------------------------------------------


def is_sqlite(bound: Any) -> bool:
    """Of an engine or a connection."""
    return bool(bound.dialect.name == SQLITE)


def insert(connection: sa.Connection, model: Any) -> Any:
    """One that knows `on_conflict_do_update`; both write it alike."""
    return sqlite.insert(model) if is_sqlite(connection) else postgresql.insert(model)


def locks_rows(session: Session) -> bool:
    """Whether a transaction that writes has to lock the rows that it reads first."""
    return not is_sqlite(session.get_bind())


def alone(session: Session, what: str) -> None:
    """Until its end no other transaction that asks for the same is beyond this call: for what has
    no row to lock. SQLite has one writer anyway."""
    if locks_rows(session):
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(zlib.crc32(what.encode()))))


@contextmanager
def overwritten(session: Session) -> Iterator[None]:
    """SQLite writes zeros over what stood there before, instead of leaving it in its file."""
    connection = session.connection()
    if not is_sqlite(connection):
        yield
        return
    connection.exec_driver_sql("PRAGMA secure_delete = ON").close()
    try:
        yield
    finally:
        connection.exec_driver_sql("PRAGMA secure_delete = OFF").close()


def be_patient(connection: sa.Connection) -> None:
    """This transaction may rest for longer than `CONNECT` allows: nobody waits for its rows."""
    if not is_sqlite(connection):
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


def json_of_text(connection: sa.Connection, text: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """Text that is JSON, for a column of that; SQLite keeps it as it is."""
    return text if is_sqlite(connection) else sa.cast(text, sa.JSON)


def count_on(connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
    """After rows were inserted with their numbers: PostgreSQL's sequences go on above them; SQLite
    does that by itself."""
    if is_sqlite(connection):
        return
    for table in tables:
        column = table.autoincrement_column
        if column is None:
            continue
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        newest = sa.select(sa.func.max(column)).scalar_subquery()
        connection.execute(
            sa.select(sa.func.setval(sequence, sa.func.coalesce(newest, 1), newest.is_not(None)))
        )


# --- time and transactions ------------------------------------------------------------------------


def is_shared(session: Session) -> bool:
    """Several masters may use this database."""
    return not is_sqlite(session.get_bind())


def now(session: Session, clock: Callable[[], datetime] | None) -> datetime:
    """The time that leases are measured in: that of the database's server, which all masters share;
    `clock`, where one is given, such as that of the one machine that has a SQLite file."""
    if clock is not None:
        return clock()
    found = session.scalar(sa.select(sa.func.clock_timestamp()))
    assert isinstance(found, datetime)
    return found


def transaction_id() -> sa.ColumnElement[int]:
    """Of this transaction, on PostgreSQL: 64 bits, growing, given at its first write."""
    return sa.cast(sa.cast(sa.func.pg_current_xact_id(), sa.Text), sa.BigInteger)


def oldest_running() -> sa.ColumnElement[int]:
    """On PostgreSQL: whatever has a lower transaction id is over, and seen by this statement if it
    was committed."""
    return sa.cast(
        sa.cast(sa.func.pg_snapshot_xmin(sa.func.pg_current_snapshot()), sa.Text), sa.BigInteger
    )


# --- what it takes --------------------------------------------------------------------------------


def size(connection: sa.Connection) -> tuple[int, int]:
    """What the database takes in bytes, and how much of that is free for what comes; 0 where it
    cannot say."""
    if not is_sqlite(connection):
        query = "SELECT pg_database_size(current_database())"
        return int(connection.exec_driver_sql(query).scalar() or 0), 0
    page, pages, free = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0)
        for name in ("page_size", "page_count", "freelist_count")
    )
    return page * pages, page * free


def can_shrink(connection: sa.Connection) -> bool:
    """SQLite's file has free pages that `shrink` gives back; PostgreSQL does that by itself. Files
    of older releases could use them for what comes, and keep their size."""
    if not is_sqlite(connection):
        return False
    free = connection.exec_driver_sql("PRAGMA freelist_count").scalar()
    mode = connection.exec_driver_sql("PRAGMA auto_vacuum").scalar()
    return bool(free) and mode == _INCREMENTAL


def shrink(connection: sa.Connection, pages: int) -> None:
    """Give so many free pages of SQLite's file back."""
    cursor = connection.connection.cursor()  # it answers a row without columns a page
    cursor.execute(f"PRAGMA incremental_vacuum({pages:d})")
    cursor.fetchall()
    cursor.close()


def forget_log(connection: sa.Connection) -> None:
    """SQLite's log (WAL) holds pages as they were: empty it. Not in a transaction."""
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cursor.close()


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself; `_begin_sqlite` does
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_S * 1000}")
    if cursor.execute("PRAGMA page_count").fetchone() == (0,):
        # only a new file listens, but any other would be locked for it
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    how = connection.get_execution_options().get("spothop_begin", "BEGIN")
    connection.exec_driver_sql(how)
