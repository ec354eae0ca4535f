"""A database copied into another one: `spothop master migrate-database`."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from fakes import sample_rows
from fakes.old_database import contents
from spothop_master.security import Role
from spothop_master.store import copying, elections, users
from spothop_master.store.db import Database
from spothop_master.store.dialects import DatabaseRefused
from spothop_master.store.master_rows import Master
from spothop_master.store.schema import Event, Job
from support import database

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
NUL = "text with \0 in it"


@pytest.fixture
def source(tmp_path: Path) -> Database:
    """A SQLite database with rows, some of which PostgreSQL would not take as they are."""
    database.use(database.SQLITE)
    db = database.new_database(tmp_path / "source.db")
    with db.begin() as session:
        user = users.add_user(session, name="ada", role=Role.ADMIN, now=NOW)
        sample_rows.tell(session, owner_id=user.id)
        session.flush()
        session.add(Event(at=NOW, kind="message", text=NUL, data={"n": 2**53, "text": "\0"}))
        master = Master(id="m", name="n", url="", version="", loops=True, started_at=NOW)
        elections.announce(session, master, now=NOW)
    with db.begin() as session:  # JSON's own null is not NULL
        session.execute(sa.text("UPDATE jobs SET insurance = 'null' WHERE id LIKE 'mnist%'"))
    return db


def new_target(tmp_path: Path) -> Database:
    database.use(database.POSTGRESQL)
    return database.open_database(tmp_path / "target.db")


@pytest.fixture
def target(source: Database, tmp_path: Path) -> Database:
    return new_target(tmp_path)


def test_every_row_is_there_afterwards_and_new_ones_get_new_numbers(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "AT_ONCE", 3)
    told: dict[str, int] = {}
    count = copying.copy(source, target, tell=told.__setitem__)
    before, after = contents(source), contents(target)
    assert count == sum(told.values()) > 30
    assert after.pop("masters") == [], "nobody runs"
    assert len(before.pop("masters")) == 1
    (event,) = [row for row in before["events"] if row["text"] == NUL]
    event["text"] = NUL.replace("\0", "\N{REPLACEMENT CHARACTER}")
    assert after == before
    nulls = sa.text("SELECT count(*) FROM jobs WHERE insurance IS NULL")
    with source.engine.connect() as here, target.engine.connect() as there:
        assert there.scalar(nulls) == here.scalar(nulls)
    with target.begin() as session:
        session.add(Event(at=NOW, kind="message", text="the next one"))
        session.flush()
        assert session.scalar(sa.select(sa.func.max(Event.id))) == event["id"] + 1


def test_a_target_with_rows_is_refused_and_keeps_them(source: Database, target: Database) -> None:
    target.migrate()
    with target.begin() as session:
        users.add_user(session, name="somebody", role=Role.USER, now=NOW)
    before = contents(target)
    with pytest.raises(DatabaseRefused, match=r"the target is not empty .its table users has rows"):
        copying.copy(source, target)
    assert contents(target) == before


def test_a_copy_that_fails_leaves_no_row(source: Database, target: Database) -> None:
    """The guards of the target hold, too; and what was copied before is not kept."""
    with source.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE events SET kind = replace(hex(zeroblob(200)), '0', 'k')")
    with pytest.raises(sa.exc.DataError):
        copying.copy(source, target)
    assert not any(contents(target).values())


def test_another_revision_is_refused(source: Database, target: Database) -> None:
    with source.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0004'")
    with pytest.raises(DatabaseRefused, match=r"is at revision 0004, .* start the master on it"):
        copying.copy(source, target)
    assert target.revision() is None


def test_a_database_that_a_master_works_on_is_refused(source: Database) -> None:
    with pytest.raises(DatabaseRefused, match="the master n works on it; stop that one"):
        copying.refuse_masters(source, now=NOW + timedelta(seconds=5))
    copying.refuse_masters(source, now=NOW + timedelta(minutes=1))
    with source.read() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Job)) == 4
