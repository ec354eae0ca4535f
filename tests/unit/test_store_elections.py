"""Which master runs which loop, on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import text

from fakes.fake_cloud import FakeClock
from spothop_master.loops.elected import LOOPS, RENEW_S, Elected
from spothop_master.store import elections
from spothop_master.store.db import Database
from support import database

TTL_S = elections.TTL.total_seconds()


class Several:
    """Masters on one database, in virtual time."""

    def __init__(self, folder: Path) -> None:
        database.use(database.POSTGRESQL)
        self.first = database.new_database(folder / "shared.db")
        self.folder = folder
        self.clock = FakeClock()

    def master(
        self, *, loops: bool = True, told_time: Callable[[datetime], None] = lambda now: None
    ) -> Elected:
        db = database.open_database(self.folder / "shared.db")
        db.clock = self.clock
        return Elected(
            db,
            name="m",
            url="http://m",
            version="1",
            clock=self.clock,
            loops=loops,
            told_time=told_time,
            monotonic=lambda: self.clock().timestamp(),
        )


@pytest.fixture
def several(tmp_path: Path) -> Several:
    return Several(tmp_path)


def test_each_loop_runs_in_one_master(several: Several) -> None:
    one, two, answers = several.master(), several.master(), several.master(loops=False)
    assert answers.turn() == []
    assert sorted(one.turn()) == sorted(LOOPS)
    assert two.turn() == []
    ran: list[str] = []
    for name, master in (("one", one), ("two", two), ("answers", answers)):
        master.only_here("sweep", lambda name=name: ran.append(name))()  # type: ignore[misc]
    assert ran == ["one"]
    with several.first.read() as session:
        now = several.clock()
        assert len(elections.masters(session, now=now)) == 3
        held = elections.holders(session, now=now)
    assert [(loop.name, loop.master_id) for loop, _ in held] == [
        (name, one.id) for name in sorted(LOOPS)
    ]
    assert {who.name for _, who in held if who} == {"m"}


def test_a_lease_is_renewed_and_another_master_takes_it_when_it_is_over(several: Several) -> None:
    one, two = several.master(), several.master()
    one.turn()
    for _ in range(20):
        several.clock.advance(RENEW_S)
        one.turn()
        assert two.turn() == []
    several.clock.advance(TTL_S - 0.5)
    assert two.turn() == []
    several.clock.advance(0.5)
    assert not one.holds("supervise")
    assert sorted(two.turn()) == sorted(LOOPS)


def test_who_ends_gives_its_loops_back_at_once(several: Several) -> None:
    one, two = several.master(), several.master()
    one.turn()
    stop = threading.Event()
    stop.set()
    one.run(stop)
    assert sorted(two.turn()) == sorted(LOOPS)


def test_a_master_that_was_stopped_writes_nothing_for_a_loop_that_it_lost(several: Several) -> None:
    """Its own clock does not tell it: it is stopped between the look at it and the write."""
    one, two = several.master(), several.master()
    one.turn()
    with one._db.begin() as session:
        one.guard(session, "supervise")
    several.clock.advance(TTL_S)
    two.turn()
    one._monotonic = lambda: float("-inf")
    assert one.holds("supervise")  # as far as it knows
    with pytest.raises(elections.LostLoop), one._db.begin() as session:
        one.guard(session, "supervise")
    one._monotonic = two._monotonic
    assert one.turn() == []
    assert not one.holds("supervise")
    with two._db.begin() as session:
        two.guard(session, "supervise")


def test_a_decision_under_way_is_written_before_another_master_takes_the_loop(
    several: Several,
) -> None:
    one, two = several.master(), several.master()
    one.turn()
    with one._db.begin() as session:
        one.guard(session, "supervise")
        several.clock.advance(TTL_S)
        assert "supervise" not in two.turn()
    assert "supervise" in two.turn()


def test_a_master_that_holds_rows_and_says_nothing_loses_them(several: Several) -> None:
    """As one that is stopped in the middle of a transaction: PostgreSQL ends its connection."""
    several.master().turn()
    engine = several.first.engine
    with engine.connect() as connection:
        shown = connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar()
        assert timedelta(seconds=int(str(shown).removesuffix("s"))) < elections.TTL
        connection.rollback()
        connection.execute(text("SET idle_in_transaction_session_timeout = '50ms'"))
        connection.commit()
        connection.execute(text("SELECT * FROM loops FOR UPDATE"))
        with engine.connect() as other:  # waits until then
            other.execute(text("SELECT * FROM loops FOR UPDATE"))
            other.rollback()
        with pytest.raises(sa.exc.DBAPIError, match="idle-in-transaction"):
            connection.execute(text("SELECT 1"))


def test_it_tells_the_time_of_the_databases_server(several: Several) -> None:
    told: list[datetime] = []
    master = several.master(told_time=told.append)
    master.turn()
    several.clock.advance(RENEW_S)
    master.turn()
    assert told == [several.clock() - timedelta(seconds=RENEW_S), several.clock()]


def test_with_sqlite_the_one_master_runs_every_loop(tmp_path: Path) -> None:
    db, clock = database.new_database(tmp_path / "one.db"), FakeClock()
    master = Elected(db, name="m", url="u", version="1", clock=clock)
    assert [*master.running()] == sorted(LOOPS)
    answers = Elected(db, name="m", url="u", version="1", clock=clock, loops=False)
    assert not answers.holds("supervise")
    with db.begin() as session:
        master.guard(session, "supervise")
        with pytest.raises(elections.LostLoop):
            answers.guard(session, "supervise")


def test_leases_are_measured_in_the_time_of_the_server(several: Several) -> None:
    db: Database = several.first
    db.clock = None
    with db.begin() as session:
        moments = [db.now(session), session.scalar(sa.select(sa.func.clock_timestamp()))]
        moments.append(db.now(session))
    assert moments == sorted(moments)  # type: ignore[type-var]
