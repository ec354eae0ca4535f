"""Which jobs other masters changed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import select

from spothop_master.store import feed
from spothop_master.store.db import Database
from spothop_master.store.feed import Reader
from spothop_master.store.schema import JobChange
from support import database

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database.use(database.POSTGRESQL)
    return database.new_database(tmp_path / "feed.db")


def change(db: Database, *jobs: str, master: str = "other") -> None:
    with db.begin() as session:
        feed.publish(session, jobs, master=master, now=NOW)


def read(db: Database, reader: Reader) -> set[str]:
    with db.read() as session:
        return set(reader.read(session))


def test_each_change_of_others_is_told_once(db: Database) -> None:
    change(db, "old")
    reader = Reader("me")
    assert read(db, reader) == set()
    change(db, "a", "b")
    change(db, "mine", master="me")
    assert read(db, reader) == {"a", "b"}
    assert read(db, reader) == set()
    change(db, "a")
    assert read(db, reader) == {"a"}


def test_what_commits_late_is_not_skipped(db: Database) -> None:
    """Its number is lower than one that was read before it was committed."""
    reader = Reader("me")
    read(db, reader)
    with db.begin() as slow:
        feed.publish(slow, ["late"], master="other", now=NOW)
        change(db, "quick")
        assert read(db, reader) == {"quick"}
        assert read(db, reader) == set()
    assert read(db, reader) == {"late"}
    assert read(db, reader) == set()


def test_what_is_rolled_back_is_not_told(db: Database) -> None:
    reader = Reader("me")
    read(db, reader)
    with db.begin() as session:
        feed.publish(session, ["undone"], master="other", now=NOW)
        session.rollback()
    assert read(db, reader) == set()


def test_old_rows_go(db: Database) -> None:
    change(db, "a")
    for later, left in ((feed.KEPT, 1), (feed.KEPT + timedelta(seconds=1), 0)):
        with db.begin() as session:
            feed.trim(session, now=NOW + later)
            assert len(session.scalars(select(JobChange)).all()) == left
