"""One of several masters decides about jobs, and each hears what the others changed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from fakes.fake_cloud import FakeClock
from fakes.master_harness import MasterHarness
from spothop_master.loops.elected import Elected
from spothop_master.loops.news_of_others import FRESH_S, NewsOfOthers
from spothop_master.store import elections, feed
from spothop_master.store.db import Database
from spothop_master.store.schema import Job, User
from support import database
from support.database import new_database, open_database
from support.waiting import until


class Turn(Elected):
    """Whose turn it is, as a test says."""

    def __init__(self, db: Database, clock: FakeClock) -> None:
        super().__init__(db, name="m", url="u", version="1", clock=clock)
        self.mine, self.lost = False, False

    def holds(self, loop: str) -> bool:
        return self.mine

    def guard(self, session: Session, loop: str) -> None:
        if self.lost:
            raise elections.LostLoop("it is another's")


def supervised(tmp_path: Path) -> tuple[MasterHarness, Turn]:
    harness = MasterHarness(tmp_path)
    turn = Turn(harness.db, harness.clock)
    harness.supervisor._elected = turn
    return harness, turn


def test_only_the_master_whose_turn_it_is_decides(tmp_path: Path) -> None:
    harness, turn = supervised(tmp_path)
    supervisor = harness.supervisor
    harness.submit()
    for _ in range(3):
        harness.clock.advance(1)
        supervisor._turn()
    assert harness.vms() == []
    turn.mine = True
    for _ in range(3):
        harness.clock.advance(1)
        supervisor._turn()
    assert len(harness.vms()) == 1


def test_whose_turn_it_becomes_counts_every_vm_as_just_heard(tmp_path: Path) -> None:
    """The agents of the master before have to find this one first."""
    harness, turn = supervised(tmp_path)
    turn.mine = True
    harness.training()
    turn.mine = False
    harness.supervisor._turn()
    harness.clock.advance(300)
    turn.mine = True
    harness.supervisor._turn()
    assert [vm.state for vm in harness.vms()] == ["running"]


def test_what_a_master_decided_that_lost_the_loop_meanwhile_is_not_written(tmp_path: Path) -> None:
    harness, turn = supervised(tmp_path)
    turn.mine = turn.lost = True
    harness.submit()
    with pytest.raises(elections.LostLoop):
        harness.supervisor._turn()
    assert (harness.vms(), harness.cloud.launches) == ([], [])


class Heard:
    """A master beside another one on the same PostgreSQL."""

    def __init__(self, folder: Path) -> None:
        database.use(database.POSTGRESQL)
        self.other = new_database(folder / "shared.db")
        self.db = open_database(folder / "shared.db")
        self.clock, self.jobs, self.all = FakeClock(), list[str](), 0
        self.news = NewsOfOthers(
            self.db,
            changed=self.jobs.extend,
            anything=self._any,
            monotonic=lambda: self.clock().timestamp(),
        )

    def _any(self) -> None:
        self.all += 1

    def change(self, db: Database) -> None:
        with db.begin() as session:
            session.add(_job("a" if db is self.other else "b"))


def _job(name: str) -> Job:
    row = {"name": "n", "owner_id": 1, "submit_token": name, "spec": {}, "bundle": "0"}
    return Job(id=name, state="queued", submitted_at=FakeClock()(), **row)


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    heard = Heard(tmp_path)
    with heard.other.begin() as session:
        session.add(User(id=1, name="u", role="user", created_at=heard.clock()))
    return heard


def test_it_hears_of_what_others_changed(heard: Heard) -> None:
    assert not heard.news.is_fresh()
    heard.news.look()
    assert (heard.all, heard.news.is_fresh()) == (1, True)
    heard.change(heard.other)
    heard.change(heard.db)  # which it knows
    heard.news.look()
    assert (heard.jobs, heard.all) == (["a"], 1)
    heard.clock.advance(FRESH_S + 0.1)
    assert not heard.news.is_fresh()


def test_who_could_not_look_for_long_takes_everything_for_changed(heard: Heard) -> None:
    heard.news.look()
    heard.clock.advance(feed.KEPT.total_seconds())
    heard.change(heard.other)
    heard.news.look()
    assert (heard.jobs, heard.all) == ([], 2)


def test_a_notification_tells_before_the_next_look_is_due(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spothop_master.loops.news_of_others.LOOK_S", 1000.0)
    sender = NewsOfOthers(heard.other, changed=lambda jobs: None, anything=lambda: None)
    stop = threading.Event()
    threads = [
        threading.Thread(target=heard.news.run, args=(stop,)),
        threading.Thread(target=sender.run, args=(stop,)),
    ]
    for thread in threads:
        thread.start()
    try:
        until(lambda: sender.is_fresh() and heard.all, what="both listen")
        heard.change(heard.other)
        until(lambda: heard.jobs == ["a"], what="heard of it")
    finally:
        stop.set()
        with heard.other.begin() as session:  # or they would wait for the look
            session.connection().exec_driver_sql("NOTIFY spothop_jobs")
        for thread in threads:
            thread.join()
