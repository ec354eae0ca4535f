"""Hears of what other masters changed: at once by NOTIFY, and by a look at the feed every second.

A notification carries nothing: it only says that the feed (`store.feed`) is worth a look now. So
one that is lost (a connection pooler, a master that died after its commit) costs a second. They are
sent after the commit and by a thread of their own, many commits at a time: inside a transaction
PostgreSQL lets notifying commits pass one at a time only.

Who could not look for long takes everything for changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from spothop_master.store import feed
from spothop_master.store.db import Database

log = logging.getLogger(__name__)

CHANNEL = "spothop_jobs"
LOOK_S = 1.0
GATHER_S = 0.02
FRESH_S = 2.5
"""What is remembered counts as long as the feed was read so lately."""


class NewsOfOthers:
    """One per master; nothing of it runs where there is one master only. `changed` and `anything`
    are called in its thread: these jobs changed; any may have."""

    def __init__(
        self,
        db: Database,
        *,
        changed: Callable[[frozenset[str]], None],
        anything: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._changed = changed
        self._anything = anything
        self._monotonic = monotonic
        self._reader = feed.Reader(db.master_id)
        self._read_at: float | None = None
        self._dirty = threading.Event()

    def is_fresh(self) -> bool:
        """Nothing that others have committed more than `FRESH_S` ago is unknown here."""
        if self._db.single_master:
            return True
        return self._read_at is not None and self._monotonic() - self._read_at <= FRESH_S

    def look(self) -> None:
        """Read the feed, and tell of what is in it. Raises SQLAlchemyError."""
        began, before = self._monotonic(), self._read_at
        with self._db.read() as session:
            found = self._reader.read(session)
        if before is None or began - before > feed.KEPT.total_seconds() / 2:
            self._anything()
        elif found:
            self._changed(found)
        self._read_at = began

    def trim(self) -> None:
        """Drop what everybody has read. Raises SQLAlchemyError."""
        if not self._db.single_master:
            with self._db.begin() as session:
                feed.trim(session, now=self._db.now(session))

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set: look when there is a notification, or it is time."""
        if self._db.single_master:
            return
        sender = threading.Thread(target=self._send, args=(stop,), name="feed-sender")
        self._db.on_change(lambda jobs: self._dirty.set())
        sender.start()
        connection: Any = None
        while not stop.is_set():
            try:
                connection = connection or _listen(self._db)  # before the look: no gap between
                self.look()
                _wait(connection, LOOK_S)
            except Exception as error:  # of either driver; the next look follows
                log.warning("what other masters do is not heard: %s", str(error).splitlines()[:1])
                _drop(connection)
                connection = None
                stop.wait(LOOK_S)
        _drop(connection)
        self._dirty.set()
        sender.join()

    def _send(self, stop: threading.Event) -> None:
        notify = sa.text(f"NOTIFY {CHANNEL}")
        while not stop.is_set():
            self._dirty.wait()
            self._dirty.clear()
            with suppress(SQLAlchemyError), self._db.begin() as session:  # the look is the fallback
                session.execute(notify)
            stop.wait(GATHER_S)


def _listen(db: Database) -> sa.Connection:
    connection = db.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    connection.exec_driver_sql(f"LISTEN {CHANNEL}")
    return connection


def _wait(connection: sa.Connection, at_most_s: float) -> None:
    driver: Any = connection.connection.driver_connection
    for _ in driver.notifies(timeout=at_most_s, stop_after=1):
        pass


def _drop(connection: sa.Connection | None) -> None:
    """Not back to the pool: whoever got it would listen."""
    if connection is not None:
        with suppress(Exception):
            connection.invalidate()
            connection.close()
