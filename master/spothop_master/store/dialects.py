"""What SQLite and PostgreSQL say differently about time and transactions: the one place for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import BigInteger, ColumnElement, Text, cast, func, select
from sqlalchemy.orm import Session

CONNECT = {
    # Whoever holds rows and says nothing any more (a stopped process, a host that is gone) gives
    # them back before its leases are over, or whoever takes its place would wait for them.
    "options": "-c idle_in_transaction_session_timeout=8s"
    " -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3",
    "connect_timeout": 5,
}
"""How PostgreSQL is connected to."""


def is_shared(session: Session) -> bool:
    """Several masters may use this database."""
    return session.get_bind().dialect.name != "sqlite"


def now(session: Session, clock: Callable[[], datetime] | None) -> datetime:
    """The time that leases are measured in: that of the database's server, which all masters share;
    `clock`, where one is given, such as that of the one machine that has a SQLite file."""
    if clock is not None:
        return clock()
    found = session.scalar(select(func.clock_timestamp()))
    assert isinstance(found, datetime)
    return found


def transaction_id() -> ColumnElement[int]:
    """Of this transaction, on PostgreSQL: 64 bits, growing, given at its first write."""
    return cast(cast(func.pg_current_xact_id(), Text), BigInteger)


def oldest_running() -> ColumnElement[int]:
    """On PostgreSQL: whatever has a lower transaction id is over, and seen by this statement if it
    was committed."""
    return cast(cast(func.pg_snapshot_xmin(func.pg_current_snapshot()), Text), BigInteger)
